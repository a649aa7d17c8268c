/* grace.h - the time that a run was given to end in: by a notice (training.grace_seconds), or by
 * `ckpt-cli stop --grace`.
 *
 * Ranks are asked at different moments, some perhaps never: the host of one is taken away. So all
 * agree on the least that any of them has left. What is accepted is waited for in that time;
 * something new is begun only if it will be over by then. */
#ifndef HOLDFAST_TRAINER_SAVE_GRACE_H
#define HOLDFAST_TRAINER_SAVE_GRACE_H

#include <stdbool.h>

struct comm;

/* Seconds that are left at `now` of the `grace` that began at `asked_at`, on one clock; negative
 * when they are over. INFINITY where either is 0: nobody asked, or there is no limit. */
double grace_left(double asked_at, double grace, double now);
/* May a save be begun that takes `save_seconds`, as far as is known? */
bool grace_allows(double left, double save_seconds);
/* *left: of this rank, then the least of all. Collective. */
int grace_agree(struct comm *world, double *left);

#endif
