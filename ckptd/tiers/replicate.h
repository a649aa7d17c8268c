/* replicate.h - copies committed checkpoints to the far tier and the peers, one after the other per
 * tier, in the background; see replicate.c. On the service thread. Without another tier these
 * functions do nothing. */
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

int replicate_open(struct service *service); /* call after refresh_open() */
/* Call after tier_end(), when no image is read any more. */
void replicate_end(struct service *service);
void replicate_close(struct service *service); /* call after tier_close() */
/* The contents of a tier have changed, or a client waits for a level: starts the next copies. */
void replicate_check_queues(struct service *service);
/* The same, and it answers clients that wait for a level; once for a burst of events, such as the
 * answers of many peers. */
void replicate_check_queues_soon(struct service *service);
/* A rank may have entered a quiet phase. */
void replicate_phase_changed(struct service *service);
/* Copies a save to peers before its commit, once all its ranks, all of this node, have begun. With
 * ranks on other nodes their shards come here, or all go to a node without any. */
void replicate_save_begun(struct service *service, const struct checkpoint *promised,
                          const struct precommit_save *save);
/* A chunk of one of its stages has been written to its file. */
void replicate_save_advanced(struct service *service, const struct stage *stages);
/* Another node has reported the progress of its shard. */
void replicate_save_told(struct service *service, const struct stage *stages,
                         const struct precommit_told *told);
/* The save is committed, or given up: its stages are not used again. May be repeated. */
void replicate_save_over(struct service *service, const struct stage *stages, bool is_committed);
/* After replicate_save_over(): true if none of its files are left in its directory here. Else
 * left(user) is called, once. */
bool replicate_save_left(struct service *service, const struct stage *stages,
                         void (*left)(void *user), void *user);
/* How many copies to other tiers hold the checkpoint. *out_reader: the tier for which it is read
 * now, or the copy ends; NUM_TIERS: none, they wait, or their tier is asked. */
uint32_t replicate_count_holds(const struct checkpoint *checkpoint, unsigned *out_reader);
/* For Status. */
struct json_t *replicate_describe(const struct service *service, enum tier_index tier);
/* Histogram of copy durations: of the far tier, and of each peer that has received a copy. */
struct json_t *replicate_describe_drains(const struct service *service);

#endif
