/* disk_test.c - writes files like ckptd's shards, syncs and reads them, and measures each.
 *
 * The storage is ckptd's own (storage/storage.h), so engine, O_DIRECT, registered buffers and
 * reserved space are the same as ckptd's here. Files are written one after the other: each of
 * `depth` requests takes the next block when it is done. Then one sync is measured separately. The
 * reads are the same, with the files opened again. A block begins with its number, which a read
 * compares with the expected one.
 *
 * All files are in a hidden folder that is removed at the end in any case. A fatal signal lets the
 * requests under way end, then the folder is removed, then the signal is raised again. Only SIGKILL
 * and power loss leave it. */
#include "clients/cli/machine/disk_test.h"
#include "proto/base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TELL_EVERY_NS 100000000l
#define FREE_PARTS 10u /* of the free space one remains free */

double disk_rate_bytes(const struct disk_rate *rate)
{
    return rate->seconds > 0 ? (double)rate->bytes / rate->seconds : 0;
}

double disk_test_durable(const struct disk_test *test)
{
    double seconds = test->write.seconds + test->sync.seconds;
    return seconds > 0 ? (double)test->write.bytes / seconds : 0;
}

/* ---- signals ---- */

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
#define NUM_SIGNALS (sizeof signals / sizeof *signals)
static atomic_int stopped_by; /* the received signal, or 0 */

static void stop(int number)
{
    atomic_store(&stopped_by, number);
}

static void hold_signals(struct sigaction before[NUM_SIGNALS])
{
    const struct sigaction action = {.sa_handler = stop};
    atomic_store(&stopped_by, 0);
    for (size_t i = 0; i < NUM_SIGNALS; i++) {
        sigaction(signals[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

static void let_signals(const struct sigaction before[NUM_SIGNALS])
{
    for (size_t i = 0; i < NUM_SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    if (atomic_load(&stopped_by) != 0)
        raise(atomic_load(&stopped_by));
}

static int check_stopped(void)
{
    return atomic_load(&stopped_by) != 0 ? report_error(ERR_ABORTED, NULL, "it was interrupted")
                                         : 0;
}

/* ---- one file ---- */

struct bed {
    struct disk_test *test;
    struct storage *storage;
    struct progress progress;
    char folder[4200];
    unsigned char *data; /* a block per request */
    double *times;       /* seconds of requests, first of one kind, then of the other */
    struct slot *slots;
    uint32_t num_files;
    uint64_t blocks, written[DISK_TEST_FILES]; /* requested; of each file */
};

/* All requests of one kind to a file. After the first submissions and until `finished` only the
 * engine's thread uses it, except `blocks_done`. */
struct flow {
    struct bed *bed;
    struct storage_object *object;
    enum storage_op op;
    uint64_t first, next, end; /* blocks: index of the file's first; in the file */
    double until, ended;
    double *times;
    uint64_t num_times;
    uint32_t num_running;
    int error, error_number;
    atomic_uint_least64_t blocks_done;
    sem_t finished;
};

struct slot {
    struct storage_request request;
    struct flow *flow;
    uint64_t number; /* of its block */
    double begun;
};

static void submit_block(struct slot *slot, uint64_t block)
{
    struct flow *flow = slot->flow;
    slot->number = flow->first + block + 1; /* reserved space reads as 0 */
    slot->request.offset = block * slot->request.bytes;
    if (flow->op == STORAGE_WRITE)
        memcpy(slot->request.data, &slot->number, sizeof slot->number);
    slot->begun = clock_seconds();
    storage_submit(flow->bed->storage, &slot->request);
}

static void block_done(struct storage_request *request)
{
    struct slot *slot = request->user;
    struct flow *flow = slot->flow;
    flow->ended = clock_seconds();
    flow->times[flow->num_times++] = flow->ended - slot->begun;
    if (request->error != 0) {
        flow->error = request->error;
        flow->error_number = request->error_number;
    } else if (memcmp(request->data, &slot->number, sizeof slot->number) != 0) {
        flow->error = ERR_CORRUPT;
    }
    atomic_fetch_add(&flow->blocks_done, 1);
    bool is_over = flow->error != 0 || flow->next == flow->end ||
                   (flow->until > 0 && flow->ended >= flow->until) || atomic_load(&stopped_by) != 0;
    if (!is_over)
        submit_block(slot, flow->next++);
    else if (--flow->num_running == 0)
        sem_post(&flow->finished);
}

static void wait_for_end(struct flow *flow)
{
    uint64_t told = 0;
    bool is_over;
    do {
        struct timespec next = clock_after_ns(CLOCK_REALTIME, TELL_EVERY_NS);
        is_over = sem_timedwait(&flow->finished, &next) == 0;
        uint64_t done = atomic_load(&flow->blocks_done);
        progress_add(&flow->bed->progress, (done - told) * flow->bed->test->block);
        told = done;
    } while (!is_over);
}

static int fail_flow(const struct flow *flow)
{
    const char *doing = flow->op == STORAGE_WRITE ? "could not write" : "could not read";
    if (flow->error == ERR_CORRUPT)
        return report_error(ERR_CORRUPT, "do not use this disk: it loses or changes data",
                            "the bytes that were read in %s are not those written",
                            flow->bed->test->folder);
    errno = flow->error_number;
    return report_errno(flow->error, doing, flow->bed->test->folder);
}

/* Moves the first `blocks` of a file; *out_done were moved within the time. */
static int move_blocks(struct bed *bed, struct storage_object *object, enum storage_op op,
                       uint64_t first, uint64_t blocks, uint64_t *out_done)
{
    const struct disk_test *test = bed->test;
    struct disk_rate *rate = op == STORAGE_WRITE ? &bed->test->write : &bed->test->read;
    struct flow flow = {.bed = bed, .object = object, .op = op, .first = first, .end = blocks};
    double begun = clock_seconds(), left = test->seconds_max - rate->seconds;
    flow.until = test->seconds_max > 0 ? begun + left : 0;
    flow.times = bed->times + rate->count;
    flow.num_running = blocks < test->depth ? (uint32_t)blocks : test->depth;
    flow.next = flow.num_running;
    uint32_t starting = flow.num_running;
    CHECK(sem_init(&flow.finished, 0, 0) == 0);
    for (uint32_t i = 0; i < starting; i++) {
        bed->slots[i].flow = &flow;
        bed->slots[i].request =
            (struct storage_request){.op = op,
                                     .object = object,
                                     .data = bed->data + (size_t)i * test->block,
                                     .bytes = test->block,
                                     .done = block_done,
                                     .user = &bed->slots[i]};
    }
    for (uint32_t i = 0; i < starting; i++)
        submit_block(&bed->slots[i], i);
    wait_for_end(&flow);
    sem_destroy(&flow.finished);
    if (flow.error != 0)
        return fail_flow(&flow);
    rate->count += flow.num_times;
    rate->bytes += flow.num_times * test->block;
    rate->seconds += flow.ended - begun;
    *out_done = flow.num_times;
    return check_stopped();
}

/* ---- all files ---- */

static void file_key(char out[STORAGE_KEY_MAX + 1], uint32_t file)
{
    snprintf(out, STORAGE_KEY_MAX + 1, "file-%u", file);
}

static uint64_t blocks_of(const struct bed *bed, uint32_t file)
{
    return bed->blocks / bed->num_files + (file < bed->blocks % bed->num_files);
}

static bool is_time_over(const struct bed *bed, const struct disk_rate *rate)
{
    return bed->test->seconds_max > 0 && rate->seconds >= bed->test->seconds_max;
}

static int write_file(struct bed *bed, uint32_t file, uint64_t first, double *out_sync)
{
    char key[STORAGE_KEY_MAX + 1];
    struct storage_object *object;
    uint64_t blocks = blocks_of(bed, file);
    file_key(key, file);
    ERR_TRY(storage_object_create(bed->storage, &object, key, blocks * bed->test->block));
    int error = move_blocks(bed, object, STORAGE_WRITE, first, blocks, &bed->written[file]);
    double begun = clock_seconds();
    if (error == 0)
        error = storage_transfer(bed->storage, STORAGE_SYNC, object, 0, NULL, 0);
    *out_sync = clock_seconds() - begun;
    storage_object_close(bed->storage, object);
    return error;
}

static int read_file(struct bed *bed, uint32_t file, uint64_t first)
{
    char key[STORAGE_KEY_MAX + 1];
    struct storage_object *object;
    uint64_t bytes, done;
    file_key(key, file);
    ERR_TRY(storage_object_open(bed->storage, &object, key, &bytes));
    int error = move_blocks(bed, object, STORAGE_READ, first, bed->written[file], &done);
    storage_object_close(bed->storage, object);
    return error;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The shortest time that `of_thousand` of a thousand do not exceed. */
static double ranked(const double *times, uint64_t count, uint64_t of_thousand)
{
    return times[(count * of_thousand + 999) / 1000 - 1];
}

static void rank_times(struct disk_rate *rate, double *times)
{
    if (rate->count == 0)
        return;
    qsort(times, rate->count, sizeof *times, compare);
    rate->p50 = ranked(times, rate->count, 500);
    rate->p99 = ranked(times, rate->count, 990);
    rate->p999 = ranked(times, rate->count, 999);
    rate->max = times[rate->count - 1];
}

static int write_files(struct bed *bed)
{
    struct disk_test *test = bed->test;
    double syncs[DISK_TEST_FILES];
    uint64_t first = 0;
    for (uint32_t i = 0; i < bed->num_files && !is_time_over(bed, &test->write); i++) {
        ERR_TRY(write_file(bed, i, first, &syncs[i]));
        test->sync.count++;
        test->sync.seconds += syncs[i];
        first += blocks_of(bed, i);
    }
    test->files = (uint32_t)test->sync.count;
    rank_times(&test->write, bed->times);
    rank_times(&test->sync, syncs);
    return 0;
}

static int read_files(struct bed *bed)
{
    struct disk_test *test = bed->test;
    uint64_t first = 0;
    for (uint32_t i = 0; i < test->files && !is_time_over(bed, &test->read); i++) {
        ERR_TRY(read_file(bed, i, first));
        first += blocks_of(bed, i);
    }
    rank_times(&test->read, bed->times);
    return 0;
}

/* ---- setup and cleanup ---- */

static int check_asked(const struct disk_test *test)
{
    char text[32];
    if (test->block % STORAGE_ALIGN != 0)
        return report_error(ERR_INVALID, "use 1MiB", "--block %u is not a multiple of %u",
                            test->block, STORAGE_ALIGN);
    if (test->bytes < test->block)
        return report_error(ERR_INVALID, "raise --bytes", "--bytes %llu is less than a block",
                            (unsigned long long)test->bytes);
    if (test->bytes / test->block > DISK_TEST_REQUESTS)
        return report_error(ERR_INVALID, "lower --bytes, or raise --block",
                            "%llu requests are more than %llu",
                            (unsigned long long)(test->bytes / test->block),
                            (unsigned long long)DISK_TEST_REQUESTS);
    if ((uint64_t)test->block * test->depth > DISK_TEST_MEMORY)
        return report_error(ERR_INVALID, "lower --depth or --block",
                            "so many blocks in flight take %s of memory",
                            text_bytes(text, sizeof text, (uint64_t)test->block * test->depth));
    return 0;
}

static int check_room(const struct bed *bed)
{
    struct storage_space space;
    char need[32], have[32];
    uint64_t bytes = bed->blocks * bed->test->block;
    ERR_TRY(storage_space(bed->storage, &space));
    if (bytes <= space.bytes_free - space.bytes_free / FREE_PARTS)
        return 0;
    return report_error(ERR_SPACE, "lower --bytes, or free some space",
                        "%s do not fit into %s: %s are free, of which a tenth is reserved",
                        text_bytes(need, sizeof need, bytes), bed->test->folder,
                        text_bytes(have, sizeof have, space.bytes_free));
}

/* Bytes that no disk can compress. */
static int make_data(struct bed *bed)
{
    const struct disk_test *test = bed->test;
    size_t bytes = (size_t)test->depth * test->block;
    uint64_t state = 1;
    bed->data = aligned_alloc(STORAGE_ALIGN, bytes);
    bed->slots = calloc(test->depth, sizeof *bed->slots);
    bed->times = calloc(bed->blocks, sizeof *bed->times);
    if (bed->data == NULL || bed->slots == NULL || bed->times == NULL)
        return report_error(ERR_MEMORY, "lower --depth or --block", "no memory for %zu bytes",
                            bytes);
    for (size_t at = 0; at < bytes; at += sizeof state) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(bed->data + at, &state, sizeof state);
    }
    return storage_register_buffers(bed->storage, &(struct iovec){bed->data, bytes}, 1);
}

/* Lists of a store hide its name. */
static int make_folder(struct bed *bed)
{
    snprintf(bed->folder, sizeof bed->folder, "%s/.holdfast.bench-XXXXXX", bed->test->folder);
    if (mkdtemp(bed->folder) != NULL)
        return 0;
    int code = errno == ENOENT || errno == ENOTDIR                   ? ERR_NOT_FOUND
               : errno == EACCES || errno == EPERM || errno == EROFS ? ERR_DENIED
                                                                     : ERR_IO;
    bed->folder[0] = '\0';
    return report_errno(code, "could not create a folder there", bed->test->folder);
}

/* Returns `error`, or, if 0, an error for remaining files. */
static int remove_all(struct bed *bed, int error)
{
    char key[STORAGE_KEY_MAX + 1];
    struct report_text text;
    report_keep(&text);
    for (uint32_t i = 0; i < DISK_TEST_FILES && bed->storage != NULL; i++) {
        file_key(key, i);
        storage_remove(bed->storage, key); /* a remaining file keeps its folder */
    }
    storage_close(bed->storage);
    if (bed->folder[0] != '\0' && rmdir(bed->folder) != 0 && error == 0)
        return report_errno(ERR_IO, "could not remove the files", bed->folder);
    return report_restore(&text, error);
}

static int measure(struct bed *bed)
{
    const struct disk_test *test = bed->test;
    const struct storage_options options = {.queue_depth = test->depth, .is_quiet = true};
    ERR_TRY(make_folder(bed));
    ERR_TRY(storage_open(&bed->storage, &storage_local, bed->folder, &options));
    ERR_TRY(check_room(bed));
    ERR_TRY(make_data(bed));
    snprintf(bed->test->storage, sizeof test->storage, "%s", storage_describe(bed->storage));
    ERR_TRY(check_stopped());
    ERR_TRY(write_files(bed));
    return test->is_write_only ? 0 : read_files(bed);
}

int disk_test_run(struct disk_test *test, const struct cli *cli)
{
    struct sigaction before[NUM_SIGNALS];
    struct bed bed = {.test = test, .blocks = test->bytes / test->block};
    ERR_TRY(check_asked(test));
    bed.num_files = bed.blocks < DISK_TEST_FILES ? (uint32_t)bed.blocks : DISK_TEST_FILES;
    hold_signals(before);
    /* A short test ends before a user can read a bar. */
    progress_begin(&bed.progress, cli, "bench", test->is_write_only ? 0 : 2 * test->bytes);
    int error = remove_all(&bed, measure(&bed));
    progress_end(&bed.progress);
    free(bed.data);
    free(bed.slots);
    free(bed.times);
    let_signals(before);
    return error;
}
