/* ckptd_load.c - ckptd's read-ahead for loads, and how often it reads.
 *
 * Goal: the shards of a plan are read ahead, once, however small the pool is and however far apart
 * the ranks are. No load loses memory that it still needs. An image left by a writer is lent
 * without a read. A reader may wait for its first shard without limit; ckptd notices one that
 * disconnects meanwhile. Method: a service in this process and raw clients (ckptd_bed.h) that go
 * through their plans step by step; Status reports the images in memory, the verified ones, and the
 * bytes read. */
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#define SHARDS 8u /* of 512 KiB and a header: one segment each */

static struct peer peers[SHARDS];
static atomic_long slow_ms; /* reads for opening the file of a shard, in addition */

int __real_storage_object_open(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t *out_bytes);
int __wrap_storage_object_open(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t *out_bytes);
int __wrap_storage_object_open(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t *out_bytes)
{
    sleep_ms(atomic_load(&slow_ms));
    return __real_storage_object_open(storage, out, key, out_bytes);
}

static json_int_t status(struct bed *bed, const char *object, const char *key)
{
    return (json_int_t)status_number(bed, object, key);
}

static void save_steps(struct bed *bed, uint64_t count)
{
    bed_open_world(bed, peers, SHARDS);
    for (uint64_t step = 1; step <= count; step++)
        assert_true(save_step(peers, SHARDS, step));
}

static void save_and_go(struct bed *bed, uint64_t count)
{
    save_steps(bed, count);
    peers_close(peers, SHARDS);
}

/* Starts the service anew with a pool of so many shards. */
static void restart(struct bed *bed, uint32_t pool_shards)
{
    bed->config.pool_bytes = pool_shards * MIB;
    bed->config.limit_load_wait_ms = 200;
    bed_restart(bed);
}

static uint64_t bytes_of(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t bytes = reply->checkpoints[0]->bytes;
    FREE_REPLY(reply);
    return bytes;
}

/* The next shard on a rank's way through the checkpoint: loaded, compared, released. */
static void step_through(struct loading *loading, uint32_t shard)
{
    assert_int_equal(load_shard(loading, shard, NULL), 0);
    assert_true(shard_is_right(loading, shard, loading->step));
    assert_int_equal(load_release(loading, shard), 0);
}

/* Wants the whole matrix `count` times. */
static int open_many(struct loading *out, struct bed *bed, size_t count)
{
    struct rows rows;
    rows_init(&rows, 0, ROWS);
    Holdfast__V1__Slice **slices = malloc(count * sizeof *slices);
    for (size_t i = 0; i < count; i++)
        slices[i] = rows.slices[0];
    int error = load_open_slices(out, bed, -1, slices, count);
    free(slices);
    return error;
}

BED_TEST(test_load__whose_plan_no_answer_holds_is_refused_and_leaves_nothing)
{
    struct loading loading;
    save_and_go(bed, 1);
    assert_int_equal(open_many(&loading, bed, 200000 / SHARDS), ERR_INVALID);
    assert_non_null(strstr(report_line(), "larger than"));
    assert_int_equal(open_many(&loading, bed, 400000 / SHARDS), ERR_INVALID);
    assert_non_null(strstr(report_line(), "boxes"));
    assert_int_equal(status(bed, "sessions", "loads"), 0);
    assert_int_equal(open_many(&loading, bed, 20000 / SHARDS), 0);
    assert_int_equal(status(bed, "sessions", "loads"), 1);
    load_close(&loading);
}

BED_TEST(test_load__through_a_small_pool_ranks_read_each_byte_once)
{
    struct loading fast, slow;
    save_and_go(bed, 1);
    restart(bed, 2);
    assert_int_equal(load_open_rows(&fast, bed, -1, 0, ROWS), 0);
    assert_int_equal(load_open_rows(&slow, bed, -1, 0, ROWS), 0);
    step_through(&fast, 0);
    step_through(&fast, 1);
    for (uint32_t shard = 2; shard < SHARDS; shard++) {
        /* The pool is full of shards that the slow rank has yet to see: none of them is evicted. */
        assert_int_equal(load_shard(&fast, shard, NULL), ERR_BUSY);
        step_through(&slow, shard - 2);
        step_through(&fast, shard);
    }
    step_through(&slow, SHARDS - 2);
    step_through(&slow, SHARDS - 1);
    assert_int_equal(status(bed, "since_start", "bytes_read"), bytes_of(bed));
    load_close(&fast);
    load_close(&slow);
}

BED_TEST(test_load__a_plan_is_read_before_it_is_asked_for_and_nothing_else)
{
    struct loading loading;
    save_and_go(bed, 2);
    restart(bed, SHARDS);
    assert_int_equal(load_open_rows(&loading, bed, 1, ROWS / SHARDS * 2, 2 * ROWS / SHARDS), 0);
    assert_true(wait_number(bed, "images", "proven", 2));
    sleep_ms(50);
    assert_int_equal(status(bed, "images", "resident"), 2);
    assert_int_equal(status(bed, "since_start", "bytes_read"), bytes_of(bed) / SHARDS * 2);
    char tier[16];
    assert_int_equal(load_shard(&loading, 3, tier), 0);
    assert_string_equal(tier, "local"); /* for this load it came from disk, though it was there */
    step_through(&loading, 2);
    assert_int_equal(status(bed, "images", "resident"), 1); /* an old step is kept for no reader */
    load_close(&loading);
    assert_true(
        wait_number(bed, "pool", "segments_used", 0)); /* nor a step that was never asked for */
}

BED_TEST(test_load__a_save_takes_what_was_only_read_ahead)
{
    struct loading loading;
    save_and_go(bed, 1);
    restart(bed, SHARDS);
    assert_int_equal(load_open_rows(&loading, bed, 1, 0, ROWS), 0);
    assert_true(wait_number(bed, "images", "proven", SHARDS));
    save_steps(bed, 1);
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        step_through(&loading, shard);
    load_close(&loading);
    peers_close(peers, SHARDS);
}

BED_TEST(test_load__what_a_killed_writer_left_is_lent_without_a_read)
{
    save_and_go(bed, 1);
    assert_int_equal(load_all(bed, -1, NULL), 0);
    assert_int_equal(status(bed, "images", "resident"), SHARDS);
    assert_int_equal(status(bed, "images", "proven"), 0); /* each reader verifies its own copy */
    assert_int_equal(status(bed, "since_start", "bytes_read"), 0);
}

/* Starts the service anew, with no memory of damage, on a store that holds each request back for a
 * while. */
static void restart_slow(struct bed *bed, uint32_t seed)
{
    char store[sizeof bed->config.store], slow[sizeof store + 64];
    bed_stop(bed);
    bed_forget_damage(bed);
    memcpy(store, bed->config.store, sizeof store);
    int length = snprintf(slow, sizeof slow, "fault:seed=%u,delay_us=60000:local:%s", seed, store);
    assert_in_range(length, 1, sizeof store - 1);
    memcpy(bed->config.store, slow, sizeof store);
    assert_int_equal(bed_start(bed), 0);
    memcpy(bed->config.store, store, sizeof store);
}

/* Takes the one shard part by part; the error that ends it. *out_early: parts that came while
 * others were still being read. */
static int load_in_parts(struct bed *bed, uint32_t *out_early)
{
    struct loading loading;
    int error = load_open_rows(&loading, bed, -1, 0, ROWS);
    for (uint64_t at = DATA_START; error == 0;) {
        error = load_shard_from(&loading, 0, at, NULL);
        if (error != 0 || at >= loading.peer.image_bytes)
            break;
        uint64_t end = loading.part_start + loading.part_bytes;
        assert_true(loading.part_start <= at && at < end && end <= loading.peer.image_bytes);
        assert_true(part_is_right(&loading, 1));
        *out_early += end < loading.peer.image_bytes;
        at = end;
    }
    load_close(&loading);
    return error;
}

#define SLOW_STARTS 24u /* the delays are drawn: in one of so many a first part comes first */

BED_TEST(test_load__damage_further_on_ends_a_load_that_has_begun)
{
    uint32_t early = 0;
    bed_save_steps(bed, peers, 1, 1, 1);
    bed_flip_byte(bed, 1, 1, "shard-00001-of-00001.safetensors", 4 * MIB - 7);
    for (uint32_t seed = 1; seed <= SLOW_STARTS; seed++) {
        restart_slow(bed, seed);
        assert_int_equal(load_in_parts(bed, &early), ERR_CORRUPT);
    }
    assert_true(early > 0);
}

BED_TEST(test_load__the_first_shard_may_take_longer_than_a_reader_may_to_connect)
{
    struct loading loading;
    save_and_go(bed, 1);
    bed->config.limit_connect_ms = 100;
    restart(bed, SHARDS);
    atomic_store(&slow_ms, 400);
    assert_int_equal(load_open_rows(&loading, bed, -1, 0, ROWS), 0);
    step_through(&loading, 0);
    atomic_store(&slow_ms, 0);
    for (uint32_t shard = 1; shard < SHARDS; shard++)
        step_through(&loading, shard);
    load_close(&loading);
}

/* It has mapped nothing yet. */
BED_TEST(test_load__a_reader_that_goes_while_it_waits_leaves_nothing)
{
    struct loading loading;
    save_and_go(bed, 1);
    restart(bed, SHARDS);
    atomic_store(&slow_ms, 400);
    assert_int_equal(load_open_rows(&loading, bed, -1, 0, ROWS), 0);
    assert_int_equal(status(bed, "sessions", "loads"), 1);
    peer_close(&loading.peer);
    assert_true(wait_number(bed, "sessions", "loads", 0));
    atomic_store(&slow_ms, 0);
}

SUITE(NULL, NULL)
