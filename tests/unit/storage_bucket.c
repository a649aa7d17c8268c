/* storage_bucket.c - the parts of the back-end s3 that need no server, and a driver for tests that
 * have one.
 *
 * Goal: signatures are AWS's, answers of a hostile server break nothing, times of day and names are
 * read as they are written. Method: AWS's published examples; texts that are cut, nested, too long.
 *
 * With the argument "drive" and a place it opens that store and carries out lines of stdin, an
 * answer a line: "OK ..." or the name of the error and its text. The scripts of tests/s3/ use it.
 */
#include "proto/base/clock.h"
#include "storage/bucket/bucket.h"
#include "storage/bucket/sources.h"
#include "storage/http/hash.h"
#include "storage/http/xml.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <sys/socket.h>

/* ---- signatures ----
 * Source: AWS, Amazon S3 API Reference, "Signature Calculations for the Authorization Header:
 * Transferring Payload in a Single Chunk", three of its examples. */

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define PUT_SHA256 "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"

static const struct vector {
    const char *name;
    struct sigv4_request request;
    const char *secret_key, *signature;
} vectors[] = {
    {"GET Object",
     {.method = "GET",
      .path = "/test.txt",
      .query = "",
      .payload_sha256 = EMPTY_SHA256,
      .region = "us-east-1",
      .service = "s3",
      .date = "20130524T000000Z",
      .headers = {{"x-amz-date", "20130524T000000Z"},
                  {"host", "examplebucket.s3.amazonaws.com"},
                  {"x-amz-content-sha256", EMPTY_SHA256},
                  {"range", "bytes=0-9"}},
      .num_headers = 4},
     "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
    {"PUT Object",
     {.method = "PUT",
      .path = "/test%24file.text",
      .query = "",
      .payload_sha256 = PUT_SHA256,
      .region = "us-east-1",
      .service = "s3",
      .date = "20130524T000000Z",
      .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                  {"host", "examplebucket.s3.amazonaws.com"},
                  {"x-amz-content-sha256", PUT_SHA256},
                  {"x-amz-date", "20130524T000000Z"},
                  {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
      .num_headers = 5},
     "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
     "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
    {"GET Bucket (List Objects)",
     {.method = "GET",
      .path = "/",
      .query = "max-keys=2&prefix=J",
      .payload_sha256 = EMPTY_SHA256,
      .region = "us-east-1",
      .service = "s3",
      .date = "20130524T000000Z",
      .headers = {{"host", "examplebucket.s3.amazonaws.com"},
                  {"x-amz-content-sha256", EMPTY_SHA256},
                  {"x-amz-date", "20130524T000000Z"}},
      .num_headers = 3},
     "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
     "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};

TEST(test_sigv4__signs_as_the_examples_of_aws)
{
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        char out[SIGV4_AUTHORIZATION_BYTES];
        const struct vector *vector = &vectors[i];
        assert_int_equal(sigv4_sign(out, &vector->request, "AKIDEXAMPLE", vector->secret_key), 0);
        const char *signature = strstr(out, "Signature=");
        assert_non_null(signature);
        print_message("# %s\n", vector->name);
        assert_string_equal(signature + strlen("Signature="), vector->signature);
    }
}

TEST(test_sigv4__encodes_all_but_unreserved_characters)
{
    char out[64] = "";
    assert_int_equal(sigv4_encode(out, sizeof out, "a b/c~d+e\xc3\xa4", 0), 0);
    assert_string_equal(out, "a%20b%2Fc~d%2Be%C3%A4");
    out[0] = '\0';
    assert_int_equal(sigv4_encode(out, sizeof out, "a b/c", 1), 0);
    assert_string_equal(out, "a%20b/c");
    char small[4] = "";
    assert_int_equal(sigv4_encode(small, sizeof small, "a b", 0), ERR_INVALID);
}

TEST(test_sigv4__refuses_what_is_too_long)
{
    char out[SIGV4_AUTHORIZATION_BYTES], secret[400];
    memset(secret, 'x', sizeof secret - 1);
    secret[sizeof secret - 1] = '\0';
    assert_int_equal(sigv4_sign(out, &vectors[0].request, "A", secret), ERR_INVALID);
}

/* ---- XML ---- */

struct seen {
    char text[512];
};

static int note_found(void *user, const char *path, const char *text)
{
    struct seen *seen = user;
    size_t at = strlen(seen->text);
    snprintf(seen->text + at, sizeof seen->text - at, "%s=%s;", path, text ? text : "*");
    return 0;
}

static int read_text(struct seen *seen, const char *text)
{
    seen->text[0] = '\0';
    return xml_read(text, strlen(text), note_found, seen);
}

TEST(test_xml__tells_paths_and_texts_in_order)
{
    struct seen seen;
    assert_int_equal(read_text(&seen, "<?xml version='1.0'?><a xmlns='x'><b>1 &amp; 2</b> <c><d/>"
                                      "</c></a>"),
                     0);
    assert_string_equal(seen.text, "a/b=1 & 2;a/c/d=;a/c=*;a=*;");
}

TEST(test_xml__refuses_what_is_no_such_document)
{
    static const char *const bad[] = {
        "",
        "<a>",
        "<a></b>",
        "no",
        "<a/><b/>",
        "<a>\x01</a>",
        "<!DOCTYPE a [<!ENTITY e 'x'>]><a>&e;</a>", /* no entity is expanded */
        "<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>",
    };
    struct seen seen;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(read_text(&seen, bad[i]), ERR_CORRUPT);
}

/* ---- rates ---- */

TEST(test_pace__sends_no_faster_than_the_rate)
{
    struct pace *pace;
    _Atomic uint64_t ends_ns = 0;
    assert_int_equal(pace_open(&pace, 10 << 20, &ends_ns), 0);
    uint64_t begin = clock_ns();
    for (int i = 0; i < 64; i++)
        pace_take(pace, 64 << 10); /* 4 MiB at 10 MiB a second, less the burst of 0.1 s */
    uint64_t ms = (clock_ns() - begin) / 1000000;
    assert_in_range(ms, 295, 2000);
    ends_ns = clock_ns();
    pace_take(pace, 1 << 30); /* nobody waits for the end of these 102 s */
    pace_close(pace);
}

/* ---- the end ---- */

struct opening {
    struct storage_options options;
    struct storage *storage;
    pthread_t thread;
    int error;
};

static void *run_opening(void *argument)
{
    struct opening *opening = argument;
    opening->error = storage_open(&opening->storage, &storage_s3, "bucket", &opening->options);
    return NULL;
}

/* A server of one connection: takes a request, and sends that answer. */
static int serve_one(int listener, const char *answer)
{
    char request[4096];
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0 && recv(fd, request, sizeof request, 0) > 0);
    assert_int_equal(send(fd, answer, strlen(answer), MSG_NOSIGNAL), strlen(answer));
    return fd;
}

TEST(test_end__neither_a_silent_server_nor_a_busy_one_keeps_a_process_that_ends)
{
    static const char *const answers[] = {
        "", "HTTP/1.1 503 Slow Down\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"};
    struct storage_bucket settings;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    setenv("AWS_ACCESS_KEY_ID", "a", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    assert_int_equal(storage_bucket_environment(&settings), 0);
    snprintf(settings.endpoint, sizeof settings.endpoint, "http://127.0.0.1:%d",
             ntohs(address.sin_port));
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        _Atomic uint64_t ends_ns = 0;
        struct opening opening = {.options = {.bucket = &settings, .ends_ns = &ends_ns}};
        assert_int_equal(pthread_create(&opening.thread, NULL, run_opening, &opening), 0);
        int fd = serve_one(listener, answers[i]);
        uint64_t begin = clock_ns() + CLOCK_SECOND_NS / 2; /* it waits by then */
        ends_ns = begin;
        pthread_join(opening.thread, NULL);
        assert_int_equal(opening.error, ERR_UNAVAILABLE);
        assert_true(clock_ns() - begin < 5 * CLOCK_SECOND_NS); /* not stall_s, nor SLOW_MAX_NS */
        close(fd);
    }
    close(listener);
}

/* ---- where ---- */

TEST(test_where__names_a_bucket_a_directory_a_peer_or_a_path)
{
    static const struct {
        const char *text, *place;
        const struct storage_ops *ops; /* NULL: it is refused */
        bool is_shared;
    } cases[] = {{"s3://b/p/q", "b/p/q", &storage_s3, false},
                 {"dir:/lustre/x", "/lustre/x", &storage_local, true},
                 {"peer:n2:7070", "n2:7070", &storage_peer, false},
                 {"/data", "/data", &storage_local, false},
                 {"./s3:/b", "./s3:/b", &storage_local, false},
                 {.text = "s3://"},
                 {.text = ""},
                 {.text = "s3:/b"},
                 {.text = "S3://b"},
                 {.text = "gs://b/p"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct storage_where where;
        int error = storage_where_parse(&where, cases[i].text);
        assert_int_equal(error, cases[i].ops != NULL ? 0 : ERR_INVALID);
        if (error != 0)
            continue;
        assert_ptr_equal(where.ops, cases[i].ops);
        assert_string_equal(where.place, cases[i].place);
        if (where.ops == &storage_local)
            assert_int_equal(where.is_shared, cases[i].is_shared);
    }
}

TEST(test_bucket__refuses_names_that_no_bucket_has)
{
    static const char *const bad[] = {"a",     "a b c",      "bucket/../x", "bucket/.holdfast.x",
                                      "b$b$b", "bucket/a//b"};
    struct storage_bucket settings;
    struct storage *storage;
    assert_int_equal(storage_bucket_environment(&settings), 0);
    struct storage_options options = {.bucket = &settings};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(storage_open(&storage, &storage_s3, bad[i], &options), ERR_INVALID);
    snprintf(settings.endpoint, sizeof settings.endpoint, "ftp://x");
    assert_int_equal(storage_open(&storage, &storage_s3, "bucket", &options), ERR_INVALID);
}

/* ---- settings ---- */

TEST(test_settings__ours_win_over_those_of_aws)
{
    struct storage_bucket settings;
    setenv("AWS_REGION", "eu-west-1", 1);
    setenv("AWS_ENDPOINT_URL", "http://a", 1);
    setenv("HOLDFAST_S3_ENDPOINT", "http://b", 1);
    setenv("HOLDFAST_S3_PART_BYTES", "8MiB", 1);
    assert_int_equal(storage_bucket_environment(&settings), 0);
    assert_string_equal(settings.region, "eu-west-1");
    assert_string_equal(settings.endpoint, "http://b");
    assert_int_equal(settings.part_bytes, 8 << 20);
    assert_int_equal(settings.connections, 8);
    setenv("HOLDFAST_S3_PART_BYTES", "1", 1);
    assert_int_equal(storage_bucket_environment(&settings), ERR_INVALID);
    unsetenv("AWS_REGION");
    unsetenv("AWS_ENDPOINT_URL");
    unsetenv("HOLDFAST_S3_ENDPOINT");
    unsetenv("HOLDFAST_S3_PART_BYTES");
}

/* ---- the driver ---- */

#define DRIVE_LINE 4096
#define DRIVE_HOLDS 8

struct drive {
    struct storage *storage;
    struct storage_hold *holds[DRIVE_HOLDS];
    const char *name; /* of the command */
    char arguments[4][1024];
    int num_arguments;
    char answer[2048]; /* after "OK" */
};

static unsigned char *drive_data(uint64_t bytes, unsigned seed)
{
    unsigned char *data = aligned_alloc(STORAGE_ALIGN, bytes + STORAGE_ALIGN);
    uint64_t value = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < bytes / 8; i++) {
        value = value * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(data + 8 * i, &value, 8);
    }
    return data;
}

/* "put KEY BYTES SEED": of writes of 16 KiB, out of order within a part; "send": in one request;
 * "hashed KEY BYTES SEED SHA256": one part, of which the caller has made that. */
static int drive_write(struct drive *drive)
{
    bool is_whole = strcmp(drive->name, "put") != 0;
    uint64_t bytes = strtoull(drive->arguments[1], NULL, 10), piece = is_whole ? bytes : 16 << 10;
    unsigned char *data = drive_data(bytes, (unsigned)atoi(drive->arguments[2]));
    struct storage_object *object;
    int error = storage_object_create(drive->storage, &object, drive->arguments[0], bytes);
    uint64_t count = (bytes + piece - 1) / piece;
    for (uint64_t i = 0; i < count && error == 0; i++) {
        uint64_t at = (i ^ (count > 4 && (i | 3) < count ? 3 : 0)) * piece;
        uint32_t now = (uint32_t)(bytes - at < piece ? bytes - at : piece);
        error =
            drive->num_arguments > 3
                ? storage_write_hashed(drive->storage, object, at, data, now, drive->arguments[3])
                : storage_transfer(drive->storage, STORAGE_WRITE, object, at, data + at, now);
    }
    if (error == 0)
        error = storage_transfer(drive->storage, STORAGE_SYNC, object, 0, NULL, 0);
    storage_object_close(drive->storage, object);
    free(data);
    return error;
}

#define DRIVE_READS 64

/* "get KEY SEED": by many requests at once; says whether the bytes are those of the seed. */
static int drive_get(struct drive *drive)
{
    static struct storage_transfer transfers[DRIVE_READS];
    struct storage_object *object;
    uint64_t bytes = 0;
    int error = storage_object_open(drive->storage, &object, drive->arguments[0], &bytes);
    if (error != 0)
        return error;
    unsigned char *data = drive_data(bytes, 0);
    unsigned char *wanted = drive_data(bytes, (unsigned)atoi(drive->arguments[1]));
    uint64_t piece = bytes < 64 << 20 ? 16 << 10 : 1 << 20; /* as ckpt-cli reads */
    uint64_t count = (bytes + piece - 1) / piece;
    for (uint64_t first = 0; first < count; first += DRIVE_READS) {
        uint64_t end = first + DRIVE_READS < count ? first + DRIVE_READS : count;
        for (uint64_t i = first; i < end; i++) {
            uint64_t now = bytes - i * piece < piece ? bytes - i * piece : piece;
            storage_begin(&transfers[i - first], drive->storage, STORAGE_READ, object, i * piece,
                          data + i * piece, (uint32_t)now);
        }
        for (uint64_t i = first; i < end; i++) {
            int failed = storage_end(&transfers[i - first]);
            error = error != 0 ? error : failed;
        }
    }
    storage_object_close(drive->storage, object);
    snprintf(drive->answer, sizeof drive->answer, " %" PRIu64 " %s", bytes,
             memcmp(data, wanted, bytes) == 0 ? "same" : "other");
    free(data);
    free(wanted);
    return error;
}

static int drive_publish(struct drive *drive)
{
    return storage_publish(drive->storage, drive->arguments[0], drive->arguments[1],
                           strlen(drive->arguments[1]));
}

static int drive_fetch(struct drive *drive)
{
    void *text;
    size_t bytes;
    int error = storage_fetch_all(drive->storage, drive->arguments[0], 1 << 24, &text, &bytes);
    if (error == 0) {
        snprintf(drive->answer, sizeof drive->answer, " %zu %.1000s", bytes, (char *)text);
        free(text);
    }
    return error;
}

static int print_entry(void *user, const struct storage_entry *entry)
{
    (void)user;
    printf(" %s%s", entry->name, entry->is_dir ? "/" : "");
    return 0;
}

static int drive_list(struct drive *drive)
{
    printf("listed");
    int error = storage_list(drive->storage, drive->arguments[0], print_entry, NULL);
    printf("\n");
    return error;
}

static int drive_remove(struct drive *drive)
{
    return storage_remove(drive->storage, drive->arguments[0]);
}

/* "hold SLOT KEY TEXT" */
static int drive_hold(struct drive *drive)
{
    return storage_hold(drive->storage, &drive->holds[atoi(drive->arguments[0])],
                        drive->arguments[1], drive->arguments[2], strlen(drive->arguments[2]));
}

static int drive_release(struct drive *drive)
{
    struct storage_hold **hold = &drive->holds[atoi(drive->arguments[0])];
    storage_release(drive->storage, *hold);
    *hold = NULL;
    return 0;
}

static int drive_holder(struct drive *drive)
{
    return storage_find_holder(drive->storage,
                               drive->num_arguments > 0 ? drive->arguments[0] : NULL);
}

static int drive_lock(struct drive *drive)
{
    return storage_lock(drive->storage);
}

/* "sweep PREFIX SECONDS" removes. */
static int drive_sweep(struct drive *drive)
{
    struct storage_sweep sweep = {.seconds = strtoull(drive->arguments[1], NULL, 10),
                                  .removes = true};
    const char *prefix = strcmp(drive->arguments[0], ".") == 0 ? "" : drive->arguments[0];
    int error = storage_sweep(drive->storage, prefix, &sweep);
    snprintf(drive->answer, sizeof drive->answer, " %" PRIu64 " %" PRIu64, sweep.files,
             sweep.bytes);
    return error;
}

static int drive_describe(struct drive *drive)
{
    snprintf(drive->answer, sizeof drive->answer, " %s", storage_describe(drive->storage));
    return 0;
}

/* Small objects, as in a bucket that a tool has copied the checkpoint into. */
static int publish_checkpoint(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        char key[96];
        shard_of(key, i);
        ERR_TRY(storage_publish(storage, key, the_checkpoint()->shards[i], BYTES));
    }
    return publish_manifest(storage, MANIFEST);
}

/* "trash make|put|take|empty|erase": of one checkpoint, and of the second 1000. */
static int drive_trash(struct drive *drive)
{
    static const struct store_trashed item = {
        .prefix = GROUP, .key = "run/trash/" STEP ".1000", .seconds = 1000};
    const char *what = drive->arguments[0];
    return strcmp(what, "make") == 0    ? publish_checkpoint(drive->storage)
           : strcmp(what, "put") == 0   ? store_trash_put(drive->storage, item.prefix, 1000, true)
           : strcmp(what, "take") == 0  ? store_trash_take(drive->storage, &item)
           : strcmp(what, "empty") == 0 ? store_trash_empty(drive->storage, &item)
                                        : store_erase(drive->storage, item.prefix);
}

/* The memory of this process, as a core dump of it would have it. */
static int drive_abort(struct drive *drive)
{
    (void)drive;
    abort();
}

static const struct {
    const char *name;
    int (*run)(struct drive *drive);
} drives[] = {
    {"put", drive_write},       {"send", drive_write},        {"get", drive_get},
    {"hashed", drive_write},    {"publish", drive_publish},   {"fetch", drive_fetch},
    {"list", drive_list},       {"remove", drive_remove},     {"hold", drive_hold},
    {"release", drive_release}, {"holder", drive_holder},     {"lock", drive_lock},
    {"sweep", drive_sweep},     {"describe", drive_describe}, {"abort", drive_abort},
    {"trash", drive_trash},
};

static int drive_line(struct drive *drive, char *line)
{
    char *rest = line, *name = strsep(&rest, " \n");
    drive->name = name;
    drive->num_arguments = 0;
    drive->answer[0] = drive->arguments[0][0] = drive->arguments[1][0] = '\0';
    for (char *word; rest != NULL && (word = strsep(&rest, " \n")) != NULL && word[0] != '\0';)
        snprintf(drive->arguments[drive->num_arguments++], sizeof drive->arguments[0], "%s", word);
    for (size_t i = 0; i < sizeof drives / sizeof drives[0]; i++)
        if (strcmp(drives[i].name, name) == 0)
            return drives[i].run(drive);
    return report_error(ERR_INVALID, NULL, "unknown: %s", name);
}

static int drive_store(const char *where, bool is_read_only)
{
    struct drive drive = {0};
    char line[DRIVE_LINE];
    log_setup("drive", NULL);
    int error = storage_open_where(&drive.storage, where,
                                   &(struct storage_options){.read_only = is_read_only});
    if (error != 0)
        printf("%s %s\n", err_name(error), report_line());
    else
        printf("OK\n");
    fflush(stdout);
    while (error == 0 && fgets(line, sizeof line, stdin) != NULL) {
        int failed = drive_line(&drive, line);
        if (failed != 0)
            printf("%s %s\n", err_name(failed), report_line());
        else
            printf("OK%s\n", drive.answer);
        fflush(stdout);
    }
    storage_close(drive.storage);
    return error != 0;
}

int main(int argc, char **argv)
{
    if (argc >= 3 && strcmp(argv[1], "drive") == 0)
        return drive_store(argv[2], argc > 3);
    return suite_run(NULL, NULL);
}
