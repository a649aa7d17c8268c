/* rank.h - one rank and its parts: opened in order, closed in reverse. */
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
    const volatile sig_atomic_t *want_stop; /* not 0: this rank was asked to stop */
    struct data *data;
    struct ahead *ahead;
    struct data *validation; /* NULL: none */
    struct device *device;   /* NULL: the CPU */
    struct kernels *kernels;
    struct model_table *table;
    struct parallel *parallel;
    struct trace *trace; /* NULL: no step is drawn */
    char *environment;   /* environment.h */
    struct snapshot *snapshot;
    struct metrics *metrics;
    struct history history; /* checkpoints have rank 0's */
    struct switches switches;
    struct breaks breaks;
    struct stragglers stragglers;
    struct progress progress;
    int64_t loaded_step;      /* the step from which this start continues */
    bool has_stepped;         /* this start has made a step */
    int64_t in_step;          /* the step under way, with its validation and save; 0: none */
    struct recorded recorded; /* rank 0: for a replay */
    /* The replayed step as it was first made, if it was undone; else it has no samples. Step 0: its
     * numbers are not known. */
    struct broken_step undone;
};

/* Opens data, kernels, model, layouts, memory, ckptd; the caller has set the borrowed parts of
 * `rank`. Collective; all ranks return the same code. rank_close also closes a rank that is only
 * partly open. */
int rank_open(struct rank *rank);
/* A lane for measurements on the device and the kernels of a rank. */
struct rank_bench {
    struct device *device; /* the rank's; `own` if the rank's is host memory */
    struct device *own;
    struct lane *lane;
};
/* Opens them, and no other part of the rank. *bench is zero; close it in any case, before the
 * rank. */
int rank_bench_open(struct rank_bench *bench, struct rank *rank, const char *name);
void rank_bench_close(struct rank_bench *bench);
/* The peak of its processor in the compute type: metrics.peak_tflops or its data sheet; 0: not
 * known. Call it when the kernels are open. */
double rank_peak_tflops(const struct rank *rank);
void rank_close(struct rank *rank);
/* Loads the newest checkpoint, or initialises weights. Collective. */
int rank_load(struct rank *rank);
/* Goes back to the newest checkpoint that is at least training.roll_back_steps old, or to the start
 * of the run. Leaves out the samples of breaks.bad from then on. Later saves belong to a new
 * attempt, as after a start. Collective. */
int rank_roll_back(struct rank *rank);
/* Writes the loss of the validation set to the log and the loss file. *out_stop: some rank was
 * asked to stop, and the validation was aborted. Collective. */
int rank_validate(struct rank *rank, bool *out_stop);
/* True if this rank does the work that is done once per node. */
bool rank_is_first_on_node(const struct rank *rank);
/* Refuses a model that does not fit the machine's memory before its corpus is tokenized, which may
 * take hours. It uses the tokenizer's vocabulary, without data. */
int rank_check_fits(const struct rank *rank);
/* Logs the last line of a start that trained: its last step, and the durable one. */
void rank_log_end(const struct rank *rank);
/* debug.logits_file: forward of sample 0; rank 0 writes [T, V] floats, little-endian. Collective.
 */
int rank_write_logits(struct rank *rank);
/* Prints the cost of a step on a mesh (of comm.ranks ranks if dp_shard is -1; estimate.h). With
 * debug.print_program prints the program of the first rank of each stage. Starts no ranks. */
int rank_estimate(struct config *config);

#endif
