/* ckptd_sparse.c - the device reads of a load that needs only parts of a checkpoint.
 *
 * Goal: ckptd reads only the chunks that open loads need, counts them, and lends saved bytes.
 * Damage elsewhere does not matter, and is found when a load needs the chunk. Method: a service in
 * this process and raw clients (ckptd_bed.h) that want ranges of rows of one shard and ask for the
 * next range that they need. Rows are of 4 KiB and lie in one chunk each; the checksum table has a
 * separate chunk. ckptd_read_plan_any.c tests which chunks several loads need, and when. */
#define ROWS 1023u
#define COLUMNS 1024u
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#define ROW_BYTES (COLUMNS * 4u)
#define RANGES_MAX 4u

static struct peer peers[1];

struct range {
    uint64_t first, count; /* rows */
};

/* A load, and the rows that it wants. */
struct wanting {
    struct loading loading;
    struct range ranges[RANGES_MAX];
    uint32_t num_ranges;
};

#define DATA_END (DATA_START + (uint64_t)ROWS * ROW_BYTES)
#define FILE_BYTES (DATA_END + 4096) /* with the table */

/* ---- loads ---- */

static int open_wanting(struct wanting *wanting, struct bed *bed)
{
    struct rows rows[RANGES_MAX];
    Holdfast__V1__Slice *slices[RANGES_MAX];
    for (uint32_t i = 0; i < wanting->num_ranges; i++) {
        rows_init(&rows[i], wanting->ranges[i].first, wanting->ranges[i].count);
        slices[i] = &rows[i].slice;
    }
    return load_open_slices(&wanting->loading, bed, -1, slices, wanting->num_ranges);
}

static struct wanting wants(struct bed *bed, uint64_t first, uint64_t count)
{
    struct wanting out = {.ranges = {{first, count}}, .num_ranges = 1};
    assert_int_equal(open_wanting(&out, bed), 0);
    return out;
}

/* The first wanted byte at or after `from`; UINT64_MAX: none. */
static uint64_t next_wanted(const struct wanting *wanting, uint64_t from)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < wanting->num_ranges; i++) {
        const struct range *range = &wanting->ranges[i];
        uint64_t first = DATA_START + range->first * ROW_BYTES;
        uint64_t end = first + range->count * ROW_BYTES;
        first = first > from ? first : from;
        if (first < end && first < next)
            next = first;
    }
    return next;
}

/* True when the bytes from `from` to the end of the loan are those of the shard. */
static bool lent_is_right(const struct loading *loading, uint64_t from)
{
    uint64_t end = loading->part_start + loading->part_bytes;
    assert_true(loading->part_start <= from && from < end && end <= loading->peer.image_bytes);
    return part_is_right_from(loading, from, 1);
}

/* Everything that the load wants, compared; the first error. */
static int take_wanted(struct wanting *wanting)
{
    struct loading *loading = &wanting->loading;
    for (uint64_t at = next_wanted(wanting, 0); at != UINT64_MAX;
         at = next_wanted(wanting, loading->part_start + loading->part_bytes)) {
        int error = load_shard_from(loading, 0, at, NULL);
        if (error != 0)
            return error;
        assert_true(lent_is_right(loading, at));
    }
    return 0;
}

static void take_and_release(struct wanting *wanting)
{
    assert_int_equal(take_wanted(wanting), 0);
    assert_int_equal(load_release(&wanting->loading, 0), 0);
}

/* A load may have all it needs before the last chunk that is read has come. */
static bool has_read(struct bed *bed, uint64_t bytes)
{
    return wait_number(bed, "since_start", "bytes_read", (double)bytes);
}

static bool is_in_memory(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    bool in_memory = reply->checkpoints[0]->in_memory;
    FREE_REPLY(reply);
    return in_memory;
}

/* Starts the service on a store in which step 1 was saved by one rank. */
static void begin(struct bed *bed)
{
    bed_save_steps(bed, peers, 1, 1, 1);
    bed_restart(bed);
}

/* When all is over, so that a read too many is seen as well. */
static void end_having_read(struct bed *bed, uint64_t bytes)
{
    bed_end_thread(bed);
    assert_int_equal(bed->service->loads->bytes_read, bytes);
    bed_close_service(bed);
}

/* ---- reads ---- */

BED_TEST(test_sparse__a_few_rows_cost_the_chunks_they_lie_in)
{
    begin(bed);
    struct wanting few = wants(bed, 300, 100);            /* of chunk 1 */
    assert_true(wait_number(bed, "images", "proven", 1)); /* read before it is asked for */
    assert_true(has_read(bed, MIB));
    take_and_release(&few);
    load_close(&few.loading);
    struct wanting border = wants(bed, 254, 2); /* the last of chunk 0, the first of chunk 1 */
    assert_true(has_read(bed, 2 * MIB));        /* chunk 0 ahead, too */
    take_and_release(&border);
    load_close(&border.loading);
    assert_false(is_in_memory(bed));
    end_having_read(bed, 2 * MIB);
}

BED_TEST(test_sparse__a_later_load_reads_the_rest_and_then_nothing)
{
    char tier[16];
    begin(bed);
    struct wanting some = wants(bed, 300, 300);
    take_and_release(&some);
    assert_true(has_read(bed, 2 * MIB));
    struct wanting all = wants(bed, 0, ROWS);
    take_and_release(&all);
    assert_true(has_read(bed, FILE_BYTES));
    assert_true(wait_number(bed, "images", "proven", 1));
    assert_true(is_in_memory(bed)); /* its table as well, though no load needs it */
    load_close(&some.loading);
    load_close(&all.loading);
    struct wanting again = wants(bed, 0, ROWS);
    assert_int_equal(load_shard_from(&again.loading, 0, DATA_START, tier), 0);
    assert_string_equal(tier, "memory");
    assert_int_equal(again.loading.part_bytes, FILE_BYTES);
    load_close(&again.loading);
    end_having_read(bed, FILE_BYTES);
}

/* ---- damage ---- */

static void assert_durability(struct bed *bed, const char *want)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_string_equal(reply->checkpoints[0]->durability, want);
    FREE_REPLY(reply);
}

BED_TEST(test_sparse__damage_counts_when_somebody_needs_the_chunk)
{
    begin(bed);
    bed_flip_byte(bed, 1, 1, "shard-00001-of-00001.safetensors", 2 * MIB + 12345);
    struct wanting before = wants(bed, 0, 500), behind = wants(bed, 800, ROWS - 800);
    take_and_release(&before);
    take_and_release(&behind);
    assert_durability(bed, "local");
    assert_int_equal(load_shard_from(&behind.loading, 0, 4 * MIB - ROW_BYTES, NULL), 0);
    struct wanting hit = wants(bed, 600, 1);
    assert_int_equal(take_wanted(&hit), ERR_CORRUPT);
    assert_durability(bed, "damaged");
    /* Lent bytes stay unchanged as long as the load holds them. */
    assert_true(lent_is_right(&behind.loading, 4 * MIB - ROW_BYTES));
    assert_int_equal(take_wanted(&behind), ERR_CORRUPT);
    load_close(&before.loading);
    load_close(&behind.loading);
    load_close(&hit.loading);
    assert_true(wait_number(bed, "pool", "segments_used", 0));
}

/* ---- shards larger than the pool ---- */

BED_TEST(test_sparse__of_a_part_only_what_is_needed_is_read_and_once)
{
    char tier[16];
    begin(bed);
    bed->config.pool_bytes = bed->config.segment_bytes = 4 * MIB; /* the table does not fit in */
    bed_restart(bed);
    struct wanting ends = {.ranges = {{1000, 10}, {10, 10}}, .num_ranges = 2};
    assert_int_equal(open_wanting(&ends, bed), 0);
    take_and_release(&ends);
    assert_true(has_read(bed, 2 * MIB));
    load_close(&ends.loading);
    struct wanting all = wants(bed, 0, ROWS);
    /* The second time the part is there; its bytes came from the disk for this load. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load_shard_from(&all.loading, 0, DATA_START, tier), 0);
        assert_string_equal(tier, "local");
    }
    take_and_release(&all);
    assert_true(has_read(bed, 6 * MIB));
    load_close(&all.loading);
}

/* The file is opened a second time for the missing chunks, when the pool holds no second image. */
BED_TEST(test_sparse__a_read_that_could_not_begin_can_be_asked_for_again)
{
    char store[sizeof bed->config.store];
    begin(bed);
    bed_stop(bed);
    bed->config.pool_bytes = 6 * MIB;
    bed->config.segment_bytes = 2 * MIB;
    bed->config.limit_load_wait_ms = 2000;
    memcpy(store, bed->config.store, sizeof store);
    snprintf(bed->config.store, sizeof store,
             "fault:seed=1,only=open,fail_at=2,errno=%d:local:%.300s", EMFILE, store);
    assert_int_equal(bed_start(bed), 0);
    struct wanting few = wants(bed, 0, 100);
    assert_int_equal(load_shard_from(&few.loading, 0, DATA_START, NULL), 0);
    assert_true(wait_number(bed, "images", "proven", 1));
    assert_int_equal(load_shard_from(&few.loading, 0, 3 * MIB, NULL), ERR_BUSY);
    assert_int_equal(load_shard_from(&few.loading, 0, 3 * MIB, NULL), 0);
    assert_int_equal(load_shard_from(&few.loading, 0, DATA_START, NULL), 0);
    load_close(&few.loading);
    memcpy(bed->config.store, store, sizeof store);
}

SUITE(NULL, NULL)
