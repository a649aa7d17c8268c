/* reduce.c - gradients: from the leaves of all ranks to each rank's share of their sum.
 *
 * The canonical order. A step has S leaves (micro-batches); d = R * F data ranks.
 *
 *   C1  Leaf i * d + r is computed at micro-step i by data rank r.
 *   C2  A leaf's gradient is float, and is complete before it is added to other sums. Parts from
 *       context parallel are added as a balanced binary tree over the index of their block
 *       (model/products.c has the same tree within a rank).
 *   C3  Each element has one owner, who adds the leaves 0..S-1 to it one after the other: a left
 *       fold, started from zero. The library only moves bits. Sums are not zeroed: kernel_fold
 *       writes the first leaf of a step. If one rank owns all sums, the operation that makes a leaf
 *       adds it, and writes the first (folded_of). So a sum may be -0 instead of 0. No later leaf
 *       and no norm depends on this, nor an update with means of moments (training.numerics above
 *       1).
 *   C4  Each stage runs its backwards in leaf order (plan/pipe.c).
 *   C5  A tied model's embedding has two folds, as embedding and as output; at the end of a step
 *       one is added to the other, element by element. If one rank has all leaves, rows without a
 *       token have no first fold: nothing is added to them, so -0 may stay, too.
 *   C6  With G groups (canonical.groups) C3 folds the S / G leaves of a group, and a second left
 *       fold, from zero, the groups' sums in the order of the groups; replicas, or parts of one
 *       (plan/mesh.h), compute whole groups (data/leaves.h).
 *
 * So an element has the same bits on any mesh. Per bucket of blocks and micro-step an all-to-all in
 * the group of owners (replicate x shard x cp) sends each owner its piece of every leaf. In the
 * last micro-step (the only one if d > S) ranks without a leaf join the call and send nothing. With
 * groups the leaves of a replica, or of a part of it, stay within it (shard x cp). An owner there
 * folds the pieces of all owners with its place in the replicas. After a group's last leaf these
 * owners send each other their groups' sums and fold them in order. So with a part for each machine
 * leaves stay on their machine, and only one sum per group leaves it. In the code below "replica"
 * means such a part, if there are parts. With the last leaf the pieces of a shard are gathered
 * among its copies (replicate x cp; gather.c). With ZeRO each copy updates its own pieces instead.
 *
 * Fast. A rank adds its leaves, as float or rounded to bf16 after each; with the last leaf a
 * bucket's sums are reduce-scattered over the shards and all-reduced over the copies, on the lane
 * of the exchanges. Bits then depend on the mesh and the library. ZeRO-2 and groups divide that
 * sum, so with them the canonical order is used. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/exchange/exchange.h"

/* The address of number `at` of the sums. */
static void *sums_at(const struct exchange *e, void *sums, size_t at)
{
    return (char *)sums + sums_bytes(e->state, at);
}

/* Folds a part of a leaf. */
static void fold(struct exchange *e, struct lane *lane, float *acc, const float *leaf, size_t count)
{
    kernel_fold(e->plan->kernels, lane,
                &(struct kernel_fold){.acc = acc, .leaf = leaf, .count = count});
}

/* Leaves, or groups' sums, one after the other. */
struct links {
    const float *at;
    size_t count, stride;
    uint32_t num; /* not 0 */
};

/* Adds them to the sum at `acc`, in order. */
static void fold_to(struct exchange *e, struct lane *lane, bool *has_sum, void *acc,
                    struct links links)
{
    kernel_fold(e->plan->kernels, lane,
                &(struct kernel_fold){.acc = acc,
                                      .leaf = links.at,
                                      .count = links.count,
                                      .stride = links.stride,
                                      .more = links.num - 1,
                                      .dtype = e->state->gradients,
                                      .is_first = !*has_sum});
    *has_sum = true;
}

static uint32_t num_owners(const struct exchange *e)
{
    return mesh_group_size(&e->plan->mesh, GROUP_OWNERS);
}

static uint32_t my_owner(const struct exchange *e)
{
    return mesh_group_place(&e->plan->mesh, GROUP_OWNERS);
}

enum way { EXCHANGE, PACK, IN_PLACE };

static enum way way_of(const struct exchange *e, const struct block *block)
{
    if (has_groups(e->plan) || (e->plan->is_canonical && num_owners(e) > 1))
        return EXCHANGE;
    return e->plan->mesh.degree[AXIS_SHARD] > 1 || block->is_strided ? PACK : IN_PLACE;
}

/* Bits of the tensors whose leaves are added to the sums by the operations that make them. */
static uint32_t folded_of(const struct exchange *e, const struct block *block)
{
    if (!e->has_folds || way_of(e, block) != IN_PLACE)
        return 0;
    return model_foldable(e->plan->model, (uint32_t)(block - e->plan->blocks));
}

/* The number of elements of a block's tensor i. */
static size_t full_count_of(const struct exchange *e, const struct block *block, uint32_t i)
{
    const size_t *at = e->plan->full_at + block->first;
    return (i + 1 < block->num ? at[i + 1] : block->full_count) - at[i];
}

static float *leaf_of(const struct exchange *e, const struct block *block, uint32_t i)
{
    float *leaf = e->buffers[block - e->plan->blocks].leaf;
    return leaf != NULL ? leaf + e->plan->full_at[block->first + i] : NULL;
}

/* The sum of tensor i, if it is in place; NULL: a plan is recorded. */
static void *sum_in_place(const struct exchange *e, const struct block *block, uint32_t i)
{
    if (e->accumulators == NULL)
        return NULL;
    return sums_at(e, e->accumulators, block->fast_at + e->plan->full_at[block->first + i]);
}

static const struct block *tied_output(const struct exchange *e)
{
    return &e->plan->blocks[e->plan->table->num_blocks];
}

/* True if both sums of a tied matrix are on this rank. */
static bool is_beside(const struct exchange *e)
{
    return is_tied(e->plan) && e->plan->blocks[0].is_here && tied_output(e)->is_here;
}

/* If one rank has all leaves, only rows of the embedding that occur as tokens have a gradient. Only
 * these rows are added to the output's sums, which take the state's places (blocks.c). */
size_t reduce_seen_rows(const struct exchange *e)
{
    const struct block *in = &e->plan->blocks[0];
    bool is_whole = is_beside(e) && num_owners(e) == 1 && way_of(e, in) == IN_PLACE;
    return is_whole && model_foldable(e->plan->model, 0) != 0
               ? tp_box(e->plan, &e->plan->table->tensors[in->first])->extent[0]
               : 0;
}

static bool adds_rows(const struct exchange *e)
{
    return e->has_folds && e->seen != NULL;
}

void reduce_begin_block(struct exchange *e, uint32_t index, float **out_grads)
{
    const struct block *block = &e->plan->blocks[index];
    struct block_buffers *to = buffers_of(e, block);
    uint32_t folded = folded_of(e, block);
    size_t bytes = block->full_count * sizeof(*to->leaf);
    to->leaf = memory_take(e->plan->memory, "leaf gradient", index, bytes);
    for (uint32_t i = 0; i < block->num; i++)
        out_grads[i] = folded >> i & 1 ? sum_in_place(e, block, i) : leaf_of(e, block, i);
    model_fold(e->plan->model, folded != 0 && to->has_folded,
               index == 0 && adds_rows(e) ? e->seen : NULL);
    to->has_folded = true;
}

static float *pack_rows(struct exchange *e, struct lane *lane, const struct block *block,
                        float *packed, uint32_t tensor, struct part part)
{
    gather_move_rows(e, lane, tensor, part, buffers_of(e, block)->leaf + e->plan->full_at[tensor],
                     packed, sizeof(*packed), ROWS_PACK);
    return packed + aligned(part.rows * width_of(e->plan, &e->plan->table->tensors[tensor]));
}

/* Adds the parts of a data rank's leaf, from the ranks of its cp group, to parts[0]. C2. */
static void add_parts(struct exchange *e, struct lane *lane, float *parts, size_t count)
{
    for (uint32_t step = 1; step < e->plan->mesh.degree[AXIS_CP]; step *= 2)
        for (uint32_t i = 0; i < e->plan->mesh.degree[AXIS_CP]; i += 2 * step)
            fold(e, lane, parts + i * count, parts + (i + step) * count, count);
}

/* ---- buckets: blocks [first, first + num), with consecutive sums ---- */

static size_t bucket_count(const struct exchange *e, uint32_t first, uint32_t num, uint32_t owner)
{
    size_t count = 0;
    for (uint32_t b = first; b < first + num; b++)
        count += e->plan->blocks[b].piece_counts[owner];
    return count;
}

/* The pieces of all replicas for this rank's place, or those of its own replica. */
static size_t own_count(const struct exchange *e, uint32_t first, uint32_t num)
{
    size_t count = 0;
    for (uint32_t r = 0; r < e->leaves.replicas && has_groups(e->plan); r++)
        count += bucket_count(e, first, num, owner_in(e->plan, r));
    return has_groups(e->plan) ? count : bucket_count(e, first, num, my_owner(e));
}

static void pack_for_owner(struct exchange *e, struct lane *lane, const struct op *op,
                           uint32_t owner, float *send)
{
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++) {
        const struct block *block = &e->plan->blocks[b];
        for (uint32_t i = block->first; i < block->first + block->num; i++)
            send = pack_rows(e, lane, block, send, i,
                             piece_of(e->plan, &e->plan->table->tensors[i], owner));
    }
}

/* Sends pieces of leaves to their owners, and folds the leaves of data ranks in order. */
static int exchange(struct exchange *e, struct lane *lane, const struct op *op)
{
    const struct block *first = &e->plan->blocks[op->block];
    struct comm *comm = comm_of(e, op, CALL_DEAL);
    uint32_t num = num_owners(e), cp = e->plan->mesh.degree[AXIS_CP];
    bool is_mine = rank_has_leaf(e, my_data_rank(e->plan), op->leaf);
    size_t *lists = e->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t send_total = 0, mine = bucket_count(e, op->block, op->num_blocks, my_owner(e));
    for (uint32_t o = 0; o < num; o++) {
        size_t count = bucket_count(e, op->block, op->num_blocks, o);
        if (is_mine)
            pack_for_owner(e, lane, op, o, buffers_of(e, first)->send + send_total);
        send_at[o] = send_total * sizeof(float);
        send_total += count;
        send_bytes[o] = is_mine ? count * sizeof(float) : 0;
        recv_at[o] = o * mine * sizeof(float);
        recv_bytes[o] = rank_has_leaf(e, o / cp, op->leaf) ? mine * sizeof(float) : 0;
    }
    ERR_TRY(comm_all_to_all_v(comm, buffers_of(e, first)->send, send_bytes, send_at,
                              buffers_of(e, first)->recv, recv_bytes, recv_at));
    uint32_t r = 0;
    for (; r < num_data_ranks(e->plan) && rank_has_leaf(e, r, op->leaf); r++)
        add_parts(e, lane, buffers_of(e, first)->recv + r * cp * mine, mine);
    struct links links = {buffers_of(e, first)->recv, mine, cp * mine, r};
    fold_to(e, lane, &buffers_of(e, first)->has_sum, sums_at(e, e->accumulators, first->piece_at),
            links); /* C3 */
    return 0;
}

/* As exchange(), within a replica. */
static int exchange_in_replica(struct exchange *e, struct lane *lane, const struct op *op)
{
    const struct block *first = &e->plan->blocks[op->block];
    struct comm *comm = comm_of(e, op, CALL_DEAL);
    uint32_t num = mesh_group_size(&e->plan->mesh, GROUP_REPLICA),
             cp = e->plan->mesh.degree[AXIS_CP];
    uint32_t shards = e->leaves.shards;
    uint32_t before = mesh_group_place(&e->plan->mesh, GROUP_REPLICAS) * shards;
    bool is_mine = rank_has_leaf(e, my_data_rank(e->plan), op->leaf);
    size_t *lists = e->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t sent = 0, mine = own_count(e, op->block, op->num_blocks);
    float *send = comm != NULL ? buffers_of(e, first)->send : buffers_of(e, first)->recv;
    for (uint32_t o = 0; o < num; o++) {
        send_at[o] = sent * sizeof(float);
        for (uint32_t r = 0; r < e->leaves.replicas; r++) {
            if (is_mine)
                pack_for_owner(e, lane, op, r * num + o, send + sent);
            sent += bucket_count(e, op->block, op->num_blocks, r * num + o);
        }
        send_bytes[o] = is_mine ? sent * sizeof(float) - send_at[o] : 0;
        recv_at[o] = o * mine * sizeof(float);
        recv_bytes[o] = rank_has_leaf(e, before + o / cp, op->leaf) ? mine * sizeof(float) : 0;
    }
    if (comm != NULL)
        ERR_TRY(comm_all_to_all_v(comm, send, send_bytes, send_at, buffers_of(e, first)->recv,
                                  recv_bytes, recv_at));
    struct links links = {.at = buffers_of(e, first)->recv, .stride = cp * mine};
    for (; links.num < shards && rank_has_leaf(e, before + links.num, op->leaf); links.num++)
        add_parts(e, lane, buffers_of(e, first)->recv + (size_t)links.num * cp * mine, mine);
    for (uint32_t r = 0; r < e->leaves.replicas && links.num > 0; r++) {
        bool has_sum = buffers_of(e, first)->has_group_sum;
        links.count = bucket_count(e, op->block, op->num_blocks, owner_in(e->plan, r));
        fold_to(e, lane, &has_sum, e->group_sums + first->group_at[r], links);
        links.at += links.count;
    }
    buffers_of(e, first)->has_group_sum |= links.num > 0;
    return 0;
}

/* ---- groups of leaves ---- */

void join_take(struct exchange *e, uint32_t first, uint32_t num)
{
    size_t count = e->leaves.replicas * bucket_count(e, first, num, my_owner(e));
    if (e->leaves.replicas > 1)
        e->buffers[first].groups =
            memory_take(e->plan->memory, "sums of groups received", first, count * sizeof(float));
}

void join_give(struct exchange *e, uint32_t first, uint32_t num)
{
    (void)num;
    if (e->leaves.replicas > 1)
        memory_give(e->plan->memory, "sums of groups received", first);
}

int join_run(struct exchange *e, struct lane *lane, const struct op *op)
{
    const struct block *first = &e->plan->blocks[op->block];
    struct comm *comm = comm_of(e, op, CALL_DEAL);
    uint32_t num = e->leaves.replicas, round = op->leaf / leaves_round(&e->leaves);
    bool is_mine =
        leaves_has_group(&e->leaves, mesh_group_place(&e->plan->mesh, GROUP_REPLICAS), round);
    size_t *lists = e->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t mine = bucket_count(e, op->block, op->num_blocks, my_owner(e));
    const float *sums =
        comm != NULL ? buffers_of(e, first)->groups : e->group_sums + first->group_at[0];
    for (uint32_t r = 0; r < num; r++) {
        size_t count = bucket_count(e, op->block, op->num_blocks, owner_in(e->plan, r));
        send_bytes[r] = is_mine ? count * sizeof(float) : 0;
        send_at[r] = first->group_at[r] * sizeof(float);
        recv_bytes[r] = leaves_has_group(&e->leaves, r, round) ? mine * sizeof(float) : 0;
        recv_at[r] = r * mine * sizeof(float);
    }
    if (comm != NULL)
        ERR_TRY(comm_all_to_all_v(comm, e->group_sums, send_bytes, send_at,
                                  buffers_of(e, first)->groups, recv_bytes, recv_at));
    struct links links = {sums, mine, mine, 0};
    while (links.num < num && leaves_has_group(&e->leaves, links.num, round))
        links.num++;
    if (links.num > 0) /* C6 */
        fold_to(e, lane, &buffers_of(e, first)->has_sum,
                sums_at(e, e->accumulators, first->piece_at), links);
    buffers_of(e, first)->has_group_sum = false;
    return 0;
}

/* Adds a leaf to this rank's sum, in the layout of reduce_scatter. */
static void add_packed_by_shard(struct exchange *e, struct lane *lane, const struct block *block)
{
    uint32_t shards = e->plan->mesh.degree[AXIS_SHARD];
    float *at = buffers_of(e, block)->send;
    for (uint32_t s = 0; s < shards; s++)
        for (uint32_t i = block->first; i < block->first + block->num; i++)
            at =
                pack_rows(e, lane, block, at, i, shard_of(e->plan, &e->plan->table->tensors[i], s));
    fold_to(e, lane, &buffers_of(e, block)->has_sum, sums_at(e, e->accumulators, block->fast_at),
            (struct links){buffers_of(e, block)->send, sum_of(block->shard_counts, shards), 0, 1});
}

/* Adds a leaf, except tensors that are folded already. */
static void add_in_place(struct exchange *e, struct lane *lane, const struct block *block)
{
    uint32_t folded = folded_of(e, block);
    bool had_sum = buffers_of(e, block)->has_sum;
    for (uint32_t i = 0; i < block->num; i++) {
        size_t count = folded != 0 ? full_count_of(e, block, i) : block->full_count;
        buffers_of(e, block)->has_sum = had_sum;
        if ((folded >> i & 1) == 0)
            fold_to(e, lane, &buffers_of(e, block)->has_sum, sum_in_place(e, block, i),
                    (struct links){leaf_of(e, block, i), count, 0, 1});
        if (folded == 0)
            return; /* all blocks at once */
    }
    buffers_of(e, block)->has_sum = true;
}

static bool is_exchanged(const struct exchange *e)
{
    return way_of(e, &e->plan->blocks[0]) == EXCHANGE; /* then all blocks are */
}

void reduce_begin(struct exchange *e)
{
    const struct config *config = e->plan->config;
    e->has_folds = e->state->gradients == KERNEL_F32 && config->numerics != 1 &&
                   !config->watch_numbers; /* it reads leaves */
    for (uint32_t b = 0; b < num_all_blocks(e->plan); b++)
        e->buffers[b].has_sum = e->buffers[b].has_group_sum = e->buffers[b].has_folded = false;
    if (adds_rows(e))
        lane_zero(e->plan->lane, e->seen, reduce_seen_rows(e) * sizeof(*e->seen));
    if (!is_exchanged(e) && !rank_has_leaf(e, my_data_rank(e->plan), 0))
        lane_zero(e->plan->lane, e->accumulators,
                  sums_bytes(e->state, reduce_accumulator_count(e)));
}

void reduce_take(struct exchange *e, uint32_t first, uint32_t num)
{
    const struct block *block = &e->plan->blocks[first];
    size_t sent = 0;
    for (uint32_t o = 0; o < num_owners(e); o++)
        sent += bucket_count(e, first, num, o);
    if (is_exchanged(e)) {
        uint32_t ranks =
            has_groups(e->plan) ? mesh_group_size(&e->plan->mesh, GROUP_REPLICA) : num_owners(e);
        buffers_of(e, block)->send =
            memory_take(e->plan->memory, "leaf pieces to send", first, sent * sizeof(float));
        buffers_of(e, block)->recv = memory_take(e->plan->memory, "leaf pieces received", first,
                                                 ranks * own_count(e, first, num) * sizeof(float));
        return;
    }
    for (uint32_t b = first; b < first + num; b++) {
        size_t count = sum_of(e->plan->blocks[b].shard_counts, e->plan->mesh.degree[AXIS_SHARD]);
        if (way_of(e, &e->plan->blocks[b]) == PACK)
            e->buffers[b].send =
                memory_take(e->plan->memory, "leaf by shard", b, count * sizeof(float));
    }
}

int reduce_run(struct exchange *e, struct lane *lane, const struct op *op)
{
    if (is_exchanged(e))
        return has_groups(e->plan) ? exchange_in_replica(e, lane, op) : exchange(e, lane, op);
    if (!rank_has_leaf(e, my_data_rank(e->plan), op->leaf))
        return 0;
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++) {
        const struct block *block = &e->plan->blocks[b];
        if (way_of(e, block) == PACK)
            add_packed_by_shard(e, lane, block);
        else
            add_in_place(e, lane, block);
    }
    return 0;
}

void reduce_give(struct exchange *e, uint32_t first, uint32_t num)
{
    if (is_exchanged(e)) {
        memory_give(e->plan->memory, "leaf pieces to send", first);
        memory_give(e->plan->memory, "leaf pieces received", first);
    }
    for (uint32_t b = first; b < first + num; b++) {
        if (way_of(e, &e->plan->blocks[b]) == PACK)
            memory_give(e->plan->memory, "leaf by shard", b);
        memory_give(e->plan->memory, "leaf gradient", b);
    }
}

/* ---- the end of a step: sums of all ranks, of a tied matrix, the norm ---- */

int reduce_fast(struct exchange *e, struct lane *lane, const struct op *op, uint32_t index)
{
    struct comm *shards = comm_of(e, op, CALL_SCATTER), *copies = comm_of(e, op, CALL_SUM);
    const struct block *block = &e->plan->blocks[index];
    size_t count = block->shard_counts[e->plan->mesh.place[AXIS_SHARD]];
    void *sums = sums_at(e, e->state->grad, block->at);
    if (shards != NULL) {
        shards->device_lane = lane; /* one lane at a time uses the groups */
        ERR_TRY(comm_reduce_scatter_floats(shards, sums_at(e, e->accumulators, block->fast_at),
                                           sums, block->shard_counts, sums_bytes(e->state, 1)));
    }
    if (copies == NULL)
        return 0;
    copies->device_lane = lane;
    return comm_all_reduce_floats(copies, sums, count, sums_bytes(e->state, 1));
}

/* The number of elements of a block's sums on this rank. */
static size_t sum_count(const struct exchange *e, const struct block *block)
{
    return e->plan->is_canonical ? block->piece_counts[my_owner(e)]
                                 : sum_of(block->shard_counts, e->plan->mesh.degree[AXIS_SHARD]);
}

static void *sum_at(const struct exchange *e, const struct block *block)
{
    return sums_at(e, e->accumulators, e->plan->is_canonical ? block->piece_at : block->fast_at);
}

/* acc += the tied matrix's other sum. `seen`: the rows that have a sum, or NULL. */
static void add_sum(struct exchange *e, void *acc, const void *other, size_t count,
                    const uint32_t *seen)
{
    const struct model_tensor *tensor = &e->plan->table->tensors[e->plan->blocks[0].first];
    kernel_add(e->plan->kernels, e->plan->lane,
               &(struct kernel_add){.y = acc,
                                    .x = other,
                                    .seen = seen,
                                    .count = count,
                                    .width = width_of(e->plan, tensor),
                                    .dtype = e->state->gradients});
}

/* C5, if embedding and output are on the two ends of a pipeline: both ranks add the other's sum, so
 * both get the same sum. */
static int swap_tied(struct exchange *e, struct comm *comm, const struct block *block)
{
    uint32_t last = e->plan->mesh.degree[AXIS_PP] - 1;
    uint32_t peer = e->plan->mesh.place[AXIS_PP] == 0 ? last : 0;
    size_t bytes = sums_bytes(e->state, sum_count(e, block));
    void *other = memory_take(e->plan->memory, "sum of the tied matrix", 0, bytes);
    int rc = 0;
    if (!memory_is_recording(e->plan->memory)) {
        rc = comm_send(comm, peer, COMM_TAG_TIED, sum_at(e, block), bytes, &e->tied);
        if (rc == 0)
            rc = comm_receive(comm, peer, COMM_TAG_TIED, other, bytes);
        if (rc == 0)
            rc = comm_wait(comm, &e->tied);
        if (rc == 0)
            add_sum(e, sum_at(e, block), other, sum_count(e, block), NULL);
    }
    memory_give(e->plan->memory, "sum of the tied matrix", 0);
    return rc;
}

/* Adds one sum of a tied matrix to the other, which has the state's place. C5. */
static int add_tied(struct exchange *e, const struct op *op)
{
    const struct block *in = &e->plan->blocks[0], *out = tied_output(e);
    bool is_out = in->piece_at > out->piece_at;
    size_t rows = adds_rows(e) ? reduce_seen_rows(e) : 0;
    size_t count =
        rows > 0 ? rows * width_of(e->plan, &e->plan->table->tensors[in->first]) : sum_count(e, in);
    if (is_beside(e) && !memory_is_recording(e->plan->memory))
        add_sum(e, sum_at(e, is_out ? out : in), sum_at(e, is_out ? in : out), count,
                rows > 0 ? e->seen : NULL);
    if (in->is_here != out->is_here)
        return swap_tied(e, comm_of(e, op, CALL_SWAP), in->is_here ? in : out);
    return 0;
}

int reduce_step(struct exchange *e, const struct op *op)
{
    return is_tied(e->plan) ? add_tied(e, op) : 0;
}

/* Adds a tensor's rows to the list on the host; no lane reads it now. */
static void list_rows(struct exchange *e, uint32_t *num, const void *x, uint64_t rows,
                      uint64_t width)
{
    uint64_t before = *num > 0 ? e->host_squares[*num - 1].end : 0;
    e->host_squares[(*num)++] =
        (struct kernel_squares_piece){.x = x, .width = width, .end = before + rows};
}

/* Adds the squares of the listed rows. */
static void add_squares(struct exchange *e, struct kernel_exact_sum *sum, uint32_t num,
                        enum kernel_dtype dtype)
{
    if (num == 0)
        return;
    lane_copy(e->plan->lane, e->squares, e->host_squares, num * sizeof(*e->squares));
    kernel_sum_squares(e->plan->kernels, e->plan->lane,
                       &(struct kernel_sum_squares){.sum = sum,
                                                    .pieces = e->squares,
                                                    .rows = e->host_squares[num - 1].end,
                                                    .num = num,
                                                    .dtype = dtype});
}

void reduce_sum_squares(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct model_tensor *only)
{
    bool by_piece = e->plan->is_canonical && mesh_group_size(&e->plan->mesh, GROUP_COPIES) > 1;
    if (!by_piece && mesh_group_place(&e->plan->mesh, GROUP_COPIES) > 0)
        return;       /* the first copy counts the shard */
    size_t piece = 0; /* place in the accumulators */
    uint32_t num = 0;
    for (uint32_t i = 0; i < e->state->num_slices; i++) {
        const struct state_slice *slice = &e->state->slices[i];
        uint64_t rows = slice->param.box.extent[0], width = slice->param.box.extent[1];
        const void *x = sums_at(e, e->state->grad, slice->param.at);
        if (by_piece) {
            rows = piece_of(e->plan, slice->tensor, my_owner(e)).rows;
            x = sums_at(e, e->accumulators, piece);
            piece += aligned(rows * width);
        }
        if (rows > 0 && slice->is_counted && (only == NULL || only == slice->tensor))
            list_rows(e, &num, x, rows * slice->segments, width / slice->segments);
    }
    add_squares(e, sum, num, e->state->gradients);
}

void reduce_sum_weights(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct state_slice *slice)
{
    const struct box *box = &slice->param.box;
    uint32_t num = 0;
    list_rows(e, &num, e->state->param + slice->param.at, box->extent[0], box->extent[1]);
    add_squares(e, sum, num, KERNEL_F32);
}

size_t reduce_accumulator_count(const struct exchange *e)
{
    size_t count = e->plan->is_canonical ? e->plan->piece_count : e->plan->fast_count;
    return is_beside(e) ? count + sum_count(e, tied_output(e)) : count;
}
