/* queue.h - which checkpoint drains next, and which are to; see queue.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_DRAIN_QUEUE_H
#define HOLDFAST_CKPTD_DRAIN_QUEUE_H

#include <stdint.h>

struct service;
struct checkpoint;
struct run;

/* NULL: none. So many are left, it included, and about so many bytes. */
struct checkpoint *queue_next(const struct service *service, uint64_t *out_left,
                              uint64_t *out_left_bytes);
/* Sets goes_far of the run's checkpoints: is it to be in the far tier, by the rules or because
 * somebody waits for that? */
void queue_plan(struct run *run);

#endif
