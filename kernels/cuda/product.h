/* product.h - how a product's operands lie: what product.cu and mma.cu share. */
#ifndef HOLDFAST_CUDA_PRODUCT_H
#define HOLDFAST_CUDA_PRODUCT_H

#include "kernels/cuda/run.h"

/* What a product that follows another in a launch has of its own: with the same rows of a, whose k
 * is contiguous, b and n; else, with the same b, a and m. */
struct product_next {
    void *c;
    const void *operand;
    uint32_t size;
};
#define PRODUCT_NEXT_MAX (KERNEL_LINEARS_MAX - 1)

/* c[M,N] (+)= a[M,K] b[K,N]; c dense, float or `dtype`. A matrix whose k is contiguous is [M,K] or
 * [N,K] in memory; one whose k is not is [K,M] or [K,N]. */
struct product {
    void *c;
    const void *a, *b;
    uint32_t m, n, k;
    bool a_by_k, b_by_k; /* k contiguous */
    bool is_added, is_float;
    enum kernel_dtype dtype; /* of a and b, and of c unless it is float */
    /* Of float8 operands, k contiguous, k in pairs of codes: 2^-k of each; else NULL. */
    const float *scale_a, *scale_b;
    bool a_is_e5m2; /* of those; b is KERNEL_E4M3 */
    struct product_next next[PRODUCT_NEXT_MAX];
    uint32_t num_next;
    bool is_begun;  /* of float operands: sums begin with what is there, which is then not added */
    bool is_folded; /* is_added, behind the product that it is alone: a leaf of a sum */
};

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of the CPU's own code, any shape and type (product.cu). */
int cuda_product_plain(const struct cuda_call *call, const struct product *p);
/* By tensor cores (mma.cu): bf16, contiguous rows of multiples of 8 values. */
bool cuda_product_fits(const struct product *p);
int cuda_product_mma(const struct cuda_call *call, const struct product *p);
int cuda_product_float8(const struct cuda_call *call, const struct product *p);

/* Product i of the launch, 0: the first; it keeps what follows it. */
static inline struct product product_at(const struct product *p, uint32_t i)
{
    struct product one = *p;
    if (i > 0) {
        *(p->a_by_k ? &one.b : &one.a) = p->next[i - 1].operand;
        *(p->a_by_k ? &one.n : &one.m) = p->next[i - 1].size;
        one.c = p->next[i - 1].c;
    }
    one.num_next = p->num_next - i;
    for (uint32_t j = 0; j < one.num_next; j++)
        one.next[j] = p->next[i + j];
    return one;
}

#ifdef __cplusplus
}
#endif

#endif
