/* gather.c - gathers parameters from the ranks' shards to the tensors that the model reads.
 *
 * Each rank keeps its shard in float, packed tensor after tensor in block order (every tensor
 * starts at a multiple of ALIGN elements, so that kernels and transports see aligned, 64-byte
 * units). For a block's compute the F shards are gathered in the compute dtype and unpacked to the
 * tensors of this tp place. A tensor that the model reads by blocks of columns is laid out so in
 * this step, even if nothing is gathered. A tensor that needs neither is used in place. Weights of
 * float8 products may be gathered as codes (codes.c).
 *
 * Copies of a shard own pieces of it (reduce.c): here they are gathered, block by block. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/exchange/exchange.h"

/* Moves the columns of block b of the tensor's view between dense rows of all blocks and that
 * block's rows. */
static void move_columns(const struct exchange *e, struct lane *lane, void *of_block, void *dense,
                         uint64_t rows, uint32_t b, struct kernel_pack how,
                         enum rows_direction direction)
{
    how.first_column = b * how.columns;
    how.rows = rows;
    if (direction == ROWS_UNPACK) {
        how.packed = of_block;
        how.full = dense;
        kernel_pack(e->plan->kernels, lane, &how);
        return;
    }
    kernel_unpack(e->plan->kernels, lane,
                  &(struct kernel_unpack){.full = dense,
                                          .packed = of_block,
                                          .rows = rows,
                                          .first_column = how.first_column,
                                          .columns = how.columns,
                                          .width = how.width,
                                          .dtype = how.dtype});
}

void gather_move_rows(const struct exchange *e, struct lane *lane, uint32_t index, struct part part,
                      void *full, void *packed, size_t element, enum rows_direction direction)
{
    const struct model_tensor *tensor = &e->plan->table->tensors[index];
    const struct box *tp = tp_box(e->plan, tensor);
    uint32_t blocks = model_view_blocks(&e->plan->cut, tensor);
    size_t bytes = tp->extent[1] / blocks * element; /* of a row of a block */
    size_t block_bytes = tp->extent[0] * bytes;
    char *whole = (char *)full + part.first * bytes;
    char *dense = packed;
    const struct kernel_pack how = {.columns = tp->extent[1] / blocks,
                                    .width = tp->extent[1],
                                    .dtype = element == 4 ? KERNEL_F32 : KERNEL_BF16};
    if (blocks == 1) {
        lane_copy(lane, direction == ROWS_PACK ? dense : whole,
                  direction == ROWS_PACK ? whole : dense, part.rows * bytes);
        return;
    }
    for (uint32_t b = 0; b < blocks && part.rows > 0; b++)
        move_columns(e, lane, whole + b * block_bytes, dense, part.rows, b, how, direction);
}

static void unpack_shard(const struct exchange *e, struct lane *lane, const struct block *block,
                         uint32_t shard, const char *packed, size_t element)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &e->plan->table->tensors[i];
        struct part part = shard_of(e->plan, tensor, shard);
        char *held = (char *)buffers_of(e, block)->gathered + e->plan->held_at[i];
        if (e->plan->code_parts[i] > 0) {
            packed += codes_unpack(e, lane, i, part, held, packed);
            continue;
        }
        gather_move_rows(e, lane, i, part, held, (void *)(uintptr_t)packed, element, ROWS_UNPACK);
        packed += aligned(part.rows * width_of(e->plan, tensor)) * element;
    }
}

static bool is_in_place(const struct exchange *e, const struct block *block)
{
    return e->plan->mesh.degree[AXIS_SHARD] == 1 && !block->is_strided;
}

void gather_take(struct exchange *e, uint32_t index, bool is_second)
{
    const struct block *block = &e->plan->blocks[index];
    uint32_t shards = e->plan->mesh.degree[AXIS_SHARD];
    if (is_in_place(e, block)) {
        buffers_of(e, block)->gathered = (char *)e->compute_params + block->compute_at;
        return;
    }
    buffers_of(e, block)->take_index = 2 * index + is_second;
    buffers_of(e, block)->gathered =
        memory_take(e->plan->memory, "gathered parameters", buffers_of(e, block)->take_index,
                    block->held_bytes);
    if (shards > 1)
        buffers_of(e, block)->packed =
            memory_take(e->plan->memory, "gathered shards", buffers_of(e, block)->take_index,
                        sum_of(block->shard_bytes, shards));
}

int gather_run(struct exchange *e, struct lane *lane, const struct op *op)
{
    const struct block *block = &e->plan->blocks[op->block];
    uint32_t shards = e->plan->mesh.degree[AXIS_SHARD], me = e->plan->mesh.place[AXIS_SHARD];
    size_t element = kernel_dtype_bytes(e->plan->dtype), total = 0;
    const char *mine = (const char *)e->compute_params + block->compute_at;
    size_t *bytes = e->lane_lists[LANE_GATHER], *at = bytes + shards;
    if (is_in_place(e, block))
        return 0;
    if (shards == 1) {
        unpack_shard(e, lane, block, 0, mine, element);
        return 0;
    }
    for (uint32_t s = 0; s < shards; s++) {
        bytes[s] = block->shard_bytes[s];
        at[s] = total;
        total += bytes[s];
    }
    struct comm *comm = comm_of(e, op, CALL_GATHER);
    ERR_TRY(comm_all_gather_v(comm, mine, bytes[me], buffers_of(e, block)->packed, bytes, at));
    for (uint32_t s = 0; s < shards; s++)
        unpack_shard(e, lane, block, s, buffers_of(e, block)->packed + at[s], element);
    return 0;
}

void gather_give(struct exchange *e, uint32_t index)
{
    if (e->plan->mesh.degree[AXIS_SHARD] > 1)
        memory_give(e->plan->memory, "gathered shards", e->buffers[index].take_index);
}

void gather_drop(struct exchange *e, uint32_t index)
{
    const struct block *block = &e->plan->blocks[index];
    if (!is_in_place(e, block))
        memory_give(e->plan->memory, "gathered parameters", buffers_of(e, block)->take_index);
}

void gather_pointers(const struct exchange *e, uint32_t index, const void **out_params)
{
    const struct block *block = &e->plan->blocks[index];
    for (uint32_t i = 0; i < block->num; i++)
        out_params[i] = (char *)buffers_of(e, block)->gathered + e->plan->held_at[block->first + i];
}

/* ---- pieces of copies ---- */

static uint32_t owner_of(const struct exchange *e, uint32_t copy)
{
    uint32_t cp = e->plan->mesh.degree[AXIS_CP], shards = e->plan->mesh.degree[AXIS_SHARD];
    return (copy / cp * shards + e->plan->mesh.place[AXIS_SHARD]) * cp + copy % cp;
}

/* Moves rows between an owner's pieces in a buffer of the state and packed pieces. */
static void move_pieces(const struct exchange *e, struct lane *lane, const struct block *block,
                        uint32_t owner, float *state, float *packed, enum rows_direction direction)
{
    state += block->at;
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &e->plan->table->tensors[i];
        struct part piece = piece_of(e->plan, tensor, owner);
        struct part shard = shard_of(e->plan, tensor, e->plan->mesh.place[AXIS_SHARD]);
        uint64_t width = width_of(e->plan, tensor);
        float *rows = state + (piece.first - shard.first) * width;
        lane_copy(lane, direction == ROWS_PACK ? packed : rows,
                  direction == ROWS_PACK ? rows : packed, piece.rows * width * sizeof(*rows));
        packed += aligned(piece.rows * width);
        state += aligned(shard.rows * width);
    }
}

/* Gathers the pieces of this rank's shard of a block from its copies, which own them, to a buffer
 * of the state. */

static void pieces_take(struct exchange *e, uint32_t index)
{
    const struct block *block = &e->plan->blocks[index];
    size_t count = 0;
    for (uint32_t copy = 0; copy < mesh_group_size(&e->plan->mesh, GROUP_COPIES); copy++)
        count += block->piece_counts[owner_of(e, copy)];
    buffers_of(e, block)->pieces =
        memory_take(e->plan->memory, "pieces of the replicas", index, count * sizeof(float));
}

static void pieces_give(struct exchange *e, uint32_t index)
{
    memory_give(e->plan->memory, "pieces of the replicas", index);
}

static int pieces_run(struct exchange *e, struct lane *lane, struct comm *comm, uint32_t index,
                      const float *mine, float *state)
{
    const struct block *block = &e->plan->blocks[index];
    uint32_t copies = mesh_group_size(&e->plan->mesh, GROUP_COPIES);
    uint32_t me = mesh_group_place(&e->plan->mesh, GROUP_COPIES);
    size_t *bytes = e->lane_lists[LANE_REDUCE], *at = bytes + copies, total = 0;
    for (uint32_t copy = 0; copy < copies; copy++) {
        bytes[copy] = block->piece_counts[owner_of(e, copy)] * sizeof(float);
        at[copy] = total;
        total += bytes[copy];
    }
    comm->device_lane = lane; /* one lane at a time uses the group */
    ERR_TRY(comm_all_gather_v(comm, mine, bytes[me], buffers_of(e, block)->pieces, bytes, at));
    for (uint32_t copy = 0; copy < copies; copy++)
        move_pieces(e, lane, block, owner_of(e, copy), state,
                    buffers_of(e, block)->pieces + at[copy] / sizeof(float), ROWS_UNPACK);
    return 0;
}

/* True if this rank has rows of the block in the state. A tied output on the embedding's rank has
 * none. */
static bool is_in_state(const struct exchange *e, uint32_t index)
{
    return e->plan->blocks[index].is_here &&
           !(index == e->plan->table->num_blocks && e->plan->blocks[0].is_here);
}

void collect_take(struct exchange *e, uint32_t first, uint32_t num)
{
    for (uint32_t b = first; b < first + num; b++)
        if (is_in_state(e, b) && e->plan->is_canonical)
            pieces_take(e, b);
}

int collect_run(struct exchange *e, struct lane *lane, const struct op *op)
{
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++)
        if (is_in_state(e, b))
            ERR_TRY(e->plan->is_canonical
                        ? pieces_run(e, lane, comm_of(e, op, CALL_GATHER), b,
                                     (float *)e->accumulators + e->plan->blocks[b].piece_at,
                                     e->state->grad)
                        : reduce_fast(e, lane, op, b));
    return 0;
}

void collect_give(struct exchange *e, uint32_t first, uint32_t num)
{
    for (uint32_t b = first; b < first + num; b++)
        if (is_in_state(e, b) && e->plan->is_canonical)
            pieces_give(e, b);
}

static int spread_block(struct exchange *e, struct comm *comm, uint32_t index)
{
    const struct block *block = &e->plan->blocks[index];
    uint32_t owner = mesh_group_place(&e->plan->mesh, GROUP_OWNERS);
    size_t bytes = block->piece_counts[owner] * sizeof(float);
    float *mine = memory_take(e->plan->memory, "updated parameters", index, bytes);
    int rc = 0;
    pieces_take(e, index);
    if (!memory_is_recording(e->plan->memory)) {
        move_pieces(e, e->plan->lane, block, owner, e->state->param, mine, ROWS_PACK);
        rc = pieces_run(e, e->plan->lane, comm, index, mine, e->state->param);
    }
    pieces_give(e, index);
    memory_give(e->plan->memory, "updated parameters", index);
    return rc;
}

int gather_updated(struct exchange *e, const struct op *op)
{
    for (uint32_t b = 0; b < num_all_blocks(e->plan); b++)
        if (is_in_state(e, b))
            ERR_TRY(spread_block(e, comm_of(e, op, CALL_GATHER), b));
    return 0;
}
