/* ckptd_peer_status.c - a ckptd's short status for other nodes, and how it reads theirs.
 *
 * Goal: the short status has the disk, the memory, the saves in flight and the alarms, and
 * nothing about third nodes or all runs. An answer of another node that is too long, no object,
 * or has extra members does no harm. Method: a real service on the bed with a save under way,
 * and texts. */
#include "ckptd/peers/peer_status.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/suite.h"

static struct peer peers[RANKS];

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    return bed_start(bed);
}

/* As another node gets it and reads it. */
static json_t *ask(struct bed *bed)
{
    Holdfast__V1__StatusRequest request = HOLDFAST__V1__STATUS_REQUEST__INIT;
    Holdfast__V1__StatusReply *reply;
    json_t *told;
    request.own = true;
    assert_int_equal(
        call(bed, "Status", &request.base, &holdfast__v1__status_reply__descriptor, &reply), 0);
    assert_null(strstr(reply->json, "\"runs\""));
    assert_int_equal(peer_status_read(&told, reply->json), 0);
    FREE_REPLY(reply);
    return told;
}

static double number(const json_t *told, const char *part, const char *name)
{
    const json_t *value = json_object_get(json_object_get(told, part), name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

TEST_BETWEEN(test_told__a_save_in_flight_and_room_are_told, set_up, bed_tear_down)
{
    struct bed *bed = *state;
    bed_open_world(bed, peers, 2);
    json_t *before = ask(bed);
    assert_int_equal(json_array_size(json_object_get(before, "saves")), 0);
    assert_int_equal(peer_begin(&peers[0], 7), 0);
    json_t *told = ask(bed);
    const json_t *save = json_array_get(json_object_get(told, "saves"), 0);
    assert_int_equal(json_integer_value(json_object_get(save, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(save, "ranks_begun")), 1);
    assert_true(number(told, "disk", "bytes_left") > 0);
    assert_true(number(told, "disk", "bytes_left") <= number(told, "disk", "bytes_total"));
    assert_true(number(told, "pool", "segments_used") > 0);
    assert_true(json_is_array(json_object_get(told, "alarms")));
    json_decref(before);
    json_decref(told);
    peer_abort(&peers[0]);
    peers_close(peers, 2);
}

/* More failing runs than a node reports, each with a long name. */
TEST_BETWEEN(test_told__what_grows_with_the_runs_is_bounded, set_up, bed_tear_down)
{
    struct bed *bed = *state;
    bed_stop(bed);
    bed->config.limit_runs = 200;
    assert_int_equal(bed_start(bed), 0);
    json_t *list = NULL, *told;
    bed_end_thread(bed);
    for (int i = 0; i < 100; i++) {
        struct run *run;
        char name[RUN_NAME_MAX + 1];
        memset(name, 'a', RUN_NAME_MAX);
        name[RUN_NAME_MAX] = '\0';
        name[i % 26] = 'b';
        name[26 + i / 26] = 'c';
        assert_int_equal(run_find(&run, bed->service, name, true), 0);
        run->health.failures = 1;
        memset(run->health.reason, 'x', sizeof run->health.reason - 1);
    }
    char *text = service_status(bed->service, true, 0);
    assert_true(strlen(text) < PEER_STATUS_BYTES_MAX);
    assert_int_equal(peer_status_read(&told, text), 0);
    list = json_object_get(told, "alarms");
    assert_int_equal(json_array_size(list), PEER_STATUS_ALARMS_MAX);
    json_decref(told);
    free(text);
}

TEST_BETWEEN(test_told__only_what_is_of_a_node_itself_is_taken, set_up, bed_tear_down)
{
    json_t *told;
    assert_int_equal(peer_status_read(&told,
                                      "{\"disk\":{\"bytes_left\":5},\"nodes\":{\"peers\":[1]},"
                                      "\"runs\":[]}"),
                     0);
    assert_true(number(told, "disk", "bytes_left") == 5);
    assert_int_equal(json_object_size(told), 1);
    json_decref(told);
    assert_int_equal(peer_status_read(&told, "[]"), ERR_INVALID);
    assert_int_equal(peer_status_read(&told, "{\"disk\":"), ERR_INVALID);
    char *text = malloc(PEER_STATUS_BYTES_MAX + 3);
    memset(text, ' ', PEER_STATUS_BYTES_MAX + 1);
    text[0] = '{';
    text[PEER_STATUS_BYTES_MAX - 1] = '}';
    text[PEER_STATUS_BYTES_MAX] = '\0';
    assert_int_equal(peer_status_read(&told, text), 0);
    json_decref(told);
    memcpy(text + PEER_STATUS_BYTES_MAX, " ", 2);
    assert_int_equal(peer_status_read(&told, text), ERR_INVALID);
    assert_null(told);
    free(text);
}

int main(void)
{
    log_setup("ckptd_peer_status", NULL);
    return suite_run(NULL, NULL);
}
