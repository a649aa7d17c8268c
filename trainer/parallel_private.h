/* parallel_private.h - what parallel.c (layouts, parameters, a step) and reduce.c (gradients)
 * share.
 */
#ifndef HOLDFAST_TRAINER_PARALLEL_PRIVATE_H
#define HOLDFAST_TRAINER_PARALLEL_PRIVATE_H

#include "trainer/parallel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ALIGN 32u /* elements: 64 bytes of bf16 */

struct block {
    uint32_t first, num;  /* tensors */
    size_t full_count;    /* elements of its whole tensors */
    size_t *shard_counts; /* per shard: packed elements */
    size_t *piece_counts; /* per data rank */
    size_t at;            /* of this rank's shard in the state's buffers */
    size_t piece_at;      /* of this rank's piece in the accumulators */
    size_t fast_at;       /* of the block in the fast accumulators */
    void *gathered;       /* whole tensors in the compute dtype */
    uint32_t take_index;
    bool is_held;
};

struct parallel {
    const struct config *config;
    const struct model_table *table;
    struct kernels *kernels;
    struct device *device;
    struct lane *lane;
    struct memory *memory;
    struct model *model;
    struct model_provider provider;
    struct mesh mesh;
    struct state state;
    enum kernel_dtype dtype;
    bool is_canonical, reshard;
    uint32_t num_leaves;      /* S */
    uint32_t num_micro_steps; /* ceil(S / d) */
    uint32_t micro_step;
    uint64_t counted;     /* tokens of the step that count; 0: all do */
    uint32_t leaf_values; /* that are gathered of each leaf: see gather_loss */
    int failure; /* of this rank alone, in this step: all learn of it at the end of the step */
    struct block *blocks;           /* one more than the table has where the output is tied */
    size_t *full_at;                /* per tensor: in its block's whole tensors */
    size_t piece_count, fast_count; /* floats of the accumulators, without the tied output's */
    size_t *lists;                  /* four lists of d byte counts or places */
    double *losses, *all_losses;
    /* Buffers of the whole run. */
    float *accumulators;
    void *compute_params; /* bf16 copy of state.param, or state.param itself */
    void *scratch;
    int32_t *inputs, *targets; /* [B, T] */
    int32_t *starts;           /* likewise; NULL without training.document_mask */
    float *leaf;               /* gradient of the current block */
};

static inline size_t aligned(size_t count)
{
    return (count + ALIGN - 1) / ALIGN * ALIGN;
}

struct part {
    uint64_t first, rows;
};

static inline struct part shard_of(const struct parallel *p, const struct model_tensor *tensor,
                                   uint32_t shard)
{
    struct part part;
    parallel_cut(&part.first, &part.rows, tensor->rows, p->mesh.shards, shard);
    return part;
}

/* The piece of data rank `rank`: its shard cut again among the replicas. */
static inline struct part piece_of(const struct parallel *p, const struct model_tensor *tensor,
                                   uint32_t rank)
{
    struct part shard = shard_of(p, tensor, rank % p->mesh.shards), piece;
    parallel_cut(&piece.first, &piece.rows, shard.rows, p->mesh.replicas, rank / p->mesh.shards);
    piece.first += shard.first;
    return piece;
}

static inline uint32_t num_ranks(const struct parallel *p)
{
    return p->mesh.replicas * p->mesh.shards;
}

static inline uint32_t my_rank(const struct parallel *p)
{
    return p->mesh.replica * p->mesh.shards + p->mesh.shard;
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

static inline size_t sum_of(const size_t *counts, uint32_t num)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += counts[i];
    return sum;
}

static inline bool rank_has_leaf(const struct parallel *p, uint32_t rank)
{
    return (uint64_t)p->micro_step * num_ranks(p) + rank < p->num_leaves;
}

/* ---- reduce.c ---- */

/* The provider's side of gradients: see model.h. */
int reduce_begin_block(void *user, float **out_grads, uint32_t index);
int reduce_end_block(void *user, uint32_t index);
/* Floats of a rank's sums of a step, those of the tied output behind the others. */
size_t reduce_accumulator_count(const struct parallel *p);
/* The end of a step: whole sums to the shards. Collective. */
int reduce_step(struct parallel *p);
/* Sum of squares of what this rank alone answers for. */
void reduce_sum_squares(struct parallel *p, struct kernel_exact_sum *sum);

#endif
