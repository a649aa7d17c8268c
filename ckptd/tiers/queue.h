/* queue.h - which checkpoint drains next, and which are to; see queue.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_QUEUE_H
#define HOLDFAST_CKPTD_TIERS_QUEUE_H

#include "ckptd/core/tier.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct run;

/* What goes into that tier next; NULL: none. So many are left, it included, and about so many
 * bytes. */
struct checkpoint *queue_next(const struct service *service, enum tier_index tier,
                              uint64_t *out_left, uint64_t *out_left_bytes);
/* Between these nothing of what tiers have changes: what goes to which peer is found once, in the
 * time that the checkpoints and the chosen nodes take, and not that of their product. */
void queue_begin_scan(const struct service *service);
void queue_end_scan(const struct service *service);
int queue_open(struct service *service);
void queue_close(struct service *service);
/* From which tier it goes into that one. */
enum tier_index queue_source(const struct checkpoint *checkpoint, enum tier_index tier);
/* Is there a copy in that tier which is to be mended? */
bool queue_is_damaged(const struct checkpoint *checkpoint, enum tier_index tier);
/* Is there a copy in that tier that has only some shards? */
bool queue_is_part(const struct checkpoint *checkpoint, enum tier_index tier);
/* Does somebody wait for it there? */
bool queue_is_wanted(const struct checkpoint *checkpoint, enum tier_index tier);
/* Sets goes_far of the run's checkpoints: is it to be in the far tier, by the rules or because
 * somebody waits for that? */
void queue_plan(struct run *run);

#endif
