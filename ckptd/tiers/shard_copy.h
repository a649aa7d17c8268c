/* shard_copy.h - copies one shard from one tier to another, part by part; see shard_copy.c. On the
 * service thread.
 *
 *     shard_copy_start(&copy, checkpoint, manifest, shard, left) ──► arrived(&copy), once
 *     shard_copy_start_early(&copy, stage, manifest) ──► copy_queue_advance(queue) per chunk
 *         ──► shard_copy_stop(&copy) ──► at_rest(&copy) ──► `left` of shard_copy_start, or closed
 */
#ifndef HOLDFAST_CKPTD_TIERS_SHARD_COPY_H
#define HOLDFAST_CKPTD_TIERS_SHARD_COPY_H

#include "ckptd/tiers/shard_copy_private.h"

#include <stdbool.h>
#include <stdint.h>

/* ERR_MEMORY. Rate and quiet phases are as in throttle.h. */
int copy_queue_open(struct copy_queue *queue, struct service *service, enum tier_index to);
/* Call when the crews have ended: releases images. */
void copy_queue_leave(struct copy_queue *queue);
void copy_queue_close(
    struct copy_queue *queue); /* call when no part is in flight, or the crew has ended */
/* A client waits for a copy, a rank became quiet, or a chunk was written: starts the parts that may
 * begin now. */
void copy_queue_advance(struct copy_queue *queue);

/* Adds a shard copy to the queue. */
void shard_copy_open(struct shard_copy *copy, struct copy_queue *queue);
/* Removes it from the queue; closes its target if one is open. */
void shard_copy_close(struct shard_copy *copy);
/* Starts the copy; `arrived` is called once. The caller leases the checkpoint and keeps the
 * manifest meanwhile. `left`: a copy of this shard from before the commit, at rest; its verified
 * parts are kept. */
void shard_copy_start(struct shard_copy *copy, struct checkpoint *checkpoint,
                      const struct manifest *manifest, uint32_t shard, struct shard_copy *left);
/* Starts to copy the shard of a stage as its chunks reach the file; reads only the summary of the
 * manifest. at_rest() is called when the copy is durable, failed, or was stopped. */
void shard_copy_start_early(struct shard_copy *copy, struct stage *stage,
                            const struct manifest *manifest);
/* The same for a rank's shard at node `from`: fetches the bytes below copy->written. */
void shard_copy_start_pulled(struct shard_copy *copy, uint32_t rank, enum tier_index from,
                             const struct shard_geometry *geometry,
                             const struct manifest *manifest);
/* The stage is over: starts no more parts. True: at rest already; else at_rest() is called. */
bool shard_copy_stop(struct shard_copy *copy);
bool shard_copy_is_at_rest(const struct shard_copy *copy);

#endif
