/* ckptd_replicas.c - which slices several ranks hold, and where their copies differ.
 *
 * Goal: slices that other ranks hold too are found on a mesh of shards and replicas, and no others.
 * Ranks that differ are reported with the rank whose copy is kept and the first block that differs,
 * as text and in a manifest that reads back; of a large slice all ranks hash the same blocks, one
 * from each sixteenth, others at each step. Method: plans of four ranks, digests of real bytes. */
#include "ckptd/attempt/replicas.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4u
#define SLICES 4u
#define STEP 7u
#define ROWS 40u
#define COLUMNS 2048u     /* F32: two rows are a block */
#define LARGE_BLOCKS 100u /* and a part of one */
#define LARGE (LARGE_BLOCKS * REPLICA_SAMPLE_BYTES + 5u)

/* HSDP of two shards and two replicas: "norm" is on all ranks, "w" on ranks 0, 2 and 1, 3, "own" on
 * rank 1 alone; "none" has no elements. */
static struct slice slices[RANKS][SLICES];
static uint32_t counts[RANKS];
static struct layout_table *table;
static struct replica_slice *replicas[RANKS];
static uint32_t num_replicas[RANKS];
static struct replica_digest digests[RANKS][SLICES];
static struct replica_rank ranks[RANKS];
static uint8_t data[ROWS / 2 * COLUMNS * 4];

static void describe(uint32_t rank, const char *name, uint64_t rows, uint64_t first, uint64_t count)
{
    struct slice *slice = &slices[rank][counts[rank]++];
    *slice = (struct slice){.tensor = {.dtype = DTYPE_F32, .dims = 2}};
    snprintf(slice->tensor.name, sizeof slice->tensor.name, "%s", name);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        slice->tensor.shape[d] = slice->box.extent[d] = d == 1 ? COLUMNS : 1;
    slice->tensor.shape[0] = rows;
    slice->box.offset[0] = first;
    slice->box.extent[0] = count;
}

static int open_world(void **state)
{
    const struct slice *list[RANKS];
    (void)state;
    memset(counts, 0, sizeof counts);
    for (uint32_t r = 0; r < RANKS; r++) {
        list[r] = slices[r];
        describe(r, "none", 0, 0, 0);
        if (r == 1)
            describe(r, "own", 3, 0, 3);
        describe(r, "w", ROWS, r % 2 * (ROWS / 2), ROWS / 2);
        describe(r, "norm", 2, 0, 2);
    }
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_ONE_REPLICA), 0);
    assert_int_equal(replicas_find(replicas, num_replicas, table, list, counts, RANKS), 0);
    memset(data, 0, sizeof data);
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r] = (struct replica_rank){slices[r], replicas[r], num_replicas[r], digests[r]};
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        free(replicas[r]);
    layout_table_free(table);
    return 0;
}

/* Each rank describes its slices, which all hold `data`. */
static void tell_all(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < num_replicas[r]; i++) {
            const struct slice *slice = &slices[r][replicas[r][i].slice];
            replica_digest(&digests[r][i], data, box_elements(&slice->box, 2) * 4,
                           replica_seed(slice->tensor.name, STEP));
        }
}

/* Changes a byte of rank `rank` there, in its i-th replicated slice. */
static void tell_other(uint32_t rank, uint32_t i, uint64_t at)
{
    const struct slice *slice = &slices[rank][replicas[rank][i].slice];
    data[at] ^= 1;
    replica_digest(&digests[rank][i], data, box_elements(&slice->box, 2) * 4,
                   replica_seed(slice->tensor.name, STEP));
    data[at] ^= 1;
}

static struct replicas_found compare(void)
{
    struct replicas_found found;
    assert_int_equal(replicas_differ(&found, table, ranks, RANKS, STEP), 0);
    return found;
}

/* ---- which ---- */

TEST_BETWEEN(test_replicas__slices_that_several_ranks_hold_are_found, open_world, close_world)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(num_replicas[r], 2);
        for (uint32_t i = 0; i < 2; i++) {
            const struct replica_slice *slice = &replicas[r][i];
            assert_string_equal(table->tensors[slice->tensor].name, i == 0 ? "w" : "norm");
            assert_string_equal(slices[r][slice->slice].tensor.name, i == 0 ? "w" : "norm");
            assert_int_equal(slice->cell, i == 0 ? r % 2 : 0);
        }
    }
}

/* ---- where they differ ---- */

TEST_BETWEEN(test_replicas__equal_copies_differ_nowhere, open_world, close_world)
{
    char text[REPLICAS_TEXT_BYTES];
    tell_all();
    struct replicas_found found = compare();
    assert_int_equal(found.num_differ, 0);
    assert_string_equal(replicas_text(text, &found, table), "");
}

TEST_BETWEEN(test_replicas__the_first_block_that_differs_is_told, open_world, close_world)
{
    char text[REPLICAS_TEXT_BYTES];
    const struct layout *layout = &table->layouts[table->layout_of[replicas[1][0].tensor]];
    uint32_t kept = layout->owners[1], other = kept == 1 ? 3 : 1; /* of the second half of w */
    tell_all();
    tell_other(other, 0, 3 * REPLICA_BLOCK_BYTES + 17);
    struct replicas_found found = compare();
    assert_int_equal(found.num_differ, 1);
    assert_int_equal(found.num_listed, 1);
    const struct replica_difference *entry = &found.list[0];
    assert_int_equal(entry->cell, 1);
    assert_int_equal(entry->kept, kept);
    assert_int_equal(entry->num_ranks, 1);
    assert_int_equal(entry->ranks[0], other);
    assert_int_equal(entry->block, 3);
    assert_int_equal(entry->where.first, 3 * REPLICA_BLOCK_BYTES);
    char wanted[160];
    snprintf(wanted, sizeof wanted,
             "rank %u holds other bytes than rank %u, first found in bytes 49152 to 65535 of its "
             "slice at [20, 0] of tensor w",
             other, kept);
    assert_string_equal(replicas_text(text, &found, table), wanted);
    tell_other(other, 0, REPLICA_BLOCK_BYTES); /* two blocks earlier */
    found = compare();
    assert_int_equal(found.list[0].block, 1);
}

TEST_BETWEEN(test_replicas__all_ranks_that_differ_are_told_and_all_slices_counted, open_world,
             close_world)
{
    char text[REPLICAS_TEXT_BYTES];
    uint32_t norm = replicas[0][1].tensor;
    uint32_t kept = table->layouts[table->layout_of[norm]].owners[0];
    tell_all();
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != kept)
            tell_other(r, 1, r); /* each other bytes */
    tell_other(table->layouts[table->layout_of[replicas[0][0].tensor]].owners[0], 0, 0);
    struct replicas_found found = compare();
    assert_int_equal(found.num_differ, 2);
    for (uint32_t i = 0; i < found.num_listed; i++)
        if (found.list[i].tensor == norm) {
            assert_int_equal(found.list[i].kept, kept);
            assert_int_equal(found.list[i].num_ranks, RANKS - 1);
        }
    assert_non_null(strstr(replicas_text(text, &found, table), ", and of 1 more"));
}

TEST_BETWEEN(test_replicas__a_rank_that_tells_nothing_is_not_compared, open_world, close_world)
{
    uint32_t kept = table->layouts[table->layout_of[replicas[0][1].tensor]].owners[0];
    uint32_t other = (kept + 1) % RANKS;
    tell_all();
    tell_other(other, 1, 0);
    memset(&digests[other][1], 0, sizeof digests[other][1]); /* not of this slice, */
    assert_int_equal(compare().num_differ, 0);
    ranks[other].digests = NULL; /* nor of any */
    assert_int_equal(compare().num_differ, 0);
    ranks[other].digests = digests[other];
    tell_other(other, 1, 0);
    assert_int_equal(compare().num_differ, 1);
    ranks[kept].digests = NULL; /* it is unknown which copy was kept */
    assert_int_equal(compare().num_differ, 0);
}

TEST_BETWEEN(test_replicas__a_manifest_has_them_in_its_mesh, open_world, close_world)
{
    char *mesh = NULL, wanted[256];
    uint32_t w = replicas[0][0].tensor;
    uint32_t kept = table->layouts[table->layout_of[w]].owners[1], other = kept == 1 ? 3 : 1;
    tell_all();
    tell_other(other, 0, 0);
    struct replicas_found found = compare();
    snprintf(wanted, sizeof wanted,
             "\"" REPLICAS_MEMBER "\":{\"slices\":1,\"first\":[{\"tensor\":\"w\",\"offset\":[20,0],"
             "\"kept\":%u,\"differ\":[%u],\"num_differ\":1,\"first_byte\":0,\"bytes\":16384}]}}",
             kept, other);
    static const struct {
        const char *mesh, *before;
    } rows[] = {
        {NULL, "{"}, {"{ }", "{"}, {"{\"pp\": 1,\n\"tp\":{}\n}\n", "{\"pp\": 1,\n\"tp\":{},"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(replicas_add(&mesh, rows[i].mesh, &found, table), 0);
        size_t length = strlen(rows[i].before);
        assert_memory_equal(mesh, rows[i].before, length);
        assert_string_equal(mesh + length, wanted);
        free(mesh);
    }
}

/* ---- blocks ---- */

TEST_BETWEEN(test_replicas__of_a_large_slice_each_sixteenth_has_a_block, open_world, close_world)
{
    uint64_t seed = replica_seed("w", 1), other = replica_seed("w", 2);
    uint32_t changed = 0;
    for (uint32_t i = 0; i < REPLICA_BLOCKS; i++) {
        struct replica_block block = replica_block(LARGE, seed, i);
        uint64_t number = block.first / REPLICA_SAMPLE_BYTES, all = LARGE_BLOCKS + 1;
        assert_true(number >= all * i / REPLICA_BLOCKS && number < all * (i + 1) / REPLICA_BLOCKS);
        assert_int_equal(block.first % REPLICA_SAMPLE_BYTES, 0);
        assert_int_equal(block.bytes, number == LARGE_BLOCKS ? 5 : REPLICA_SAMPLE_BYTES);
        changed += block.first != replica_block(LARGE, other, i).first;
    }
    assert_int_equal(replica_block(LARGE, seed, REPLICA_BLOCKS).bytes, 0);
    assert_true(changed > REPLICA_BLOCKS / 2);
}

TEST_BETWEEN(test_replicas__of_a_small_slice_every_byte_is_hashed, open_world, close_world)
{
    uint64_t bytes = sizeof data / 4 + 3, end = 0; /* of its last block a part */
    struct replica_digest before, after;
    uint32_t block;
    for (uint32_t i = 0; i < REPLICA_BLOCKS; i++) {
        struct replica_block one = replica_block(bytes, 9, i);
        assert_true(one.bytes == 0 || one.first == end);
        end += one.bytes;
    }
    assert_int_equal(end, bytes);
    replica_digest(&before, data, bytes, 9);
    for (uint64_t at = 0; at < bytes; at += 997) {
        data[at] ^= 0x80;
        replica_digest(&after, data, bytes, 9);
        data[at] ^= 0x80;
        assert_true(replica_differs(&block, &before, &after));
        assert_int_equal(block, at / REPLICA_BLOCK_BYTES);
    }
    replica_digest(&after, data, bytes, 9);
    assert_false(replica_differs(&block, &before, &after));
}

SUITE(NULL, NULL)
