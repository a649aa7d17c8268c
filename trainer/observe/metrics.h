/* metrics.h - what training says about itself: the step line, the loss file, the times of a start.
 *
 * The step line is torchtitan's, with its meanings: tps is tokens per second per rank; tflops
 * counts 6 x (parameters without the embedding) + 12 L H D T per token, which takes attention for
 * full though half of it is masked; mfu is 100 x tflops / the peak of the processor, which is
 * metrics.peak_tflops or that of a known GPU (peaks.h), n/a where neither is; hfu is the same with
 * the forwards that activation_checkpoint computes again.
 * memory is the largest resident size of the process since the last line, and its share of what the
 * machine or the control group has; where the state is in a GPU's memory, what is taken of that at
 * the moment, by whomever: a step allocates none there.
 *
 * metrics.loss_file gets a line per step, "<step> <loss> <gradient norm>", both as C hex floats, so
 * that two runs can be compared bit for bit. It is appended to and flushed every step; after a
 * resume, steps made again appear again, with the same bits: metrics.jsonl_file (jsonl.h) says of
 * which attempt each is. Only rank 0 writes. With several sources fields
 * "loss.<source>=<loss>" follow, of those that the step had samples of.
 *
 * The step line further has time, the mean seconds of a step since the last line, and data, the
 * part of it that rank 0 waited for samples; saves, the part of the time since the first step began
 * that training has waited for saves; tokens, trained on in the run so far; epoch, how often
 * the source has been read; with several sources, loss and epoch of each since the last line.
 *
 * On a terminal a last line says how far the run is (bar.h).
 *
 * After the first step a line counts what rank 0 has called of other ranks. Losses that leap are
 * said as they come (spikes.h).
 *
 * With metrics.enable_tensorboard these numbers, the learning rate, the loss of the leaf with most
 * and those of a validation go to a file of events as well, by torchtitan's names
 * (tensorboard.h). Each start has a file of its own there, whose first event has its attempt and
 * lets TensorBoard forget what an older file of the same folder has of later steps. */
#ifndef HOLDFAST_TRAINER_METRICS_H
#define HOLDFAST_TRAINER_METRICS_H

#include "trainer/observe/stragglers.h"
#include "trainer/save/snapshot.h"

struct metrics;

struct metrics_options {
    const struct config *config; /* must outlive the metrics */
    uint32_t rank, num_ranks;
    const struct data *data; /* must outlive the metrics */
    double flops_per_token;
    double recomputed_flops; /* beside them */
    double peak_tflops;      /* of a rank's processor; 0: not known */
    double connect_seconds;  /* of the start, for communicators of the device's library */
    struct device *device;   /* must outlive the metrics; NULL: the CPU */
    struct flight *flight;   /* of the rank, cleared in front of each step; NULL: nothing counts */
    struct history *history; /* of the run; what a load found goes first (loss_history.h) */
};

int metrics_open(struct metrics **out, const struct metrics_options *options);
void metrics_close(struct metrics *metrics);
/* Set-up and load are over: what follows gives the weights their first values. */
void metrics_loaded(struct metrics *metrics);
/* The weights are there: what follows is the first step behind `step`. */
void metrics_ready(struct metrics *metrics, const struct snapshot_times *times, int64_t step);
/* The step is taken back, and the run goes on behind the step that metrics_ready says next. */
void metrics_rolled_back(struct metrics *metrics, int64_t step, const struct jump *left_out);
/* The step is out of line; training.outlying says what becomes of it. */
void metrics_outlier(struct metrics *metrics, int64_t step, const struct outlier *outlier);
/* A rank holds the others up. */
void metrics_straggler(struct metrics *metrics, int64_t step, const struct straggler *late);
struct validated {
    double loss, seconds;
    uint64_t tokens;
};

/* After a validation: a line in the log, and "<step> validation=<loss>" in the loss file. Its time
 * is no step's. */
void metrics_validation(struct metrics *metrics, const struct progress *progress,
                        const struct validated *validated);
/* After each step. The first of a process also logs how long the start took, in parts. A loss file
 * that cannot be written is said once, and training goes on. */
void metrics_step(struct metrics *metrics, const struct progress *progress,
                  const struct step_result *result, const struct snapshot_times *times);

#endif
