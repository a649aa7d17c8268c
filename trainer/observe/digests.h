/* digests.h - checks that a repeated step has the same tokens as before.
 *
 * A step's digest (struct step_result) is in its line of metrics.jsonl_file. When a start continues
 * after a step, it reads the lines of later steps that earlier starts of the run wrote. If a step
 * with the same samples has another digest, its tokens differ: the data were changed. Steps with
 * other samples than before, such as after checkpoint.skip_samples, are not compared. */
#ifndef HOLDFAST_TRAINER_DIGESTS_H
#define HOLDFAST_TRAINER_DIGESTS_H

#include "trainer/save/snapshot.h"

#define DIGESTS_MAX 65536u /* steps after the load that are compared; later ones are not */

struct digests {
    int64_t after;
    uint32_t num;
    struct digest_line {
        uint64_t attempt, next_sample, digest;
        bool is_there;
    } * of; /* of step `after` + 1 and so on */
    bool has_warned;
};

/* *digests is zero, or was read before. A missing file has none. ERR_MEMORY. */
int digests_read(struct digests *digests, const char *path, const char *run, int64_t after);
void digests_free(struct digests *digests);
/* The attempt that made the step from other tokens; -1: none known. The first such step is
 * logged. */
int64_t digests_compare(struct digests *digests, const struct progress *progress, uint64_t samples);

#endif
