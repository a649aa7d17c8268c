/* blas.h - products of bf16 by cuBLASLt, where the library is.
 *
 * It is looked for when the program runs: among the program's own symbols, then as a shared
 * library of the system. Where it is not, products run on our own kernels (mma.cu).
 *
 * An algorithm is chosen when a shape is first seen, from the shape alone, and kept: so bits depend
 * on shape, GPU and version of the library, which cuda_blas_describe names. A run that goes on
 * takes what was chosen before it, since the library chooses by the GPU and its driver, too.
 * Threads: any number. */
#ifndef HOLDFAST_CUDA_BLAS_H
#define HOLDFAST_CUDA_BLAS_H

#include "kernels/cuda/product.h"

/* The library wants so much of a lane's scratch, at its begin, aligned so. */
#define BLAS_WORKSPACE_BYTES ((size_t)32 << 20)
#define BLAS_ALIGN ((size_t)256)

struct cuda_blas;
/* For the current device. *out is NULL where the library is not. ERR_UNAVAILABLE: it is, and does
 * not start; ERR_MEMORY. */
int cuda_blas_open(struct cuda_blas **out);
void cuda_blas_close(struct cuda_blas *blas); /* NULL is none */
/* "cuBLASLt 130100", or "own products" where it is not. Borrowed. */
const char *cuda_blas_describe(const struct cuda_blas *blas);
/* See kernels_choices. NULL where the library is not: nothing is chosen. */
char *cuda_blas_choices(struct cuda_blas *blas);
void cuda_blas_choose(struct cuda_blas *blas, const char *choices, struct kernel_choices *out);

#endif
