/* ship.h - one shard on its way from one tier into another, part by part; see ship.c. On the
 * service thread.
 *
 *     ship_start(&ship, checkpoint, manifest, shard, left) ──► arrived(&ship), once
 *     ship_start_early(&ship, stage, manifest) ──► ship_look(fleet) when a chunk is written
 *         ──► ship_stop(&ship) ──► at_rest(&ship) ──► it is `left` of ship_start, or closed */
#ifndef HOLDFAST_CKPTD_DRAIN_SHIP_H
#define HOLDFAST_CKPTD_DRAIN_SHIP_H

#include "ckptd/drain/cargo.h"

#include <stdbool.h>
#include <stdint.h>

/* ERR_MEMORY. Rate and quiet phases as in pace.h. */
int fleet_open(struct fleet *fleet, struct service *service, enum tier_index to);
void fleet_leave(struct fleet *fleet); /* when the crews have ended: lets go of images */
void fleet_close(struct fleet *fleet); /* when nothing is under way, or the crew has ended */
/* Somebody waits for a ship, a rank became quiet, or a chunk was written: what is held back is
 * looked at. */
void fleet_look(struct fleet *fleet);

/* One more of the fleet. */
void ship_open(struct ship *ship, struct fleet *fleet);
/* It is the fleet's no more; its target is closed, where one is open. */
void ship_close(struct ship *ship);
/* Begins; then `arrived` once. The checkpoint is leased and the manifest stays meanwhile. `left`:
 * what went of this shard before the commit, at rest; it gives what is good of it. */
void ship_start(struct ship *ship, struct checkpoint *checkpoint, const struct manifest *manifest,
                uint32_t shard, struct ship *left);
/* Begins with the shard of a stage, of which what is in its file is sent; of the manifest only the
 * summary is read. Then at_rest() when it is durable there, or failed, or was stopped. */
void ship_start_early(struct ship *ship, struct stage *stage, const struct manifest *manifest);
/* The same of a rank's shard at node `from`: what of it is below ship->written is fetched. */
void ship_start_pulled(struct ship *ship, uint32_t rank, enum tier_index from,
                       const struct shard_geometry *geometry, const struct manifest *manifest);
/* The stage is over: no more of it is begun. At rest at once, or at_rest() comes. */
bool ship_stop(struct ship *ship);
bool ship_is_at_rest(const struct ship *ship);

#endif
