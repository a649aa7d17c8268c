/* drain.h - committed checkpoints go into the far tier and to the peers, each one after the other,
 * in the background; see drain.c. On the service thread. All of it does nothing where there is no
 * other tier. */
#ifndef HOLDFAST_CKPTD_DRAIN_DRAIN_H
#define HOLDFAST_CKPTD_DRAIN_DRAIN_H

#include "ckptd/tier.h"

#include <stdbool.h>

struct service;
struct checkpoint;
struct early_save;
struct early_told;
struct stage;
struct json_t;

int drain_open(struct service *service);   /* behind far_open */
void drain_end(struct service *service);   /* behind tier_end: no image is read any more */
void drain_close(struct service *service); /* behind tier_close */
/* What the tiers hold has changed, or who waits for it: is there something to do? */
void drain_look(struct service *service);
/* Likewise, and at calls that wait for a level; but once for what comes in a burst, as the answers
 * of many peers do. */
void drain_look_soon(struct service *service);
/* A rank may have become quiet. */
void drain_phase_changed(struct service *service);
/* Of a save what is written goes to peers before its commit, when all its ranks have begun, here;
 * where some are at other nodes, their shards come here, or all go to a node that has none. */
void drain_save_begun(struct service *service, const struct checkpoint *promised,
                      const struct early_save *save);
/* A chunk of one of its stages is in its file. */
void drain_save_advanced(struct service *service, const struct stage *stages);
/* What another node has told of a shard of it. */
void drain_save_told(struct service *service, const struct stage *stages,
                     const struct early_told *told);
/* It is committed, or given up: its stages are used no more. Also again. */
void drain_save_over(struct service *service, const struct stage *stages, bool is_committed);
/* Behind that: has nothing of it been left in its directory here? Else left(user) comes, once. */
bool drain_save_left(struct service *service, const struct stage *stages, void (*left)(void *user),
                     void *user);
/* For Status. */
struct json_t *drain_describe(const struct service *service, enum tier_index tier);

#endif
