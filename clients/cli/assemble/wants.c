/* wants.c - finds the blocks of shards that an output block needs (see wants.h).
 *
 * The saved order of a slice is that of the whole tensor without the other elements. So a
 * contiguous range of the output needs a contiguous range of a slice. */
#include "clients/cli/assemble/wants.h"
#include "proto/base/array.h"

#include <stdlib.h>

/* Adds a block of a shard, unless a read already under way fills this output block, too. */
static int want_block(struct wants *wants, uint32_t side, struct shard_file *shard, uint64_t block)
{
    uint64_t number = wants->number;
    if (shard->read_for == NULL)
        shard->read_for = calloc(shard->stored.geometry.num_blocks, sizeof *shard->read_for);
    if (shard->read_for == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a shard's blocks");
    CHECK(number < UINT32_MAX); /* an output of 4 PiB */
    uint32_t *read_for = &shard->read_for[block];
    if (*read_for != 0 && *read_for - 1 >= wants->base && *read_for - 1 + wants->span > number)
        return 0;
    *read_for = (uint32_t)number + 1;
    ERR_TRY(array_reserve(&wants->list, &wants->room, wants->count, sizeof *wants->list));
    wants->list[wants->count++] = (struct wanted){side, shard->stored.shard, block};
    return 0;
}

/* Adds elements [first, end) of the slice of `tensor` in a shard. */
static int want_elements(struct wants *wants, uint32_t side, uint32_t shard, uint32_t tensor,
                         uint64_t first, uint64_t end)
{
    struct checkpoint *checkpoint = &wants->sides[side];
    const struct layout_table *table = checkpoint->manifest->table;
    uint32_t size = dtype_bytes(table->tensors[tensor].dtype), i = 0;
    struct shard_file *file;
    if (first == end)
        return 0;
    int error = shard_take(&file, checkpoint, shard);
    if (error != 0)
        return error;
    uint32_t low = 0, high = file->num_tensors; /* by descending element size, then index */
    while (low < high) {
        i = (low + high) / 2;
        uint32_t other = file->tensors[i].tensor, its = dtype_bytes(table->tensors[other].dtype);
        if (its > size || (its == size && other < tensor))
            low = i + 1;
        else
            high = i;
    }
    CHECK(low < file->num_tensors && file->tensors[low].tensor == tensor);
    uint64_t begin = file->stored.geometry.data_start + file->tensors[low].data_byte;
    uint64_t last = (begin + end * size - 1) / SCAN_BLOCK;
    for (uint64_t block = (begin + first * size) / SCAN_BLOCK; block <= last && error == 0; block++)
        error = want_block(wants, side, file, block);
    shard_drop(file);
    return error;
}

/* The number of elements of a box before element `global` of its tensor. */
static uint64_t elements_before(const struct box *box, const struct tensor_meta *tensor,
                                uint64_t global)
{
    uint64_t inner = 1, inside = 1, count = 0;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        inner *= tensor->shape[d];
        inside *= box->extent[d];
    }
    if (global >= inner)
        return inside;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        inner /= tensor->shape[d];
        inside /= box->extent[d];
        uint64_t index = global / inner;
        global %= inner;
        if (index < box->offset[d])
            return count;
        if (index >= box->offset[d] + box->extent[d])
            return count + box->extent[d] * inside;
        count += (index - box->offset[d]) * inside;
    }
    return count;
}

/* The index in the whole tensor of an element of a box. */
static uint64_t element_at(const struct box *box, const struct tensor_meta *tensor, uint64_t place)
{
    uint64_t global = 0, scale = 1;
    for (uint32_t d = tensor->dims; d-- > 0;) {
        global += (box->offset[d] + place % box->extent[d]) * scale;
        place /= box->extent[d];
        scale *= tensor->shape[d];
    }
    return global;
}

/* Adds elements [first, end) of an output tensor, from all slices that hold some of them; may add
 * more. */
static int want_tensor(struct wants *wants, uint32_t side, const struct output_tensor *out,
                       uint64_t first, uint64_t end)
{
    const struct layout_table *table = wants->sides[side].manifest->table;
    uint32_t tensor = out->tensor[side];
    const struct tensor_meta *meta = &table->tensors[tensor];
    const struct layout *layout = &table->layouts[table->layout_of[tensor]];
    uint64_t cell = 0, last = layout_cells(layout), row = 1;
    uint64_t from = element_at(&out->box, meta, first), to = element_at(&out->box, meta, end - 1);
    int error = 0;
    for (uint32_t d = 1; d < meta->dims; d++)
        row *= meta->shape[d];
    if (out->head_rows != 0) { /* of whole heads */
        from = from / row / out->head_rows * out->head_rows * row;
        to = (to / row / out->head_rows + 1) * out->head_rows * row - 1;
    }
    if (layout->dims > 0) { /* only the cells of these rows */
        uint64_t per_row = last / (layout->num_cuts[0] - 1);
        cell = layout_find_cut(layout->cuts[0], layout->num_cuts[0], from / row) * per_row;
        last = (layout_find_cut(layout->cuts[0], layout->num_cuts[0], to / row) + 1ull) * per_row;
    }
    for (; cell < last && error == 0; cell++) {
        struct box box, part;
        layout_cell_box(&box, layout, cell);
        if (out->head_rows == 0 && box_equal(&box, &out->box, meta->dims))
            error = want_elements(wants, side, layout->owners[cell], tensor, first, end);
        else if (out->head_rows != 0 || box_intersect(&part, &box, &out->box, meta->dims))
            error = want_elements(wants, side, layout->owners[cell], tensor,
                                  elements_before(&box, meta, from),
                                  elements_before(&box, meta, to + 1));
    }
    return error;
}

/* The same for a joined tensor, from all its parts: a part has the order of the whole without the
 * other elements. */
static int want_parts(struct wants *wants, uint32_t side, const struct output_tensor *out,
                      uint64_t first, uint64_t end)
{
    const struct layout_table *table = wants->sides[side].manifest->table;
    const struct tensor_meta *whole = out->joined;
    int error = 0;
    for (uint32_t i = 0; i < out->num_parts && error == 0; i++) {
        struct output_tensor part = {.tensor = {out->tensor[0] + i}, .dtype = out->dtype};
        const struct tensor_meta *meta = &table->tensors[part.tensor[0]];
        struct box box;
        layout_joined_box(&box, meta);
        output_tensor_whole(&part, meta);
        uint64_t from = elements_before(&box, whole, first);
        uint64_t to = elements_before(&box, whole, end);
        if (from < to)
            error = want_tensor(wants, side, &part, from, to);
    }
    return error;
}

int wants_add(struct wants *wants, const struct output_block *block)
{
    const struct output_file *file = block->file;
    uint64_t end = block->start + block->bytes;
    int error = 0;
    wants->base = file->base;
    wants->number = file->base + block->index;
    for (uint32_t i = output_tensor_after(file, block->start);
         i < file->num_tensors && file->tensors[i].start < end && error == 0; i++) {
        const struct output_tensor *tensor = &file->tensors[i];
        uint64_t size = dtype_bytes(tensor->dtype), to = tensor->start + tensor->bytes;
        uint64_t from = block->start > tensor->start ? block->start : tensor->start;
        to = ((to < end ? to : end) - tensor->start) / size;
        from = (from - tensor->start) / size;
        for (uint32_t side = 0; side < wants->num_sides && error == 0 && from < to; side++)
            error = tensor->joined != NULL ? want_parts(wants, side, tensor, from, to)
                                           : want_tensor(wants, side, tensor, from, to);
    }
    return error;
}
