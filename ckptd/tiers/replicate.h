/* replicate.h - committed checkpoints go into the far tier and to the peers, each one after the
 * other, in the background; see replicate.c. On the service thread. All of it does nothing where
 * there is no other tier. */
#ifndef HOLDFAST_CKPTD_TIERS_REPLICATE_H
#define HOLDFAST_CKPTD_TIERS_REPLICATE_H

#include "ckptd/core/tier.h"

#include <stdbool.h>

struct service;
struct checkpoint;
struct precommit_save;
struct precommit_told;
struct stage;
struct json_t;

int replicate_open(struct service *service);   /* behind refresh_open */
void replicate_end(struct service *service);   /* behind tier_end: no image is read any more */
void replicate_close(struct service *service); /* behind tier_close */
/* What the tiers hold has changed, or who waits for it: is there something to do? */
void replicate_check_queues(struct service *service);
/* Likewise, and at calls that wait for a level; but once for what comes in a burst, as the answers
 * of many peers do. */
void replicate_check_queues_soon(struct service *service);
/* A rank may have become quiet. */
void replicate_phase_changed(struct service *service);
/* Of a save what is written goes to peers before its commit, when all its ranks have begun, here;
 * where some are at other nodes, their shards come here, or all go to a node that has none. */
void replicate_save_begun(struct service *service, const struct checkpoint *promised,
                          const struct precommit_save *save);
/* A chunk of one of its stages is in its file. */
void replicate_save_advanced(struct service *service, const struct stage *stages);
/* What another node has told of a shard of it. */
void replicate_save_told(struct service *service, const struct stage *stages,
                         const struct precommit_told *told);
/* It is committed, or given up: its stages are used no more. Also again. */
void replicate_save_over(struct service *service, const struct stage *stages, bool is_committed);
/* Behind that: has nothing of it been left in its directory here? Else left(user) comes, once. */
bool replicate_save_left(struct service *service, const struct stage *stages,
                         void (*left)(void *user), void *user);
/* For Status. */
struct json_t *replicate_describe(const struct service *service, enum tier_index tier);
/* How long checkpoints took on their way: of the far tier, and of each that some went to. */
struct json_t *replicate_describe_drains(const struct service *service);

#endif
