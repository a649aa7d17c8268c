/* parallel.h - how a model is spread over ranks, and one training step on them.
 *
 * parallel_apply() is the recipe: mesh -> layouts -> program -> memory plan -> communicators. Its
 * results:
 *
 *   mesh     ranks as a grid of five axes (mesh.h).
 *
 *   layouts  tensor parallel cuts columns or rows of the products, dp_shard the rows of the result
 *            (layout.h). A shard is cut again among its copies (dp_replicate x cp) into pieces;
 *            each rank owns one while gradients are summed. Pipeline stages hold different tensors.
 *
 *   program  a step as a list of operations (plan/program.h), which execute.c runs.
 *
 *   state    this rank's boxes of parameters (float) and both optimizer moments (float or bf16),
 *            which checkpoints save: the same on all copies. With parallelism.zero_stage only the
 *            moments of the rank's pieces.
 *
 * Reduction "canonical" (the default) gives the same bits on every mesh and with every number of
 * threads; see reduce.c. "fast" sums per rank first; the library (NCCL between GPUs) then reduces
 * once per step. Its sums are float, or with training.mixed_precision_reduce bf16. */
#ifndef HOLDFAST_TRAINER_PARALLEL_H
#define HOLDFAST_TRAINER_PARALLEL_H

#include "trainer/config/config.h"
#include "trainer/data/data.h"
#include "trainer/exchange/state.h"
#include "trainer/plan/gpu_memory.h"
#include "trainer/plan/mesh.h"

#include <signal.h>
#include <stdio.h>

struct ahead;
struct memory;
struct parallel;
struct program;

struct parallel_options {
    const struct config *config; /* these must outlive the result */
    const struct model_table *table;
    struct kernels *kernels;
    struct comm *world;
    struct device *device; /* must outlive the result; NULL: the CPU */
};

/* Runs the recipe. With config->estimate it ends after the memory plan; then call only
 * parallel_memory() and parallel_free(). Collective. */
int parallel_apply(struct parallel **out, const struct parallel_options *options);
void parallel_free(struct parallel *parallel);

const struct mesh *parallel_mesh_of(const struct parallel *parallel);
struct state *parallel_state(struct parallel *parallel);
struct lane *parallel_lane(struct parallel *parallel); /* the lane that computes */
const struct memory *parallel_memory(const struct parallel *parallel);
/* The program of the current or last step; before the first, of the longest. */
const struct program *parallel_program(const struct parallel *parallel);
/* Leaves of that step that this rank computes. */
uint32_t parallel_own_leaves(const struct parallel *parallel);
/* Checks that the machine has the memory that its ranks plan for (memory_check.h). apply() does
 * this too, unless memory_estimation.enable is set. */
int parallel_check_room(const struct parallel *parallel);
/* GPU memory outside the plan; all zero for ranks on CPUs. */
void parallel_gpu_memory(const struct parallel *parallel, struct gpu_memory *out);

/* The bytes of a slice of the state in a rank's memory and in its image. */
struct footprint {
    size_t weights; /* and their copy in the compute dtype */
    size_t optimizer;
    size_t gradients; /* all their sums */
    size_t image;     /* copied by a save; copies of a shard write a part each */
};
struct footprint parallel_footprint(const struct parallel *parallel,
                                    const struct state_slice *slice);

/* Initial weights, zero moments. */
int parallel_init_state(struct parallel *parallel, uint64_t seed);
/* The number of this rank's layers that keep each set: [NUM_MODEL_KEEPS]. */
void parallel_count_kept(const struct parallel *parallel, uint32_t *out);
/* The work that recomputation adds per token, in FLOPs as model_flops_per_token() counts them: the
 * forwards of layers that keep nothing. Of the whole model. */
double parallel_recomputed_flops(const struct parallel *parallel);
/* Call whenever state->param has changed: after init, a load or an update. */
void parallel_params_changed(struct parallel *parallel);
void parallel_params_updated(struct parallel *parallel);

/* The observer is called at the start and end of each operation of a step, on the thread that runs
 * it. So calls for other lanes than compute are concurrent. */
struct op;
struct op_observer {
    /* `lane`: of the device, which that thread posts the operation's work on; NULL: of a save's
     * copies. May be NULL. */
    void (*at)(void *user, const struct op *op, uint32_t index, struct lane *lane, bool is_end);
    void *user;
};
void parallel_observe(struct parallel *parallel, const struct op_observer *observer);

/* A save that copies the state after a step. Both calls are for a block's state, in the order of
 * the program. Neither is called for a step that is dropped before. */
struct step_copies {
    /* Lets the save copy the block; the save passes `op` to parallel_note_copy() when the copy
     * begins and ends. False: nothing is left to copy. */
    bool (*post)(void *user, uint32_t block, const struct op *op);
    /* Work posted on the lane from here on runs after the copy. */
    void (*wait)(void *user, uint32_t block, struct lane *lane);
    void *user;
};
void parallel_note_copy(struct parallel *parallel, const struct op *op, bool is_end);

struct step_result;
struct step_input {
    struct ahead *ahead;   /* it reads for this rank; NULL: in a plan, no sample is read */
    uint64_t first_sample; /* of the step */
    int64_t step;
    /* Not 0: this rank was asked to stop; NULL: cannot be asked. */
    const volatile sig_atomic_t *want_stop;
    /* Called on each rank, once in each step that is made: a mask of SWITCH_* (config/switches.h).
     * All ranks get the union of the masks. NULL: 0. */
    unsigned (*poll_switches)(void *user);
    /* Called when loss and norm are known, unless the step is dropped. A result other than 0 ends
     * the step, and is the same on all ranks. Then updates the state of each of this rank's blocks
     * from state->grad, in the order of state->slices. NULL: no update. */
    int (*decide)(void *user, const struct step_result *result);
    void (*update)(void *user, uint32_t block);
    void *user;
    const struct step_copies *copies; /* NULL: no save is under way */
};
struct step_result {
    double loss; /* mean over the step's tokens that count */
    /* Of the leaf with the largest loss, scaled as if its counted tokens were the mean's part. */
    double max_loss;
    double grad_norm;    /* of the whole gradient, before clipping */
    bool stop;           /* some rank was asked to stop: the same on all ranks */
    unsigned seen;       /* union of the masks of all ranks; 0 in a step that is dropped */
    bool is_dropped;     /* before the last micro-step: no step is made, the rest is undefined */
    double data_seconds; /* this rank's waits for samples */
    /* Of the step's inputs and targets: the sum mod 2^64 over its leaves of XXH3-64 of the targets,
     * seeded by that of the inputs, which is seeded by the leaf's number. So all meshes have the
     * same digest. */
    uint64_t tokens_digest;
    /* Per source, if there are several: sum of losses and number of tokens that count. */
    struct source_loss {
        double sum;
        uint64_t counted;
    } sources[DATA_SOURCES_MAX];
};
/* Forward, backward, reduction and update of one step; the gradient stays in state->grad.
 * Collective. */
int parallel_step(struct parallel *parallel, const struct step_input *input,
                  struct step_result *out);

/* The place where the numbers of a step stopped being finite. */
struct step_break {
    uint32_t rank, stage;
    bool is_weight; /* the step began with weights that are not finite */
    bool is_loss;   /* else: the loss of a leaf, else a gradient */
    uint32_t leaf;  /* the first leaf whose loss is not finite; `rank` computed it */
    /* The model's first such weights, or the gradients nearest to the loss; `rank` has its rows;
     * "": none that the norm counts. */
    char tensor[64];
    uint32_t num_tensors; /* with weights or gradients that are not finite, in all stages */
};
/* Call from decide(), when loss or norm is not finite. Collective. */
int parallel_find_break(struct parallel *parallel, struct step_break *out);

/* The samples of a step with the largest loss and the largest gradient, and the tensor in which the
 * latter is farthest out of line. */
struct step_blame {
    struct sample_value {
        uint32_t sample; /* of the step: the first that is not finite, otherwise the largest */
        uint32_t num_finite;
        double value, median; /* gradient: the norm, at the output of the embedding */
    } loss, gradient;
    uint32_t num_samples;
    bool is_named; /* a module was logged as not finite before; the sample is of the same leaf */
    struct blamed_module {
        char what[24], name[64]; /* "output", "layers.3.attention.wq"; "": none is out of line */
        double reach, mean;      /* the largest magnitude of the sample; the mean of all samples */
        uint32_t rank, stage;
    } module;
};
/* Call from decide() of a step with debug.replay_blame. The same on each mesh, but for the rank and
 * the stage. Collective. */
int parallel_blame(struct parallel *parallel, struct step_blame *out);

/* The mean loss of the first `samples` samples of a set that is read in its own order. Its
 * sequences are at most as long as those of training. Collective. */
struct evaluation {
    struct data *data;
    uint64_t samples;
    const volatile sig_atomic_t *want_stop; /* as in struct step_input */
};
struct evaluation_result {
    double loss;
    bool is_dropped; /* some rank was asked to stop */
};
int parallel_evaluate(struct parallel *parallel, const struct evaluation *of,
                      struct evaluation_result *out);

/* Forward of samples [first_sample, ...); rank 0 gets [T, V] logits of the first. ERR_INVALID if
 * tensor, context or pipeline parallel cuts them. Collective. */
int parallel_logits(struct parallel *parallel, struct ahead *ahead, uint64_t first_sample,
                    float *out_logits);

/* All ranks exchange the result of a call and return the same code: 0, or that of the lowest rank
 * that failed, which is *out_first. parallel_agree keeps the last error on that rank only, so that
 * it is printed once; the quiet form does not change last errors. If the exchange fails, each rank
 * returns its own error, or that of the exchange. Collective. */
int parallel_agree(struct comm *world, int rc);
int parallel_agree_quietly(struct comm *world, int rc, uint32_t *out_first);

#endif
