/* jumps.h - samples that a run leaves out: those of steps that were undone because their numbers
 * were not finite or out of line (training.nonfinite, training.outlying = "roll_back").
 *
 * The list is part of the run's progress, and of its checkpoints from then on as "left_out". If the
 * next sample is the first of a jump, the run continues after it. So each start that comes there
 * from an older checkpoint, on any mesh, reads the same samples. */
#ifndef HOLDFAST_TRAINER_DATA_JUMPS_H
#define HOLDFAST_TRAINER_DATA_JUMPS_H

#include "proto/base/json.h"

#include <stdint.h>

#define JUMPS_MAX 64u

struct jumps {
    uint32_t num;
    struct jump {
        uint64_t first, count; /* global indices */
    } of[JUMPS_MAX];           /* in the order of creation */
};

/* The first sample from `next` on that is not left out. */
uint64_t jumps_pass(const struct jumps *jumps, uint64_t next);
/* [[42, 6], ...]; NULL: no memory. */
json_t *jumps_json(const struct jumps *jumps);
/* Reads jumps_json; NULL: none. ERR_CORRUPT: it is not such a list, or longer than JUMPS_MAX. */
int jumps_read(struct jumps *jumps, const json_t *json);

#endif
