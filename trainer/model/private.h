/* private.h - declarations that the files of the model share: its struct, the buffers of a leaf,
 * products. */
#ifndef HOLDFAST_TRAINER_MODEL_PRIVATE_H
#define HOLDFAST_TRAINER_MODEL_PRIVATE_H

#include "trainer/comm/comm.h"
#include "trainer/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Order of a layer's tensors in its block. */
enum { WQ, WK, WV, WO, W1, W2, W3, ATTENTION_NORM, FFN_NORM, NUM_LAYER_TENSORS };
enum { NORM, OUTPUT, NUM_HEAD_TENSORS };

/* Float8 copies of the operands of products. Copies of x and w are those of one product at a time.
 * Copies of a gradient hold all of it, block by block, since two products read it: the gradient of
 * the rows and that of the weight. First the gradient of products by rows, then those of products
 * by columns in their order. */
enum operand {
    OPERAND_X,
    OPERAND_W,
    OPERAND_D_ROWS,
    OPERAND_D_FIRST,
    OPERAND_D_SECOND,
    OPERAND_D_THIRD,
    NUM_OPERANDS
};

/* ---- the buffers of a layer ---- */

/* Kept from a layer's forward for its backward, in the order of creation. */
enum saved {
    SAVED_ATTENTION_NORM, /* [rows, C] */
    SAVED_ATTENTION_RSTD, /* [own rows] */
    SAVED_Q,              /* [blocks][rows, H D / B], rotated */
    SAVED_K,              /* [kv blocks][rows, K D / kvB], rotated */
    SAVED_V,
    SAVED_ATTENTION, /* as Q */
    SAVED_LSE,       /* [blocks][chunks][B, H / B, positions of a chunk] */
    SAVED_X_MID,     /* [own rows, C] the residual stream at the second norm */
    SAVED_FFN_NORM,
    SAVED_FFN_RSTD,
    SAVED_GATE, /* [blocks][rows, F / B] */
    SAVED_UP,
    SAVED_SWIGLU,
    NUM_SAVED
};
/* Temporaries of a layer's backward. The second half needs those up to D_V, so they outlive the
 * first half if the halves are separate. */
enum temporary {
    TEMPORARY_D_SWIGLU,
    TEMPORARY_D_GATE,
    TEMPORARY_D_UP,
    TEMPORARY_D_NORM, /* [own rows, C], of either norm */
    TEMPORARY_D_ATTENTION,
    TEMPORARY_D_Q,
    TEMPORARY_D_K, /* [blocks][rows, .]: one per block */
    TEMPORARY_D_V,
    TEMPORARY_D_OUT,          /* [rows, C] gradient of the stream after the block, if copied */
    TEMPORARY_D_MID,          /* the same after the attention */
    TEMPORARY_D_NORM_WEIGHTS, /* float [2][C], if the halves are separate */
    NUM_TEMPORARIES
};

struct layer_buffers {
    void *x_in;  /* [own rows, C] the input residual stream */
    void *carry; /* to be added by the first norm, or NULL */
    void *saved[NUM_SAVED];
    void *temporary[NUM_TEMPORARIES];
};

/* One leaf under way. */
struct slot {
    struct model_batch batch;
    bool is_active;               /* compute; false in a walk */
    struct layer_buffers *layers; /* L + 1: the last is the head's and has only x_in and carry */
    void *head_norm, *logits;     /* [rows, C], [blocks][rows, V / B]; no logits with loss chunks */
    /* [rows], with loss chunks: from the head's backward to model_loss. */
    float *losses;
    bool has_losses;
    float *head_rstd; /* [own rows] */
    void *d_head_norm;
    float *d_norm_weight; /* [C] of the final norm, if the halves of the backward are separate */
    void *dx;             /* [own rows, C] gradient of the residual stream */
};

struct model {
    const struct model_table *table;
    struct memory *memory;
    struct kernels *kernels;
    struct lane *lane;
    struct model_shape s;
    struct model_cut cut;
    uint32_t batch, seq;
    uint32_t rows;                          /* of this cp place: B*T / cp */
    uint32_t block_rows;                    /* of one cp block: B*T / cp_blocks */
    uint32_t own_rows;                      /* of this tp place: rows / tp */
    uint32_t blocks, kv_blocks, row_blocks; /* this rank's: of tp, of keys and values, of cp */
    uint32_t q_width, kv_width, hidden;     /* this rank's columns: H D, K D, F */
    uint32_t d_kv_width;                    /* of dK: kv_width, or more if blocks share a head */
    /* This rank's rows of the vocabulary, padding included. */
    uint32_t vocab;
    enum kernel_dtype dtype;
    size_t element;  /* bytes of dtype */
    uint8_t *keep;   /* [L] */
    uint8_t *float8; /* [L] bits of the layer's products, or NULL */
    bool has_codes;  /* their weights are codes */
    enum kernel_float8 gradient_format;
    void *operands[NUM_OPERANDS];
    uint32_t *noted;            /* [slots][L][NUM_NOTED] on the device, or NULL (float8.c) */
    float *rope_cos, *rope_sin; /* [T, D/2] on the device */
    uint32_t num_slots;
    struct slot *slots;
    size_t *lists; /* of a collective: bytes and places of the tp or cp ranks; model_set_lists */
    bool folds;    /* model_fold */
    uint32_t *seen;
    struct model_notes *notes; /* NULL: no watch */
    struct {
        void *full[2]; /* keys, values: [kv blocks][B, T, K D / kvB] */
        void *passing[2];
    } ring[2]; /* of layers of even and of odd number */
};

/* ---- buffers (buffers.c) ---- */

void *model_take_bytes(struct model *m, const char *name, uint32_t index, size_t bytes);
void model_give(struct model *m, const char *name, uint32_t index);
/* Sets the lists of a collective in which each of `ranks` has as many bytes, one after the
 * other. */
void model_set_lists(struct model *m, uint32_t ranks, size_t bytes_each);
/* The index of a buffer of the slot. */
static inline uint32_t slot_index(const struct model *m, uint32_t slot, uint32_t layer)
{
    return slot * (m->s.layers + 1) + layer;
}
/* Takes the buffers `which` (bits of enum saved) of a layer, each once. */
void model_take_saved(struct model *m, uint32_t slot, uint32_t layer, uint32_t which);
void model_give_saved(struct model *m, uint32_t slot, uint32_t layer, uint32_t which);
uint32_t model_kept(const struct model *m, uint32_t layer); /* bits of enum saved */
void model_take_temporaries(struct model *m, uint32_t slot, uint32_t layer, uint32_t which);
void model_give_temporaries(struct model *m, uint32_t slot, uint32_t layer, uint32_t which);

static inline bool model_has_chunks(const struct model *m)
{
    return m->cut.loss_chunks > 1;
}

static inline char *at_byte(const void *base, size_t bytes)
{
    return (char *)(uintptr_t)base + bytes;
}

/* The products of the layer with float8 operands: bits of WQ to W3 (float8.c). */
uint8_t model_float8_of(const struct model_table *table, uint32_t layer, const char *others);
/* The largest |x| of a float8 operand, noted by the operation that makes the operand. Only if one
 * product reads the whole tensor; else, and for results of library kernels, it is computed. NULL:
 * not noted. */
enum noted {
    NOTED_ATTENTION_NORM,
    NOTED_FFN_NORM,
    NOTED_SWIGLU,
    NOTED_D_GATE,
    NOTED_D_UP,
    NUM_NOTED
};
uint32_t *model_noted(const struct model *m, uint32_t slot, uint32_t layer, enum noted which);
int model_take_noted(struct model *m);                  /* on the model's device, for all slots */
void model_clear_noted(struct model *m, uint32_t slot); /* call before a leaf */
/* Takes the float8 copies while a layer computes; does nothing if the layer has no such product.
 * Copies of gradients are taken for its backward only. */
void model_take_operands(struct model *m, uint32_t layer, bool is_backward);
void model_give_operands(struct model *m, uint32_t layer, bool is_backward);
/* Bytes of a copy of a block of rows. */
size_t model_operand_bytes(const struct model *m, uint32_t width);
static inline bool model_is_float8(const struct model *m, uint32_t layer, uint32_t tensor)
{
    return m->float8 != NULL && (m->float8[layer] >> tensor & 1) != 0;
}

/* ---- products over blocks (products.c); all compute, except in walks ---- */

/* out[blocks][rows, O / blocks] = x[rows, I] w^T, w[O, I], of each column. Here and below:
 * is_float8: only between model_take_operands and model_give_operands; largest: of x, or NULL
 * (model_noted). */
struct product_column {
    void *out;
    const void *w;
    uint32_t out_dim, blocks;
    bool is_float8;
};
void product_columns(struct model *m, const void *x, const uint32_t *largest, uint32_t in,
                     const struct product_column *columns, uint32_t num_columns);
/* own_out[own rows, C] = sum over all blocks of x[blocks][rows, I / blocks] w^T; w is laid out by
 * blocks. In a walk it takes its buffers, too. */
int product_rows(struct model *m, void *own_out, const void *x, const uint32_t *largest,
                 const void *w, uint32_t in, bool is_float8, bool is_active);
/* dx[blocks][rows, I / blocks] = dout[rows, C] w, of a product by rows. */
void product_rows_input(struct model *m, void *dx, const void *dout, const void *w, uint32_t in,
                        bool is_float8);
/* own_dx[own rows, C] = sum over all blocks and terms of dout w, of products by columns. */
struct product_term {
    const void *dout; /* [m->blocks][rows, out_dim / m->blocks] */
    const void *w;    /* [w_blocks] */
    uint32_t out_dim, w_blocks;
    bool is_float8;
    const uint32_t *largest; /* of dout */
};
int product_columns_input(struct model *m, void *own_dx, const struct product_term *terms,
                          uint32_t num_terms, bool is_active);
/* Of each of `num` products by columns of the same x, or of one product:
 * dw[w_blocks][O, I] = sum over cp blocks and over the blocks that share a part of w, of dout^T x.
 * A cut side has blocks, a whole side has none. `sharers`: tp ranks that hold the same part. */
struct product_weight {
    /* Names of the buffers of partial results, all of this size; shared_name: if w_blocks are fewer
     * than the model's. */
    const char *name, *shared_name;
    float *dw;
    const void *dout, *x;
    const uint32_t *largest_dout, *largest_x;
    uint32_t out_dim, in; /* of one block */
    bool dout_is_cut, x_is_cut, is_float8;
    enum operand dout_operand; /* in float8; was_read: the gradient of the rows has read it */
    bool dout_was_read;
    bool x_was_read; /* in float8: the previous product has read it */
    uint32_t w_blocks, sharers;
};
int product_weights(struct model *m, const struct product_weight *a, uint32_t num, bool is_active);
static inline int product_weight(struct model *m, const struct product_weight *a, bool is_active)
{
    return product_weights(m, a, 1, is_active);
}
/* full[rows, width] of all tp ranks' own rows; with tp = 1 they are the same buffer. */
int rows_gather(struct model *m, void *full, const void *own, size_t row_bytes);

/* Row block p: adds partial[block_rows, C] of all tp ranks and rounds it into the own rows. */
int rows_reduce(struct model *m, void *own_out, uint32_t p, float *partial, bool is_active);

/* ---- norms of own rows (norms.c) ---- */

/* dx += gradient through a norm; dweight[C] summed over all tp blocks of rows, then over this
 * rank's cp blocks. */
struct norm_gradient {
    void *dx;
    float *dweight;
    const void *dout, *x, *weight;
    const float *rstd;
};
int norm_backward(struct model *m, const struct norm_gradient *args, bool is_active);
/* out[rows, C] = norm(x + residual), gathered; x and rstd are of the own rows. largest: of out, or
 * NULL. */
int norm_forward(struct model *m, void *out, uint32_t *largest, float *rstd, void *x,
                 const void *residual, const void *weight, bool is_active);

/* ---- sums of parts (products.c) ---- */

/* Adds parts in a tree as they come. Part i is written to slot[number of ones in i], and added to
 * its left neighbour when that sub-tree is complete. slot[0] gets the sum. */
#define TREE_DEPTH_MAX 10u /* tp_blocks and cp_blocks are at most 2^10 */
struct tree {
    float *slot[TREE_DEPTH_MAX + 1];
    size_t count;
};
/* `sum` is slot 0; slots from index 1 on are taken under `name`. */
struct tree tree_take(struct model *m, const char *name, float *sum, size_t count, uint32_t parts);
void tree_give(struct model *m, const char *name, uint32_t parts);
float *tree_at(const struct tree *tree, uint32_t index);
/* Call after part `index` is written. */
void tree_add(struct model *m, const struct tree *tree, uint32_t index);
/* parts[0] = the sum of `num` parts, `stride` floats apart, as a balanced binary tree. */
void tree_in_place(struct model *m, float *parts, uint32_t num, size_t stride, size_t count);

/* ---- sequences that are cut, cp_blocks > 1 (context.c) ---- */

/* full[blocks][B, T, width] in the order of the sequences, from own[blocks][rows, width] of all cp
 * ranks. */
struct context_width {
    const char *name; /* of the buffer of received data, always of this size */
    uint32_t blocks, width;
    enum kernel_dtype dtype;
};
int context_gather(struct model *m, void *full, const void *own, const struct context_width *of,
                   bool is_active);
/* A matrix in two orders: `full` [blocks][B, T, width], `by_rank` [cp][blocks][rows, width]. */
struct context_rows {
    struct lane *lane; /* the lane that moves them */
    void *full, *by_rank;
    uint32_t blocks, width;
    enum kernel_dtype dtype;
};
void context_move_rows(const struct model *m, const struct context_rows *rows, bool to_full);
/* Keys and values [kv blocks][B, T, K D / kvB] of a layer in the order of the sequences, from all
 * cp ranks: gathered by this call, or from a ring. */
int context_take_keys(struct model *m, const struct slot *s, uint32_t layer, void *out[2]);
void context_give_keys(struct model *m, uint32_t layer);
/* own[0], own[1] [rows, width] = the sum over the cp ranks of their partial[2][B, T, width]. */
int context_reduce(struct model *m, void *const own[2], float *partial, uint32_t width,
                   bool is_active);

/* ---- attention.c, heads.c ---- */

/* Matrices of the attention, all [blocks][rows, width of a block]. */
enum attention_part {
    PART_Q,
    PART_OUT,
    PART_LSE,
    PART_D_OUT,
    PART_D_Q,
    PART_D_K,
    PART_D_V,
    NUM_PARTS
};
/* The view of a rank: its own rows with all its blocks of heads, or the rows of all cp ranks with
 * its share of the blocks. */
struct attention_view {
    uint32_t first_place, places; /* of context parallel: the ranks whose rows it has */
    uint32_t first_block, blocks; /* of heads, of this rank's m->blocks */
    const int32_t *starts;        /* [places][rows], or NULL */
    void *part[NUM_PARTS];        /* [places][blocks][rows, width] */
    void *key, *value;            /* [kv blocks of these blocks][B, T, K D / kvB] */
};
void attention_parts(const struct slot *s, uint32_t layer, void *part[NUM_PARTS]);
size_t attention_row_bytes(const struct model *m, enum attention_part part); /* of one block */

/* True if context ranks share the heads: they send each other matrices and results. */
bool model_shares_heads(const struct model *m);
int heads_take(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
               struct attention_view *out);
int heads_give(struct model *m, const struct slot *s, uint32_t layer, bool is_backward,
               const struct attention_view *view);
/* Stores the gradients of keys and values of block b of the view: sum[2][B, T, width], of all
 * rows. */
void heads_put_key_gradients(struct model *m, const struct attention_view *view, uint32_t b,
                             float *sum, uint32_t width, bool is_active);

void attention_rotate(struct model *m, const struct slot *slot, void *x, uint32_t blocks,
                      uint32_t heads, bool inverse);
/* is_again: keys and values from a ring stay for the backward. */
int attention_forward(struct model *m, uint32_t slot, uint32_t layer, uint32_t wanted,
                      bool is_again);
int attention_backward(struct model *m, uint32_t slot, uint32_t layer);

/* ---- range of numbers, for watches (notes.c) ---- */

/* Call each while its buffers hold the numbers. dw NULL: this half makes no weights' gradients. */
void model_note_keys(struct model *m, uint32_t slot, uint32_t layer, const void *const *w);
void model_note_attention(struct model *m, uint32_t slot, uint32_t layer, const void *const *w);
void model_note_feed_forward(struct model *m, uint32_t slot, uint32_t layer, const void *const *w);
void model_note_down(struct model *m, uint32_t slot, uint32_t layer, const void *const *w,
                     const void *out);
void model_note_feed_forward_backward(struct model *m, uint32_t slot, uint32_t layer,
                                      const void *d_out, float *const *dw);
void model_note_attention_backward(struct model *m, uint32_t slot, uint32_t layer,
                                   const void *d_mid, float *const *dw);
void model_note_norm_backward(struct model *m, uint32_t slot, uint32_t layer, bool is_attention,
                              float *const *dw);
void model_note_weights(struct model *m, uint32_t slot, uint32_t layer, float *const *dw);
void model_note_embedding(struct model *m, uint32_t slot, const void *const *w, const void *out);
void model_note_embedding_backward(struct model *m, uint32_t slot, float *const *dw);
void model_note_head(struct model *m, uint32_t slot, const void *const *w);
void model_note_loss(struct model *m, uint32_t slot);
void model_note_output_backward(struct model *m, uint32_t slot, uint32_t halves, const float *dw);
void model_note_head_norm_backward(struct model *m, uint32_t slot, uint32_t halves,
                                   const float *dw);

/* ---- layer.c, ends.c, loss.c ---- */

/* Queries, keys and values, if keys and values go around a ring; else layer_forward computes
 * them. */
int layer_keys(struct model *m, uint32_t slot, uint32_t layer, bool is_again, const void *const *w);
int layer_forward(struct model *m, uint32_t slot, uint32_t layer, const void *const *w);
int layer_recompute(struct model *m, uint32_t slot, uint32_t layer, const void *const *w);
int layer_backward(struct model *m, uint32_t slot, uint32_t layer, uint32_t halves,
                   const void *const *w, float *const *dw);
int embedding_forward(struct model *m, uint32_t slot, const void *const *w);
int embedding_backward(struct model *m, uint32_t slot, float *const *dw);
int head_forward(struct model *m, uint32_t slot, const void *const *w);
/* All losses of the slot. Also their gradients, unless it is an evaluation (dw NULL). */
int losses_in_chunks(struct model *m, uint32_t slot, const void *w, float *dw, bool has_gradients);
int head_backward(struct model *m, uint32_t slot, uint32_t halves, const void *const *w,
                  float *const *dw);
int tied_backward(struct model *m, uint32_t slot, uint32_t halves, const void *const *w,
                  float *const *dw);

#endif
