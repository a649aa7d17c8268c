/* ckptd_read_plan.c - the reads of loads, their order, and the chunks that are lent
 * (ckptd/machines/read_plan.c).
 *
 * Goal: each decision of the machine, and its invariant read_plan.P8. Method: one shard, one load
 * or one call at a time; ckptd_read_plan_any.c combines many, and tests P1 to P7. */
#include "ckptd/machines/read_plan.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 64u /* bytes, and a segment of the pool */
#define CHUNKS 6u
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- one shard ---- */

struct bench {
    struct read_plan plan;
    struct read_shard shard;
    uint8_t chunks[CHUNKS];
};

/* Five chunks with tensor data in 0 to 3, and the checksum table alone in the last. */
static const struct read_file five = {4 * CHUNK + 8, 8, 4 * CHUNK, CHUNK};

static void bench_init(struct bench *bench, uint64_t lend_bytes)
{
    memset(bench, 0, sizeof *bench);
    read_plan_init(&bench->plan, 2, lend_bytes);
    read_plan_shard(&bench->shard, &bench->plan, &five, bench->chunks);
    assert_int_equal(read_plan_begin(&bench->shard), READ_OPEN);
}

static void ask_for(struct bench *bench, uint32_t first, uint32_t end)
{
    struct read_want want = {.num_ranges = 1};
    struct read_range range = {first, end};
    read_plan_ask(&bench->shard, &(struct read_load){.shards = &want, .ranges = &range}, 0);
}

/* Starts all requested reads; returns a mask of the chunks, and in *out_wakes those that wake. */
static uint32_t start_all(struct bench *bench, uint32_t *out_wakes)
{
    uint32_t mask = 0, chunk;
    bool wakes;
    for (*out_wakes = 0; read_plan_start(&bench->shard, &chunk, &wakes); mask |= 1u << chunk)
        *out_wakes |= (uint32_t)wakes << chunk;
    return mask;
}

TEST(test_read_plan__a_pass_reads_what_was_asked_for_before_its_file_was_open)
{
    struct bench bench;
    uint32_t wakes;
    bench_init(&bench, 2 * CHUNK);
    ask_for(&bench, 1, 3);
    assert_int_equal(start_all(&bench, &wakes), 0);
    assert_int_equal(read_plan_opened(&bench.shard, true), READ_START);
    assert_int_equal(start_all(&bench, &wakes), 6);
    assert_int_equal(wakes, 4); /* with the second chunk 2 * CHUNK may be there */
    ask_for(&bench, 0, 2);
    assert_int_equal(start_all(&bench, &wakes), 1);
    assert_int_equal(read_plan_came(&bench.shard, 2, true), READ_NOTHING);
    assert_int_equal(read_plan_came(&bench.shard, 0, true), READ_NOTHING);
    assert_int_equal(read_plan_came(&bench.shard, 1, true), READ_CLOSE);
    assert_int_equal(read_plan_closed(&bench.shard), READ_DONE);
    assert_true(read_plan_has(&bench.shard, 0) && read_plan_has(&bench.shard, 2));
    assert_false(read_plan_has(&bench.shard, 3));
    assert_int_equal(bench.shard.num_missing, 2);
}

TEST(test_read_plan__a_byte_that_nobody_wants_gets_all_behind_it)
{
    struct bench bench;
    bench_init(&bench, CHUNK);
    ask_for(&bench, 1, 2);
    read_plan_ask_from(&bench.shard, CHUNK + 5); /* requested: nothing more */
    assert_int_equal(bench.shard.num_asked, 1);
    read_plan_ask_from(&bench.shard, 3 * CHUNK);
    assert_int_equal(bench.shard.num_asked, 3);
    assert_int_equal(bench.chunks[2], READ_CHUNK_MISSING);
}

TEST(test_read_plan__enough_in_one_piece_is_lent_or_all_that_comes)
{
    struct bench bench;
    uint32_t wakes;
    struct read_call call = {.from_byte = CHUNK + 3, .end_chunk = 1};
    bench_init(&bench, 2 * CHUNK);
    ask_for(&bench, 0, 3);
    read_plan_opened(&bench.shard, true);
    start_all(&bench, &wakes);
    read_plan_came(&bench.shard, 0, true);
    assert_false(read_plan_may_lend(&call, &bench.shard));
    read_plan_came(&bench.shard, 1, true);
    assert_false(read_plan_may_lend(&call, &bench.shard)); /* chunk 2 is under way */
    struct read_call two = {.from_byte = 0, .end_chunk = 0};
    assert_true(read_plan_may_lend(&two, &bench.shard));
    assert_int_equal(read_plan_lend_end(&two, &bench.shard), 2 * CHUNK);
    read_plan_came(&bench.shard, 2, true);
    assert_true(read_plan_may_lend(&call, &bench.shard)); /* no load asked for chunk 3 */
    assert_int_equal(read_plan_lend_end(&call, &bench.shard), 3 * CHUNK);
}

/* ---- loads ---- */

struct plan {
    struct read_load load;
    struct read_want shards[4];
    uint32_t order[4];
    struct read_range ranges[8];
};

static void plan_init(struct plan *plan, const void *checkpoint)
{
    memset(plan, 0, sizeof *plan);
    plan->load.checkpoint = checkpoint;
    plan->load.shards = plan->shards;
    plan->load.order = plan->order;
    plan->load.ranges = plan->ranges;
}

TEST(test_read_plan__ranges_of_a_shard_are_sorted_and_merged)
{
    static const struct read_range raw[] = {{4, 5}, {2, 3}, {2, 3}, {7, 9}, {3, 4}};
    struct plan plan;
    plan_init(&plan, NULL);
    for (uint32_t i = 0; i < COUNT(raw); i++)
        read_plan_add(&plan.load, 1, raw[i]);
    read_plan_add(&plan.load, 3, raw[0]);
    read_plan_added(&plan.load);
    static const struct read_range want[] = {{2, 5}, {7, 9}, {4, 5}};
    assert_int_equal(plan.load.num_ranges, COUNT(want));
    assert_memory_equal(plan.ranges, want, sizeof want);
    assert_int_equal(plan.shards[3].first_range, 2);
    assert_true(read_plan_release(&plan.load, 1));
    assert_false(read_plan_release(&plan.load, 1) || read_plan_release(&plan.load, 2));
}

/* The chunks in memory of shards 0 to 3 for the current load. */
static bool offer_all(struct read_next *next, struct read_load *load,
                      const struct read_shard *const in_memory[4])
{
    uint32_t shard;
    while (read_plan_at(&shard, next, load))
        if (read_plan_offer(next, load, in_memory[shard]))
            return true;
    return false;
}

TEST(test_read_plan__the_lowest_shard_that_lacks_something_is_read_ahead)
{
    int checkpoints[2];
    struct bench sparse, whole;
    struct plan fast, slow, other;
    struct read_next next = {0};
    bench_init(&sparse, CHUNK);
    read_plan_opened(&sparse.shard, true); /* nothing was requested */
    read_plan_closed(&sparse.shard);
    bench_init(&whole, CHUNK);
    whole.shard.num_missing = 0;
    const struct read_shard *const in_memory[] = {&whole.shard, NULL, &sparse.shard, NULL};
    plan_init(&fast, &checkpoints[0]);
    plan_init(&slow, &checkpoints[0]);
    plan_init(&other, &checkpoints[1]);
    for (uint32_t shard = 0; shard < 4; shard++) {
        read_plan_add(&fast.load, shard, (struct read_range){0, 2});
        read_plan_add(&other.load, shard, (struct read_range){0, 2});
        if (shard > 1)
            read_plan_add(&slow.load, shard, (struct read_range){0, 2});
    }
    fast.shards[1].is_in_parts = true; /* never read ahead */
    read_plan_release(&fast.load, 2);
    assert_true(offer_all(&next, &fast.load, in_memory));
    assert_true(next.load == &fast.load && next.shard == 3);
    assert_true(offer_all(&next, &slow.load, in_memory)); /* sparse, and idle */
    assert_true(next.load == &slow.load && next.shard == 2);
    assert_false(offer_all(&next, &other.load, in_memory)); /* the first one's checkpoint */
    assert_int_equal(other.load.next, 0);
    read_plan_pass_over(&next);
    assert_true(offer_all(&(struct read_next){0}, &slow.load, in_memory));
    assert_int_equal(slow.load.next, 1);
    read_plan_begin(&sparse.shard); /* under way */
    slow.load.next = 0;
    next = (struct read_next){0};
    assert_true(offer_all(&next, &slow.load, in_memory));
    assert_int_equal(next.shard, 3);
}

TEST(test_read_plan__nothing_is_read_ahead_of_a_full_queue_or_a_call_that_starves)
{
    struct read_plan plan;
    read_plan_init(&plan, 32, 1ull << 30);
    assert_int_equal(plan.lend_bytes, 64 << 20);
    plan.num_asked = 127;
    assert_true(read_plan_has_room(&plan, false));
    assert_false(read_plan_has_room(&plan, true));
    plan.num_asked = 128;
    assert_false(read_plan_has_room(&plan, false));
}

/* ---- calls ---- */

TEST(test_read_plan__a_call_is_answered_by_what_there_is)
{
    struct bench idle, busy;
    const struct read_shard save = {.file = five};
    bench_init(&busy, CHUNK);
    bench_init(&idle, CHUNK);
    idle.shard.state = READ_IDLE;
    idle.chunks[1] = READ_CHUNK_THERE;
    const struct read_shard *sparse = &idle.shard, *pass = &busy.shard, *saved = &save;
    const struct {
        struct read_call call;
        struct read_found found;
        enum read_answer answer;
    } table[] = {
        {{.from_byte = 264}, {.bytes = 264}, READ_ANSWER_BEYOND},
        {{.from_byte = 263}, {.bytes = 264}, READ_ANSWER_MAKE},
        {{.from_byte = CHUNK}, {sparse, NULL, false, true, false, 264}, READ_ANSWER_LEND},
        {{.from_byte = 0}, {sparse, NULL, false, true, false, 264}, READ_ANSWER_READ},
        {{.from_byte = 0}, {pass, NULL, false, true, false, 264}, READ_ANSWER_WAIT},
        {{.from_byte = 0}, {pass, NULL, false, false, false, 264}, READ_ANSWER_WAIT},
        {{.from_byte = CHUNK}, {sparse, NULL, false, false, false, 264}, READ_ANSWER_REPLACE},
        /* read_plan.P8 */
        {{.checks = true}, {saved, NULL, true, true, false, 264}, READ_ANSWER_LEND},
        {{.checks = false}, {saved, NULL, true, true, false, 264}, READ_ANSWER_REPLACE},
        {{.checks = true, .from_file = true},
         {saved, NULL, true, true, false, 264},
         READ_ANSWER_REPLACE},
        {{.checks = true}, {saved, NULL, true, false, false, 264}, READ_ANSWER_REPLACE},
        {{.from_file = true}, {saved, NULL, false, true, false, 264}, READ_ANSWER_LEND},
        /* parts */
        {{.from_byte = 0}, {NULL, NULL, false, false, true, 264}, READ_ANSWER_MAKE_PART},
        {{.from_byte = 0}, {NULL, sparse, false, false, true, 264}, READ_ANSWER_MAKE_PART},
        {{.from_byte = CHUNK}, {NULL, sparse, false, false, true, 264}, READ_ANSWER_LEND_PART},
    };
    for (uint32_t i = 0; i < COUNT(table); i++) {
        struct read_call call = table[i].call;
        assert_int_equal(read_plan_call(&call, &table[i].found, CHUNK), table[i].answer);
        assert_int_equal(call.end_chunk, call.from_byte / CHUNK);
    }
    struct read_call all = {.from_byte = 0};
    assert_int_equal(read_plan_lend_end(&all, saved), five.file_bytes);
}

TEST(test_read_plan__a_part_lies_on_a_grid_of_the_pool_and_is_lent_when_complete)
{
    struct bench bench;
    uint32_t wakes;
    bench_init(&bench, CHUNK);
    read_plan_part(&bench.shard, &bench.plan, &five, bench.chunks, 2, 3 * CHUNK + 1);
    assert_true(bench.shard.first == 2 && bench.shard.end == 4);
    read_plan_begin(&bench.shard);
    ask_for(&bench, 0, 5);
    assert_int_equal(bench.shard.num_asked, 2);
    read_plan_opened(&bench.shard, true);
    assert_int_equal(start_all(&bench, &wakes), 12);
    read_plan_came(&bench.shard, 3, true);
    struct read_call call = {.from_byte = 3 * CHUNK, .end_chunk = 3};
    assert_false(read_plan_may_lend(&call, &bench.shard));
    assert_int_equal(read_plan_came(&bench.shard, 2, true), READ_CLOSE);
    assert_int_equal(read_plan_closed(&bench.shard), READ_DONE);
    assert_int_equal(read_plan_lend_end(&call, &bench.shard), 4 * CHUNK);
    assert_true(read_plan_has(&bench.shard, 2) && !read_plan_has(&bench.shard, 4));
    read_plan_part(&bench.shard, &bench.plan, &five, bench.chunks, 2, 4 * CHUNK);
    assert_true(bench.shard.first == 4 && bench.shard.end == 5);
    assert_int_equal(read_plan_part_segments(7), 1);
    assert_int_equal(read_plan_part_segments(40), 5);
}

TEST(test_read_plan__memory_goes_to_lower_shards_and_to_those_who_wait)
{
    static const int here, there;
    struct read_taker taker = {&here, 3, false};
    assert_true(read_plan_may_take(&taker, &here, 4));
    assert_false(read_plan_may_take(&taker, &here, 2));
    assert_false(read_plan_may_take(&taker, &there, 9));
    taker.is_awaited = true;
    assert_false(read_plan_may_take(&taker, &here, 2));
    assert_true(read_plan_may_take(&taker, &there, 0));
}

TEST(test_read_plan__a_tier_that_fails_to_answer_proves_no_damage)
{
    assert_true(read_plan_is_damage(ERR_CORRUPT, TIER_FAR));
    assert_true(read_plan_is_damage(ERR_NOT_FOUND, TIER_FAR));
    assert_true(read_plan_is_damage(ERR_IO, TIER_LOCAL));
    assert_false(read_plan_is_damage(ERR_IO, TIER_FAR));
    assert_false(read_plan_is_damage(ERR_UNAVAILABLE, TIER_LOCAL));
}

SUITE(NULL, NULL)
