/* held.h - the files that say which checkpoints readers load over the socket; see held.c. */
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
    struct timer timer;    /* armed while readers of the ckptd before are waited for */
    uint32_t num_releases; /* of files, under way */
};

/* Behind scan_store: what readers of the ckptd before had open is leased again for
 * limits.reopen_ms. Blocks. ERR_MEMORY. */
int held_open(struct service *service);
/* Any thread; blocks. *out is NULL where no file can be made: then the lease ends with ckptd. */
void held_take(struct storage_hold **out, struct storage *storage,
               const struct manifest_summary *summary);
/* The same in the far tier, where bytes are read there: no other machine removes it meanwhile.
 * Where no lease can be made the load goes on without. ERR_NOT_FOUND: it is being removed. */
int held_take_far(struct storage_hold **out, struct service *service,
                  const struct manifest_summary *summary);
/* For as long as there are loads. Takes it over, or lets go of it. On the service thread. */
void held_enter_far(struct checkpoint *checkpoint, struct storage_hold **hold);
/* One more load of the checkpoint. Takes *hold over where there is none yet. */
void held_enter(struct checkpoint *checkpoint, struct storage_hold **hold);
/* One less; with the last the file goes. */
void held_leave(struct checkpoint *checkpoint);
/* The file in that tier goes, in the background. NULL is allowed. */
void held_release(struct service *service, enum tier_index tier, struct storage_hold *hold);
/* Ends the leases of readers that have not come. After the loop: their files stay. */
void held_close(struct service *service);

#endif
