/* kernels.h - the maths of a Llama step, one header, back-ends with the same semantics.
 *
 * An operation is a struct of arguments and a number of enum kernel_op; kernel_run posts it on a
 * lane of a device (device.h), in whose order it runs:
 *
 *     kernel_linear(kernels, lane, &(struct kernel_linear){.out = y, .x = x, .w = w, .rows = 256,
 *                                                          .in = 512, .out_dim = 64});
 *
 * The struct is copied when it is posted; the memory that it points to must stay until the lane has
 * run it. Fields that are not named are zero, which means "none", "whole" or float throughout.
 *
 * Every operation has a plain C twin in reference.c; `backend` chooses. On the CPU, oneDNN makes
 * matrix products (each library call on one thread; a small pool of this library spreads tiles of
 * fixed size). All other code is Holdfast's, compiled for several ISA levels and chosen at run
 * time.
 *
 * Bits: the result of an operation depends on its shapes, dtype, back-end and ISA level only, never
 * on the number of threads. Sums run over fixed segments in fixed order with 16 fixed lanes. No
 * atomics, no -ffast-math, -ffp-contract=off. Operations without products have the same bits on
 * every ISA level.
 *
 * Types: activations and weights are `dtype` (KERNEL_F32 or KERNEL_BF16, round to nearest even);
 * sums, softmax statistics and weight gradients are float. Row-major. Pointers aligned to 64 bytes.
 *
 * Letters: B sequences, T positions, N = B*T rows, C model width, F hidden width of the MLP, H
 * query heads, K key/value heads, D head width, V vocabulary.
 *
 * Memory: every pointer is to memory of the lane's device unless the field says "host". Numbers
 * that change from step to step are read through pointers when the operation runs, so that a
 * recorded step can be replayed.
 *
 * Threads: several lanes may share a struct kernels. On the CPU its pool serves one operation at a
 * time. Others run on their lane's thread alone, except that products wait for each other. Scratch
 * belongs to the lane. Errors: asserts on arguments; *_new returns codes of report.h. Operations
 * cannot fail. */
#ifndef HOLDFAST_KERNELS_H
#define HOLDFAST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kernel_dtype { KERNEL_F32, KERNEL_BF16 };
static inline size_t kernel_dtype_bytes(enum kernel_dtype dtype)
{
    return dtype == KERNEL_F32 ? 4 : 2;
}

/* 8-bit floats of OCP, for operands of products (kernel_round_float8). */
enum kernel_float8 {
    KERNEL_E4M3, /* at most 448, 3 bits after the first, steps of 2^-9 below 2^-6 */
    KERNEL_E5M2  /* at most 57344, 2 bits after the first, steps of 2^-16 below 2^-14 */
};

enum kernel_backend { KERNEL_BACKEND_BEST, KERNEL_BACKEND_REFERENCE };

struct kernels;
struct lane;
struct device;
struct kernels_options {
    enum kernel_backend backend;
    uint32_t num_threads; /* >= 1, the caller included */
    /* NULL: the best of this CPU. "avx512", "avx2", "sse2": that level. The last two also use
     * Holdfast's products, so the bits are the same on every machine with the level. */
    const char *isa;
    bool has_own_attention;      /* never use a library's attention; only for a GPU */
    const struct device *device; /* the device of the lanes; NULL: the CPU */
};
/* ERR_INVALID (threads, unknown or missing ISA level, no back-end for the device), ERR_MEMORY,
 * ERR_BUSY (no more threads). */
int kernels_new(struct kernels **out, const struct kernels_options *options);
void kernels_free(struct kernels *kernels);
/* Names ISA, library and version: part of the numeric identity. Borrowed. */
const char *kernels_describe(const struct kernels *kernels);
/* From here on an element of a product of floats is one chain of fused multiply-adds over the
 * contraction in order. It begins with the value in memory (`accumulate`) or with 0: the same bits
 * on avx2, avx512 and a GPU. On a CPU kernels_describe then has one text for these levels, and
 * products of bf16 are those of a level without the library. The plain back-end does not change.
 * Call before the first operation; repeated calls are allowed. ERR_INVALID: the level has no such
 * instruction (sse2). */
int kernels_chain_products(struct kernels *kernels);
/* True if products can read float8 operands. A GPU below compute capability 8.9 cannot. */
bool kernels_have_float8(const struct kernels *kernels);
/* A library chooses its algorithm for a shape when it first sees the shape, and the bits depend on
 * it. Returns the choices so far as lines of text: first the library, then one shape per line. "":
 * none. The caller frees the text; NULL: no memory. */
char *kernels_choices(struct kernels *kernels);
/* Uses the choices of another run if the library offers them here, too. Call before the first
 * operation. For other shapes, and choices not offered, the library chooses as usual. */
struct kernel_choices {
    uint32_t taken, not_offered; /* shapes */
};
void kernels_choose(struct kernels *kernels, const char *choices, struct kernel_choices *out);
/* Creates kernels that count operations and pass them on to `inner`, which is borrowed. Operations
 * on a lane of device_dry are only counted. The count: floating-point operations of matrix products
 * and attention so far (dry.c has the formulas). ERR_MEMORY. */
int kernels_count_new(struct kernels **out, struct kernels *inner);
uint64_t kernels_counted(const struct kernels *counting);

/* Bytes of scratch that the operations need on each lane for these shapes (lane_set_scratch). */
struct kernel_shapes {
    uint32_t batch, seq, dim, hidden, heads, kv_heads, head_dim, vocab;
    enum kernel_dtype dtype;
};
size_t kernels_scratch_bytes(const struct kernels *kernels, const struct kernel_shapes *shapes);

/* ---- Operations ---- */

/* out[N,C] = table[tokens[N], :]. The caller ensures token ids < V. */
struct kernel_embedding {
    void *out;             /* [N,C] */
    const int32_t *tokens; /* [N] */
    const void *table;     /* [V,C] */
    uint32_t rows, dim;
    enum kernel_dtype dtype;
};
/* dtable = sum over rows in row order of dout (dtable is overwritten). With `is_folded` this is a
 * further leaf of the sum in dtable: rows without tokens, whose leaf is 0, do not change. With
 * `seen`, rows with seen 0 have no sum yet: rows of tokens get the leaf, and seen becomes 1; no
 * other row is written. */
struct kernel_embedding_backward {
    float *dtable;         /* [V,C] */
    const int32_t *tokens; /* [N] */
    const void *dout;      /* [N,C] */
    uint32_t *seen;        /* [V] or NULL; with it is_folded is ignored */
    uint32_t rows, dim, vocab;
    enum kernel_dtype dtype;
    bool is_folded;
};

/* out = x / rms(x) * weight; rstd is kept for the backward. With `residual`: first x += residual
 * (x, the residual stream, is updated in place and rounded to dtype). */
struct kernel_rmsnorm {
    void *out;            /* [N,C] */
    float *rstd;          /* [N] */
    void *x;              /* [N,C] */
    const void *residual; /* [N,C] or NULL */
    const void *weight;   /* [C] */
    uint32_t *largest;    /* of out, see kernel_round_float8; or NULL */
    uint32_t rows, dim;
    float eps;
    enum kernel_dtype dtype;
};
/* dx += gradient through the norm; dweight overwritten. */
struct kernel_rmsnorm_backward {
    void *dx;           /* [N,C] */
    float *dweight;     /* [C] */
    const void *dout;   /* [N,C] */
    const void *x;      /* [N,C] */
    const float *rstd;  /* [N] */
    const void *weight; /* [C] */
    uint32_t rows, dim;
    enum kernel_dtype dtype;
};

/* Products for a weight w[O,I] as PyTorch stores it: out = x w^T. With `is_partial` the result is
 * float for every dtype: a part of a sum. */
struct kernel_linear {
    void *out;     /* [N,O] */
    const void *x; /* [N,I] */
    const void *w; /* [O,I] */
    uint32_t rows, in, out_dim;
    enum kernel_dtype dtype;
    bool is_partial;
    bool is_float8; /* x and w: operands, both KERNEL_E4M3; see kernel_round_float8 */
};
/* dx = dout w, or dx += dout w with `accumulate`. */
struct kernel_linear_backward_input {
    void *dx;         /* [N,I] */
    const void *dout; /* [N,O] */
    const void *w;    /* [O,I] */
    uint32_t rows, in, out_dim;
    enum kernel_dtype dtype;
    enum kernel_float8 dout_format; /* with is_float8 */
    bool accumulate;
    bool is_partial;
    bool is_float8; /* dout and w: operands, w KERNEL_E4M3 */
};
/* dw = dout^T x, or dw += dout^T x with `accumulate`. With only `is_folded` dw is a sum of leaves
 * and the product a further leaf: rounded first, then added as in kernel_fold. */
struct kernel_linear_backward_weight {
    float *dw;        /* [O,I] */
    const void *dout; /* [N,O] */
    const void *x;    /* [N,I] */
    uint32_t rows, in, out_dim;
    enum kernel_dtype dtype;
    enum kernel_float8 dout_format; /* with is_float8 */
    bool accumulate;
    bool is_folded;
    bool is_float8; /* dout and x: operands, x KERNEL_E4M3 */
};

/* Several products of the same rows: out = x w^T, and dw = dout^T x, of the first `num`. Each has
 * the bits of a single product, unless a library computes it. They may be one launch on a GPU.
 * There a library computes the last two as one if they have the same size and the second one's
 * matrices follow the first one's. */
#define KERNEL_LINEARS_MAX 3u
struct kernel_linears {
    void *out[KERNEL_LINEARS_MAX];     /* [N,O] each */
    const void *w[KERNEL_LINEARS_MAX]; /* [O,I] each */
    const void *x;                     /* [N,I] */
    uint32_t out_dim[KERNEL_LINEARS_MAX];
    uint32_t num, rows, in;
    enum kernel_dtype dtype;
};
struct kernel_linears_backward_weight {
    float *dw[KERNEL_LINEARS_MAX];        /* [O,I] each */
    const void *dout[KERNEL_LINEARS_MAX]; /* [N,O] each */
    const void *x;                        /* [N,I] */
    uint32_t out_dim[KERNEL_LINEARS_MAX];
    uint32_t num, rows, in;
    enum kernel_dtype dtype;
    bool is_folded;
};

/* Rotary embedding in place, with pairs (2i, 2i+1) as in Llama's reference code; kernel_rope_table
 * makes cos and sin, for at least first + T positions. Row t is at position first + t; with
 * `starts` [B,T] positions count from starts[t] on (see attention). inverse: the backward. */
struct kernel_rope {
    void *x;               /* [B,T,heads,D] */
    const float *cos;      /* [.,D/2] */
    const float *sin;      /* [.,D/2] */
    const int32_t *starts; /* [B,T] or NULL */
    uint32_t batch, seq, heads, head_dim;
    uint32_t first;
    enum kernel_dtype dtype;
    bool inverse;
};
/* Host memory; the same code for all back-ends. frequencies[D/2]: the turns per position. */
void kernel_rope_table(float *cos, float *sin, uint32_t seq, uint32_t head_dim,
                       const double *frequencies);

/* Causal grouped-query attention, scale 1/sqrt(D), of Q queries at positions first .. first + Q - 1
 * to keys at positions 0 .. T - 1; the query at t sees the keys 0 .. t. With `starts` it sees only
 * the keys starts[t] .. t, those of its document; starts[t] <= t, and starts never falls within a
 * sequence. lse, the log-sum-exp of the scaled scores, is kept for the backward. */
struct kernel_attention {
    void *out;             /* [B,Q,H,D] */
    float *lse;            /* [B,H,Q] */
    const void *q;         /* [B,Q,H,D] */
    const void *key;       /* [B,T,K,D] */
    const void *value;     /* [B,T,K,D] */
    const int32_t *starts; /* [B,Q] or NULL */
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t queries, first; /* Q, 0: as many as keys; first + Q <= T */
    enum kernel_dtype dtype;
};
/* dq, dkey, dvalue overwritten; dkey and dvalue are those of these queries only. Recomputes the
 * probabilities from lse. */
struct kernel_attention_backward {
    void *dq;              /* [B,Q,H,D] */
    void *dkey;            /* [B,T,K,D] */
    void *dvalue;          /* [B,T,K,D] */
    const void *dout;      /* [B,Q,H,D] */
    const void *out;       /* [B,Q,H,D] */
    const float *lse;      /* [B,H,Q] */
    const void *q;         /* [B,Q,H,D] */
    const void *key;       /* [B,T,K,D] */
    const void *value;     /* [B,T,K,D] */
    const int32_t *starts; /* [B,Q] or NULL */
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t queries, first; /* as above */
    enum kernel_dtype dtype;
    bool is_partial; /* dkey and dvalue are float for every dtype: a part of a sum */
    bool accumulate; /* with is_partial: adds the queries' terms after the existing ones */
};

/* out = silu(gate) * up, elementwise. */
struct kernel_swiglu {
    void *out;
    const void *gate, *up;
    uint32_t *largest; /* of out, see kernel_round_float8; or NULL */
    size_t count;
    enum kernel_dtype dtype;
};
/* dgate and dup overwritten. */
struct kernel_swiglu_backward {
    void *dgate, *dup;
    const void *dout, *gate, *up;
    uint32_t *largest_dgate, *largest_dup; /* likewise */
    size_t count;
    enum kernel_dtype dtype;
};

/* losses = -log softmax(logits)[target]; logits are overwritten by scale * (softmax - onehot). A
 * negative target gives loss 0 and a zero gradient row. */
struct kernel_cross_entropy {
    float *losses;          /* [N] */
    void *logits;           /* [N,V] */
    const int32_t *targets; /* [N] */
    const float *scale;     /* one number */
    uint32_t rows, vocab;
    enum kernel_dtype dtype;
};

/* Copies the rectangle [first_row, +rows) x [first_column, +columns) of a matrix with rows of
 * `width` elements to dense rows, or back. */
struct kernel_pack {
    void *packed;     /* [rows,columns] */
    const void *full; /* [..,width] */
    size_t first_row, rows, first_column, columns, width;
    enum kernel_dtype dtype;
};
struct kernel_unpack {
    void *full;         /* [..,width] */
    const void *packed; /* [rows,columns] */
    size_t first_row, rows, first_column, columns, width;
    enum kernel_dtype dtype;
};

/* y += x. With `seen` only rows (of `width` elements) with a seen other than 0; other rows of x are
 * not read. */
struct kernel_add {
    void *y;
    const void *x;
    const uint32_t *seen; /* [count / width] or NULL */
    size_t count, width;
    enum kernel_dtype dtype;
};
/* acc += leaf: one link of the canonical left fold. With `is_first` acc = 0 + leaf, so a leaf's -0
 * becomes 0; acc is not read. A sum of bf16 (only in the fast reduction) is rounded after each
 * leaf. Then the links of `more` leaves follow in order. */
struct kernel_fold {
    void *acc;
    const float *leaf;
    size_t count, stride; /* from leaf to leaf: a multiple of 16 */
    uint32_t more;
    enum kernel_dtype dtype; /* of acc */
    bool is_first;
};
struct kernel_convert {
    void *out;
    const float *in;
    size_t count;
    enum kernel_dtype out_dtype;
};

/* out = x, rounded to a float8 format with one scale 2^k for all of x: the largest power of two
 * that keeps the largest |x| in the format, |k| <= KERNEL_FLOAT8_SCALE_MAX. So out 2^k are float8
 * numbers, and a product of rounded operands is the float8 product, since powers of two are exact.
 * With a NaN or an infinity in x all of out is NaN. out may be x. The operation that made x may
 * have noted the largest |x|, as the bits of a float: it raises the number in `largest`, which was
 * 0. Then x is not read for it.
 *
 * With `width` out is an operand [count / width, width] only for products with is_float8: the
 * back-end decides its layout in kernel_float8_bytes. The CPU stores the numbers as above. For bf16
 * a GPU stores codes of 8 bits, by rows and transposed, and 2^-k; out is not x. (Formats: OCP 8-bit
 * floating point 1.0. Scaling: tensorwise, by powers of two, as in torchao.) */
#define KERNEL_FLOAT8_SCALE_MAX 100
struct kernel_round_float8 {
    void *out;
    const void *x;
    const uint32_t *largest; /* of x; NULL: it is computed */
    size_t count;
    uint32_t width; /* of an operand's row; 0: numbers */
    enum kernel_float8 format;
    enum kernel_dtype dtype;
};
/* Rows of codes are padded to whole copies of 16 bytes. */
#define KERNEL_FLOAT8_ALIGN 16u
static inline size_t kernel_float8_pitch(size_t width)
{
    return (width + KERNEL_FLOAT8_ALIGN - 1) / KERNEL_FLOAT8_ALIGN * KERNEL_FLOAT8_ALIGN;
}
/* The place of the float 2^-k, after the codes of [rows,width]. */
static inline size_t kernel_float8_scale_at(size_t rows, size_t width)
{
    return kernel_float8_pitch(rows * kernel_float8_pitch(width) +
                               width * kernel_float8_pitch(rows));
}
static inline size_t kernel_float8_bytes(size_t rows, size_t width, enum kernel_dtype dtype)
{
    size_t numbers = rows * width * kernel_dtype_bytes(dtype);
    size_t codes = kernel_float8_scale_at(rows, width) + KERNEL_FLOAT8_ALIGN;
    return numbers > codes ? numbers : codes;
}

/* The same in steps, for a part of a tensor with the scale of the whole. out: the bits of the
 * largest |x|. As integers, bits of |x| have the order of the values; a NaN is above all. */
struct kernel_float8_largest {
    uint32_t *out; /* one number */
    const void *x;
    size_t count;
    enum kernel_dtype dtype;
};
/* Coded: the bits of the largest |x| of the whole, then from KERNEL_CODES_AT on a KERNEL_E4M3 code
 * of 8 bits for each element, in their order. `largest`: the exact largest of all parts. */
#define KERNEL_CODES_AT 64u
static inline size_t kernel_coded_bytes(size_t count)
{
    return KERNEL_CODES_AT + (count + 63) / 64 * 64;
}
struct kernel_float8_encode {
    void *out; /* kernel_coded_bytes */
    const void *x;
    const uint32_t *largest;
    size_t count;
    enum kernel_dtype dtype;
};
/* Makes the operand of kernel_round_float8 from coded x. */
struct kernel_float8_decode {
    void *out;
    const void *coded;
    size_t count;
    uint32_t width; /* of a row */
    enum kernel_dtype dtype;
};

/* The extremes of a tensor's values. NaNs count as larger than infinity: `smallest` is a NaN only
 * if all values are, or if the tensor is empty. */
struct kernel_extent {
    uint32_t largest, smallest; /* the bits of |x| as a float */
    uint32_t not_finite;        /* number of such values */
};
struct kernel_extremes {
    struct kernel_extent *out;
    const void *x;
    size_t count;
    enum kernel_dtype dtype;
};

/* Sum of squares of each row of the pieces, in double, one canonical segment per row, added exactly
 * into a wide fixed-point accumulator, so the total does not depend on the distribution of rows.
 * Accumulators of several ranks are added limb by limb as int64 (any order, exact). Rows are
 * counted through all pieces. */
#define KERNEL_EXACT_LIMBS 72
struct kernel_exact_sum {
    int64_t limb[KERNEL_EXACT_LIMBS];
};
double kernel_exact_value(const struct kernel_exact_sum *sum); /* host memory */
struct kernel_squares_piece {
    const void *x;       /* [its rows,width] */
    uint64_t width, end; /* after its last row */
};
struct kernel_sum_squares {
    struct kernel_exact_sum *sum;              /* added to */
    const struct kernel_squares_piece *pieces; /* [num] */
    uint64_t rows;                             /* of all of them */
    uint32_t num;
    enum kernel_dtype dtype;
};

/* The digest of proto/base/checksum.h, which does not depend on the cut of a tensor: the digest of
 * a box depends on the places of its elements in the tensor. Sums of parts are added in any
 * order. */
#define KERNEL_DIGEST_SCRATCH_BYTES ((size_t)32 << 10) /* of a lane that runs only this */
struct kernel_digest {
    uint64_t *sum; /* [2], added to */
    const void *x; /* [rows,width] */
    uint64_t rows, width;
    uint64_t first, stride; /* elements of the tensor: before x, and from row to row */
    enum kernel_dtype dtype;
};

/* AdamW (Loshchilov and Hutter 2019), elementwise, bias correction by step (first step is 1):
 * g = grad * grad_scale; m, v updated; p -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p).
 * Adam (Kingma and Ba 2015) is the same with l2 instead of weight_decay. With is_mean, and keep 1,
 * m = m + rest1 * (g - m): the weights of m and g add up to 1 for any rounding of rest1. Otherwise
 * m = keep1 * m + rest1 * g. Likewise v, from the square of g.
 *
 * Moments of bf16 are rounded stochastically (Gupta and others 2015): up with a probability that
 * grows towards the upper neighbour, so that steps too small for 8 bits are not lost. A random
 * number below 2^16 is added to a value's bits, and the lower half is dropped. Values that are not
 * finite are rounded to nearest. The number depends on the element, not on the rank: with row and
 * column in the tensor,
 *     z = mix(mix(row ^ key[0]) ^ (column + key[1])), key[i] = numbers->noise[i] ^ noise[i],
 * its low half for m, its high half for v. mix is a permutation of 32 bits by two multiplications
 * (constants of Wellons, "Prospecting for Hash Functions", 2018):
 *     x ^= x >> 16; x *= 0x21f0aaad; x ^= x >> 15; x *= 0x735a2d97; x ^= x >> 15. */
struct kernel_adamw_numbers {
    float lr, eps, weight_decay, grad_scale;
    float keep1, rest1, keep2, rest2; /* beta, or 1 with is_mean; 1 - beta */
    /* 1 - beta^step, computed by the caller in double, rounded once. */
    float bias1, bias2;
    float l2;          /* Adam's decay: g += l2 * p; 0: none */
    uint32_t noise[2]; /* of the update */
    uint32_t is_mean;
};
struct kernel_adamw_piece { /* of a tensor */
    float *param;
    void *exp_avg, *exp_avg_sq; /* of `moments` */
    const void *grad;           /* of `gradients` */
    const struct kernel_adamw_numbers *numbers;
    void *copy; /* param as bf16, after the update; or NULL */
    size_t count;
    /* For bf16 moments, the places of the elements: rows of `columns` from a place of the tensor
     * on. */
    uint32_t first_row, first_column, columns;
    uint32_t noise[2]; /* of the tensor */
};
/* Pieces of many tensors at once: one launch of a GPU. Each has the bits of a single call. The work
 * is cut into items of one piece; end[i]: the number of items of the pieces 0 .. i. */
#define KERNEL_ADAMW_PIECES 16u
#define KERNEL_ADAMW_ITEM 16384u /* elements */
struct kernel_adamw {
    const struct kernel_adamw_piece *pieces; /* [num] */
    uint32_t end[KERNEL_ADAMW_PIECES];
    uint32_t num;
    enum kernel_dtype moments, gradients;
};
/* Counts the next piece. */
static inline void kernel_adamw_add(struct kernel_adamw *a, size_t count)
{
    uint32_t before = a->num > 0 ? a->end[a->num - 1] : 0;
    size_t items = (count + KERNEL_ADAMW_ITEM - 1) / KERNEL_ADAMW_ITEM;
    a->end[a->num++] = before + (uint32_t)items;
}

/* ---- Running them ---- */

/* X(number, name, pointers, last): kernel_<name>(kernels, lane, const struct kernel_<name> *args)
 * for each. The struct begins with `pointers` pointers to device memory and ends with the field
 * `last`. It has no padding between fields, so equal arguments have equal bytes up to there. */
#define KERNEL_OPS(X)                                                 \
    X(EMBEDDING, embedding, 3, dtype)                                 \
    X(EMBEDDING_BACKWARD, embedding_backward, 4, is_folded)           \
    X(RMSNORM, rmsnorm, 6, dtype)                                     \
    X(RMSNORM_BACKWARD, rmsnorm_backward, 6, dtype)                   \
    X(LINEAR, linear, 3, is_float8)                                   \
    X(LINEAR_BACKWARD_INPUT, linear_backward_input, 3, is_float8)     \
    X(LINEAR_BACKWARD_WEIGHT, linear_backward_weight, 3, is_float8)   \
    X(LINEARS, linears, 7, dtype)                                     \
    X(LINEARS_BACKWARD_WEIGHT, linears_backward_weight, 7, is_folded) \
    X(ROPE, rope, 4, inverse)                                         \
    X(ATTENTION, attention, 6, dtype)                                 \
    X(ATTENTION_BACKWARD, attention_backward, 10, accumulate)         \
    X(SWIGLU, swiglu, 4, dtype)                                       \
    X(SWIGLU_BACKWARD, swiglu_backward, 7, dtype)                     \
    X(CROSS_ENTROPY, cross_entropy, 4, dtype)                         \
    X(PACK, pack, 2, dtype)                                           \
    X(UNPACK, unpack, 2, dtype)                                       \
    X(ADD, add, 3, dtype)                                             \
    X(FOLD, fold, 2, is_first)                                        \
    X(CONVERT, convert, 2, out_dtype)                                 \
    X(ROUND_FLOAT8, round_float8, 3, dtype)                           \
    X(FLOAT8_LARGEST, float8_largest, 2, dtype)                       \
    X(FLOAT8_ENCODE, float8_encode, 3, dtype)                         \
    X(FLOAT8_DECODE, float8_decode, 2, dtype)                         \
    X(EXTREMES, extremes, 2, dtype)                                   \
    X(SUM_SQUARES, sum_squares, 2, dtype)                             \
    X(DIGEST, digest, 2, dtype)                                       \
    X(ADAMW, adamw, 1, gradients)

enum kernel_op {
#define X(NAME, name, pointers, last) KERNEL_##NAME,
    KERNEL_OPS(X)
#undef X
        NUM_KERNEL_OPS
};
const char *kernel_op_name(enum kernel_op op); /* "attention_backward" */

/* Posts the operation on the lane. `args` is the struct of that operation, copied before return. */
void kernel_run(struct kernels *kernels, struct lane *lane, enum kernel_op op, const void *args);

#define X(NAME, name, pointers, last)                                            \
    static inline void kernel_##name(struct kernels *kernels, struct lane *lane, \
                                     const struct kernel_##name *args)           \
    {                                                                            \
        kernel_run(kernels, lane, KERNEL_##NAME, args);                          \
    }
KERNEL_OPS(X)
#undef X

#endif
