/* dry.h - a step of one rank of any mesh, made without memory, arithmetic and other ranks: what the
 * real one computes and sends, counted operation by operation.
 *
 * The rank is set up on device_dry with a dry communicator and counting kernels, and its step is
 * run by the executor as any other is. So nothing here repeats a formula of the model or of a
 * collective. */
#ifndef HOLDFAST_TRAINER_DRY_H
#define HOLDFAST_TRAINER_DRY_H

#include "trainer/comm/flight.h"
#include "trainer/parallel/hints.h"
#include "trainer/parallel/parallel.h"
#include "trainer/plan/program.h"
#include "trainer/plan/rates.h"

/* Modules as torchtitan names them; the last is what belongs to no single one. */
enum module {
    MODULE_EMBEDDING,
    MODULE_ATTENTION,
    MODULE_FFN,
    MODULE_OUTPUT,
    MODULE_STREAM,
    NUM_MODULES
};
const char *module_name(enum module module);

/* Of one rank, in bytes but for the elements. Activations are the most at a time; moments, weights
 * and gradients are kept for the whole run. */
struct module_memory {
    uint64_t elements, weights, gradients, optimizer, activations;
};

struct dry_rank {
    uint32_t rank, stage_rank;
    struct module_memory of[NUM_MODULES];
    /* All modules together; gathered: parameters, gradients and streams on their way. */
    uint64_t activations, gathered, scratch;
    uint64_t kept, shared, host;      /* of the plan: what the rank allocates, where */
    struct gpu_memory gpu;            /* beside the plan */
    uint32_t layers[NUM_MODEL_KEEPS]; /* of the rank: how many keep what */
    uint64_t image;                   /* bytes of a save, in ckptd's memory */
    uint32_t leaves;                  /* of this rank in the step */
    uint64_t work[NUM_OP_KINDS]; /* floating-point operations; OP_KEYS are of what they belong to */
    struct flight_sum sent[FLIGHT_SUMS_MAX];
    uint32_t num_sent;
    uint64_t away; /* of what is sent: to other machines (plan/rates.h) */
    double bubble;
    /* Where there are rates: the critical path of the rank's program, which waits for no other
     * stage; and its products alone. */
    double seconds, compute_seconds;
    struct hint hints[HINTS_MAX];
    uint32_t num_hints;
};

struct dry_options {
    const struct config *config; /* its `estimate` is not looked at */
    const struct model_table *table;
    struct kernels *kernels; /* real ones, for the scratch that they need */
    uint32_t rank, size;
    const struct rates *rates; /* NULL: none */
    FILE *plan;                /* the plan's buffers are printed to it; NULL: not */
};
/* In a step with the most leaves. Errors as parallel_apply. */
int dry_run(struct dry_rank *out, const struct dry_options *options);

#endif
