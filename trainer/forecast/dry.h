/* dry.h - runs a step of one rank of any mesh without memory, arithmetic and other ranks: it counts
 * the work and traffic of the real step, operation by operation.
 *
 * The rank is set up on device_dry with a dry communicator and counting kernels, and the executor
 * runs its step as any other. So no formula of the model or of a collective is repeated here. */
#ifndef HOLDFAST_TRAINER_DRY_H
#define HOLDFAST_TRAINER_DRY_H

#include "trainer/comm/flight.h"
#include "trainer/parallel/hints.h"
#include "trainer/parallel/parallel.h"
#include "trainer/plan/program.h"
#include "trainer/plan/rates.h"

/* Modules by torchtitan's names; the last is for buffers of no single module. */
enum module {
    MODULE_EMBEDDING,
    MODULE_ATTENTION,
    MODULE_FFN,
    MODULE_OUTPUT,
    MODULE_STREAM,
    NUM_MODULES
};
const char *module_name(enum module module);

/* Of one rank, in bytes, except `elements`. Activations are the most at a time; moments, weights
 * and gradients are kept for the whole run. */
struct module_memory {
    uint64_t elements, weights, gradients, optimizer, activations;
};

struct dry_rank {
    uint32_t rank, stage_rank;
    struct module_memory of[NUM_MODULES];
    /* All modules together; gathered: parameters, gradients and streams in transit. */
    uint64_t activations, gathered, scratch;
    uint64_t kept, shared, host;      /* of the plan: the rank's allocations */
    struct gpu_memory gpu;            /* outside the plan */
    uint32_t layers[NUM_MODEL_KEEPS]; /* number of the rank's layers that keep each set */
    uint64_t image;                   /* bytes of a save, in ckptd's memory */
    uint32_t leaves;                  /* of this rank in the step */
    /* Floating-point operations; OP_KEYS count for their layer's operation. */
    uint64_t work[NUM_OP_KINDS];
    struct flight_sum sent[FLIGHT_SUMS_MAX];
    uint32_t num_sent;
    uint64_t away; /* part of the sent bytes: to other machines (plan/rates.h) */
    double bubble;
    /* With rates: the critical path of the rank's program, without waits for other stages; and its
     * products only. */
    double seconds, compute_seconds;
    struct hint hints[HINTS_MAX];
    uint32_t num_hints;
};

struct dry_options {
    const struct config *config; /* its `estimate` is ignored */
    const struct model_table *table;
    struct kernels *kernels; /* real kernels, for the scratch that they need */
    uint32_t rank, size;
    const struct rates *rates; /* NULL: none */
    FILE *plan;                /* the plan's buffers are printed to it; NULL: not printed */
};
/* Runs a step with the most leaves. Errors as parallel_apply. */
int dry_run(struct dry_rank *out, const struct dry_options *options);

#endif
