/* rank.h - one rank with everything it works with: opened in order, closed in reverse. */
#ifndef HOLDFAST_TRAINER_RUN_RANK_H
#define HOLDFAST_TRAINER_RUN_RANK_H

#include "trainer/config/switches.h"
#include "trainer/observe/breaks.h"
#include "trainer/observe/metrics.h"
#include "trainer/observe/stragglers.h"

#include <signal.h>

struct rank {
    struct config *config; /* borrowed, as are world and want_stop */
    struct comm *world;
    const volatile sig_atomic_t *want_stop; /* not 0: asked to stop */
    struct data *data;
    struct ahead *ahead;
    struct data *validation; /* NULL: there is none */
    struct device *device;   /* NULL: the CPU */
    struct kernels *kernels;
    struct model_table *table;
    struct parallel *parallel;
    struct trace *trace; /* NULL: no step is drawn */
    char *environment;   /* environment.h */
    struct snapshot *snapshot;
    struct metrics *metrics;
    struct history history; /* rank 0's goes into checkpoints */
    struct switches switches;
    struct breaks breaks;
    struct stragglers stragglers;
    struct progress progress;
    int64_t loaded_step;      /* behind which this start goes on */
    bool has_stepped;         /* in this start */
    struct recorded recorded; /* rank 0: of a replay */
};

/* Data, kernels, model, layouts, memory, ckptd; of `rank` the borrowed parts are set. Collective;
 * all ranks return the same code. A half opened rank is closed by rank_close too. */
int rank_open(struct rank *rank);
/* What measures on the device and the kernels of a rank, with a lane of its own. */
struct rank_bench {
    struct device *device; /* the rank's, or where that is the host's memory `own` */
    struct device *own;
    struct lane *lane;
};
/* Opens them, and nothing else of the rank. *bench is zero; closed in any case, before the rank. */
int rank_bench_open(struct rank_bench *bench, struct rank *rank, const char *name);
void rank_bench_close(struct rank_bench *bench);
void rank_close(struct rank *rank);
/* From the newest checkpoint, or the initial weights. Collective. */
int rank_load(struct rank *rank);
/* Goes back to the newest checkpoint that is so old as training.roll_back_steps says, or to where
 * the run began, and leaves out the samples of breaks.bad from then on. What is saved from here on
 * is of a new attempt, as it is of a start. Collective. */
int rank_roll_back(struct rank *rank);
/* The loss of the validation set, in the log and the loss file. *out_stop: some rank was asked to
 * stop, and it was given up. Collective. */
int rank_validate(struct rank *rank, bool *out_stop);
/* What is done once per node is this rank's. */
bool rank_is_first_on_node(const struct rank *rank);
/* By the tokenizer's vocabulary, without data: a model that does not fit the machine's memory is
 * refused before its corpus is tokenized, which may take hours. */
int rank_check_fits(const struct rank *rank);
/* The last line of a start that trained: behind which step it ended, and which one is durable. */
void rank_say_end(const struct rank *rank);
/* debug.logits_file: forward of sample 0; rank 0 writes [T, V] floats, little-endian. Collective.
 */
int rank_write_logits(struct rank *rank);
/* Prints what a step takes on a mesh (of comm.ranks ranks when dp_shard is -1; estimate.h), or with
 * debug.print_program the program of the first rank of each stage, without starting any. */
int rank_estimate(struct config *config);

#endif
