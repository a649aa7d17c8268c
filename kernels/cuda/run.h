/* run.h - the operations of kernels.h as functions that queue kernels on a stream.
 *
 * cuda_<name>(call, args): args is struct kernel_<name>, copied into the launches. Returns 0 or the
 * CUDA runtime's error. On lanes of a CPU (bodies.h) the stream is not used, and the work is done
 * when the call returns. */
#ifndef HOLDFAST_CUDA_RUN_H
#define HOLDFAST_CUDA_RUN_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_call;
struct product; /* product.h */
/* Products of bf16 by a library: the base of its struct. */
struct cuda_library {
    int (*multiply)(const struct cuda_library *library, const struct cuda_call *call,
                    const struct product *p);
};
struct cuda_call {
    void *stream;  /* cudaStream_t */
    void *scratch; /* device memory, cuda_scratch_bytes of it, only for this stream */
    const struct cuda_library *products; /* NULL: Holdfast's products */
    bool is_chained;                     /* products of float: kernels_chain_products */
};
typedef int cuda_fn(const struct cuda_call *call, const void *args);

#define X(NAME, name, pointers, last) cuda_fn cuda_##name;
KERNEL_OPS(X)
#undef X
cuda_fn *cuda_function(enum kernel_op op);

/* A GPU as a device, in programs that link libgpu.a (device.c). */
extern const struct device_ops device_cuda;

/* Bytes of scratch for every operation at these shapes. */
size_t cuda_scratch_bytes(const struct kernel_shapes *shapes);

#ifdef __cplusplus
}
#endif
#endif
