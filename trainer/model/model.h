/* model.h - a Llama: the table of its tensors, initial weights, forward and backward, block by
 * block.
 *
 * The table names every tensor with its global shape; layouts, memory plan, saving and loading all
 * read it. Tensors are grouped in blocks, the unit in which parameters are gathered and gradients
 * are handed over: block 0 is the embedding, blocks 1..L are the layers, block L + 1 is the final
 * norm with the output projection. A tied model has one matrix for embedding and output. The output
 * is then a separate block, L + 2, with a separate gradient of each leaf.
 *
 * Blocks are closed: model_forward and model_backward of a block read and write its buffers in the
 * slot. Of other blocks they use only the residual stream. The program gives the order of calls and
 * the parameters (plan/program.h). A slot holds one leaf (micro-batch) under way: at most one leaf
 * per slot of the model.
 *
 * A slot without a batch is walked: the same buffers are taken and freed, nothing is computed or
 * sent. The memory plan is recorded so, and ranks without a leaf walk, too.
 *
 * Cut. Tensor parallel cuts every contraction over heads, the hidden width and the vocabulary in
 * tp_blocks parts, context parallel the tokens in cp_blocks: products.c has the order of sums. A
 * vocabulary that tp_blocks do not divide is padded: matrices get rows of zeros at the end, which
 * no token and no logit of the loss uses.
 *
 * Letters: B sequences, T positions, N = B*T rows, C dim, F hidden, H heads, K key/value heads, D
 * head width, V vocabulary, L layers. Activations and parameters are of the compute dtype,
 * gradients float. */
#ifndef HOLDFAST_TRAINER_MODEL_H
#define HOLDFAST_TRAINER_MODEL_H

#include "kernels/kernels.h"
#include "proto/layout/layout.h"
#include "proto/model/model_shape.h"

#include <stdbool.h>
#include <stdint.h>

#define MODEL_BLOCK_TENSORS_MAX 9u

/* How tensor parallel cuts a tensor: dimension 0 (columns of the product), the same by whole
 * key/value heads, dimension 1 (rows of the product), or not at all. */
enum model_role { MODEL_WHOLE, MODEL_COLUMNS, MODEL_KV_COLUMNS, MODEL_ROWS };

struct model_tensor {
    char name[64];
    uint32_t dims;        /* 1 or 2 */
    uint64_t rows, width; /* [rows, width]; width is 1 for a vector */
    uint32_t block;
    enum model_role role;
    uint32_t heads;  /* key/value heads, of MODEL_KV_COLUMNS */
    double init_std; /* 0: all ones */
    double init_cut; /* in units of init_std; 0: not cut */
};

struct model_table {
    struct model_shape shape;
    uint32_t num_tensors;
    uint32_t num_blocks;          /* without the block of a tied output */
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
/* The part of a layer's forward in it. */
double model_layer_flops(const struct model_table *table, uint32_t seq);

/* Initial values of a box of the tensor (two dimensions), by global element: see table.c. */
void model_init_box(float *out, const struct model_tensor *tensor, const struct box *box,
                    uint64_t seed);

struct comm;
struct memory;
struct model;

/* How the axes cut the model on this rank. tp_blocks and cp_blocks are those of the run, powers of
 * two that the degrees divide. Groups are NULL if the degree is 1, and in an estimate. */
struct model_cut {
    uint32_t tp_blocks, cp_blocks;
    uint32_t tp, cp;
    uint32_t tp_place, cp_place;
    struct comm *tp_group, *cp_group;
    /* A block's two chunks are neighbours, else one from the head and one from the tail. */
    bool is_in_order;
    bool is_ring;      /* keys and values go from rank to rank of cp, else one call gathers them */
    bool shares_heads; /* each rank of cp gets all rows of some heads, and sends the results back */
    /* The rows of a cp block go through output and loss in so many chunks, one after the other;
     * only one chunk's logits exist. 0 and 1: all at once. */
    uint32_t loss_chunks;
    bool is_loss_whole; /* each rank of tp computes the whole loss, else that of its rows */
};

/* Context parallel cuts each sequence in chunks (context.c). A rank's rows are chunk after chunk,
 * of each chunk sequence after sequence. These return the number of chunks of the rank at `place`,
 * their positions, and the first position of chunk `index`. */
uint32_t model_num_chunks(const struct model_cut *cut);
uint32_t model_chunk_length(const struct model_cut *cut, uint32_t seq);
uint32_t model_chunk_first(const struct model_cut *cut, uint32_t seq, uint32_t place,
                           uint32_t index);

/* The activations that a layer's forward keeps for its backward; the others are computed again. */
enum model_keep {
    MODEL_KEEP_ALL,
    MODEL_KEEP_PRODUCTS, /* norms and SwiGLU are computed again */
    MODEL_KEEP_NOTHING,  /* only the block's input is kept */
    NUM_MODEL_KEEPS
};

struct model_options {
    const struct model_table *table; /* must outlive the model */
    struct memory *memory;           /* must outlive the model */
    uint32_t batch, seq;
    enum kernel_dtype dtype;
    uint32_t num_slots;
    struct model_cut cut;
    const uint8_t *keep; /* [L] enum model_keep; NULL: everything is kept. Copied. */
    /* Parts of names, separated by commas, of products without float8 operands. The head has none,
     * nor has a product with a dimension that is no multiple of 16 (torchtitan's rules). NULL: no
     * product has float8 operands. */
    const char *not_float8;
    bool has_codes; /* weights of float8 products arrive as codes: model_code_parts */
    enum kernel_float8 gradient_format; /* of the gradients that float8 products read */
};

/* ERR_INVALID: the shape, the batch or the sequence does not fit the cut; the error has the
 * numbers. */
int model_cut_check(const struct model_options *options);
int model_new(struct model **out, const struct model_options *options);
void model_free(struct model *model);
/* Kernels, the lane and its device must outlive the model. ERR_MEMORY, or the lane's error. */
int model_set_kernels(struct model *model, struct kernels *kernels, struct lane *lane);
void model_kernel_shapes(const struct model *model, struct kernel_shapes *out);
void model_set_groups(struct model *model, struct comm *tp_group, struct comm *cp_group);

/* The range of the numbers that modules read and write, per tensor in the order of creation, from
 * one model_watch to the next. Settle the lane before you read them. With `samples` a tensor of
 * rows has an extent for each part of a sequence that it holds. */
#define MODEL_NOTES_MAX 64u        /* of one call */
#define MODEL_NO_SAMPLE UINT32_MAX /* a tensor that belongs to all sequences */
struct model_notes {
    struct kernel_extent *extents; /* on the device: [model_note_extents], or [MODEL_NOTES_MAX] */
    uint32_t *samples;             /* [model_note_extents] the sequence of an extent, or NULL */
    /* With `samples`, on the device: the sums of squares of each sequence's gradient of the
     * embedding's output [B], set by the embedding's backward, and the lists for them. */
    struct kernel_exact_sum *squares;
    struct kernel_squares_piece *pieces, *host_pieces; /* [model_note_parts]; the latter PINNED */
    uint32_t num, num_extents;
    bool has_squares;
    struct model_note {
        char module[64];     /* "layers.3.attention.wq" */
        const char *what;    /* a constant */
        uint32_t first, num; /* of its extents */
    } of[MODEL_NOTES_MAX];
};
/* The most parts of sequences that a tensor has, and the most extents of one call. */
uint32_t model_note_parts(const struct model *model);
uint32_t model_note_extents(const struct model *model);
/* Empties `notes` and records in it. NULL: nothing is noted or posted. */
void model_watch(struct model *model, struct model_notes *notes);

struct model_batch {
    const int32_t *inputs, *targets; /* [rows]; this and all that follows is device memory */
    /* [rows] the first position of each input's document; NULL: documents are not masked. */
    const int32_t *starts;
    /* Set by model_localize if tensor parallel cuts the vocabulary. */
    const int32_t *own, *own_or_other, *owners;
    const float *loss_scale; /* gradients are of loss_scale x (sum of the rows' losses) */
    float *losses;           /* PINNED [B, T] of the rows, in the order of their sequences */
    /* A NaN of any dtype, which becomes one gradient of the sequence's logits; NULL: none. */
    const uint32_t *broken;
    uint32_t broken_sequence;
};

/* On the host. own[rows]: the tokens as rows of this tp place's part of the vocabulary, 0 if
 * another place has the token. own_or_other[rows]: likewise, with one past the last row instead of
 * 0. owners[own rows]: the place of a row in the data that all places send for a block of rows
 * (embedding_forward). */
void model_localize(const struct model *model, const int32_t *tokens, int32_t *own,
                    int32_t *own_or_other, int32_t *owners);

/* Begins a leaf in the slot. batch NULL: the leaf is walked; else its memory must stay until the
 * leaf ends. */
void model_begin(struct model *model, uint32_t slot, const struct model_batch *batch);
bool model_is_active(const struct model *model, uint32_t slot);

/* w: the block's tensors in the compute dtype, cut by tp and laid out as model_view says; of a tied
 * model's head w[1] is the embedding. dw: the gradients, float, laid out in the same way. */
int model_forward(struct model *model, uint32_t slot, uint32_t block, const void *const *w);
/* The batch's losses, complete when the lane is settled; the logits become their gradient. In
 * chunks, the head's backward has computed the losses before. Without a backward this call does,
 * with w as in the head's forward. */
int model_loss(struct model *model, uint32_t slot, const void *const *w);
/* For keys and values around a ring: computes those of this rank's rows. model_forward and
 * model_recompute of the layer leave them out. `is_again`: for a recomputation. */
int model_keys(struct model *model, uint32_t slot, uint32_t block, bool is_again,
               const void *const *w);
/* Computes the activations that the layer did not keep from those that it kept. */
int model_recompute(struct model *model, uint32_t slot, uint32_t block, const void *const *w);
/* The halves of a backward: the gradient of the block's input, then those of its weights. Both at
 * once need fewer buffers. Only MODEL_WEIGHT uses dw, only MODEL_INPUT uses w. */
enum { MODEL_INPUT = 1, MODEL_WEIGHT = 2 };
int model_backward(struct model *model, uint32_t slot, uint32_t block, uint32_t halves,
                   const void *const *w, float *const *dw);
/* Bits of the block's tensors whose gradients one operation makes: products and the embedding. 0:
 * their gradients are sums of parts. model_fold: the next backward adds these gradients to the sums
 * in dw (kernel_fold) or not; it writes the others. With `seen` the embedding's are added row by
 * row (kernel_embedding_backward). */
uint32_t model_foldable(const struct model *model, uint32_t block);
void model_fold(struct model *model, bool folds, uint32_t *seen);
/* Frees what a forward of blocks [first, end) keeps, if no backward comes. */
void model_forget(struct model *model, uint32_t slot, uint32_t first, uint32_t end);
/* Copies the logits [T, V] of the slot's first sequence to the host, on a rank that has all of
 * it. */
int model_copy_logits(struct model *model, uint32_t slot, float *out_logits);

/* The residual stream before a block, as sent from stage to stage, and its gradient. model_take_*
 * takes the buffers; the backward and model_give_gradient free them. */
size_t model_stream_bytes(const struct model *model);
void *model_take_stream(struct model *model, uint32_t slot, uint32_t block);
void *model_stream(const struct model *model, uint32_t slot, uint32_t block);
void model_give_stream(struct model *model, uint32_t slot, uint32_t block);
void *model_take_gradient(struct model *model, uint32_t slot);
void *model_gradient(const struct model *model, uint32_t slot);
void model_give_gradient(struct model *model, uint32_t slot);
/* Call before the stream is sent: adds the part that the previous block left for the next norm. */
int model_close_stream(struct model *model, uint32_t slot, uint32_t block);

/* The ring of context parallel, for a layer's keys and values. Call it before model_forward, before
 * model_backward of the input, or before the recomputation of the keys. First take, then run on any
 * lane, then give, which frees only the rows in transit. The gathered keys and values stay until
 * they are used. Two consecutive layers may be under way. */
bool model_has_ring(const struct model *model);
void model_ring_take(struct model *model, uint32_t block);
int model_ring_run(const struct model *model, struct lane *lane, struct comm *comm, uint32_t slot,
                   uint32_t block);
void model_ring_give(struct model *model, uint32_t block);

/* A tensor of MODEL_ROWS is laid out as `blocks` dense parts of its columns, one after the other;
 * any other tensor is one dense part. */
uint32_t model_view_blocks(const struct model_cut *cut, const struct model_tensor *tensor);
/* The number of dense parts of a tensor that arrives as codes. A part is the operand of one
 * product, coded with its own largest value (kernel_coded_bytes). Parts are columns of a tensor of
 * MODEL_ROWS, else rows. 0: no float8 product reads the tensor. */
uint32_t model_code_parts(const struct model_table *table, const struct model_cut *cut,
                          uint32_t tensor, const char *not_float8);

#define MODEL_PART_BYTES 128u
/* True if a part of the comma separated list is in the name. An empty part never matches. */
bool model_is_named(const char *name, const char *list);
/* True if a part of the list is in no tensor's name; `out` gets that part. */
bool model_names_nothing(char out[MODEL_PART_BYTES], const struct model_table *table,
                         const char *list);

#endif
