/* layout.c - boxes, and layout tables with their invariants. plan.c plans a save, load.c a load.
 *
 * A table holds each distinct layout once, so work that depends only on the grid is done once per
 * layout and not once per tensor. */
#include "proto/layout/private.h"

#include "proto/base/report.h"
#include "proto/base/stream_copy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- element types ---- */

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    [DTYPE_U8] = {"U8", 1},           [DTYPE_I8] = {"I8", 1},           [DTYPE_BF16] = {"BF16", 2},
    [DTYPE_F16] = {"F16", 2},         [DTYPE_I32] = {"I32", 4},         [DTYPE_F32] = {"F32", 4},
    [DTYPE_I64] = {"I64", 8},         [DTYPE_F64] = {"F64", 8},         [DTYPE_BOOL] = {"BOOL", 1},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [DTYPE_I16] = {"I16", 2},
    [DTYPE_U16] = {"U16", 2},         [DTYPE_U32] = {"U32", 4},         [DTYPE_U64] = {"U64", 8},
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
    return report_error(ERR_INVALID,
                        "the names are those of safetensors: F32, BF16, F8_E4M3, I64, BOOL ...",
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
        return report_error(ERR_INVALID, "a tensor has at most 8 dimensions",
                            "tensor '%s' has %" PRIu32 " dimensions", tensor->name, tensor->dims);
    uint64_t bytes = dtypes[tensor->dtype].bytes;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        /* A dimension of 0 must not hide an invalid one. */
        uint64_t shape = tensor->shape[d] ? tensor->shape[d] : 1;
        if (shape > LAYOUT_TENSOR_BYTES_MAX / bytes)
            return report_error(ERR_INVALID, NULL, "tensor '%s' is too large", tensor->name);
        bytes *= shape;
    }
    return 0;
}

int slice_check(const struct slice *slice)
{
    ERR_TRY(tensor_meta_check(&slice->tensor));
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

uint64_t slice_bytes(const struct slice *slice)
{
    return box_elements(&slice->box, slice->tensor.dims) * dtype_bytes(slice->tensor.dtype);
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

bool layout_next_coordinate(uint64_t *at, const struct box *box, uint32_t dims)
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

void box_span(uint64_t *out_first, uint64_t *out_end, const struct box *box, const struct box *part,
              uint32_t dims, uint32_t element_bytes)
{
    uint64_t last[LAYOUT_DIMS_MAX];
    CHECK(box_elements(part, dims) > 0 && is_inside(part, box, dims));
    for (uint32_t d = 0; d < dims; d++)
        last[d] = part->offset[d] + part->extent[d] - 1;
    *out_first = position_in(box, part->offset, dims) * element_bytes;
    *out_end = (position_in(box, last, dims) + 1) * element_bytes;
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

/* Trailing dimensions that the part spans in both arrays join the previous one in a run. Returns
 * the number of remaining dimensions. */
static uint32_t find_run(uint64_t *out_bytes, const struct box *to, const struct box *from,
                         const struct box *part, uint32_t dims, uint32_t element_bytes)
{
    uint32_t outer = dims;
    *out_bytes = element_bytes;
    while (outer > 0) {
        outer--;
        *out_bytes *= part->extent[outer];
        if (part->extent[outer] != from->extent[outer] || part->extent[outer] != to->extent[outer])
            break;
    }
    return outer;
}

uint64_t box_run_bytes(const struct box *to, const struct box *from, const struct box *part,
                       uint32_t dims, uint32_t element_bytes)
{
    uint64_t bytes;
    find_run(&bytes, to, from, part, dims, element_bytes);
    return bytes;
}

void box_copy_by(const struct box_mover *mover, void *to_data, const struct box *to,
                 const void *from_data, const struct box *from, const struct box *part,
                 uint32_t dims, uint32_t element_bytes)
{
    if (box_elements(part, dims) == 0)
        return;
    CHECK(is_inside(part, from, dims) && is_inside(part, to, dims));
    char *into = (char *)to_data + position_in(to, part->offset, dims) * element_bytes;
    const char *out_of =
        (const char *)from_data + position_in(from, part->offset, dims) * element_bytes;
    uint64_t run;
    uint32_t outer = find_run(&run, to, from, part, dims, element_bytes);
    /* Runs of the innermost remaining dimension have a constant distance; only the others are
     * counted. */
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
            mover->move(mover->user, into + to_byte + i * to_step,
                        out_of + from_byte + i * from_step, run);
    } while (layout_next_coordinate(at, &counted, rest));
}

static void move_past_cache(void *user, void *to, const void *from, uint64_t bytes)
{
    (void)user;
    stream_copy(to, from, bytes);
}

void box_copy(void *to_data, const struct box *to, const void *from_data, const struct box *from,
              const struct box *part, uint32_t dims, uint32_t element_bytes)
{
    static const struct box_mover mover = {.move = move_past_cache};
    box_copy_by(&mover, to_data, to, from_data, from, part, dims, element_bytes);
}

void box_runs(const struct box *box, const struct tensor_meta *tensor, uint64_t first,
              uint64_t count,
              void (*run)(void *user, uint64_t global, uint64_t count, uint64_t element),
              void *user)
{
    uint32_t outer = tensor->dims; /* the counted dimensions, from run to run */
    uint64_t length = 1, at[LAYOUT_DIMS_MAX];
    if (count == 0)
        return;
    struct box whole = {.offset = {0}};
    memcpy(whole.extent, tensor->shape, sizeof(whole.extent));
    CHECK(is_inside(box, &whole, tensor->dims));
    CHECK(first + count <= box_elements(box, tensor->dims));
    while (outer > 0) {
        outer--;
        length *= box->extent[outer];
        if (box->extent[outer] != tensor->shape[outer])
            break;
    }
    uint64_t number = first / length, inside = first % length;
    memcpy(at, box->offset, sizeof(at));
    for (uint32_t d = outer; d-- > 0; number /= box->extent[d])
        at[d] += number % box->extent[d];
    for (uint64_t done = 0; done < count; inside = 0) {
        uint64_t now = length - inside < count - done ? length - inside : count - done;
        run(user, position_in(&whole, at, tensor->dims) + inside, now, done);
        done += now;
        layout_next_coordinate(at, box, outer);
    }
}

struct digest_run {
    struct digest *digest;
    const unsigned char *data;
    uint32_t element_bytes;
};

static void add_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    const struct digest_run *run = user;
    digest_add(run->digest, run->data + element * run->element_bytes, count, run->element_bytes,
               global);
}

void box_digest(struct digest *digest, const struct box *box, const struct tensor_meta *tensor,
                uint64_t first, uint64_t count, const void *data)
{
    struct digest_run run = {digest, data, dtype_bytes(tensor->dtype)};
    box_runs(box, tensor, first, count, add_run, &run);
}

/* ---- tables ---- */

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
    layout_index_free(table->index);
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

/* `seen[shard]` is the number, plus one, of the last layout in which the shard had a cell. */
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

/* Each layout belongs to a tensor: there are at most as many as tensors. */
static int check_use(const struct layout_table *table)
{
    bool *is_used = calloc((size_t)table->num_layouts + 1, sizeof(*is_used));
    if (!is_used)
        return report_error(ERR_MEMORY, NULL, "no memory to check the layouts");
    for (uint32_t i = 0; i < table->num_tensors; i++)
        is_used[table->layout_of[i]] = true;
    uint32_t layout = 0;
    while (layout < table->num_layouts && is_used[layout])
        layout++;
    free(is_used);
    if (layout == table->num_layouts)
        return 0;
    return report_error(ERR_CORRUPT, NULL, "layout %" PRIu32 " is no tensor's", layout);
}

int layout_table_check(const struct layout_table *table, uint32_t shards)
{
    int error = 0;
    uint32_t *seen = calloc(shards ? shards : 1, sizeof(*seen));
    if (!seen)
        return report_error(ERR_MEMORY, NULL, "no memory to check the layouts");
    for (uint32_t i = 0; !error && i < table->num_layouts; i++)
        error = check_layout(&table->layouts[i], i, shards, seen);
    for (uint32_t i = 0; !error && i < table->num_tensors; i++)
        error = check_tensor(table, i);
    free(seen);
    return error ? error : check_use(table);
}

int layout_shard_bytes(uint64_t *out, const struct layout_table *table, uint32_t shards)
{
    int error = 0;
    /* Bytes of one element position, summed over the tensors that share a layout. */
    uint64_t *weight = calloc(table->num_layouts ? table->num_layouts : 1, sizeof(*weight));
    if (!weight)
        return report_error(ERR_MEMORY, NULL, "no memory to sum up the shards");
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
                __builtin_add_overflow(*sum, bytes, sum) || *sum > LAYOUT_BYTES_MAX)
                error = report_error(ERR_CORRUPT, NULL, "a shard would pass 2^62 bytes");
        }
    }
    free(weight);
    return error;
}
