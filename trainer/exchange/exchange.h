/* exchange.h - exchanges of parameters and gradients between ranks: gather.c, codes.c, reduce.c,
 * and the communicators between stages (channels.c).
 *
 * `take` takes buffers and `give` frees them, on the walking thread; `run` between them may be on
 * any thread. */
#ifndef HOLDFAST_TRAINER_EXCHANGE_EXCHANGE_H
#define HOLDFAST_TRAINER_EXCHANGE_EXCHANGE_H

#include "trainer/exchange/rank_plan.h"

/* Buffers of a block that is exchanged. */
struct block_buffers {
    bool has_sum, has_group_sum; /* a leaf of its bucket was added in this step, in this group */
    bool has_folded;             /* in this step its products have folded into the sums directly */
    void *gathered;              /* whole tensors in the compute dtype */
    uint32_t take_index;
    char *packed;              /* shards before they are unpacked */
    float *pieces;             /* of its copies, before they are unpacked */
    float *groups;             /* sums of the replicas' groups, in transit */
    float *leaf, *send, *recv; /* its gradient of one leaf, and in transit to the owners */
};

struct exchange {
    const struct rank_plan *plan;
    struct state *state;
    struct leaves leaves;          /* of the current step; `num` is S */
    struct block_buffers *buffers; /* of plan->blocks */
    size_t *lists; /* four lists of byte counts or places, each as long as the largest group */
    size_t *lane_lists[NUM_LANES]; /* likewise, per thread of a lane; compute uses `lists` */
    bool has_folds;                /* in this step operations add leaves to sums in place */
    struct comm_request tied; /* the sum of a tied matrix; not waited for after a failed call */
    struct comm **channels;   /* [NUM_WAYS][stages]; NULL: the pipeline's messages have tags */
    /* Buffers of the whole run. */
    void *accumulators;   /* of state.gradients */
    uint32_t *seen;       /* [rows] of the tied embedding that have a sum in this step; or NULL */
    float *group_sums;    /* of the current group, for all replicas' pieces; NULL: one group */
    void *compute_params; /* copy of state.param for the gather, or state.param itself */
    /* [num_codes] largest value of each part on all shards: bits of |x|; or NULL. */
    uint32_t *largest;
    uint32_t *host_largest;                              /* [shards + 1][num_codes] */
    bool are_codes_made;                                 /* codes of the current parameters exist */
    struct kernel_squares_piece *squares, *host_squares; /* [slices] lists of the norm */
};

static inline struct block_buffers *buffers_of(const struct exchange *e, const struct block *block)
{
    return &e->buffers[block - e->plan->blocks];
}

/* The group in which an operation makes a call of that kind; NULL: there is no such call. */
static inline struct comm *comm_of(const struct exchange *e, const struct op *op,
                                   enum call_kind kind)
{
    const struct mesh *mesh = &e->plan->mesh;
    for (uint32_t i = 0; i < OP_CALLS_MAX; i++)
        if (op->calls[i].kind == kind)
            return op->calls[i].group == GROUP_WORLD ? mesh->world : mesh->of[op->calls[i].group];
    return NULL;
}

/* Bytes of `count` numbers of the sums of gradients. */
static inline size_t sums_bytes(const struct state *state, size_t count)
{
    return count * kernel_dtype_bytes(state->gradients);
}

/* True if a data rank has a leaf in this micro-step. */
static inline bool rank_has_leaf(const struct exchange *e, uint32_t data_rank, uint32_t micro_step)
{
    return leaves_at(&e->leaves, data_rank, micro_step) != LEAF_NONE;
}

/* ---- codes.c ---- */

/* Unpacks a shard to the tensor's place; returns the number of packed bytes. */
size_t codes_unpack(const struct exchange *e, struct lane *lane, uint32_t tensor, struct part shard,
                    void *held, const void *packed);
/* Makes codes of this rank's shard, if the parameters have changed. Collective in the group of
 * shards. While a plan is recorded it only takes buffers. */
int codes_make(struct exchange *e, const struct op *op);
/* Call after parameters have changed: copies those that are not coded. */
void codes_copy_others(struct exchange *e);

/* ---- gather.c ---- */

/* Gathers the parameters of a block for the model: buffers, the gather itself (on any thread), and
 * the end of temporary buffers. The parameters stay until gather_drop. */
void gather_take(struct exchange *e, uint32_t block, bool is_second);
int gather_run(struct exchange *e, struct lane *lane, const struct op *op);
void gather_give(struct exchange *e, uint32_t block);
void gather_drop(struct exchange *e, uint32_t block);
void gather_pointers(const struct exchange *e, uint32_t block, const void **out_params);
/* Gathers a bucket's sums of the step from the copies of this rank's shard that own pieces of it.
 * In the fast reduction it adds them over shards and copies. Buffers, the call itself (on any
 * thread), the end of the buffers. Collective in the group of copies. */
void collect_take(struct exchange *e, uint32_t first, uint32_t num);
int collect_run(struct exchange *e, struct lane *lane, const struct op *op);
void collect_give(struct exchange *e, uint32_t first, uint32_t num);
/* Sends the parameters that each copy has updated to all copies (ZeRO). Likewise. */
int gather_updated(struct exchange *e, const struct op *op);
/* Moves rows `part` of a tensor between the model's layout and packed, row-major rows. */
enum rows_direction { ROWS_PACK, ROWS_UNPACK };
void gather_move_rows(const struct exchange *e, struct lane *lane, uint32_t tensor,
                      struct part part, void *full, void *packed, size_t element,
                      enum rows_direction direction);

/* ---- reduce.c ---- */

/* Call after set_leaves: sums belong to this step from here on. */
void reduce_begin(struct exchange *e);
/* Sets the output of the block's gradient of one leaf. If one rank owns all sums, a product writes
 * into the sum. */
void reduce_begin_block(struct exchange *e, uint32_t block, float **out_grads);
/* Sends a leaf of a bucket from all ranks to its owners and folds it: buffers, the exchange itself
 * (on any thread; `lane` is that thread's), the end of all buffers. Collective in the group of
 * owners. */
void reduce_take(struct exchange *e, uint32_t first, uint32_t num);
int reduce_run(struct exchange *e, struct lane *lane, const struct op *op);
void reduce_give(struct exchange *e, uint32_t first, uint32_t num);
/* Adds a bucket's sums of a group of leaves to those of all groups, the replicas' groups of a round
 * in their order. Likewise; collective in the group of replicas. */
void join_take(struct exchange *e, uint32_t first, uint32_t num);
int join_run(struct exchange *e, struct lane *lane, const struct op *op);
void join_give(struct exchange *e, uint32_t first, uint32_t num);
/* The number of a rank's accumulators in a step. Those of a tied matrix exist twice, one after the
 * other. */
size_t reduce_accumulator_count(const struct exchange *e);
/* Rows of a tied embedding that are marked when they have a sum; 0: all have one. */
size_t reduce_seen_rows(const struct exchange *e);
/* The fast sums of a block, over its shards and their copies. Collective in both groups. */
int reduce_fast(struct exchange *e, struct lane *lane, const struct op *op, uint32_t block);
/* Call when a step ends: adds both sums of a tied matrix. Collective. */
int reduce_step(struct exchange *e, const struct op *op);
/* Adds the squares of the sums that only this rank counts; NULL: of all tensors. The lane reads its
 * list on the host, so the caller settles the lane before the next call. */
void reduce_sum_squares(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct model_tensor *only);
/* The same for a slice's weights. */
void reduce_sum_weights(struct exchange *e, struct kernel_exact_sum *sum,
                        const struct state_slice *slice);

/* ---- channels.c ---- */

enum direction { WAY_DOWN, WAY_UP, NUM_WAYS };
/* Call after mesh_split(). Collective. */
int channels_open(struct exchange *e);
void channels_close(struct exchange *e);
/* For a send or receive over the boundary before stage `boundary`; sets the peer. */
struct comm *channel_to_send(const struct exchange *e, const struct op *op, uint32_t boundary,
                             uint32_t *out_peer);
struct comm *channel_to_receive(const struct exchange *e, const struct op *op, uint32_t boundary,
                                uint32_t *out_peer);

#endif
