/* queue.h - chooses the checkpoint that drains next, and which ones drain at all; see queue.c. On
 * the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_QUEUE_H
#define HOLDFAST_CKPTD_TIERS_QUEUE_H

#include "ckptd/core/tier.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct run;

/* The next checkpoint for that tier; NULL: none. *out_left: how many are left, including it;
 * *out_left_bytes: about how many bytes. */
struct checkpoint *queue_next(const struct service *service, enum tier_index tier,
                              uint64_t *out_left, uint64_t *out_left_bytes);
/* Between these calls no tier may change. ckptd finds the copies for all peers once, in time
 * proportional to checkpoints and chosen nodes, not to their product. */
void queue_begin_scan(const struct service *service);
void queue_end_scan(const struct service *service);
int queue_open(struct service *service);
void queue_close(struct service *service);
/* The tier from which it is copied into `tier`. */
enum tier_index queue_source(const struct checkpoint *checkpoint, enum tier_index tier);
/* Is there a damaged copy in that tier that ckptd mends? */
bool queue_is_damaged(const struct checkpoint *checkpoint, enum tier_index tier);
/* Has that tier only some shards of it? */
bool queue_is_part(const struct checkpoint *checkpoint, enum tier_index tier);
/* Does a client wait for the copy in that tier? */
bool queue_is_wanted(const struct checkpoint *checkpoint, enum tier_index tier);
/* Sets goes_far of the run's checkpoints: true if the rules or a waiting client want it in the far
 * tier. */
void queue_plan(struct run *run);

#endif
