/* product.h - the layout of a product's operands: shared by product.cu and mma.cu. */
#ifndef HOLDFAST_CUDA_PRODUCT_H
#define HOLDFAST_CUDA_PRODUCT_H

#include "kernels/cuda/run.h"

/* A further product of a launch. With the same rows of a, whose k is contiguous: its b and n;
 * otherwise, with the same b, its a and m. */
struct product_next {
    void *c;
    const void *operand;
    uint32_t size;
};
#define PRODUCT_NEXT_MAX (KERNEL_LINEARS_MAX - 1)

/* c[M,N] (+)= a[M,K] b[K,N]; c dense, float or `dtype`. A matrix with contiguous k is [M,K] or
 * [N,K] in memory, otherwise [K,M] or [K,N]. */
struct product {
    void *c;
    const void *a, *b;
    uint32_t m, n, k;
    bool a_by_k, b_by_k; /* k contiguous */
    bool is_added, is_float;
    enum kernel_dtype dtype; /* of a and b, and of c unless it is float */
    /* For float8 operands (k contiguous, k in pairs of codes): 2^-k of each; otherwise NULL. */
    const float *scale_a, *scale_b;
    bool a_is_e5m2; /* of float8 operands; b is KERNEL_E4M3 */
    struct product_next next[PRODUCT_NEXT_MAX];
    uint32_t num_next;
    /* Of float operands: sums begin with the values in memory, which are then not added. */
    bool is_begun;
    bool is_folded; /* with is_added: the product is rounded first, as a leaf of a sum */
};

#ifdef __cplusplus
extern "C" {
#endif

/* In the order of the CPU's products, for any shape and type (product.cu). */
int cuda_product_plain(const struct cuda_call *call, const struct product *p);
/* By tensor cores (mma.cu): bf16, contiguous rows of multiples of 8 values. */
bool cuda_product_fits(const struct product *p);
int cuda_product_mma(const struct cuda_call *call, const struct product *p);
int cuda_product_float8(const struct cuda_call *call, const struct product *p);

/* Product i of the launch, 0: the first; it has the list of the others. */
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
