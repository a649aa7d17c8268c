/* breaks.h - what becomes of a step whose loss or gradient norm is not finite.
 *
 * With training.nonfinite = stop the run ends, and nothing of the step is saved. With skip its
 * update is left out: samples and the learning-rate curve go on, the moments do not. So many of
 * those in a row as training.nonfinite_skips_max says end the run, too; a start counts anew. With
 * roll_back the run goes back to a checkpoint and makes the step again without its samples, in a
 * run as often as training.roll_back_times says (run/rank.h). A run whose weights are not finite
 * ends at once. The step that a replay is for is said only, and ends it anyway. All ranks see the
 * same numbers, and decide alike. */
#ifndef HOLDFAST_TRAINER_BREAKS_H
#define HOLDFAST_TRAINER_BREAKS_H

#include "trainer/save/snapshot.h"

struct breaks {
    const struct config *config;
    uint32_t rank;         /* 0: which says it */
    bool has_updated;      /* a step of this start has changed the weights */
    int64_t skips, in_row; /* steps of this start that updated nothing */
    struct jump bad;       /* samples of the step that is to be made again without them */
};

/* Are loss and norm of the step finite? */
bool breaks_is_finite(struct breaks *breaks, const struct progress *progress);
/* Of a step that is not: 0 when it is to update nothing, which is counted and said. ERR_INVALID:
 * the run has diverged; rank 0 alone keeps the last error. */
int breaks_decide(struct breaks *breaks, const struct progress *progress,
                  const struct step_break *at);
/* The sign of a nan means nothing, and may differ between meshes. */
double breaks_without_sign(double value);

#endif
