/* trash.h - keeps removed checkpoints so that they can be restored; see trash.c. On the service
 * thread. */
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
    struct timer timer;                  /* of the next sweep */
    bool must_note;                      /* also notes terms of 0, which may replace other ones */
    bool is_busy;                        /* a worker empties it, or restores from it */
    bool must_again;                     /* another sweep is due after this one */
    bool makes_room;                     /* this sweep removes items for waiting saves */
    uint32_t num_waiting;                /* calls of undelete.c that wait for it */
    uint64_t files, bytes, checkpoints;  /* as of the last sweep */
    uint64_t wanted_files, wanted_bytes; /* that waiting saves lack */
    /* Wall clock minus monotonic clock, and the sum of its jumps. */
    int64_t clock_ms, jumped_ms;
};

/* Call after the runs were read. */
int trash_open(struct service *service);
void trash_close(struct service *service);
/* Seconds for which a checkpoint that is removed from that tier now can be restored; 0: not at
 * all. */
uint64_t trash_term(const struct run *run, enum tier_index tier);
/* The contents of that tier's trash have changed: sweeps it soon. Does nothing if there is no such
 * tier. */
void trash_sweep_soon(struct service *service, enum tier_index tier);
/* The terms may have changed: sweeps the trash of all tiers. */
void trash_reloaded(struct service *service);
/* A save lacks that much space. True: ckptd removes the oldest items until that much is free, and
 * then retries the saves. False: all of the trash is smaller than that, and it stays. */
bool trash_make_room(struct service *service, uint64_t bytes, uint64_t files);
/* A worker is about to restore a checkpoint. ERR_BUSY: the trash is in use. */
int trash_begin(struct service *service);
void trash_end(struct service *service);

#endif
