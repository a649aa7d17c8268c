/* rank_plan.h - a rank's operations and the places of its buffers: made by parallel_apply(), const
 * afterwards.
 *
 * blocks.c makes the layouts, programs.c the options of programs, parallel.c the rest. All other
 * files have a pointer to const. */
#ifndef HOLDFAST_TRAINER_EXCHANGE_RANK_PLAN_H
#define HOLDFAST_TRAINER_EXCHANGE_RANK_PLAN_H

#include "kernels/device.h"
#include "trainer/config/config.h"
#include "trainer/exchange/state.h"
#include "trainer/plan/layout.h"
#include "trainer/plan/mesh.h"
#include "trainer/plan/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIGN 32u /* elements: 64 bytes of bf16 */

/* A block of the model: its elements and bytes, and its places in buffers of the whole run. */
struct block {
    uint32_t first, num;  /* tensors */
    bool is_here;         /* on a stage of this rank */
    bool is_strided;      /* the model reads some tensor by blocks of columns */
    size_t full_count;    /* elements of its whole tensors, as tp cuts them */
    size_t *shard_counts; /* per shard: packed elements */
    size_t held_bytes;    /* of its whole tensors, as gathered */
    size_t *shard_bytes;  /* per shard: packed, as sent */
    size_t compute_at;    /* of this rank's shard in compute_params */
    size_t *piece_counts; /* per owner */
    size_t at;            /* of this rank's shard in the state's buffers */
    size_t piece_at;      /* of this rank's piece in the accumulators */
    size_t *group_at;     /* per replica: its piece in the sums of a group of leaves, or NULL */
    size_t fast_at;       /* of the block in the fast accumulators */
};

struct rank_plan {
    const struct config *config;
    const struct model_table *table;
    struct kernels *kernels;
    struct device *device; /* `own_device` or the caller's */
    struct device *own_device;
    struct lane *lane; /* of compute */
    struct memory *memory;
    struct model *model;
    struct model_cut cut;
    struct mesh mesh;
    enum kernel_dtype dtype;
    bool is_canonical;
    struct leaves leaves;           /* of the longest step */
    struct block *blocks;           /* one more than the table has if the output is tied */
    struct box *boxes;              /* per tensor: layout_tp_box */
    size_t *full_at;                /* per tensor: its place in its block's whole tensors */
    size_t *held_at;                /* per tensor: the byte at which it is gathered */
    uint32_t *code_parts;           /* per tensor: model_code_parts, if codes are gathered */
    uint32_t *code_at;              /* per tensor: the place of its parts in `largest` */
    uint32_t num_codes;             /* parts of this rank's blocks */
    size_t compute_bytes;           /* of the copy of the parameters for the gather */
    size_t group_count;             /* floats of group_sums */
    size_t piece_count, fast_count; /* numbers of the accumulators, without those of a tied output
                                     * on the embedding's rank */
    struct program_options shape;   /* of the programs; num_leaves of the longest step */
    uint32_t *first_block;
    uint8_t *keep, *ends_bucket;
    uint32_t num_reads; /* leaves whose tokens are kept */
};

static inline size_t aligned(size_t count)
{
    return (count + ALIGN - 1) / ALIGN * ALIGN;
}

/* The part of a tensor that this rank's place of tensor parallel computes with. */
static inline const struct box *tp_box(const struct rank_plan *plan,
                                       const struct model_tensor *tensor)
{
    return &plan->boxes[tensor - plan->table->tensors];
}

/* The shard of owner o of the group of owners, and its number among the shard's copies. */
static inline struct part piece_of(const struct rank_plan *plan, const struct model_tensor *tensor,
                                   uint32_t owner)
{
    uint32_t cp = plan->mesh.degree[AXIS_CP], data = owner / cp,
             shards = plan->mesh.degree[AXIS_SHARD];
    return layout_piece(&plan->mesh, tp_box(plan, tensor), data % shards,
                        data / shards * cp + owner % cp);
}

static inline struct part shard_of(const struct rank_plan *plan, const struct model_tensor *tensor,
                                   uint32_t shard)
{
    return layout_shard(&plan->mesh, tp_box(plan, tensor), shard);
}

static inline uint64_t width_of(const struct rank_plan *plan, const struct model_tensor *tensor)
{
    return tp_box(plan, tensor)->extent[1];
}

static inline uint32_t num_data_ranks(const struct rank_plan *plan)
{
    return mesh_group_size(&plan->mesh, GROUP_DATA);
}

static inline uint32_t my_data_rank(const struct rank_plan *plan)
{
    return mesh_group_place(&plan->mesh, GROUP_DATA);
}

/* Rows of a leaf, on all ranks that share it. */
static inline size_t rows_of_leaf(const struct rank_plan *plan)
{
    return (size_t)plan->config->local_batch_size * (size_t)plan->config->seq_len;
}

/* True if the embedding is the output, too: the output is then a separate block after the last. */
static inline bool is_tied(const struct rank_plan *plan)
{
    return plan->table->shape.is_tied;
}

static inline uint32_t num_all_blocks(const struct rank_plan *plan)
{
    return plan->table->num_blocks + is_tied(plan);
}

/* True if each copy of a shard gets the sums of the whole shard, from pieces. */
static inline bool is_gathered_whole(const struct rank_plan *plan, const struct state *state)
{
    return plan->is_canonical && mesh_group_size(&plan->mesh, GROUP_COPIES) > 1 && !state->is_zero;
}

/* True if ranks add their sums of a step: the fast reduction. */
static inline bool sums_by_library(const struct rank_plan *plan)
{
    return !plan->is_canonical && mesh_group_size(&plan->mesh, GROUP_OWNERS) > 1;
}

static inline size_t sum_of(const size_t *counts, uint32_t num)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += counts[i];
    return sum;
}

/* The owner, within a replica, of the pieces of this rank's shard and cp place. */
static inline uint32_t owner_in(const struct rank_plan *plan, uint32_t replica)
{
    uint32_t all = mesh_group_size(&plan->mesh, GROUP_REPLICA);
    return replica * all + mesh_group_place(&plan->mesh, GROUP_REPLICA);
}

static inline bool has_groups(const struct rank_plan *plan)
{
    return plan->leaves.groups > 1;
}

static inline bool has_codes(const struct rank_plan *plan)
{
    return plan->shape.encodes;
}

/* Ranks of this run on a machine; 0: the launcher does not say. */
uint32_t ranks_said_on_machine(const struct rank_plan *plan);

/* ---- while the plan is made ---- */

/* Sets the options of programs and what layers keep. keep: [L] enum model_keep, copied; NULL: as
 * the settings say. ERR_INVALID. */
int programs_plan(struct rank_plan *plan, const struct state *state, const uint8_t *keep);
/* Places of blocks, slices, codes and pieces on this rank. After mesh, cut and shape. ERR_MEMORY.
 */
int blocks_lay_out(struct rank_plan *plan, struct state *state);
/* Allocates zeroed memory that host and lanes share; `out`: a pointer of any type. */
int pinned_new(const struct rank_plan *plan, void *out, size_t bytes);
/* Bytes of a whole tensor as gathered, and of one packed shard of it. */
size_t codes_held_bytes(const struct rank_plan *plan, uint32_t tensor);
size_t codes_packed_bytes(const struct rank_plan *plan, uint32_t tensor, struct part shard);

#endif
