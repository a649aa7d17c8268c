/* dnn.h - attention of bf16 by cuDNN, if the machine has it.
 *
 * It is looked up at run time, like cuBLASLt (blas.h). Attention over whole sequences with heads of
 * 64 or 128 values is described to it as a graph (dnn_graph.h). For documents, parts of the queries
 * and shapes that it refuses, Holdfast's kernel is used (flash.cu). A backward with repeatable bits
 * needs memory that grows with the square of the sequence: above a part of the GPU's memory
 * Holdfast's backward is used, too.
 *
 * A plan is made when a shape is first seen, from the shape alone, and kept: so bits depend on
 * shape, GPU and version of the library, which cuda_dnn_describe names. Threads: any number. */
#ifndef HOLDFAST_CUDA_DNN_H
#define HOLDFAST_CUDA_DNN_H

#include <stdbool.h>

#include "kernels/cuda/run.h"

#define DNN_ALIGN ((size_t)256)
#define DNN_WORKSPACE_PART 16 /* limit: this part of a GPU's memory */

/* Programs that are built without cuDNN's headers do not link these: then they are NULL. */
#define DNN_WEAK __attribute__((weak))

struct cuda_dnn;
/* For the current device, which has memory_bytes. *out is NULL if the library is missing, or older
 * than 9.8. ERR_UNAVAILABLE: it does not start; ERR_MEMORY. */
DNN_WEAK int cuda_dnn_open(struct cuda_dnn **out, size_t memory_bytes);
/* Without a device, only for plans: its properties in cuDNN's JSON. A missing library is
 * ERR_UNAVAILABLE. */
int cuda_dnn_open_for(struct cuda_dnn **out, const char *properties);
DNN_WEAK void cuda_dnn_close(struct cuda_dnn *dnn); /* NULL is allowed */
/* "cuDNN 91900", or "own attention" without it. Borrowed. */
DNN_WEAK const char *cuda_dnn_describe(const struct cuda_dnn *dnn);

/* Scratch of attention with these shapes, forward and backward; 0: Holdfast's is used. */
DNN_WEAK size_t cuda_dnn_scratch_bytes(struct cuda_dnn *dnn, const struct kernel_shapes *shapes);
/* Makes the plan. ERR_UNAVAILABLE: cuDNN refuses; the text has the reason. */
int cuda_dnn_plan(struct cuda_dnn *dnn, const struct kernel_shapes *shapes, bool is_backward,
                  size_t *out_scratch_bytes);

/* Queues the operation if cuDNN has a plan for it and scratch suffices; otherwise sets *out_is_own.
 * Returns CUDA's error. */
DNN_WEAK int cuda_dnn_run(struct cuda_dnn *dnn, const struct cuda_call *call, size_t scratch_bytes,
                          enum kernel_op op, const void *args, bool *out_is_own);

#endif
