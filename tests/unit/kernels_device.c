/* kernels_device.c - lanes and memory of a device, as device.h promises them.
 *
 * Goal: operations on a lane run in the order of posting, marks are waited for, arguments are those
 * at the moment of posting, the first error is kept, and operations have the same bits on every
 * kind of lane. Method: the same checks on three devices: the CPU at once, the CPU with queues, and
 * the one of tests/device, whose lanes run late at random. Checks that end a process run in a
 * child. */
#include "tests/unit/kernels_cases.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/report.h"
#include "proto/base/sanitized.h"
#include "tests/device/async.h"

#define LANES_MAX 3

struct bed {
    struct device *device;
    struct lane *lanes[LANES_MAX];
};

static struct bed open_bed(const struct device_ops *ops, const struct device_options *options)
{
    static const char *const names[] = {"first", "second", "third"};
    struct bed bed = {0};
    assert_int_equal(device_open(&bed.device, ops, options), 0);
    for (int i = 0; i < LANES_MAX; i++)
        assert_int_equal(lane_open(&bed.lanes[i], bed.device, names[i], LANE_COMPUTES), 0);
    return bed;
}

static void close_bed(struct bed *bed)
{
    for (int i = 0; i < LANES_MAX; i++)
        lane_close(bed->lanes[i]);
    device_close(bed->device);
}

/* Device `which`, of NUM_DEVICES. */
#define NUM_DEVICES 5
static struct bed open_device(int which)
{
    struct async_options late = {.seed = (uint64_t)which};
    struct device_options options = {.is_queued = which == 1, .custom = &late};
    return open_bed(which < 2 ? &device_cpu : &device_async, &options);
}

/* ---- Order ---- */

struct list {
    int num, values[2000];
};
struct append {
    struct list *list;
    int value;
};
static int append(void *args)
{
    const struct append *a = args;
    a->list->values[a->list->num++] = a->value;
    return 0;
}

TEST(test_lane__runs_what_is_posted_in_the_order_of_posting)
{
    for (int which = 0; which < NUM_DEVICES; which++) {
        struct bed bed = open_device(which);
        struct list list = {0};
        for (int i = 0; i < 50; i++) {
            struct append args = {&list, i};
            lane_call(bed.lanes[0], append, &args, sizeof(args));
            args.value = -1; /* the lane has its own copy */
        }
        assert_int_equal(lane_settle(bed.lanes[0]), 0);
        assert_int_equal(list.num, 50);
        for (int i = 0; i < 50; i++)
            assert_int_equal(list.values[i], i);
        close_bed(&bed);
    }
}

static int nap(void *args)
{
    nanosleep(&(struct timespec){.tv_nsec = *(const long *)args}, NULL);
    return 0;
}

TEST(test_lane__a_full_queue_makes_the_poster_wait_and_loses_nothing)
{
    struct bed bed = open_device(1);
    static struct list list;
    list.num = 0;
    lane_call(bed.lanes[0], nap, &(long){20000000}, sizeof(long));
    for (int i = 0; i < 2000; i++)
        lane_call(bed.lanes[0], append, &(struct append){&list, i}, sizeof(struct append));
    assert_int_equal(lane_settle(bed.lanes[0]), 0);
    assert_int_equal(list.num, 2000);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(list.values[i], i);
    close_bed(&bed);
}

/* ---- Marks ---- */

#define STEPS 60
struct step {
    int number, needs;   /* a step of another lane that has to be done before; -1: none */
    int *done, *missing; /* [STEPS], one */
};
static int take_step(void *args)
{
    const struct step *s = args;
    if (s->needs >= 0 && __atomic_load_n(&s->done[s->needs], __ATOMIC_RELAXED) == 0)
        __atomic_fetch_add(s->missing, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&s->done[s->number], 1, __ATOMIC_RELAXED);
    return 0;
}

/* Posts a random program on three lanes; returns the number of steps that began before their inputs
 * were ready. */
static int run_program(struct bed *bed, uint64_t seed, bool has_marks)
{
    int done[STEPS] = {0}, missing = 0;
    struct mark marks[STEPS] = {0};
    for (int i = 0; i < STEPS; i++) {
        struct lane *lane = bed->lanes[splitmix64(&seed) % LANES_MAX];
        int needs = i > 0 ? (int)(splitmix64(&seed) % (uint64_t)i) : -1;
        if (needs >= 0 && has_marks)
            lane_wait(lane, &marks[needs]);
        else if (needs >= 0 && marks[needs].lane == lane)
            needs = -1; /* its own order is no proof */
        lane_call(lane, take_step, &(struct step){i, needs, done, &missing}, sizeof(struct step));
        lane_mark(lane, &marks[i]);
    }
    for (int i = 0; i < LANES_MAX; i++)
        assert_int_equal(lane_settle(bed->lanes[i]), 0);
    return missing;
}

TEST(test_lane__begins_nothing_before_the_mark_that_it_waits_for)
{
    for (int which = 0; which < NUM_DEVICES; which++) {
        struct bed bed = open_device(which);
        for (uint64_t seed = 0; seed < 3; seed++)
            assert_int_equal(run_program(&bed, seed, true), 0);
        close_bed(&bed);
    }
}

TEST(test_async__shows_that_a_wait_is_missing)
{
    struct bed bed = open_device(2);
    int missing = 0;
    for (uint64_t seed = 0; seed < 3; seed++)
        missing += run_program(&bed, seed, false);
    assert_true(missing > 0);
    close_bed(&bed);
}

TEST(test_lane__settles_a_mark_and_not_what_comes_after)
{
    struct bed bed = open_device(1);
    struct list list = {0};
    struct mark mark = {0};
    lane_call(bed.lanes[0], append, &(struct append){&list, 7}, sizeof(struct append));
    lane_mark(bed.lanes[0], &mark);
    lane_call(bed.lanes[0], nap, &(long){300000000}, sizeof(long));
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    assert_int_equal(lane_settle_mark(bed.lanes[0], &mark), 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert_int_equal(list.num, 1);
    double seconds =
        (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    assert_true(seconds < 0.25);
    close_bed(&bed);
}

/* ---- Errors ---- */

static int fail_with(void *args)
{
    return report_error(*(const int *)args, NULL, "number %d", *(const int *)args);
}

TEST(test_lane__keeps_its_first_error_and_drops_what_follows)
{
    for (int which = 0; which < NUM_DEVICES; which++) {
        struct bed bed = open_device(which);
        struct list list = {0};
        struct mark mark = {0};
        lane_call(bed.lanes[0], fail_with, &(int){ERR_IO}, sizeof(int));
        lane_call(bed.lanes[0], fail_with, &(int){ERR_SPACE}, sizeof(int));
        lane_call(bed.lanes[0], append, &(struct append){&list, 1}, sizeof(struct append));
        lane_mark(bed.lanes[0], &mark);
        lane_wait(bed.lanes[1], &mark); /* is reached all the same */
        lane_call(bed.lanes[1], append, &(struct append){&list, 2}, sizeof(struct append));
        assert_int_equal(lane_settle(bed.lanes[1]), 0);
        report_clear();
        for (int i = 0; i < 2; i++) {
            assert_int_equal(lane_settle(bed.lanes[0]), ERR_IO);
            assert_string_equal(report_message(), "number -7");
        }
        assert_int_equal(list.num, 1);
        assert_int_equal(list.values[0], 2);
        close_bed(&bed);
    }
}

/* ---- Memory ---- */

TEST(test_device__copies_and_zeros_in_the_order_of_the_lane)
{
    for (int which = 0; which < NUM_DEVICES; which++) {
        struct bed bed = open_device(which);
        void *there = NULL, *here = NULL, *back = NULL;
        assert_int_equal(device_alloc(bed.device, &there, 10000, ON_DEVICE), 0);
        assert_int_equal(device_alloc(bed.device, &here, 10000, PINNED), 0);
        assert_int_equal(device_alloc(bed.device, &back, 10000, PINNED), 0);
        assert_int_equal((uintptr_t)there % 64 + (uintptr_t)here % 64, 0);
        memset(here, 5, 10000);
        memset(back, 9, 10000);
        lane_copy(bed.lanes[0], there, here, 10000);
        lane_zero(bed.lanes[0], (char *)there + 100, 50);
        lane_copy(bed.lanes[0], back, there, 10000);
        assert_int_equal(lane_settle(bed.lanes[0]), 0);
        for (int i = 0; i < 10000; i++)
            assert_int_equal(((char *)back)[i], i >= 100 && i < 150 ? 0 : 5);
        device_free(bed.device, here);
        close_bed(&bed); /* frees the rest where the device has a list */
        if (which < 2) {
            free(there);
            free(back);
        }
    }
}

/* The signal that a child of this process dies of; 0: none. */
static int signal_of(void (*act)(struct bed *bed))
{
    pid_t child = fork();
    if (child == 0) {
        struct bed bed = open_device(2);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        assert_non_null(freopen("/dev/null", "w", stderr));
        act(&bed);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void read_device_memory(struct bed *bed)
{
    void *there = NULL;
    assert_int_equal(device_alloc(bed->device, &there, 100, ON_DEVICE), 0);
    lane_zero(bed->lanes[0], there, 100);
    assert_int_equal(lane_settle(bed->lanes[0]), 0);
    if (*(volatile char *)there == 0)
        _exit(1);
}
static void copy_from_the_host(struct bed *bed)
{
    void *there = NULL;
    char here[100] = {0};
    assert_int_equal(device_alloc(bed->device, &there, 100, ON_DEVICE), 0);
    lane_copy(bed->lanes[0], there, here, 100);
}
static void zero_the_host(struct bed *bed)
{
    static char here[100];
    lane_zero(bed->lanes[0], here, 100);
}
static void add_from_the_host(struct bed *bed)
{
    struct kernels *kernels = NULL;
    void *there = NULL;
    float here[4] = {0};
    assert_int_equal(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}), 0);
    assert_int_equal(device_alloc(bed->device, &there, 100, ON_DEVICE), 0);
    POST(kernels, bed->lanes[0], add, .y = there, .x = here, .count = 4);
}

TEST(test_async__the_host_cannot_read_memory_of_the_device)
{
    if (IS_SANITIZED)
        skip(); /* the sanitizer has the signal for itself */
    assert_int_equal(signal_of(read_device_memory), SIGSEGV);
}
TEST(test_async__a_host_pointer_where_a_device_pointer_belongs_aborts)
{
    if (IS_SANITIZED)
        skip();
    assert_int_equal(signal_of(copy_from_the_host), SIGABRT);
    assert_int_equal(signal_of(zero_the_host), SIGABRT);
    assert_int_equal(signal_of(add_from_the_host), SIGABRT);
}

TEST(test_async__new_memory_is_poisoned)
{
    struct bed bed = open_device(2);
    void *there = NULL, *here = NULL;
    assert_int_equal(device_alloc(bed.device, &there, 400, ON_DEVICE), 0);
    assert_int_equal(device_alloc(bed.device, &here, 400, PINNED), 0);
    lane_copy(bed.lanes[0], here, there, 400);
    assert_int_equal(lane_settle(bed.lanes[0]), 0);
    for (int i = 0; i < 100; i++)
        assert_true(isnan(((float *)here)[i]));
    close_bed(&bed);
}

/* ---- Operations ---- */

static struct engine engine_on(struct bed *bed, int lane, struct kernels *kernels)
{
    struct engine e = {.kernels = kernels};
    engine_lane(&e, bed->lanes[lane]);
    return e;
}

TEST(test_kernels__have_the_same_bits_on_every_kind_of_lane)
{
    struct engine alone = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    for (int device = 1; device < 3; device++) {
        struct bed bed = open_device(device);
        struct kernels_options options = {.num_threads = 2, .device = bed.device};
        struct engine late = {0};
        assert_int_equal(kernels_new(&late.kernels, &options), 0);
        engine_lane(&late, bed.lanes[0]);
        for (int which = 0; which < NUM_CASES; which++)
            same_case(&late, &alone, "on a late lane", which, 2, KERNEL_F32, 0);
        device_free(bed.device, late.scratch);
        kernels_free(late.kernels);
        close_bed(&bed);
    }
    free_engine(&alone);
}

/* Every case on three lanes at once. Cases settle by themselves, so each lane has a posting thread.
 */
struct sharer {
    pthread_t thread;
    struct engine engine; /* zero: it makes one itself */
    struct run runs[NUM_CASES];
};
static void *share(void *argument)
{
    struct sharer *sharer = argument;
    if (sharer->engine.kernels == NULL)
        sharer->engine = new_engine(KERNEL_BACKEND_BEST, NULL, 2);
    for (int round = 0; round < 3; round++)
        for (int which = 0; which < NUM_CASES; which++) {
            free_run(&sharer->runs[which]);
            sharer->runs[which] = run_case(&sharer->engine, which, kernel_shapes[4], KERNEL_F32, 0);
        }
    return NULL;
}

static void want_undisturbed(struct sharer *sharers, const char *what)
{
    struct engine alone = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    for (int i = 0; i < LANES_MAX; i++)
        assert_int_equal(pthread_create(&sharers[i].thread, NULL, share, &sharers[i]), 0);
    for (int i = 0; i < LANES_MAX; i++)
        pthread_join(sharers[i].thread, NULL);
    for (int which = 0; which < NUM_CASES; which++) {
        struct run want = run_case(&alone, which, kernel_shapes[4], KERNEL_F32, 0);
        for (int i = 0; i < LANES_MAX; i++) {
            same_bits(&sharers[i].runs[which], &want, what, which, 4, KERNEL_F32);
            free_run(&sharers[i].runs[which]);
        }
        free_run(&want);
    }
    free_engine(&alone);
}

/* A call that finds the pool taken works alone. */
TEST(test_kernels__lanes_that_share_them_do_not_disturb_each_other)
{
    static struct sharer sharers[LANES_MAX];
    struct bed bed = open_device(1);
    struct kernels *kernels = NULL;
    assert_int_equal(kernels_new(&kernels, &(struct kernels_options){.num_threads = 2}), 0);
    for (int i = 0; i < LANES_MAX; i++)
        sharers[i].engine = engine_on(&bed, i, kernels);
    want_undisturbed(sharers, "shared lanes");
    for (int i = 0; i < LANES_MAX; i++)
        device_free(bed.device, sharers[i].engine.scratch);
    kernels_free(kernels);
    close_bed(&bed);
}

TEST(test_kernels__rank_threads_do_not_disturb_each_other)
{
    static struct sharer sharers[LANES_MAX];
    want_undisturbed(sharers, "rank thread");
    for (int i = 0; i < LANES_MAX; i++)
        free_engine(&sharers[i].engine);
}

#define PRODUCTS 200
#define SIDE 48
TEST(test_kernels__products_of_two_lanes_keep_their_operands_apart)
{
    struct bed bed = open_device(1);
    struct kernels *kernels = NULL;
    struct run run = {.seed = 9, .device = bed.device};
    float *x[2], *w[2], *out[2][PRODUCTS], *want = new_buffer(&run, SIDE * SIDE, KERNEL_F32);
    float *all = new_buffer(&run, 2 * PRODUCTS * SIDE * SIDE, KERNEL_F32);
    assert_int_equal(kernels_new(&kernels, &(struct kernels_options){.num_threads = 1}), 0);
    struct engine engines[2] = {engine_on(&bed, 0, kernels), engine_on(&bed, 1, kernels)};
    struct kernel_linear args = {.rows = SIDE, .in = SIDE, .out_dim = SIDE};
    for (int lane = 0; lane < 2; lane++) {
        x[lane] = random_buffer(&run, SIDE * SIDE, KERNEL_F32);
        w[lane] = random_buffer(&run, SIDE * SIDE, KERNEL_F32);
    }
    for (int i = 0; i < 2 * PRODUCTS; i++) {
        int lane = i % 2;
        out[lane][i / 2] = all + (size_t)i * SIDE * SIDE;
        args.out = out[lane][i / 2];
        args.x = x[lane];
        args.w = w[lane];
        kernel_linear(kernels, bed.lanes[lane], &args);
    }
    for (int lane = 0; lane < 2; lane++)
        assert_int_equal(lane_settle(bed.lanes[lane]), 0);
    for (int lane = 0; lane < 2; lane++) {
        args.out = want;
        args.x = x[lane];
        args.w = w[lane];
        kernel_linear(kernels, bed.lanes[0], &args);
        assert_int_equal(lane_settle(bed.lanes[0]), 0);
        for (int i = 0; i < PRODUCTS; i++)
            assert_memory_equal(out[lane][i], want, SIDE * SIDE * sizeof(float));
    }
    for (int lane = 0; lane < 2; lane++)
        device_free(bed.device, engines[lane].scratch);
    free_run(&run);
    kernels_free(kernels);
    close_bed(&bed);
}

SUITE(NULL, NULL)
