/* ckptd_fill.c - a daemon whose pool is still being filled.
 *
 * Goal: meanwhile it answers, saves and loads. Ranks that describe themselves get the segments that
 * are ready. It shuts down on request without filling the rest. A pool that cannot be filled ends
 * it with the reason. Method: the linker sends fallocate() through this file, which delays the
 * memory of one segment until the test releases it, or refuses one. The first segment is delayed,
 * so that the background work stops with it. */
#include "tests/shims/segment.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#include <errno.h>

static struct peer peers[RANKS];

/* ---- between the pool and the system ---- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t asked;     /* segments whose memory was requested */
    bool holds_first;   /* until it is false */
    uint32_t refuse_at; /* that one, counted from 1; 0: none */
} filling = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (mode != 0 || !is_segment(fd))
        return __real_fallocate(fd, mode, offset, bytes);
    pthread_mutex_lock(&filling.mutex);
    uint32_t number = ++filling.asked;
    pthread_cond_broadcast(&filling.changed);
    while (number == 1 && filling.holds_first)
        pthread_cond_wait(&filling.changed, &filling.mutex);
    bool refused = number == filling.refuse_at;
    pthread_mutex_unlock(&filling.mutex);
    if (!refused)
        return __real_fallocate(fd, mode, offset, bytes);
    errno = ENOSPC;
    return -1;
}

/* ---- the bed ---- */

static void go_on(void)
{
    pthread_mutex_lock(&filling.mutex);
    filling.holds_first = false;
    pthread_cond_broadcast(&filling.changed);
    pthread_mutex_unlock(&filling.mutex);
}

static int set_up(void **state)
{
    bed_set_up_stopped(state);
    struct bed *bed = *state;
    bed->may_be_bare = true;
    bed->config.threads_workers = 2; /* one is held */
    filling.asked = filling.refuse_at = 0;
    filling.holds_first = true;
    return 0;
}

static int tear_down(void **state)
{
    go_on();
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

/* Its filling stops with nothing ready. */
static void start_held(struct bed *bed)
{
    assert_int_equal(bed_start(bed), 0);
    pthread_mutex_lock(&filling.mutex);
    while (filling.asked == 0)
        pthread_cond_wait(&filling.changed, &filling.mutex);
    pthread_mutex_unlock(&filling.mutex);
}

/* It is asked to shut down, and gets that memory only then: later requests come after the drain. */
static void end_thread_held(struct bed *bed)
{
    service_drain(bed->service);
    go_on();
    pthread_join(bed->thread, NULL);
    rpc_client_close(bed->rpc);
    bed->rpc = NULL;
}

/* ---- the tests ---- */

BED_TEST_BETWEEN(test_fill__it_answers_saves_and_loads_before_its_pool_is_full, set_up, tear_down)
{
    start_held(bed);
    assert_true(status_number(bed, "pool", "segments_ready") == 0);
    assert_true(status_number(bed, "pool", "bytes_ready") == 0);
    assert_true(status_number(bed, "pool", "bytes") == 24 << 20);
    assert_int_equal(open_attempt(bed, RANKS), 0);
    Holdfast__V1__ListReply *list = bed_list(bed);
    assert_int_equal(list->n_checkpoints, 0);
    FREE_REPLY(list);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peers[i].num_ahead, 0); /* nothing is ready, and no rank waits for it */
    assert_true(save_step(peers, RANKS, 1));
    double ready = status_number(bed, "pool", "segments_ready");
    assert_true(ready >= RANKS * peers[0].image_segments && ready < 24);
    peers_close(peers, RANKS);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_true(status_number(bed, "pool", "segments_ready") < 24);
    go_on();
    assert_true(wait_number(bed, "pool", "segments_ready", 24));
    assert_true(status_number(bed, "pool", "bytes_ready") == 24 << 20);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    bed_stop(bed); /* and from the disk, after a restart */
    filling.asked = 0;
    filling.holds_first = true;
    start_held(bed);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    ready = status_number(bed, "pool", "segments_ready");
    assert_true(ready > 0 && ready < 24);
}

BED_TEST_BETWEEN(test_fill__ranks_are_lent_what_is_ready_when_they_describe_themselves, set_up,
                 tear_down)
{
    start_held(bed);
    assert_int_equal(open_attempt(bed, 1), 0);
    assert_int_equal(peers_open(peers, bed, 1), 0);
    assert_true(save_step(peers, 1, 1)); /* its segments are ready now, and the image is kept */
    uint32_t image = peers[0].image_segments;
    peers_close(peers, 1);
    go_on();
    assert_true(wait_number(bed, "pool", "segments_ready", 24));
    assert_int_equal(peers_open(peers, bed, 1), 0);
    assert_int_equal(peers[0].num_ahead, 2 * image);
}

BED_TEST_BETWEEN(test_fill__too_few_that_are_ready_stay_so_for_a_load, set_up, tear_down)
{
    uint32_t made[1];
    start_held(bed);
    struct pool *pool = bed->service->pool;
    assert_int_equal(open_attempt(bed, 1), 0);
    made[0] = 0; /* as a load that came and ended leaves it */
    assert_int_equal(pool_clean(pool, made, 1), 0);
    assert_int_equal(peers_open(peers, bed, 1), 0);
    assert_true(peers[0].image_segments > 1);
    assert_int_equal(peers[0].num_ahead, 0);
    end_thread_held(bed);
    const struct pool_owner load = {.run = 1};
    assert_int_equal(pool_ready_for(pool, load), 2); /* and the one that was held */
    bed_close_service(bed);
}

BED_TEST_BETWEEN(test_fill__told_to_end_it_does_not_fill_the_rest, set_up, tear_down)
{
    start_held(bed);
    end_thread_held(bed);
    assert_int_equal(pool_ready_count(bed->service->pool), 1);
    bed_close_service(bed);
}

BED_TEST_BETWEEN(test_fill__a_pool_that_cannot_be_filled_ends_it_with_the_reason, set_up, tear_down)
{
    go_on();
    filling.refuse_at = 7;
    assert_int_equal(service_open(&bed->service, &bed->config), 0); /* it had begun to answer */
    assert_int_equal(service_run(bed->service), ERR_MEMORY);
    assert_non_null(strstr(report_message(), "memory of the pool"));
    assert_non_null(strstr(report_hint(), "memory.pool_bytes"));
    assert_int_equal(pool_ready_count(bed->service->pool), 6);
    bed_close_service(bed);
}

SUITE(NULL, NULL)
