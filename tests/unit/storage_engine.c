/* storage_engine.c - the two engines below `local`.
 *
 * Goal: both carry out requests completely, report errors once, and keep working under load;
 * io_uring's refusals are met. Method: each case runs on both engines over plain descriptors:
 * /dev/null takes at most 2 GiB - 4 KiB at a time, which gives real short transfers; /dev/null
 * refuses fsync, which gives a real sync error; what a privileged process is never refused is tried
 * in a child without privileges. */
#include "tests/unit/storage_bed.h"

#include "storage/engine/engine.h"
#include "storage/engine/ring.h"

#include <fcntl.h>
#include <linux/ioprio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define HUGE_BYTES (UINT32_MAX - STORAGE_ALIGN + 1)
#define MANY 2000u
#define BUFFER_BYTES (1u << 20)

struct bed {
    struct engine *engine;
    char directory[BED_PATH_BYTES];
    struct engine_file file;
    struct bed_wait wait;
};

static int setup(void **state)
{
    const struct engine_ops *ops = *state;
    struct bed *bed = calloc(1, sizeof(*bed));
    struct storage_options options = {.queue_depth = 4};
    bed_make_directory(bed->directory);
    bed_wait_init(&bed->wait);
    bed->file.fd = -1;
    *state = bed;
    return ops != NULL ? ops->open(&bed->engine, &options) : 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    if (bed->engine != NULL)
        bed->engine->ops->close(bed->engine);
    if (bed->file.fd >= 0)
        close(bed->file.fd);
    bed_wait_deinit(&bed->wait);
    bed_remove_directory(bed->directory);
    free(bed);
    return 0;
}

/* A file of the bed's directory, or a device. */
static void open_file(struct bed *bed, const char *path, uint64_t bytes)
{
    char full[2 * BED_PATH_BYTES];
    snprintf(full, sizeof(full), "%s/%s", path[0] == '/' ? "" : bed->directory, path);
    bed->file.fd = open(full, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(bed->file.fd >= 0);
    bed->file.bytes = bytes;
}

static struct storage_request request_of(struct bed *bed, enum storage_op op, uint64_t offset,
                                         void *data, uint32_t bytes)
{
    return bed_request(op, (struct storage_object *)&bed->file, offset, data, bytes, &bed->wait);
}

static void run_request(struct bed *bed, struct storage_request *request)
{
    uint32_t before = bed->wait.num_done;
    bed->engine->ops->submit(bed->engine, request);
    bed_wait_for(&bed->wait, before + 1);
}

static void test_engine__short_transfer_is_continued(void **state)
{
    struct bed *bed = *state;
#ifdef __SANITIZE_THREAD__
    print_message("# 4 GiB of address space would cost 16 GiB of shadow memory\n");
    skip();
#endif
    /* More than the kernel takes at once, and never touched: it costs no memory. */
    void *data =
        mmap(NULL, HUGE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(data, MAP_FAILED);
    open_file(bed, "/dev/null", HUGE_BYTES);
    struct storage_request request = request_of(bed, STORAGE_WRITE, 0, data, HUGE_BYTES);
    run_request(bed, &request);
    assert_int_equal(request.error, 0);
    assert_int_equal(request.bytes_done, HUGE_BYTES);
    munmap(data, HUGE_BYTES);
}

static void test_engine__read_of_a_file_that_ends_early_is_damage(void **state)
{
    struct bed *bed = *state;
    unsigned char *data = bed_buffer(4 * STORAGE_ALIGN);
    open_file(bed, "ragged", 4 * STORAGE_ALIGN);
    bed_fill(data, 4 * STORAGE_ALIGN, 1);
    /* Ends inside the third page: the engine gets a short read, then nothing. */
    assert_int_equal(write(bed->file.fd, data, 2 * STORAGE_ALIGN + 100), 2 * STORAGE_ALIGN + 100);
    for (int direct = 0; direct < 2; direct++) {
        bed->file.direct = direct;
        struct storage_request request = request_of(bed, STORAGE_READ, 0, data, 4 * STORAGE_ALIGN);
        run_request(bed, &request);
        assert_int_equal(request.error, ERR_CORRUPT);
    }
    free(data);
}

static void test_engine__bad_descriptor_is_reported_with_its_errno(void **state)
{
    struct bed *bed = *state;
    unsigned char *data = bed_buffer(STORAGE_ALIGN);
    bed->file.bytes = STORAGE_ALIGN;
    struct storage_request request = request_of(bed, STORAGE_WRITE, 0, data, STORAGE_ALIGN);
    run_request(bed, &request);
    assert_int_equal(request.error, ERR_IO);
    assert_int_equal(request.error_number, EBADF);
    free(data);
}

static void test_engine__sync_error_is_final(void **state)
{
    struct bed *bed = *state;
    open_file(bed, "/dev/null", 0);
    struct storage_request request = request_of(bed, STORAGE_SYNC, 0, NULL, 0);
    run_request(bed, &request);
    assert_int_equal(request.error, ERR_IO);
    assert_int_equal(request.error_number, EINVAL);
    assert_int_equal(request.retries, 0);
}

static void test_engine__more_requests_than_depth_all_complete(void **state)
{
    struct bed *bed = *state;
    struct storage_request *requests = calloc(MANY, sizeof(*requests));
    unsigned char *data = bed_buffer(MANY * STORAGE_ALIGN),
                  *back = bed_buffer(MANY * STORAGE_ALIGN);
    bed_fill(data, MANY * STORAGE_ALIGN, 2);
    open_file(bed, "many", MANY * STORAGE_ALIGN);
    for (uint32_t i = 0; i < MANY; i++) {
        uint64_t at = (uint64_t)i * STORAGE_ALIGN;
        requests[i] = request_of(bed, STORAGE_WRITE, at, data + at, STORAGE_ALIGN);
        bed->engine->ops->submit(bed->engine, &requests[i]);
    }
    bed_wait_for(&bed->wait, MANY);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(requests[i].error, 0);
    assert_int_equal(pread(bed->file.fd, back, MANY * STORAGE_ALIGN, 0), MANY * STORAGE_ALIGN);
    assert_memory_equal(data, back, MANY * STORAGE_ALIGN);
    free(requests);
    free(data);
    free(back);
}

static void test_engine__close_waits_for_what_was_submitted(void **state)
{
    struct bed *bed = *state;
    struct storage_request requests[64];
    unsigned char *data = bed_buffer(STORAGE_ALIGN);
    open_file(bed, "file", 64 * STORAGE_ALIGN);
    for (uint32_t i = 0; i < 64; i++) {
        requests[i] = request_of(bed, STORAGE_WRITE, i * STORAGE_ALIGN, data, STORAGE_ALIGN);
        bed->engine->ops->submit(bed->engine, &requests[i]);
    }
    bed->engine->ops->close(bed->engine);
    bed->engine = NULL;
    assert_int_equal(bed->wait.num_done, 64);
    free(data);
}

static void test_engine__limits_are_refused_by_name(void **state)
{
    (void)state;
    struct engine *engine = NULL;
    struct storage_options options = {.queue_depth = ENGINE_DEPTH_MAX + 1,
                                      .num_threads = ENGINE_THREADS_MAX + 1};
    assert_int_equal(engine_uring.open(&engine, &options), ERR_INVALID);
    assert_non_null(strstr(report_message(), "4097"));
    assert_int_equal(engine_pwrite.open(&engine, &options), ERR_INVALID);
    assert_null(engine);
}

/* ---- the rule for short transfers, without a kernel ---- */

static void test_engine_advance__counts_until_the_end(void **state)
{
    (void)state;
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

static void test_engine_advance__direct_transfers_continue_aligned(void **state)
{
    (void)state;
    struct engine_file file = {.direct = true};
    struct storage_request request = {
        .op = STORAGE_READ, .object = (struct storage_object *)&file, .bytes = 4 * STORAGE_ALIGN};
    assert_false(engine_advance(&request, STORAGE_ALIGN + 512));
    assert_int_equal(request.bytes_done, STORAGE_ALIGN);
    assert_true(engine_advance(&request, 512)); /* no whole page: it ends here */
    assert_int_equal(request.error, ERR_CORRUPT);
}

static void test_engine_advance__write_without_progress_is_an_error(void **state)
{
    (void)state;
    struct engine_file file = {.direct = false};
    struct storage_request request = {
        .op = STORAGE_WRITE, .object = (struct storage_object *)&file, .bytes = STORAGE_ALIGN};
    assert_true(engine_advance(&request, 0));
    assert_int_equal(request.error, ERR_IO);
    assert_int_equal(request.error_number, EIO);
}

static void test_engine_try_again__bounds_transfers_and_never_repeats_a_sync(void **state)
{
    (void)state;
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

/* The bed has no engine here: a process that forks should have no other threads. */
static void expect_of_child(struct bed *bed, struct rlimit locked, const char *described,
                            bool comes_later)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_registered_without_privileges(bed, locked, described, comes_later);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_uring__works_unregistered_when_locking_memory_is_refused(void **state)
{
    /* Enough for the ring, not for the buffer. */
    for (int comes_later = 0; comes_later <= 1; comes_later++)
        expect_of_child(*state, (struct rlimit){BUFFER_BYTES / 4, BUFFER_BYTES / 4}, "unregistered",
                        comes_later);
}

static void test_uring__raises_the_soft_limit_of_locked_memory(void **state)
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

/* ---- what a ring may do ---- */

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

static void test_uring__what_the_engine_does_not_need_is_forbidden_to_its_ring(void **state)
{
    (void)state;
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

static void test_uring__once_forbidden_no_ring_is_made_and_the_old_ones_go_on(void **state)
{
    struct bed *bed = *state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        write_after_rings_are_forbidden(bed);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define BOTH(function)                                                           \
    {#function " (io_uring)", function, setup, teardown, (void *)&engine_uring}, \
    {                                                                            \
#function " (pwrite)", function, setup, teardown, (void *)&engine_pwrite \
    }

int main(void)
{
    struct CMUnitTest tests[] = {
        BOTH(test_engine__short_transfer_is_continued),
        BOTH(test_engine__read_of_a_file_that_ends_early_is_damage),
        BOTH(test_engine__bad_descriptor_is_reported_with_its_errno),
        BOTH(test_engine__sync_error_is_final),
        BOTH(test_engine__more_requests_than_depth_all_complete),
        BOTH(test_engine__close_waits_for_what_was_submitted),
        {"test_uring__works_unregistered_when_locking_memory_is_refused",
         test_uring__works_unregistered_when_locking_memory_is_refused, setup, teardown, NULL},
        {"test_uring__raises_the_soft_limit_of_locked_memory",
         test_uring__raises_the_soft_limit_of_locked_memory, setup, teardown, NULL},
        {"test_uring__what_the_engine_does_not_need_is_forbidden_to_its_ring",
         test_uring__what_the_engine_does_not_need_is_forbidden_to_its_ring, NULL, NULL, NULL},
        {"test_uring__once_forbidden_no_ring_is_made_and_the_old_ones_go_on",
         test_uring__once_forbidden_no_ring_is_made_and_the_old_ones_go_on, setup, teardown, NULL},
        cmocka_unit_test(test_engine__limits_are_refused_by_name),
        cmocka_unit_test(test_engine_advance__counts_until_the_end),
        cmocka_unit_test(test_engine_advance__direct_transfers_continue_aligned),
        cmocka_unit_test(test_engine_advance__write_without_progress_is_an_error),
        cmocka_unit_test(test_engine_try_again__bounds_transfers_and_never_repeats_a_sync),
    };
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (tests[i].initial_state == &engine_uring ||
            strncmp(tests[i].name, "test_uring", 10) == 0)
            bed_needs_io_uring(&tests[i]);
    return cmocka_run_group_tests_name("storage_engine", tests, NULL, NULL);
}
