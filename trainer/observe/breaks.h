/* breaks.h - what becomes of a step whose loss or gradient norm is not finite, or out of line.
 *
 * Not finite. With training.nonfinite = stop the run ends, and nothing of the step is saved. With
 * skip its update is left out: samples and the learning-rate curve go on, the moments do not. So
 * many of those in a row as training.nonfinite_skips_max says end the run, too; a start counts
 * anew. With roll_back the run goes back to a checkpoint and makes the step again without its
 * samples, in a run as often as training.roll_back_times says (run/rank.h). A run whose weights are
 * not finite ends at once.
 *
 * Out of line (record/outliers.h). With training.outlying = warn it is said. skip and roll_back do
 * what they do of one that is not finite, within the same bounds: both kinds count.
 *
 * The step that a replay is for is said only, and ends it anyway. All ranks see the same numbers,
 * and decide alike. */
#ifndef HOLDFAST_TRAINER_BREAKS_H
#define HOLDFAST_TRAINER_BREAKS_H

#include "trainer/save/snapshot.h"

struct breaks {
    const struct config *config;
    uint32_t rank;          /* 0: which says it */
    bool has_updated;       /* a step of this start has changed the weights */
    int64_t skips, in_row;  /* steps of this start that updated nothing */
    struct jump bad;        /* samples of the step that is to be made again without them */
    struct outlier outlier; /* of the last STEP_WARNED or STEP_OUTLYING */
};

enum step_kind { STEP_USUAL, STEP_WARNED, STEP_OUTLYING, STEP_NONFINITE };
/* By loss and norm of the step. Of the first two, which update the weights, the later ones are
 * measured by these numbers; a warning is said. */
enum step_kind breaks_judge(struct breaks *breaks, struct progress *progress);
/* Of one of the others: 0 when it is to update nothing, which is counted and said. ERR_INVALID:
 * the run ends; rank 0 alone keeps the last error. */
int breaks_decide_outlier(struct breaks *breaks, struct progress *progress);
int breaks_decide(struct breaks *breaks, const struct progress *progress,
                  const struct step_break *at);
/* The sign of a nan means nothing, and may differ between meshes. */
double breaks_without_sign(double value);

#endif
