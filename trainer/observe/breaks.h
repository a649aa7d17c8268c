/* breaks.h - handles a step whose loss or gradient norm is not finite, or out of line.
 *
 * Not finite. With training.nonfinite = stop the run ends, and nothing of the step is saved. With
 * skip its update is left out: samples and the learning-rate curve advance, the moments do not.
 * training.nonfinite_skips_max such steps in a row end the run, too; each start counts from 0. With
 * roll_back the run goes back to a checkpoint and makes the step again without its samples, at most
 * training.roll_back_times times in a run (run/rank.h). A run whose weights are not finite ends at
 * once.
 *
 * Out of line (record/outliers.h). With training.outlying = warn the step is logged. skip and
 * roll_back do the same as for a step that is not finite, with the same limits: both kinds count.
 *
 * progress.broken lists both. The last step of a replay is only logged. All ranks have the same
 * numbers, and decide the same. */
#ifndef HOLDFAST_TRAINER_BREAKS_H
#define HOLDFAST_TRAINER_BREAKS_H

#include "trainer/save/snapshot.h"

struct breaks {
    const struct config *config;
    uint32_t rank;           /* rank 0 logs */
    bool has_updated;        /* a step of this start has changed the weights */
    int64_t skips, in_row;   /* steps of this start without an update */
    struct jump bad;         /* samples of the step that is repeated without them */
    struct broken_step last; /* the last step that was skipped or is rolled back */
    struct outlier outlier;  /* of the last STEP_WARNED or STEP_OUTLYING */
};

enum step_kind { STEP_USUAL, STEP_WARNED, STEP_OUTLYING, STEP_NONFINITE };
/* Finds the kind of a step from its loss and norm. Steps of the first two kinds update the weights
 * and enter the window of later steps; a warning is logged. */
enum step_kind breaks_classify(struct breaks *breaks, struct progress *progress);
/* Decides a step of one of the other kinds. 0: the step makes no update, which is counted and
 * logged. ERR_INVALID: the run ends; only rank 0 keeps the last error. */
int breaks_decide_outlier(struct breaks *breaks, struct progress *progress);
int breaks_decide(struct breaks *breaks, struct progress *progress, const struct step_break *at);
/* The sign of a NaN has no meaning, and may differ between meshes. */
double breaks_without_sign(double value);

#endif
