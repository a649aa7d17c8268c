/* outliers.h - steps whose numbers are finite, but out of line (training.outlying).
 *
 * A step is an outlier when its loss or its gradient norm is more than
 * training.outlying_deviations deviations above the median of the last training.outlying_window
 * steps. A deviation is that of base/median.h, at least 1/20 of the median. Nothing is one until
 * half as many steps are there. A step that updates nothing, or is taken back, does not count among
 * them.
 *
 * The numbers of those steps are part of the run's progress, and of its checkpoints as "outlying".
 * So a start on any mesh judges a step as the undisturbed run does. Medians and comparisons are
 * exact: where losses have the same bits, so has the judgement. */
#ifndef HOLDFAST_TRAINER_RECORD_OUTLIERS_H
#define HOLDFAST_TRAINER_RECORD_OUTLIERS_H

#include "proto/model/loss_history.h"
#include "trainer/config/config.h"

#define OUTLIERS_LISTED 64u

struct outliers {
    struct history loss, norm;        /* of the window, the oldest first: `num` and values alone */
    int64_t skipped[OUTLIERS_LISTED]; /* the last steps whose update was left out */
    uint32_t num_skipped;
};

/* What is out of line, by which numbers. */
struct outlier {
    bool is_norm; /* the gradient norm, else the loss: of both the one that is farther */
    double value, median, deviation;
    uint32_t window; /* steps of the median */
};

/* false: the step is none, or training.outlying is off. */
bool outliers_find(const struct outliers *outliers, const struct config *config, double loss,
                   double norm, struct outlier *out);
/* What later steps are measured by. */
void outliers_add(struct outliers *outliers, const struct config *config, double loss, double norm);
void outliers_skip(struct outliers *outliers, int64_t step);
/* {"losses": .., "norms": .., "skipped": [..]}, 16 digits of each number. NULL: no memory. */
json_t *outliers_json(const struct outliers *outliers);
/* Of outliers_json; NULL: none. ERR_CORRUPT: it is something else. */
int outliers_read(struct outliers *outliers, const json_t *json);

#endif
