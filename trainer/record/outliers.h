/* outliers.h - steps whose numbers are finite, but out of line (training.outlying).
 *
 * A step is an outlier when its loss or its gradient norm is more than
 * training.outlying_deviations deviations above the median of the last training.outlying_window
 * steps. A deviation is that of base/median.h, at least 1/20 of the median. There are no outliers
 * until the window is half full. Steps without an update, and undone steps, do not enter the
 * window.
 *
 * The numbers of those steps are part of the run's progress, and of its checkpoints as "outlying".
 * So a start on any mesh finds the same outliers as the uninterrupted run. Medians and comparisons
 * are exact: equal bits of losses give equal results. */
#ifndef HOLDFAST_TRAINER_RECORD_OUTLIERS_H
#define HOLDFAST_TRAINER_RECORD_OUTLIERS_H

#include "proto/model/loss_history.h"
#include "trainer/config/config.h"

#define OUTLIERS_LISTED 64u

struct outliers {
    /* Of the window, the oldest first; only `num` and values are used. */
    struct history loss, norm;
    int64_t skipped[OUTLIERS_LISTED]; /* the last steps whose update was left out */
    uint32_t num_skipped;
};

/* An outlier and its numbers. */
struct outlier {
    bool is_norm; /* the gradient norm, else the loss: the one that is farther out */
    double value, median, deviation;
    uint32_t window; /* number of steps of the median */
};

/* Returns false if the step is not an outlier, or training.outlying is off. */
bool outliers_find(const struct outliers *outliers, const struct config *config, double loss,
                   double norm, struct outlier *out);
/* Adds a step to the window of later steps. */
void outliers_add(struct outliers *outliers, const struct config *config, double loss, double norm);
void outliers_skip(struct outliers *outliers, int64_t step);
/* {"losses": .., "norms": .., "skipped": [..]}, 16 digits of each number. NULL: no memory. */
json_t *outliers_json(const struct outliers *outliers);
/* Reads outliers_json; NULL: none. ERR_CORRUPT: it has another form. */
int outliers_read(struct outliers *outliers, const json_t *json);

#endif
