/* layout.c - boxes, layout tables, and the plan of a load. The plan of a save is in layout_plan.c.
 *
 * A table holds each distinct layout once, so everything that depends on the grid alone is done
 * once per layout and not once per tensor. Places inside a shard are never stored: they are prefix
 * sums over the shard's tensors in file order (layout_shard_tensors), the same on every side.
 *
 * Two questions are asked of a table. From tensors to shards: the cells of a box are found by
 * binary search in the cuts. From a shard to its tensors: by an index that is made once, in one
 * pass over all cells (layout_table_index). So a load costs O(log) per wanted slice, plus O(n log
 * n) in the pieces found and in the tensors of the shards they lie in; shards that are not touched
 * cost nothing. */
#include "proto/layout.h"

#include "proto/report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES_MAX (1ull << 62)

/* ---- element types ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [DTYPE_U8] = {"U8", 1},   [DTYPE_I8] = {"I8", 1},   [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_F16] = {"F16", 2}, [DTYPE_I32] = {"I32", 4}, [DTYPE_F32] = {"F32", 4},
    [DTYPE_I64] = {"I64", 8}, [DTYPE_F64] = {"F64", 8},
};
#define NUM_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

uint32_t dtype_bytes(enum dtype dtype)
{
    CHECK((size_t)dtype < NUM_DTYPES);
    return dtypes[dtype].bytes;
}

const char *dtype_name(enum dtype dtype)
{
    CHECK((size_t)dtype < NUM_DTYPES);
    return dtypes[dtype].name;
}

int dtype_parse(enum dtype *out, const char *name)
{
    for (size_t i = 0; i < NUM_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (enum dtype)i;
            return 0;
        }
    }
    return report_error(ERR_INVALID, "U8, I8, BF16, F16, I32, F32, I64 and F64 are known",
                        "element type '%.32s' is unknown", name);
}

/* ---- tensors and slices ---- */

static bool is_name_valid(const char name[LAYOUT_NAME_MAX])
{
    size_t length = strnlen(name, LAYOUT_NAME_MAX);
    if (length == 0 || length == LAYOUT_NAME_MAX || strncmp(name, "__", 2) == 0)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] <= 0x20 || name[i] >= 0x7f || name[i] == '"' || name[i] == '\\')
            return false;
    }
    return true;
}

int tensor_meta_check(const struct tensor_meta *tensor)
{
    if (!is_name_valid(tensor->name))
        return report_error(ERR_INVALID, "use printable ASCII without space, quote and backslash",
                            "tensor name '%.191s' is not valid", tensor->name);
    if ((size_t)tensor->dtype >= NUM_DTYPES)
        return report_error(ERR_INVALID, NULL, "element type of tensor '%s' is unknown",
                            tensor->name);
    if (tensor->dims > LAYOUT_DIMS_MAX)
        return report_error(ERR_INVALID, "a tensor has at most 4 dimensions",
                            "tensor '%s' has %" PRIu32 " dimensions", tensor->name, tensor->dims);
    uint64_t bytes = dtypes[tensor->dtype].bytes;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        /* A zero elsewhere must not hide an absurd dimension. */
        uint64_t shape = tensor->shape[d] ? tensor->shape[d] : 1;
        if (shape > LAYOUT_TENSOR_BYTES_MAX / bytes)
            return report_error(ERR_INVALID, NULL, "tensor '%s' is too large", tensor->name);
        bytes *= shape;
    }
    return 0;
}

int slice_check(const struct slice *slice)
{
    int error = tensor_meta_check(&slice->tensor);
    if (error)
        return error;
    for (uint32_t d = 0; d < slice->tensor.dims; d++) {
        uint64_t shape = slice->tensor.shape[d];
        if (slice->box.offset[d] > shape || slice->box.extent[d] > shape - slice->box.offset[d])
            return report_error(ERR_INVALID, NULL,
                                "slice of tensor '%s' reaches beyond dimension %" PRIu32
                                " (offset %" PRIu64 ", extent %" PRIu64 ", shape %" PRIu64 ")",
                                slice->tensor.name, d, slice->box.offset[d], slice->box.extent[d],
                                shape);
    }
    return 0;
}

/* ---- boxes ---- */

uint64_t box_elements(const struct box *box, uint32_t dims)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < dims; d++)
        elements *= box->extent[d];
    return elements;
}

bool box_intersect(struct box *out, const struct box *a, const struct box *b, uint32_t dims)
{
    bool any = true;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        out->offset[d] = 0;
        out->extent[d] = 1;
        if (d >= dims)
            continue;
        uint64_t a_end = a->offset[d] + a->extent[d];
        uint64_t b_end = b->offset[d] + b->extent[d];
        uint64_t start = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        uint64_t end = a_end < b_end ? a_end : b_end;
        out->offset[d] = start;
        out->extent[d] = end > start ? end - start : 0;
        any = any && end > start;
    }
    return any;
}

bool box_equal(const struct box *a, const struct box *b, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++) {
        if (a->offset[d] != b->offset[d] || a->extent[d] != b->extent[d])
            return false;
    }
    return true;
}

/* Position of global coordinate `at` in the row-major array that holds `box`, in elements. */
static uint64_t position_in(const struct box *box, const uint64_t *at, uint32_t dims)
{
    uint64_t position = 0;
    for (uint32_t d = 0; d < dims; d++)
        position = position * box->extent[d] + (at[d] - box->offset[d]);
    return position;
}

/* Moves `at` to the next coordinate of `box` over its first `dims` dimensions; false after the
 * last. */
static bool next_coordinate(uint64_t *at, const struct box *box, uint32_t dims)
{
    for (uint32_t d = dims; d-- > 0;) {
        if (++at[d] < box->offset[d] + box->extent[d])
            return true;
        at[d] = box->offset[d];
    }
    return false;
}

static bool is_inside(const struct box *part, const struct box *box, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++) {
        if (part->offset[d] < box->offset[d] ||
            part->offset[d] + part->extent[d] > box->offset[d] + box->extent[d])
            return false;
    }
    return true;
}

/* Bytes from one row, plane, ... of the array that holds `box` to the next. */
static void strides_of(uint64_t *out, const struct box *box, uint32_t dims, uint32_t element_bytes)
{
    uint64_t stride = element_bytes;
    for (uint32_t d = dims; d-- > 0;) {
        out[d] = stride;
        stride *= box->extent[d];
    }
}

void box_copy(void *to_data, const struct box *to, const void *from_data, const struct box *from,
              const struct box *part, uint32_t dims, uint32_t element_bytes)
{
    if (box_elements(part, dims) == 0)
        return;
    CHECK(is_inside(part, from, dims) && is_inside(part, to, dims));
    char *into = (char *)to_data + position_in(to, part->offset, dims) * element_bytes;
    const char *out_of =
        (const char *)from_data + position_in(from, part->offset, dims) * element_bytes;
    /* Trailing dimensions that the part spans in both arrays make one run with the one before. */
    uint32_t outer = dims;
    uint64_t run = element_bytes;
    while (outer > 0) {
        outer--;
        run *= part->extent[outer];
        if (part->extent[outer] != from->extent[outer] || part->extent[outer] != to->extent[outer])
            break;
    }
    /* Runs of the innermost of the other dimensions are a step apart; only the rest is counted. */
    uint64_t to_strides[LAYOUT_DIMS_MAX], from_strides[LAYOUT_DIMS_MAX], at[LAYOUT_DIMS_MAX] = {0};
    strides_of(to_strides, to, dims, element_bytes);
    strides_of(from_strides, from, dims, element_bytes);
    uint32_t rest = outer > 0 ? outer - 1 : 0;
    uint64_t count = outer > 0 ? part->extent[rest] : 1;
    uint64_t to_step = outer > 0 ? to_strides[rest] : 0;
    uint64_t from_step = outer > 0 ? from_strides[rest] : 0;
    struct box counted = {.offset = {0}};
    memcpy(counted.extent, part->extent, sizeof counted.extent);
    do {
        uint64_t to_byte = 0, from_byte = 0;
        for (uint32_t d = 0; d < rest; d++) {
            to_byte += at[d] * to_strides[d];
            from_byte += at[d] * from_strides[d];
        }
        for (uint64_t i = 0; i < count; i++)
            memcpy(into + to_byte + i * to_step, out_of + from_byte + i * from_step, run);
    } while (next_coordinate(at, &counted, rest));
}

void box_runs(const struct box *box, const struct tensor_meta *tensor,
              void (*run)(void *user, uint64_t first, uint64_t count, uint64_t byte_offset),
              void *user)
{
    uint32_t dims = tensor->dims;
    if (box_elements(box, dims) == 0)
        return;
    struct box whole = {.offset = {0}};
    memcpy(whole.extent, tensor->shape, sizeof(whole.extent));
    CHECK(is_inside(box, &whole, dims));
    uint32_t outer = dims;
    uint64_t count = 1;
    while (outer > 0) {
        outer--;
        count *= box->extent[outer];
        if (box->extent[outer] != tensor->shape[outer])
            break;
    }
    uint64_t at[LAYOUT_DIMS_MAX] = {0};
    memcpy(at, box->offset, dims * sizeof(at[0]));
    uint64_t run_bytes = count * dtype_bytes(tensor->dtype);
    uint64_t byte_offset = 0;
    do {
        run(user, position_in(&whole, at, dims), count, byte_offset);
        byte_offset += run_bytes;
    } while (next_coordinate(at, box, outer));
}

/* ---- tables ---- */

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

static void free_index(struct layout_index *index)
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

void layout_table_free(struct layout_table *table)
{
    if (!table)
        return;
    for (uint32_t i = 0; table->layouts && i < table->num_layouts; i++) {
        for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
            free(table->layouts[i].cuts[d]);
        free(table->layouts[i].owners);
    }
    free(table->layouts);
    free(table->layout_of);
    free(table->tensors);
    free_index(table->index);
    free(table);
}

int64_t layout_find(const struct layout_table *table, const char *name)
{
    uint32_t low = 0, high = table->num_tensors;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(table->tensors[middle].name, name);
        if (order == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

uint64_t layout_cells(const struct layout *layout)
{
    uint64_t cells = 1;
    for (uint32_t d = 0; d < layout->dims; d++)
        cells *= layout->num_cuts[d] - 1;
    return cells;
}

void layout_cell_box(struct box *out, const struct layout *layout, uint64_t cell)
{
    for (uint32_t d = LAYOUT_DIMS_MAX; d-- > 0;) {
        out->offset[d] = 0;
        out->extent[d] = 1;
        if (d >= layout->dims)
            continue;
        uint64_t at = cell % (layout->num_cuts[d] - 1);
        cell /= layout->num_cuts[d] - 1;
        out->offset[d] = layout->cuts[d][at];
        out->extent[d] = layout->cuts[d][at + 1] - layout->cuts[d][at];
    }
}

/* `seen[shard]` holds the number, plus one, of the last layout in which the shard had a cell. */
static int check_layout(const struct layout *layout, uint32_t index, uint32_t shards,
                        uint32_t *seen)
{
    if (layout->dims > LAYOUT_DIMS_MAX)
        return report_error(ERR_CORRUPT, NULL, "layout %" PRIu32 " has too many dimensions", index);
    for (uint32_t d = 0; d < layout->dims; d++) {
        if (layout->num_cuts[d] == 0 || layout->cuts[d][0] != 0)
            return report_error(ERR_CORRUPT, NULL, "cuts of layout %" PRIu32 " do not begin at 0",
                                index);
        for (uint32_t i = 1; i < layout->num_cuts[d]; i++) {
            if (layout->cuts[d][i] <= layout->cuts[d][i - 1])
                return report_error(ERR_CORRUPT, NULL, "cuts of layout %" PRIu32 " do not ascend",
                                    index);
        }
    }
    uint64_t cells = layout_cells(layout);
    for (uint64_t cell = 0; cell < cells; cell++) {
        uint32_t owner = layout->owners[cell];
        if (owner >= shards)
            return report_error(ERR_CORRUPT, NULL,
                                "layout %" PRIu32 " names shard %" PRIu32 " of %" PRIu32, index,
                                owner, shards);
        if (seen[owner] == index + 1)
            return report_error(ERR_CORRUPT, NULL,
                                "layout %" PRIu32 " gives shard %" PRIu32 " two cells", index,
                                owner);
        seen[owner] = index + 1;
    }
    return 0;
}

static int check_tensor(const struct layout_table *table, uint32_t index)
{
    const struct tensor_meta *tensor = &table->tensors[index];
    if (tensor_meta_check(tensor) != 0)
        return ERR_CORRUPT;
    if (index > 0 && strcmp(table->tensors[index - 1].name, tensor->name) >= 0)
        return report_error(ERR_CORRUPT, NULL, "tensor '%s' is not in the order of names",
                            tensor->name);
    if (table->layout_of[index] >= table->num_layouts)
        return report_error(ERR_CORRUPT, NULL, "tensor '%s' has no layout", tensor->name);
    const struct layout *layout = &table->layouts[table->layout_of[index]];
    bool fits = layout->dims == tensor->dims;
    for (uint32_t d = 0; fits && d < tensor->dims; d++)
        fits = layout->cuts[d][layout->num_cuts[d] - 1] == tensor->shape[d];
    if (!fits)
        return report_error(ERR_CORRUPT, NULL, "layout of tensor '%s' does not fit its shape",
                            tensor->name);
    return 0;
}

int layout_table_check(const struct layout_table *table, uint32_t shards)
{
    int error = 0;
    uint32_t *seen = calloc(shards ? shards : 1, sizeof(*seen));
    if (!seen)
        return report_error(ERR_MEMORY, NULL, "could not check the layouts");
    for (uint32_t i = 0; !error && i < table->num_layouts; i++)
        error = check_layout(&table->layouts[i], i, shards, seen);
    for (uint32_t i = 0; !error && i < table->num_tensors; i++)
        error = check_tensor(table, i);
    free(seen);
    return error;
}

int layout_shard_bytes(uint64_t *out, const struct layout_table *table, uint32_t shards)
{
    int error = 0;
    /* Bytes of one element position, summed over the tensors that share a layout. */
    uint64_t *weight = calloc(table->num_layouts ? table->num_layouts : 1, sizeof(*weight));
    if (!weight)
        return report_error(ERR_MEMORY, NULL, "could not sum up the shards");
    memset(out, 0, shards * sizeof(*out));
    for (uint32_t i = 0; i < table->num_tensors; i++)
        weight[table->layout_of[i]] += dtype_bytes(table->tensors[i].dtype);
    for (uint32_t i = 0; !error && i < table->num_layouts; i++) {
        const struct layout *layout = &table->layouts[i];
        uint64_t cells = weight[i] ? layout_cells(layout) : 0;
        for (uint64_t cell = 0; !error && cell < cells; cell++) {
            struct box box;
            uint64_t bytes = 0;
            uint64_t *sum = &out[layout->owners[cell]];
            layout_cell_box(&box, layout, cell);
            if (__builtin_mul_overflow(box_elements(&box, layout->dims), weight[i], &bytes) ||
                __builtin_add_overflow(*sum, bytes, sum) || *sum > SHARD_BYTES_MAX)
                error = report_error(ERR_CORRUPT, NULL, "a shard would pass 2^62 bytes");
        }
    }
    free(weight);
    return error;
}

/* ---- the index: from shards to their cells ---- */

/* Counted at s + 2, summed up, then every cell is put where s + 1 points: what remains at s and
 * s + 1 are the bounds. */
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
        free_index(index);
        return report_error(ERR_MEMORY, NULL, "could not index the layouts");
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

/* The table's own index, or one for this use: *out_own is then to be freed. */
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

/* The tensors of one shard in file order: a bit for each position, then the bits from the lowest
 * on. So nothing is sorted, and other shards are not looked at. */
static int list_shard(struct shard_tensor **out, uint32_t *out_count, uint64_t *out_bytes,
                      const struct layout_table *table, const struct layout_index *index,
                      uint32_t shard)
{
    uint32_t count = shard < index->num_shards ? count_shard_tensors(index, shard) : 0;
    uint32_t num_words = count ? table->num_tensors / 64 + 1 : 0, placed = 0;
    uint64_t *bits = calloc((size_t)num_words + 1, sizeof(*bits));
    uint32_t *cell_of = malloc(((size_t)table->num_layouts + 1) * sizeof(*cell_of));
    struct shard_tensor *tensors = malloc(((size_t)count + 1) * sizeof(*tensors));
    if (!bits || !cell_of || !tensors) {
        free(bits);
        free(cell_of);
        free(tensors);
        return report_error(ERR_MEMORY, NULL, "could not place the tensors of a shard");
    }
    for (uint64_t c = count ? index->first_cell[shard] : 0;
         count && c < index->first_cell[shard + 1]; c++) {
        uint32_t layout = index->cells[c].layout;
        cell_of[layout] = index->cells[c].cell;
        for (uint32_t m = index->first_member[layout]; m < index->first_member[layout + 1]; m++)
            bits[index->members[m] / 64] |= 1ull << (index->members[m] % 64);
    }
    *out_bytes = 0;
    for (uint32_t w = 0; w < num_words; w++) {
        for (; bits[w]; bits[w] &= bits[w] - 1) {
            uint32_t t = index->order[64 * w + (uint32_t)__builtin_ctzll(bits[w])];
            const struct layout *layout = &table->layouts[table->layout_of[t]];
            struct shard_tensor *tensor = &tensors[placed++];
            tensor->tensor = t;
            layout_cell_box(&tensor->box, layout, cell_of[table->layout_of[t]]);
            tensor->data_byte = *out_bytes;
            tensor->bytes =
                box_elements(&tensor->box, layout->dims) * dtype_bytes(table->tensors[t].dtype);
            *out_bytes += tensor->bytes;
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
    free_index(own);
    return error;
}

/* ---- the plan of a load ---- */

/* A wanted slice that is not empty, with the place of its tensor in file order. */
struct want {
    uint32_t position, slice;
};

/* A wanted slice meets a saved cell. */
struct piece {
    uint32_t want, cell; /* no layout has more cells than there are shards */
};

struct load_plan {
    const struct layout_table *table;
    const struct layout_index *index;
    const struct slice *wanted;
    struct want *wants; /* sorted */
    uint32_t num_wants;
    uint64_t *first; /* shard s has pieces[first[s] .. first[s + 1]) */
    struct piece *pieces;
};

static int fail_load_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "could not plan the load");
}

/* The last index i with cuts[i] <= value. */
static uint32_t find_cut(const uint64_t *cuts, uint32_t num_cuts, uint64_t value)
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

/* A walk over the cells that a box meets, in row-major order. */
struct walk {
    const struct layout *layout;
    struct box range; /* in cells */
    uint64_t at[LAYOUT_DIMS_MAX];
};

static void start_walk(struct walk *walk, const struct layout *layout, const struct box *box)
{
    *walk = (struct walk){.layout = layout, .range = {.extent = {1, 1, 1, 1}}};
    for (uint32_t d = 0; d < layout->dims; d++) {
        uint64_t last = box->offset[d] + box->extent[d] - 1;
        uint32_t from = find_cut(layout->cuts[d], layout->num_cuts[d], box->offset[d]);
        walk->at[d] = walk->range.offset[d] = from;
        walk->range.extent[d] = find_cut(layout->cuts[d], layout->num_cuts[d], last) - from + 1;
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
    return next_coordinate(walk->at, &walk->range, walk->layout->dims);
}

static int find_wanted(uint32_t *out, const struct layout_table *table, const struct slice *slice)
{
    int error = slice_check(slice);
    if (error)
        return error;
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
static int find_wants(struct load_plan *plan, uint32_t num_wanted)
{
    plan->wants = malloc(((size_t)num_wanted + 1) * sizeof(*plan->wants));
    if (!plan->wants)
        return fail_load_memory();
    for (uint32_t i = 0; i < num_wanted; i++) {
        uint32_t tensor = 0;
        int error = find_wanted(&tensor, plan->table, &plan->wanted[i]);
        if (error)
            return error;
        if (box_elements(&plan->wanted[i].box, plan->wanted[i].tensor.dims) > 0)
            plan->wants[plan->num_wants++] = (struct want){plan->index->position[tensor], i};
    }
    qsort(plan->wants, plan->num_wants, sizeof(*plan->wants), compare_wants);
    return 0;
}

static const struct layout *layout_of_want(const struct load_plan *plan, uint32_t want)
{
    uint32_t tensor = plan->index->order[plan->wants[want].position];
    return &plan->table->layouts[plan->table->layout_of[tensor]];
}

/* Two walks over all cells that are wanted: the first counts, the second puts each piece at its
 * place, so that nothing is sorted. As in index_cells(), shard s counts at s + 2. */
static int find_pieces(struct load_plan *plan)
{
    struct walk walk;
    uint32_t num_shards = plan->index->num_shards;
    plan->first = calloc((size_t)num_shards + 2, sizeof(*plan->first));
    if (!plan->first)
        return fail_load_memory();
    for (uint32_t w = 0; w < plan->num_wants; w++) {
        start_walk(&walk, layout_of_want(plan, w), &plan->wanted[plan->wants[w].slice].box);
        do
            plan->first[walk.layout->owners[walk_cell(&walk)] + 2]++;
        while (walk_on(&walk));
    }
    for (uint32_t s = 0; s < num_shards; s++)
        plan->first[s + 2] += plan->first[s + 1];
    uint64_t count = plan->first[num_shards + 1];
    plan->pieces = count <= UINT32_MAX ? malloc((count + 1) * sizeof(*plan->pieces)) : NULL;
    if (!plan->pieces)
        return fail_load_memory();
    for (uint32_t w = 0; w < plan->num_wants; w++) {
        start_walk(&walk, layout_of_want(plan, w), &plan->wanted[plan->wants[w].slice].box);
        do {
            uint64_t cell = walk_cell(&walk);
            plan->pieces[plan->first[walk.layout->owners[cell] + 1]++] =
                (struct piece){w, (uint32_t)cell};
        } while (walk_on(&walk));
    }
    return 0;
}

/* The items of one shard. */
static int make_items(struct load_item *items, const struct load_plan *plan, uint32_t shard)
{
    struct shard_tensor *tensors = NULL;
    uint32_t num_tensors = 0, at = 0;
    uint64_t bytes = 0;
    int error = list_shard(&tensors, &num_tensors, &bytes, plan->table, plan->index, shard);
    if (error)
        return error;
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
        CHECK(
            box_intersect(&item->part, &item->saved, &plan->wanted[want->slice].box, layout->dims));
    }
    free(tensors);
    return 0;
}

int layout_plan_load(struct load_item **out, uint32_t *out_count, const struct layout_table *table,
                     const struct slice *wanted, uint32_t num_wanted)
{
    struct load_plan plan = {.table = table, .wanted = wanted};
    struct layout_index *own = NULL;
    struct load_item *items = NULL;
    uint64_t count = 0;
    int error = find_index(&plan.index, &own, table);
    if (!error)
        error = find_wants(&plan, num_wanted);
    if (!error)
        error = find_pieces(&plan);
    if (!error) {
        count = plan.first[plan.index->num_shards];
        items = malloc((count + 1) * sizeof(*items));
        error = items ? 0 : fail_load_memory();
    }
    for (uint32_t shard = 0; !error && shard < plan.index->num_shards; shard++)
        if (plan.first[shard] < plan.first[shard + 1])
            error = make_items(items, &plan, shard);
    free(plan.wants);
    free(plan.first);
    free(plan.pieces);
    free_index(own);
    if (error) {
        free(items);
        return error;
    }
    *out = items;
    *out_count = (uint32_t)count;
    return 0;
}
