/* execution.h - the program of a step that is running. It is the last part of struct parallel.
 * execute.c runs programs; step.c, evaluate.c and watch.c use it. */
#ifndef HOLDFAST_TRAINER_PARALLEL_EXECUTION_H
#define HOLDFAST_TRAINER_PARALLEL_EXECUTION_H

#include "trainer/exchange/exchange.h"
#include "trainer/parallel/parallel.h"

#include <string.h>

#define ROUND_NUMBERS 3u /* of a rank, in a round of an evaluation */

/* The tokens of a leaf, [B, T] in the order of this rank's rows. */
struct tokens {
    int32_t *inputs, *targets, *starts;   /* starts: NULL without training.document_mask */
    int32_t *own, *own_or_other, *owners; /* model_localize; NULL without tensor parallel */
};
/* They are read on the host and copied in one piece. */
struct leaf_tokens {
    struct tokens host, device;
    struct mark copied; /* the host's tokens must not change before this mark */
};

/* The numbers of a step; the device and the host have one each. */
struct step_numbers {
    struct kernel_exact_sum squares;
    float loss_scale;
    uint32_t broken; /* all bits set: a NaN of each dtype, for hooks_break_sample */
};

struct execution {
    struct program *program, *evaluation; /* of the current step, or of the longest */
    uint32_t round_leaves;                /* of that program */
    struct transfers *transfers;          /* NULL: one stage */
    struct side_lanes *sides;             /* NULL: all operations run on the compute lane */
    struct op_observer observer;
    struct watch *watch;        /* NULL: debug.watch_numbers is off */
    struct blame *blame;        /* NULL: debug.replay_blame is off */
    struct leaf_tokens *tokens; /* [num_reads] */
    struct tokens raw;          /* host: in the order of the data, if rows have another order */
    struct step_numbers *numbers, *host_numbers;
    /* [leaves][B, T], PINNED as the next two; NULL: another stage has the losses. */
    float *row_losses;
    double *losses, *all_losses;
    uint32_t leaf_values; /* gathered per leaf: see gather_losses */
    uint64_t counted;     /* the step's tokens that count; 0: all */
    bool has_sources;     /* losses are summed by source */
    uint64_t digest;      /* of the step's leaves that this rank has to digest */
    int failure;          /* of this rank in this step; all ranks learn of it when the step ends */
    bool has_warned_of_masks;
};

struct parallel {
    const struct rank_plan *plan;
    struct state state;
    struct exchange exchange;
    struct execution run;
};

/* Called for operations of the step's program only. */
static inline void observe(const struct parallel *p, const struct op *op, struct lane *lane,
                           bool is_end)
{
    uint32_t index = (uint32_t)(op - p->run.program->ops);
    if (p->run.observer.at != NULL && op >= p->run.program->ops && index < p->run.program->num_ops)
        p->run.observer.at(p->run.observer.user, op, index, lane, is_end);
}

static inline double tokens_that_count(const struct parallel *p)
{
    double leaf = (double)rows_of_leaf(p->plan);
    return p->run.counted > 0 ? (double)p->run.counted : (double)p->exchange.leaves.num * leaf;
}

/* The gathered values of any leaf of the step. */
static inline const double *gathered_of_leaf(const struct parallel *p, uint32_t leaf)
{
    uint32_t rank, micro_step;
    leaves_find(&p->exchange.leaves, leaf, &rank, &micro_step);
    size_t place = (size_t)rank * leaves_micro_steps(&p->exchange.leaves) + micro_step;
    return p->run.all_losses + place * p->run.leaf_values;
}

/* Its mean loss, scaled as if its counted tokens were its part of the step's. */
static inline double loss_of_leaf(const struct parallel *p, uint32_t leaf)
{
    return gathered_of_leaf(p, leaf)[0] / (tokens_that_count(p) / (double)p->exchange.leaves.num);
}

/* The magnitude of which a struct kernel_extent has the bits. */
static inline double extent_value(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* ---- parallel.c ---- */

/* Sets the leaves of the current step. */
void set_leaves(struct parallel *p, uint32_t num_leaves);
/* parallel_apply with what layers keep, as programs_plan takes it. */
int parallel_try(struct parallel **out, const struct parallel_options *options,
                 const uint8_t *keep);

/* ---- budget.c ---- */

/* Chooses what layers keep from the bytes that a rank may use. ERR_INVALID: too few bytes. */
int budget_choose(uint8_t *keep, const struct parallel_options *options);

/* ---- pinned.c ---- */

/* Call while the memory is planned: takes the tokens' buffers on the device. */
void pinned_take_tokens(struct parallel *p);
/* Call afterwards: allocates all host buffers. The state starts as zeros. */
int pinned_take(struct parallel *p);
void pinned_free(struct parallel *p);

/* ---- execute.c ---- */

/* Arguments of a program's run; the walk of a memory plan has no input. */
struct walk {
    const struct step_input *input;
    bool is_asked_to_stop;
    bool is_common;                  /* all ranks have the same error: each ends by itself */
    const struct model_batch *batch; /* of an evaluation; NULL there: only walk */
    float *logits;                   /* or NULL */
    int (*at_op)(struct parallel *p, struct walk *e, const struct op *op);
    const struct step_copies *copies; /* of a save that may be under way; NULL: none */
};
int execute_program(struct parallel *p, const struct program *program, struct walk *e);
/* Threads for the lanes beside compute, if the program has any and the communicators allow it.
 * ERR_BUSY, ERR_MEMORY. Closing waits for their work. */
int side_lanes_open(struct parallel *p);
void side_lanes_close(struct parallel *p);
int transfers_new(struct parallel *p);
void transfers_free(struct parallel *p);
void transfers_take(struct parallel *p); /* their send buffers, for the whole run */

/* ---- watch.c ---- */

int watch_open(struct parallel *p);
void watch_close(struct watch *watch);
void watch_step(struct parallel *p, int64_t step); /* call when the step begins */
/* Call before and after an operation of a program. */
void watch_begin(struct parallel *p, const struct program *program, const struct op *op);
int watch_end(struct parallel *p, const struct op *op);
/* Call after all leaves of the step. Returns the code of the rank that first saw a value that ends
 * the run; that rank has the last error. With debug.replay_blame it is only logged. Collective. */
int watch_agree(struct parallel *p, int64_t step, bool *out_is_broken);

/* ---- blame.c ---- */

/* Does nothing without debug.replay_blame. `num_notes`: the most notes of a leaf. `notes` gets
 * buffers of the blame, so that it records samples. */
int blame_open(struct parallel *p, uint32_t num_notes, struct model_notes *notes);
void blame_close(struct blame *blame, struct device *device);
/* Call after a watched operation, with its notes and their extents on the host. `first`: the number
 * of the first note among all notes of a leaf, the same on each rank. */
int blame_add_notes(struct parallel *p, const struct op *op, uint32_t first,
                    const struct model_notes *notes, const struct kernel_extent *extents);
/* Call when the module is named already, as not finite in the leaf. */
void blame_is_named(struct blame *blame, uint32_t leaf);

/* ---- step.c ---- */

/* The sum of a leaf's losses in double, in the order of rows; the lane has copied them to the host.
 * `out_sequences`: the sums of each sequence [B], or NULL. 0 if another stage has the losses. */
double step_sum_losses(const struct parallel *p, uint32_t leaf, double *out_sequences);
/* Gathers `each` bytes of `losses` of each data rank, which the last stage has, to `all_losses` of
 * all ranks. A group of one rank is NULL. */
int step_gather_losses(struct parallel *p, struct comm *data, struct comm *stages, size_t each);
/* Where the host may write the tokens of a leaf in the order of the data. Waits until the previous
 * copy from there has ended. */
int step_begin_tokens(struct parallel *p, struct leaf_tokens *tokens, struct tokens *out_raw);
/* Fills a leaf that could not be read with zeros: the step is void, and all ranks learn it when it
 * ends. */
void step_clear_tokens(const struct parallel *p, const struct tokens *raw);
/* Copies tokens to the device, in the order of this rank's rows. */
void step_send_tokens(struct parallel *p, const struct tokens *raw, struct leaf_tokens *tokens);
/* The model's input of a leaf that was sent. */
struct model_batch step_batch(const struct parallel *p, const struct leaf_tokens *tokens);

#endif
