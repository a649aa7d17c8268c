/* jsonl.h - writes a run's steps as lines of JSON, for other programs.
 *
 * Rank 0 appends to metrics.jsonl_file, and flushes each line. Every line has the `attempt`, so
 * that a plot never mixes an abandoned branch with the one that replaced it:
 *
 *     {"attempt": 3, "start_step": 5, "from_attempt": 1, "time": ..., "run": "tiny"}
 *         a start continues from step 5, which attempt 1 saved. From here on the run's steps are
 *         those of this attempt, before them those of attempt 1 up to 5, and so on. All other lines
 *         are of abandoned branches. Without from_attempt nothing was loaded
 *     {"attempt": 1, "step": 4, "time": ..., "loss": ..., "restored": true}
 *         in a file that was empty: earlier steps, from the checkpoint (loss_history.h)
 *     {"attempt": 2, "step": 6, "time": ..., "loss": ..., "max_loss": ..., "grad_norm": ..., "lr":
 *      ..., "tokens": ..., "first_sample": 30, "last_sample": 35, "tokens_digest": "91b6...",
 *      "data_seconds": ..., "calls": {"dp_shard all_gather": {"calls": 24, "bytes": ..., "sent":
 *      ...}}}
 *         rank 0's calls between ranks, by group and kind (flight.h); samples by their place in the
 *         run's order, with a digest of their tokens; with several sources, "losses" by name. A
 *         repeated step with other tokens has the attempt with the former tokens as
 *         "tokens_differ_from" (digests.h)
 *     {"attempt": 2, "step": 10, "time": ..., "validation_loss": ...}
 *     {"attempt": 2, "step": 12, "time": ..., "loss_spike": "fast", "began": 9, "steps": 3, "most":
 *      ..., "median": ..., "deviation": ...}     spikes.h: "begins", then how it ends
 *
 *     {"attempt": 2, "step": 8, "time": ..., "kind": "nonfinite", "policy": "roll_back", "reason":
 *      "...", "rolled_back": true, "first_sample": 42, "last_sample": 47}
 *         the step is undone, those samples are left out (observe/breaks.h); a start follows. Of
 *         policy "skip" its update is left out: "skipped" instead of "rolled_back"; its line
 *         follows. `kind` is the setting that decided: training.nonfinite or training.outlying
 *     {"attempt": 2, "step": 8, "time": ..., "outlying": "grad_norm", "value": ..., "median": ...,
 *      "deviation": ..., "window": 64, "policy": "skip"}
 *         the step is out of line by its grad_norm or its loss (record/outliers.h), with the policy
 *         of training.outlying. Unless the step is undone, its line follows
 *
 *     {"attempt": 2, "step": 20, "time": ..., "straggler": 5, "host": "n2", "late": 1, "percent":
 *      ..., "others": ...}     stragglers.h: `late` ranks of that host
 *
 * Without checkpoints, or if the start does not save, the attempt is 0. `time` is in seconds since
 * 1970. A number that is not finite is null. */
#ifndef HOLDFAST_TRAINER_JSONL_H
#define HOLDFAST_TRAINER_JSONL_H

#include "trainer/comm/flight.h"
#include "trainer/observe/spikes.h"
#include "trainer/observe/stragglers.h"
#include "trainer/save/snapshot.h"

struct jsonl;

/* A rank's calls in a step. */
struct step_calls {
    struct flight_sum of[FLIGHT_SUMS_MAX];
    uint32_t num;
};

/* ERR_INVALID: the file cannot be opened. */
int jsonl_open(struct jsonl **out, const struct config *config);
void jsonl_close(struct jsonl *jsonl); /* NULL is allowed, as below: nothing is written */
/* A start continues after `step`. `times` has its attempt, and the attempt that saved the loaded
 * checkpoint. If the file is empty, the history comes first. */
void jsonl_start(struct jsonl *jsonl, const struct snapshot_times *times, int64_t step,
                 const struct history *history);
/* A write error is logged once, and ends the file. */
void jsonl_step(struct jsonl *jsonl, const struct progress *progress,
                const struct step_result *result, const struct data_place *place,
                const struct step_calls *calls);
void jsonl_spike(struct jsonl *jsonl, int64_t step, const struct spike *spike);
void jsonl_outlier(struct jsonl *jsonl, int64_t step, const struct outlier *outlier);
void jsonl_straggler(struct jsonl *jsonl, int64_t step, const struct straggler *late);
void jsonl_left_out(struct jsonl *jsonl, const struct broken_step *step);
void jsonl_validation(struct jsonl *jsonl, const struct progress *progress, double loss);

#endif
