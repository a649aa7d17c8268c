/* dnn.h - attention of bf16 by cuDNN, where the library is.
 *
 * It is looked for when the program runs, like cuBLASLt (blas.h). Attention over whole sequences
 * with heads of 64 or 128 values is described to it as a graph (dnn_graph.h); for documents, parts
 * of the queries and shapes that it refuses, our own kernel is used (flash.cu). Its backward has to
 * repeat its bits, so it wants memory that grows with the square of the sequence: past a part of
 * the GPU's memory the backward is our own, too.
 *
 * A plan is made when a shape is first seen, from the shape alone, and kept: so bits depend on
 * shape, GPU and version of the library, which cuda_dnn_describe names. Threads: any number. */
#ifndef HOLDFAST_CUDA_DNN_H
#define HOLDFAST_CUDA_DNN_H

#include <stdbool.h>

#include "kernels/cuda/run.h"

#define DNN_ALIGN ((size_t)256)
#define DNN_WORKSPACE_PART 16 /* one of so many parts of a GPU's memory, at most */

/* Programs that are built without cuDNN's headers are linked without: then these are NULL. */
#define DNN_WEAK __attribute__((weak))

struct cuda_dnn;
/* For the current device, of so many bytes. *out is NULL where the library is not, or older
 * than 9.8. ERR_UNAVAILABLE: it is, and does not start; ERR_MEMORY. */
DNN_WEAK int cuda_dnn_open(struct cuda_dnn **out, size_t memory_bytes);
/* Without a device, for plans alone: its properties as cuDNN writes them, JSON. Here a library that
 * is not there is ERR_UNAVAILABLE. */
int cuda_dnn_open_for(struct cuda_dnn **out, const char *properties);
DNN_WEAK void cuda_dnn_close(struct cuda_dnn *dnn); /* NULL is none */
/* "cuDNN 91900", or "own attention" where it is not. Borrowed. */
DNN_WEAK const char *cuda_dnn_describe(const struct cuda_dnn *dnn);

/* Scratch that attention of these shapes needs, forward and backward; 0: it is our own. */
DNN_WEAK size_t cuda_dnn_scratch_bytes(struct cuda_dnn *dnn, const struct kernel_shapes *shapes);
/* Makes the plan. ERR_UNAVAILABLE: cuDNN refuses, the text says why. */
int cuda_dnn_plan(struct cuda_dnn *dnn, const struct kernel_shapes *shapes, bool is_backward,
                  size_t *out_scratch_bytes);

/* Queues the operation if it is attention that cuDNN has a plan for and scratch suffices; else
 * *out_is_own. CUDA's error. */
DNN_WEAK int cuda_dnn_run(struct cuda_dnn *dnn, const struct cuda_call *call, size_t scratch_bytes,
                          enum kernel_op op, const void *args, bool *out_is_own);

#endif
