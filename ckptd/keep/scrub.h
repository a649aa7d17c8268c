/* scrub.h - reads committed checkpoints again, slowly, so that damage is found while there is still
 * another copy or an older checkpoint; see scrub.c. */
#ifndef HOLDFAST_CKPTD_SCRUB_H
#define HOLDFAST_CKPTD_SCRUB_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;
struct scrub;

/* Where the pass over a run stands; durable as "<run>/scrub/<number>". */
struct scrub_cursor {
    uint64_t attempt, step; /* read next, or read on; older ones are done */
    uint64_t shard, block;  /* of it */
    int64_t begun, ended;   /* this pass, the last one; seconds since the epoch, 0: never */
    /* The newest that was found whole: what is older and not damaged was, too. 0: none. */
    uint64_t proven_attempt, proven_step;
    uint64_t number; /* of the newest object that holds it; 0: none */
};

/* What it has done since ckptd started, and does. */
struct scrub_state {
    uint64_t bytes, checkpoints, passes, damaged;
    const char *run;        /* that it is in; "": none */
    uint64_t step, attempt; /* likewise */
    int64_t ended;          /* the oldest end of a pass over a run; 0: one was never read whole */
};

/* Behind catalog_open: reads the cursors. Blocks. */
int scrub_open(struct service *service);
/* Behind loop_close, before the storage is closed. */
void scrub_close(struct service *service);
void scrub_state(struct scrub_state *out, const struct service *service);

#endif
