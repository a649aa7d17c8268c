/* shard_copy.h - one shard on its way from one tier into another, part by part; see shard_copy.c.
 * On the service thread.
 *
 *     shard_copy_start(&copy, checkpoint, manifest, shard, left) ──► arrived(&copy), once
 *     shard_copy_start_early(&copy, stage, manifest) ──► ship_look(queue) when a chunk is written
 *         ──► shard_copy_stop(&copy) ──► at_rest(&copy) ──► it is `left` of shard_copy_start, or
 * closed */
#ifndef HOLDFAST_CKPTD_TIERS_SHARD_COPY_H
#define HOLDFAST_CKPTD_TIERS_SHARD_COPY_H

#include "ckptd/tiers/shard_copy_private.h"

#include <stdbool.h>
#include <stdint.h>

/* ERR_MEMORY. Rate and quiet phases as in throttle.h. */
int copy_queue_open(struct copy_queue *queue, struct service *service, enum tier_index to);
void copy_queue_leave(struct copy_queue *queue); /* when the crews have ended: lets go of images */
void copy_queue_close(
    struct copy_queue *queue); /* when nothing is under way, or the crew has ended */
/* Somebody waits for a copy, a rank became quiet, or a chunk was written: what is held back is
 * looked at. */
void copy_queue_advance(struct copy_queue *queue);

/* One more of the queue. */
void shard_copy_open(struct shard_copy *copy, struct copy_queue *queue);
/* It is the queue's no more; its target is closed, where one is open. */
void shard_copy_close(struct shard_copy *copy);
/* Begins; then `arrived` once. The checkpoint is leased and the manifest stays meanwhile. `left`:
 * what went of this shard before the commit, at rest; it gives what is good of it. */
void shard_copy_start(struct shard_copy *copy, struct checkpoint *checkpoint,
                      const struct manifest *manifest, uint32_t shard, struct shard_copy *left);
/* Begins with the shard of a stage, of which what is in its file is sent; of the manifest only the
 * summary is read. Then at_rest() when it is durable there, or failed, or was stopped. */
void shard_copy_start_early(struct shard_copy *copy, struct stage *stage,
                            const struct manifest *manifest);
/* The same of a rank's shard at node `from`: what of it is below copy->written is fetched. */
void shard_copy_start_pulled(struct shard_copy *copy, uint32_t rank, enum tier_index from,
                             const struct shard_geometry *geometry,
                             const struct manifest *manifest);
/* The stage is over: no more of it is begun. At rest at once, or at_rest() comes. */
bool shard_copy_stop(struct shard_copy *copy);
bool shard_copy_is_at_rest(const struct shard_copy *copy);

#endif
