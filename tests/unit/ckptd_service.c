/* ckptd_service.c - the daemon's behaviour towards its peers, also peers that break the rules.
 *
 * Goal: breaches fail one save and nothing else; dead, late and stale ranks are distinguished;
 * damage in memory and on disk never reaches a reader. Method: a service in this process, a raw
 * client (ckptd_bed.h). ckptd_disk.c has a store that is full or fails. */
#include "proto/base/json.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/nested.h"
#include "tests/unit/suite.h"

static struct peer peers[RANKS];

/* ---- saving ---- */

/* All ranks save at `step` their contents of step `as`; the save is committed. */
static void save_as(struct bed *bed, uint64_t step, uint64_t as, char reason[512])
{
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peer_begin(&peers[i], step), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], as);
    assert_int_equal(wait_save(bed, step, reason), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
}

/* So many alarms since the start, the last one of `step`, which equals `before`. */
static void assert_alarms(struct bed *bed, json_int_t count, json_int_t step, json_int_t before)
{
    json_t *status = bed_status(bed), *last = json_object_get(status, "last_unchanged");
    json_t *counted = json_object_get(json_object_get(status, "since_start"), "unchanged_saves");
    assert_true(json_is_integer(counted) && json_integer_value(counted) == count);
    assert_true(count > 0 || json_is_null(last));
    if (count > 0) {
        assert_string_equal(json_string_value(json_object_get(last, "run")), RUN);
        assert_true(json_integer_value(json_object_get(last, "step")) == step);
        assert_true(json_integer_value(json_object_get(last, "equals_step")) == before);
    }
    json_decref(status);
}

BED_TEST(test_service__a_save_that_equals_the_one_before_is_kept_and_raises_an_alarm)
{
    char reason[512];
    bed_open_world(bed, peers, RANKS);
    save_as(bed, 1, 1, reason);
    save_as(bed, 2, 2, reason);
    assert_string_equal(reason, "");
    assert_alarms(bed, 0, 0, 0);
    save_as(bed, 3, 2, reason);
    assert_non_null(strstr(reason, "every tensor equals the checkpoint of step 2, attempt 1"));
    wait_save(bed, 3, reason); /* a rank that asks later gets it too */
    assert_non_null(strstr(reason, "step 2"));
    assert_alarms(bed, 1, 3, 2);
    save_as(bed, 4, 1, reason); /* equal to an older one: that is no alarm */
    assert_string_equal(reason, "");
    peers_close(peers, RANKS);
    bed_restart(bed);
    struct loading loading;
    assert_int_equal(load_open(&loading, bed, 3), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(load_shard(&loading, i, NULL), 0);
        assert_true(shard_is_right(&loading, i, 2));
    }
    load_close(&loading);
}

BED_TEST(test_service__the_alarm_survives_a_restart_and_a_new_attempt)
{
    char reason[512];
    bed_open_world(bed, peers, RANKS);
    save_as(bed, 1, 1, reason);
    peers_close(peers, RANKS);
    bed_restart(bed);
    assert_int_equal(peers_open(peers, bed, RANKS), 0); /* the same attempt continues */
    save_as(bed, 2, 1, reason);
    assert_non_null(strstr(reason, "step 1, attempt 1"));
    assert_alarms(bed, 1, 2, 1);
    peers_close(peers, RANKS);
    bed_open_world(bed, peers, RANKS);
    save_as(bed, 2, 1, reason); /* the same step again is a repeat, not a standstill */
    assert_string_equal(reason, "");
    save_as(bed, 3, 1, reason);
    assert_non_null(strstr(reason, "step 2, attempt 2"));
    assert_alarms(bed, 2, 3, 2);
    peers_close(peers, RANKS);
    bed_stop(bed);
    bed_flip_byte(bed, 3, 2, "manifest.json", 4200);
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    save_as(bed, 4, 1, reason); /* a part that cannot be read is not compared, and fails no save */
    assert_string_equal(reason, "");
    assert_alarms(bed, 0, 0, 0);
    peers_close(peers, RANKS);
}

/* A rank's entries that break a rule. Offsets count from its first byte of data; `from_end` adds
 * the bytes of its part. */
struct breach {
    const char *reason; /* a part of it */
    struct {
        uint32_t kind;
        uint64_t offset, bytes;
        bool from_end;
    } entries[3];
};

/* Rank 1 breaks a rule in `step`; that save fails with the reason, the next one is not affected. */
static void expect_breach(struct bed *bed, const struct breach *breach, uint64_t step)
{
    char reason[512];
    struct peer *peer = &peers[1];
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peer_begin(&peers[i], step), 0);
    peer_finish(&peers[0], step);
    for (uint32_t i = 0; i < 3 && breach->entries[i].kind != 0; i++)
        peer_announce(peer, breach->entries[i].kind, peer->data_byte + breach->entries[i].offset,
                      breach->entries[i].bytes + (breach->entries[i].from_end ? peer->bytes : 0));
    assert_int_equal(wait_save(bed, step, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    if (!strstr(reason, breach->reason))
        fail_msg("\"%s\" instead of \"%s\"", reason, breach->reason);
    assert_true(save_step(peers, RANKS, step + 1));
    assert_int_equal(load_all(bed, -1, NULL), 0);
    assert_int_equal(load_all(bed, (int64_t)step, NULL), ERR_NOT_FOUND);
}

TEST_BETWEEN(test_service__an_announcement_against_the_rules_fails_that_save_alone, bed_set_up,
             bed_tear_down)
{
    static const struct breach breaches[] = {
        {"announced twice",
         {{ARENA_ENTRY_RANGE, 0, 4096, false},
          {ARENA_ENTRY_RANGE, MIB, MIB / 2, false},
          {ARENA_ENTRY_RANGE, 4096, MIB, false}}},
        {"not tensor data", {{ARENA_ENTRY_RANGE, (uint64_t)-4096, 8192, false}}}, /* the header */
        {"not tensor data", {{ARENA_ENTRY_RANGE, 0, 1, true}}},                   /* the table */
        {"not tensor data", {{ARENA_ENTRY_RANGE, 8, UINT64_MAX - 4, false}}},
        {"4 bytes had not been announced",
         {{ARENA_ENTRY_RANGE, 0, (uint64_t)-4, true}, {ARENA_ENTRY_END, 0, 0, false}}},
        {"unknown kind", {{77, 0, 0, false}}},
    };
    bed_open_world(*state, peers, RANKS);
    for (size_t i = 0; i < sizeof breaches / sizeof *breaches; i++)
        expect_breach(*state, &breaches[i], 2 * i + 1);
    peers_close(peers, RANKS);
}

BED_TEST(test_service__ranges_in_any_order_and_size_make_the_same_shard)
{
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    peer_fill(&peers[0], 1);
    /* Odd pieces, every second first, each side from the far end. */
    uint64_t piece = 99991, count = (peers[0].bytes + piece - 1) / piece;
    for (int half = 0; half < 2; half++) {
        for (uint64_t i = count; i-- > 0;) {
            if (i % 2 != (uint64_t)half)
                continue;
            uint64_t bytes = peers[0].bytes - i * piece;
            peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte + i * piece,
                          bytes < piece ? bytes : piece);
        }
    }
    peer_announce(&peers[0], ARENA_ENTRY_END, 0, 0);
    assert_int_equal(wait_save(bed, 1, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(peers, 1);
    assert_int_equal(load_all(bed, -1, NULL), 0);
}

BED_TEST(test_service__a_rank_that_dies_before_its_end_fails_the_save_and_frees_memory)
{
    char reason[512];
    bed_open_world(bed, peers, RANKS);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_int_equal(peer_begin(&peers[1], 1), 0);
    peer_finish(&peers[0], 1);
    peer_close(&peers[1]);
    assert_int_equal(wait_save(bed, 1, reason), HOLDFAST__V1__SAVE_STATE__SAVE_FAILED);
    assert_non_null(strstr(reason, "rank 1"));
    peer_close(&peers[0]);
    assert_true(wait_number(bed, "pool", "segments_used", 0));
}

BED_TEST(test_service__a_new_attempt_drives_ended_saves_to_commit_before_it_answers)
{
    uint64_t step;
    bed_open_world(bed, peers, RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_int_equal(peer_begin(&peers[i], 7), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], 7);
    peers_close(peers, RANKS);
    assert_int_equal(open_attempt(bed, 1), 0); /* with another world size */
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_true(step == 7);
}

BED_TEST(test_service__an_older_attempt_is_stale_everywhere)
{
    struct peer late[RANKS];
    bed_open_world(bed, peers, RANKS);
    uint64_t old = bed->attempt;
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(peer_begin(&peers[0], 1), ERR_NOT_FOUND); /* its session has ended */
    bed->attempt = old;
    assert_int_equal(peers_open(late, bed, RANKS), ERR_STALE);
    peers_close(peers, RANKS);
}

BED_TEST(test_service__ranks_go_on_with_their_attempt_after_a_restart)
{
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 1));
    uint64_t attempt = bed->attempt;
    peers_close(peers, RANKS);
    bed_restart(bed);
    bed->attempt = attempt;
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_int_equal(peer_begin(&peers[0], 1), ERR_EXISTS); /* it is committed */
    assert_true(save_step(peers, RANKS, 2));
    peers_close(peers, RANKS);
}

BED_TEST(test_service__the_first_saves_get_what_was_lent_with_the_description)
{
    bed_open_world(bed, peers, RANKS); /* images of 3 segments, 24 in all */
    for (uint32_t i = 0; i < RANKS; i++) {
        struct peer *peer = &peers[i];
        assert_int_equal(peer->num_ahead, 2 * 3);
        assert_int_equal(peer_map(peer, peer->ahead, peer->num_ahead, true), 0); /* at once */
        for (uint64_t step = 1; step <= 2; step++) {
            assert_int_equal(peer_begin(peer, step), 0);
            assert_memory_equal(peer->segments, peer->ahead + 3 * (step - 1),
                                3 * sizeof *peer->segments);
            peer_finish(peer, step);
        }
    }
    assert_int_equal(wait_save(bed, 2, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    peers_close(peers, RANKS);
}

BED_TEST(test_service__what_is_lent_ahead_is_at_nobodys_cost)
{
    bed_stop(bed);
    bed->config.pool_bytes = 7 * MIB; /* one image of 5 segments, and no second */
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peers[0].num_ahead, 5);
    assert_true(save_step(peers, 1, 1));
    peers_close(peers, 1);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peers[0].num_ahead, 0); /* the newest checkpoint stays in memory */
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_true(save_step(peers, 1, 2));
    peers_close(peers, 1);
    bed_restart(bed);
    bed_open_world(bed, peers, 1);
    assert_int_equal(peers[0].num_ahead, 5);
    assert_int_equal(load_all(bed, 1, NULL), 0); /* takes them; the save takes them back */
    assert_true(save_step(peers, 1, 3));
    assert_int_equal(load_all(bed, 3, NULL), 0);
    peers_close(peers, 1);
}

/* Of a world of one rank, which has one tensor of so many bytes. */
static int describe_one(struct bed *bed, uint64_t bytes)
{
    struct rows rows;
    Holdfast__V1__DescribeRequest request = HOLDFAST__V1__DESCRIBE_REQUEST__INIT;
    rows_init(&rows, 0, 1);
    rows.shape[0] = rows.extent[0] = bytes;
    rows.slice.dtype = "U8";
    rows.slice.n_shape = rows.slice.n_offset = rows.slice.n_extent = 1;
    request.run = RUN;
    request.world_size = 1;
    request.slices = rows.slices;
    request.n_slices = 1;
    assert_int_equal(open_attempt(bed, 1), 0);
    request.attempt = bed->attempt;
    return try_call(bed, "Describe", &request.base);
}

/* The largest shard finds no room in a small pool; a larger one is no shard. */
BED_TEST(test_service__a_rank_whose_shard_is_too_large_is_refused)
{
    const uint64_t largest = (32ull << 40) - SHARD_ALIGN; /* a header, and its data */
    assert_int_equal(describe_one(bed, largest), ERR_INVALID);
    assert_non_null(strstr(report_line(), "for rank 0 even to save its 35184640524288 bytes"));
    assert_int_equal(describe_one(bed, largest + 1), ERR_INVALID);
    assert_non_null(strstr(report_line(), "shard 0 would hold more than 32 TiB"));
}

/* jansson reads no manifest beyond its limit of levels: the RPC layer refuses deeper ones. */
BED_TEST(test_service__state_and_config_are_refused_beyond_their_depth)
{
    char nested[NESTED_BYTES_MAX];
    Holdfast__V1__OpenAttemptRequest request = HOLDFAST__V1__OPEN_ATTEMPT_REQUEST__INIT;
    bed_open_world(bed, peers, 1);
    peers[0].state_json = nested_write(nested, NESTED_LEVELS_MAX - 1);
    assert_int_equal(peer_begin(&peers[0], 1), ERR_INVALID);
    assert_non_null(strstr(report_line(), "state_json has more than"));
    nested_write(nested, JSON_DEPTH_MAX);
    assert_true(save_step(peers, 1, 1));
    assert_int_equal(load_all(bed, 1, NULL), 0);
    peers_close(peers, 1);
    request.run = RUN;
    request.world_size = 1;
    request.config_json = nested_write(nested, JSON_DEPTH_MAX + 1);
    assert_int_equal(try_call(bed, "OpenAttempt", &request.base), ERR_INVALID);
    assert_non_null(strstr(report_line(), "config_json has more than"));
}

BED_TEST(test_service__who_asks_in_vain_again_and_again_does_not_fill_the_log)
{
    static char text[1 << 16];
    bed_divert_log(bed);
    for (int i = 0; i < 200; i++)
        assert_int_equal(open_attempt(bed, 0), ERR_INVALID);
    bed_read_log(bed, text, sizeof text);
    const char *first = strstr(text, "OpenAttempt asked for");
    assert_non_null(first);
    assert_null(strstr(first + 1, "OpenAttempt asked for"));
}

/* ---- loading ---- */

BED_TEST(test_service__what_a_rank_saved_is_lent_unverified_and_then_from_the_file)
{
    struct loading loading;
    char tier[16];
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    *peer_byte(&peers[0], peers[0].data_byte + 12345) ^= 1; /* it still has its mapping */
    assert_int_equal(load_open(&loading, bed, -1), 0);
    assert_int_equal(load_shard(&loading, 0, tier), 0);
    assert_string_equal(tier, "memory");
    assert_true(loading.table_start > 0); /* for the reader to verify */
    assert_false(shard_is_right(&loading, 0, 1));
    loading.from_file = true;
    assert_int_equal(load_shard(&loading, 0, tier), 0);
    assert_string_equal(tier, "local");
    assert_int_equal(loading.table_start, 0);
    assert_true(shard_is_right(&loading, 0, 1));
    load_close(&loading);
    peers_close(peers, 1);
}

/* Also when its rank has hung up: ckptd cannot know which processes still map its segments. */
BED_TEST(test_service__what_a_rank_saved_is_not_lent_to_a_reader_that_does_not_verify_it)
{
    struct loading loading;
    char tier[16];
    bed_open_world(bed, peers, 1);
    for (uint64_t step = 1; step <= 2; step++) {
        assert_true(save_step(peers, 1, step));
        if (step == 2)
            peers_close(peers, 1);
        assert_int_equal(load_open(&loading, bed, -1), 0);
        loading.never_checks = true;
        assert_int_equal(load_shard(&loading, 0, tier), 0);
        assert_string_equal(tier, "local");
        assert_int_equal(loading.table_start, 0);
        assert_true(shard_is_right(&loading, 0, step));
        load_close(&loading);
    }
}

/* The step whose manifest Show gives for `step`; -1: the newest whole one. */
static json_int_t shown_step(struct bed *bed, int64_t step)
{
    Holdfast__V1__ShowRequest request = HOLDFAST__V1__SHOW_REQUEST__INIT;
    Holdfast__V1__ShowReply *reply;
    request.run = RUN;
    request.step = step;
    assert_int_equal(
        call(bed, "Show", &request.base, &holdfast__v1__show_reply__descriptor, &reply), 0);
    json_t *manifest = json_loads(reply->manifest_json, 0, NULL);
    json_int_t found = json_integer_value(json_object_get(manifest, "step"));
    json_decref(manifest);
    FREE_REPLY(reply);
    return found;
}

BED_TEST(test_service__damage_on_disk_quarantines_and_the_older_one_loads)
{
    uint64_t step;
    bed_open_world(bed, peers, 1);
    for (uint64_t i = 1; i <= 3; i++)
        assert_true(save_step(peers, 1, i));
    peers_close(peers, 1);
    bed_stop(bed);
    bed_flip_byte(bed, 3, 1, "shard-00001-of-00001.safetensors", 3 * MIB + 5);
    bed_flip_byte(bed, 2, 1, "manifest.json", 4200); /* past the summary: found when it is read */
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(load_all(bed, -1, &step), ERR_CORRUPT);
    assert_true(step == 3);
    assert_int_equal(load_all(bed, -1, &step), 0); /* over 3, now known, and 2, by its manifest */
    assert_true(step == 1);
    assert_int_equal(load_all(bed, 2, NULL), ERR_CORRUPT);
    assert_int_equal(shown_step(bed, -1), 1);
    assert_int_equal(shown_step(bed, 3), 3); /* its manifest is whole */
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_int_equal(reply->n_checkpoints, 3); /* kept and named, not deleted */
    assert_string_equal(reply->checkpoints[0]->durability, "damaged");
    assert_non_null(strstr(reply->checkpoints[0]->damage, "block 3"));
    assert_string_equal(reply->checkpoints[2]->durability, "local");
    assert_string_equal(reply->checkpoints[2]->damage, "");
    FREE_REPLY(reply);
    bed_restart(bed); /* the next one knows them without reading them */
    assert_int_equal(load_all(bed, -1, &step), 0);
    assert_true(step == 1);
    reply = bed_list(bed);
    assert_non_null(strstr(reply->checkpoints[0]->damage, "block 3"));
    FREE_REPLY(reply);
}

/* ---- the end ---- */

BED_TEST(test_service__a_second_daemon_on_the_store_is_refused)
{
    struct bed other = *bed;
    snprintf(other.config.listen, sizeof other.config.listen, "unix:%s/t", bed->root);
    assert_int_equal(service_open(&other.service, &other.config), ERR_BUSY);
    other = *bed;
    snprintf(other.config.store, sizeof other.config.store, "%s/other", bed->root);
    assert_int_equal(service_open(&other.service, &other.config), ERR_BUSY); /* same socket */
}

int main(void)
{
    log_setup("ckptd_service", NULL);
    return suite_run(NULL, NULL);
}
