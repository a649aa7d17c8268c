/* codes.c - shards of the weights of float8 products as codes of one byte, for the gather.
 *
 * A product's weight is rounded to float8 under one scale for what the product reads: a block of
 * the run's cut by tensor parallel, whatever the mesh (model/products.c). Here each rank rounds its
 * shard, once in a step, and codes are gathered. The scale follows from the largest of the block. A
 * maximum is exact in any order, so all ranks have the same: one gather in the group of shards has
 * the largest of all blocks of all ranks, and each takes the maximum itself. The source is what the
 * product would round, the parameter in the compute dtype; so the bits of a run are the same with
 * codes and without.
 *
 * A part is a shard's of one such block: dense rows of its columns, coded (kernels.h). Parts of one
 * block come together in rows, behind one copy of the largest. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/private.h"

/* Part `index` of rows of a tensor: `before` rows of the block are in front of it. */
struct code_part {
    uint64_t first, rows, before;
    uint64_t first_column, columns;
};

static struct code_part part_at(const struct parallel *p, uint32_t tensor, struct part rows,
                                uint32_t index)
{
    const struct model_tensor *t = &p->table->tensors[tensor];
    uint64_t width = width_of(p, t), height = tp_box(p, t)->extent[0],
             parts = p->code_parts[tensor];
    if (t->role == MODEL_ROWS)
        return (struct code_part){.first = rows.first,
                                  .rows = rows.rows,
                                  .before = rows.first,
                                  .first_column = index * (width / parts),
                                  .columns = width / parts};
    uint64_t from = index * (height / parts), to = from + height / parts;
    uint64_t first = rows.first > from ? rows.first : from, end = rows.first + rows.rows;
    end = end < to ? end : to;
    return (struct code_part){.first = first,
                              .rows = end > first ? end - first : 0,
                              .before = first - from,
                              .columns = width};
}

static size_t coded_bytes(const struct code_part *part)
{
    return part->rows > 0 ? kernel_coded_bytes(part->rows * part->columns) : 0;
}

/* ---- how they lie ---- */

size_t codes_packed_bytes(const struct parallel *p, uint32_t tensor, struct part shard)
{
    size_t bytes = 0;
    if (p->code_parts[tensor] == 0)
        return aligned(shard.rows * width_of(p, &p->table->tensors[tensor])) *
               kernel_dtype_bytes(p->dtype);
    for (uint32_t i = 0; i < p->code_parts[tensor]; i++) {
        struct code_part part = part_at(p, tensor, shard, i);
        bytes += coded_bytes(&part);
    }
    return bytes;
}

size_t codes_held_bytes(const struct parallel *p, uint32_t tensor)
{
    const struct box *box = tp_box(p, &p->table->tensors[tensor]);
    return codes_packed_bytes(p, tensor, (struct part){.rows = box->extent[0]});
}

size_t codes_unpack(const struct parallel *p, struct lane *lane, uint32_t tensor, struct part shard,
                    void *held, const void *packed)
{
    size_t held_bytes = codes_held_bytes(p, tensor) / p->code_parts[tensor];
    const char *from = packed;
    for (uint32_t i = 0; i < p->code_parts[tensor]; i++) {
        struct code_part part = part_at(p, tensor, shard, i);
        size_t head = part.before == 0 ? 0 : KERNEL_CODES_AT; /* the first rows bring the largest */
        char *to = (char *)held + i * held_bytes + part.before * part.columns;
        if (part.rows > 0)
            lane_copy(lane, to + head, from + head,
                      KERNEL_CODES_AT - head + part.rows * part.columns);
        from += coded_bytes(&part);
    }
    return (size_t)(from - (const char *)packed);
}

/* ---- how they are made ---- */

/* A part in the compute dtype, dense; the buffers are for one at a time. */
struct source {
    float *columns;
    void *rounded;
};

static size_t largest_part(const struct parallel *p)
{
    size_t most = 0;
    for (uint32_t i = 0; i < p->table->num_tensors; i++) {
        struct part mine = shard_of(p, &p->table->tensors[i], p->mesh.place[AXIS_SHARD]);
        for (uint32_t k = 0; k < p->code_parts[i]; k++) {
            struct code_part part = part_at(p, i, mine, k);
            size_t count = part.rows * part.columns;
            most = count > most ? count : most;
        }
    }
    return most;
}

static const void *source_of(struct parallel *p, const struct source *source,
                             const struct state_slice *slice, const struct code_part *part)
{
    uint64_t width = slice->param.box.extent[1];
    size_t count = part->rows * part->columns;
    const float *x = p->state.param + slice->param.at;
    if (part->columns == width) {
        x += (part->first - (slice->param.box.offset[0] - tp_box(p, slice->tensor)->offset[0])) *
             width;
    } else {
        kernel_pack(p->kernels, p->lane,
                    &(struct kernel_pack){.packed = source->columns,
                                          .full = x,
                                          .rows = part->rows,
                                          .first_column = part->first_column,
                                          .columns = part->columns,
                                          .width = width});
        x = source->columns;
    }
    if (p->dtype == KERNEL_F32)
        return x;
    kernel_convert(p->kernels, p->lane,
                   &(struct kernel_convert){
                       .out = source->rounded, .in = x, .count = count, .out_dtype = p->dtype});
    return source->rounded;
}

/* Calls `make` for each part of this rank, in the order of its packed shard. */
static void each_part(struct parallel *p, const struct source *source,
                      void (*make)(struct parallel *p, const void *x, size_t count,
                                   uint32_t *largest, char *coded))
{
    uint32_t me = p->mesh.place[AXIS_SHARD];
    char *at = p->compute_params;
    for (uint32_t s = 0; s < p->state.num_slices; s++) {
        const struct state_slice *slice = &p->state.slices[s];
        uint32_t i = (uint32_t)(slice->tensor - p->table->tensors);
        struct part mine = shard_of(p, slice->tensor, me);
        for (uint32_t k = 0; k < p->code_parts[i]; k++) {
            struct code_part part = part_at(p, i, mine, k);
            if (part.rows > 0)
                make(p, source_of(p, source, slice, &part), part.rows * part.columns,
                     p->largest + p->code_at[i] + k, at);
            at += coded_bytes(&part);
        }
        at += p->code_parts[i] == 0 ? codes_packed_bytes(p, i, mine) : 0;
    }
}

static void find_largest(struct parallel *p, const void *x, size_t count, uint32_t *largest,
                         char *coded)
{
    (void)coded;
    kernel_float8_largest(
        p->kernels, p->lane,
        &(struct kernel_float8_largest){.out = largest, .x = x, .count = count, .dtype = p->dtype});
}

static void encode(struct parallel *p, const void *x, size_t count, uint32_t *largest, char *coded)
{
    kernel_float8_encode(
        p->kernels, p->lane,
        &(struct kernel_float8_encode){
            .out = coded, .x = x, .largest = largest, .count = count, .dtype = p->dtype});
}

/* The largest of each block, of all shards: those that have no rows of it have 0. */
static int share_largest(struct parallel *p)
{
    uint32_t shards = p->mesh.degree[AXIS_SHARD], *mine = p->host_largest,
             *all = mine + p->num_codes;
    size_t bytes = p->num_codes * sizeof(*mine), *sent = p->lists, *at = p->lists + shards;
    lane_copy(p->lane, mine, p->largest, bytes);
    ERR_TRY(lane_settle(p->lane));
    for (uint32_t s = 0; s < shards; s++) {
        sent[s] = bytes;
        at[s] = s * bytes;
    }
    ERR_TRY(comm_all_gather_v(p->mesh.of[GROUP_SHARD], mine, bytes, all, sent, at));
    for (size_t i = 0; i < (size_t)shards * p->num_codes; i++)
        if (all[i] > mine[i % p->num_codes])
            mine[i % p->num_codes] = all[i];
    lane_copy(p->lane, p->largest, mine, bytes);
    return 0;
}

static int make_all(struct parallel *p, const struct source *source)
{
    lane_zero(p->lane, p->largest, p->num_codes * sizeof(*p->largest));
    each_part(p, source, find_largest);
    ERR_TRY(share_largest(p));
    each_part(p, source, encode);
    p->are_codes_made = true;
    return 0;
}

int codes_make(struct parallel *p)
{
    size_t count = largest_part(p);
    struct source source = {
        .columns = memory_take(p->memory, "parameters to code", 0, count * sizeof(float)),
        .rounded = memory_take(p->memory, "parameters to code", 1, count * sizeof(float))};
    bool is_due = !memory_is_recording(p->memory) && !p->are_codes_made;
    int rc = is_due ? make_all(p, &source) : 0;
    memory_give(p->memory, "parameters to code", 0);
    memory_give(p->memory, "parameters to code", 1);
    return rc;
}

void codes_copy_others(struct parallel *p)
{
    char *at = p->compute_params;
    for (uint32_t s = 0; s < p->state.num_slices; s++) {
        const struct state_slice *slice = &p->state.slices[s];
        uint32_t i = (uint32_t)(slice->tensor - p->table->tensors);
        const float *from = p->state.param + slice->param.at;
        if (p->code_parts[i] == 0 && p->dtype == KERNEL_F32)
            lane_copy(p->lane, at, from, slice->param.count * sizeof(*from));
        else if (p->code_parts[i] == 0)
            kernel_convert(
                p->kernels, p->lane,
                &(struct kernel_convert){
                    .out = at, .in = from, .count = slice->param.count, .out_dtype = p->dtype});
        at += codes_packed_bytes(p, i, shard_of(p, slice->tensor, p->mesh.place[AXIS_SHARD]));
    }
}
