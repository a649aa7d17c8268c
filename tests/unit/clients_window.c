/* clients_window.c - libckpt with a ckptd whose memory is smaller than one image of every rank.
 *
 * Goal: worlds of any size save through windows and load the saves of others in parts, every
 * element right, with a pool that holds a part of one shard. A rank that copies in another order
 * than the image's gets an error that names the call for the order. The true cause that ended a
 * wait for room is reported. Method: a real ckptd with 3 MiB for a model of 7 MiB
 * (clients_bed.h). */
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

/* A ckptd that does not answer yet would not shut down properly on request. */
static void await_ckptd(const struct bed *bed)
{
    ckpt_close(open_single(bed, "await"));
}

static int open_small(void **state)
{
    int error = bed_open_with(state, "3MiB");
    if (error == 0)
        await_ckptd(*state);
    return error;
}

/* ---- saving in order, by any world ---- */

static int work_save_in_order(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                              uint32_t rank)
{
    struct ckpt_save *save;
    for (uint32_t i = 0; i < TENSORS; i++)
        values(&tensors[i], i, group->step, true);
    if (ckpt_save_begin(ckpt, &save, group->step, rank == 0 ? "{\"mark\":1}" : NULL) != 0)
        return rank_failed(group, "begin", rank);
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint32_t index = ckpt_save_order(ckpt, i);
        ckpt_save_copy(save, index);
        if (tensors[index].data != NULL) /* the copy is the save's: this must not reach it */
            memset(tensors[index].data, 0xee,
                   tensor_elements(&tensors[index]) * model[index].bytes);
    }
    if (ckpt_save_end(save) != 0)
        return rank_failed(group, "end", rank);
    if (ckpt_save_wait(ckpt, group->step, 30000) != 0)
        return rank_failed(group, "wait", rank);
    return 0;
}

static void save_in_order(const struct bed *bed, uint32_t world, uint64_t seed, uint64_t step)
{
    struct group group = make_group(bed, world, seed, step);
    group.work = work_save_in_order;
    assert_int_equal(run_group(&group), 0);
}

#define WINDOW_TEST(name) TEST_WITH(struct bed *bed, name, open_small, bed_close)

WINDOW_TEST(test_window__every_world_loads_what_every_world_saved)
{
    static const uint32_t worlds[] = {1, 2, 3};
    uint64_t step = 0;
    for (uint32_t i = 0; i < 3; i++) {
        save_in_order(bed, worlds[i], 40 + i, ++step);
        for (uint32_t j = 0; j < 3; j++) {
            struct group loaded = load_world(bed, worlds[j], 60 + 3 * i + j, step);
            assert_true(loaded.bytes_local > 0);
        }
    }
    load_world(bed, 2, 80, 1); /* an older one */
}

/* ---- the order ---- */

/* A matrix of 2 MiB and one of 4 MiB; the first one in the image is described last. */
struct pair {
    struct ckpt *ckpt;
    struct ckpt_tensor tensors[2];
    float *data[2];
};

static void open_pair(struct pair *pair, const struct bed *bed, uint32_t rank, uint32_t world,
                      uint32_t busy_ms)
{
    static const char *const names[2] = {"b", "a"};
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t rows = (i + 1) * 512;
        pair->data[i] = calloc(rows * 1024, sizeof(float));
        pair->tensors[i] = (struct ckpt_tensor){.name = names[i],
                                                .dtype = "F32",
                                                .dims = 2,
                                                .shape = {world * rows, 1024},
                                                .offset = {rank * rows, 0},
                                                .extent = {rows, 1024},
                                                .data = pair->data[i]};
    }
    assert_int_equal(ckpt_open(&pair->ckpt, &(struct ckpt_options){.server = bed->server,
                                                                   .run = "pair",
                                                                   .rank = rank,
                                                                   .world_size = world,
                                                                   .busy_ms = busy_ms}),
                     0);
}

static void close_pair(struct pair *pair)
{
    ckpt_close(pair->ckpt);
    free(pair->data[0]);
    free(pair->data[1]);
}

static void describe_alone(struct pair *pair)
{
    uint64_t attempt;
    assert_int_equal(ckpt_attempt_open(pair->ckpt, &attempt, NULL, NULL), 0);
    assert_int_equal(ckpt_describe(pair->ckpt, attempt, pair->tensors, 2), 0);
}

WINDOW_TEST(test_window__another_order_is_refused_and_names_the_call)
{
    struct pair pair;
    struct ckpt_save *save;
    open_pair(&pair, bed, 0, 1, 5000);
    describe_alone(&pair);
    assert_int_equal(ckpt_save_order(pair.ckpt, 0), 1);
    assert_int_equal(ckpt_save_order(pair.ckpt, 1), 0);
    assert_int_equal(ckpt_save_begin(pair.ckpt, &save, 1, NULL), 0);
    assert_int_equal(ckpt_save_copy(save, 0), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "tensor b is beyond the window of 3145728 bytes"));
    assert_non_null(strstr(ckpt_error(), "ckpt_save_order"));
    assert_int_equal(ckpt_save_end(save), CKPT_INVALID);
    assert_int_equal(ckpt_save_begin(pair.ckpt, &save, 2, NULL), 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(ckpt_save_copy(save, ckpt_save_order(pair.ckpt, i)), 0);
    assert_int_equal(ckpt_save_end(save), 0);
    assert_int_equal(ckpt_save_wait(pair.ckpt, 2, 30000), 0);
    close_pair(&pair);
}

/* ---- ends of a wait for room ---- */

struct ending {
    pid_t ckptd;
    pthread_t thread;
};

static void *kill_soon(void *argument)
{
    const struct ending *ending = argument;
    sleep_ms(300);
    kill(ending->ckptd, SIGKILL);
    return NULL;
}

WINDOW_TEST(test_window__a_ckptd_that_dies_ends_the_wait)
{
    struct pair pair;
    struct ckpt_save *save;
    struct ending ending = {.ckptd = bed->ckptd};
    open_pair(&pair, bed, 0, 1, 0);
    describe_alone(&pair);
    assert_int_equal(ckpt_save_begin(pair.ckpt, &save, 1, NULL), 0);
    assert_true(stop_ckptd(bed)); /* the window stands still */
    assert_int_equal(pthread_create(&ending.thread, NULL, kill_soon, &ending), 0);
    uint64_t begun = now_ns();
    assert_int_equal(ckpt_save_copy(save, 1), CKPT_UNAVAILABLE);
    uint64_t waited_ms = (now_ns() - begun) / 1000000;
    pthread_join(ending.thread, NULL);
    assert_true(waited_ms >= 290 && waited_ms < 5000);
    assert_int_equal(ckpt_save_end(save), CKPT_UNAVAILABLE);
    restart_ckptd(bed, SIGKILL);
    await_ckptd(bed);
    close_pair(&pair);
}

/* From here on ckptd's store is one on which every request takes up to `delay_ms`. */
static void take_slow_disk(struct bed *bed, const char *pool, unsigned delay_ms)
{
    end_process(&bed->ckptd, SIGKILL);
    snprintf(bed->store, sizeof bed->store, "fault:delay_us=%u000:local:%s/store", delay_ms,
             bed->root);
    bed->pool = pool;
    start_ckptd(bed);
    await_ckptd(bed);
}

/* A ckptd on the slow one might not end in time. */
static void leave_slow_disk(struct bed *bed)
{
    end_process(&bed->ckptd, SIGKILL);
    snprintf(bed->store, sizeof bed->store, "%s/store", bed->root);
    start_ckptd(bed);
    await_ckptd(bed);
}

/* The result of a save's copies; *out_ms: the time of the copies and the end. */
static int save_pair(struct pair *pair, uint64_t step, uint64_t *out_ms)
{
    struct ckpt_save *save;
    uint64_t begun = now_ns();
    assert_int_equal(ckpt_save_begin(pair->ckpt, &save, step, NULL), 0);
    int error = ckpt_save_copy(save, 1);
    if (error == 0)
        error = ckpt_save_copy(save, 0);
    if (error != 0) {
        assert_non_null(strstr(ckpt_error(), "in the save of step") != NULL
                            ? strstr(ckpt_error(), "did not move for")
                            : strstr(ckpt_error(), "the disk is too slow: the save of step"));
        assert_int_equal(ckpt_save_end(save), error);
    } else {
        assert_int_equal(ckpt_save_end(save), 0);
    }
    *out_ms = (now_ns() - begun) / 1000000;
    return error;
}

/* A save through a window, on a disk that does not respond, of a rank that may wait for `busy_ms`:
 * returns the milliseconds until it was aborted. */
static uint64_t give_up_save(struct bed *bed, uint32_t busy_ms)
{
    struct pair pair;
    uint64_t ms;
    take_slow_disk(bed, "3MiB", 2 * 3600 * 1000);
    open_pair(&pair, bed, 0, 1, busy_ms);
    describe_alone(&pair);
    assert_int_equal(save_pair(&pair, 1, &ms), CKPT_TIMEOUT);
    leave_slow_disk(bed);
    close_pair(&pair);
    return ms;
}

WINDOW_TEST(test_window__a_disk_that_stands_still_costs_the_save_and_two_seconds)
{
    assert_in_range(give_up_save(bed, 0), 1900, 10000);
}

WINDOW_TEST(test_window__a_rank_that_may_wait_waits_for_a_disk_so_long)
{
    assert_in_range(give_up_save(bed, 4000), 3900, 12000);
}

/* Each move of the window comes in time, all of them together do not: 6 MiB through a window of 1
 * MiB, which usually take 5 s, and at least 2.4. */
WINDOW_TEST(test_window__a_disk_that_crawls_has_a_bound_for_the_whole_save)
{
    struct pair pair;
    uint64_t ms = 0;
    int error = 0;
    take_slow_disk(bed, "1MiB", 1900);
    open_pair(&pair, bed, 0, 1, 0);
    describe_alone(&pair);
    for (uint64_t step = 1; step <= 4 && error == 0; step++) {
        error = save_pair(&pair, step, &ms);
        ckpt_save_wait(pair.ckpt, step, 30000);
    }
    assert_int_equal(error, CKPT_TIMEOUT);
    assert_true(ms >= 1900 && ms < 8000);
    leave_slow_disk(bed);
    close_pair(&pair);
}

struct describing {
    struct pair *pair;
    uint64_t attempt;
    int error;
    pthread_t thread;
};

static void *describe_main(void *argument)
{
    struct describing *describing = argument;
    describing->error =
        ckpt_describe(describing->pair->ckpt, describing->attempt, describing->pair->tensors, 2);
    return NULL;
}

static void open_two(struct pair pairs[2], const struct bed *bed, uint32_t busy_ms)
{
    struct describing describing[2];
    uint64_t attempt;
    for (uint32_t i = 0; i < 2; i++)
        open_pair(&pairs[i], bed, i, 2, busy_ms);
    assert_int_equal(ckpt_attempt_open(pairs[0].ckpt, &attempt, NULL, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        describing[i] = (struct describing){.pair = &pairs[i], .attempt = attempt};
        pthread_create(&describing[i].thread, NULL, describe_main, &describing[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        pthread_join(describing[i].thread, NULL);
        assert_int_equal(describing[i].error, 0);
    }
}

WINDOW_TEST(test_window__a_save_that_another_rank_gave_up_ends_the_wait)
{
    struct pair pairs[2];
    struct ckpt_save *saves[2];
    open_two(pairs, bed, 0);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(ckpt_save_begin(pairs[i].ckpt, &saves[i], 1, NULL), 0);
    ckpt_save_abort(saves[1]);
    assert_int_equal(ckpt_save_copy(saves[0], 1), CKPT_ABORTED);
    assert_int_equal(ckpt_save_end(saves[0]), CKPT_ABORTED);
    for (uint32_t i = 0; i < 2; i++)
        close_pair(&pairs[i]);
}

/* ---- waiting for an image ---- */

struct later {
    struct ckpt_save *save;
    int error;
    pthread_t thread;
};

static void *finish_later(void *argument)
{
    struct later *later = argument;
    sleep_ms(300);
    for (uint32_t i = 0; i < 2; i++)
        ckpt_save_copy(later->save, i);
    later->error = ckpt_save_end(later->save);
    return NULL;
}

/* Rank 0 is two saves ahead of rank 1: both its images wait for rank 1. */
static void get_ahead(struct pair pairs[2], struct ckpt_save *saves[2])
{
    struct ckpt_save *save;
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(ckpt_save_begin(pairs[i].ckpt, &saves[i], 1, NULL), 0);
    for (uint64_t step = 1; step <= 2; step++) {
        save = saves[0];
        if (step == 2)
            assert_int_equal(ckpt_save_begin(pairs[0].ckpt, &save, step, NULL), 0);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(ckpt_save_copy(save, i), 0);
        assert_int_equal(ckpt_save_end(save), 0);
    }
}

WINDOW_TEST(test_window__begin_waits_for_an_image_as_long_as_it_may)
{
    struct pair pairs[2];
    struct ckpt_save *saves[2], *third;
    struct later later = {0};
    bed->pool = "64MiB"; /* whole images, two of each rank */
    restart_ckptd(bed, SIGTERM);
    open_two(pairs, bed, 200);
    get_ahead(pairs, saves);
    uint64_t begun = now_ns();
    assert_int_equal(ckpt_save_begin(pairs[0].ckpt, &third, 3, NULL), CKPT_BUSY);
    assert_true(now_ns() - begun >= 200 * 1000000ull);
    for (uint32_t i = 0; i < 2; i++)
        close_pair(&pairs[i]);

    open_two(pairs, bed, 20000);
    get_ahead(pairs, saves);
    later.save = saves[1];
    assert_int_equal(pthread_create(&later.thread, NULL, finish_later, &later), 0);
    begun = now_ns();
    assert_int_equal(ckpt_save_begin(pairs[0].ckpt, &third, 3, NULL), 0);
    assert_true(now_ns() - begun < 20000 * 1000000ull);
    pthread_join(later.thread, NULL);
    assert_int_equal(later.error, 0);
    ckpt_save_abort(third);
    assert_int_equal(ckpt_save_wait(pairs[0].ckpt, 1, 30000), 0);
    for (uint32_t i = 0; i < 2; i++)
        close_pair(&pairs[i]);
}

SUITE(NULL, NULL)
