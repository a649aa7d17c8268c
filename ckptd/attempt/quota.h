/* quota.h - what the ranks of one identity (a user of this machine, or a certificate's name) may
 * hold at once; see quota.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_QUOTA_H
#define HOLDFAST_CKPTD_ATTEMPT_QUOTA_H

#include "proto/base/principal.h"

#include <stdint.h>

struct run;
struct rpc_call;
struct session;

/* The call is of a rank of the run, or of its start: from now on the run counts as its caller's. */
void quota_note_owner(struct run *run, struct rpc_call *call);
/* May a save of the run begin (limits.identity_saves)? ERR_BUSY. */
int quota_check_save(const struct run *run);
/* May a save of so many bytes begin (limits.identity_disk_bytes)? disk_of: what the checkpoints
 * here and the saves in work of a run take. ERR_SPACE. */
int quota_check_disk(const struct run *run, uint64_t bytes,
                     uint64_t (*disk_of)(const struct run *run));
/* Whose the run is, for the file of its attempt, and from there; "": nobody's. */
void quota_owner_text(char out[PRINCIPAL_TEXT_MAX], const struct run *run);
void quota_read_owner(struct run *run, const char *text);
/* May the rank take an image for a save (limits.identity_arena_bytes)? ERR_BUSY. */
int quota_check_image(const struct session *session);
/* Could ranks whose images take so many segments have one each at once? ERR_SPACE: no save of
 * theirs would end. */
int quota_check_plan(const struct run *run, uint64_t segments);

#endif
