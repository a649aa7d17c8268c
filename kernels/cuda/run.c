/* run.c - the table of the .cu files' functions by operation of kernels.h, and the scratch of a
 * stream for all of them. It does not use CUDA: the lanes of a CPU use the same file. */
#include "kernels/cuda/run.h"

#include "kernels/cuda/scratch.h"

static cuda_fn *const functions[NUM_KERNEL_OPS] = {
#define X(NAME, name, pointers, last) cuda_##name,
    KERNEL_OPS(X)
#undef X
};

cuda_fn *cuda_function(enum kernel_op op)
{
    return functions[op];
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t cuda_scratch_bytes(const struct kernel_shapes *s)
{
    size_t rows = (size_t)s->batch * s->seq;
    size_t segments = (rows + SCRATCH_NORM_SEGMENT - 1) / SCRATCH_NORM_SEGMENT;
    size_t squares = SCRATCH_SQUARES_BLOCKS * sizeof(struct kernel_exact_sum);
    size_t shared = larger(squares, SCRATCH_FLOAT8_BLOCKS * sizeof(uint32_t));
    shared = larger(shared, rows * s->heads * sizeof(float)); /* flash.cu: a sum for each query */
    return larger(segments * s->dim * sizeof(float), shared);
}
