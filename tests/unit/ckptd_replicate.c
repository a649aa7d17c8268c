/* ckptd_replicate.c - how the daemon shuts down.
 *
 * Goal: saves in work are finished, connected ranks may save a last time, other requests are
 * refused. The shutdown completes: a rank that is idle or never ends its save does not delay it.
 * Method: the daemon inside the test with raw peers (ckptd_bed.h), told to shut down in the middle
 * of their work. */
#include "proto/base/clock.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

static struct peer peers[RANKS];

static void *finish_late(void *peer)
{
    sleep_ms(200);
    peer_finish(peer, 1);
    return NULL;
}

BED_TEST(test_drain__a_drain_finishes_the_saves_in_work_and_takes_no_new_ones)
{
    pthread_t thread;
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    service_drain(bed->service);
    sleep_ms(50);
    assert_int_equal(peer_begin(&peers[0], 2), ERR_UNAVAILABLE);
    assert_int_equal(open_attempt(bed, 1), ERR_UNAVAILABLE);
    pthread_create(&thread, NULL, finish_late, &peers[0]);
    pthread_join(bed->thread, NULL); /* it ends by itself */
    pthread_join(thread, NULL);
    rpc_client_close(bed->rpc);
    service_close(bed->service);
    bed->service = NULL;
    peers_close(peers, 1);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* The service with a time for last saves, and its ranks. */
static void restart_with_last_saves(struct bed *bed, int64_t ms, uint32_t world_size)
{
    bed_stop(bed);
    bed->config.limit_last_save_ms = ms;
    bed->config.limit_drain_ms = 20000;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, world_size);
}

BED_TEST(test_drain__a_drain_takes_a_last_save_of_its_ranks_and_ends_behind_it)
{
    restart_with_last_saves(bed, 15000, RANKS);
    int64_t start = clock_ms();
    service_drain(bed->service);
    sleep_ms(200); /* the step that the ranks are in */
    assert_int_equal(open_attempt(bed, 1), ERR_UNAVAILABLE);
    assert_true(save_step(peers, RANKS, 1));
    peers_close(peers, RANKS);
    pthread_join(bed->thread, NULL); /* it shuts down by itself, without waiting for other ranks */
    assert_true(clock_ms() - start < 10000);
    rpc_client_close(bed->rpc);
    bed_close_service(bed);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

BED_TEST(test_drain__ranks_join_a_save_that_another_began_before_the_drain)
{
    restart_with_last_saves(bed, 0, RANKS);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    service_drain(bed->service);
    sleep_ms(100);
    assert_int_equal(peer_begin(&peers[1], 2), ERR_UNAVAILABLE);
    assert_int_equal(peer_begin(&peers[1], 1), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], 1);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    bed_stop(bed);
    peers_close(peers, RANKS);
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, 1, NULL), 0);
}

/* One rank, which has saved and is gone, is idle, or never ends its save. */
BED_TEST(test_drain__a_drain_waits_for_idle_ranks_and_saves_only_so_long)
{
    static const struct {
        bool is_gone, is_saving;
        int64_t last_save_ms, drain_ms, least_ms;
    } rows[] = {
        {true, false, 15000, 20000, 0}, {false, false, 300, 20000, 290}, {false, true, 0, 200, 0}};
    uint64_t step = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        restart_with_last_saves(bed, rows[i].last_save_ms, 1);
        if (rows[i].is_gone) {
            assert_true(save_step(peers, 1, 1));
            peers_close(peers, 1);
        }
        bed->config.limit_drain_ms = rows[i].drain_ms;
        if (rows[i].is_saving)
            assert_int_equal(peer_begin(&peers[0], 2), 0);
        int64_t start = clock_ms();
        bed_stop(bed);
        int64_t took = clock_ms() - start;
        assert_true(took >= rows[i].least_ms && took < 5000);
        if (!rows[i].is_gone)
            peers_close(peers, 1);
        assert_int_equal(bed_start(bed), 0);
    }
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_int_equal(step, 1);
}

int main(void)
{
    log_setup("ckptd_replicate", NULL);
    return suite_run(NULL, NULL);
}
