/* load.c - finds the tensors of a shard, and plans a load.
 *
 * A table has two kinds of look-ups. From tensors to shards: the cells of a box are found by binary
 * search in the cuts. From a shard to its tensors: by an index that is made once, in one pass over
 * all cells (layout_table_index). So a load costs O(log) per wanted slice, plus the found pieces
 * and the tensors of their shards, plus a counter per shard. Only the wanted slices are sorted.
 *
 * Places inside a shard are never stored: they are prefix sums over the shard's tensors in file
 * order (layout_shard_tensors), the same on every side. No sum overflows: the planner of a save and
 * the reader of a manifest (layout_shard_bytes) limit a table to LAYOUT_BYTES_MAX. */
#include "proto/layout/private.h"

#include "proto/base/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the index: from shards to their cells ---- */

struct shard_cell {
    uint32_t layout, cell;
};

struct layout_index {
    uint32_t num_shards;
    uint64_t *first_cell; /* shard s has cells[first_cell[s] .. first_cell[s + 1]) */
    struct shard_cell *cells;
    uint32_t *order;        /* the tensors in file order: descending element size, then name */
    uint32_t *position;     /* of each tensor in that order */
    uint32_t *first_member; /* layout l has members[first_member[l] .. first_member[l + 1]) */
    uint32_t *members;      /* positions of the tensors that share a layout */
};

void layout_index_free(struct layout_index *index)
{
    if (!index)
        return;
    free(index->first_cell);
    free(index->cells);
    free(index->order);
    free(index->position);
    free(index->first_member);
    free(index->members);
    free(index);
}

/* Counts at s + 2, sums up, then puts every cell where s + 1 points: s and s + 1 then hold the
 * bounds. */
static void index_cells(struct layout_index *index, const struct layout_table *table)
{
    for (uint32_t i = 0; i < table->num_layouts; i++) {
        uint64_t cells = layout_cells(&table->layouts[i]);
        for (uint64_t cell = 0; cell < cells; cell++)
            index->first_cell[table->layouts[i].owners[cell] + 2]++;
    }
    for (uint32_t s = 0; s < index->num_shards; s++)
        index->first_cell[s + 2] += index->first_cell[s + 1];
    for (uint32_t i = 0; i < table->num_layouts; i++) {
        uint64_t cells = layout_cells(&table->layouts[i]);
        for (uint64_t cell = 0; cell < cells; cell++)
            index->cells[index->first_cell[table->layouts[i].owners[cell] + 1]++] =
                (struct shard_cell){i, (uint32_t)cell};
    }
}

static void index_tensors(struct layout_index *index, const struct layout_table *table)
{
    static const uint32_t sizes[] = {8, 4, 2, 1};
    uint32_t placed = 0;
    for (uint32_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (uint32_t t = 0; t < table->num_tensors; t++) {
            if (dtype_bytes(table->tensors[t].dtype) != sizes[s])
                continue;
            index->position[t] = placed;
            index->order[placed++] = t;
        }
    }
    CHECK(placed == table->num_tensors);
    for (uint32_t t = 0; t < table->num_tensors; t++)
        index->first_member[table->layout_of[t] + 2]++;
    for (uint32_t i = 0; i < table->num_layouts; i++)
        index->first_member[i + 2] += index->first_member[i + 1];
    for (uint32_t t = 0; t < table->num_tensors; t++)
        index->members[index->first_member[table->layout_of[t] + 1]++] = index->position[t];
}

static int make_index(struct layout_index **out, const struct layout_table *table)
{
    struct layout_index *index = calloc(1, sizeof(*index));
    uint64_t num_cells = 0;
    uint32_t num_shards = 0, num_tensors = table->num_tensors;
    for (uint32_t i = 0; i < table->num_layouts; i++) {
        uint64_t cells = layout_cells(&table->layouts[i]);
        num_cells += cells;
        for (uint64_t cell = 0; cell < cells; cell++) {
            if (table->layouts[i].owners[cell] >= num_shards)
                num_shards = table->layouts[i].owners[cell] + 1;
        }
    }
    if (index) {
        index->num_shards = num_shards;
        index->first_cell = calloc((size_t)num_shards + 2, sizeof(*index->first_cell));
        index->cells = malloc((num_cells ? num_cells : 1) * sizeof(*index->cells));
        index->order = malloc(((size_t)num_tensors + 1) * sizeof(*index->order));
        index->position = malloc(((size_t)num_tensors + 1) * sizeof(*index->position));
        index->first_member = calloc((size_t)table->num_layouts + 2, sizeof(*index->first_member));
        index->members = malloc(((size_t)num_tensors + 1) * sizeof(*index->members));
    }
    if (!index || !index->first_cell || !index->cells || !index->order || !index->position ||
        !index->first_member || !index->members) {
        layout_index_free(index);
        return report_error(ERR_MEMORY, NULL, "no memory to index the layouts");
    }
    index_cells(index, table);
    index_tensors(index, table);
    *out = index;
    return 0;
}

int layout_table_index(struct layout_table *table)
{
    CHECK(!table->index);
    return make_index(&table->index, table);
}

/* The table's own index, or a temporary one: then the caller frees *out_own. */
static int find_index(const struct layout_index **out, struct layout_index **out_own,
                      const struct layout_table *table)
{
    *out_own = NULL;
    int error = table->index ? 0 : make_index(out_own, table);
    *out = table->index ? table->index : *out_own;
    return error;
}

static uint32_t count_shard_tensors(const struct layout_index *index, uint32_t shard)
{
    uint32_t count = 0;
    for (uint64_t c = index->first_cell[shard]; c < index->first_cell[shard + 1]; c++) {
        uint32_t layout = index->cells[c].layout;
        count += index->first_member[layout + 1] - index->first_member[layout];
    }
    return count;
}

/* The cell that a shard has of a layout. */
struct cell_box {
    struct box box;
    uint64_t elements;
};

/* Lists the tensors of one shard in file order: sets a bit for each position, then reads the bits
 * from the lowest on. So it sorts nothing and ignores other shards. */
static int list_shard(struct shard_tensor **out, uint32_t *out_count, uint64_t *out_bytes,
                      const struct layout_table *table, const struct layout_index *index,
                      uint32_t shard)
{
    uint32_t count = shard < index->num_shards ? count_shard_tensors(index, shard) : 0;
    uint32_t num_words = count ? table->num_tensors / 64 + 1 : 0, placed = 0;
    uint64_t *bits = calloc((size_t)num_words + 1, sizeof(*bits));
    struct cell_box *cell_of = malloc(((size_t)table->num_layouts + 1) * sizeof(*cell_of));
    struct shard_tensor *tensors = malloc(((size_t)count + 1) * sizeof(*tensors));
    if (!bits || !cell_of || !tensors) {
        free(bits);
        free(cell_of);
        free(tensors);
        return report_error(ERR_MEMORY, NULL, "no memory to place the tensors of a shard");
    }
    for (uint64_t c = count ? index->first_cell[shard] : 0;
         count && c < index->first_cell[shard + 1]; c++) {
        uint32_t layout = index->cells[c].layout;
        struct cell_box *cell = &cell_of[layout];
        layout_cell_box(&cell->box, &table->layouts[layout], index->cells[c].cell);
        cell->elements = box_elements(&cell->box, table->layouts[layout].dims);
        for (uint32_t m = index->first_member[layout]; m < index->first_member[layout + 1]; m++)
            bits[index->members[m] / 64] |= 1ull << (index->members[m] % 64);
    }
    *out_bytes = 0;
    for (uint32_t w = 0; w < num_words; w++) {
        for (; bits[w]; bits[w] &= bits[w] - 1) {
            uint32_t t = index->order[64 * w + (uint32_t)__builtin_ctzll(bits[w])];
            const struct cell_box *cell = &cell_of[table->layout_of[t]];
            uint64_t bytes = cell->elements * dtype_bytes(table->tensors[t].dtype);
            tensors[placed++] = (struct shard_tensor){
                .tensor = t, .box = cell->box, .data_byte = *out_bytes, .bytes = bytes};
            *out_bytes += bytes;
        }
    }
    CHECK(placed == count);
    free(bits);
    free(cell_of);
    *out = tensors;
    *out_count = count;
    return 0;
}

int layout_shard_tensors(struct shard_tensor **out, uint32_t *out_count, uint64_t *out_bytes,
                         const struct layout_table *table, uint32_t shard)
{
    const struct layout_index *index = NULL;
    struct layout_index *own = NULL;
    int error = find_index(&index, &own, table);
    if (!error)
        error = list_shard(out, out_count, out_bytes, table, index, shard);
    layout_index_free(own);
    return error;
}

uint32_t layout_tensor_at(const struct shard_tensor *tensors, uint32_t count, uint64_t data_byte)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tensors[middle].data_byte + tensors[middle].bytes <= data_byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- the plan of a load ---- */

/* A wanted slice that is not empty, with the position of its tensor in file order. */
struct want {
    uint32_t position, slice;
};

/* The intersection of a wanted slice and a saved cell. */
struct piece {
    uint32_t want, cell; /* a layout has at most as many cells as there are shards */
};

struct load_plan {
    const struct layout_table *table;
    const struct layout_index *index;
    const struct load_wish *wish;
    struct want *wants; /* sorted */
    uint32_t num_wants;
    uint64_t num_pieces;
    uint64_t *first; /* shard s has pieces[first[s] .. first[s + 1]) */
    struct piece *pieces;
};

static int fail_load_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to plan the load");
}

uint32_t layout_find_cut(const uint64_t *cuts, uint32_t num_cuts, uint64_t value)
{
    uint32_t low = 0, high = num_cuts;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (cuts[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A walk over the cells that a box intersects, in row-major order. */
struct walk {
    const struct layout *layout;
    struct box range; /* in cells */
    uint64_t at[LAYOUT_DIMS_MAX];
};

static void start_walk(struct walk *walk, const struct layout *layout, const struct box *box)
{
    *walk = (struct walk){.layout = layout};
    for (uint32_t d = 0; d < layout->dims; d++) {
        uint64_t last = box->offset[d] + box->extent[d] - 1;
        uint32_t from = layout_find_cut(layout->cuts[d], layout->num_cuts[d], box->offset[d]);
        walk->at[d] = walk->range.offset[d] = from;
        walk->range.extent[d] =
            layout_find_cut(layout->cuts[d], layout->num_cuts[d], last) - from + 1;
    }
}

static uint64_t walk_cell(const struct walk *walk)
{
    uint64_t cell = 0;
    for (uint32_t d = 0; d < walk->layout->dims; d++)
        cell = cell * (walk->layout->num_cuts[d] - 1) + walk->at[d];
    return cell;
}

static bool walk_on(struct walk *walk)
{
    return layout_next_coordinate(walk->at, &walk->range, walk->layout->dims);
}

static int find_wanted(uint32_t *out, const struct layout_table *table, const struct slice *slice)
{
    ERR_TRY(slice_check(slice));
    const char *name = slice->tensor.name;
    int64_t index = layout_find(table, name);
    if (index < 0)
        return report_error(ERR_NOT_FOUND, "is it a checkpoint of another model?",
                            "the checkpoint has no tensor '%s'", name);
    const struct tensor_meta *saved = &table->tensors[index];
    if (saved->dtype != slice->tensor.dtype)
        return report_error(ERR_MISMATCH, "load it with the saved element type",
                            "tensor '%s' was saved as %s but is wanted as %s", name,
                            dtype_name(saved->dtype), dtype_name(slice->tensor.dtype));
    bool same = saved->dims == slice->tensor.dims;
    for (uint32_t d = 0; same && d < saved->dims; d++)
        same = saved->shape[d] == slice->tensor.shape[d];
    if (!same)
        return report_error(ERR_MISMATCH, "is it a checkpoint of another model?",
                            "shape of tensor '%s' differs from the saved one", name);
    *out = (uint32_t)index;
    return 0;
}

static int compare_wants(const void *a, const void *b)
{
    const struct want *x = a, *y = b;
    if (x->position != y->position)
        return x->position < y->position ? -1 : 1;
    return x->slice < y->slice ? -1 : x->slice > y->slice;
}

/* In a shard the places of tensors ascend with their positions: in this order the pieces of a shard
 * are found in the order of their places. */
static int find_wants(struct load_plan *plan)
{
    const struct load_wish *wish = plan->wish;
    plan->wants = malloc(((size_t)wish->num_slices + 1) * sizeof(*plan->wants));
    if (!plan->wants)
        return fail_load_memory();
    for (uint32_t i = 0; i < wish->num_slices; i++) {
        uint32_t tensor = 0;
        int error = find_wanted(&tensor, plan->table, &wish->slices[i]);
        if (error)
            return error;
        if (box_elements(&wish->slices[i].box, wish->slices[i].tensor.dims) == 0)
            continue;
        struct walk walk;
        plan->wants[plan->num_wants++] = (struct want){plan->index->position[tensor], i};
        start_walk(&walk, &plan->table->layouts[plan->table->layout_of[tensor]],
                   &wish->slices[i].box);
        plan->num_pieces += box_elements(&walk.range, walk.layout->dims);
        if (plan->num_pieces > wish->items_max)
            return report_error(ERR_INVALID, "ask for less at once",
                                "what was wanted lies in more than %u boxes", wish->items_max);
    }
    qsort(plan->wants, plan->num_wants, sizeof(*plan->wants), compare_wants);
    return 0;
}

static const struct layout *layout_of_want(const struct load_plan *plan, uint32_t want)
{
    uint32_t tensor = plan->index->order[plan->wants[want].position];
    return &plan->table->layouts[plan->table->layout_of[tensor]];
}

/* Two walks over all wanted cells: the first counts, the second puts each piece at its place, so
 * nothing is sorted. As in index_cells(), shard s counts at s + 2. */
static int find_pieces(struct load_plan *plan)
{
    struct walk walk;
    uint32_t num_shards = plan->index->num_shards;
    plan->first = calloc((size_t)num_shards + 2, sizeof(*plan->first));
    if (!plan->first)
        return fail_load_memory();
    for (uint32_t w = 0; w < plan->num_wants; w++) {
        start_walk(&walk, layout_of_want(plan, w), &plan->wish->slices[plan->wants[w].slice].box);
        do
            plan->first[walk.layout->owners[walk_cell(&walk)] + 2]++;
        while (walk_on(&walk));
    }
    for (uint32_t s = 0; s < num_shards; s++)
        plan->first[s + 2] += plan->first[s + 1];
    CHECK(plan->first[num_shards + 1] == plan->num_pieces);
    plan->pieces = malloc((plan->num_pieces + 1) * sizeof(*plan->pieces));
    if (!plan->pieces)
        return fail_load_memory();
    for (uint32_t w = 0; w < plan->num_wants; w++) {
        start_walk(&walk, layout_of_want(plan, w), &plan->wish->slices[plan->wants[w].slice].box);
        do {
            uint64_t cell = walk_cell(&walk);
            plan->pieces[plan->first[walk.layout->owners[cell] + 1]++] =
                (struct piece){w, (uint32_t)cell};
        } while (walk_on(&walk));
    }
    return 0;
}

/* Makes the items of one shard. */
static int make_items(struct load_item *items, const struct load_plan *plan, uint32_t shard)
{
    struct shard_tensor *tensors = NULL;
    uint32_t num_tensors = 0, at = 0;
    uint64_t bytes = 0;
    ERR_TRY(list_shard(&tensors, &num_tensors, &bytes, plan->table, plan->index, shard));
    for (uint64_t i = plan->first[shard]; i < plan->first[shard + 1]; i++) {
        const struct want *want = &plan->wants[plan->pieces[i].want];
        uint32_t t = plan->index->order[want->position];
        const struct layout *layout = &plan->table->layouts[plan->table->layout_of[t]];
        struct load_item *item = &items[i];
        while (at < num_tensors && tensors[at].tensor != t)
            at++;
        CHECK(at < num_tensors);
        item->slice = want->slice;
        item->shard = shard;
        item->data_byte = tensors[at].data_byte;
        layout_cell_box(&item->saved, layout, plan->pieces[i].cell);
        CHECK(box_intersect(&item->part, &item->saved, &plan->wish->slices[want->slice].box,
                            layout->dims));
    }
    free(tensors);
    return 0;
}

int layout_plan_cells(struct load_item **out, uint32_t *out_count, const struct layout_table *table,
                      const struct load_wish *wish)
{
    struct load_plan plan = {.table = table, .wish = wish};
    struct layout_index *own = NULL;
    struct load_item *items = NULL;
    int error = find_index(&plan.index, &own, table);
    if (!error)
        error = find_wants(&plan);
    if (!error)
        error = find_pieces(&plan);
    if (!error) {
        items = malloc((plan.num_pieces + 1) * sizeof(*items));
        error = items ? 0 : fail_load_memory();
    }
    for (uint32_t shard = 0; !error && shard < plan.index->num_shards; shard++)
        if (plan.first[shard] < plan.first[shard + 1])
            error = make_items(items, &plan, shard);
    free(plan.wants);
    free(plan.first);
    free(plan.pieces);
    layout_index_free(own);
    if (error) {
        free(items);
        return error;
    }
    *out = items;
    *out_count = (uint32_t)plan.num_pieces;
    return 0;
}
