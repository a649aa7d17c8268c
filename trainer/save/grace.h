/* grace.h - the grace time in which a run has to end: from a notice (training.grace_seconds), or
 * from `ckpt-cli stop --grace`.
 *
 * Ranks are asked at different times; some may never be asked, if only one host is reclaimed. So
 * all agree on the least remaining time of any rank. In that time the trainer waits for saves that
 * ckptd has accepted. It begins a new save only if that ends in time. */
#ifndef HOLDFAST_TRAINER_SAVE_GRACE_H
#define HOLDFAST_TRAINER_SAVE_GRACE_H

#include <stdbool.h>

struct comm;

/* Seconds left at `now` of the `grace` that began at `asked_at`, on one clock; negative after the
 * end. INFINITY if either is 0: no request, or no limit. */
double grace_left(double asked_at, double grace, double now);
/* True if a save that takes about `save_seconds` may begin. */
bool grace_allows(double left, double save_seconds);
/* *left: in: of this rank, out: the least of all ranks. Collective. */
int grace_agree(struct comm *world, double *left);

#endif
