/* gather.c - parameters: from each rank's shard to what the model computes with.
 *
 * Each rank keeps its shard in float, packed tensor after tensor in block order (every tensor
 * starts at a multiple of ALIGN elements, so that kernels and transports see aligned, 64-byte
 * units). For a block's compute the F shards are gathered in the compute dtype and unpacked to the
 * tensors of this tp place. A tensor that the model wants by blocks of columns is laid out so on
 * the way, also where there is nothing to gather. What needs neither is used where it lies.
 * Weights of float8 products may be gathered as codes (codes.c).
 *
 * Copies of a shard own pieces of it (reduce.c): here they are gathered, block by block. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/private.h"

/* Columns of block b of the tensor's view, between dense rows of all blocks and that block's. */
static void move_columns(const struct parallel *p, struct lane *lane, void *of_block, void *dense,
                         uint64_t rows, uint32_t b, struct kernel_pack how,
                         enum rows_direction direction)
{
    how.first_column = b * how.columns;
    how.rows = rows;
    if (direction == ROWS_UNPACK) {
        how.packed = of_block;
        how.full = dense;
        kernel_pack(p->kernels, lane, &how);
        return;
    }
    kernel_unpack(p->kernels, lane,
                  &(struct kernel_unpack){.full = dense,
                                          .packed = of_block,
                                          .rows = rows,
                                          .first_column = how.first_column,
                                          .columns = how.columns,
                                          .width = how.width,
                                          .dtype = how.dtype});
}

void gather_move_rows(const struct parallel *p, struct lane *lane, uint32_t index, struct part part,
                      void *full, void *packed, size_t element, enum rows_direction direction)
{
    const struct model_tensor *tensor = &p->table->tensors[index];
    const struct box *tp = tp_box(p, tensor);
    uint32_t blocks = model_view_blocks(&p->cut, tensor);
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
        move_columns(p, lane, whole + b * block_bytes, dense, part.rows, b, how, direction);
}

static void unpack_shard(const struct parallel *p, struct lane *lane, const struct block *block,
                         uint32_t shard, const char *packed, size_t element)
{
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        struct part part = shard_of(p, tensor, shard);
        char *held = (char *)block->gathered + p->held_at[i];
        if (p->code_parts[i] > 0) {
            packed += codes_unpack(p, lane, i, part, held, packed);
            continue;
        }
        gather_move_rows(p, lane, i, part, held, (void *)(uintptr_t)packed, element, ROWS_UNPACK);
        packed += aligned(part.rows * width_of(p, tensor)) * element;
    }
}

static bool is_in_place(const struct parallel *p, const struct block *block)
{
    return p->mesh.degree[AXIS_SHARD] == 1 && !block->is_strided;
}

void gather_take(struct parallel *p, uint32_t index, bool is_second)
{
    struct block *block = &p->blocks[index];
    uint32_t shards = p->mesh.degree[AXIS_SHARD];
    if (is_in_place(p, block)) {
        block->gathered = (char *)p->compute_params + block->compute_at;
        return;
    }
    block->take_index = 2 * index + is_second;
    block->gathered =
        memory_take(p->memory, "gathered parameters", block->take_index, block->held_bytes);
    if (shards > 1)
        block->packed = memory_take(p->memory, "gathered shards", block->take_index,
                                    sum_of(block->shard_bytes, shards));
}

int gather_run(struct parallel *p, struct lane *lane, uint32_t index)
{
    const struct block *block = &p->blocks[index];
    uint32_t shards = p->mesh.degree[AXIS_SHARD], me = p->mesh.place[AXIS_SHARD];
    size_t element = kernel_dtype_bytes(p->dtype), total = 0;
    const char *mine = (const char *)p->compute_params + block->compute_at;
    size_t *bytes = p->lane_lists[LANE_GATHER], *at = bytes + shards;
    if (is_in_place(p, block))
        return 0;
    if (shards == 1) {
        unpack_shard(p, lane, block, 0, mine, element);
        return 0;
    }
    for (uint32_t s = 0; s < shards; s++) {
        bytes[s] = block->shard_bytes[s];
        at[s] = total;
        total += bytes[s];
    }
    struct comm *comm = p->mesh.of[GROUP_SHARD];
    ERR_TRY(comm_all_gather_v(comm, mine, bytes[me], block->packed, bytes, at));
    for (uint32_t s = 0; s < shards; s++)
        unpack_shard(p, lane, block, s, block->packed + at[s], element);
    return 0;
}

void gather_give(struct parallel *p, uint32_t index)
{
    if (p->mesh.degree[AXIS_SHARD] > 1)
        memory_give(p->memory, "gathered shards", p->blocks[index].take_index);
}

void gather_drop(struct parallel *p, uint32_t index)
{
    const struct block *block = &p->blocks[index];
    if (!is_in_place(p, block))
        memory_give(p->memory, "gathered parameters", block->take_index);
}

void gather_pointers(const struct parallel *p, uint32_t index, const void **out_params)
{
    const struct block *block = &p->blocks[index];
    for (uint32_t i = 0; i < block->num; i++)
        out_params[i] = (char *)block->gathered + p->held_at[block->first + i];
}

/* ---- pieces of copies ---- */

static uint32_t owner_of(const struct parallel *p, uint32_t copy)
{
    uint32_t cp = p->mesh.degree[AXIS_CP], shards = p->mesh.degree[AXIS_SHARD];
    return (copy / cp * shards + p->mesh.place[AXIS_SHARD]) * cp + copy % cp;
}

/* Between the rows of an owner's pieces in a buffer of the state and packed ones. */
static void move_pieces(const struct parallel *p, struct lane *lane, const struct block *block,
                        uint32_t owner, float *state, float *packed, enum rows_direction direction)
{
    state += block->at;
    for (uint32_t i = block->first; i < block->first + block->num; i++) {
        const struct model_tensor *tensor = &p->table->tensors[i];
        struct part piece = piece_of(p, tensor, owner);
        struct part shard = shard_of(p, tensor, p->mesh.place[AXIS_SHARD]);
        uint64_t width = width_of(p, tensor);
        float *rows = state + (piece.first - shard.first) * width;
        lane_copy(lane, direction == ROWS_PACK ? packed : rows,
                  direction == ROWS_PACK ? rows : packed, piece.rows * width * sizeof(*rows));
        packed += aligned(piece.rows * width);
        state += aligned(shard.rows * width);
    }
}

/* Of a block: the pieces of this rank's shard, which its copies own, to a buffer of the state. */

static void pieces_take(struct parallel *p, uint32_t index)
{
    struct block *block = &p->blocks[index];
    size_t count = 0;
    for (uint32_t copy = 0; copy < mesh_group_size(&p->mesh, GROUP_COPIES); copy++)
        count += block->piece_counts[owner_of(p, copy)];
    block->pieces = memory_take(p->memory, "pieces of the replicas", index, count * sizeof(float));
}

static void pieces_give(struct parallel *p, uint32_t index)
{
    memory_give(p->memory, "pieces of the replicas", index);
}

static int pieces_run(struct parallel *p, struct lane *lane, uint32_t index, const float *mine,
                      float *state)
{
    struct comm *comm = p->mesh.of[GROUP_COPIES];
    const struct block *block = &p->blocks[index];
    uint32_t copies = mesh_group_size(&p->mesh, GROUP_COPIES);
    uint32_t me = mesh_group_place(&p->mesh, GROUP_COPIES);
    size_t *bytes = p->lane_lists[LANE_REDUCE], *at = bytes + copies, total = 0;
    for (uint32_t copy = 0; copy < copies; copy++) {
        bytes[copy] = block->piece_counts[owner_of(p, copy)] * sizeof(float);
        at[copy] = total;
        total += bytes[copy];
    }
    comm->device_lane = lane; /* one lane after the other has the group */
    ERR_TRY(comm_all_gather_v(comm, mine, bytes[me], block->pieces, bytes, at));
    for (uint32_t copy = 0; copy < copies; copy++)
        move_pieces(p, lane, block, owner_of(p, copy), state,
                    block->pieces + at[copy] / sizeof(float), ROWS_UNPACK);
    return 0;
}

/* Has this rank rows of the block in the state? A tied output beside its embedding has none. */
static bool is_in_state(const struct parallel *p, uint32_t index)
{
    return p->blocks[index].is_here && !(index == p->table->num_blocks && p->blocks[0].is_here);
}

void collect_take(struct parallel *p, uint32_t first, uint32_t num)
{
    for (uint32_t b = first; b < first + num; b++)
        if (is_in_state(p, b) && p->is_canonical)
            pieces_take(p, b);
}

int collect_run(struct parallel *p, struct lane *lane, const struct op *op)
{
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++)
        if (is_in_state(p, b))
            ERR_TRY(p->is_canonical
                        ? pieces_run(p, lane, b, (float *)p->accumulators + p->blocks[b].piece_at,
                                     p->state.grad)
                        : reduce_fast(p, lane, b));
    return 0;
}

void collect_give(struct parallel *p, uint32_t first, uint32_t num)
{
    for (uint32_t b = first; b < first + num; b++)
        if (is_in_state(p, b) && p->is_canonical)
            pieces_give(p, b);
}

static int spread_block(struct parallel *p, uint32_t index)
{
    const struct block *block = &p->blocks[index];
    uint32_t owner = mesh_group_place(&p->mesh, GROUP_OWNERS);
    size_t bytes = block->piece_counts[owner] * sizeof(float);
    float *mine = memory_take(p->memory, "updated parameters", index, bytes);
    int rc = 0;
    pieces_take(p, index);
    if (!memory_is_recording(p->memory)) {
        move_pieces(p, p->lane, block, owner, p->state.param, mine, ROWS_PACK);
        rc = pieces_run(p, p->lane, index, mine, p->state.param);
    }
    pieces_give(p, index);
    memory_give(p->memory, "updated parameters", index);
    return rc;
}

int gather_updated(struct parallel *p)
{
    for (uint32_t b = 0; b < num_all_blocks(p); b++)
        if (is_in_state(p, b))
            ERR_TRY(spread_block(p, b));
    return 0;
}
