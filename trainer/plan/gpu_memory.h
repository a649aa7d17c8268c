/* gpu_memory.h - GPU memory outside the buffers of the plan: CUDA's context, code of libraries,
 * graphs, NCCL's buffers. The plan is exact to the byte; these figures are estimates. */
#ifndef HOLDFAST_TRAINER_PLAN_GPU_MEMORY_H
#define HOLDFAST_TRAINER_PLAN_GPU_MEMORY_H

#include "kernels/kernels.h"
#include "trainer/plan/program.h"

/* In bytes. The first two are per process and GPU, whatever number of ranks it has there. */
struct gpu_memory {
    uint64_t context; /* of CUDA: allocated before a GPU reports its free memory */
    uint64_t libraries;
    uint64_t graphs, nccl; /* per rank, as is the workspace */
    uint64_t workspace;    /* of cuBLASLt or cuDNN; 0 where the kernels' scratch is in the plan */
};

struct gpu_memory_options {
    const struct mesh *mesh;
    const struct program *program; /* of the longest step */
    const struct program_options *shape;
    uint32_t machine_ranks; /* neighbours on one machine */
    bool has_graphs, has_nccl;
    /* The first leaf's gradients of weights are another batch than those of later leaves. */
    bool has_folds;
    bool has_even_shards; /* of every block; all-gathers of uneven shards are made of sends */
    /* NULL: the kernels' scratch is in the plan. `bytes`: of a GPU, for cuDNN; 0: own attention. */
    const struct kernel_shapes *shapes;
    uint64_t bytes;
};
void gpu_memory_estimate(struct gpu_memory *out, const struct gpu_memory_options *options);

#endif
