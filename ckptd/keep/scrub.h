/* scrub.h - reads committed checkpoints again, slowly, so that damage is found while there is still
 * another copy or an older checkpoint; see scrub.c. */
#ifndef HOLDFAST_CKPTD_SCRUB_H
#define HOLDFAST_CKPTD_SCRUB_H

#include "proto/retain.h"

struct service;
struct checkpoint;
struct scrub;

/* What it has done since ckptd started, and does. */
struct scrub_state {
    uint64_t bytes, checkpoints, passes, damaged;
    const char *run;        /* that it is in; "": none */
    uint64_t step, attempt; /* likewise */
    int64_t ended;          /* the oldest end of a pass over a run; 0: one was never read whole */
};

/* Behind catalog_open: reads the cursors, also where the scrub is off. Blocks. */
int scrub_open(struct service *service);
/* Behind loop_close, before the storage is closed. */
void scrub_close(struct service *service);
/* Was it read back whole since it was committed, and is not known to be damaged? */
bool scrub_has_read(const struct checkpoint *checkpoint);
void scrub_state(struct scrub_state *out, const struct service *service);

#endif
