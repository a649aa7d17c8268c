/* product.h - how a product's operands lie: what product.cu and mma.cu share. */
#ifndef HOLDFAST_CUDA_PRODUCT_H
#define HOLDFAST_CUDA_PRODUCT_H

#include "kernels/cuda/run.h"

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
    bool is_gradient; /* of those: a is KERNEL_E5M2 */
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

#ifdef __cplusplus
}
#endif

#endif
