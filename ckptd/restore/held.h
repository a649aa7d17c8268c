/* held.h - the files that record which checkpoints readers load over the socket; see held.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_HELD_H
#define HOLDFAST_CKPTD_RESTORE_HELD_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"

#include <stdint.h>

struct checkpoint;
struct manifest_summary;
struct service;
struct storage;
struct storage_hold;

struct held_files {
    struct service *service;
    struct timer timer;    /* armed while ckptd waits for readers of the former ckptd */
    uint32_t num_releases; /* of files, in progress */
};

/* After scan_store(): leases again, for limits.reopen_ms, the checkpoints that readers of the
 * former ckptd had open. Blocks. ERR_MEMORY. */
int held_open(struct service *service);
/* Any thread; blocks. *out is NULL if no file can be made: then the lease ends with ckptd. */
void held_take(struct storage_hold **out, struct storage *storage,
               const struct manifest_summary *summary);
/* The same in the remote tier, when bytes are read there: no other machine removes the checkpoint
 * meanwhile. If no lease can be made the load continues without one. ERR_NOT_FOUND: it is being
 * removed. */
int held_take_far(struct storage_hold **out, struct service *service,
                  const struct manifest_summary *summary);
/* Keeps *hold as long as the checkpoint has loads, or releases it. On the service thread. */
void held_enter_far(struct checkpoint *checkpoint, struct storage_hold **hold);
/* One more load of the checkpoint. Takes *hold over if it has none yet. */
void held_enter(struct checkpoint *checkpoint, struct storage_hold **hold);
/* One load less; after the last one the file is removed. */
void held_leave(struct checkpoint *checkpoint);
/* Removes the file in that tier, in the background. NULL is allowed. */
void held_release(struct service *service, enum tier_index tier, struct storage_hold *hold);
/* Ends the leases of readers that have not come back. After the loop: their files stay. */
void held_close(struct service *service);

#endif
