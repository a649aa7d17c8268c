/* quota.h - limits for the ranks of one identity (a user of this machine, or a certificate's name);
 * see quota.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_QUOTA_H
#define HOLDFAST_CKPTD_ATTEMPT_QUOTA_H

#include "proto/base/principal.h"

#include <stdint.h>

struct run;
struct rpc_call;
struct session;

/* The call is of a rank of the run, or of its start: charges the run to its caller from now on. */
void quota_note_owner(struct run *run, struct rpc_call *call);
/* May a save of the run begin (limits.identity_saves)? ERR_BUSY. */
int quota_check_save(const struct run *run);
/* May a save of `bytes` begin (limits.identity_disk_bytes)? disk_of: bytes of a run's checkpoints
 * here and its saves in work. ERR_SPACE. */
int quota_check_disk(const struct run *run, uint64_t bytes,
                     uint64_t (*disk_of)(const struct run *run));
/* The owner of the run, for the file of its attempt, and from that file; "": none. */
void quota_owner_text(char out[PRINCIPAL_TEXT_MAX], const struct run *run);
void quota_read_owner(struct run *run, const char *text);
/* May the rank take an image for a save (limits.identity_arena_bytes)? ERR_BUSY. */
int quota_check_image(const struct session *session);
/* Can ranks whose images take that many segments have one image each at once? ERR_SPACE: no save of
 * theirs can end. */
int quota_check_plan(const struct run *run, uint64_t segments);

#endif
