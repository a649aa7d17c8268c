/* enter.h - enters a rank into a save at the coordinating node: checks, the save of the step, which
 * the first rank makes, and its promise of disk space; see enter.c. */
#ifndef HOLDFAST_CKPTD_SAVE_ENTER_H
#define HOLDFAST_CKPTD_SAVE_ENTER_H

#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct commit_actions;
struct run;
struct save;
struct service;

#define AWAITS_ROOM 2 /* the trash is being emptied: try again; not an error code */

/* The rank of a BeginSave, of this node or another. */
struct beginner {
    uint64_t attempt, step;
    uint32_t rank;
    const char *state_json;
};

/* All checks before the first change. *until_ms = 0 if waiting does not help. ERR_ABORTED: the
 * rank's former save is unknown here. */
int enter_check(struct run *run, const struct beginner *rank, int64_t *until_ms);
/* A rank has one save at a time: leaves the one it began before this step. */
void enter_leave(struct run *run, uint32_t rank, uint64_t step);
/* After enter_check(). The caller performs the actions. AWAITS_ROOM only if the rank may wait. */
int enter_save(struct save **out, struct commit_actions *actions, struct run *run,
               const struct beginner *rank, bool may_wait);
/* Makes a save of the step without ranks; for a part that another node coordinates. */
int enter_new(struct save **out, struct run *run, uint64_t step, bool may_wait);
/* A rank of another node begins its part here, at the coordinator: returns the nonce of the
 * save. */
int enter_remote(struct service *service, const Holdfast__V1__BeginPartRequest *request,
                 uint32_t node, char out_nonce[33]);

#endif
