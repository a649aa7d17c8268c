/* execution.h - the program of a step on its way, and struct parallel, of which it is the last
 * part: execute.c runs programs; step.c, evaluate.c and watch.c use it. */
#ifndef HOLDFAST_TRAINER_PARALLEL_EXECUTION_H
#define HOLDFAST_TRAINER_PARALLEL_EXECUTION_H

#include "trainer/exchange/exchange.h"
#include "trainer/parallel/parallel.h"

#define ROUND_NUMBERS 3u /* that a rank brings to a round of an evaluation */

/* The tokens of a leaf, [B, T] in the order of this rank's rows. */
struct tokens {
    int32_t *inputs, *targets, *starts;   /* starts: NULL without training.document_mask */
    int32_t *own, *own_or_other, *owners; /* model_localize; NULL without tensor parallel */
};
/* They are read on the host and copied whole. */
struct leaf_tokens {
    struct tokens host, device;
    struct mark copied; /* until then the host's must stay */
};

/* The numbers of a step, of which the device and the host have one each. */
struct step_numbers {
    struct kernel_exact_sum squares;
    float loss_scale;
};

struct execution {
    struct program *program, *evaluation; /* of the step at hand, or of the longest */
    uint32_t round_leaves;                /* of that program */
    struct transfers *transfers;          /* NULL: one stage */
    struct side_lanes *sides;             /* NULL: everything is compute's */
    struct op_observer observer;
    struct watch *watch;        /* NULL: debug.watch_numbers is off */
    struct blame *blame;        /* NULL: debug.replay_blame is off */
    struct leaf_tokens *tokens; /* [num_reads] */
    struct tokens raw;          /* host: in the order of the data, where rows have another */
    struct step_numbers *numbers, *host_numbers;
    float *row_losses; /* [leaves][B, T], PINNED as the next two; NULL: another stage has them */
    double *losses, *all_losses;
    uint32_t leaf_values; /* that are gathered of each leaf: see gather_losses */
    uint64_t counted;     /* tokens of the step that count; 0: all do */
    uint64_t digest;      /* of the step's leaves that this rank has to count */
    int failure; /* of this rank alone, in this step: all learn of it at the end of the step */
    bool has_warned_of_masks;
};

struct parallel {
    const struct rank_plan *plan;
    struct state state;
    struct exchange exchange;
    struct execution run;
};

/* Of the step's program alone. */
static inline void observe(const struct parallel *p, const struct op *op, bool is_end)
{
    if (p->run.observer.at != NULL && op >= p->run.program->ops &&
        op < p->run.program->ops + p->run.program->num_ops)
        p->run.observer.at(p->run.observer.user, op, (uint32_t)(op - p->run.program->ops), is_end);
}

static inline double tokens_that_count(const struct parallel *p)
{
    double leaf = (double)rows_of_leaf(p->plan);
    return p->run.counted > 0 ? (double)p->run.counted : (double)p->exchange.leaves.num * leaf;
}

/* Of any leaf of the step, when all ranks have them. */
static inline const double *gathered_of_leaf(const struct parallel *p, uint32_t leaf)
{
    uint32_t rank, micro_step;
    leaves_find(&p->exchange.leaves, leaf, &rank, &micro_step);
    size_t place = (size_t)rank * leaves_micro_steps(&p->exchange.leaves) + micro_step;
    return p->run.all_losses + place * p->run.leaf_values;
}

/* Likewise its mean loss, as if its tokens that count were its part of the step's. */
static inline double loss_of_leaf(const struct parallel *p, uint32_t leaf)
{
    return gathered_of_leaf(p, leaf)[0] / (tokens_that_count(p) / (double)p->exchange.leaves.num);
}

/* ---- parallel.c ---- */

/* Of the step at hand. */
void set_leaves(struct parallel *p, uint32_t num_leaves);
/* parallel_apply with what layers keep, as programs_plan has it. */
int parallel_try(struct parallel **out, const struct parallel_options *options,
                 const uint8_t *keep);

/* ---- budget.c ---- */

/* What layers keep, by the bytes that a rank may take. ERR_INVALID: too few. */
int budget_choose(uint8_t *keep, const struct parallel_options *options);

/* ---- pinned.c ---- */

/* While the memory is planned: the tokens' places on the device. */
void pinned_take_tokens(struct parallel *p);
/* Afterwards: all that the host has. The state starts as zeros. */
int pinned_take(struct parallel *p);
void pinned_free(struct parallel *p);

/* ---- execute.c ---- */

/* What a program is run with; the walk of a memory plan has no input. */
struct walk {
    const struct step_input *input;
    bool is_asked_to_stop;
    bool is_common; /* the error that ends it is that of all ranks: each ends by itself */
    const struct model_batch *batch; /* of an evaluation; NULL there: walk */
    float *logits;                   /* or NULL */
    int (*at_op)(struct parallel *p, struct walk *e, const struct op *op);
    const struct step_copies *copies; /* of a save that may go on; NULL: none does */
};
int execute_program(struct parallel *p, const struct program *program, struct walk *e);
/* Threads for the lanes beside compute, where the program has any and the communicators allow it.
 * ERR_BUSY, ERR_MEMORY. Closing waits for what is on them. */
int side_lanes_open(struct parallel *p);
void side_lanes_close(struct parallel *p);
int transfers_new(struct parallel *p);
void transfers_free(struct parallel *p);
void transfers_take(struct parallel *p); /* their buffers, which live for the whole run */

/* ---- watch.c ---- */

int watch_open(struct parallel *p);
void watch_close(struct watch *watch);
void watch_step(struct parallel *p, int64_t step); /* which begins */
/* Around an operation of a program. */
void watch_begin(struct parallel *p, const struct program *program, const struct op *op);
int watch_end(struct parallel *p, const struct op *op);
/* Behind all leaves of the step: has a rank seen what ends the run? Then the code of the one that
 * saw it first, which has the last error. With debug.replay_blame it is said only. Collective. */
int watch_agree(struct parallel *p, int64_t step, bool *out_is_broken);

/* ---- blame.c ---- */

/* With debug.replay_blame. So many numbers may be noted of a leaf. */
int blame_open(struct parallel *p, uint32_t num_notes);
void blame_close(struct blame *blame);
/* Behind an operation that is watched, with what its notes reach on the host: `first` is the number
 * of the first one among all of a leaf, which have the same on each rank. */
int blame_look(struct parallel *p, const struct op *op, uint32_t first,
               const struct model_notes *notes, const struct kernel_extent *extents);
/* The module is named already. */
void blame_is_named(struct blame *blame);

/* ---- step.c ---- */

/* Of a leaf of this rank, whose losses the lane has brought to the host: their sum in double, in
 * the order of rows, and those of each sequence [B], or NULL. 0 where they are another stage's. */
double step_sum_losses(const struct parallel *p, uint32_t leaf, double *out_sequences);
/* So many bytes of `losses` of each data rank, which the last stage has, to `all_losses` of all
 * ranks. A group of one is NULL. */
int step_gather_losses(struct parallel *p, struct comm *data, struct comm *stages, size_t each);
/* Where the host may put the numbers of a leaf in the order of the data: the last that were copied
 * from there are copied. */
int step_begin_tokens(struct parallel *p, struct leaf_tokens *tokens, struct tokens *out_raw);
/* A leaf that could not be read is computed of zeros: the step is void, all learn it at its end. */
void step_clear_tokens(const struct parallel *p, const struct tokens *raw);
/* From there, in the order of this rank's rows, to the device. */
void step_send_tokens(struct parallel *p, const struct tokens *raw, struct leaf_tokens *tokens);
/* What the model gets of a leaf, where it was sent. */
struct model_batch step_batch(const struct parallel *p, const struct leaf_tokens *tokens);

#endif
