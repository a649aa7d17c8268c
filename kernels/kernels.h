/* kernels.h - the maths of a Llama step, one header, back-ends with the same semantics.
 *
 * Every operation has a plain C twin in reference.c; `backend` chooses. On the CPU, matrix products
 * go to oneDNN (each library call on one thread; our own small pool spreads tiles of fixed size),
 * all else is our own code, compiled for several ISA levels and chosen at run time.
 *
 * Bits: the result of an operation depends on its shapes, dtype, back-end and ISA level only, never
 * on the number of threads. Sums run over fixed segments in fixed order with 16 fixed lanes. No
 * atomics, no -ffast-math, -ffp-contract=off. What contains no product has the same bits on every
 * ISA level.
 *
 * Types: activations and weights are `dtype` (KERNEL_F32 or KERNEL_BF16, round to nearest even);
 * sums, softmax statistics and weight gradients are float. Row-major. Pointers aligned to 64 bytes.
 *
 * Letters: B sequences, T positions, N = B*T rows, C model width, F hidden width of the MLP, H
 * query heads, K key/value heads, D head width, V vocabulary.
 *
 * Threads: a struct kernels belongs to one calling thread; its pool is its own.
 * Errors: asserts on arguments; *_new returns codes of report.h. Operations cannot fail. */
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

enum kernel_backend { KERNEL_BACKEND_BEST, KERNEL_BACKEND_REFERENCE };

struct kernels;
struct kernels_options {
    enum kernel_backend backend;
    uint32_t num_threads; /* >= 1, the caller included */
    /* NULL: the best this CPU has. "avx512", "avx2", "sse2": that level; below the best, products
     * are our own code too, so that the bits are the same on every machine that has the level. */
    const char *isa;
};
/* ERR_INVALID (threads, unknown or missing ISA level), ERR_MEMORY, ERR_BUSY (no more threads). */
int kernels_new(struct kernels **out, const struct kernels_options *options);
void kernels_free(struct kernels *kernels);
/* Names ISA, library and version: part of the numeric identity. Borrowed. */
const char *kernels_describe(const struct kernels *kernels);

/* Bytes of scratch that the operations need for these shapes; the caller owns the memory. */
struct kernel_shapes {
    uint32_t batch, seq, dim, hidden, heads, kv_heads, head_dim, vocab;
    enum kernel_dtype dtype;
};
size_t kernels_scratch_bytes(const struct kernels *kernels, const struct kernel_shapes *shapes);
void kernels_set_scratch(struct kernels *kernels, void *scratch, size_t bytes);

/* out[N,C] = table[tokens[N], :]; token ids < V are the caller's duty. */
void kernel_embedding(struct kernels *k, void *out, const int32_t *tokens, const void *table,
                      uint32_t rows, uint32_t dim, enum kernel_dtype dtype);
/* dtable[V,C] = sum over rows in row order of dout (dtable is overwritten). */
void kernel_embedding_backward(struct kernels *k, float *dtable, const int32_t *tokens,
                               const void *dout, uint32_t rows, uint32_t dim, uint32_t vocab,
                               enum kernel_dtype dtype);

/* out = x / rms(x) * weight; rstd[N] kept for the backward. With `residual` not NULL: x += residual
 * first (x is updated in place, rounded to dtype), which is the residual stream. */
void kernel_rmsnorm(struct kernels *k, void *out, float *rstd, void *x, const void *residual,
                    const void *weight, uint32_t rows, uint32_t dim, float eps,
                    enum kernel_dtype dtype);
/* dx[N,C] += gradient through the norm; dweight[C] overwritten. */
void kernel_rmsnorm_backward(struct kernels *k, void *dx, float *dweight, const void *dout,
                             const void *x, const float *rstd, const void *weight, uint32_t rows,
                             uint32_t dim, enum kernel_dtype dtype);

/* Products for a weight w[O,I] as PyTorch stores it.
 * forward:  out[N,O] = x[N,I] w^T          backward: dx[N,I] (+)= dout[N,O] w
 * weight:   dw[O,I] = dout^T x, float, overwritten */
void kernel_linear(struct kernels *k, void *out, const void *x, const void *w, uint32_t rows,
                   uint32_t in, uint32_t out_dim, enum kernel_dtype dtype);
void kernel_linear_backward_input(struct kernels *k, void *dx, const void *dout, const void *w,
                                  uint32_t rows, uint32_t in, uint32_t out_dim, bool accumulate,
                                  enum kernel_dtype dtype);
void kernel_linear_backward_weight(struct kernels *k, float *dw, const void *dout, const void *x,
                                   uint32_t rows, uint32_t in, uint32_t out_dim,
                                   enum kernel_dtype dtype);

/* Rotary embedding in place on x[B,T,heads,D], pairs (2i, 2i+1) as Llama's reference code has them;
 * cos, sin: float [T, D/2], made by kernel_rope_table on one code path of frequencies[D/2], the
 * turns per position. inverse: the backward. */
void kernel_rope_table(float *cos, float *sin, uint32_t seq, uint32_t head_dim,
                       const double *frequencies);
void kernel_rope(struct kernels *k, void *x, const float *cos, const float *sin,
                 const int32_t *starts, uint32_t batch, uint32_t seq, uint32_t heads,
                 uint32_t head_dim, bool inverse, enum kernel_dtype dtype);

/* Causal grouped-query attention. With `starts` [B,T] the query at t sees the keys starts[t] .. t
 * alone, those of its document, and kernel_rope counts positions from there; starts[t] <= t, never
 * falling within a sequence. NULL: whole sequences. q, out [B,T,H,D]; key, value [B,T,K,D]; lse
 * [B,H,T] (log-sum-exp of scaled scores) kept for the backward. Scale 1/sqrt(D). */
void kernel_attention(struct kernels *k, void *out, float *lse, const void *q, const void *key,
                      const void *value, const int32_t *starts, uint32_t batch, uint32_t seq,
                      uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                      enum kernel_dtype dtype);
/* dq, dkey, dvalue overwritten. Recomputes the probabilities from lse. */
void kernel_attention_backward(struct kernels *k, void *dq, void *dkey, void *dvalue,
                               const void *dout, const void *out, const float *lse, const void *q,
                               const void *key, const void *value, const int32_t *starts,
                               uint32_t batch, uint32_t seq, uint32_t heads, uint32_t kv_heads,
                               uint32_t head_dim, enum kernel_dtype dtype);

/* out = silu(gate) * up, all [N,F]. Backward overwrites dgate and dup. */
void kernel_swiglu(struct kernels *k, void *out, const void *gate, const void *up, size_t count,
                   enum kernel_dtype dtype);
void kernel_swiglu_backward(struct kernels *k, void *dgate, void *dup, const void *dout,
                            const void *gate, const void *up, size_t count,
                            enum kernel_dtype dtype);

/* losses[N] = -log softmax(logits)[target]; logits[N,V] are overwritten by scale * (softmax -
 * onehot). A negative target gives loss 0 and a zero gradient row. */
void kernel_cross_entropy(struct kernels *k, float *losses, void *logits, const int32_t *targets,
                          uint32_t rows, uint32_t vocab, float scale, enum kernel_dtype dtype);

/* y += x. */
void kernel_add(struct kernels *k, void *y, const void *x, size_t count, enum kernel_dtype dtype);
/* acc += leaf: one link of the canonical left fold. */
void kernel_fold(struct kernels *k, float *acc, const float *leaf, size_t count);
void kernel_convert(struct kernels *k, void *out, enum kernel_dtype out_dtype, const float *in,
                    size_t count);

/* Sum of squares of each of `rows` rows of x[rows, width], in double, one canonical segment per
 * row, added exactly into a wide fixed-point accumulator, so the total does not depend on who holds
 * which rows. Accumulators of several ranks are added limb by limb as int64 (any order, exact). */
#define KERNEL_EXACT_LIMBS 72
struct kernel_exact_sum {
    int64_t limb[KERNEL_EXACT_LIMBS];
};
void kernel_sum_squares(struct kernels *k, struct kernel_exact_sum *sum, const float *x,
                        uint64_t rows, uint64_t width);
double kernel_exact_value(const struct kernel_exact_sum *sum);

/* AdamW (Loshchilov and Hutter 2019), elementwise, bias correction by step (first step is 1):
 * g = grad * grad_scale; m, v updated; p -= lr * (m_hat / (sqrt(v_hat) + eps) + weight_decay * p).
 * Adam (Kingma and Ba 2015) is the same with l2 in place of weight_decay. */
struct kernel_adamw {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    float bias1, bias2; /* 1 - beta^step, by the caller in double, rounded once */
    float l2;           /* Adam's decay: g += l2 * p; 0: none */
};
void kernel_adamw(struct kernels *k, float *param, float *exp_avg, float *exp_avg_sq,
                  const float *grad, size_t count, const struct kernel_adamw *options);

#endif
