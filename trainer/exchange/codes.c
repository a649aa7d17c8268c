/* codes.c - shards of the weights of float8 products as codes of one byte, for the gather.
 *
 * A product's weight is rounded to float8 with one scale per operand: a block of the run's cut by
 * tensor parallel, on any mesh (model/products.c). Here each rank rounds its shard once in a step,
 * and the codes are gathered. The scale follows from the largest value of the block. One gather in
 * the group of shards gets the largest values of all blocks of all ranks. Each rank then takes the
 * maximum, which is exact in any order, so all ranks have the same scales. The source is the
 * parameter in the compute dtype, as in a product without codes. So the bits of a run are the same
 * with codes and without.
 *
 * A part is a shard's rows of one such block: dense rows of its columns, coded (kernels.h).
 * Gathered parts of one block are joined in rows, after one copy of the largest value. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/exchange/exchange.h"

/* Part `index` of rows of a tensor; `before`: the number of the block's rows before it. */
struct code_part {
    uint64_t first, rows, before;
    uint64_t first_column, columns;
};

static struct code_part part_at(const struct rank_plan *plan, uint32_t tensor, struct part rows,
                                uint32_t index)
{
    const struct model_tensor *t = &plan->table->tensors[tensor];
    uint64_t width = width_of(plan, t), height = tp_box(plan, t)->extent[0],
             parts = plan->code_parts[tensor];
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

/* ---- layout of codes ---- */

size_t codes_packed_bytes(const struct rank_plan *plan, uint32_t tensor, struct part shard)
{
    size_t bytes = 0;
    if (plan->code_parts[tensor] == 0)
        return aligned(shard.rows * width_of(plan, &plan->table->tensors[tensor])) *
               kernel_dtype_bytes(plan->dtype);
    for (uint32_t i = 0; i < plan->code_parts[tensor]; i++) {
        struct code_part part = part_at(plan, tensor, shard, i);
        bytes += coded_bytes(&part);
    }
    return bytes;
}

size_t codes_held_bytes(const struct rank_plan *plan, uint32_t tensor)
{
    const struct box *box = tp_box(plan, &plan->table->tensors[tensor]);
    return codes_packed_bytes(plan, tensor, (struct part){.rows = box->extent[0]});
}

size_t codes_unpack(const struct exchange *e, struct lane *lane, uint32_t tensor, struct part shard,
                    void *held, const void *packed)
{
    size_t held_bytes = codes_held_bytes(e->plan, tensor) / e->plan->code_parts[tensor];
    const char *from = packed;
    for (uint32_t i = 0; i < e->plan->code_parts[tensor]; i++) {
        struct code_part part = part_at(e->plan, tensor, shard, i);
        size_t head = part.before == 0 ? 0 : KERNEL_CODES_AT; /* the largest comes first */
        char *to = (char *)held + i * held_bytes + part.before * part.columns;
        if (part.rows > 0)
            lane_copy(lane, to + head, from + head,
                      KERNEL_CODES_AT - head + part.rows * part.columns);
        from += coded_bytes(&part);
    }
    return (size_t)(from - (const char *)packed);
}

/* ---- making codes ---- */

/* A part in the compute dtype, dense; the buffers hold one part at a time. */
struct source {
    float *columns;
    void *rounded;
};

static size_t largest_part(const struct rank_plan *plan)
{
    size_t most = 0;
    for (uint32_t i = 0; i < plan->table->num_tensors; i++) {
        struct part mine = shard_of(plan, &plan->table->tensors[i], plan->mesh.place[AXIS_SHARD]);
        for (uint32_t k = 0; k < plan->code_parts[i]; k++) {
            struct code_part part = part_at(plan, i, mine, k);
            size_t count = part.rows * part.columns;
            most = count > most ? count : most;
        }
    }
    return most;
}

static const void *source_of(struct exchange *e, const struct source *source,
                             const struct state_slice *slice, const struct code_part *part)
{
    uint64_t width = slice->param.box.extent[1];
    size_t count = part->rows * part->columns;
    const float *x = e->state->param + slice->param.at;
    if (part->columns == width) {
        x += (part->first -
              (slice->param.box.offset[0] - tp_box(e->plan, slice->tensor)->offset[0])) *
             width;
    } else {
        kernel_pack(e->plan->kernels, e->plan->lane,
                    &(struct kernel_pack){.packed = source->columns,
                                          .full = x,
                                          .rows = part->rows,
                                          .first_column = part->first_column,
                                          .columns = part->columns,
                                          .width = width});
        x = source->columns;
    }
    if (e->plan->dtype == KERNEL_F32)
        return x;
    kernel_convert(
        e->plan->kernels, e->plan->lane,
        &(struct kernel_convert){
            .out = source->rounded, .in = x, .count = count, .out_dtype = e->plan->dtype});
    return source->rounded;
}

/* Calls `make` for each part of this rank, in the order of its packed shard. */
static void each_part(struct exchange *e, const struct source *source,
                      void (*make)(struct exchange *e, const void *x, size_t count,
                                   uint32_t *largest, char *coded))
{
    uint32_t me = e->plan->mesh.place[AXIS_SHARD];
    char *at = e->compute_params;
    for (uint32_t s = 0; s < e->state->num_slices; s++) {
        const struct state_slice *slice = &e->state->slices[s];
        uint32_t i = (uint32_t)(slice->tensor - e->plan->table->tensors);
        struct part mine = shard_of(e->plan, slice->tensor, me);
        for (uint32_t k = 0; k < e->plan->code_parts[i]; k++) {
            struct code_part part = part_at(e->plan, i, mine, k);
            if (part.rows > 0)
                make(e, source_of(e, source, slice, &part), part.rows * part.columns,
                     e->largest + e->plan->code_at[i] + k, at);
            at += coded_bytes(&part);
        }
        at += e->plan->code_parts[i] == 0 ? codes_packed_bytes(e->plan, i, mine) : 0;
    }
}

static void find_largest(struct exchange *e, const void *x, size_t count, uint32_t *largest,
                         char *coded)
{
    (void)coded;
    kernel_float8_largest(e->plan->kernels, e->plan->lane,
                          &(struct kernel_float8_largest){
                              .out = largest, .x = x, .count = count, .dtype = e->plan->dtype});
}

static void encode(struct exchange *e, const void *x, size_t count, uint32_t *largest, char *coded)
{
    kernel_float8_encode(
        e->plan->kernels, e->plan->lane,
        &(struct kernel_float8_encode){
            .out = coded, .x = x, .largest = largest, .count = count, .dtype = e->plan->dtype});
}

/* Gathers the largest value of each block from all shards; a shard without rows of a block has
 * 0. */
static int share_largest(struct exchange *e, struct comm *comm)
{
    uint32_t shards = e->plan->mesh.degree[AXIS_SHARD], *mine = e->host_largest,
             *all = mine + e->plan->num_codes;
    size_t bytes = e->plan->num_codes * sizeof(*mine), *sent = e->lists, *at = e->lists + shards;
    lane_copy(e->plan->lane, mine, e->largest, bytes);
    ERR_TRY(lane_settle(e->plan->lane));
    for (uint32_t s = 0; s < shards; s++) {
        sent[s] = bytes;
        at[s] = s * bytes;
    }
    ERR_TRY(comm_all_gather_v(comm, mine, bytes, all, sent, at));
    for (size_t i = 0; i < (size_t)shards * e->plan->num_codes; i++)
        if (all[i] > mine[i % e->plan->num_codes])
            mine[i % e->plan->num_codes] = all[i];
    lane_copy(e->plan->lane, e->largest, mine, bytes);
    return 0;
}

static int make_all(struct exchange *e, const struct op *op, const struct source *source)
{
    lane_zero(e->plan->lane, e->largest, e->plan->num_codes * sizeof(*e->largest));
    each_part(e, source, find_largest);
    ERR_TRY(share_largest(e, comm_of(e, op, CALL_GATHER)));
    each_part(e, source, encode);
    e->are_codes_made = true;
    return 0;
}

int codes_make(struct exchange *e, const struct op *op)
{
    size_t count = largest_part(e->plan);
    struct source source = {
        .columns = memory_take(e->plan->memory, "parameters to code", 0, count * sizeof(float)),
        .rounded = memory_take(e->plan->memory, "parameters to code", 1, count * sizeof(float))};
    bool is_due = !memory_is_recording(e->plan->memory) && !e->are_codes_made;
    int rc = is_due ? make_all(e, op, &source) : 0;
    memory_give(e->plan->memory, "parameters to code", 0);
    memory_give(e->plan->memory, "parameters to code", 1);
    return rc;
}

void codes_copy_others(struct exchange *e)
{
    char *at = e->compute_params;
    for (uint32_t s = 0; s < e->state->num_slices; s++) {
        const struct state_slice *slice = &e->state->slices[s];
        uint32_t i = (uint32_t)(slice->tensor - e->plan->table->tensors);
        const float *from = e->state->param + slice->param.at;
        if (e->plan->code_parts[i] == 0 && e->plan->dtype == KERNEL_F32)
            lane_copy(e->plan->lane, at, from, slice->param.count * sizeof(*from));
        else if (e->plan->code_parts[i] == 0)
            kernel_convert(e->plan->kernels, e->plan->lane,
                           &(struct kernel_convert){.out = at,
                                                    .in = from,
                                                    .count = slice->param.count,
                                                    .out_dtype = e->plan->dtype});
        at += codes_packed_bytes(e->plan, i,
                                 shard_of(e->plan, slice->tensor, e->plan->mesh.place[AXIS_SHARD]));
    }
}
