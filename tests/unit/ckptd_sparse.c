/* ckptd_sparse.c - what a load of some of a checkpoint reads of the device.
 *
 * Goal: ckptd reads only the chunks that open loads need, counts them, and lends saved bytes;
 * damage elsewhere does not matter, and is found when a load needs the chunk; a reader that goes
 * through a shard from its first byte gets all of it. Method: a service in this process and raw
 * clients (ckptd_bed.h) that want ranges of rows of one shard and ask for what they need next. Rows
 * are of 4 KiB and lie in one chunk each; the checksum table has a chunk of its own. The gate holds
 * a worker where a race needs it. Which chunks any loads need together is told by
 * ckptd_read_plan_any.c. */
#define ROWS 1023u
#define COLUMNS 1024u
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#define ROW_BYTES (COLUMNS * 4u)
#define CHUNKS_MAX 5u
#define RANGES_MAX 4u

static struct peer peers[1];

/* While it is shut, a worker that closes the file of a shard waits. */
static struct {
    atomic_bool is_shut;
    atomic_uint closing; /* since it was shut */
    atomic_uint asked;   /* calls that met a read under way, since it was shut */
} gate;

void __real_storage_object_close(struct storage *storage, struct storage_object *object);
void __wrap_storage_object_close(struct storage *storage, struct storage_object *object);
void __wrap_storage_object_close(struct storage *storage, struct storage_object *object)
{
    atomic_fetch_add(&gate.closing, 1);
    while (atomic_load(&gate.is_shut))
        sleep_ms(1);
    __real_storage_object_close(storage, object);
}

void __real_read_plan_ask_from(struct read_shard *shard, uint64_t byte);
void __wrap_read_plan_ask_from(struct read_shard *shard, uint64_t byte);
void __wrap_read_plan_ask_from(struct read_shard *shard, uint64_t byte)
{
    __real_read_plan_ask_from(shard, byte);
    atomic_fetch_add(&gate.asked, 1);
}

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

/* The first byte from `from` on that is wanted; UINT64_MAX: none. */
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

/* Are the bytes from `from` to the end of what was lent those of the shard? */
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

/* ---- what is read ---- */

TEST_BETWEEN(test_sparse__a_few_rows_cost_the_chunks_they_lie_in, bed_set_up, bed_tear_down)
{
    struct bed *bed = *state;
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

TEST_BETWEEN(test_sparse__a_later_load_reads_the_rest_and_then_nothing, bed_set_up, bed_tear_down)
{
    struct bed *bed = *state;
    char tier[16];
    begin(bed);
    struct wanting some = wants(bed, 300, 300);
    take_and_release(&some);
    assert_true(has_read(bed, 2 * MIB));
    struct wanting all = wants(bed, 0, ROWS);
    take_and_release(&all);
    assert_true(has_read(bed, FILE_BYTES));
    assert_true(wait_number(bed, "images", "proven", 1));
    assert_true(is_in_memory(bed)); /* its table as well, though nobody needs that */
    load_close(&some.loading);
    load_close(&all.loading);
    struct wanting again = wants(bed, 0, ROWS);
    assert_int_equal(load_shard_from(&again.loading, 0, DATA_START, tier), 0);
    assert_string_equal(tier, "memory");
    assert_int_equal(again.loading.part_bytes, FILE_BYTES);
    load_close(&again.loading);
    end_having_read(bed, FILE_BYTES);
}

TEST_BETWEEN(test_sparse__who_reads_on_from_the_first_byte_gets_the_whole_shard, bed_set_up,
             bed_tear_down)
{
    struct bed *bed = *state;
    uint32_t calls = 0;
    begin(bed);
    struct wanting few = wants(bed, 600, 10);
    assert_true(wait_number(bed, "images", "proven", 1));
    for (uint64_t at = 0; at < FILE_BYTES;
         at = few.loading.part_start + few.loading.part_bytes, calls++) {
        assert_int_equal(load_shard_from(&few.loading, 0, at, NULL), 0);
        assert_true(lent_is_right(&few.loading, at));
    }
    assert_in_range(calls, 1, CHUNKS_MAX);
    load_close(&few.loading);
    assert_true(wait_number(bed, "images", "proven", 1));
    assert_true(is_in_memory(bed));
    end_having_read(bed, FILE_BYTES);
}

/* ---- damage ---- */

static void assert_durability(struct bed *bed, const char *want)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    assert_string_equal(reply->checkpoints[0]->durability, want);
    FREE_REPLY(reply);
}

TEST_BETWEEN(test_sparse__damage_counts_when_somebody_needs_the_chunk, bed_set_up, bed_tear_down)
{
    struct bed *bed = *state;
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
    /* What was lent before stays what it was as long as the load has it. */
    assert_true(lent_is_right(&behind.loading, 4 * MIB - ROW_BYTES));
    assert_int_equal(take_wanted(&behind), ERR_CORRUPT);
    load_close(&before.loading);
    load_close(&behind.loading);
    load_close(&hit.loading);
    assert_true(wait_number(bed, "pool", "segments_used", 0));
}

/* ---- shards larger than the pool ---- */

TEST_BETWEEN(test_sparse__of_a_part_only_what_is_needed_is_read_and_once, bed_set_up, bed_tear_down)
{
    struct bed *bed = *state;
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

/* ---- races ---- */

struct taking {
    struct wanting wanting;
    int error;
    pthread_t thread;
};

static void *take_thread(void *argument)
{
    struct taking *taking = argument;
    taking->error = take_wanted(&taking->wanting);
    return NULL;
}

static void wait_until(atomic_uint *count, unsigned least)
{
    for (int i = 0; i < 10000 && atomic_load(count) < least; i++)
        sleep_ms(1);
    assert_in_range(atomic_load(count), least, UINT32_MAX);
}

static void shut_gate(void)
{
    atomic_store(&gate.closing, 0);
    atomic_store(&gate.asked, 0);
    atomic_store(&gate.is_shut, true);
}

static int tear_down_gate(void **state)
{
    atomic_store(&gate.is_shut, false); /* also when the test failed */
    return bed_tear_down(state);
}

TEST_BETWEEN(test_sparse__what_is_asked_for_while_the_file_is_closed_is_read, bed_set_up,
             tear_down_gate)
{
    struct bed *bed = *state;
    struct taking late = {.error = 1};
    begin(bed);
    shut_gate();
    struct wanting few = wants(bed, 300, 100); /* of chunk 1 */
    wait_until(&gate.closing, 1);
    late.wanting = wants(bed, 800, 10); /* of chunk 3 */
    pthread_create(&late.thread, NULL, take_thread, &late);
    wait_until(&gate.asked, 1);
    atomic_store(&gate.is_shut, false);
    pthread_join(late.thread, NULL);
    assert_int_equal(late.error, 0);
    take_and_release(&few);
    assert_true(has_read(bed, 2 * MIB));
    assert_true(wait_number(bed, "images", "proven", 1));
    assert_int_equal(atomic_load(&gate.closing), 2);
    load_close(&few.loading);
    load_close(&late.wanting.loading);
}

/* The file is opened a second time for what is missing, when the pool holds no second image. */
TEST_BETWEEN(test_sparse__a_read_that_could_not_begin_can_be_asked_for_again, bed_set_up,
             bed_tear_down)
{
    struct bed *bed = *state;
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
