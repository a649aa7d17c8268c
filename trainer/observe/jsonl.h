/* jsonl.h - what a run says of each step, as lines of JSON that other programs read.
 *
 * metrics.jsonl_file is appended to by rank 0, and flushed with each line. Every line has the
 * `attempt`, so that a plot never mixes a branch that was abandoned with the one that replaced it:
 *
 *     {"attempt": 3, "start_step": 5, "from_attempt": 1, "time": ..., "run": "tiny"}
 *         a start goes on from the step 5 that attempt 1 saved. From here on the run's steps are
 *         its own, before them those of attempt 1 up to 5, and so on from where that began. All
 *         other lines are of a branch that was abandoned. Without from_attempt nothing was loaded
 *     {"attempt": 1, "step": 4, "time": ..., "loss": ..., "restored": true}
 *         in a file that was empty: steps before, as the checkpoint has them (loss_history.h)
 *     {"attempt": 2, "step": 6, "time": ..., "loss": ..., "max_loss": ..., "grad_norm": ..., "lr":
 *      ..., "tokens": ..., "first_sample": 30, "last_sample": 35, "tokens_digest": "91b6...",
 *      "data_seconds": ..., "calls": {"dp_shard all_gather": {"calls": 24, "bytes": ..., "sent":
 *      ...}}}
 *         rank 0's calls of other ranks, by group and kind (flight.h); samples by their place in
 *         the run's order, with a digest of their tokens; of several sources, "losses" by name. A
 *         step made again of other tokens has the attempt that it differs from as
 *         "tokens_differ_from" (digests.h)
 *     {"attempt": 2, "step": 10, "time": ..., "validation_loss": ...}
 *     {"attempt": 2, "step": 12, "time": ..., "loss_spike": "fast", "began": 9, "steps": 3, "most":
 *      ..., "median": ..., "deviation": ...}     spikes.h: "begins", then how it ends
 *
 *     {"attempt": 2, "step": 8, "time": ..., "rolled_back": true, "first_sample": 42,
 *      "last_sample": 47}
 *         the step is taken back, those samples are left out (observe/breaks.h); a start follows
 *     {"attempt": 2, "step": 8, "time": ..., "outlying": "grad_norm", "value": ..., "median": ...,
 *      "deviation": ..., "window": 64, "policy": "skip"}
 *         the step is out of line by its grad_norm or its loss (record/outliers.h), and what
 *         training.outlying makes of it: the line of a step that is not taken back follows
 *
 *     {"attempt": 2, "step": 20, "time": ..., "straggler": 5, "host": "n2", "late": 1, "percent":
 *      ..., "others": ...}     stragglers.h: `late` ranks of that host
 *
 * Without checkpoints, and where nothing is saved, the attempt is 0. `time` is in seconds since
 * 1970. A number that is not finite is null. */
#ifndef HOLDFAST_TRAINER_JSONL_H
#define HOLDFAST_TRAINER_JSONL_H

#include "trainer/comm/flight.h"
#include "trainer/observe/spikes.h"
#include "trainer/observe/stragglers.h"
#include "trainer/save/snapshot.h"

struct jsonl;

/* What a rank has called in a step. */
struct step_calls {
    struct flight_sum of[FLIGHT_SUMS_MAX];
    uint32_t num;
};

/* ERR_INVALID: it cannot be opened. */
int jsonl_open(struct jsonl **out, const struct config *config);
void jsonl_close(struct jsonl *jsonl); /* NULL is allowed, as below: nothing is written */
/* A start goes on behind `step`; of `times` its attempt, and the one that it goes on from, whose
 * history goes before where the file was empty. */
void jsonl_start(struct jsonl *jsonl, const struct snapshot_times *times, int64_t step,
                 const struct history *history);
/* What could not be written is said once, and ends the file. */
void jsonl_step(struct jsonl *jsonl, const struct progress *progress,
                const struct step_result *result, const struct data_place *place,
                const struct step_calls *calls);
void jsonl_spike(struct jsonl *jsonl, int64_t step, const struct spike *spike);
void jsonl_outlier(struct jsonl *jsonl, int64_t step, const struct outlier *outlier);
void jsonl_straggler(struct jsonl *jsonl, int64_t step, const struct straggler *late);
void jsonl_rolled_back(struct jsonl *jsonl, int64_t step, const struct jump *left_out);
void jsonl_validation(struct jsonl *jsonl, const struct progress *progress, double loss);

#endif
