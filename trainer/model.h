/* model.h - a Llama: the table of its tensors, initial weights, forward and backward of one leaf.
 *
 * The table names every tensor with its global shape; layouts, memory plan, saving and loading all
 * read it. Tensors are grouped in blocks, the unit in which parameters are gathered and gradients
 * are handed over: block 0 is the embedding, blocks 1..L are the layers, block L + 1 is the final
 * norm with the output projection.
 *
 * The model knows nothing of parallelism. It asks a provider for the parameters of a block and
 * gives it the block's gradients of one leaf (one micro-batch):
 *
 *     forward:   for each block  acquire -> compute -> release
 *
 *     backward:  for each block, last to first
 *                                acquire -> gradients_begin -> compute -> gradients_end -> release
 *
 * The embedding's backward needs no parameters and acquires none.
 *
 * A tied model has one matrix for embedding and output. As the output it is a block of its own, the
 * one behind the last (index num_blocks), acquired and handed over inside of the head's: its
 * gradient is a leaf of its own, which the provider sums apart and adds to the embedding's sum.
 *
 * A walk without a batch makes the same calls in the same order and computes nothing: ranks that
 * have no leaf take part in the provider's collectives that way, and the memory plan is recorded
 * so.
 *
 * Letters: B sequences, T positions, N = B*T rows, C dim, F hidden, H heads, K key/value heads, D
 * head width, V vocabulary, L layers. Activations and parameters are of the compute dtype,
 * gradients float. */
#ifndef HOLDFAST_TRAINER_MODEL_H
#define HOLDFAST_TRAINER_MODEL_H

#include "kernels/kernels.h"
#include "proto/model_shape.h"

#include <stdint.h>

#define MODEL_BLOCK_TENSORS_MAX 9u

struct model_tensor {
    char name[64];
    uint32_t dims;        /* 1 or 2 */
    uint64_t rows, width; /* [rows, width]; width is 1 for a vector */
    uint32_t block;
    double init_std; /* 0: all ones */
    double init_cut; /* in units of init_std; 0: not cut */
};

struct model_table {
    struct model_shape shape;
    uint32_t num_tensors;
    uint32_t num_blocks;          /* without the tied output's */
    struct model_tensor *tensors; /* in block order */
    uint32_t *first_tensor;       /* per block, and one more for the end */
};

int model_table_new(struct model_table **out, const struct model_shape *shape);
void model_table_free(struct model_table *table);
/* The tensors of a block: [*out_first, *out_first + the result). */
uint32_t model_block_tensors(const struct model_table *table, uint32_t block, uint32_t *out_first);
/* torchtitan's count: 6 x (parameters of products) + 12 x L x H x D x T (full attention).
 */
double model_flops_per_token(const struct model_table *table, uint32_t seq);

/* Initial values of rows [first_row, first_row + rows), by global element: see model.c. */
void model_init_rows(float *out, const struct model_tensor *tensor, uint64_t first_row,
                     uint64_t rows, uint64_t seed);

enum model_pass { MODEL_FORWARD, MODEL_BACKWARD };

struct model_provider {
    void *user;
    /* out_params[i]: tensor i of the block, whole, in the compute dtype; valid until release. */
    int (*acquire)(void *user, const void **out_params, uint32_t block, enum model_pass pass);
    int (*release)(void *user, uint32_t block, enum model_pass pass);
    /* out_grads[i]: where to write the gradient of tensor i, float, whole. */
    int (*gradients_begin)(void *user, float **out_grads, uint32_t block);
    int (*gradients_end)(void *user, uint32_t block);
};

struct memory;
struct model;

struct model_options {
    const struct model_table *table; /* must outlive the model */
    struct memory *memory;           /* likewise */
    uint32_t batch, seq;
    enum kernel_dtype dtype;
};

struct model_batch {
    const int32_t *inputs, *targets; /* [B, T] */
    const int32_t *starts;   /* [B, T] where each input's document begins; NULL: no matter */
    float loss_scale;        /* gradients are of loss_scale x (sum of the rows' losses) */
    double *sequence_losses; /* [B] sums of each sequence's rows, in row order; or NULL */
};

int model_new(struct model **out, const struct model_options *options);
void model_free(struct model *model);
/* After the memory plan is recorded; kernels must outlive the model. */
void model_set_kernels(struct model *model, struct kernels *kernels, struct lane *lane);
void model_kernel_shapes(const struct model *model, struct kernel_shapes *out);

/* Forward and backward of one leaf. *out_loss: sum of the rows' losses, in double, in row order.
 * batch NULL: the walk alone, *out_loss = 0. */
int model_leaf(struct model *model, const struct model_provider *provider,
               const struct model_batch *batch, double *out_loss);
/* Forward of one leaf and the sum of its rows' losses, as model_leaf has them; batch NULL: the
 * walk. */
int model_evaluate(struct model *model, const struct model_provider *provider,
                   const struct model_batch *batch, double *out_loss);
/* Forward alone; out_logits [T, V] of the first sequence. inputs [B, T] NULL: the walk alone. */
int model_logits(struct model *model, const struct model_provider *provider, const int32_t *inputs,
                 float *out_logits);

#endif
