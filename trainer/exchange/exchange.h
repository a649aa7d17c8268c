/* exchange.h - what ranks exchange of parameters and gradients: gather.c, codes.c, reduce.c, and
 * the communicators between stages (channels.c).
 *
 * `take` takes places in memory and `give` returns them, on the walking thread; `run` between them
 * may be on any thread. */
#ifndef HOLDFAST_TRAINER_EXCHANGE_EXCHANGE_H
#define HOLDFAST_TRAINER_EXCHANGE_EXCHANGE_H

#include "trainer/exchange/rank_plan.h"

/* What a block has on its way. */
struct block_buffers {
    bool has_sum, has_group_sum; /* in this step, in this group: a leaf of its bucket was added */
    bool has_folded;             /* in this step: its products have, to the sums themselves */
    void *gathered;              /* whole tensors in the compute dtype */
    uint32_t take_index;
    char *packed;              /* shards as they are gathered */
    float *pieces;             /* of its copies, as they are gathered */
    float *groups;             /* sums of the replicas' groups, on their way */
    float *leaf, *send, *recv; /* its gradient of one leaf, and on the way to the owners */
};

struct exchange {
    const struct rank_plan *plan;
    struct state *state;
    struct leaves leaves;          /* of the step at hand; `num` is S */
    struct block_buffers *buffers; /* of plan->blocks */
    size_t *lists; /* four lists of as many byte counts or places as the largest group has ranks */
    size_t *lane_lists[NUM_LANES]; /* likewise, of each lane's thread; compute's are `lists` */
    bool has_folds;                /* sums in place get leaves from what makes them, in this step */
    struct comm_request tied; /* the sum of a tied matrix; not waited for where a call failed */
    struct comm **channels;   /* [NUM_WAYS][stages]; NULL: messages of the pipeline have tags */
    /* Buffers of the whole run. */
    void *accumulators;     /* of state.gradients */
    uint32_t *seen;         /* [rows] of the tied embedding: have a sum in this step; or NULL */
    float *group_sums;      /* of the group at hand, for all replicas' pieces; NULL: one group */
    void *compute_params;   /* copy of state.param as it is gathered, or state.param itself */
    uint32_t *largest;      /* [num_codes] of each part on all shards: bits of |x|; or NULL */
    uint32_t *host_largest; /* [shards + 1][num_codes] */
    bool are_codes_made;    /* of the parameters as they are */
    struct kernel_squares_piece *squares, *host_squares; /* [slices] lists of the norm */
};

static inline struct block_buffers *buffers_of(const struct exchange *e, const struct block *block)
{
    return &e->buffers[block - e->plan->blocks];
}

/* The group in which an operation makes a call of that kind; NULL: it makes none. */
static inline struct comm *comm_of(const struct exchange *e, const struct op *op,
                                   enum call_kind kind)
{
    const struct mesh *mesh = &e->plan->mesh;
    for (uint32_t i = 0; i < OP_CALLS_MAX; i++)
        if (op->calls[i].kind == kind)
            return op->calls[i].group == GROUP_WORLD ? mesh->world : mesh->of[op->calls[i].group];
    return NULL;
}

/* Bytes of so many numbers of the sums of gradients. */
static inline size_t sums_bytes(const struct state *state, size_t count)
{
    return count * kernel_dtype_bytes(state->gradients);
}

/* Leaf `micro_step` of a data rank: is there one in this step? */
static inline bool rank_has_leaf(const struct exchange *e, uint32_t data_rank, uint32_t micro_step)
{
    return leaves_at(&e->leaves, data_rank, micro_step) != LEAF_NONE;
}

/* ---- codes.c ---- */

/* A shard to where all are, of which the bytes packed are returned. */
size_t codes_unpack(const struct exchange *e, struct lane *lane, uint32_t tensor, struct part shard,
                    void *held, const void *packed);
/* Codes of this rank's shard, where the parameters have changed. Collective in the group of shards;
 * while a plan is recorded, its buffers. */
int codes_make(struct exchange *e, const struct op *op);
/* What is not coded, after a change. */
void codes_copy_others(struct exchange *e);

/* ---- gather.c ---- */

/* The parameters of a block for the model: places, the gather itself (on any thread), what it
 * needed alone; they are there until gather_drop. */
void gather_take(struct exchange *e, uint32_t block, bool is_second);
int gather_run(struct exchange *e, struct lane *lane, const struct op *op);
void gather_give(struct exchange *e, uint32_t block);
void gather_drop(struct exchange *e, uint32_t block);
void gather_pointers(const struct exchange *e, uint32_t block, const void **out_params);
/* A bucket's sums of the step, from the copies of this rank's shard that own pieces of it, or, in
 * the fast reduction, added over shards and copies: places, the gather itself (on any thread), the
 * end of the places. Collective in the group of copies. */
void collect_take(struct exchange *e, uint32_t first, uint32_t num);
int collect_run(struct exchange *e, struct lane *lane, const struct op *op);
void collect_give(struct exchange *e, uint32_t first, uint32_t num);
/* The parameters that each copy has updated, to all of them (ZeRO). Likewise. */
int gather_updated(struct exchange *e, const struct op *op);
/* Rows `part` of a tensor between the model's layout of it and packed, row-major ones. */
enum rows_direction { ROWS_PACK, ROWS_UNPACK };
void gather_move_rows(const struct exchange *e, struct lane *lane, uint32_t tensor,
                      struct part part, void *full, void *packed, size_t element,
                      enum rows_direction direction);

/* ---- reduce.c ---- */

/* Sums are of this step from here on. Behind set_leaves. */
void reduce_begin(struct exchange *e);
/* Where the block's gradient of one leaf goes: where one rank owns all, that of a product right to
 * the sum. */
void reduce_begin_block(struct exchange *e, uint32_t block, float **out_grads);
/* A leaf of a bucket from all ranks to its owners, and the fold: places, the exchange itself (on
 * any thread; `lane` is that thread's), the end of all places. Collective in the group of owners.
 */
void reduce_take(struct exchange *e, uint32_t first, uint32_t num);
int reduce_run(struct exchange *e, struct lane *lane, const struct op *op);
void reduce_give(struct exchange *e, uint32_t first, uint32_t num);
/* A bucket's sums of a group of leaves, the replicas' groups of a round in their order, to those of
 * all groups. Likewise; collective in the group of replicas. */
void join_take(struct exchange *e, uint32_t first, uint32_t num);
int join_run(struct exchange *e, struct lane *lane, const struct op *op);
void join_give(struct exchange *e, uint32_t first, uint32_t num);
/* Numbers of a rank's sums of a step; those of a tied matrix are there twice, one behind the
 * others.
 */
size_t reduce_accumulator_count(const struct exchange *e);
/* Rows of a tied embedding that are noted where they have a sum; 0: all have one. */
size_t reduce_seen_rows(const struct exchange *e);
/* The fast sums of a block, over its shards and their copies. Collective in both groups. */
int reduce_fast(struct exchange *e, struct lane *lane, const struct op *op, uint32_t block);
/* The end of a step: both sums of a tied matrix. Collective. */
int reduce_step(struct exchange *e, const struct op *op);
/* Adds the squares of the sums that this rank alone answers for; NULL: of all tensors. Its list is
 * the host's until the lane has it: the caller settles the lane before the next one. */
void reduce_sum_squares(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct model_tensor *only);
/* Likewise those of a block's gradient of one leaf, where it was just made: of this rank's part of
 * tensor parallel, and of context parallel a part of the sum alone. */
void reduce_sum_leaf(struct exchange *e, struct kernel_exact_sum *sum, uint32_t block);
/* Likewise those of a slice's weights. */
void reduce_sum_weights(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct state_slice *slice);

/* ---- channels.c ---- */

enum direction { WAY_DOWN, WAY_UP, NUM_WAYS };
/* Behind mesh_split(). Collective. */
int channels_open(struct exchange *e);
void channels_close(struct exchange *e);
/* Of a send or receive over the boundary in front of stage `boundary`, and its peer there. */
struct comm *channel_to_send(const struct exchange *e, const struct op *op, uint32_t boundary,
                             uint32_t *out_peer);
struct comm *channel_to_receive(const struct exchange *e, const struct op *op, uint32_t boundary,
                                uint32_t *out_peer);

#endif
