/* pump.h - reads shards into memory as machines/read_plan.c decides; see pump.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_PUMP_H
#define HOLDFAST_CKPTD_RESTORE_PUMP_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct shard_wait;
struct image;

/* Is the shard larger than the pool? The manifest of the checkpoint is in memory. */
bool pump_is_in_parts(const struct checkpoint *checkpoint, uint32_t shard);
/* Makes an image of the shard, or of the part around waiting->from_byte, and begins a pass over it.
 * `waiting` (or NULL) are the calls that wait for it. The pass ends with an event, verified or
 * failed. ERR_BUSY: no memory for it now; then, as after any error, no call waits for it. */
int pump_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting);
/* Begins a pass over a resident image, for the chunks that open loads and its waiting calls
 * lack. */
void pump_begin(struct image *image);
/* Starts the chunks that were asked for since the pass began, if its file is open. */
void pump_start(struct image *image);
/* Begins reading ahead, as far as the queue and the memory allow. */
void pump_read_ahead(struct service *service);

#endif
