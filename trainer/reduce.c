/* reduce.c - gradients: from the leaves of all ranks to each rank's share of their sum.
 *
 * Gradients, canonical. A step has S leaves (micro-batches). With d = R * F data ranks, leaf i * d
 * + r is computed at micro-step i by rank r. A leaf's gradient is float and is not added to
 * anything before the exchange: per block, an all-to-all sends each rank the piece it owns of every
 * leaf, and the owner adds them to its accumulator in rank order, which is leaf order. So each
 * element is one left fold over the leaves 0..S-1, started from zero, whatever R, F and d are.
 * Ranks without a leaf in the last micro-step, the only one where d > S, send nothing but take
 * part. After it the R pieces of a shard are gathered among the replicas.
 *
 * Gradients, fast. A rank adds its leaves; once per step the sums are reduce-scattered over the
 * shards and all-reduced over the replicas. Bits then depend on R, F and the library.
 *
 * A tied model's embedding is gathered, and its leaves are folded, twice: as the embedding and as
 * the output, which has accumulators of its own behind all others. At the end of a step the second
 * sum is added to the first, element by element: fold(embedding) + fold(output), whatever the mesh.
 */
#include "proto/report.h"
#include "trainer/memory.h"
#include "trainer/parallel_private.h"

#include <string.h>

int reduce_begin_block(void *user, float **out_grads, uint32_t index)
{
    struct parallel *p = user;
    const struct block *block = &p->blocks[index];
    p->leaf = memory_take(p->memory, "leaf gradient", index, block->full_count * sizeof(*p->leaf));
    for (uint32_t i = 0; i < block->num && p->leaf != NULL; i++)
        out_grads[i] = p->leaf + p->full_at[block->first + i];
    return 0;
}

static float *pack_rows(float *packed, const float *full, const struct model_tensor *tensor,
                        struct part part)
{
    size_t count = part.rows * tensor->width;
    memcpy(packed, full + part.first * tensor->width, count * sizeof(*packed));
    return packed + aligned(count);
}

/* Leaf pieces to their owners, and the fold over the ranks' leaves in rank order. */
static int exchange(struct parallel *p, uint32_t index)
{
    const struct block *block = &p->blocks[index];
    uint32_t d = num_ranks(p), me = my_rank(p);
    size_t *send_bytes = p->lists, *send_at = p->lists + d;
    size_t *recv_bytes = p->lists + 2 * d, *recv_at = p->lists + 3 * d;
    size_t send_total = 0, mine = block->piece_counts[me] * sizeof(float);
    for (uint32_t r = 0; r < d; r++) {
        send_at[r] = send_total;
        send_total += block->piece_counts[r] * sizeof(float);
        send_bytes[r] = rank_has_leaf(p, me) ? block->piece_counts[r] * sizeof(float) : 0;
        recv_at[r] = r * mine;
        recv_bytes[r] = rank_has_leaf(p, r) ? mine : 0;
    }
    float *send = memory_take(p->memory, "leaf pieces to send", index, send_total);
    float *recv = memory_take(p->memory, "leaf pieces received", index, d * mine);
    if (!memory_is_recording(p->memory)) {
        float *at = send;
        for (uint32_t r = 0; r < d && rank_has_leaf(p, me); r++)
            for (uint32_t i = block->first; i < block->first + block->num; i++) {
                const struct model_tensor *tensor = &p->table->tensors[i];
                at = pack_rows(at, p->leaf + p->full_at[i], tensor, piece_of(p, tensor, r));
            }
        ERR_TRY(p->mesh.world->ops->all_to_all_v(p->mesh.world, send, send_bytes, send_at, recv,
                                                 recv_bytes, recv_at));
        for (uint32_t r = 0; r < d && rank_has_leaf(p, r); r++)
            kernel_fold(p->kernels, p->lane,
                        &(struct kernel_fold){.acc = p->accumulators + block->piece_at,
                                              .leaf = recv + r * block->piece_counts[me],
                                              .count = block->piece_counts[me]});
    }
    memory_give(p->memory, "leaf pieces to send", index);
    memory_give(p->memory, "leaf pieces received", index);
    return 0;
}

/* Adds a leaf to this rank's own sum, in the order in which reduce_scatter wants it. */
static void add_packed_by_shard(struct parallel *p, uint32_t index)
{
    const struct block *block = &p->blocks[index];
    size_t count = sum_of(block->shard_counts, p->mesh.shards);
    float *packed = memory_take(p->memory, "leaf by shard", index, count * sizeof(float));
    if (!memory_is_recording(p->memory) && rank_has_leaf(p, my_rank(p))) {
        float *at = packed;
        for (uint32_t s = 0; s < p->mesh.shards; s++)
            for (uint32_t i = block->first; i < block->first + block->num; i++) {
                const struct model_tensor *tensor = &p->table->tensors[i];
                at = pack_rows(at, p->leaf + p->full_at[i], tensor, shard_of(p, tensor, s));
            }
        kernel_fold(p->kernels, p->lane,
                    &(struct kernel_fold){
                        .acc = p->accumulators + block->fast_at, .leaf = packed, .count = count});
    }
    memory_give(p->memory, "leaf by shard", index);
}

int reduce_end_block(void *user, uint32_t index)
{
    struct parallel *p = user;
    const struct block *block = &p->blocks[index];
    int rc = 0;
    if (p->is_canonical && num_ranks(p) > 1)
        rc = exchange(p, index);
    else if (!p->is_canonical && p->mesh.shards > 1)
        add_packed_by_shard(p, index);
    else if (!memory_is_recording(p->memory) && rank_has_leaf(p, my_rank(p)))
        kernel_fold(p->kernels, p->lane,
                    &(struct kernel_fold){.acc = p->accumulators + block->fast_at,
                                          .leaf = p->leaf,
                                          .count = block->full_count});
    memory_give(p->memory, "leaf gradient", index);
    return rc;
}

/* ---- the end of a step: whole sums to the shards, norm, loss ---- */

/* The R pieces of this shard, from the replicas. */
static int gather_pieces(struct parallel *p)
{
    struct comm *comm = p->mesh.replica_group;
    size_t *bytes = p->lists, *at = p->lists + num_ranks(p), total = 0;
    for (uint32_t r = 0; r < p->mesh.replicas; r++) {
        bytes[r] = 0;
        for (uint32_t b = 0; b < p->table->num_blocks; b++)
            bytes[r] +=
                p->blocks[b].piece_counts[r * p->mesh.shards + p->mesh.shard] * sizeof(float);
        at[r] = total;
        total += bytes[r];
    }
    char *recv = memory_take(p->memory, "pieces of the replicas", 0, total);
    if (!memory_is_recording(p->memory)) {
        ERR_TRY(comm->ops->all_gather_v(comm, p->accumulators, bytes[p->mesh.replica], recv, bytes,
                                        at));
        const float *from = (const float *)recv;
        for (uint32_t r = 0; r < p->mesh.replicas; r++)
            for (uint32_t i = 0; i < p->state.num_slices; i++) {
                const struct state_slice *slice = &p->state.slices[i];
                struct part piece = piece_of(p, slice->tensor, r * p->mesh.shards + p->mesh.shard);
                size_t count = piece.rows * slice->tensor->width;
                float *to = p->state.grad + slice->at +
                            (piece.first - slice->first_row) * slice->tensor->width;
                memcpy(to, from, count * sizeof(*to));
                from += aligned(count);
            }
    }
    memory_give(p->memory, "pieces of the replicas", 0);
    return 0;
}

static int reduce_fast(struct parallel *p)
{
    struct comm *shards = p->mesh.shard_group, *replicas = p->mesh.replica_group;
    for (uint32_t b = 0; b < p->table->num_blocks && p->mesh.shards > 1; b++)
        ERR_TRY(shards->ops->reduce_scatter_f32(shards, p->accumulators + p->blocks[b].fast_at,
                                                p->state.grad + p->blocks[b].at,
                                                p->blocks[b].shard_counts));
    if (p->mesh.replicas > 1)
        ERR_TRY(replicas->ops->all_reduce_f32(replicas, p->state.grad, p->state.count));
    return 0;
}

/* The output's sum of a tied matrix to the embedding's. */
static void add_tied(struct parallel *p)
{
    const struct block *in = &p->blocks[0], *out = &p->blocks[p->table->num_blocks];
    size_t count =
        p->is_canonical ? in->piece_counts[my_rank(p)] : sum_of(in->shard_counts, p->mesh.shards);
    kernel_fold(p->kernels, p->lane,
                &(struct kernel_fold){
                    .acc = p->accumulators + (p->is_canonical ? in->piece_at : in->fast_at),
                    .leaf = p->accumulators + (p->is_canonical ? out->piece_at : out->fast_at),
                    .count = count});
}

int reduce_step(struct parallel *p)
{
    if (is_tied(p) && !memory_is_recording(p->memory))
        add_tied(p);
    if (p->is_canonical)
        return p->mesh.replicas > 1 ? gather_pieces(p) : 0;
    return memory_is_recording(p->memory) ? 0 : reduce_fast(p);
}

void reduce_sum_squares(struct parallel *p, struct kernel_exact_sum *sum)
{
    bool by_piece = p->is_canonical && p->mesh.replicas > 1;
    if (!by_piece && p->mesh.replica > 0)
        return; /* replica 0 answers for the shard */
    const float *piece = p->accumulators;
    for (uint32_t i = 0; i < p->state.num_slices; i++) {
        const struct state_slice *slice = &p->state.slices[i];
        uint64_t rows = slice->rows, width = slice->tensor->width;
        const float *x = p->state.grad + slice->at;
        if (by_piece) {
            rows = piece_of(p, slice->tensor, my_rank(p)).rows;
            x = piece;
            piece += aligned(rows * width);
        }
        if (rows > 0)
            kernel_sum_squares(
                p->kernels, p->lane,
                &(struct kernel_sum_squares){.sum = sum, .x = x, .rows = rows, .width = width});
    }
}

size_t reduce_accumulator_count(const struct parallel *p)
{
    const struct block *output = &p->blocks[p->table->num_blocks];
    size_t count = p->is_canonical ? p->piece_count : p->fast_count;
    if (!is_tied(p))
        return count;
    return count + (p->is_canonical ? output->piece_counts[my_rank(p)]
                                    : sum_of(output->shard_counts, p->mesh.shards));
}
