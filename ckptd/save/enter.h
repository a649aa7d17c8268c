/* enter.h - a rank enters a save at the node that coordinates it: the checks, the save of the step,
 * which the first rank makes, and its promise of room; see enter.c. */
#ifndef HOLDFAST_CKPTD_SAVE_ENTER_H
#define HOLDFAST_CKPTD_SAVE_ENTER_H

#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct commit_actions;
struct run;
struct save;
struct service;

#define AWAITS_ROOM 2 /* the trash is being emptied: try again; no error code */

/* Whose BeginSave it is, from this node or another. */
struct beginner {
    uint64_t attempt, step;
    uint32_t rank;
    const char *state_json;
};

/* Everything before the first change. *until_ms = 0 where waiting would not help. ERR_ABORTED: what
 * the rank began before is known to nobody any more. */
int enter_check(struct run *run, const struct beginner *rank, int64_t *until_ms);
/* A rank has one save at a time: what it began before another one of this step is left. */
void enter_leave(struct run *run, uint32_t rank, uint64_t step);
/* After enter_check. The actions are the caller's to perform. AWAITS_ROOM only where it may wait.
 */
int enter_save(struct save **out, struct commit_actions *actions, struct run *run,
               const struct beginner *rank, bool may_wait);
/* A save of the step that no rank has entered; for a part that another node coordinates. */
int enter_new(struct save **out, struct run *run, uint64_t step, bool may_wait);
/* A rank of another node, which coordinates nothing, begins its part: the nonce of the save. */
int enter_remote(struct service *service, const Holdfast__V1__BeginPartRequest *request,
                 uint32_t node, char out_nonce[33]);

#endif
