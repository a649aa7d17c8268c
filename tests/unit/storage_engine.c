/* storage_engine.c - the two engines below `local`.
 *
 * Goal: both complete submitted requests before they close, and report a file that ends early;
 * io_uring's refusals are handled. Method: plain files; refusals that a privileged process never
 * gets are tested in an unprivileged child. Errors and short transfers: storage_calls.c,
 * storage_uring.c. */
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#include "storage/engine/engine.h"
#include "storage/engine/ring.h"
#include "storage/engine/system.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define BUFFER_BYTES (1u << 20)

struct bed {
    char directory[BED_PATH_BYTES];
    struct engine_file file;
    struct bed_wait wait;
};

static int setup(void **state)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    bed_make_directory(bed->directory);
    bed_wait_init(&bed->wait);
    bed->file.fd = -1;
    *state = bed;
    return 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    if (bed->file.fd >= 0)
        close(bed->file.fd);
    bed_wait_deinit(&bed->wait);
    bed_remove_directory(bed->directory);
    free(bed);
    return 0;
}

static void open_file(struct bed *bed, const char *name, uint64_t bytes)
{
    char full[2 * BED_PATH_BYTES];
    snprintf(full, sizeof(full), "%s/%s", bed->directory, name);
    bed->file.fd = open(full, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(bed->file.fd >= 0);
    bed->file.bytes = bytes;
}

static struct storage_request request_of(struct bed *bed, enum storage_op op, uint64_t offset,
                                         void *data, uint32_t bytes)
{
    return bed_request(op, (struct storage_object *)&bed->file, offset, data, bytes, &bed->wait);
}

/* 64 writes, which closing waits for, and reads of a file that has a page less then. */
static void use_engine(struct bed *bed, const struct engine_ops *ops)
{
    enum { WRITES = 64, PAGES = 4 };
    struct engine *engine;
    struct storage_request requests[WRITES], read;
    unsigned char *data = bed_buffer(PAGES * STORAGE_ALIGN);
    const struct storage_options options = {.queue_depth = 4};
    assert_int_equal(ops->open(&engine, &options), 0);
    bed->wait.num_done = 0;
    for (uint32_t i = 0; i < WRITES; i++) {
        requests[i] =
            request_of(bed, STORAGE_WRITE, i % PAGES * STORAGE_ALIGN, data, STORAGE_ALIGN);
        ops->submit(engine, &requests[i]);
    }
    ops->close(engine);
    assert_int_equal(bed->wait.num_done, WRITES);
    /* It ends inside the third page: the engine gets a short read, then nothing. */
    assert_int_equal(ftruncate(bed->file.fd, 2 * STORAGE_ALIGN + 100), 0);
    assert_int_equal(ops->open(&engine, &options), 0);
    for (uint32_t direct = 0; direct < 2; direct++) {
        bed->file.direct = direct == 1;
        read = request_of(bed, STORAGE_READ, 0, data, PAGES * STORAGE_ALIGN);
        ops->submit(engine, &read);
        bed_wait_for(&bed->wait, WRITES + 1 + direct);
        assert_int_equal(read.error, ERR_CORRUPT);
    }
    ops->close(engine);
    free(data);
}

TEST_BETWEEN(test_engine__close_waits_and_a_file_that_ends_early_is_damage, setup, teardown)
{
    struct bed *bed = *state;
    open_file(bed, "file", 4 * STORAGE_ALIGN);
    use_engine(bed, &engine_pwrite);
    if (bed_has_io_uring())
        use_engine(bed, &engine_uring);
}

TEST(test_engine__limits_are_refused_by_name)
{
    struct engine *engine = NULL;
    struct storage_options options = {.queue_depth = ENGINE_DEPTH_MAX + 1,
                                      .num_threads = ENGINE_THREADS_MAX + 1};
    assert_int_equal(engine_uring.open(&engine, &options), ERR_INVALID);
    assert_non_null(strstr(report_message(), "4097"));
    assert_int_equal(engine_pwrite.open(&engine, &options), ERR_INVALID);
    assert_null(engine);
}

/* ---- the rule for short transfers, without a kernel ---- */

TEST(test_engine_advance__counts_until_the_end)
{
    struct engine_file file = {.direct = false};
    struct storage_request request = {
        .op = STORAGE_WRITE, .object = (struct storage_object *)&file, .bytes = 2 * STORAGE_ALIGN};
    request.retries = 5;
    assert_false(engine_advance(&request, 100));
    assert_int_equal(request.bytes_done, 100);
    assert_int_equal(request.retries, 0); /* progress starts the count anew */
    assert_true(engine_advance(&request, 2 * STORAGE_ALIGN - 100));
    assert_int_equal(request.error, 0);
}

TEST(test_engine_advance__direct_transfers_continue_aligned)
{
    struct engine_file file = {.direct = true};
    struct storage_request request = {
        .op = STORAGE_READ, .object = (struct storage_object *)&file, .bytes = 4 * STORAGE_ALIGN};
    assert_false(engine_advance(&request, STORAGE_ALIGN + 512));
    assert_int_equal(request.bytes_done, STORAGE_ALIGN);
    assert_true(engine_advance(&request, 512)); /* no whole page: it ends here */
    assert_int_equal(request.error, ERR_CORRUPT);
}

TEST(test_engine_advance__write_without_progress_is_an_error)
{
    struct engine_file file = {.direct = false};
    struct storage_request request = {
        .op = STORAGE_WRITE, .object = (struct storage_object *)&file, .bytes = STORAGE_ALIGN};
    assert_true(engine_advance(&request, 0));
    assert_int_equal(request.error, ERR_IO);
    assert_int_equal(request.error_number, EIO);
}

TEST(test_engine_try_again__bounds_transfers_and_never_repeats_a_sync)
{
    struct storage_request transfer = {.op = STORAGE_WRITE}, sync = {.op = STORAGE_SYNC};
    uint32_t num_tries = 0;
    while (engine_try_again(&transfer, EAGAIN))
        num_tries++;
    assert_int_equal(num_tries, ENGINE_RETRIES_MAX);
    assert_int_equal(transfer.error, ERR_IO);
    assert_int_equal(transfer.error_number, EAGAIN);
    assert_false(engine_try_again(&sync, EINTR));
    assert_int_equal(sync.error, ERR_IO);
    transfer = (struct storage_request){.op = STORAGE_WRITE};
    assert_false(engine_try_again(&transfer, ENOSPC));
    assert_int_equal(transfer.error, ERR_SPACE);
}

/* ---- registration without the right to lock memory ---- */

static void write_registered_without_privileges(struct bed *bed, struct rlimit locked,
                                                const char *described, bool comes_later)
{
    unsigned char *data = bed_buffer(BUFFER_BYTES);
    struct iovec buffer = {data, BUFFER_BYTES}, place = {NULL, BUFFER_BYTES};
    struct engine *engine;
    open_file(bed, "file", BUFFER_BYTES);
    if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0 || (geteuid() == 0 && setuid(65534) != 0))
        _exit(2);
    if (engine_uring.open(&engine, &(struct storage_options){0}) != 0) {
        fprintf(stderr, "# %s\n", report_line());
        _exit(3);
    }
    if (engine->ops->register_buffers(engine, comes_later ? &place : &buffer, 1) != 0)
        _exit(4);
    if (strstr(engine->ops->describe(engine), described) == NULL) {
        fprintf(stderr, "# %s\n", engine->ops->describe(engine));
        _exit(5);
    }
    if (comes_later)
        engine->ops->replace_buffer(engine, 0, &buffer);
    struct storage_request request = request_of(bed, STORAGE_WRITE, 0, data, BUFFER_BYTES);
    request.buffer = 0;
    engine->ops->submit(engine, &request);
    bed_wait_for(&bed->wait, 1);
    _exit(request.error == 0 ? 0 : 6);
}

static void expect_good_end(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* The bed has no engine here: a process that forks should have no other threads. */
static void expect_of_child(struct bed *bed, struct rlimit locked, const char *described,
                            bool comes_later)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_registered_without_privileges(bed, locked, described, comes_later);
    expect_good_end(child);
}

TEST_BETWEEN(test_uring__works_unregistered_when_locking_memory_is_refused, setup, teardown)
{
    /* Enough for the ring, not for the buffer. */
    for (int comes_later = 0; comes_later <= 1; comes_later++)
        expect_of_child(*state, (struct rlimit){BUFFER_BYTES / 4, BUFFER_BYTES / 4}, "unregistered",
                        comes_later);
}

TEST_BETWEEN(test_uring__raises_the_soft_limit_of_locked_memory, setup, teardown)
{
    struct rlimit now;
    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &now), 0);
    if (now.rlim_max < 2 * BUFFER_BYTES) {
        print_message("# skipped: the hard limit of locked memory is too low\n");
        skip();
    }
    for (int comes_later = 0; comes_later <= 1; comes_later++)
        expect_of_child(*state, (struct rlimit){0, 2 * BUFFER_BYTES}, "1 fixed buffers",
                        comes_later);
}

/* ---- permissions of a ring ---- */

static int result_of_entry(struct io_uring *ring, unsigned op)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(ring);
    struct io_uring_cqe *completion;
    CHECK(entry != NULL);
    io_uring_prep_rw((int)op, entry, -1, NULL, 0, 0);
    assert_true(io_uring_submit_and_wait(ring, 1) >= 0);
    assert_int_equal(io_uring_peek_cqe(ring, &completion), 0);
    int result = completion->res;
    io_uring_cqe_seen(ring, completion);
    return result;
}

TEST(test_uring__what_the_engine_does_not_need_is_forbidden_to_its_ring)
{
    struct io_uring ring;
    int files[1] = {STDIN_FILENO};
    assert_int_equal(ring_open(&ring, 4), 0);
    for (unsigned op = 0; op < IORING_OP_LAST; op++) {
        bool is_needed = op == IORING_OP_READ || op == IORING_OP_READ_FIXED ||
                         op == IORING_OP_WRITE || op == IORING_OP_WRITE_FIXED ||
                         op == IORING_OP_FSYNC;
        if ((result_of_entry(&ring, op) == -EACCES) == is_needed)
            fail_msg("operation %u is %s", op, is_needed ? "forbidden" : "permitted");
    }
    assert_int_equal(io_uring_register_files(&ring, files, 1), -EACCES);
    assert_int_equal(io_uring_register_eventfd(&ring, STDIN_FILENO), -EACCES);
    io_uring_queue_exit(&ring);
}

static void write_after_rings_are_forbidden(struct bed *bed)
{
    unsigned char *data = bed_buffer(STORAGE_ALIGN);
    struct engine *engine, *later;
    open_file(bed, "file", STORAGE_ALIGN);
    if (engine_uring.open(&engine, &(struct storage_options){0}) != 0)
        _exit(2);
    if (storage_forbid_rings() != 0)
        _exit(3);
    if (engine_uring.open(&later, &(struct storage_options){0}) != ERR_DENIED)
        _exit(4);
    struct storage_request request = request_of(bed, STORAGE_WRITE, 0, data, STORAGE_ALIGN);
    engine->ops->submit(engine, &request);
    bed_wait_for(&bed->wait, 1);
    _exit(request.error == 0 ? 0 : 5);
}

TEST_BETWEEN(test_uring__once_forbidden_no_ring_is_made_and_the_old_ones_go_on, setup, teardown)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_after_rings_are_forbidden(*state);
    expect_good_end(child);
}

int main(void)
{
    for (size_t i = 0; i < suite_num; i++)
        if (strncmp(suite_tests[i].name, "test_uring", 10) == 0)
            bed_needs_io_uring(&suite_tests[i]);
    return suite_run(NULL, NULL);
}
