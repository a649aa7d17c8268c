/* gpu_memory.h - what a GPU's memory holds beside the buffers of the plan: CUDA's context, code of
 * libraries, graphs, NCCL's buffers. The plan is known to the byte; this is not. */
#ifndef HOLDFAST_TRAINER_PLAN_GPU_MEMORY_H
#define HOLDFAST_TRAINER_PLAN_GPU_MEMORY_H

#include "kernels/kernels.h"
#include "trainer/plan/program.h"

/* In bytes. The first two are of a process and GPU, however many ranks it has there. */
struct gpu_memory {
    uint64_t context; /* of CUDA: there before a GPU is asked what is free */
    uint64_t libraries;
    uint64_t graphs, nccl; /* of a rank, as the next one */
    uint64_t workspace;    /* of cuBLASLt or cuDNN, where the plan's kernels are not a GPU's */
};

struct gpu_memory_options {
    const struct mesh *mesh;
    const struct program *program; /* of the longest step */
    const struct program_options *shape;
    uint32_t machine_ranks; /* neighbours that are on one machine */
    bool has_graphs, has_nccl;
    bool has_folds; /* a first leaf of weights' gradients is another batch than those behind it */
    bool has_even_shards; /* of every block: an all-gather of others is sends */
    /* NULL: the kernels' scratch is in the plan. `bytes`: of a GPU, for cuDNN; 0: own attention. */
    const struct kernel_shapes *shapes;
    uint64_t bytes;
};
void gpu_memory_estimate(struct gpu_memory *out, const struct gpu_memory_options *options);

#endif
