/* scrub.h - verifies committed checkpoints in the background at a limited rate, so that ckptd finds
 * damage while there is another copy or an older checkpoint; see scrub.c. On the service thread,
 * except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_SCRUB_SCRUB_H
#define HOLDFAST_CKPTD_SCRUB_SCRUB_H

#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct json_t;
struct manifest_summary;
struct run;
struct service;

/* After tier_open() and catalog_open(): reads the cursors, even if the scrub is off. Blocks. */
int scrub_open(struct service *service);
/* After loop_close(), before the tiers are closed. */
void scrub_close(struct service *service);
/* A tool adds a checkpoint (run->adopting), which must not count as read back: true, with a cursor
 * that must be stored (store_put_cursor) before the commit. */
bool scrub_expect(struct scrub_cursor *out, struct run *run,
                  const struct manifest_summary *summary);
/* The checkpoint was added. */
void scrub_brought(struct run *run, const struct manifest_summary *summary);
/* Starts a pass, or pauses the scrub. */
void scrub_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ScrubRequest *request);
/* For Status: of the local tier; of the far one, null if there is none or the scrub is off. */
struct json_t *scrub_describe(const struct service *service);
struct json_t *scrub_describe_far(const struct service *service);

#endif
