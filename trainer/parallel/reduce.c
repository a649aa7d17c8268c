/* reduce.c - gradients: from the leaves of all ranks to each rank's share of their sum.
 *
 * The canonical order. A step has S leaves (micro-batches); d = R * F data ranks.
 *
 *   C1  Leaf i * d + r is computed at micro-step i by data rank r.
 *   C2  A leaf's gradient is float, and is added to nothing before it is whole: where context
 *       parallel computed it in parts, the parts are added as a balanced binary tree over the index
 *       of their block (model/products.c has the same tree inside of a rank).
 *   C3  Each element has one owner, who adds the leaves 0..S-1 to it one after the other: a left
 *       fold, started from zero. Only kernel_fold adds leaves; the library moves bits. The first
 *       leaf of a step is added to no memory, so sums are not zeroed (fold_to).
 *   C4  Whoever runs the backwards of a stage runs them in leaf order (plan/pipe.c).
 *   C5  A tied model's embedding has two folds, as embedding and as output; at the end of a step
 *       the second is added to the first, element by element.
 *   C6  With G groups (canonical.groups) C3 folds the S / G leaves of a group, and a second left
 *       fold, from zero, the groups' sums in the order of the groups; replicas compute whole groups
 *       (data/leaves.h).
 *
 * So an element is the same bits whatever the mesh. Per bucket of blocks and micro-step an
 * all-to-all in the group of owners (replicate x shard x cp) sends each owner its piece of every
 * leaf. Ranks without a leaf in the last micro-step, the only one where d > S, send nothing but
 * take part. With groups the leaves of a replica stay within it (shard x cp): an owner there folds
 * what it and those of its place in other replicas own, and behind a group's last leaf they send
 * each other their groups' sums, to fold them in their order. With the last leaf the pieces of a
 * shard are gathered among its copies (replicate x cp; gather.c), unless with ZeRO each of them
 * updates its own pieces.
 *
 * Fast. A rank adds its leaves, as float or rounded to bf16 after each; with the last of them a
 * bucket's sums are reduce-scattered over the shards and all-reduced over the copies, on the lane
 * of the exchanges. Bits then depend on the mesh and the library. With ZeRO-2 or groups, which
 * divide that sum, the canonical order is made.
 */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/private.h"

/* From the place of so many numbers on. */
static void *sums_at(const struct parallel *p, void *sums, size_t at)
{
    return (char *)sums + sums_bytes(p, at);
}

/* Parts of a leaf. */
static void fold(struct parallel *p, struct lane *lane, float *acc, const float *leaf, size_t count)
{
    kernel_fold(p->kernels, lane, &(struct kernel_fold){.acc = acc, .leaf = leaf, .count = count});
}

/* A leaf, or a group's sum, to the sum at `acc`. */
static void fold_to(struct parallel *p, struct lane *lane, bool *has_sum, void *acc,
                    const float *leaf, size_t count)
{
    kernel_fold(p->kernels, lane,
                &(struct kernel_fold){.acc = acc,
                                      .leaf = leaf,
                                      .count = count,
                                      .dtype = p->state.gradients,
                                      .is_first = !*has_sum});
    *has_sum = true;
}

static uint32_t num_owners(const struct parallel *p)
{
    return mesh_group_size(&p->mesh, GROUP_OWNERS);
}

static uint32_t my_owner(const struct parallel *p)
{
    return mesh_group_place(&p->mesh, GROUP_OWNERS);
}

void reduce_begin_block(struct parallel *p, uint32_t index, float **out_grads)
{
    struct block *block = &p->blocks[index];
    size_t bytes = block->full_count * sizeof(*block->leaf);
    block->leaf = memory_take(p->memory, "leaf gradient", index, bytes);
    for (uint32_t i = 0; i < block->num; i++)
        out_grads[i] = block->leaf != NULL ? block->leaf + p->full_at[block->first + i] : NULL;
}

static float *pack_rows(struct parallel *p, struct lane *lane, const struct block *block,
                        float *packed, uint32_t tensor, struct part part)
{
    gather_move_rows(p, lane, tensor, part, block->leaf + p->full_at[tensor], packed,
                     sizeof(*packed), ROWS_PACK);
    return packed + aligned(part.rows * width_of(p, &p->table->tensors[tensor]));
}

/* Of one data rank: the parts of its leaf that the ranks of its cp group have, to parts[0]. C2. */
static void add_parts(struct parallel *p, struct lane *lane, float *parts, size_t count)
{
    for (uint32_t step = 1; step < p->mesh.degree[AXIS_CP]; step *= 2)
        for (uint32_t i = 0; i < p->mesh.degree[AXIS_CP]; i += 2 * step)
            fold(p, lane, parts + i * count, parts + (i + step) * count, count);
}

/* ---- buckets: blocks [first, first + num), whose sums lie one behind the other ---- */

static size_t bucket_count(const struct parallel *p, uint32_t first, uint32_t num, uint32_t owner)
{
    size_t count = 0;
    for (uint32_t b = first; b < first + num; b++)
        count += p->blocks[b].piece_counts[owner];
    return count;
}

/* Those of all replicas for this rank's place, or of its own. */
static size_t own_count(const struct parallel *p, uint32_t first, uint32_t num)
{
    size_t count = 0;
    for (uint32_t r = 0; r < p->leaves.replicas && has_groups(p); r++)
        count += bucket_count(p, first, num, owner_in(p, r));
    return has_groups(p) ? count : bucket_count(p, first, num, my_owner(p));
}

static void pack_for_owner(struct parallel *p, struct lane *lane, const struct op *op,
                           uint32_t owner, float *send)
{
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++) {
        const struct block *block = &p->blocks[b];
        for (uint32_t i = block->first; i < block->first + block->num; i++)
            send = pack_rows(p, lane, block, send, i, piece_of(p, &p->table->tensors[i], owner));
    }
}

/* Leaf pieces to their owners, and the fold over the data ranks' leaves in their order. */
static int exchange(struct parallel *p, struct lane *lane, const struct op *op)
{
    struct block *first = &p->blocks[op->block];
    struct comm *comm = p->mesh.of[GROUP_OWNERS];
    uint32_t num = num_owners(p), cp = p->mesh.degree[AXIS_CP];
    bool is_mine = rank_has_leaf(p, my_data_rank(p), op->leaf);
    size_t *lists = p->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t send_total = 0, mine = bucket_count(p, op->block, op->num_blocks, my_owner(p));
    for (uint32_t o = 0; o < num; o++) {
        size_t count = bucket_count(p, op->block, op->num_blocks, o);
        if (is_mine)
            pack_for_owner(p, lane, op, o, first->send + send_total);
        send_at[o] = send_total * sizeof(float);
        send_total += count;
        send_bytes[o] = is_mine ? count * sizeof(float) : 0;
        recv_at[o] = o * mine * sizeof(float);
        recv_bytes[o] = rank_has_leaf(p, o / cp, op->leaf) ? mine * sizeof(float) : 0;
    }
    ERR_TRY(comm_all_to_all_v(comm, first->send, send_bytes, send_at, first->recv, recv_bytes,
                              recv_at));
    for (uint32_t r = 0; r < num_data_ranks(p) && rank_has_leaf(p, r, op->leaf); r++) {
        float *parts = first->recv + r * cp * mine;
        add_parts(p, lane, parts, mine);
        fold_to(p, lane, &first->has_sum, sums_at(p, p->accumulators, first->piece_at), parts,
                mine); /* C3 */
    }
    return 0;
}

/* As exchange, within a replica. */
static int exchange_in_replica(struct parallel *p, struct lane *lane, const struct op *op)
{
    struct block *first = &p->blocks[op->block];
    struct comm *comm = p->mesh.of[GROUP_REPLICA];
    uint32_t num = mesh_group_size(&p->mesh, GROUP_REPLICA), cp = p->mesh.degree[AXIS_CP];
    uint32_t shards = p->leaves.shards, before = p->mesh.place[AXIS_REPLICATE] * shards;
    bool is_mine = rank_has_leaf(p, my_data_rank(p), op->leaf);
    size_t *lists = p->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t sent = 0, mine = own_count(p, op->block, op->num_blocks);
    float *send = comm != NULL ? first->send : first->recv;
    for (uint32_t o = 0; o < num; o++) {
        send_at[o] = sent * sizeof(float);
        for (uint32_t r = 0; r < p->leaves.replicas; r++) {
            if (is_mine)
                pack_for_owner(p, lane, op, r * num + o, send + sent);
            sent += bucket_count(p, op->block, op->num_blocks, r * num + o);
        }
        send_bytes[o] = is_mine ? sent * sizeof(float) - send_at[o] : 0;
        recv_at[o] = o * mine * sizeof(float);
        recv_bytes[o] = rank_has_leaf(p, before + o / cp, op->leaf) ? mine * sizeof(float) : 0;
    }
    if (comm != NULL)
        ERR_TRY(
            comm_all_to_all_v(comm, send, send_bytes, send_at, first->recv, recv_bytes, recv_at));
    for (uint32_t s = 0; s < shards && rank_has_leaf(p, before + s, op->leaf); s++) {
        float *parts = first->recv + (size_t)s * cp * mine;
        add_parts(p, lane, parts, mine);
        for (uint32_t r = 0; r < p->leaves.replicas; r++) {
            size_t count = bucket_count(p, op->block, op->num_blocks, owner_in(p, r));
            bool has_sum = first->has_group_sum;
            fold_to(p, lane, &has_sum, p->group_sums + first->group_at[r], parts, count);
            parts += count;
        }
        first->has_group_sum = true;
    }
    return 0;
}

/* ---- groups of leaves ---- */

void join_take(struct parallel *p, uint32_t first, uint32_t num)
{
    size_t count = p->leaves.replicas * bucket_count(p, first, num, my_owner(p));
    if (p->leaves.replicas > 1)
        p->blocks[first].groups =
            memory_take(p->memory, "sums of groups received", first, count * sizeof(float));
}

void join_give(struct parallel *p, uint32_t first, uint32_t num)
{
    (void)num;
    if (p->leaves.replicas > 1)
        memory_give(p->memory, "sums of groups received", first);
}

int join_run(struct parallel *p, struct lane *lane, const struct op *op)
{
    struct block *first = &p->blocks[op->block];
    struct comm *comm = p->mesh.of[GROUP_REPLICAS];
    uint32_t num = p->leaves.replicas, round = op->leaf / p->shape.round_leaves;
    bool is_mine = leaves_has_group(&p->leaves, p->mesh.place[AXIS_REPLICATE], round);
    size_t *lists = p->lane_lists[LANE_REDUCE], *send_bytes = lists, *send_at = lists + num;
    size_t *recv_bytes = lists + 2 * num, *recv_at = lists + 3 * num;
    size_t mine = bucket_count(p, op->block, op->num_blocks, my_owner(p));
    const float *sums = comm != NULL ? first->groups : p->group_sums + first->group_at[0];
    for (uint32_t r = 0; r < num; r++) {
        size_t count = bucket_count(p, op->block, op->num_blocks, owner_in(p, r));
        send_bytes[r] = is_mine ? count * sizeof(float) : 0;
        send_at[r] = first->group_at[r] * sizeof(float);
        recv_bytes[r] = leaves_has_group(&p->leaves, r, round) ? mine * sizeof(float) : 0;
        recv_at[r] = r * mine * sizeof(float);
    }
    if (comm != NULL)
        ERR_TRY(comm_all_to_all_v(comm, p->group_sums, send_bytes, send_at, first->groups,
                                  recv_bytes, recv_at));
    for (uint32_t r = 0; r < num && leaves_has_group(&p->leaves, r, round); r++)
        fold_to(p, lane, &first->has_sum, sums_at(p, p->accumulators, first->piece_at),
                sums + r * mine, mine); /* C6 */
    first->has_group_sum = false;
    return 0;
}

/* Adds a leaf to this rank's own sum, in the order in which reduce_scatter wants it. */
static void add_packed_by_shard(struct parallel *p, struct lane *lane, struct block *block)
{
    uint32_t shards = p->mesh.degree[AXIS_SHARD];
    float *at = block->send;
    for (uint32_t s = 0; s < shards; s++)
        for (uint32_t i = block->first; i < block->first + block->num; i++)
            at = pack_rows(p, lane, block, at, i, shard_of(p, &p->table->tensors[i], s));
    fold_to(p, lane, &block->has_sum, sums_at(p, p->accumulators, block->fast_at), block->send,
            sum_of(block->shard_counts, shards));
}

enum way { EXCHANGE, PACK, IN_PLACE };

static enum way way_of(const struct parallel *p, const struct block *block)
{
    if (has_groups(p) || (p->is_canonical && num_owners(p) > 1))
        return EXCHANGE;
    return p->mesh.degree[AXIS_SHARD] > 1 || block->is_strided ? PACK : IN_PLACE;
}

static bool is_exchanged(const struct parallel *p)
{
    return way_of(p, &p->blocks[0]) == EXCHANGE; /* then all are */
}

void reduce_begin(struct parallel *p)
{
    for (uint32_t b = 0; b < num_all_blocks(p); b++)
        p->blocks[b].has_sum = p->blocks[b].has_group_sum = false;
    if (!is_exchanged(p) && !rank_has_leaf(p, my_data_rank(p), 0))
        lane_zero(p->lane, p->accumulators, sums_bytes(p, reduce_accumulator_count(p)));
}

void reduce_take(struct parallel *p, uint32_t first, uint32_t num)
{
    struct block *block = &p->blocks[first];
    size_t sent = 0;
    for (uint32_t o = 0; o < num_owners(p); o++)
        sent += bucket_count(p, first, num, o);
    if (is_exchanged(p)) {
        uint32_t ranks = has_groups(p) ? mesh_group_size(&p->mesh, GROUP_REPLICA) : num_owners(p);
        block->send = memory_take(p->memory, "leaf pieces to send", first, sent * sizeof(float));
        block->recv = memory_take(p->memory, "leaf pieces received", first,
                                  ranks * own_count(p, first, num) * sizeof(float));
        return;
    }
    for (uint32_t b = first; b < first + num; b++) {
        size_t count = sum_of(p->blocks[b].shard_counts, p->mesh.degree[AXIS_SHARD]);
        if (way_of(p, &p->blocks[b]) == PACK)
            p->blocks[b].send = memory_take(p->memory, "leaf by shard", b, count * sizeof(float));
    }
}

int reduce_run(struct parallel *p, struct lane *lane, const struct op *op)
{
    if (is_exchanged(p))
        return has_groups(p) ? exchange_in_replica(p, lane, op) : exchange(p, lane, op);
    if (!rank_has_leaf(p, my_data_rank(p), op->leaf))
        return 0;
    for (uint32_t b = op->block; b < op->block + op->num_blocks; b++) {
        struct block *block = &p->blocks[b];
        if (way_of(p, block) == PACK)
            add_packed_by_shard(p, lane, block);
        else
            fold_to(p, lane, &block->has_sum, sums_at(p, p->accumulators, block->fast_at),
                    block->leaf, block->full_count);
    }
    return 0;
}

void reduce_give(struct parallel *p, uint32_t first, uint32_t num)
{
    if (is_exchanged(p)) {
        memory_give(p->memory, "leaf pieces to send", first);
        memory_give(p->memory, "leaf pieces received", first);
    }
    for (uint32_t b = first; b < first + num; b++) {
        if (way_of(p, &p->blocks[b]) == PACK)
            memory_give(p->memory, "leaf by shard", b);
        memory_give(p->memory, "leaf gradient", b);
    }
}

/* ---- the end of a step: sums of all ranks, of a tied matrix, norm ---- */

int reduce_fast(struct parallel *p, struct lane *lane, uint32_t index)
{
    struct comm *shards = p->mesh.of[GROUP_SUMS], *copies = p->mesh.of[GROUP_COPIES];
    const struct block *block = &p->blocks[index];
    size_t count = block->shard_counts[p->mesh.place[AXIS_SHARD]];
    void *sums = sums_at(p, p->state.grad, block->at);
    if (shards != NULL) {
        shards->device_lane = lane; /* one lane after the other has the groups */
        ERR_TRY(comm_reduce_scatter_floats(shards, sums_at(p, p->accumulators, block->fast_at),
                                           sums, block->shard_counts, sums_bytes(p, 1)));
    }
    if (copies == NULL)
        return 0;
    copies->device_lane = lane;
    return comm_all_reduce_floats(copies, sums, count, sums_bytes(p, 1));
}

/* The numbers of a block's sums on this rank. */
static size_t sum_count(const struct parallel *p, const struct block *block)
{
    return p->is_canonical ? block->piece_counts[my_owner(p)]
                           : sum_of(block->shard_counts, p->mesh.degree[AXIS_SHARD]);
}

static void *sum_at(const struct parallel *p, const struct block *block)
{
    return sums_at(p, p->accumulators, p->is_canonical ? block->piece_at : block->fast_at);
}

/* acc += the tied matrix's other sum. */
static void add_sum(struct parallel *p, void *acc, const void *other, size_t count)
{
    kernel_add(
        p->kernels, p->lane,
        &(struct kernel_add){.y = acc, .x = other, .count = count, .dtype = p->state.gradients});
}

/* C5, where embedding and output are on the two ends of a pipeline: both ranks add the other's sum,
 * which is the same sum on both. */
static int swap_tied(struct parallel *p, const struct block *block)
{
    struct comm *comm = p->mesh.of[GROUP_PP];
    uint32_t last = p->mesh.degree[AXIS_PP] - 1;
    uint32_t peer = p->mesh.place[AXIS_PP] == 0 ? last : 0;
    size_t bytes = sums_bytes(p, sum_count(p, block));
    void *other = memory_take(p->memory, "sum of the tied matrix", 0, bytes);
    int rc = 0;
    if (!memory_is_recording(p->memory)) {
        rc = comm_send(comm, peer, COMM_TAG_TIED, sum_at(p, block), bytes, &p->tied);
        if (rc == 0)
            rc = comm_receive(comm, peer, COMM_TAG_TIED, other, bytes);
        if (rc == 0)
            rc = comm_wait(comm, &p->tied);
        if (rc == 0)
            add_sum(p, sum_at(p, block), other, sum_count(p, block));
    }
    memory_give(p->memory, "sum of the tied matrix", 0);
    return rc;
}

/* The output's sum of a tied matrix to the embedding's. C5. */
static int add_tied(struct parallel *p)
{
    const struct block *in = &p->blocks[0], *out = &p->blocks[p->table->num_blocks];
    if (in->is_here && out->is_here && !memory_is_recording(p->memory))
        add_sum(p, sum_at(p, in), sum_at(p, out), sum_count(p, in));
    if (in->is_here != out->is_here)
        return swap_tied(p, in->is_here ? in : out);
    return 0;
}

int reduce_step(struct parallel *p)
{
    return is_tied(p) ? add_tied(p) : 0;
}

void reduce_sum_squares(struct parallel *p, struct kernel_exact_sum *sum,
                        const struct model_tensor *only)
{
    bool by_piece = p->is_canonical && mesh_group_size(&p->mesh, GROUP_COPIES) > 1;
    if (!by_piece && mesh_group_place(&p->mesh, GROUP_COPIES) > 0)
        return;       /* the first copy answers for the shard */
    size_t piece = 0; /* in the accumulators */
    for (uint32_t i = 0; i < p->state.num_slices; i++) {
        const struct state_slice *slice = &p->state.slices[i];
        uint64_t rows = slice->param.box.extent[0], width = slice->param.box.extent[1];
        const void *x = sums_at(p, p->state.grad, slice->param.at);
        if (by_piece) {
            rows = piece_of(p, slice->tensor, my_owner(p)).rows;
            x = sums_at(p, p->accumulators, piece);
            piece += aligned(rows * width);
        }
        if (rows > 0 && slice->is_counted && (only == NULL || only == slice->tensor))
            kernel_sum_squares(p->kernels, p->lane,
                               &(struct kernel_sum_squares){.sum = sum,
                                                            .x = x,
                                                            .rows = rows * slice->segments,
                                                            .width = width / slice->segments,
                                                            .dtype = p->state.gradients});
    }
}

size_t reduce_accumulator_count(const struct parallel *p)
{
    size_t count = p->is_canonical ? p->piece_count : p->fast_count;
    const struct block *output = &p->blocks[p->table->num_blocks];
    bool is_beside = is_tied(p) && p->blocks[0].is_here && output->is_here;
    return is_beside ? count + sum_count(p, output) : count;
}
