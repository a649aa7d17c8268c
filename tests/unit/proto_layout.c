/* proto_layout.c - boxes, the plan of a save, the plan of a load.
 *
 * Goal: for any way in which the ranks cut their tensors, every element is written exactly once and
 * every reader gets it back at its place; cuts that do not tile a tensor are refused with its name.
 * Method: random tensors, meshes, replicas and wanted slices. Real bytes move: each element's value
 * is made of its tensor and global place, the planned copies build the shards, box_copy builds the
 * slices that a reader wants, and all is compared element by element. The seed is printed; SEED=
 * repeats a run. A last part fails every allocation in turn. */
#define ALLOCATIONS_ONLY
#include "tests/unit/memory_bed.h"

#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/unit/layout_bed.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 400
#define RANKS_MAX 12
#define TENSORS_MAX 6

static int print_seed(void **state)
{
    (void)state;
    seed_random();
    return 0;
}

/* ---- a world of ranks and their slices ---- */

struct world {
    uint32_t num_ranks, num_tensors;
    enum layout_replicas replicas;
    struct tensor_meta tensors[TENSORS_MAX];
    uint8_t *values[TENSORS_MAX]; /* the global tensors */
    struct slice slices[RANKS_MAX][TENSORS_MAX];
    uint32_t counts[RANKS_MAX];
    const struct slice *list[RANKS_MAX];
    struct layout_table *table;
    uint8_t *shards[RANKS_MAX];
    uint64_t shard_bytes[RANKS_MAX];
};

static uint64_t count_bytes(const struct box *box, const struct tensor_meta *tensor)
{
    return box_elements(box, tensor->dims) * dtype_bytes(tensor->dtype);
}

static struct box whole_box(const struct tensor_meta *tensor)
{
    struct box box = {.offset = {0}};
    memcpy(box.extent, tensor->shape, sizeof(box.extent));
    return box;
}

static void make_tensor(struct world *world, uint32_t index)
{
    struct tensor_meta *tensor = &world->tensors[index];
    memset(tensor, 0, sizeof(*tensor));
    /* Names in another order: the plan has to sort them. */
    snprintf(tensor->name, sizeof(tensor->name), "t%u.weight", (index * 5 + 3) % TENSORS_MAX);
    tensor->dtype = (enum dtype)next_random(DTYPE_U64 + 1);
    tensor->dims = (uint32_t)next_random(LAYOUT_DIMS_MAX + 1);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        tensor->shape[d] = d >= tensor->dims      ? 1
                           : next_random(20) == 0 ? 0
                                                  : 1 + next_random(tensor->dims > 4 ? 3 : 9);
    struct box box = whole_box(tensor);
    uint64_t bytes = count_bytes(&box, tensor);
    world->values[index] = malloc(bytes + 1);
    for (uint64_t i = 0; i < bytes; i++)
        world->values[index][i] = (uint8_t)next_random(256);
}

/* Random cut points of one dimension: out[0] = 0 < ... < out[*cells] = size. */
static uint32_t cut_dimension(uint64_t out[10], uint64_t size, uint32_t cells_max)
{
    uint32_t cells = 0;
    out[0] = 0;
    for (uint64_t at = 1; at < size; at++) {
        if (cells + 1 < cells_max && next_random(3) == 0)
            out[++cells] = at;
    }
    if (size > 0)
        out[++cells] = size;
    return cells;
}

/* Cuts a tensor into a random grid of at most num_ranks cells and hands the cells to shuffled
 * ranks; the ranks left over hold replicas, an empty slice or nothing. */
static void deal_tensor(struct world *world, uint32_t index)
{
    const struct tensor_meta *tensor = &world->tensors[index];
    uint64_t cuts[LAYOUT_DIMS_MAX][10];
    uint32_t cells[LAYOUT_DIMS_MAX] = {1, 1, 1, 1, 1, 1, 1, 1}, num_cells = 1, order[RANKS_MAX];
    for (uint32_t d = 0; d < tensor->dims; d++) {
        cells[d] = cut_dimension(cuts[d], tensor->shape[d], world->num_ranks / num_cells);
        num_cells *= cells[d] ? cells[d] : 1;
    }
    struct box whole = whole_box(tensor);
    bool is_empty = box_elements(&whole, tensor->dims) == 0;
    for (uint32_t r = 0; r < world->num_ranks; r++)
        order[r] = r;
    for (uint32_t r = world->num_ranks; r-- > 1;) {
        uint32_t other = (uint32_t)next_random(r + 1), kept = order[r];
        order[r] = order[other];
        order[other] = kept;
    }
    for (uint32_t i = 0; i < world->num_ranks; i++) {
        uint32_t rank = order[i];
        uint64_t choice = next_random(4);
        uint32_t cell = i < num_cells ? i : (uint32_t)next_random(num_cells);
        struct slice slice = {.tensor = *tensor, .box = whole};
        if (i >= num_cells && choice == 0)
            continue;
        for (uint32_t d = tensor->dims; !is_empty && d-- > 0;) {
            slice.box.offset[d] = cuts[d][cell % cells[d]];
            slice.box.extent[d] = cuts[d][cell % cells[d] + 1] - slice.box.offset[d];
            cell /= cells[d];
        }
        if (i >= num_cells && choice == 1 && tensor->dims > 0)
            slice.box.extent[next_random(tensor->dims)] = 0;
        world->slices[rank][world->counts[rank]++] = slice;
    }
}

/* The rank's bytes of a slice, in fresh memory. */
static uint8_t *hold_slice(const struct world *world, const struct slice *slice)
{
    uint8_t *data = malloc(count_bytes(&slice->box, &slice->tensor) + 1);
    for (uint32_t t = 0; t < world->num_tensors; t++) {
        struct box whole = whole_box(&world->tensors[t]);
        if (strcmp(world->tensors[t].name, slice->tensor.name) == 0)
            box_copy(data, &slice->box, world->values[t], &whole, &slice->box, slice->tensor.dims,
                     dtype_bytes(slice->tensor.dtype));
    }
    return data;
}

/* The shard of one rank, built by the planned copies alone; every byte must be written once. */
static void write_shard(struct world *world, uint32_t rank)
{
    struct shard_tensor *tensors = NULL;
    struct save_item *items = NULL;
    uint32_t num_tensors = 0, num_items = 0;
    assert_int_equal(
        layout_shard_tensors(&tensors, &num_tensors, &world->shard_bytes[rank], world->table, rank),
        0);
    assert_int_equal(layout_save_items(&items, &num_items, world->table, rank, world->slices[rank],
                                       world->counts[rank]),
                     0);
    world->shards[rank] = malloc(world->shard_bytes[rank] + 1);
    uint64_t written = 0;
    for (uint32_t i = 0; i < num_items; i++) {
        const struct slice *slice = &world->slices[rank][items[i].slice];
        uint8_t *data = hold_slice(world, slice);
        assert_int_equal(items[i].data_byte, written); /* back to back, so no byte twice */
        assert_true(items[i].slice_byte + items[i].bytes <=
                    count_bytes(&slice->box, &slice->tensor));
        assert_true(world->replicas == LAYOUT_EQUAL_REPLICAS ||
                    items[i].bytes == count_bytes(&slice->box, &slice->tensor)); /* whole */
        memcpy(world->shards[rank] + items[i].data_byte, data + items[i].slice_byte,
               items[i].bytes);
        written += items[i].bytes;
        free(data);
    }
    assert_int_equal(written, world->shard_bytes[rank]);
    assert_int_equal(num_items, num_tensors);
    free(tensors);
    free(items);
}

static void open_world(struct world *world)
{
    memset(world, 0, sizeof(*world));
    world->num_ranks = 1 + (uint32_t)next_random(RANKS_MAX);
    world->num_tensors = 1 + (uint32_t)next_random(TENSORS_MAX);
    world->replicas = next_random(2) == 0 ? LAYOUT_ONE_REPLICA : LAYOUT_EQUAL_REPLICAS;
    for (uint32_t t = 0; t < world->num_tensors; t++) {
        make_tensor(world, t);
        deal_tensor(world, t);
    }
    for (uint32_t rank = 0; rank < world->num_ranks; rank++)
        world->list[rank] = world->slices[rank];
    int error = layout_plan_save(&world->table, world->list, world->counts, world->num_ranks,
                                 world->replicas);
    if (error)
        fail_msg("%s: %s", err_name(error), report_line());
    assert_int_equal(layout_table_check(world->table, world->num_ranks), 0);
    for (uint32_t rank = 0; rank < world->num_ranks; rank++)
        write_shard(world, rank);
    uint64_t bytes[RANKS_MAX];
    assert_int_equal(layout_shard_bytes(bytes, world->table, world->num_ranks), 0);
    assert_memory_equal(bytes, world->shard_bytes, world->num_ranks * sizeof(bytes[0]));
}

static void close_world(struct world *world)
{
    for (uint32_t t = 0; t < world->num_tensors; t++)
        free(world->values[t]);
    for (uint32_t rank = 0; rank < world->num_ranks; rank++)
        free(world->shards[rank]);
    layout_table_free(world->table);
}

/* ---- random worlds ---- */

struct run_check {
    struct digest *digest;
    const uint8_t *data;
    uint32_t element_bytes;
    uint64_t elements, end;
};

static void add_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    struct run_check *check = user;
    assert_true(count > 0);
    assert_true(check->elements == 0 || global > check->end); /* maximal: never adjacent */
    assert_int_equal(element, check->elements);
    digest_add(check->digest, check->data + element * check->element_bytes, count,
               check->element_bytes, global);
    check->elements += count;
    check->end = global + count;
}

/* Adds to `sum` the elements of a tensor that one shard holds; returns their number. */
static uint64_t sum_shard(struct digest *sum, const struct world *world, uint32_t rank,
                          int64_t index)
{
    struct shard_tensor *list = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0, elements = 0;
    const struct tensor_meta *tensor = &world->table->tensors[index];
    assert_int_equal(layout_shard_tensors(&list, &count, &bytes, world->table, rank), 0);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *data = world->shards[rank] + list[i].data_byte;
        uint32_t size = dtype_bytes(tensor->dtype);
        struct digest whole = {{0, 0}}, parts = {{0, 0}};
        struct run_check check = {&whole, data, size, 0, 0};
        uint64_t all = box_elements(&list[i].box, tensor->dims), now;
        if (list[i].tensor != index)
            continue;
        box_runs(&list[i].box, tensor, 0, all, add_run, &check);
        assert_int_equal(check.elements, all);
        for (uint64_t at = 0; at < all; at += now) {
            now = 1 + next_random(all - at);
            box_digest(&parts, &list[i].box, tensor, at, now, data + at * size);
        }
        assert_memory_equal(&parts, &whole, sizeof whole);
        digest_merge(sum, &whole);
        elements += all;
    }
    free(list);
    return elements;
}

TEST(test_layout__shards_hold_every_element_once)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        open_world(&world);
        for (uint32_t t = 0; t < world.num_tensors; t++) {
            const struct tensor_meta *tensor = &world.tensors[t];
            int64_t index = layout_find(world.table, tensor->name);
            struct box whole = whole_box(tensor);
            struct digest sum = {{0, 0}}, expected = {{0, 0}};
            uint64_t elements = 0;
            assert_true(index >= 0);
            for (uint32_t rank = 0; rank < world.num_ranks; rank++)
                elements += sum_shard(&sum, &world, rank, index);
            assert_int_equal(elements, box_elements(&whole, tensor->dims));
            digest_add(&expected, world.values[t], elements, dtype_bytes(tensor->dtype), 0);
            assert_memory_equal(&sum, &expected, sizeof(sum));
        }
        close_world(&world);
    }
}

/* A random slice of a random tensor of the world. */
static struct slice want_slice(const struct world *world, uint32_t *out_tensor)
{
    uint32_t t = *out_tensor = (uint32_t)next_random(world->num_tensors);
    struct slice slice = {.tensor = world->tensors[t], .box = whole_box(&world->tensors[t])};
    for (uint32_t d = 0; d < slice.tensor.dims; d++) {
        uint64_t size = slice.tensor.shape[d];
        if (next_random(2) == 0)
            continue;
        slice.box.offset[d] = next_random(size + 1);
        slice.box.extent[d] = next_random(size - slice.box.offset[d] + 1);
    }
    return slice;
}

#define WANTED 8

/* A table that has no index gives the same plan. */
static void expect_same_unindexed(const struct load_item *items, uint32_t num_items,
                                  struct layout_table *table, const struct load_wish *wish)
{
    struct layout_index *index = table->index;
    struct load_item *again = NULL;
    uint32_t count = 0;
    assert_non_null(index);
    table->index = NULL;
    assert_int_equal(layout_plan_load(&again, &count, table, wish), 0);
    table->index = index;
    assert_int_equal(count, num_items);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t dims = wish->slices[items[i].slice].tensor.dims;
        assert_true(again[i].slice == items[i].slice && again[i].shard == items[i].shard &&
                    again[i].data_byte == items[i].data_byte &&
                    box_equal(&again[i].saved, &items[i].saved, dims) &&
                    box_equal(&again[i].part, &items[i].part, dims));
    }
    free(again);
}

TEST(test_layout__any_slice_is_read_back_element_by_element)
{
    uint64_t pieces = 0, elements = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world world;
        struct slice wanted[WANTED];
        uint32_t tensor_of[WANTED], num_items = 0;
        uint8_t *data[WANTED];
        uint64_t filled[WANTED] = {0};
        struct load_item *items = NULL;
        open_world(&world);
        for (uint32_t i = 0; i < WANTED; i++) {
            wanted[i] = want_slice(&world, &tensor_of[i]);
            data[i] = calloc(1, count_bytes(&wanted[i].box, &wanted[i].tensor) + 1);
        }
        const struct load_wish wish = {wanted, WANTED, UINT32_MAX};
        assert_int_equal(layout_plan_load(&items, &num_items, world.table, &wish), 0);
        expect_same_unindexed(items, num_items, world.table, &wish);
        for (uint32_t i = 0; i < num_items; i++) {
            const struct load_item *item = &items[i];
            const struct slice *slice = &wanted[item->slice];
            uint32_t dims = slice->tensor.dims;
            struct box both;
            if (i > 0)
                assert_true(items[i - 1].shard < item->shard ||
                            (items[i - 1].shard == item->shard &&
                             items[i - 1].data_byte <= item->data_byte));
            assert_true(box_intersect(&both, &item->saved, &slice->box, dims));
            assert_true(box_equal(&both, &item->part, dims));
            assert_true(item->data_byte + count_bytes(&item->saved, &slice->tensor) <=
                        world.shard_bytes[item->shard]);
            box_copy(data[item->slice], &slice->box, world.shards[item->shard] + item->data_byte,
                     &item->saved, &item->part, dims, dtype_bytes(slice->tensor.dtype));
            filled[item->slice] += box_elements(&item->part, dims);
        }
        for (uint32_t i = 0; i < WANTED; i++) {
            uint8_t *expected = hold_slice(&world, &wanted[i]);
            /* As many elements as the slice has and all of them right: each came once. */
            assert_int_equal(filled[i], box_elements(&wanted[i].box, wanted[i].tensor.dims));
            assert_memory_equal(data[i], expected, count_bytes(&wanted[i].box, &wanted[i].tensor));
            elements += filled[i];
            free(expected);
            free(data[i]);
        }
        pieces += num_items;
        free(items);
        close_world(&world);
    }
    print_message("# %" PRIu64 " pieces, %" PRIu64 " elements\n", pieces, elements);
    assert_true(pieces > ROUNDS && elements > ROUNDS);
}

/* ---- boxes ---- */

TEST(test_box__copy_moves_the_part_and_nothing_else)
{
    for (uint32_t round = 0; round < 500; round++) {
        struct box from, to, part;
        static uint8_t from_data[8 * 6561], to_data[8 * 6561], expected[8 * 6561];
        uint32_t dims = (uint32_t)next_random(LAYOUT_DIMS_MAX + 1);
        uint32_t width = 1u << next_random(4);
        uint64_t at[LAYOUT_DIMS_MAX] = {0};
        for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
            from.offset[d] = next_random(4);
            from.extent[d] = 1 + next_random(3);
            to.offset[d] = next_random(4);
            to.extent[d] = 1 + next_random(3);
        }
        for (size_t i = 0; i < sizeof(from_data); i++)
            from_data[i] = (uint8_t)next_random(256);
        memset(to_data, 0xcc, sizeof(to_data));
        memset(expected, 0xcc, sizeof(expected));
        bool any = box_intersect(&part, &from, &to, dims);
        assert_true(any == (box_elements(&part, dims) > 0));
        for (uint64_t n = 0; n < box_elements(&part, dims); n++) {
            uint64_t rest = n, from_at = 0, to_at = 0;
            for (uint32_t d = dims; d-- > 0;) {
                at[d] = part.offset[d] + rest % part.extent[d];
                rest /= part.extent[d];
            }
            for (uint32_t d = 0; d < dims; d++) {
                from_at = from_at * from.extent[d] + at[d] - from.offset[d];
                to_at = to_at * to.extent[d] + at[d] - to.offset[d];
            }
            memcpy(expected + to_at * width, from_data + from_at * width, width);
        }
        box_copy(to_data, &to, from_data, &from, &part, dims, width);
        assert_memory_equal(to_data, expected, sizeof(to_data));
    }
}

TEST(test_box__a_span_begins_and_ends_with_elements_of_the_part)
{
    for (uint32_t round = 0; round < 500; round++) {
        struct box box, part;
        uint32_t dims = (uint32_t)next_random(LAYOUT_DIMS_MAX + 1), width = 1u << next_random(4);
        uint64_t first = UINT64_MAX, end = 0, found_first, found_end;
        for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
            box.offset[d] = next_random(4);
            box.extent[d] = 1 + next_random(3);
            uint64_t skip = next_random(box.extent[d]);
            part.offset[d] = box.offset[d] + skip;
            part.extent[d] = 1 + next_random(box.extent[d] - skip);
        }
        for (uint64_t n = 0; n < box_elements(&box, dims); n++) {
            uint64_t rest = n;
            bool is_of_part = true;
            for (uint32_t d = dims; d-- > 0;) {
                uint64_t at = box.offset[d] + rest % box.extent[d];
                rest /= box.extent[d];
                is_of_part =
                    is_of_part && at >= part.offset[d] && at < part.offset[d] + part.extent[d];
            }
            if (!is_of_part)
                continue;
            first = first == UINT64_MAX ? n * width : first;
            end = (n + 1) * width;
        }
        box_span(&found_first, &found_end, &box, &part, dims, width);
        assert_int_equal(found_first, first);
        assert_int_equal(found_end, end);
    }
}

/* ---- scale ---- */

/* Seconds of the processor: a busy machine changes no result. */
static double now(void)
{
    return (double)clock_read(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
}

/* 64 replicas of 256 shards, 24 tensors; a time limit that only a quadratic planner would miss. */
TEST(test_layout_plan__sixteen_thousand_ranks_take_seconds)
{
    enum { RANKS = 16384, SHARDS = 256, TENSORS = 24 };
    const char *scale = getenv("TEST_TIME_SCALE");
    struct slice *slices = malloc((size_t)RANKS * TENSORS * sizeof(*slices));
    const struct slice **list = malloc(RANKS * sizeof(*list));
    uint32_t *counts = malloc(RANKS * sizeof(*counts));
    struct layout_table *table = NULL;
    for (uint32_t r = 0; r < RANKS; r++) {
        list[r] = &slices[(size_t)r * TENSORS];
        counts[r] = TENSORS;
        for (uint32_t t = 0; t < TENSORS; t++) {
            char name[32];
            struct slice *slice = &slices[(size_t)r * TENSORS + t];
            snprintf(name, sizeof(name), "layers.%u.w", t);
            *slice = make_slice(name, DTYPE_F32, 2, (uint64_t[]){16384u * (1 + t % 3), 1024});
            cut_rows(slice, r % SHARDS, SHARDS);
        }
    }
    double start = now();
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_ONE_REPLICA), 0);
    assert_int_equal(table->num_layouts, TENSORS); /* each of another replica */
    layout_table_free(table);
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), 0);
    double planned = now();
    struct save_item *items = NULL;
    struct load_item *reads = NULL;
    uint32_t count = 0;
    assert_int_equal(layout_save_items(&items, &count, table, RANKS - 1, list[RANKS - 1], TENSORS),
                     0);
    assert_int_equal(count, TENSORS);
    double saved = now();
    /* One reader that wants everything reads every shard. */
    struct slice whole[TENSORS];
    for (uint32_t t = 0; t < TENSORS; t++) {
        whole[t] = list[0][t];
        whole[t].box = whole_box(&whole[t].tensor);
    }
    const struct load_wish wish = {whole, TENSORS, UINT32_MAX};
    assert_int_equal(layout_plan_load(&reads, &count, table, &wish), 0);
    assert_int_equal(count, RANKS * TENSORS);
    double loaded = now();
    assert_int_equal(table->num_layouts, 3);
    /* The places of every rank: one that looked at all shards for each would take minutes. */
    for (uint32_t r = 0; r < RANKS; r++) {
        struct shard_tensor *tensors = NULL;
        uint64_t bytes = 0;
        assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, table, r), 0);
        assert_int_equal(count, TENSORS);
        free(tensors);
    }
    double placed = now();
    print_message("# plan %.2f s, items of a rank %.4f s, load of all %.2f s, places %.2f s\n",
                  planned - start, saved - planned, loaded - saved, placed - loaded);
    assert_true(placed - start < 10 * (scale ? atof(scale) : 1));
    free(items);
    free(reads);
    layout_table_free(table);
    free(slices);
    free(list);
    free(counts);
}

/* The plan of one rank's list, and the seconds that it took. */
static struct layout_table *plan_alone(double *out_seconds, const struct slice *slices,
                                       uint32_t count)
{
    struct layout_table *table = NULL;
    double start = now();
    assert_int_equal(layout_plan_save(&table, &slices, &count, 1, LAYOUT_ONE_REPLICA), 0);
    *out_seconds = now() - start;
    return table;
}

/* Comparing each layout with all before it takes 11 seconds. */
TEST(test_layout_plan__as_many_cuts_as_tensors_take_no_longer)
{
    enum { TENSORS = 200000 };
    const char *scale = getenv("TEST_TIME_SCALE");
    struct slice *slices = malloc(TENSORS * sizeof(*slices));
    double seconds;
    char name[32];
    for (uint32_t i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof(name), "w%06u", i); /* in the order of the table */
        slices[i] = make_slice(name, DTYPE_F32, 1, (uint64_t[]){1 + i});
    }
    struct layout_table *table = plan_alone(&seconds, slices, TENSORS);
    assert_int_equal(table->num_layouts, TENSORS);
    for (uint32_t i = 0; i < TENSORS; i++)
        assert_int_equal(table->layout_of[i], i); /* numbered in the order of the names */
    print_message("# %u layouts in %.2f s\n", table->num_layouts, seconds);
    layout_table_free(table);
    free(slices);
    assert_true(seconds < 3 * (scale ? atof(scale) : 1));
}

/* Names whose plain hashes all fall on one place in 64: without a seed they form one queue. */
TEST(test_layout_plan__names_that_were_chosen_to_meet_take_no_longer)
{
    enum { TENSORS = 100000, BUCKETS = 1 << 18 };
    const char *scale = getenv("TEST_TIME_SCALE");
    struct slice *slices = malloc(TENSORS * sizeof(*slices));
    double seconds;
    char name[32];
    for (uint32_t i = 0, n = 0; i < TENSORS; n++) {
        int length = snprintf(name, sizeof(name), "w%u", n);
        if ((checksum_bytes(name, (size_t)length) & (BUCKETS - 1)) < BUCKETS / 64)
            slices[i++] = make_slice(name, DTYPE_F32, 0, NULL);
    }
    layout_table_free(plan_alone(&seconds, slices, TENSORS));
    free(slices);
    print_message("# %u tensors in %.2f s\n", TENSORS, seconds);
    assert_true(seconds < 3 * (scale ? atof(scale) : 1));
}

/* ---- allocation failures ---- */

TEST(test_layout__every_failed_allocation_is_reported)
{
    struct world world;
    struct slice wanted;
    uint32_t tensor = 0, failures = 0;
    bool has_failed = true;
    open_world(&world);
    wanted = want_slice(&world, &tensor);
    wanted.box = whole_box(&wanted.tensor);
    for (uint64_t n = 1; has_failed; n++) {
        struct layout_table *table = NULL;
        struct save_item *items = NULL;
        struct load_item *reads = NULL;
        uint32_t count = 0;
        int64_t live = failing.live;
        memory_arm(&(struct lack){.number = n});
        int error =
            layout_plan_save(&table, world.list, world.counts, world.num_ranks, world.replicas);
        if (!error)
            error = layout_table_check(table, world.num_ranks);
        if (!error)
            error = layout_save_items(&items, &count, table, 0, world.slices[0], world.counts[0]);
        if (!error)
            error = layout_plan_load(&reads, &count, table,
                                     &(struct load_wish){&wanted, 1, UINT32_MAX});
        memory_disarm();
        has_failed = failing.has_failed;
        assert_int_equal(error, has_failed ? ERR_MEMORY : 0);
        failures += error != 0;
        layout_table_free(table);
        free(items);
        free(reads);
        assert_int_equal(failing.live, live);
    }
    print_message("# %u failures\n", failures);
    assert_true(failures >= 10);
    close_world(&world);
}

/* Row 1 twice and row 2 not at all: as many elements as w has. */
TEST(test_layout__joined_parts_that_overlap_are_refused)
{
    struct tensor_meta parts[] = {make_slice("w@0,0", DTYPE_F32, 2, (uint64_t[]){2, 4}).tensor,
                                  make_slice("w@1,0", DTYPE_F32, 2, (uint64_t[]){1, 4}).tensor,
                                  make_slice("w@3,0", DTYPE_F32, 2, (uint64_t[]){1, 4}).tensor};
    struct tensor_meta whole[3];
    uint32_t first[4];
    memcpy(whole, parts, sizeof parts);
    assert_int_equal(layout_join(whole, first, 3), 1);
    assert_string_equal(whole[0].name, "w");
    assert_int_equal(layout_check_joined(&whole[0], parts, 3), ERR_CORRUPT);
    strcpy(parts[1].name, "w@2,0");
    assert_int_equal(layout_check_joined(&whole[0], parts, 3), 0);
}

SUITE(print_seed, NULL)
