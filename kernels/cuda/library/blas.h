/* blas.h - products of bf16 by cuBLASLt, if the machine has it.
 *
 * It is looked up at run time: among the program's symbols, then as a shared library of the system.
 * Without it products use Holdfast's kernels (mma.cu).
 *
 * An algorithm is chosen when a shape is first seen, from the shape alone, and kept: so bits depend
 * on shape, GPU and version of the library, which cuda_blas_describe names. A resumed run uses the
 * earlier choices, since the library's choice also depends on the GPU and its driver. Threads: any
 * number. */
#ifndef HOLDFAST_CUDA_BLAS_H
#define HOLDFAST_CUDA_BLAS_H

#include "kernels/cuda/product.h"

/* Workspace of the library at the beginning of a lane's scratch, with this alignment. */
#define BLAS_WORKSPACE_BYTES ((size_t)32 << 20)
#define BLAS_ALIGN ((size_t)256)

struct cuda_blas;
/* For the current device. *out is NULL if the machine has no library. ERR_UNAVAILABLE: it has one,
 * which does not start; ERR_MEMORY. */
int cuda_blas_open(struct cuda_blas **out);
void cuda_blas_close(struct cuda_blas *blas); /* NULL is allowed */
/* "cuBLASLt 130100", or "own products" without it. Borrowed. */
const char *cuda_blas_describe(const struct cuda_blas *blas);
/* See kernels_choices. NULL without the library: nothing is chosen. */
char *cuda_blas_choices(struct cuda_blas *blas);
void cuda_blas_choose(struct cuda_blas *blas, const char *choices, struct kernel_choices *out);

#endif
