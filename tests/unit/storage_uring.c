/* storage_uring.c - completions of the io_uring engine that a test cannot provoke from a kernel.
 *
 * Goal: an errno of a read, a write or a sync is reported with its code, once; EINTR and EAGAIN of
 * a transfer are retried a limited number of times, and those of a sync never. A partial transfer
 * is completed. No request is lost when the kernel accepts nothing for a while, or drops a wake-up.
 * Method: the linker sends io_uring_submit_and_wait, the one place where the engine sleeps, and
 * io_uring_submit, which submits blocks one by one, through this file. It lets the kernel finish
 * all requests, then changes the result of some completions and corrupts the bytes that these
 * report as not moved. An engine that does not move them again has wrong data. */
#include "storage/engine/engine.h"
#include "tests/unit/random.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <liburing.h>

#define BYTES (8 * STORAGE_ALIGN)
#define MANY 300u
#define MANY_BYTES (3 * STORAGE_ALIGN) /* of each of them */
#define BLOCKS 48u
#define BLOCK_BYTES (256u << 10) /* from this size on requests go one by one */
#define DATA_BYTES (BLOCKS * BLOCK_BYTES)
#define DEPTH 4u
#define FOR_EVER UINT32_MAX

/* Defined here, so that their completions differ from that of the engine's own read of an
 * eventfd. */
static struct storage_request requests[MANY];

/* The changes to completions and calls; the engine's thread reads them. */
struct plan {
    int number;    /* errno of completions; 0: at most `part` bytes were moved */
    uint32_t part; /* of a page or more when completions are altered by chance */
    uint32_t times;
    bool by_chance;   /* each of four ends as it is, with EINTR, with EAGAIN, in part */
    int refusal;      /* errno of calls */
    uint32_t refused; /* so many; every other one, with any errno, by chance */
};
static pthread_mutex_t plan_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct plan plan;
/* Since the plan was made; num_early: calls that do not wait. */
static uint32_t num_completions, num_altered, num_refused, num_wakes, num_early;
static uint32_t most_blocks;  /* given to the kernel by one call */
static unsigned looked_until; /* of the ring's completions */

static void set_plan(struct plan next)
{
    pthread_mutex_lock(&plan_mutex);
    plan = next;
    num_completions = num_altered = num_refused = num_wakes = num_early = most_blocks = 0;
    pthread_mutex_unlock(&plan_mutex);
}

static uint32_t read_count(const uint32_t *count)
{
    pthread_mutex_lock(&plan_mutex);
    uint32_t value = *count;
    pthread_mutex_unlock(&plan_mutex);
    return value;
}

/* ---- between the engine and the kernel, on the engine's thread ---- */

static bool is_request(uint64_t user_data)
{
    return user_data >= (uintptr_t)requests && user_data < (uintptr_t)(requests + MANY);
}

/* Corrupts the moved bytes after the first `kept`. */
static void spoil(const struct storage_request *request, uint32_t kept, uint32_t moved)
{
    static const unsigned char zeros[BLOCK_BYTES];
    uint32_t at = request->bytes_done + kept;
    if (request->op == STORAGE_READ)
        memset((char *)request->data + at, 0, moved - kept);
    else if (request->op == STORAGE_WRITE)
        CHECK(pwrite(engine_file_of(request)->fd, zeros, moved - kept,
                     (off_t)(request->offset + at)) == (ssize_t)(moved - kept));
}

static void alter(struct io_uring_cqe *completion)
{
    static const int by_chance[] = {EINTR, EAGAIN, 0, 0};
    uint64_t kind = plan.by_chance ? next_random(4) : 0;
    int number = plan.by_chance ? by_chance[kind] : plan.number;
    num_completions++;
    if (completion->res < 0 || plan.times == 0 || kind == 3)
        return;
    uint32_t moved = (uint32_t)completion->res, part = plan.part;
    if (plan.by_chance && moved > part)
        part += (uint32_t)next_random(moved - part);
    if (number == 0 && moved <= part)
        return;
    plan.times -= plan.times != FOR_EVER;
    num_altered++;
    spoil(io_uring_cqe_get_data(completion), number != 0 ? 0 : part, moved);
    completion->res = number != 0 ? -number : (int)part;
}

/* The errno of this call; 0: it is made. */
static int next_refusal(void)
{
    static const int numbers[] = {EAGAIN, EBUSY, ENOMEM, EINTR};
    if (plan.refused == 0 || (plan.by_chance && next_random(2) == 0))
        return 0;
    plan.refused -= plan.refused != FOR_EVER;
    num_refused++;
    return plan.by_chance ? numbers[next_random(4)] : plan.refusal;
}

/* Every other one, while calls are refused. */
static bool gives_up_wake(void)
{
    num_wakes++;
    return plan.refused != 0 && num_wakes % 2 == 1;
}

/* Requests of so many bytes or more. */
static uint32_t count_prepared(const struct io_uring *ring, uint32_t bytes)
{
    uint32_t count = 0;
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        const struct io_uring_sqe *entry = &ring->sq.sqes[i & ring->sq.ring_mask];
        count += is_request(entry->user_data) && entry->len >= bytes;
    }
    return count;
}

static uint32_t count_completed(struct io_uring *ring)
{
    struct io_uring_cqe *completion;
    unsigned at;
    uint32_t count = 0;
    io_uring_for_each_cqe(ring, at, completion)
    {
        count += is_request(completion->user_data);
    }
    return count;
}

/* By a caller of the engine, of all requests; and as soon as one of them has begun. */
static atomic_bool give_up, gives_up_begun;

/* Those that were not looked at before. */
static void alter_completions(struct io_uring *ring)
{
    struct io_uring_cqe *completion;
    unsigned at;
    pthread_mutex_lock(&plan_mutex);
    io_uring_for_each_cqe(ring, at, completion)
    {
        if ((int)(at - looked_until) < 0)
            continue;
        looked_until = at + 1;
        if (is_request(completion->user_data))
            alter(completion);
        else if (gives_up_wake())
            completion->res = -ENOMEM; /* it woke all the same */
    }
    pthread_mutex_unlock(&plan_mutex);
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count);
int __real_io_uring_submit(struct io_uring *ring);
int __wrap_io_uring_submit(struct io_uring *ring);

/* The kernel finishes all requests before the engine sees any: later completions would reach it
 * unaltered. So the call before left none in the kernel. */
static int submit_to_kernel(struct io_uring *ring, unsigned count)
{
    pthread_mutex_lock(&plan_mutex);
    int refusal = next_refusal();
    num_early += count == 0;
    pthread_mutex_unlock(&plan_mutex);
    if (refusal != 0)
        return -refusal;
    uint32_t wanted = count_completed(ring) + count_prepared(ring, 0);
    uint32_t blocks = count_prepared(ring, BLOCK_BYTES);
    pthread_mutex_lock(&plan_mutex);
    most_blocks = blocks > most_blocks ? blocks : most_blocks;
    pthread_mutex_unlock(&plan_mutex);
    int result =
        count > 0 ? __real_io_uring_submit_and_wait(ring, count) : __real_io_uring_submit(ring);
    unsigned ready = io_uring_cq_ready(ring); /* before the count: a completion then ends a wait */
    for (; count_completed(ring) < wanted; ready = io_uring_cq_ready(ring))
        __real_io_uring_submit_and_wait(ring, ready + 1);
    if (wanted > 0 && atomic_load(&gives_up_begun))
        atomic_store(&give_up, true);
    alter_completions(ring);
    return result;
}

int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
    return submit_to_kernel(ring, count);
}

int __wrap_io_uring_submit(struct io_uring *ring)
{
    return submit_to_kernel(ring, 0);
}

/* ---- the bed ---- */

struct bed {
    struct engine *engine;
    char directory[BED_PATH_BYTES];
    struct engine_file file;
    struct bed_wait wait;
    unsigned char *data, *want; /* the first is registered as buffer 0 */
};

static int setup(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    char path[2 * BED_PATH_BYTES];
    set_plan((struct plan){0});
    looked_until = 0;
    atomic_store(&give_up, false);
    atomic_store(&gives_up_begun, false);
    bed_make_directory(bed->directory);
    bed_wait_init(&bed->wait);
    snprintf(path, sizeof path, "%s/file", bed->directory);
    bed->file.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(bed->file.fd >= 0);
    bed->file.bytes = DATA_BYTES;
    bed->data = bed_buffer(DATA_BYTES);
    bed->want = bed_buffer(DATA_BYTES);
    bed_fill(bed->want, DATA_BYTES, 3);
    *state = bed;
    int error = engine_uring.open(&bed->engine, &(struct storage_options){.queue_depth = DEPTH});
    if (error != 0)
        return error;
    const struct iovec buffer = {bed->data, DATA_BYTES};
    return engine_uring.register_buffers(bed->engine, &buffer, 1);
}

static void close_engine(struct bed *bed)
{
    if (bed->engine != NULL)
        engine_uring.close(bed->engine);
    bed->engine = NULL;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    set_plan((struct plan){0});
    close_engine(bed);
    close(bed->file.fd);
    bed_wait_deinit(&bed->wait);
    bed_remove_directory(bed->directory);
    free(bed->data);
    free(bed->want);
    free(bed);
    return 0;
}

/* Such a write finds zeros in the file, and such a read finds them in memory, where the other has
 * the right data. */
static void prepare_data(struct bed *bed, enum storage_op op, uint32_t bytes)
{
    memcpy(bed->data, bed->want, bytes);
    if (op == STORAGE_READ)
        assert_int_equal(pwrite(bed->file.fd, bed->want, bytes, 0), bytes);
    else
        assert_int_equal(ftruncate(bed->file.fd, 0), 0);
    if (op == STORAGE_READ)
        memset(bed->data, 0, bytes);
}

static void expect_data(struct bed *bed, enum storage_op op, uint32_t bytes)
{
    if (op == STORAGE_WRITE) {
        memset(bed->data, 0, bytes);
        assert_int_equal(pread(bed->file.fd, bed->data, bytes, 0), bytes);
    }
    assert_memory_equal(bed->data, bed->want, bytes);
}

static void submit(struct bed *bed, uint32_t index, enum storage_op op, uint64_t offset,
                   uint32_t bytes, bool is_fixed)
{
    struct storage_object *object = (struct storage_object *)&bed->file;
    requests[index] = op == STORAGE_SYNC
                          ? bed_request(op, object, 0, NULL, 0, &bed->wait)
                          : bed_request(op, object, offset, bed->data + offset, bytes, &bed->wait);
    if (is_fixed && op != STORAGE_SYNC)
        requests[index].buffer = 0;
    requests[index].given_up = &give_up;
    engine_uring.submit(bed->engine, &requests[index]);
}

/* One request of BYTES, to its end. */
static const struct storage_request *run(struct bed *bed, enum storage_op op, bool is_fixed,
                                         struct plan next)
{
    uint32_t before = bed->wait.num_done;
    prepare_data(bed, op, BYTES);
    set_plan(next);
    submit(bed, 0, op, 0, BYTES, is_fixed);
    bed_wait_for(&bed->wait, before + 1);
    return &requests[0];
}

static void expect_success(struct bed *bed, const struct storage_request *request)
{
    assert_int_equal(request->error, 0);
    assert_int_equal(request->error_number, 0);
    if (request->op != STORAGE_SYNC)
        expect_data(bed, request->op, BYTES);
}

/* Closing waits for all: a request that was completed twice counts twice. */
static void expect_done(struct bed *bed, uint32_t count)
{
    set_plan((struct plan){0});
    close_engine(bed);
    assert_int_equal(bed->wait.num_done, count);
    assert_int_equal(bed->wait.overlaps, 0);
}

/* ---- errors ---- */

#define URING_TEST(name) TEST_WITH(struct bed *bed, name, setup, teardown)

URING_TEST(test_uring__an_errno_is_reported_with_its_code_and_once)
{
    static const struct {
        int number, code;
    } errors[] = {{EIO, ERR_IO},       {ENOSPC, ERR_SPACE}, {EDQUOT, ERR_SPACE},
                  {EROFS, ERR_DENIED}, {ECANCELED, ERR_IO}, {ENOMEM, ERR_MEMORY},
                  {ETIMEDOUT, ERR_IO}, {EOPNOTSUPP, ERR_IO}};
    static const enum storage_op ops[] = {STORAGE_READ, STORAGE_WRITE, STORAGE_SYNC};
    uint32_t runs = 0;
    for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) {
        for (size_t i = 0; i < sizeof errors / sizeof *errors; i++, runs += 2) {
            const struct storage_request *request =
                run(bed, ops[op], i % 2 == 0,
                    (struct plan){.number = errors[i].number, .times = FOR_EVER});
            assert_int_equal(request->error, errors[i].code);
            assert_int_equal(request->error_number, errors[i].number);
            assert_int_equal(read_count(&num_completions), 1); /* it was not tried again */
            expect_success(bed, run(bed, ops[op], i % 2 == 0, (struct plan){0}));
        }
    }
    expect_done(bed, runs);
}

URING_TEST(test_uring__a_passing_error_of_a_transfer_is_tried_again_so_many_times)
{
    static const int numbers[] = {EINTR, EAGAIN};
    static const uint32_t times[] = {1, 2, ENGINE_RETRIES_MAX};
    uint32_t runs = 0;
    for (int is_write = 0; is_write < 2; is_write++) {
        enum storage_op op = is_write ? STORAGE_WRITE : STORAGE_READ;
        for (int i = 0; i < 2; i++) {
            for (size_t of = 0; of < sizeof times / sizeof *times; of++, runs++) {
                expect_success(bed, run(bed, op, of % 2 == 0,
                                        (struct plan){.number = numbers[i], .times = times[of]}));
                assert_int_equal(read_count(&num_completions), times[of] + 1);
            }
            const struct storage_request *request =
                run(bed, op, false, (struct plan){.number = numbers[i], .times = FOR_EVER});
            runs++;
            assert_int_equal(request->error, ERR_IO);
            assert_int_equal(request->error_number, numbers[i]);
            assert_int_equal(read_count(&num_completions), ENGINE_RETRIES_MAX + 1);
        }
    }
    expect_done(bed, runs);
}

/* The kernel reports a lost write once: a second fsync would succeed. */
URING_TEST(test_uring__no_error_of_a_sync_is_passing)
{
    static const int numbers[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; i++) {
        const struct storage_request *request =
            run(bed, STORAGE_SYNC, false, (struct plan){.number = numbers[i], .times = 1});
        assert_int_equal(request->error, ERR_IO);
        assert_int_equal(request->error_number, numbers[i]);
        assert_int_equal(read_count(&num_completions), 1);
    }
    expect_done(bed, 2);
}

/* The flag is set when it was given to the kernel. */
URING_TEST(test_uring__what_has_begun_is_finished_though_it_is_given_up)
{
    const struct plan plans[] = {{.number = EAGAIN, .times = 3},
                                 {.part = STORAGE_ALIGN, .times = 3}};
    for (size_t i = 0; i < 2; i++) {
        prepare_data(bed, STORAGE_WRITE, BYTES);
        set_plan(plans[i]);
        atomic_store(&give_up, false);
        atomic_store(&gives_up_begun, true);
        submit(bed, 0, STORAGE_WRITE, 0, BYTES, true);
        bed_wait_for(&bed->wait, (uint32_t)i + 1);
        atomic_store(&gives_up_begun, false);
        assert_true(atomic_load(&give_up));
        expect_success(bed, &requests[0]);
    }
    expect_done(bed, 2);
}

/* ---- transfers in parts ---- */

URING_TEST(test_uring__what_was_moved_in_part_is_moved_whole)
{
    static const struct {
        uint32_t part;
        bool direct;
    } cuts[] = {{STORAGE_ALIGN, false},        {STORAGE_ALIGN, true}, {STORAGE_ALIGN + 100, false},
                {STORAGE_ALIGN + 100, true},   {100, false},          {BYTES - 1, false},
                {BYTES - STORAGE_ALIGN, true}, {BYTES - 1, true}};
    uint32_t runs = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        bed->file.direct = cuts[i].direct;
        for (int variant = 0; variant < 8; variant++, runs++) {
            enum storage_op op = (variant & 1) != 0 ? STORAGE_WRITE : STORAGE_READ;
            uint32_t times = (variant & 2) != 0 ? FOR_EVER : 1;
            expect_success(bed, run(bed, op, (variant & 4) != 0,
                                    (struct plan){.part = cuts[i].part, .times = times}));
            assert_true(read_count(&num_completions) > 1);
        }
    }
    expect_done(bed, runs);
}

/* Nothing, or less than a page of a direct transfer, which cannot continue inside of one. */
URING_TEST(test_uring__no_progress_is_the_end_of_the_file_or_an_error)
{
    uint32_t runs = 0;
    for (int direct = 0; direct < 2; direct++) {
        bed->file.direct = direct == 1;
        const struct plan nothing = {.part = direct == 1 ? 100 : 0, .times = 1};
        const struct storage_request *request = run(bed, STORAGE_READ, false, nothing);
        assert_int_equal(request->error, ERR_CORRUPT);
        assert_int_equal(request->error_number, 0);
        request = run(bed, STORAGE_WRITE, false, nothing);
        assert_int_equal(request->error, ERR_IO);
        assert_int_equal(request->error_number, EIO);
        runs += 2;
    }
    expect_done(bed, runs);
}

/* ---- many at once ---- */

/* Small ones; or blocks, and between them small ones. */
static uint32_t bytes_of(uint32_t index, bool are_blocks)
{
    return !are_blocks ? MANY_BYTES : index % 4 == 3 ? STORAGE_ALIGN : BLOCK_BYTES;
}

/* All are written, then read, with the same plan. */
static void run_many(struct bed *bed, bool are_blocks, struct plan next)
{
    const uint32_t count = are_blocks ? BLOCKS : MANY;
    for (int is_read = 0; is_read < 2; is_read++) {
        enum storage_op op = is_read ? STORAGE_READ : STORAGE_WRITE;
        uint32_t before = bed->wait.num_done, at = 0;
        for (uint32_t i = 0; i < count; i++)
            at += bytes_of(i, are_blocks);
        prepare_data(bed, op, at);
        set_plan(next);
        at = 0;
        for (uint32_t i = 0; i < count; at += bytes_of(i++, are_blocks))
            submit(bed, i, op, at, bytes_of(i, are_blocks), i % 2 == 0);
        bed_wait_for(&bed->wait, before + count);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(requests[i].error, 0);
        expect_data(bed, op, at);
        assert_true(are_blocks || read_count(&num_early) == 0);
    }
}

URING_TEST(test_uring__what_ends_anyhow_is_whole_in_the_end)
{
    const struct plan plans = {.by_chance = true, .part = STORAGE_ALIGN, .times = FOR_EVER};
    for (int direct = 0; direct < 2; direct++) {
        bed->file.direct = direct == 1;
        run_many(bed, false, plans);
        assert_true(read_count(&num_altered) > MANY / 2);
        run_many(bed, true, plans);
        assert_true(read_count(&num_altered) > BLOCKS / 2);
    }
    expect_done(bed, 4 * (MANY + BLOCKS));
}

/* ---- a kernel that takes nothing ---- */

URING_TEST(test_uring__a_kernel_that_takes_nothing_for_a_while_loses_nothing)
{
    static const int numbers[] = {EAGAIN, EBUSY, ENOMEM, EINTR};
    for (int i = 0; i < 4; i++) {
        const struct plan refusing = {.refusal = numbers[i], .refused = 20};
        expect_success(bed, run(bed, STORAGE_WRITE, true, refusing));
        assert_int_equal(read_count(&num_refused), 20);
        expect_success(bed, run(bed, STORAGE_READ, true, refusing));
        expect_success(bed, run(bed, STORAGE_SYNC, true, refusing));
    }
    for (int are_blocks = 0; are_blocks < 2; are_blocks++) {
        run_many(bed, are_blocks, (struct plan){.by_chance = true, .refused = FOR_EVER});
        assert_true(read_count(&num_refused) > 0);
    }
    run_many(bed, true,
             (struct plan){
                 .by_chance = true, .part = STORAGE_ALIGN, .times = FOR_EVER, .refused = FOR_EVER});
    expect_done(bed, 12 + 2 * MANY + 4 * BLOCKS);
}

/* Where the engine finds several at once; whether it does is up to the scheduler. */
URING_TEST(test_uring__blocks_go_one_by_one)
{
    uint32_t runs = 0;
    do {
        run_many(bed, true, (struct plan){0});
        runs++;
        assert_int_equal(read_count(&most_blocks), 1);
    } while (read_count(&num_early) == 0 && runs < 1000);
    assert_true(read_count(&num_early) > 0);
    expect_done(bed, runs * 2 * BLOCKS);
}

URING_TEST(test_uring__what_was_submitted_to_such_a_kernel_is_waited_for_at_the_close)
{
    prepare_data(bed, STORAGE_WRITE, MANY * MANY_BYTES);
    set_plan((struct plan){.by_chance = true, .refused = FOR_EVER});
    for (uint32_t i = 0; i < MANY; i++)
        submit(bed, i, STORAGE_WRITE, i * MANY_BYTES, MANY_BYTES, i % 2 == 0);
    close_engine(bed);
    assert_int_equal(bed->wait.num_done, MANY);
    expect_data(bed, STORAGE_WRITE, MANY * MANY_BYTES);
}

int main(void)
{
    seed_random();
    for (size_t i = 0; i < suite_num; i++)
        bed_needs_io_uring(&suite_tests[i]);
    return suite_run(NULL, NULL);
}
