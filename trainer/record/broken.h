/* broken.h - the steps of a run whose numbers were not finite or out of line, and that were skipped
 * or rolled back (training.nonfinite, training.outlying).
 *
 * The list is part of the run's progress, and of its checkpoints as "broken". It tells people, and
 * a replay of such a step, what happened. Which samples are left out is decided by "left_out"
 * (data/jumps.h) alone. */
#ifndef HOLDFAST_TRAINER_RECORD_BROKEN_H
#define HOLDFAST_TRAINER_RECORD_BROKEN_H

#include "trainer/data/jumps.h"

#include <stdbool.h>

#define BROKEN_STEPS_MAX 64u

struct broken_step {
    int64_t step;
    bool is_outlying;       /* else its loss or gradient norm was not finite */
    bool is_rolled_back;    /* made again without its samples; else its update was skipped */
    struct jump samples;    /* of the step as it was first made */
    double loss, grad_norm; /* NaN: not finite */
    char why[200];
};
struct broken_steps {
    uint32_t num;
    struct broken_step of[BROKEN_STEPS_MAX]; /* in the order of creation */
};

const char *broken_kind(const struct broken_step *step);   /* "nonfinite" or "outlying" */
const char *broken_policy(const struct broken_step *step); /* "skip" or "roll_back" */
/* If the list is full the oldest skipped step is dropped, or else the oldest step. */
void broken_add(struct broken_steps *steps, const struct broken_step *step);
/* Drops the skipped steps after `step`: the run goes back and makes them again. */
void broken_cut(struct broken_steps *steps, int64_t step);
/* The rolled back step that had these samples; NULL: it is not known. */
const struct broken_step *broken_find(const struct broken_steps *steps, int64_t step,
                                      uint64_t first_sample);
/* [{"step": 8, "kind": "nonfinite", "policy": "roll_back", "first_sample": 42, "last_sample": 47,
 * "loss": null, "grad_norm": null, "reason": ".."}, ...]. NULL: no memory. */
json_t *broken_json(const struct broken_steps *steps);
/* Reads broken_json(); NULL: none. Other entries are passed over. */
void broken_read(struct broken_steps *steps, const json_t *json);

#endif
