/* plan.h - the plan of an attempt, made of the slices of its ranks; see plan.c. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_PLAN_H
#define HOLDFAST_CKPTD_ATTEMPT_PLAN_H

struct group;

/* Fills the table, the places, and each rank's items, tensors, geometry and image. Blocks; any
 * thread. ERR_INVALID: these ranks cannot save with these settings; ERR_CORRUPT; ERR_MEMORY. */
int group_plan(struct group *group);

#endif
