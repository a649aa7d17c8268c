/* ckptd_admit.c - checkpoints that tools bring: adopted, or released from quarantine.
 *
 * Goal: ckptd commits shards that fit their manifest like a save; the same Adopt twice counts once.
 * It refuses shards that do not fit, or that others may write to, and leaves the store unchanged.
 * An attempt that is opened or continued meanwhile has to wait, or neither loses anything. (An
 * Adopt that fails or is interrupted: the third story of ckptd_faults and ckptd_power.) Method: the
 * service and the raw client of ckptd_bed.h save a checkpoint. Its shards are put into a new store
 * without their manifest, as a tool writes them, and the call carries the manifest. Then one item
 * is made wrong at a time, also in manifests with recomputed hashes. A test controls how long an
 * adoption, or a copy to the far tier, lasts (--wrap, see WRAP_ckptd_admit in mk/tests.mk). */
#define ROWS 64u
#define COLUMNS 256u /* 64 KiB in all: a shard is a header, a block and a table */
#include "tests/unit/ckptd_tools_bed.h"
#include "tests/unit/suite.h"

#include <sys/stat.h>

static struct peer peers[RANKS];
/* The adoption of STEP_DIR, before its commit; or its copy, before the first shard. */
static atomic_bool is_held, is_copy_held, is_standing;
static atomic_bool is_far_away; /* no shard is made there */

static int let_go_and_close(void **state)
{
    is_held = is_copy_held = is_far_away = false;
    return close_with_made(state);
}

#define ADMIT_TEST(name) TEST_WITH(struct bed *bed, name, open_with_made, let_go_and_close)

static size_t num_listed(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    size_t count = reply->n_checkpoints;
    for (size_t i = 0; i < count; i++)
        assert_string_equal(reply->checkpoints[i]->durability, "local");
    FREE_REPLY(reply);
    return count;
}

/* Makes the hashes of a changed manifest right. */
static void hash_again(char *text)
{
    static const char summary_key[] = "\"summary_hash\":\"", key[] = "\"sha256\":\"";
    char hex[CHECKSUM_SHA256_HEX];
    char *at = strstr(text, summary_key), *last = NULL;
    assert_non_null(at);
    at += strlen(summary_key);
    snprintf(hex, sizeof hex, "%016llx",
             (unsigned long long)checksum_bytes(text, (size_t)(at - text)));
    memcpy(at, hex, 16);
    for (char *next = strstr(text, key); next; next = strstr(next + 1, key))
        last = next;
    assert_non_null(last);
    checksum_sha256_hex(hex, text, (size_t)(last - text));
    memcpy(last + strlen(key), hex, 64);
}

/* The manifest with `from` turned into `to`, of the same length, and hashes that fit. */
static char *forged(const char *from, const char *to)
{
    char *text = strdup(manifest), *at = strstr(text, from);
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    hash_again(text);
    return text;
}

/* The manifest with another first digit after the first such key. */
static char *other_digit(const char *key)
{
    char *text = strdup(manifest), *at = strstr(text, key) + strlen(key);
    *at = *at == '0' ? '1' : '0';
    hash_again(text);
    return text;
}

/* A manifest with the checkpoint's identity, but of other tensors, each of one byte, in as many
 * files: it is consistent. Their names need more than the header page that it claims. */
static char *manifest_of_scalars(uint64_t *out_file_bytes, uint32_t shards)
{
    enum { SHARDS_MAX = 8, SCALARS = 20 };
    static struct slice slices[SHARDS_MAX][SCALARS];
    const struct slice *lists[SHARDS_MAX];
    uint32_t counts[SHARDS_MAX];
    struct manifest_shard files[SHARDS_MAX];
    struct digest digests[SHARDS_MAX * SCALARS];
    struct shard_geometry geometry;
    struct manifest *read;
    assert_true(shards <= SHARDS_MAX);
    memset(slices, 0, sizeof slices);
    memset(digests, 0, sizeof digests);
    assert_int_equal(manifest_read(&read, manifest, strlen(manifest)), 0);
    assert_int_equal(shard_geometry_derive(&geometry, SHARD_ALIGN, SCALARS), 0);
    for (uint32_t r = 0; r < shards; r++) {
        lists[r] = slices[r];
        counts[r] = SCALARS;
        files[r] = (struct manifest_shard){geometry.file_bytes, geometry.data_start, 0, 0};
        for (uint32_t i = 0; i < SCALARS; i++) {
            struct slice *slice = &slices[r][i];
            slice->tensor.dtype = DTYPE_U8;
            for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
                slice->tensor.shape[d] = slice->box.extent[d] = 1;
            snprintf(slice->tensor.name, LAYOUT_NAME_MAX, "%0*u", LAYOUT_NAME_MAX - 2,
                     r * SCALARS + i);
        }
    }
    struct manifest made = *read;
    made.summary.shards = made.summary.world_size = shards;
    made.summary.bytes = shards * geometry.file_bytes;
    made.digests = digests;
    made.shards = files;
    assert_int_equal(layout_plan_save(&made.table, lists, counts, shards, LAYOUT_EQUAL_REPLICAS),
                     0);
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(manifest_write(&text, &bytes, &made), 0);
    layout_table_free(made.table);
    manifest_free(read);
    *out_file_bytes = geometry.file_bytes;
    return text;
}

/* In the place of the checkpoint's own. */
static void put_manifest(const struct bed *bed, const char *step, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/" RUN "/%s/" MANIFEST_NAME, bed->config.store, step);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

/* ---- accepted adoptions ---- */

/* The run's next attempt saves, and all checkpoints survive a restart. */
static void train_on(struct bed *bed, uint64_t attempt, uint64_t step)
{
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(bed->attempt, attempt);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, step));
    peers_close(peers, RANKS);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
}

ADMIT_TEST(test_admit__what_fits_is_committed_and_trained_on)
{
    uint64_t step = 0;
    put_shards(bed, bed->config.store);
    assert_int_equal(num_listed(bed), 0);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(num_listed(bed), 1);
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 1);
    assert_int_equal(adopt(bed, manifest), 0); /* a client that missed the answer asks again */
    assert_int_equal(num_listed(bed), 1);
    train_on(bed, 2, 2);
    assert_int_equal(num_listed(bed), 2);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    char *text = read_text(bed->config.store, STEP_DIR "/" MANIFEST_NAME);
    assert_string_equal(text, manifest);
    free(text);
}

ADMIT_TEST(test_admit__a_run_that_was_begun_is_not_adopted)
{
    assert_int_equal(open_attempt(bed, RANKS), 0);
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt_as(bed, manifest, true), ERR_EXISTS);
    assert_int_equal(adopt(bed, manifest), ERR_DENIED); /* it could be the trainer's own */
    bed_stop(
        bed); /* the attempt's file was removed with the run's folder; the shards have no owner */
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(num_listed(bed), 0);
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt_as(bed, manifest, true), 0);
    char *other = other_digit("\"nonce\":\"");
    assert_int_equal(adopt(bed, other), ERR_EXISTS);
    assert_int_equal(adopt_as(bed, other, true), ERR_EXISTS);
    free(other);
    assert_int_equal(num_listed(bed), 1);
}

/* A tool wrote it into an existing run. */
static void add_shards(const struct bed *bed, const char *step)
{
    shell("mkdir -p '%s/store/" RUN "' && cp -r '%s/made/" RUN "/%s' '%s/store/" RUN "'", bed->root,
          bed->root, step, bed->root);
}

/* Attempt 1 is over when attempt 2 is open. */
ADMIT_TEST(test_admit__a_step_of_an_attempt_that_is_over_comes_beside_a_trainer)
{
    uint64_t step = 0;
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(bed->attempt, 2);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, 1));
    add_shards(bed, "step-00000001-a0001");
    assert_int_equal(adopt_as(bed, manifest, true), ERR_EXISTS);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(num_listed(bed), 2);
    assert_true(save_step(peers, RANKS, 2)); /* its attempt is still open */
    peers_close(peers, RANKS);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(num_listed(bed), 3);
        assert_int_equal(load_all(bed, -1, &step), 0);
        assert_int_equal(step, 2);
        Holdfast__V1__ListReply *reply = bed_list(bed);
        assert_int_equal(reply->checkpoints[2]->attempt, 1); /* the oldest */
        FREE_REPLY(reply);
        bed_stop(bed);
        assert_int_equal(bed_start(bed), 0);
    }
}

/* The manifest of step 7 by attempt 3, whose shards go beside the others that were made. */
static char *make_later(struct bed *bed)
{
    char folder[200];
    for (int i = 0; i < 3; i++)
        assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, 7));
    peers_close(peers, RANKS);
    bed_stop(bed);
    snprintf(folder, sizeof folder, "%s/store/" RUN "/step-00000007-a0003", bed->root);
    char *text = read_text(folder, MANIFEST_NAME);
    shell("mv '%s' '%s/made/" RUN "' && rm '%s/made/" RUN "/step-00000007-a0003/manifest.json' "
          "&& rm -r '%s/store'",
          folder, bed->root, bed->root, bed->root);
    char made[200];
    snprintf(made, sizeof made, "%s/made", bed->root);
    put_mark(made, RUN, 7, 3);
    assert_int_equal(bed_start(bed), 0);
    return text;
}

ADMIT_TEST(test_admit__a_later_attempt_is_the_newest_where_nobody_trains)
{
    char *later = make_later(bed);
    uint64_t step = 0;
    add_shards(bed, "step-00000001-a0001");
    add_shards(bed, "step-00000007-a0003");
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(open_attempt(bed, RANKS), 0); /* the second: of the third none may come */
    assert_int_equal(adopt(bed, later), ERR_DENIED);
    assert_int_equal(num_listed(bed), 1);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    add_shards(bed, "step-00000007-a0003");
    assert_int_equal(adopt(bed, later), 0);
    assert_int_equal(num_listed(bed), 2);
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 7);
    train_on(bed, 4, 7);
    assert_int_equal(num_listed(bed), 3);
    free(later);
}

/* It is no damage, and no older one replaces it: that would roll training back. */
ADMIT_TEST(test_admit__what_a_later_version_wrote_stops_a_load)
{
    char *text = forged("\"version\":2", "\"version\":9");
    bed_save_steps(bed, peers, RANKS, 1, 2);
    bed_stop(bed);
    put_manifest(bed, "step-00000002-a0001", text);
    free(text);
    assert_int_equal(bed_start(bed), 0);
    Holdfast__V1__ListReply *list = bed_list(bed);
    assert_int_equal(list->n_checkpoints, 2);
    assert_string_equal(list->checkpoints[0]->durability, "newer");
    assert_string_equal(list->checkpoints[1]->durability, "local");
    FREE_REPLY(list);
    assert_int_equal(load_all(bed, -1, NULL), ERR_VERSION);
    assert_non_null(
        strstr(report_line(), "manifest version 9 is unknown: this Holdfast reads 1 to 3"));
    assert_int_equal(load_all(bed, 1, NULL), 0); /* named on purpose */
    assert_int_equal(gc(bed, false, NULL), 0);
    shell("cd '%s/" RUN "' && test -e step-00000002-a0001/manifest.json && "
          "test ! -e quarantine/step-00000002-a0001",
          bed->config.store);
}

/* ---- attempts meanwhile ---- */

int __real_storage_publish(struct storage *storage, const char *key, const void *data,
                           size_t bytes);
int __wrap_storage_publish(struct storage *storage, const char *key, const void *data,
                           size_t bytes);
int __wrap_storage_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    while (is_held && strcmp(key, STEP_DIR "/" MANIFEST_NAME) == 0) {
        is_standing = true;
        sleep_ms(1);
    }
    return __real_storage_publish(storage, key, data, bytes);
}

int __real_storage_object_create(struct storage *storage, struct storage_object **out,
                                 const char *key, uint64_t bytes);
int __wrap_storage_object_create(struct storage *storage, struct storage_object **out,
                                 const char *key, uint64_t bytes);
int __wrap_storage_object_create(struct storage *storage, struct storage_object **out,
                                 const char *key, uint64_t bytes)
{
    while (is_copy_held) {
        is_standing = true;
        sleep_ms(1);
    }
    if (is_far_away)
        return report_error(ERR_UNAVAILABLE, NULL, "it is away");
    return __real_storage_object_create(storage, out, key, bytes);
}

static void await_standing(void)
{
    for (int ms = 0; ms < BED_PATIENCE_MS && !is_standing; ms++)
        sleep_ms(1);
    assert_true(is_standing);
}

struct adopting {
    struct bed *bed;
    pthread_t thread;
    int error;
};

static void *run_adopt(void *argument)
{
    struct adopting *adopting = argument;
    adopting->error = adopt(adopting->bed, manifest);
    return NULL;
}

static void begin_adopting(struct adopting *adopting, struct bed *bed)
{
    *adopting = (struct adopting){.bed = bed};
    is_standing = false;
    is_held = true;
    assert_int_equal(pthread_create(&adopting->thread, NULL, run_adopt, adopting), 0);
    await_standing();
}

static void end_adopting(struct adopting *adopting)
{
    is_held = false;
    pthread_join(adopting->thread, NULL);
    assert_int_equal(adopting->error, 0);
}

ADMIT_TEST(test_admit__an_attempt_of_a_run_that_is_being_adopted_waits)
{
    struct adopting adopting;
    uint64_t step = 0;
    add_shards(bed, "step-00000001-a0001");
    begin_adopting(&adopting, bed);
    assert_int_equal(open_attempt(bed, RANKS), ERR_BUSY); /* the run has no attempt yet */
    assert_non_null(strstr(report_line(), "is being adopted"));
    end_adopting(&adopting);
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 1);
    train_on(bed, 2, 2);
    assert_int_equal(num_listed(bed), 2);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* A restarted ckptd does not know yet that a trainer continues the attempt which it adopts. */
ADMIT_TEST(test_admit__an_attempt_goes_on_when_its_checkpoint_is_adopted)
{
    struct adopting adopting;
    assert_int_equal(open_attempt(bed, RANKS), 0);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    add_shards(bed, "step-00000001-a0001");
    begin_adopting(&adopting, bed);
    assert_int_equal(peers_open(peers, bed, RANKS), ERR_BUSY);
    end_adopting(&adopting);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, 2));
    peers_close(peers, RANKS);
    assert_int_equal(bed->attempt, 1);
    assert_int_equal(num_listed(bed), 2);
    for (int64_t step = 1; step <= 2; step++)
        assert_int_equal(load_all(bed, step, NULL), 0);
}

/* An adopted checkpoint's attempt counts as over, whether another one is opened or not. */
ADMIT_TEST(test_admit__an_attempt_is_opened_beside_an_adoption)
{
    struct adopting adopting;
    uint64_t step = 0;
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(open_attempt(bed, RANKS), 0);
    add_shards(bed, "step-00000001-a0001");
    begin_adopting(&adopting, bed);
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(bed->attempt, 3);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, 2));
    end_adopting(&adopting);
    assert_true(save_step(peers, RANKS, 3));
    peers_close(peers, RANKS);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(num_listed(bed), 3);
        assert_int_equal(load_all(bed, 1, NULL), 0);
        assert_int_equal(load_all(bed, -1, &step), 0);
        assert_int_equal(step, 3);
        bed_stop(bed);
        assert_int_equal(bed_start(bed), 0);
    }
}

/* Another digest: the summary is the same. */
static void exchange_manifest(const struct bed *bed, const char *step)
{
    static const char key[] = "\"digest\":[\"";
    char folder[200];
    snprintf(folder, sizeof folder, "%s/store/" RUN "/%s", bed->root, step);
    char *text = read_text(folder, MANIFEST_NAME), *at = strstr(text, key) + strlen(key);
    *at = *at == '0' ? '1' : '0';
    hash_again(text);
    put_manifest(bed, step, text);
    free(text);
}

/* The images in memory and the plans of loads depend on it: saved here, or loaded before. */
ADMIT_TEST(test_admit__a_manifest_exchanged_since_it_was_read_is_not_loaded)
{
    uint64_t step;
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(load_all(bed, 1, &step), 0);
    assert_int_equal(load_all(bed, 1, &step), 0);
    exchange_manifest(bed, "step-00000001-a0001");
    assert_int_equal(load_all(bed, 1, &step), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "replaced"));
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 2));
    assert_true(save_step(peers, RANKS, 3));
    exchange_manifest(bed, "step-00000003-a0002");
    assert_int_equal(load_all(bed, 3, &step), ERR_CORRUPT);
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 2);
    peers_close(peers, RANKS);
}

/* ckptd read the data for planning loads at its start; with more shards it is out of date. */
ADMIT_TEST(test_admit__a_manifest_exchanged_since_the_start_is_not_loaded)
{
    uint64_t file_bytes, step;
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(load_all(bed, -1, &step), 0);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    char *text = manifest_of_scalars(&file_bytes, 8);
    put_manifest(bed, "step-00000001-a0001", text);
    free(text);
    assert_int_equal(load_all(bed, 1, &step), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "replaced"));
}

/* ---- refused adoptions ---- */

static void assert_refused(struct bed *bed, const char *text, const char *what)
{
    char path[700];
    snprintf(path, sizeof path, "%s/" STEP_DIR "/" MANIFEST_NAME, bed->config.store);
    int error = adopt(bed, text);
    print_message("# %s: %s\n", what, report_line());
    assert_true(error == ERR_CORRUPT || error == ERR_INVALID || error == ERR_DENIED ||
                error == ERR_NOT_FOUND || error == ERR_EXISTS || error == ERR_VERSION);
    assert_true(access(path, F_OK) != 0 || error == ERR_EXISTS);
    assert_int_equal(num_listed(bed), 0);
}

ADMIT_TEST(test_admit__a_manifest_that_lies_is_refused)
{
    put_shards(bed, bed->config.store);
    char *same = forged("\"bed\"", "\"bed\"");
    assert_string_equal(same, manifest); /* hash_again() recomputes it */
    free(same);
    const struct {
        const char *from, *to;
    } lies[] = {{"\"run\":\"bed\"", "\"run\":\"../\""}, {"\"run\":\"bed\"", "\"run\":\"...\""},
                {"\"run\":\"bed\"", "\"run\":\"b/d\""}, {"\"run\":\"bed\"", "\"run\":\"bad\""},
                {"\"step\":1", "\"step\":2"},           {"\"attempt\":1", "\"attempt\":0"},
                {"\"attempt\":1", "\"attempt\":9"},     {"\"shards\":2", "\"shards\":1"},
                {"\"shards\":2", "\"shards\":3"}};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char *text = forged(lies[i].from, lies[i].to);
        assert_refused(bed, text, lies[i].to);
        free(text);
    }
    static const char *const keys[] = {"\"nonce\":\"", "\"header_hash\":\"", "\"table_hash\":\""};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char *text = other_digit(keys[i]);
        assert_refused(bed, text, keys[i]);
        free(text);
    }
    char *text = strdup(manifest);
    text[strlen(text) / 2] ^= 1;
    assert_refused(bed, text, "a flipped bit");
    assert_refused(bed, "", "nothing");
    assert_refused(bed, "{}", "an empty object");
    strcpy(text, manifest);
    text[MANIFEST_SUMMARY_BYTES] = '\0';
    assert_refused(bed, text, "a summary and no more");
    free(text);
    assert_int_equal(adopt(bed, manifest), 0);
}

/* Its manifest fits itself and the file's size; the names alone need more than one page. */
ADMIT_TEST(test_admit__a_header_without_the_room_for_its_tensors_is_refused)
{
    uint64_t file_bytes = 0;
    char *text = manifest_of_scalars(&file_bytes, 1);
    shell("mkdir -p '%s/store/" STEP_DIR "' && truncate -s %llu '%s/store/" STEP_DIR
          "/shard-00001-of-00001.safetensors'",
          bed->root, (unsigned long long)file_bytes, bed->root);
    assert_refused(bed, text, "a header without room");
    assert_non_null(strstr(report_line(), "header"));
    free(text);
}

/* Shell commands in the directory of the step; it is recreated after each. */
ADMIT_TEST(test_admit__files_that_do_not_fit_or_are_not_ours_are_refused)
{
    static const char shard[] = "shard-00002-of-00002.safetensors";
    static const char *const wrongs[] = {
        "rm %s",
        "truncate -s -4096 %s",
        "truncate -s +4096 %s",
        "printf x | dd of=%s bs=1 seek=100 conv=notrunc 2>/dev/null",
        "printf x | dd of=%s bs=1 seek=$(($(stat -c %%s %s) - 5)) conv=notrunc 2>/dev/null",
        "cp shard-00001-of-00002.safetensors %s",
        "touch shard-00003-of-00003.safetensors && : %s",
        "touch notes.txt && : %s",
        "mkdir inside && : %s",
        "ln %s ../second-name",
        "mv %s ../elsewhere && ln -s ../elsewhere %s",
        "mv %s ../elsewhere && mkfifo %s",
        "cd .. && mv step-00000001-a0001 elsewhere && ln -s elsewhere step-00000001-a0001 && : %s",
        "cd ../.. && mv bed ../elsewhere && ln -s ../elsewhere bed && : %s",
        "cd .. && rm -r step-00000001-a0001 && : %s",
        "cd .. && rm -r step-00000001-a0001 && touch step-00000001-a0001 && : %s",
        "echo '{}' >manifest.json && : %s",
    };
    char command[400];
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        put_shards(bed, bed->config.store);
        shell("rm -rf '%s/elsewhere'", bed->root);
        snprintf(command, sizeof command, wrongs[i], shard, shard);
        shell("cd '%s/" STEP_DIR "' && { %s; }", bed->config.store, command);
        assert_refused(bed, manifest, command);
    }
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
}

ADMIT_TEST(test_admit__files_of_another_user_are_refused)
{
    static const char *const paths[] = {RUN, STEP_DIR,
                                        STEP_DIR "/shard-00001-of-00002.safetensors"};
    if (geteuid() != 0) {
        print_message("# not root: nobody else's files can be made\n");
        skip();
    }
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        put_shards(bed, bed->config.store);
        shell("chown 12345 '%s/%s'", bed->config.store, paths[i]);
        assert_int_equal(adopt(bed, manifest), ERR_DENIED);
        assert_int_equal(num_listed(bed), 0);
    }
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
}

ADMIT_TEST(test_admit__what_was_refused_takes_no_run_from_others)
{
    static const char *const strange[] = {"\"run\":\"one\"", "\"run\":\"two\""};
    bed_stop(bed);
    bed->config.limit_runs = 1;
    assert_int_equal(bed_start(bed), 0);
    for (size_t i = 0; i < 2; i++) {
        char *text = forged("\"run\":\"" RUN "\"", strange[i]);
        assert_int_equal(adopt(bed, text), ERR_NOT_FOUND); /* it has no directory */
        free(text);
    }
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
    char *text = forged("\"run\":\"" RUN "\"", strange[0]);
    assert_int_equal(adopt(bed, text), ERR_BUSY); /* now there is one */
    free(text);
    assert_int_equal(num_listed(bed), 1);
}

/* ---- released ---- */

ADMIT_TEST(test_admit__what_was_put_right_is_served_again)
{
    static const char shard[] = STEP_DIR "/shard-00001-of-00002.safetensors";
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
    assert_int_equal(release(bed, 1), 0); /* it was not in quarantine */
    assert_int_equal(release(bed, 7), ERR_NOT_FOUND);
    assert_int_equal(bed_pin(bed, 1, false), 0);
    bed_stop(bed);
    shell("cd '%s' && cp %s copy && truncate -s -4096 %s", bed->config.store, shard, shard);
    assert_int_equal(bed_start(bed), 0);
    assert_true(load_all(bed, 1, NULL) != 0);
    assert_int_equal(release(bed, 1), ERR_CORRUPT); /* it is not whole */
    assert_true(load_all(bed, 1, NULL) != 0);
    shell("cd '%s' && cp copy %s && test -e " RUN "/quarantine/step-00000001-a0001",
          bed->config.store, shard);
    assert_true(load_all(bed, 1, NULL) != 0); /* ckptd has not reported it yet */
    assert_int_equal(release(bed, 1), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_int_equal(reply->n_checkpoints, 1);
    assert_true(reply->checkpoints[0]->pinned);
    assert_string_equal(reply->checkpoints[0]->durability, "local");
    FREE_REPLY(reply);
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* A ckptd whose far tier is the directory far, and drains. */
static void start_with_far(struct bed *bed)
{
    bed_stop(bed);
    snprintf(bed->config.tier_store, sizeof bed->config.tier_store, "dir:%s/far", bed->root);
    assert_int_equal(service_make_store(&bed->config), 0);
    bed->config.tier_quiet = false;
    bed->config.tier_retry_ms = 1000;
    assert_int_equal(bed_start(bed), 0);
    put_shards(bed, bed->config.store);
    assert_int_equal(adopt(bed, manifest), 0);
}

/* A load finds it damaged; then it is put right. */
static void damage_and_mend(struct bed *bed)
{
    static const char shard[] = STEP_DIR "/shard-00001-of-00002.safetensors";
    shell("cd '%s' && cp %s copy && truncate -s -4096 %s", bed->config.store, shard, shard);
    assert_int_equal(load_all(bed, 1, NULL), ERR_CORRUPT);
    shell("cd '%s' && cp copy %s", bed->config.store, shard);
    assert_int_equal(load_all(bed, 1, NULL), ERR_CORRUPT);
}

ADMIT_TEST(test_admit__a_copy_that_waits_for_its_tier_keeps_nothing_in_quarantine)
{
    is_standing = false;
    is_copy_held = true;
    start_with_far(bed);
    await_standing();
    damage_and_mend(bed);
    assert_int_equal(release(bed, 1), ERR_BUSY); /* that copy may have read the wrong bytes */
    assert_non_null(strstr(report_line(), "it is being copied to the tier far"));
    is_far_away = true;
    is_copy_held = false;
    assert_true(wait_number(bed, "tier", "errors", 1)); /* it rests */
    assert_int_equal(release(bed, 1), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_int_equal(num_listed(bed), 1);
    is_far_away = false;
    assert_true(wait_number(bed, "tier", "drained", 1));
}

/* Step 2 was read back, step 1 was not. */
static void expect_newer_read(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_int_equal(reply->n_checkpoints, 2);
    assert_true(reply->checkpoints[0]->step == 2 && reply->checkpoints[0]->read_back);
    assert_true(reply->checkpoints[1]->step == 1 && !reply->checkpoints[1]->read_back);
    FREE_REPLY(reply);
}

ADMIT_TEST(test_admit__what_comes_while_the_scrub_reads_newer_ones_was_not_read_back)
{
    struct adopting adopting;
    for (int attempt = 1; attempt <= 2; attempt++)
        assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, 2));
    peers_close(peers, RANKS);
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_start_ms = 1000;
    assert_int_equal(bed_start(bed), 0);
    add_shards(bed, "step-00000001-a0001");
    begin_adopting(&adopting, bed);
    assert_true(status_number(bed, "scrub", "passes") == 0);
    assert_true(wait_number(bed, "scrub", "passes", 1));
    end_adopting(&adopting);
    expect_newer_read(bed);
    bed_stop(bed);
    bed->config.scrub_rate = 0;
    assert_int_equal(bed_start(bed), 0);
    expect_newer_read(bed);
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_period = bed->config.scrub_start_ms = 0;
    /* The first pass reads it, the next one knows the result. */
    assert_int_equal(bed_start(bed), 0);
    bool is_read = false;
    for (int ms = 0; ms < BED_PATIENCE_MS && !is_read; ms += 50, sleep_ms(50)) {
        Holdfast__V1__ListReply *reply = bed_list(bed);
        is_read = reply->checkpoints[1]->read_back;
        FREE_REPLY(reply);
    }
    assert_true(is_read);
}

SUITE(NULL, NULL)
