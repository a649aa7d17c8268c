/* ckptd_busy.c - saves that overlap, and ranks that find every image in use.
 *
 * Goal: two saves of a run are in work at once and are committed in their order. A third is refused
 * at once for lack of an image, waits as long as its ranks allow, or takes the image of the second.
 * A last save comes before others. The answer names the true cause that ended a wait. Method: a
 * service in this process (ckptd_bed.h) in which rank 0 is two saves ahead of rank 1, so that both
 * its images stay in use until the test starts rank 1. The store delays each request for a random
 * time (the fault back-end): the later save is often on disk first. */
#include "proto/base/clock.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#include <stdatomic.h>

#define DELAY_US 60000 /* of each request of the store, at most */

static struct peer peers[RANKS];

/* ---- the bed ---- */

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    snprintf(bed->config.store, sizeof bed->config.store, "fault:seed=7,delay_us=%d:local:%s/store",
             DELAY_US, bed->root);
    int error = bed_start(bed);
    if (error == 0)
        error = open_attempt(bed, RANKS);
    return error != 0 ? error : peers_open(peers, bed, RANKS);
}

static int tear_down(void **state)
{
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

/* Rank 0 ends the saves of `step` and the next one, rank 1 only begins the first: both images of
 * rank 0 stay in use. */
static void get_ahead(uint64_t step)
{
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peer_begin(&peers[i], step), 0);
    peer_finish(&peers[0], step);
    assert_int_equal(peer_begin(&peers[0], step + 1), 0);
    peer_finish(&peers[0], step + 1);
}

/* Rank 1 comes after. */
static void catch_up(uint64_t step)
{
    peer_finish(&peers[1], step);
    assert_int_equal(peer_begin(&peers[1], step + 1), 0);
    peer_finish(&peers[1], step + 1);
}

/* A BeginSave that waits, on a separate thread. */
struct waiting {
    struct peer *peer;
    uint64_t step;
    uint32_t busy_ms;
    int error;
    int64_t waited_ms;
    pthread_t thread;
};

static void *begin_main(void *argument)
{
    struct waiting *waiting = argument;
    int64_t begun = clock_ms();
    waiting->error = peer_begin_within(waiting->peer, waiting->step, waiting->busy_ms);
    waiting->waited_ms = clock_ms() - begun;
    return NULL;
}

static void start_wait(struct waiting *waiting, struct peer *peer, uint64_t step)
{
    *waiting = (struct waiting){.peer = peer, .step = step, .busy_ms = 15000};
    assert_int_equal(pthread_create(&waiting->thread, NULL, begin_main, waiting), 0);
}

/* Until a BeginSave is parked; `is_last`: one of a last save. */
static void await_parked(struct bed *bed, bool is_last)
{
    for (bool is_there = false; !is_there; sleep_ms(1)) {
        bed_hold(bed);
        is_there = is_last ? bed->service->num_last_waiting > 0 : bed->service->beginnings != NULL;
        bed_go_on(bed);
    }
}

static uint32_t num_in_work(struct bed *bed)
{
    json_t *status = bed_status(bed);
    uint32_t count = (uint32_t)json_array_size(json_object_get(status, "saves"));
    json_decref(status);
    return count;
}

static uint64_t num_commits(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t count = reply->n_checkpoints;
    FREE_REPLY(reply);
    return count;
}

/* While this is locked no memory is cleaned for a save. */
static pthread_mutex_t cleaning = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool has_asked_to_clean;

int __real_pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count);
int __wrap_pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count);
int __wrap_pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count)
{
    atomic_store(&has_asked_to_clean, true);
    pthread_mutex_lock(&cleaning);
    int error = __real_pool_clean(pool, segments, count);
    pthread_mutex_unlock(&cleaning);
    return error;
}

BED_TEST_BETWEEN(test_busy__two_saves_are_in_work_at_once_and_commit_in_order, set_up, tear_down)
{
    for (uint64_t step = 1; step <= 9; step += 2) {
        get_ahead(step);
        assert_int_equal(num_in_work(bed), 2);
        assert_int_equal(num_commits(bed), step - 1);
        catch_up(step);
        /* When the later one is committed, the earlier is. */
        assert_int_equal(wait_save(bed, step + 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
        assert_int_equal(num_commits(bed), step + 1);
    }
    assert_int_equal(load_all(bed, 9, NULL), 0);
    assert_int_equal(load_all(bed, 10, NULL), 0);
}

BED_TEST_BETWEEN(test_busy__a_third_save_is_told_at_once_that_there_is_no_image, set_up, tear_down)
{
    get_ahead(1);
    assert_int_equal(peer_begin(&peers[0], 3), ERR_BUSY);
    assert_non_null(strstr(report_message(), "both images of rank 0 are being written"));
    catch_up(1);
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_true(save_step(peers, RANKS, 3)); /* the skipped save harms no later one */
}

BED_TEST_BETWEEN(test_busy__a_third_save_that_may_wait_begins_when_the_first_is_committed, set_up,
                 tear_down)
{
    struct waiting waiting;
    get_ahead(1);
    start_wait(&waiting, &peers[0], 3);
    await_parked(bed, false);
    assert_int_equal(num_in_work(bed), 2);
    catch_up(1);
    pthread_join(waiting.thread, NULL);
    assert_int_equal(waiting.error, 0);
    assert_true(num_commits(bed) >= 1);
    assert_int_equal(peer_begin_within(&peers[1], 3, 15000), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], 3);
    assert_int_equal(wait_save(bed, 3, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_int_equal(num_commits(bed), 3);
    assert_int_equal(load_all(bed, 3, NULL), 0);
}

/* A rank has found no image. *out_step gets the step that makes way. */
static int call_make_way(struct peer *peer, uint64_t *out_step)
{
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    Holdfast__V1__AbortSaveReply *reply;
    request.session = peer->token;
    request.waiting = true;
    int error = call(peer->bed, "AbortSave", &request.base,
                     &holdfast__v1__abort_save_reply__descriptor, &reply);
    if (error == 0) {
        *out_step = reply->step;
        FREE_REPLY(reply);
    }
    return error;
}

BED_TEST_BETWEEN(test_busy__a_third_save_takes_the_image_of_the_second_that_makes_way, set_up,
                 tear_down)
{
    uint64_t step = 0;
    char reason[512];
    get_ahead(1);
    assert_int_equal(call_make_way(&peers[1], &step), 0);
    assert_int_equal(step, 2);
    assert_int_equal(ask_save(bed, 2, 0, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_non_null(strstr(reason, "made way for a later save"));
    assert_int_equal(call_make_way(&peers[0], &step), ERR_BUSY); /* the first continues */
    json_t *status = bed_status(bed), *totals = json_object_get(status, "since_start");
    assert_true(json_is_integer(json_object_get(totals, "failed_saves")));
    assert_int_equal(json_integer_value(json_object_get(totals, "failed_saves")), 0);
    json_decref(status);
    assert_int_equal(peer_begin_within(&peers[0], 3, 15000), 0);
    peer_finish(&peers[1], 1);
    assert_int_equal(peer_begin_within(&peers[1], 3, 15000), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], 3);
    assert_int_equal(wait_save(bed, 3, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_int_equal(num_commits(bed), 2);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_int_equal(load_all(bed, 3, NULL), 0);
}

static void let_time_pass(struct bed *bed)
{
    (void)bed;
}

static void pass_the_step_by(struct bed *bed)
{
    (void)bed;
    assert_int_equal(peer_begin(&peers[1], 4), 0); /* 3 can never be complete */
}

static void hang_up(struct bed *bed)
{
    (void)bed;
    shutdown(peers[0].socket, SHUT_RDWR);
}

static void end_the_daemon(struct bed *bed)
{
    service_drain(bed->service);
}

TEST(test_busy__a_wait_ends_with_its_time_its_step_its_rank_and_the_daemon)
{
    static const struct {
        void (*end)(struct bed *bed);
        uint32_t busy_ms;
        int error;
    } ways[] = {{let_time_pass, 200, ERR_BUSY},
                {pass_the_step_by, 15000, ERR_ABORTED},
                {hang_up, 15000, ERR_NOT_FOUND},
                {end_the_daemon, 15000, ERR_UNAVAILABLE}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct waiting waiting = {.peer = &peers[0], .step = 3, .busy_ms = ways[i].busy_ms};
        assert_int_equal(set_up(state), 0);
        get_ahead(1);
        assert_int_equal(pthread_create(&waiting.thread, NULL, begin_main, &waiting), 0);
        await_parked(*state, false);
        ways[i].end(*state);
        pthread_join(waiting.thread, NULL);
        assert_int_equal(waiting.error, ways[i].error);
        assert_true(ways[i].busy_ms == 200 ? waiting.waited_ms >= 200 : waiting.waited_ms < 15000);
        tear_down(state);
    }
}

TEST_BETWEEN(test_busy__a_second_call_takes_the_place_of_the_one_that_waits, set_up, tear_down)
{
    struct waiting waiting;
    struct peer again;
    get_ahead(1);
    again = peers[0];
    start_wait(&waiting, &peers[0], 3);
    await_parked(*state, false);
    assert_int_equal(peer_begin(&again, 3), ERR_BUSY);
    pthread_join(waiting.thread, NULL);
    assert_int_equal(waiting.error, ERR_ABORTED);
}

/* A rank with one window, whose memory another run had. */
BED_TEST_BETWEEN(test_busy__a_second_call_gets_the_memory_that_is_made_for_the_first, set_up,
                 tear_down)
{
    struct waiting first, second;
    peers_close(peers, RANKS);
    bed_stop(bed);
    bed->config.pool_bytes = 2 * MIB;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    peer_close(&peers[0]);
    bed->run = "other";
    bed_open_world(bed, peers, 1);
    peers[1] = peers[0]; /* the same session */
    atomic_store(&has_asked_to_clean, false);
    pthread_mutex_lock(&cleaning);
    start_wait(&first, &peers[0], 1);
    while (!atomic_load(&has_asked_to_clean))
        sleep_ms(1);
    start_wait(&second, &peers[1], 1);
    sleep_ms(50); /* until that call has come */
    pthread_mutex_unlock(&cleaning);
    pthread_join(first.thread, NULL);
    pthread_join(second.thread, NULL);
    assert_int_equal(first.error, ERR_ABORTED);
    assert_int_equal(second.error, 0);
    assert_true(second.waited_ms < 10000); /* it was woken */
    peers[0] = (struct peer){.socket = -1, .event_fd = -1};
}

/* A pool of so much, of which run "bed" has an image of 5 MiB that it does not fill. */
static void share_pool(struct bed *bed, int64_t mib)
{
    peers_close(peers, RANKS);
    bed_stop(bed);
    bed->config.pool_bytes = mib * MIB;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
}

static void open_run(struct bed *bed, const char *name, struct peer *ranks, uint32_t world_size)
{
    bed->run = name;
    bed_open_world(bed, ranks, world_size);
    bed->run = RUN;
}

BED_TEST_BETWEEN(test_busy__a_last_save_comes_before_those_that_wait_longer, set_up, tear_down)
{
    struct peer other, last;
    struct waiting before, after;
    share_pool(bed, 8);
    open_run(bed, "other", &other, 1);
    assert_int_equal(peer_begin(&other, 1), ERR_BUSY);
    assert_non_null(strstr(report_message(),
                           "; run bed step 1 holds 5242880 bytes and waits for its rank to copy"));
    start_wait(&before, &other, 1);
    await_parked(bed, false);
    open_run(bed, "last", &last, 1);
    last.is_last = true;
    start_wait(&after, &last, 1);
    await_parked(bed, true);
    peer_finish(&peers[0], 1);
    pthread_join(after.thread, NULL);
    assert_int_equal(after.error, 0);
    assert_int_equal(pthread_tryjoin_np(before.thread, NULL), EBUSY);
    peer_finish(&last, 1);
    pthread_join(before.thread, NULL);
    assert_int_equal(before.error, 0);
    peer_close(&other);
    peer_close(&last);
}

BED_TEST_BETWEEN(test_busy__no_save_begins_while_a_last_one_lacks_memory_but_ranks_join, set_up,
                 tear_down)
{
    struct peer joined[RANKS], others[RANKS], last;
    struct waiting waiting;
    share_pool(bed, 12);
    open_run(bed, "joined", joined, RANKS);
    open_run(bed, "others", others, RANKS);
    open_run(bed, "last", &last, 1);
    assert_int_equal(peer_begin(&joined[0], 1), 0); /* 3 MiB; 4 are left */
    last.is_last = true;
    start_wait(&waiting, &last, 1);
    await_parked(bed, true);
    assert_int_equal(peer_begin(&others[0], 1), ERR_BUSY);
    assert_non_null(strstr(report_message(), "the last save of another run waits for memory"));
    assert_int_equal(peer_begin(&joined[1], 1), 0);
    peer_finish(&peers[0], 1);
    pthread_join(waiting.thread, NULL);
    assert_int_equal(waiting.error, 0);
    peers_close(joined, RANKS);
    peers_close(others, RANKS);
    peer_close(&last);
}

SUITE(NULL, NULL)
