/* metrics.h - reports of training: the step line, the loss file, the times of a start.
 *
 * The step line is torchtitan's, with its meanings: tps is tokens per second per rank; tflops
 * counts 6 x (parameters without the embedding) + 12 L H D T per token, which counts full attention
 * although half of it is masked; mfu is 100 x tflops / the peak of the processor, which is
 * metrics.peak_tflops or that of a known GPU (peaks.h), n/a without either; hfu also counts the
 * forwards that activation_checkpoint computes again. memory is the largest resident size of the
 * process since the last line, and its share of the memory of the machine or the control group. If
 * the state is in a GPU's memory, it is the memory in use there at the moment, by all processes: a
 * step allocates none there.
 *
 * metrics.loss_file gets a line per step, "<step> <loss> <gradient norm>", both as C hex floats, so
 * that two runs can be compared bit for bit. It is appended to and flushed every step. After a
 * resume repeated steps appear again, with the same bits: metrics.jsonl_file (jsonl.h) has the
 * attempt of each. Only rank 0 writes. With several sources fields "loss.<source>=<loss>" follow,
 * for sources with samples in the step.
 *
 * The step line further has time, the mean seconds of a step since the last line, and data, the
 * part of it that rank 0 waited for samples; saves, the part of the time since the first step began
 * that training has waited for saves; tokens, the number trained on in the run so far; epoch, the
 * number of passes over the source; with several sources, loss and epoch of each since the last
 * line.
 *
 * On a terminal the last line shows the run's progress (bar.h).
 *
 * After the first step a line counts rank 0's calls between ranks. Loss spikes are logged when they
 * occur (spikes.h).
 *
 * With metrics.enable_tensorboard these numbers, the learning rate, the largest loss of a leaf and
 * those of validations are also written to a file of events, with torchtitan's names
 * (tensorboard.h). Each start has its own file. Its first event has the attempt, and makes
 * TensorBoard drop later steps of older files in the same folder. */
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
    double recomputed_flops; /* per token, by recomputation, in addition */
    double peak_tflops;      /* of a rank's processor; 0: not known */
    double connect_seconds;  /* of the start: time to create the device library's communicators */
    struct device *device;   /* must outlive the metrics; NULL: the CPU */
    struct flight *flight;   /* of the rank, cleared before each step; NULL: no counts */
    /* Of the run; steps of a loaded checkpoint come first (loss_history.h). */
    struct history *history;
};

int metrics_open(struct metrics **out, const struct metrics_options *options);
void metrics_close(struct metrics *metrics);
/* Call when set-up and load are over: the initial weights follow. */
void metrics_loaded(struct metrics *metrics);
/* Call when the weights are complete: the first step after `step` follows. */
void metrics_ready(struct metrics *metrics, const struct snapshot_times *times, int64_t step);
/* The step is undone; the run continues after the step of the next metrics_ready. */
void metrics_left_out(struct metrics *metrics, const struct broken_step *step);
/* The step is out of line; training.outlying decides what happens to it. */
void metrics_outlier(struct metrics *metrics, int64_t step, const struct outlier *outlier);
/* A rank delays the others. */
void metrics_straggler(struct metrics *metrics, int64_t step, const struct straggler *late);
struct validated {
    double loss, seconds;
    uint64_t tokens;
};

/* After a validation: a line in the log, and "<step> validation=<loss>" in the loss file. Its time
 * does not count as a step's. */
void metrics_validation(struct metrics *metrics, const struct progress *progress,
                        const struct validated *validated);
/* Call after each step. The first of a process also logs the duration of the start, in parts. A
 * write error of the loss file is logged once, and training continues. */
void metrics_step(struct metrics *metrics, const struct progress *progress,
                  const struct step_result *result, const struct snapshot_times *times);

#endif
