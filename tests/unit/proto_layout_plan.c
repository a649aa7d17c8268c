/* proto_layout_plan.c - the plan of a save on known meshes, and its refusals.
 *
 * Goal: the cuts and owners for common meshes are exactly the expected ones, and slices that do not
 * tile a tensor, or make no sense, are refused with the tensor's name. Method: hand-made slices;
 * expected cuts and owners written down. Random ones are in proto_layout.c. */
#include "proto/base/report.h"
#include "tests/unit/layout_bed.h"
#include "tests/unit/suite.h"

#include <stdlib.h>
#include <string.h>

/* ---- known meshes ---- */

static struct layout_table *plan(const struct slice *slices, uint32_t ranks, int expected)
{
    struct layout_table *table = NULL;
    const struct slice *list[64];
    uint32_t counts[64];
    for (uint32_t r = 0; r < ranks; r++) {
        list[r] = &slices[r];
        counts[r] = 1;
    }
    int error = layout_plan_save(&table, list, counts, ranks, LAYOUT_EQUAL_REPLICAS);
    if (error != expected)
        fail_msg("%s: %s", err_name(error), report_line());
    return table;
}

static void assert_line_has(const char *part)
{
    if (!strstr(report_line(), part))
        fail_msg("'%s' does not contain '%s'", report_line(), part);
}

static void assert_cuts(const struct layout *layout, uint32_t d, uint32_t count,
                        const uint64_t *cuts)
{
    assert_int_equal(layout->num_cuts[d], count);
    assert_memory_equal(layout->cuts[d], cuts, count * sizeof(*cuts));
}

TEST(test_layout_plan__fsdp_with_empty_last_ranks)
{
    struct slice slices[4];
    for (uint32_t r = 0; r < 4; r++) {
        slices[r] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){5, 3});
        cut_rows(&slices[r], r, 4);
    }
    assert_int_equal(slices[3].box.extent[0], 0);
    struct layout_table *table = plan(slices, 4, 0);
    assert_cuts(&table->layouts[0], 0, 4, (uint64_t[]){0, 2, 4, 5});
    assert_cuts(&table->layouts[0], 1, 2, (uint64_t[]){0, 3});
    assert_memory_equal(table->layouts[0].owners, ((uint32_t[]){0, 1, 2}), 12);
    layout_table_free(table);
}

TEST(test_layout_plan__replicas_share_the_rows_evenly)
{
    struct slice slices[6];
    /* Two shards of 5 rows, three replicas each: ranks 0, 2, 4 and 1, 3, 5. */
    for (uint32_t r = 0; r < 6; r++) {
        slices[r] = make_slice("w", DTYPE_BF16, 2, (uint64_t[]){10, 4});
        cut_rows(&slices[r], r % 2, 2);
    }
    struct layout_table *table = plan(slices, 6, 0);
    assert_cuts(&table->layouts[0], 0, 7, (uint64_t[]){0, 1, 3, 5, 6, 8, 10});
    assert_memory_equal(table->layouts[0].owners, ((uint32_t[]){0, 2, 4, 1, 3, 5}), 24);
    layout_table_free(table);
}

TEST(test_layout_plan__more_replicas_than_rows_leave_some_idle)
{
    struct slice slices[5];
    for (uint32_t r = 0; r < 5; r++)
        slices[r] = make_slice("norm", DTYPE_F32, 1, (uint64_t[]){3});
    struct layout_table *table = plan(slices, 5, 0);
    assert_cuts(&table->layouts[0], 0, 4, (uint64_t[]){0, 1, 2, 3});
    assert_memory_equal(table->layouts[0].owners, ((uint32_t[]){0, 1, 2}), 12);
    layout_table_free(table);
}

TEST(test_layout_plan__band_is_cut_by_its_least_replicated_cell)
{
    struct slice slices[5];
    /* Columns 0-1 on ranks 0, 1, 2; columns 2-3 on ranks 3, 4. */
    for (uint32_t r = 0; r < 5; r++) {
        slices[r] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){6, 4});
        slices[r].box.offset[1] = r < 3 ? 0 : 2;
        slices[r].box.extent[1] = 2;
    }
    struct layout_table *table = plan(slices, 5, 0);
    assert_cuts(&table->layouts[0], 0, 3, (uint64_t[]){0, 3, 6});
    assert_cuts(&table->layouts[0], 1, 3, (uint64_t[]){0, 2, 4});
    assert_memory_equal(table->layouts[0].owners, ((uint32_t[]){0, 3, 1, 4}), 16);
    layout_table_free(table);
}

TEST(test_layout_plan__scalar_belongs_to_its_first_holder)
{
    struct slice slices[3];
    for (uint32_t r = 0; r < 3; r++)
        slices[r] = make_slice("step", DTYPE_I64, 0, NULL);
    struct layout_table *table = plan(slices, 3, 0);
    assert_int_equal(table->layouts[0].dims, 0);
    assert_int_equal(layout_cells(&table->layouts[0]), 1);
    assert_int_equal(table->layouts[0].owners[0], 0);
    layout_table_free(table);
}

TEST(test_layout_plan__tensor_without_elements_has_no_cell)
{
    struct slice slices[2];
    struct shard_tensor *tensors = NULL;
    uint32_t count = 9;
    uint64_t bytes = 9;
    for (uint32_t r = 0; r < 2; r++)
        slices[r] = make_slice("none", DTYPE_F32, 2, (uint64_t[]){4, 0});
    struct layout_table *table = plan(slices, 2, 0);
    assert_int_equal(layout_cells(&table->layouts[0]), 0);
    assert_int_equal(layout_table_check(table, 2), 0);
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, table, 0), 0);
    assert_int_equal(count, 0);
    assert_int_equal(bytes, 0);
    free(tensors);
    struct load_item *items = NULL;
    const struct load_wish wish = {&slices[0], 1, UINT32_MAX};
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), 0);
    assert_int_equal(count, 0);
    free(items);
    layout_table_free(table);
}

TEST(test_layout_plan__equally_cut_tensors_share_a_layout)
{
    enum { RANKS = 4, TENSORS = 40 };
    static struct slice slices[RANKS][TENSORS];
    const struct slice *list[RANKS];
    uint32_t counts[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t t = 0; t < TENSORS; t++) {
            char name[32];
            /* Every rank lists its tensors in another order. */
            uint32_t number = (t + 7 * r) % TENSORS;
            snprintf(name, sizeof(name), "layers.%u.w", number);
            slices[r][t] = make_slice(name, number % 2 ? DTYPE_F32 : DTYPE_BF16, 2,
                                      (uint64_t[]){number % 4 < 2 ? 8 : 12, 4});
            cut_rows(&slices[r][t], r, RANKS);
        }
        list[r] = slices[r];
        counts[r] = TENSORS;
    }
    struct layout_table *table = NULL;
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), 0);
    assert_int_equal(table->num_tensors, TENSORS);
    assert_int_equal(table->num_layouts, 2);
    assert_int_equal(layout_table_check(table, RANKS), 0);
    /* File order: descending element size, then name. */
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0;
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, table, 1), 0);
    assert_int_equal(count, TENSORS);
    for (uint32_t i = 1; i < count; i++) {
        const struct tensor_meta *a = &table->tensors[tensors[i - 1].tensor];
        const struct tensor_meta *b = &table->tensors[tensors[i].tensor];
        uint32_t a_bytes = dtype_bytes(a->dtype), b_bytes = dtype_bytes(b->dtype);
        assert_true(a_bytes > b_bytes || (a_bytes == b_bytes && strcmp(a->name, b->name) < 0));
    }
    free(tensors);
    layout_table_free(table);
}

/* ---- replicas that may differ ---- */

/* The plan of tensors that each of `ranks` holds, in rows of `num`. */
static struct layout_table *plan_apart(const struct slice *slices, uint32_t ranks, uint32_t num)
{
    struct layout_table *table = NULL;
    struct slice **split = NULL;
    const struct slice *list[64] = {NULL};
    uint32_t counts[64] = {0};
    for (uint32_t r = 0; r < ranks; r++) {
        list[r] = &slices[r * num];
        counts[r] = num;
    }
    assert_int_equal(layout_split(&split, list, counts, ranks), 0);
    for (uint32_t r = 0; split && r < ranks; r++)
        list[r] = split[r];
    assert_int_equal(layout_plan_save(&table, list, counts, ranks, LAYOUT_ONE_REPLICA), 0);
    assert_int_equal(layout_table_check(table, ranks), 0);
    layout_split_free(split);
    return table;
}

static void assert_owners(const struct layout_table *table, const char *name, uint32_t count,
                          const uint32_t *owners)
{
    int64_t index = layout_find(table, name);
    assert_true(index >= 0);
    const struct layout *layout = &table->layouts[table->layout_of[index]];
    assert_int_equal(layout_cells(layout), count);
    assert_memory_equal(layout->owners, owners, count * sizeof(*owners));
}

TEST(test_layout_plan__a_tensor_comes_whole_from_one_of_differing_replicas)
{
    struct slice slices[6][4];
    /* Two shards of 5 rows, three replicas each: ranks 0, 2, 4 and 1, 3, 5; a scalar on all. */
    for (uint32_t r = 0; r < 6; r++) {
        for (uint32_t t = 0; t < 3; t++) {
            slices[r][t] =
                make_slice((const char *[]){"a", "b", "c"}[t], DTYPE_BF16, 2, (uint64_t[]){10, 4});
            cut_rows(&slices[r][t], r % 2, 2);
        }
        slices[r][3] = make_slice("step", DTYPE_I64, 0, NULL);
    }
    struct layout_table *table = plan_apart(slices[0], 6, 4);
    assert_cuts(&table->layouts[0], 0, 3, (uint64_t[]){0, 5, 10});
    assert_owners(table, "a", 2, (uint32_t[]){0, 1});
    assert_owners(table, "b", 2, (uint32_t[]){2, 3});
    assert_owners(table, "c", 2, (uint32_t[]){4, 5});
    assert_owners(table, "step", 1, (uint32_t[]){0});
    layout_table_free(table);
}

TEST(test_layout_plan__large_tensors_are_dealt_out_before_small_ones)
{
    struct slice slices[2][5];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t t = 0; t < 5; t++)
            slices[r][t] = make_slice((const char *[]){"a", "b", "c", "d", "large"}[t], DTYPE_F32,
                                      1, (uint64_t[]){t < 4 ? 25 : 100});
    struct layout_table *table = plan_apart(slices[0], 2, 5);
    assert_owners(table, "large", 1, (uint32_t[]){0});
    for (uint32_t t = 0; t < 4; t++)
        assert_owners(table, slices[0][t].tensor.name, 1, (uint32_t[]){1});
    layout_table_free(table);
}

TEST(test_layout_plan__only_replicas_that_every_cell_has_write)
{
    struct slice slices[5][3];
    /* Columns 0-1 on ranks 0, 1, 2; columns 2-3 on ranks 3, 4. */
    for (uint32_t r = 0; r < 5; r++)
        for (uint32_t t = 0; t < 3; t++) {
            slices[r][t] =
                make_slice((const char *[]){"a", "b", "c"}[t], DTYPE_F32, 2, (uint64_t[]){6, 4});
            slices[r][t].box.offset[1] = r < 3 ? 0 : 2;
            slices[r][t].box.extent[1] = 2;
        }
    struct layout_table *table = plan_apart(slices[0], 5, 3);
    assert_owners(table, "a", 2, (uint32_t[]){0, 3});
    assert_owners(table, "b", 2, (uint32_t[]){1, 4});
    assert_owners(table, "c", 2, (uint32_t[]){0, 3});
    layout_table_free(table);
}

TEST(test_layout_plan__all_boxes_of_a_tensor_come_from_one_replica)
{
    struct slice slices[2][3];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t i = 0; i < 3; i++) {
            slices[r][i] = make_slice("w", DTYPE_F32, 1, (uint64_t[]){60});
            slices[r][i].box.offset[0] = 20 * i;
            slices[r][i].box.extent[0] = 20;
        }
    struct layout_table *table = plan_apart(slices[0], 2, 3);
    assert_owners(table, "w@0", 1, (uint32_t[]){0});
    assert_owners(table, "w@20", 1, (uint32_t[]){0});
    assert_owners(table, "w@40", 1, (uint32_t[]){0});
    layout_table_free(table);
}

/* ---- refusals ---- */

TEST(test_layout_plan__refuses_a_hole_with_the_tensors_name)
{
    struct slice slices[3];
    for (uint32_t r = 0; r < 3; r++) {
        slices[r] = make_slice("layers.3.wq.weight", DTYPE_F32, 2, (uint64_t[]){9, 2});
        cut_rows(&slices[r], r, 3);
    }
    slices[1].box.extent[0] = 2; /* row 5 belongs to no rank */
    assert_null(plan(slices, 3, ERR_MISMATCH));
    assert_line_has("the slices of tensor 'layers.3.wq.weight' leave a hole: at element (5, 0)");
    slices[1].box.extent[0] = 0;
    assert_null(plan(slices, 3, ERR_MISMATCH));
    assert_line_has("leave a hole: at element (3, 0)");
    for (uint32_t r = 0; r < 3; r++)
        slices[r].box.extent[1] = 0;
    assert_null(plan(slices, 3, ERR_MISMATCH));
    assert_line_has("leave a hole: at element (0, 0)");
}

TEST(test_layout_plan__refuses_an_overlap_with_the_tensors_name)
{
    struct slice slices[2];
    for (uint32_t r = 0; r < 2; r++)
        slices[r] = make_slice("w", DTYPE_F32, 1, (uint64_t[]){10});
    slices[0].box.extent[0] = 6;
    slices[1].box.offset[0] = 4;
    slices[1].box.extent[0] = 6;
    assert_null(plan(slices, 2, ERR_MISMATCH));
    assert_line_has("the slices of tensor 'w' overlap");
    /* A whole copy beside a part of it. */
    slices[0].box.extent[0] = 10;
    assert_null(plan(slices, 2, ERR_MISMATCH));
    assert_line_has("overlap");
}

TEST(test_layout_plan__refuses_a_tiling_that_is_no_grid)
{
    /* A simpler form of a pinwheel: the left half whole, the right half in two. */
    struct slice slices[3];
    for (uint32_t r = 0; r < 3; r++) {
        slices[r] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 4});
        slices[r].box.extent[1] = 2;
        slices[r].box.offset[1] = r == 0 ? 0 : 2;
        slices[r].box.extent[0] = r == 0 ? 4 : 2;
        slices[r].box.offset[0] = r == 2 ? 2 : 0;
    }
    assert_null(plan(slices, 3, ERR_MISMATCH));
    assert_line_has("the slices of tensor 'w' do not form a grid");
}

TEST(test_layout_plan__refuses_ranks_that_disagree)
{
    struct slice slices[2];
    for (uint32_t r = 0; r < 2; r++)
        slices[r] = make_slice("w", DTYPE_F32, 1, (uint64_t[]){10});
    slices[1].tensor.dtype = DTYPE_BF16;
    assert_null(plan(slices, 2, ERR_MISMATCH));
    assert_line_has("rank 1 gave tensor 'w' another shape or element type");
    slices[1] = make_slice("w", DTYPE_F32, 1, (uint64_t[]){11});
    assert_null(plan(slices, 2, ERR_MISMATCH));
    slices[1] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){10, 1});
    assert_null(plan(slices, 2, ERR_MISMATCH));
}

TEST(test_layout_plan__refuses_slices_that_make_no_sense)
{
    static const char *const names[] = {"", "a b", "a\"b", "a\\b", "\x01", "caf\xc3\xa9", "__x"};
    struct slice slice;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        slice = make_slice(names[i], DTYPE_F32, 1, (uint64_t[]){4});
        assert_null(plan(&slice, 1, ERR_INVALID));
    }
    slice = make_slice("w", DTYPE_F32, 1, (uint64_t[]){4});
    memset(slice.tensor.name, 'n', sizeof(slice.tensor.name)); /* no end */
    assert_null(plan(&slice, 1, ERR_INVALID));
    slice = make_slice("w", DTYPE_F32, 1, (uint64_t[]){4});
    slice.box.offset[0] = 1;
    assert_null(plan(&slice, 1, ERR_INVALID));
    assert_line_has("slice of tensor 'w' reaches beyond dimension 0");
    slice.box.offset[0] = UINT64_MAX;
    assert_null(plan(&slice, 1, ERR_INVALID));
    slice = make_slice("w", DTYPE_F32, 2, (uint64_t[]){1ull << 40, 1ull << 40});
    assert_null(plan(&slice, 1, ERR_INVALID));
    assert_line_has("tensor 'w' is too large");
    slice = make_slice("w", DTYPE_F32, 2, (uint64_t[]){0, UINT64_MAX});
    assert_null(plan(&slice, 1, ERR_INVALID));
    slice = make_slice("w", DTYPE_F32, 1, (uint64_t[]){4});
    slice.tensor.dims = LAYOUT_DIMS_MAX + 1;
    assert_null(plan(&slice, 1, ERR_INVALID));
    slice.tensor.dims = 1;
    slice.tensor.dtype = (enum dtype)99;
    assert_null(plan(&slice, 1, ERR_INVALID));

    struct slice twice[2];
    const struct slice *list[1] = {twice};
    uint32_t counts[1] = {2};
    struct layout_table *table = NULL;
    twice[0] = twice[1] = make_slice("w", DTYPE_F32, 1, (uint64_t[]){4});
    assert_int_equal(layout_plan_save(&table, list, counts, 1, LAYOUT_EQUAL_REPLICAS), ERR_INVALID);
    assert_line_has("rank 0 described tensor 'w' twice");
}

TEST(test_layout_plan__refuses_tensors_whose_sum_would_wrap)
{
    struct slice slices[256];
    const struct slice *list = slices;
    struct layout_table *table = NULL;
    struct shard_tensor *tensors = NULL;
    uint32_t count = 64, num_tensors = 0;
    uint64_t bytes = 0, sum = 0;
    char name[8];
    for (uint32_t i = 0; i < 256; i++) {
        snprintf(name, sizeof(name), "w%03u", i);
        slices[i] = make_slice(name, DTYPE_U8, 1, (uint64_t[]){LAYOUT_TENSOR_BYTES_MAX});
    }
    assert_int_equal(layout_plan_save(&table, &list, &count, 1, LAYOUT_EQUAL_REPLICAS), 0);
    assert_int_equal(layout_shard_tensors(&tensors, &num_tensors, &bytes, table, 0), 0);
    assert_int_equal(layout_shard_bytes(&sum, table, 1), 0);
    assert_true(bytes == LAYOUT_BYTES_MAX && sum == bytes);
    free(tensors);
    layout_table_free(table);
    count = 65;
    assert_int_equal(layout_plan_save(&table, &list, &count, 1, LAYOUT_EQUAL_REPLICAS),
                     ERR_INVALID);
    assert_line_has("together pass 4611686018427387904 bytes");
    count = 256; /* which is 0 in 64 bits */
    assert_int_equal(layout_plan_save(&table, &list, &count, 1, LAYOUT_EQUAL_REPLICAS),
                     ERR_INVALID);
}

TEST(test_layout_load__refuses_what_the_checkpoint_does_not_hold)
{
    struct slice slice = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 6});
    struct layout_table *table = plan(&slice, 1, 0);
    struct load_item *items = NULL;
    uint32_t count = 0;
    struct slice wanted = make_slice("v", DTYPE_F32, 2, (uint64_t[]){4, 6});
    const struct load_wish wish = {&wanted, 1, UINT32_MAX};
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_NOT_FOUND);
    assert_line_has("no tensor 'v'");
    wanted = make_slice("w", DTYPE_BF16, 2, (uint64_t[]){4, 6});
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_MISMATCH);
    assert_line_has("tensor 'w' was saved as F32 but is wanted as BF16");
    wanted = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 7});
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_MISMATCH);
    assert_line_has("shape of tensor 'w'");
    wanted = make_slice("w", DTYPE_F32, 1, (uint64_t[]){24});
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_MISMATCH);
    wanted = slice;
    wanted.box.extent[0] = 5;
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_INVALID);
    layout_table_free(table);
}

TEST(test_layout_load__refuses_a_plan_of_more_items_than_there_may_be)
{
    enum { TIMES = 1000 };
    struct slice halves[2], wanted[TIMES];
    for (uint32_t i = 0; i < 2; i++) {
        halves[i] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 6});
        halves[i].box.offset[1] = 3 * i;
        halves[i].box.extent[1] = 3;
    }
    for (uint32_t i = 0; i < TIMES; i++)
        wanted[i] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 6});
    struct layout_table *table = plan(halves, 2, 0);
    struct load_item *items = NULL;
    uint32_t count = 0;
    struct load_wish wish = {wanted, TIMES, 2 * TIMES - 1};
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), ERR_INVALID);
    assert_line_has("more than 1999 boxes");
    wish.items_max = 2 * TIMES;
    assert_int_equal(layout_plan_load(&items, &count, table, &wish), 0);
    assert_int_equal(count, 2 * TIMES);
    free(items);
    layout_table_free(table);
}

TEST(test_layout_items__refuse_slices_that_are_not_the_planned_ones)
{
    struct slice slice = make_slice("w", DTYPE_F32, 2, (uint64_t[]){4, 6});
    struct layout_table *table = plan(&slice, 1, 0);
    struct save_item *items = NULL;
    uint32_t count = 0;
    struct slice other = slice;
    other.box.extent[0] = 3;
    assert_int_equal(layout_save_items(&items, &count, table, 0, &other, 1), ERR_MISMATCH);
    other = slice;
    other.box.extent[1] = 5;
    assert_int_equal(layout_save_items(&items, &count, table, 0, &other, 1), ERR_MISMATCH);
    other = make_slice("v", DTYPE_F32, 2, (uint64_t[]){4, 6});
    assert_int_equal(layout_save_items(&items, &count, table, 0, &other, 1), ERR_MISMATCH);
    assert_int_equal(layout_save_items(&items, &count, table, 0, NULL, 0), ERR_MISMATCH);
    assert_line_has("rank 0 lacks its slice of tensor 'w'");
    layout_table_free(table);
}

TEST(test_layout_check__refuses_every_broken_invariant)
{
    struct slice slices[4];
    for (uint32_t r = 0; r < 4; r++) {
        slices[r] = make_slice("w", DTYPE_F32, 2, (uint64_t[]){8, 3});
        cut_rows(&slices[r], r, 4);
    }
    struct layout_table *table = plan(slices, 4, 0);
    struct layout *layout = &table->layouts[0];
    assert_int_equal(layout_table_check(table, 4), 0);
    assert_int_equal(layout_table_check(table, 3), ERR_CORRUPT);
    layout->owners[2] = 1;
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    assert_line_has("two cells");
    layout->owners[2] = 2;
    layout->cuts[0][2] = 2;
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    assert_line_has("do not ascend");
    layout->cuts[0][2] = 4;
    layout->cuts[0][0] = 1;
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    assert_line_has("begin at 0");
    layout->cuts[0][0] = 0;
    table->tensors[0].shape[1] = 4;
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    assert_line_has("does not fit its shape");
    table->tensors[0].shape[1] = 3;
    table->layout_of[0] = 1;
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    table->layout_of[0] = 0;
    table->tensors[0].name[0] = ' ';
    assert_int_equal(layout_table_check(table, 4), ERR_CORRUPT);
    table->tensors[0].name[0] = 'w';
    assert_int_equal(layout_table_check(table, 4), 0);
    layout_table_free(table);
}

TEST(test_dtype__names_and_sizes_are_those_of_safetensors)
{
    static const char *const names[] = {"U8", "I8", "BF16", "F16", "I32", "F32", "I64", "F64"};
    static const uint32_t bytes[] = {1, 1, 2, 2, 4, 4, 8, 8};
    enum dtype dtype;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(dtype_parse(&dtype, names[i]), 0);
        assert_int_equal(dtype, i);
        assert_string_equal(dtype_name(dtype), names[i]);
        assert_int_equal(dtype_bytes(dtype), bytes[i]);
    }
    assert_int_equal(dtype_parse(&dtype, "f32"), ERR_INVALID);
    assert_int_equal(dtype_parse(&dtype, ""), ERR_INVALID);
}

SUITE(NULL, NULL)
