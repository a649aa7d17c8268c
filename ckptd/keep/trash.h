/* trash.h - removed checkpoints that can be taken back; see trash.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_KEEP_TRASH_H
#define HOLDFAST_CKPTD_KEEP_TRASH_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

/* Of one tier: the local one, or the far one. */
struct trash {
    struct service *service;
    enum tier_index tier;
    struct timer timer;                  /* of the next look */
    bool must_note;                      /* terms of 0, too: they may have been others before */
    bool is_busy;                        /* a worker empties it, or takes something back */
    bool must_again;                     /* a look is due behind that */
    bool makes_room;                     /* for saves, by what it removes now */
    uint32_t num_waiting;                /* calls of undelete.c that wait for it */
    uint64_t files, bytes, checkpoints;  /* as of the last look */
    uint64_t wanted_files, wanted_bytes; /* by saves that wait */
    int64_t clock_ms, jumped_ms;         /* of the wall clock: what it is ahead, and has jumped */
};

/* After what holds runs was read. */
int trash_open(struct service *service);
void trash_close(struct service *service);
/* How long what is removed from the run's copies in that tier now can be taken back, in seconds; 0:
 * not at all. */
uint64_t trash_term(const struct run *run, enum tier_index tier);
/* Something went in or out: look soon, in that tier. Where there is no such tier: nothing. */
void trash_sweep_soon(struct service *service, enum tier_index tier);
/* Terms may have changed: in all tiers. */
void trash_reloaded(struct service *service);
/* A save lacks so much. True: the oldest in the trash are removed until so much is free, and saves
 * are tried again then. False: all of the trash is not that much, and it stays. */
bool trash_make_room(struct service *service, uint64_t bytes, uint64_t files);
/* A worker is about to take something back. ERR_BUSY: others are at it. */
int trash_begin(struct service *service);
void trash_end(struct service *service);

#endif
