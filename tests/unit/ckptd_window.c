/* ckptd_window.c - saves through windows: a pool that does not hold an image of every rank.
 *
 * Goal: such a run saves and loads all the same, within the pool, and every byte of it is right; no
 * action of a rank and no failure hangs or harms the daemon. Method: a service in this process
 * (ckptd_bed.h) whose pool is smaller than its images, so that a window passes over a file several
 * times; raw clients which keep the rules of the window, or break them; and a store in which each
 * operation fails once. Saved checkpoints are read back part by part, and by a service with a
 * larger pool. */
#include "tests/unit/ckptd_loading.h"

#include "proto/base/checksum.h"
#include "tests/fault/storage_fault.h"
#include "tests/unit/suite.h"

#define WAIT_MS 10000
#define UNTOUCHED_ROW 5u
#define SMALL_POOL (2 * MIB) /* an image of one rank takes 5 segments, of two ranks 3 each */
#define LARGE_POOL (24 * MIB)

static struct peer peers[RANKS];

/* ---- hashing that is late ---- */

static atomic_int hash_ms;
__typeof__(checksum_block_beside) __real_checksum_block_beside, __wrap_checksum_block_beside;
uint64_t __wrap_checksum_block_beside(const void *data, size_t bytes, uint64_t identity,
                                      uint64_t block, checksum_piece_fn *piece, void *user)
{
    sleep_ms(atomic_load(&hash_ms));
    return __real_checksum_block_beside(data, bytes, identity, block, piece, user);
}

/* ---- the bed ---- */

static int set_up(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->config.pool_bytes = SMALL_POOL;
    return bed_start(bed);
}

static int tear_down(void **state)
{
    atomic_store(&hash_ms, 0);
    peers_close(peers, RANKS);
    return bed_tear_down(state);
}

static void restart(struct bed *bed, int64_t pool_bytes)
{
    peers_close(peers, RANKS);
    bed->config.pool_bytes = pool_bytes;
    bed_restart(bed);
}

/* ---- a rank that keeps the rules ---- */

/* How far the window goes, at least past `at`; 0 when it is not this save's any more. */
static uint64_t await_window(const struct peer *peer, uint64_t at)
{
    struct arena_window window;
    for (uint32_t waited_ms = 0; waited_ms < WAIT_MS; waited_ms += 10) {
        arena_window_get(&window, peer->control);
        if (window.save != peer->save)
            return 0;
        if (window.end > at)
            return window.end;
        arena_window_wait(peer->control, window.changes, 10);
    }
    fail_msg("the window does not move from byte %llu", (unsigned long long)at);
    return 0;
}

/* Copies bytes [from, to) of the rank's part as the window allows; false when the save was
 * aborted. */
static bool copy_part(struct peer *peer, uint64_t step, uint64_t from, uint64_t to)
{
    while (from < to) {
        uint64_t end = await_window(peer, peer->data_byte + from);
        if (end == 0)
            return false;
        uint64_t bytes =
            end - (peer->data_byte + from) < to - from ? end - (peer->data_byte + from) : to - from;
        peer_fill_part(peer, step, from, from + bytes);
        peer_announce(peer, ARENA_ENTRY_RANGE, peer->data_byte + from, bytes);
        from += bytes;
    }
    return true;
}

/* Also where its image is whole. */
static void finish(struct peer *peer, uint64_t step)
{
    if (peer->num_segments * (uint64_t)MIB >= peer->image_bytes)
        peer_finish(peer, step);
    else if (copy_part(peer, step, 0, peer->bytes))
        peer_announce(peer, ARENA_ENTRY_END, 0, 0);
}

/* Waits for the window of a save that is still being aborted. */
static int begin(struct peer *peer, uint64_t step)
{
    return peer_begin_within(peer, step, WAIT_MS);
}

static Holdfast__V1__SaveState save_through(struct bed *bed, uint32_t world_size, uint64_t step,
                                            char reason[512])
{
    for (uint32_t i = 0; i < world_size; i++)
        assert_int_equal(begin(&peers[i], step), 0);
    for (uint32_t i = 0; i < world_size; i++)
        finish(&peers[i], step);
    return wait_save(bed, step, reason);
}

#define COMMITTED HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED
#define FAILED HOLDFAST__V1__SAVE_STATE__SAVE_FAILED

BED_TEST_BETWEEN(test_window__a_pool_without_a_segment_for_each_rank_is_refused, set_up, tear_down)
{
    restart(bed, 1 * MIB);
    assert_int_equal(open_attempt(bed, 2), 0);
    assert_int_equal(peers_open(peers, bed, 2), ERR_INVALID);
    assert_false(err_retry(ERR_INVALID)); /* the launcher does not start it again */
    bed_open_world(bed, peers, 1);        /* fewer ranks do */
    assert_int_equal(save_through(bed, 1, 1, NULL), COMMITTED);
}

/* ---- saving ---- */

/* Images are whole while one of each rank fits; nothing of a window stays in memory. A window waits
 * for hashes as for writes: its memory is not reused before both are done. */
BED_TEST_BETWEEN(test_window__what_is_saved_through_a_window_of_any_size_is_right, set_up,
                 tear_down)
{
    static const struct {
        int64_t pool_bytes;
        uint32_t world_size, image_segments;
        int hash_ms;
    } shapes[] = {{6 * MIB, 2, 3, 0}, {5 * MIB, 2, 2, 0},  {2 * MIB, 2, 1, 0},
                  {2 * MIB, 1, 2, 0}, {2 * MIB, 1, 2, 30}, {1 * MIB, 1, 1, 0}};
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    uint64_t step = 0;
    for (size_t i = 0; i < SHAPES; i++) {
        restart(bed, shapes[i].pool_bytes);
        bed_open_world(bed, peers, shapes[i].world_size);
        atomic_store(&hash_ms, shapes[i].hash_ms);
        for (uint32_t rank = 0; rank < shapes[i].world_size; rank++)
            assert_int_equal(peers[rank].image_segments, shapes[i].image_segments);
        for (int again = 0; again < 2; again++)
            assert_int_equal(save_through(bed, shapes[i].world_size, ++step, NULL), COMMITTED);
        Holdfast__V1__ListReply *reply = bed_list(bed);
        assert_int_equal(reply->n_checkpoints, step);
        assert_int_equal(reply->checkpoints[0]->in_memory, i == 0);
        FREE_REPLY(reply);
    }
    restart(bed, LARGE_POOL);
    for (uint64_t i = 1; i <= step; i++)
        assert_int_equal(load_all(bed, (int64_t)i, NULL), 0);
}

BED_TEST_BETWEEN(test_window__it_stands_still_until_the_bytes_before_are_announced, set_up,
                 tear_down)
{
    struct arena_window window;
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_true(await_window(&peers[0], 0) == SMALL_POOL);
    /* All of the window but its first byte of data. */
    peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte + 4,
                  SMALL_POOL - peers[0].data_byte - 4);
    sleep_ms(200);
    arena_window_get(&window, peers[0].control);
    assert_true(window.end == SMALL_POOL);
    peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte, 4);
    assert_true(await_window(&peers[0], SMALL_POOL) > SMALL_POOL);
}

BED_TEST_BETWEEN(test_window__a_new_attempt_gets_the_window_of_the_one_before, set_up, tear_down)
{
    bed_open_world(bed, peers, 1);
    assert_int_equal(save_through(bed, 1, 1, NULL), COMMITTED);
    uint64_t attempt = bed->attempt;
    struct peer first = peers[0];
    memset(&peers[0], 0, sizeof peers[0]);
    /* A new attempt: the session of the first ends, its window is free. */
    bed_open_world(bed, peers, 1);
    assert_true(bed->attempt > attempt);
    assert_int_equal(save_through(bed, 1, 2, NULL), COMMITTED);
    peer_close(&first);
}

/* ---- loading ---- */

static void save_one(struct bed *bed, uint64_t step)
{
    bed_open_world(bed, peers, 1);
    assert_int_equal(save_through(bed, 1, step, NULL), COMMITTED);
    peers_close(peers, RANKS);
}

BED_TEST_BETWEEN(test_window__a_shard_larger_than_the_pool_is_lent_in_parts, set_up, tear_down)
{
    struct loading loading;
    char tier[16];
    save_one(bed, 1);
    assert_int_equal(load_open(&loading, bed, 1), 0);
    for (uint64_t at = DATA_START, parts = 0; parts < 5; parts++) {
        assert_int_equal(load_shard_from(&loading, 0, at, tier), 0);
        assert_true(loading.part_start <= at && at < loading.part_start + loading.part_bytes);
        assert_int_equal(loading.part_start, parts * MIB);
        assert_string_equal(tier, "local");
        assert_true(part_is_right(&loading, 1));
        at = loading.part_start + loading.part_bytes;
    }
    assert_int_equal(load_shard_from(&loading, 0, 3 * MIB + 5, NULL), 0); /* and back again */
    assert_int_equal(loading.part_start, 3 * MIB);
    assert_true(part_is_right(&loading, 1));
    assert_int_equal(load_shard_from(&loading, 0, DATA_START + 4 * MIB, NULL), ERR_INVALID);
    assert_int_equal(load_shard_from(&loading, 0, UINT64_MAX, NULL), ERR_INVALID);
    load_close(&loading);
}

BED_TEST_BETWEEN(test_window__more_loads_than_segments_take_turns, set_up, tear_down)
{
    struct loading loadings[2], late;
    save_one(bed, 1);
    bed->config.limit_load_wait_ms = 100;
    restart(bed, SMALL_POOL);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(load_open(&loadings[i], bed, 1), 0);
        assert_int_equal(load_shard_from(&loadings[i], 0, i * MIB + 4096, NULL), 0);
        assert_true(part_is_right(&loadings[i], 1));
    }
    assert_int_equal(load_open(&late, bed, 1), 0);
    assert_int_equal(load_shard_from(&late, 0, 4096, NULL), ERR_BUSY);
    load_close(&loadings[0]);
    assert_int_equal(load_shard_from(&late, 0, 4096, NULL), 0);
    assert_true(part_is_right(&late, 1));
    assert_true(part_is_right(&loadings[1], 1)); /* no save took its memory */
    load_close(&late);
    load_close(&loadings[1]);
}

BED_TEST_BETWEEN(test_window__damage_in_a_part_is_found_before_it_is_lent, set_up, tear_down)
{
    struct loading loading;
    save_one(bed, 1);
    bed_flip_byte(bed, 1, 1, "shard-00001-of-00001.safetensors", 2 * MIB + 77);
    assert_int_equal(load_open(&loading, bed, 1), 0);
    assert_int_equal(load_shard_from(&loading, 0, 4096, NULL), 0); /* this part is whole */
    assert_int_equal(load_shard_from(&loading, 0, 2 * MIB, NULL), ERR_CORRUPT);
    assert_non_null(strstr(report_message(), "block 2 of shard-00001-of-00001"));
    assert_int_equal(load_shard_from(&loading, 0, 4096, NULL), ERR_CORRUPT); /* quarantined */
    load_close(&loading);
    assert_int_equal(load_open(&loading, bed, 1), ERR_CORRUPT);
    save_one(bed, 2);
    bed_flip_byte(bed, 2, 2, "shard-00001-of-00001.safetensors", DATA_START + 4 * MIB + 3);
    assert_int_equal(load_open(&loading, bed, 2), 0);
    assert_int_equal(load_shard_from(&loading, 0, 4096, NULL), ERR_CORRUPT);
    assert_non_null(strstr(report_message(), "checksum table"));
    load_close(&loading);
}

/* ---- trouble ---- */

BED_TEST_BETWEEN(test_window__what_the_rank_writes_into_the_page_is_not_believed, set_up, tear_down)
{
    char reason[512];
    bed_open_world(bed, peers, 1);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    peers[0].control->window_end = UINT64_MAX;
    peers[0].control->window_save = 999;
    peer_announce(&peers[0], ARENA_ENTRY_RANGE, SMALL_POOL, 4096);
    assert_int_equal(wait_save(bed, 1, reason), FAILED);
    assert_non_null(strstr(reason, "beyond the window"));
    assert_int_equal(save_through(bed, 1, 2, NULL), COMMITTED);
}

BED_TEST_BETWEEN(test_window__who_waits_hears_that_the_save_was_given_up, set_up, tear_down)
{
    bed_open_world(bed, peers, 2);
    assert_int_equal(peer_begin(&peers[0], 1), 0);
    assert_int_equal(peer_begin(&peers[1], 1), 0);
    /* Rank 0 has announced nothing: only a message can end its wait. */
    assert_true(await_window(&peers[0], 0) == 1 * MIB);
    peer_close(&peers[1]);
    for (uint32_t i = 0; i < 1000 && await_window(&peers[0], 0) != 0; i++)
        sleep_ms(10);
    assert_true(await_window(&peers[0], 0) == 0);
    assert_int_equal(wait_save(bed, 1, NULL), FAILED);
}

/* No end and no AbortSave: the session's remains hold its only image, a window or a whole one. */
BED_TEST_BETWEEN(test_window__a_rank_that_left_a_save_begins_the_next_one, set_up, tear_down)
{
    const int64_t pools[] = {SMALL_POOL, 6 * MIB};
    char reason[512];
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        restart(bed, pools[i]);
        bed_open_world(bed, peers, 2);
        assert_int_equal(begin(&peers[0], 1), 0);
        assert_int_equal(begin(&peers[1], 1), 0);
        peer_fill_part(&peers[0], 1, 0, peers[0].bytes / 8);
        peer_announce(&peers[0], ARENA_ENTRY_RANGE, peers[0].data_byte, peers[0].bytes / 8);
        for (uint32_t rank = 0; rank < 2; rank++)
            assert_int_equal(begin(&peers[rank], 2), 0);
        for (uint32_t rank = 0; rank < 2; rank++)
            finish(&peers[rank], 2);
        assert_int_equal(wait_save(bed, 2, NULL), COMMITTED);
        assert_int_equal(wait_save(bed, 1, reason), FAILED);
        assert_non_null(strstr(reason, "a rank went on to a later save"));
        peers_close(peers, 2);
    }
}

BED_TEST_BETWEEN(test_window__a_save_that_every_rank_ended_outlives_its_ranks, set_up, tear_down)
{
    bed_open_world(bed, peers, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(peer_begin(&peers[i], 1), 0);
    for (uint32_t i = 0; i < 2; i++)
        finish(&peers[i], 1);
    peers_close(peers, 2);
    assert_int_equal(wait_save(bed, 1, NULL), COMMITTED);
    bed_open_world(bed, peers, 1); /* and their windows are free again */
    assert_int_equal(save_through(bed, 1, 2, NULL), COMMITTED);
    restart(bed, LARGE_POOL);
    assert_int_equal(load_all(bed, 1, NULL), 0);
    assert_int_equal(load_all(bed, 2, NULL), 0);
}

static bool acknowledged[3];
static uint32_t failed_syncs;

/* Two saves. */
static uint64_t live_through(struct bed *bed)
{
    char reason[512];
    memset(acknowledged, 0, sizeof acknowledged);
    bed->config.pool_bytes = SMALL_POOL;
    if (bed_start(bed) != 0)
        return UINT64_MAX;
    if (open_attempt(bed, 1) == 0 && peers_open(peers, bed, 1) == 0) {
        for (uint64_t step = 1; step <= 2; step++) {
            if (begin(&peers[0], step) != 0)
                continue;
            finish(&peers[0], step);
            acknowledged[step] = wait_save(bed, step, reason) == COMMITTED;
            if (acknowledged[step] || !strstr(reason, "could not be synced"))
                continue;
            /* It cannot be written again, but one failed sync does not take the disk offline. */
            failed_syncs += 1;
            json_t *status = bed_status(bed);
            assert_string_equal(json_string_value(json_object_get(status, "offline")), "");
            json_decref(status);
        }
    }
    peers_close(peers, 1);
    uint64_t operations = storage_fault_operations(bed->service->storage);
    bed_stop(bed);
    return operations;
}

static void look_at_acknowledged(struct bed *bed)
{
    bed->config.pool_bytes = LARGE_POOL;
    assert_int_equal(bed_start(bed), 0);
    for (uint64_t step = 1; step <= 2; step++)
        if (acknowledged[step])
            assert_int_equal(load_all(bed, (int64_t)step, NULL), 0);
    bed_stop(bed);
}

/* Runs differ by a few operations, so it ends when UNTOUCHED_ROW successive runs had no operation
 * of that number. */
BED_TEST_BETWEEN(test_window__no_single_failed_operation_loses_an_acknowledged_checkpoint, set_up,
                 tear_down)
{
    char plain[160];
    uint32_t operation = 1;
    bed_stop(bed);
    failed_syncs = 0;
    for (uint32_t untouched = 0; untouched < UNTOUCHED_ROW; operation++) {
        assert_true(operation <= 200);
        snprintf(plain, sizeof plain, "%s/store-%u", bed->root, operation);
        snprintf(bed->config.store, sizeof bed->config.store, "fault:fail_at=%u:local:%s",
                 operation, plain);
        untouched = live_through(bed) < operation ? untouched + 1 : 0;
        snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
        look_at_acknowledged(bed);
        shell("rm -rf '%s'", plain);
    }
    assert_true(operation - UNTOUCHED_ROW > 20);
    assert_int_equal(failed_syncs, 2);
}

SUITE(NULL, NULL)
