/* private.h - what the files that spread a model over ranks share: parallel.c (the recipe),
 * gather.c (parameters), reduce.c (gradients), and in run/ execute.c (the program), step.c and
 * evaluate.c. */
#ifndef HOLDFAST_TRAINER_PARALLEL_PRIVATE_H
#define HOLDFAST_TRAINER_PARALLEL_PRIVATE_H

#include "kernels/device.h"
#include "trainer/parallel/parallel.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIGN 32u        /* elements: 64 bytes of bf16 */
#define ROUND_NUMBERS 3u /* that a rank brings to a round of an evaluation */

struct block {
    uint32_t first, num;  /* tensors */
    bool is_here;         /* on a stage of this rank */
    bool is_strided;      /* the model wants some tensor laid out by blocks of columns */
    size_t full_count;    /* elements of its whole tensors, as tp cuts them */
    size_t *shard_counts; /* per shard: packed elements */
    size_t held_bytes;    /* of its whole tensors, as they are gathered */
    size_t *shard_bytes;  /* per shard: packed, as it is sent */
    size_t compute_at;    /* of this rank's shard in compute_params */
    size_t *piece_counts; /* per owner */
    size_t at;            /* of this rank's shard in the state's buffers */
    size_t piece_at;      /* of this rank's piece in the accumulators */
    size_t *group_at;     /* per replica: of its piece in the sums of a group of leaves, or NULL */
    size_t fast_at;       /* of the block in the fast accumulators */
    bool has_sum, has_group_sum; /* in this step, in this group: a leaf of its bucket was added */
    void *gathered;              /* whole tensors in the compute dtype */
    uint32_t take_index;
    char *packed;              /* shards as they are gathered */
    float *pieces;             /* of its copies, as they are gathered */
    float *groups;             /* sums of the replicas' groups, on their way */
    float *leaf, *send, *recv; /* its gradient of one leaf, and on the way to the owners */
};

/* The tokens of a leaf, [B, T] in the order of this rank's rows. */
struct tokens {
    int32_t *inputs, *targets, *starts;   /* starts: NULL without training.document_mask */
    int32_t *own, *own_or_other, *owners; /* model_localize; NULL without tensor parallel */
};
/* They are read on the host and copied whole. */
struct leaf_tokens {
    struct tokens host, device;
    struct mark copied; /* until then the host's must stay */
};

/* The numbers of a step, of which the device and the host have one each. */
struct step_numbers {
    struct kernel_exact_sum squares;
    float loss_scale;
};

struct parallel {
    const struct config *config;
    const struct model_table *table;
    struct kernels *kernels;
    struct device *device; /* `own_device` or the caller's */
    struct device *own_device;
    struct lane *lane;
    struct memory *memory;
    struct model *model;
    struct model_cut cut;
    struct mesh mesh;
    struct state state;
    enum kernel_dtype dtype;
    bool is_canonical;
    struct leaves leaves; /* of the step; num_leaves is S */
    uint32_t num_leaves;
    uint32_t num_micro_steps;
    uint64_t counted; /* tokens of the step that count; 0: all do */
    bool has_warned_of_masks;
    uint32_t leaf_values; /* that are gathered of each leaf: see gather_losses */
    int failure; /* of this rank alone, in this step: all learn of it at the end of the step */
    struct block *blocks;           /* one more than the table has where the output is tied */
    struct box *boxes;              /* per tensor: layout_tp_box */
    size_t *full_at;                /* likewise: in its block's whole tensors */
    size_t *held_at;                /* likewise: the byte where it is gathered */
    uint32_t *code_parts;           /* likewise: model_code_parts, where codes are gathered */
    uint32_t *code_at;              /* likewise: of its parts in `largest` */
    uint32_t num_codes;             /* parts of this rank's blocks */
    size_t group_count;             /* floats of group_sums */
    size_t piece_count, fast_count; /* numbers of the accumulators, without those of a tied output
                                     * beside its embedding */
    size_t *lists; /* four lists of as many byte counts or places as the largest group has ranks */
    size_t *lane_lists[NUM_LANES]; /* likewise, of each lane's thread; compute's are `lists` */
    double *losses, *all_losses;
    /* The step. */
    struct program_options shape; /* of the programs; num_leaves of the one at hand */
    uint32_t *first_block;
    uint8_t *keep, *ends_bucket;
    struct program *program, *evaluation;
    struct transfers *transfers; /* NULL: one stage */
    struct comm_request tied;    /* the sum of a tied matrix; not waited for where a call failed */
    struct comm **channels;      /* [NUM_WAYS][stages]; NULL: messages of the pipeline have tags */
    /* Buffers of the whole run. */
    void *accumulators;   /* of state.gradients */
    float *group_sums;    /* of the group at hand, for all replicas' pieces; NULL: one group */
    void *compute_params; /* copy of state.param as it is gathered, or state.param itself */
    size_t compute_bytes;
    uint32_t *largest;      /* [num_codes] of each part on all shards: bits of |x|; or NULL */
    uint32_t *host_largest; /* [shards + 1][num_codes] */
    bool are_codes_made;    /* of the parameters as they are */
    void *scratch;
    struct leaf_tokens *tokens; /* [num_reads] */
    uint32_t num_reads;
    struct tokens raw; /* host: in the order of the data, where rows have another */
    struct step_numbers *numbers, *host_numbers;
    struct side_lanes *sides; /* NULL: everything is compute's */
    struct op_observer observer;
    struct watch *watch; /* NULL: how far numbers reach is of no matter */
};

/* Of the step's program alone. */
static inline void observe(const struct parallel *p, const struct op *op, bool is_end)
{
    if (p->observer.at != NULL && op >= p->program->ops &&
        op < p->program->ops + p->program->num_ops)
        p->observer.at(p->observer.user, op, (uint32_t)(op - p->program->ops), is_end);
}

static inline size_t aligned(size_t count)
{
    return (count + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of a tensor, what this rank's place of tensor parallel computes with. */
static inline const struct box *tp_box(const struct parallel *p, const struct model_tensor *tensor)
{
    return &p->boxes[tensor - p->table->tensors];
}

/* Owner o of the group of owners: its shard, and which of the shard's copies it is. */
static inline struct part piece_of(const struct parallel *p, const struct model_tensor *tensor,
                                   uint32_t owner)
{
    uint32_t cp = p->mesh.degree[AXIS_CP], data = owner / cp, shards = p->mesh.degree[AXIS_SHARD];
    return layout_piece(&p->mesh, tp_box(p, tensor), data % shards,
                        data / shards * cp + owner % cp);
}

static inline struct part shard_of(const struct parallel *p, const struct model_tensor *tensor,
                                   uint32_t shard)
{
    return layout_shard(&p->mesh, tp_box(p, tensor), shard);
}

static inline uint64_t width_of(const struct parallel *p, const struct model_tensor *tensor)
{
    return tp_box(p, tensor)->extent[1];
}

/* Bytes of so many numbers of the sums of gradients. */
static inline size_t sums_bytes(const struct parallel *p, size_t count)
{
    return count * kernel_dtype_bytes(p->state.gradients);
}

static inline uint32_t num_data_ranks(const struct parallel *p)
{
    return mesh_group_size(&p->mesh, GROUP_DATA);
}

static inline uint32_t my_data_rank(const struct parallel *p)
{
    return mesh_group_place(&p->mesh, GROUP_DATA);
}

/* Whether the embedding is the output, too: then it is a block of its own behind the last. */
static inline bool is_tied(const struct parallel *p)
{
    return p->table->shape.is_tied;
}

static inline uint32_t num_all_blocks(const struct parallel *p)
{
    return p->table->num_blocks + is_tied(p);
}

/* Whether each copy of a shard gets the sums of all of it, from pieces. */
static inline bool is_gathered_whole(const struct parallel *p)
{
    return p->is_canonical && mesh_group_size(&p->mesh, GROUP_COPIES) > 1 && !p->state.is_zero;
}

/* Whether ranks add their sums of a step: the fast reduction. */
static inline bool sums_by_library(const struct parallel *p)
{
    return !p->is_canonical && mesh_group_size(&p->mesh, GROUP_OWNERS) > 1;
}

static inline size_t sum_of(const size_t *counts, uint32_t num)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += counts[i];
    return sum;
}

/* Leaf `micro_step` of a data rank: is there one in this step? */
static inline bool rank_has_leaf(const struct parallel *p, uint32_t data_rank, uint32_t micro_step)
{
    return leaves_at(&p->leaves, data_rank, micro_step) != LEAF_NONE;
}

/* The owner of that number of a replica that has the pieces of this rank's shard and cp place. */
static inline uint32_t owner_in(const struct parallel *p, uint32_t replica)
{
    uint32_t all = mesh_group_size(&p->mesh, GROUP_REPLICA);
    return replica * all + mesh_group_place(&p->mesh, GROUP_REPLICA);
}

static inline bool has_groups(const struct parallel *p)
{
    return p->leaves.groups > 1;
}

/* ---- parallel.c ---- */

/* Of the step at hand. */
void set_leaves(struct parallel *p, uint32_t num_leaves);
/* Ranks of this run on a machine; 0: the launcher does not say. */
uint32_t ranks_said_on_machine(const struct parallel *p);

/* ---- programs.c ---- */

/* What a step does in which order: the programs of a step and of an evaluation. ERR_INVALID. */
/* keep: [L] enum model_keep; NULL: as the settings say. Copied. Likewise of parallel_try, which is
 * parallel_apply but for that. */
int programs_make(struct parallel *p, const uint8_t *keep);
int parallel_try(struct parallel **out, const struct parallel_options *options,
                 const uint8_t *keep);
/* budget.c: what layers keep, by the bytes that a rank may take. ERR_INVALID: too few. */
int budget_choose(uint8_t *keep, const struct parallel_options *options);

/* ---- codes.c ---- */

static inline bool has_codes(const struct parallel *p)
{
    return p->shape.encodes;
}

/* How a tensor, or rows of it, are gathered: bytes of all of it; of a shard, packed; its shard to
 * where all are, of which the bytes packed are returned. */
size_t codes_held_bytes(const struct parallel *p, uint32_t tensor);
size_t codes_packed_bytes(const struct parallel *p, uint32_t tensor, struct part shard);
size_t codes_unpack(const struct parallel *p, struct lane *lane, uint32_t tensor, struct part shard,
                    void *held, const void *packed);
/* Codes of this rank's shard, where the parameters have changed. Collective in the group of shards;
 * in a plan, its buffers. */
int codes_make(struct parallel *p);
/* What is not coded, after a change. */
void codes_copy_others(struct parallel *p);

/* ---- blocks.c ---- */

/* Places of blocks, slices, codes and pieces on this rank, and the lists that calls use. Behind
 * mesh, cut and shape. ERR_MEMORY. */
int blocks_lay_out(struct parallel *p);

/* ---- gather.c ---- */

/* The parameters of a block for the model: places, the gather itself (on any thread), what it
 * needed alone; they are there until gather_drop. */
void gather_take(struct parallel *p, uint32_t block, bool is_second);
int gather_run(struct parallel *p, struct lane *lane, uint32_t block);
void gather_give(struct parallel *p, uint32_t block);
void gather_drop(struct parallel *p, uint32_t block);
void gather_pointers(const struct parallel *p, uint32_t block, const void **out_params);
/* A bucket's sums of the step, from the copies of this rank's shard that own pieces of it, or, in
 * the fast reduction, added over shards and copies: places, the gather itself (on any thread), the
 * end of the places. Collective in the group of copies. */
void collect_take(struct parallel *p, uint32_t first, uint32_t num);
int collect_run(struct parallel *p, struct lane *lane, const struct op *op);
void collect_give(struct parallel *p, uint32_t first, uint32_t num);
/* The parameters that each copy has updated, to all of them (ZeRO). Likewise. */
int gather_updated(struct parallel *p);
/* Rows `part` of a tensor between the model's layout of it and packed, row-major ones. */
enum rows_direction { ROWS_PACK, ROWS_UNPACK };
void gather_move_rows(const struct parallel *p, struct lane *lane, uint32_t tensor,
                      struct part part, void *full, void *packed, size_t element,
                      enum rows_direction direction);

/* ---- reduce.c ---- */

/* Sums are of this step from here on. Behind set_leaves. */
void reduce_begin(struct parallel *p);
/* Where the block's gradient of one leaf goes. */
void reduce_begin_block(struct parallel *p, uint32_t block, float **out_grads);
/* A leaf of a bucket from all ranks to its owners, and the fold: places, the exchange itself (on
 * any thread; `lane` is that thread's), the end of all places. Collective in the group of owners.
 */
void reduce_take(struct parallel *p, uint32_t first, uint32_t num);
int reduce_run(struct parallel *p, struct lane *lane, const struct op *op);
void reduce_give(struct parallel *p, uint32_t first, uint32_t num);
/* A bucket's sums of a group of leaves, the replicas' groups of a round in their order, to those of
 * all groups. Likewise; collective in the group of replicas. */
void join_take(struct parallel *p, uint32_t first, uint32_t num);
int join_run(struct parallel *p, struct lane *lane, const struct op *op);
void join_give(struct parallel *p, uint32_t first, uint32_t num);
/* Numbers of a rank's sums of a step, those of the tied output behind the others. */
size_t reduce_accumulator_count(const struct parallel *p);
/* The fast sums of a block, over its shards and their copies. Collective in both groups. */
int reduce_fast(struct parallel *p, struct lane *lane, uint32_t block);
/* The end of a step: both sums of a tied matrix. Collective. */
int reduce_step(struct parallel *p);
/* Sum of squares of what this rank alone answers for; NULL: of all tensors. */
void reduce_sum_squares(struct parallel *p, struct kernel_exact_sum *sum,
                        const struct model_tensor *only);

/* ---- pinned.c ---- */

/* Memory that host and lanes share, of zeros; `out`: a pointer of any type. */
int pinned_new(struct parallel *p, void *out, size_t bytes);
/* Of the plan: the tokens' places on the device. */
void pinned_take_tokens(struct parallel *p);
/* After the plan: all that the host has. The state starts as zeros. */
int pinned_take(struct parallel *p);
void pinned_free(struct parallel *p);

/* ---- parallel/execute.c ---- */

/* What a program is run with; the walk of a memory plan has no input. */
struct execution {
    const struct step_input *input;
    bool is_asked_to_stop;
    bool is_common; /* the error that ends it is that of all ranks: each ends by itself */
    double loss;    /* of an evaluation's leaf */
    const struct model_batch *batch; /* of an evaluation; NULL there: walk */
    float *logits;                   /* or NULL */
    int (*at_op)(struct parallel *p, struct execution *e, const struct op *op);
    const struct step_copies *copies; /* of a save that may go on; NULL: none does */
};
int execute_program(struct parallel *p, const struct program *program, struct execution *e);
/* Threads for the lanes beside compute, where the program has any and the communicators allow it.
 * ERR_BUSY, ERR_MEMORY. Closing waits for what is on them. */
int side_lanes_open(struct parallel *p);
void side_lanes_close(struct parallel *p);
int transfers_new(struct parallel *p);
void transfers_free(struct parallel *p);
void transfers_take(struct parallel *p); /* their buffers, which live for the whole run */

/* ---- parallel/watch.c: p->watch NULL is none ---- */

int watch_open(struct parallel *p);
void watch_close(struct watch *watch);
void watch_step(struct parallel *p, int64_t step); /* which begins */
/* Around an operation of a program. */
void watch_begin(struct parallel *p, const struct program *program, const struct op *op);
int watch_end(struct parallel *p, const struct op *op);
/* Behind all leaves of the step: has a rank seen what ends the run? Then the code of the one that
 * saw it first, which has the last error. Collective. */
int watch_agree(struct parallel *p, int64_t step, bool *out_is_broken);

/* ---- parallel/channels.c ---- */

enum direction { WAY_DOWN, WAY_UP, NUM_WAYS };
/* Behind mesh_split(). Collective. */
int channels_open(struct parallel *p);
void channels_close(struct parallel *p);
/* Over the boundary in front of stage `boundary`, and the other rank in that communicator. */
struct comm *channel_to_send(const struct parallel *p, enum direction way, uint32_t boundary,
                             uint32_t *out_peer);
struct comm *channel_to_receive(const struct parallel *p, enum direction way, uint32_t boundary,
                                uint32_t *out_peer);

/* ---- parallel/step.c ---- */

/* Where the host may put the numbers of a leaf in the order of the data: the last that were copied
 * from there are copied. */
int step_begin_tokens(struct parallel *p, struct leaf_tokens *tokens, struct tokens *out_raw);
/* From there, in the order of this rank's rows, to the device. */
void step_send_tokens(struct parallel *p, const struct tokens *raw, struct leaf_tokens *tokens);
/* What the model gets of a leaf, where it was sent. */
struct model_batch step_batch(const struct parallel *p, const struct leaf_tokens *tokens);

#endif
