/* digests.h - does a step that is made again see the tokens that it saw before?
 *
 * A step's digest (struct step_result) is in its line of metrics.jsonl_file. When a start goes on
 * behind a step, the lines of later steps that earlier starts of the run wrote are read. A step of
 * the same samples with another digest was made of other tokens: the data were changed. Steps that
 * have other samples than before, as after checkpoint.skip_samples, are not compared. */
#ifndef HOLDFAST_TRAINER_DIGESTS_H
#define HOLDFAST_TRAINER_DIGESTS_H

#include "trainer/save/snapshot.h"

#define DIGESTS_MAX 65536u /* steps behind the load that are compared; later ones are not */

struct digests {
    int64_t after;
    uint32_t num;
    struct digest_line {
        uint64_t attempt, next_sample, digest;
        bool is_there;
    } * of; /* of step `after` + 1 and so on */
    bool has_warned;
};

/* *digests is zero, or was read before. A file that is not there has none. ERR_MEMORY. */
int digests_read(struct digests *digests, const char *path, const char *run, int64_t after);
void digests_free(struct digests *digests);
/* The attempt whose step of that number had other tokens; -1: none is known to have had. The first
 * is said. */
int64_t digests_compare(struct digests *digests, const struct progress *progress, uint64_t samples);

#endif
