/* restore.h - what the files of restore/ share. Private to them.
 *
 * lease.c keeps the table of loads, open.c makes a load of an OpenLoad, shard.c lends the shards.
 * Everything runs on the service thread unless a function says otherwise. */
#ifndef HOLDFAST_CKPTD_RESTORE_H
#define HOLDFAST_CKPTD_RESTORE_H

#include "ckptd/ckptd.h"

/* ---- lease.c ---- */

/* The checkpoint's manifest stays cached between the two. */
void lease_take(struct checkpoint *checkpoint);
void lease_drop(struct checkpoint *checkpoint);
/* Takes a lease. ERR_BUSY, ERR_MEMORY. */
int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint);
/* By number, and its lease begins anew. ERR_NOT_FOUND. */
int load_find(struct load **out, struct service *service, uint64_t number);
void load_end(struct load *load);

/* ---- shard.c ---- */

void shard_fail_starved(struct service *service); /* ckptd ends */

#endif
