/* ckptd_health.c - whether ckptd says that it can save.
 *
 * Goal: health turns false with the reason before a save that would not fit, and at the first save
 * that the store or ckptd failed, until that run commits again. A save that its ranks abort, or
 * report as failed, does not count against the store; Status and grpc.health.v1 say the same.
 * Method: a real service on the bed, whose share of the disk can suddenly become zero. */
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

static struct peer peers[RANKS];

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->config.limit_look_ms = 10;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    return 0;
}

static int tear_down(void **state)
{
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

/* grpc.health.v1; its messages have the wire form of these. */
static bool says_serving(struct bed *bed)
{
    Holdfast__V1__ListRequest request = HOLDFAST__V1__LIST_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.run = "holdfast.v1.Checkpoint";
    assert_int_equal(rpc_client_call(bed->rpc, "/grpc.health.v1.Health/Check", &request.base,
                                     &holdfast__v1__hello_reply__descriptor, &answer, CALL_MS),
                     0);
    bool serving = ((const Holdfast__V1__HelloReply *)answer)->protocol == 1;
    protobuf_c_message_free_unpacked(answer, NULL);
    return serving;
}

/* True when both report that, and the text contains `reason`. */
static bool looks(struct bed *bed, bool saving, const char *reason)
{
    json_t *status = bed_status(bed);
    const json_t *health = json_object_get(status, "health");
    bool is_it = json_is_true(json_object_get(health, "saving")) == saving &&
                 strstr(json_string_value(json_object_get(health, "reason")), reason) != NULL &&
                 says_serving(bed) == saving;
    json_decref(status);
    return is_it;
}

static bool comes_to(struct bed *bed, bool saving, const char *reason)
{
    for (int ms = 0; ms < BED_PATIENCE_MS; ms += 10) {
        if (looks(bed, saving, reason))
            return true;
        sleep_ms(10);
    }
    return false;
}

static void set_usable(struct bed *bed, double fraction)
{
    bed_hold(bed);
    bed->service->ledger.usable_fraction = fraction;
    bed_go_on(bed);
}

/* Of the first run; -1: not known. */
static double number_of_run(struct bed *bed, const char *name)
{
    json_t *status = bed_status(bed);
    const json_t *run = json_array_get(json_object_get(status, "runs"), 0);
    const json_t *value = json_object_get(run, name);
    double number = json_is_number(value) ? json_number_value(value) : -1;
    json_decref(status);
    return number;
}

static int failures_in_row(struct bed *bed)
{
    return (int)number_of_run(bed, "failures_in_row");
}

#define HEALTH_TEST(name) TEST_WITH(struct bed *bed, name, set_up, tear_down)

HEALTH_TEST(test_health__false_before_the_next_save_would_not_fit)
{
    assert_true(looks(bed, true, ""));
    set_usable(bed, 0);
    assert_true(comes_to(bed, false, "the next save of run bed would be refused: a checkpoint of"));
    assert_int_equal(failures_in_row(bed), 0);
    set_usable(bed, 1);
    assert_true(comes_to(bed, true, ""));
    bed_hold(bed);
    bed->config.limit_checkpoints = 0;
    bed_go_on(bed);
    assert_true(comes_to(bed, false, "the store holds 0 checkpoints already"));
}

HEALTH_TEST(test_health__false_where_a_first_attempt_and_a_save_would_not_fit)
{
    peers_close(peers, RANKS);
    bed_stop(bed);
    snprintf(bed->store, sizeof bed->store, "%s/empty", bed->root);
    assert_int_equal(bed_start(bed), 0);
    assert_true(comes_to(bed, true, ""));
    set_usable(bed, 0);
    assert_true(comes_to(bed, false, "there is no room for an attempt and its first save, "));
    assert_true(looks(bed, false, "a checkpoint of 65536 bytes does not fit"));
    assert_true(looks(bed, false, "remove checkpoints, or raise storage.usable_fraction"));
}

HEALTH_TEST(test_health__the_save_of_a_new_attempt_is_taken_for_as_large_as_the_last)
{
    char words[80];
    assert_true(save_step(peers, RANKS, 1));
    peers_close(peers, RANKS);
    bed_stop(bed); /* its ranks disconnect with it, and health waits for the next save of ranks */
    assert_int_equal(bed_start(bed), 0);
    bed_hold(bed);
    uint64_t bytes = bed->service->catalog->runs->checkpoints->summary.bytes;
    bed->service->ledger.usable_fraction = 0;
    bed_go_on(bed);
    snprintf(words, sizeof words, "a checkpoint of %llu bytes",
             (unsigned long long)(bytes + 65536));
    assert_true(comes_to(bed, false, words));
}

/* The text of Status about a save of so many bytes; "": it fits. */
static void expect(struct bed *bed, uint64_t bytes, char out[512])
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    Holdfast__V1__StatusReply *reply;
    request.expected_bytes = bytes;
    assert_int_equal(
        call(bed, "Status", &request.base, &holdfast__v1__status_reply__descriptor, &reply), 0);
    json_t *status = json_loads(reply->json, 0, NULL);
    const json_t *expected = json_object_get(json_object_get(status, "health"), "expected");
    const char *reason = json_string_value(json_object_get(expected, "reason"));
    assert_true(json_is_true(json_object_get(expected, "fits")) == (reason[0] == '\0'));
    snprintf(out, 512, "%s", reason);
    json_decref(status);
    FREE_REPLY(reply);
}

HEALTH_TEST(test_health__a_save_of_a_size_that_is_asked_for_needs_disk_and_memory)
{
    char why[512];
    peers_close(peers, RANKS);
    bed_restart(bed);
    uint64_t pool = (uint64_t)bed->config.pool_bytes;
    expect(bed, pool, why);
    assert_string_equal(why, "");
    expect(bed, pool + 1, why);
    assert_true(strncmp(why, "memory: the pool has ", 21) == 0 && !strstr(why, "disk: "));
    expect(bed, 1ull << 60, why);
    assert_true(strncmp(why, "disk: a checkpoint of ", 22) == 0 &&
                strstr(why, "; memory: the pool"));
    set_usable(bed, 0);
    expect(bed, pool, why);
    assert_true(strncmp(why, "disk: a checkpoint of ", 22) == 0 && !strstr(why, "memory: "));
}

HEALTH_TEST(test_health__false_from_a_failed_save_to_the_next_commit)
{
    assert_true(save_step(peers, RANKS, 1));
    set_usable(bed, 0);
    for (uint64_t step = 2; step <= 3; step++) {
        assert_int_equal(peer_begin(&peers[0], step), ERR_SPACE);
        assert_int_equal(failures_in_row(bed), (int)step - 1);
    }
    set_usable(bed, 1); /* there is room again, but no save has said so */
    sleep_ms(50);
    assert_true(looks(bed, false, "the last save of run bed failed: a checkpoint of"));
    assert_true(save_step(peers, RANKS, 4));
    assert_true(comes_to(bed, true, ""));
    assert_int_equal(failures_in_row(bed), 0);
}

HEALTH_TEST(test_health__a_save_that_its_ranks_give_up_says_nothing_about_the_store)
{
    char reason[512];
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    peer_abort(&peers[0]);
    assert_int_equal(wait_save(bed, 1, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_int_equal(failures_in_row(bed), 1);
    assert_true(looks(bed, true, ""));
}

static double interval(struct bed *bed)
{
    return number_of_run(bed, "commit_interval_seconds");
}

HEALTH_TEST(test_health__a_longer_pause_between_commits_counts_at_once_a_shorter_one_by_half)
{
    assert_true(save_step(peers, RANKS, 1));
    assert_true(interval(bed) == -1);
    bed_hold(bed);
    bed->service->catalog->runs->pace.last_ms -= 1000 * BED_PATIENCE_MS;
    bed_go_on(bed);
    assert_true(save_step(peers, RANKS, 2));
    double longest = interval(bed);
    assert_true(longest >= BED_PATIENCE_MS && longest < 2 * BED_PATIENCE_MS);
    assert_true(save_step(peers, RANKS, 3));
    double next = interval(bed);
    assert_true(next > longest / 2 - 0.01 && next <= longest / 2);
}

HEALTH_TEST(test_health__after_a_restart_the_stores_newest_checkpoints_tell_the_interval)
{
    for (uint64_t step = 1; step <= 2; step++)
        assert_true(save_step(peers, RANKS, step));
    peers_close(peers, RANKS);
    bed_open_world(bed, peers, RANKS); /* another attempt has one */
    assert_true(save_step(peers, RANKS, 3));
    bed_hold(bed);
    struct run *run = bed->service->catalog->runs;
    const char *const times[] = {"2026-01-01T09:00:00Z", "2026-01-01T00:01:30Z",
                                 "2026-01-01T00:00:00Z"};
    struct checkpoint *checkpoint = run->checkpoints;
    for (int i = 0; i < 3; i++, checkpoint = checkpoint->next)
        snprintf(checkpoint->summary.time, sizeof checkpoint->summary.time, "%s", times[i]);
    run->pace = (struct commit_pace){.interval_ms = 0};
    bed_go_on(bed);
    assert_true(interval(bed) == 90);
}

HEALTH_TEST(test_health__ranks_wait_since_the_newest_commit_or_since_they_came)
{
    assert_true(number_of_run(bed, "commit_wait_seconds") >= 0); /* without a checkpoint */
    assert_true(save_step(peers, RANKS, 1));
    bed_hold(bed);
    struct checkpoint *newest = bed->service->catalog->runs->checkpoints;
    snprintf(newest->summary.time, sizeof newest->summary.time, "2026-01-01T00:00:00Z");
    bed_go_on(bed);
    assert_true(number_of_run(bed, "commit_wait_seconds") < BED_PATIENCE_MS);
    bed_hold(bed);
    bed->service->catalog->runs->coordinator->holder.opened_ms -= 1000 * BED_PATIENCE_MS;
    bed_go_on(bed);
    assert_true(number_of_run(bed, "commit_wait_seconds") >= BED_PATIENCE_MS);
    assert_true(save_step(peers, RANKS, 2));
    assert_true(number_of_run(bed, "commit_wait_seconds") < BED_PATIENCE_MS);
    peers_close(peers, RANKS);
    assert_true(wait_number(bed, "sessions", "ranks", 0));
    assert_true(number_of_run(bed, "commit_wait_seconds") == -1);
}

/* A rank reports that its save failed before ckptd knows. */
static int tell_failed(struct bed *bed, uint64_t step, uint64_t attempt, const char *reason)
{
    Holdfast__V1__AbortSaveRequest request = HOLDFAST__V1__ABORT_SAVE_REQUEST__INIT;
    request.run = (char *)(uintptr_t)bed->run;
    request.step = step;
    request.attempt = attempt;
    request.reason = (char *)(uintptr_t)reason;
    return try_call(bed, "AbortSave", &request.base);
}

static bool tells_of_clients(struct bed *bed, int count, const char *reason, int in_row)
{
    json_t *status = bed_status(bed);
    const json_t *run = json_array_get(json_object_get(status, "runs"), 0);
    const char *said = json_string_value(json_object_get(run, "last_failure_at_client"));
    char alarm[256] = "", *alarms = json_dumps(json_object_get(status, "alarms"), 0);
    snprintf(alarm, sizeof alarm, "%d saves in a row failed at the client: %s", count, reason);
    bool is_it = json_integer_value(json_object_get(run, "failures_at_client")) == count &&
                 json_integer_value(json_object_get(run, "failures_in_row")) == in_row &&
                 strcmp(said, reason) == 0 &&
                 (count == 0) == (strstr(alarms, "failed at the client") == NULL) &&
                 (count == 0 || strstr(alarms, alarm) != NULL);
    free(alarms);
    json_decref(status);
    return is_it;
}

HEALTH_TEST(test_health__ranks_tell_of_a_failed_save_once)
{
    assert_int_equal(tell_failed(bed, 1, 0, "w has 9 dimensions"), 0);
    assert_int_equal(tell_failed(bed, 1, bed->attempt, "another rank's"), 0);
    assert_int_equal(tell_failed(bed, 2, bed->attempt, "w has 10\ndimensions"), 0);
    assert_true(tells_of_clients(bed, 2, "w has 10?dimensions", 2));
    assert_true(looks(bed, true, ""));
    assert_int_equal(peer_begin(&peers[0], 3), 0); /* one that ckptd has counted, too */
    peer_abort(&peers[0]);
    assert_int_equal(tell_failed(bed, 3, bed->attempt, "its device is gone"), 0);
    assert_true(tells_of_clients(bed, 3, "its device is gone", 3));
    assert_true(save_step(peers, RANKS, 4));
    assert_true(tells_of_clients(bed, 0, "", 0));
    peers_close(peers, RANKS);
    bed_open_world(bed, peers, RANKS);
    assert_int_equal(tell_failed(bed, 5, bed->attempt - 1, "of a rank that is over"), ERR_STALE);
    assert_true(tells_of_clients(bed, 0, "", 0));
}

SUITE(NULL, NULL)
