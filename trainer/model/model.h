/* model.h - a Llama: the table of its tensors, initial weights, forward and backward, block by
 * block.
 *
 * The table names every tensor with its global shape; layouts, memory plan, saving and loading all
 * read it. Tensors are grouped in blocks, the unit in which parameters are gathered and gradients
 * are handed over: block 0 is the embedding, blocks 1..L are the layers, block L + 1 is the final
 * norm with the output projection. A tied model has one matrix for embedding and output. As the
 * output it is a block of its own, L + 2, whose gradient is a leaf of its own.
 *
 * Blocks are closed: model_forward and model_backward of a block read and write what the slot holds
 * and nothing of other blocks but the residual stream. Who calls them, in which order and with
 * which parameters is the program's business (plan/program.h). A slot is one leaf (micro-batch) on
 * its way: as many may be under way as the model has slots.
 *
 * A slot without a batch is walked: the same buffers are taken and given, nothing is computed and
 * nothing is sent. The memory plan is recorded so, and ranks without a leaf walk, too.
 *
 * Cut. Tensor parallel cuts every contraction over heads, the hidden width and the vocabulary in
 * tp_blocks parts, context parallel the tokens in cp_blocks: products.c has the order of sums. A
 * vocabulary that tp_blocks do not divide is filled up: matrices have rows of zeros behind it, and
 * no token, no logit of the loss is theirs.
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

/* What tensor parallel cuts of a tensor: dimension 0 (columns of the product), the same by whole
 * key/value heads, dimension 1 (rows of the product), nothing. */
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
/* Of that, a layer's forward. */
double model_layer_flops(const struct model_table *table, uint32_t seq);

/* Initial values of a box of the tensor (two dimensions), by global element: see table.c. */
void model_init_box(float *out, const struct model_tensor *tensor, const struct box *box,
                    uint64_t seed);

struct comm;
struct memory;
struct model;

/* How the axes cut the model on this rank. tp_blocks and cp_blocks are the run's, powers of two;
 * the degrees divide them. Groups are NULL where the degree is 1 and in an estimate. */
struct model_cut {
    uint32_t tp_blocks, cp_blocks;
    uint32_t tp, cp;
    uint32_t tp_place, cp_place;
    struct comm *tp_group, *cp_group;
    bool is_in_order; /* a block's two chunks are neighbours, else one of the head, one of the tail
                       */
    bool is_ring; /* keys and values go from rank to rank of cp, else they are gathered at once */
    bool shares_heads; /* or all rows of some heads come to each rank of cp, and the results back */
    /* The rows of a cp block go through the output and the loss in so many parts, one after the
     * other, and logits of one alone exist; 0 and 1: all at once. */
    uint32_t loss_chunks;
    bool is_loss_whole; /* on each rank of tp, which else computes that of its rows alone */
};

/* Context parallel cuts each sequence in chunks (context.c). A rank's rows are chunk after chunk,
 * of each chunk sequence after sequence. How many chunks the rank at `place` has, their positions,
 * and the first position of chunk `index`. */
uint32_t model_num_chunks(const struct model_cut *cut);
uint32_t model_chunk_length(const struct model_cut *cut, uint32_t seq);
uint32_t model_chunk_first(const struct model_cut *cut, uint32_t seq, uint32_t place,
                           uint32_t index);

/* What a layer's forward keeps for its backward; the rest is computed again. */
enum model_keep {
    MODEL_KEEP_ALL,
    MODEL_KEEP_PRODUCTS, /* norms and SwiGLU are computed again */
    MODEL_KEEP_NOTHING,  /* but the block's input */
    NUM_MODEL_KEEPS
};

struct model_options {
    const struct model_table *table; /* must outlive the model */
    struct memory *memory;           /* likewise */
    uint32_t batch, seq;
    enum kernel_dtype dtype;
    uint32_t num_slots;
    struct model_cut cut;
    const uint8_t *keep; /* [L] enum model_keep; NULL: all is kept. Copied. */
    /* Parts of names, separated by commas, of products that are not of float8 operands; the head's
     * never is, nor one of which a dimension is no multiple of 16 (torchtitan's rules). NULL: none
     * is. */
    const char *not_float8;
    bool has_codes; /* weights of float8 products come as codes: model_code_parts */
    enum kernel_float8 gradient_format; /* of the gradients that float8 products read */
};

/* ERR_INVALID with the sum: the shape, the batch or the sequence does not fit the cut. */
int model_cut_check(const struct model_options *options);
int model_new(struct model **out, const struct model_options *options);
void model_free(struct model *model);
/* Kernels, lane and its device must outlive the model. ERR_MEMORY, or the lane's error. */
int model_set_kernels(struct model *model, struct kernels *kernels, struct lane *lane);
void model_kernel_shapes(const struct model *model, struct kernel_shapes *out);
void model_set_groups(struct model *model, struct comm *tp_group, struct comm *cp_group);

/* How far the numbers reach that modules read and write, tensor by tensor in the order of their
 * making: of what is called from model_watch on, until the next. Read behind a settled lane. */
#define MODEL_NOTES_MAX 64u /* of a call */
struct model_notes {
    struct kernel_extent *extents; /* [MODEL_NOTES_MAX] of the device */
    uint32_t num;
    struct model_note {
        char module[64];  /* "layers.3.attention.wq" */
        const char *what; /* a constant */
    } of[MODEL_NOTES_MAX];
};
/* `notes` becomes empty; NULL: nothing is noted, nor posted. */
void model_watch(struct model *model, struct model_notes *notes);

struct model_batch {
    const int32_t *inputs, *targets; /* [rows], as all that follows memory of the device */
    const int32_t *starts; /* [rows] where each input's document begins; NULL: no matter */
    /* Where tensor parallel cuts the vocabulary: model_localize. */
    const int32_t *own, *own_or_other, *owners;
    const float *loss_scale; /* gradients are of loss_scale x (sum of the rows' losses) */
    float *losses;           /* PINNED [B, T] of the rows, in the order of their sequences */
};

/* Host. Of the rows' tokens: own[rows] as rows of this tp place's part of the vocabulary, 0 where
 * another has it; own_or_other[rows] with one past the last there; owners[own rows]: where in what
 * each place has sent for a block of rows (embedding_forward) a row lies. */
void model_localize(const struct model *model, const int32_t *tokens, int32_t *own,
                    int32_t *own_or_other, int32_t *owners);

/* A new leaf in the slot. batch NULL: it is walked; else what it points to stays until the leaf's
 * end. */
void model_begin(struct model *model, uint32_t slot, const struct model_batch *batch);
bool model_is_active(const struct model *model, uint32_t slot);

/* w: the block's tensors in the compute dtype, cut by tp and laid out as model_view says; of a tied
 * model's head w[1] is the embedding. dw: where the gradients go, float, laid out likewise. */
int model_forward(struct model *model, uint32_t slot, uint32_t block, const void *const *w);
/* The batch's losses, which are there when the lane is settled; the logits become their gradient.
 * In chunks the head's backward has computed the losses before, or where none comes this does, with
 * w as of the head's forward. */
int model_loss(struct model *model, uint32_t slot, const void *const *w);
/* Where keys and values go around a ring: those of this rank's rows, which model_forward and
 * model_recompute of the layer leave out; `is_again`: for a recomputation. */
int model_keys(struct model *model, uint32_t slot, uint32_t block, bool is_again,
               const void *const *w);
/* What the layer did not keep, from what it kept. */
int model_recompute(struct model *model, uint32_t slot, uint32_t block, const void *const *w);
/* The halves of a backward: the gradient of the block's input, then those of its weights. Both at
 * once need fewer buffers. dw is used by MODEL_WEIGHT alone, w by MODEL_INPUT alone. */
enum { MODEL_INPUT = 1, MODEL_WEIGHT = 2 };
int model_backward(struct model *model, uint32_t slot, uint32_t block, uint32_t halves,
                   const void *const *w, float *const *dw);
/* The tensors of a block, a bit each, whose gradients one operation makes: products, and that of
 * the embedding. 0: they are sums of parts. model_fold: does the next backward add these to sums
 * that are there in dw (kernel_fold)? It writes the others. With `seen` that of the embedding does
 * so row by row (kernel_embedding_backward). */
uint32_t model_foldable(const struct model *model, uint32_t block);
void model_fold(struct model *model, bool folds, uint32_t *seen);
/* Gives what a forward of blocks [first, end) keeps for a backward that does not come. */
void model_forget(struct model *model, uint32_t slot, uint32_t first, uint32_t end);
/* Of the slot's first sequence to the host: [T, V]; on a rank that has all of it. */
int model_copy_logits(struct model *model, uint32_t slot, float *out_logits);

/* The residual stream in front of a block, as it goes from stage to stage, and its gradient: the
 * buffers, taken by model_take_*, given by the backward and by model_give_gradient. */
size_t model_stream_bytes(const struct model *model);
void *model_take_stream(struct model *model, uint32_t slot, uint32_t block);
void *model_stream(const struct model *model, uint32_t slot, uint32_t block);
void model_give_stream(struct model *model, uint32_t slot, uint32_t block);
void *model_take_gradient(struct model *model, uint32_t slot);
void *model_gradient(const struct model *model, uint32_t slot);
void model_give_gradient(struct model *model, uint32_t slot);
/* Adds to the stream what the block in front left for the next norm to add: before it is sent. */
int model_close_stream(struct model *model, uint32_t slot, uint32_t block);

/* The ring of context parallel, of a layer's keys and values: in front of model_forward and of
 * model_backward of the input, or of the recomputation of the keys. take, then run on any lane,
 * then give what was on its way alone; what it laid down is there until it is used. Two layers one
 * behind the other may be under way. */
bool model_has_ring(const struct model *model);
void model_ring_take(struct model *model, uint32_t block);
int model_ring_run(const struct model *model, struct lane *lane, struct comm *comm, uint32_t slot,
                   uint32_t block);
void model_ring_give(struct model *model, uint32_t block);

/* A tensor of MODEL_ROWS is laid out as `blocks` dense parts of its columns, one after the other;
 * all others are one dense part. */
uint32_t model_view_blocks(const struct model_cut *cut, const struct model_tensor *tensor);
/* A tensor that comes as codes is so many dense parts, each coded (kernel_coded_bytes) with the
 * largest of that part: what one product reads. They are columns of a tensor of MODEL_ROWS, else
 * rows. 0: no float8 product reads it. */
uint32_t model_code_parts(const struct model_table *table, const struct model_cut *cut,
                          uint32_t tensor, const char *not_float8);

#define MODEL_PART_BYTES 128u
/* Is some part of the comma separated list in the name? An empty part is in none. */
bool model_is_named(const char *name, const char *list);
/* Is a part of the list, which becomes `out`, in the name of no tensor? */
bool model_names_nothing(char out[MODEL_PART_BYTES], const struct model_table *table,
                         const char *list);

#endif
