/* scrub.h - reads committed checkpoints again, slowly, so that damage is found while there is still
 * another copy or an older checkpoint; see scrub.c. On the service thread, but for what says
 * otherwise. */
#ifndef HOLDFAST_CKPTD_SCRUB_SCRUB_H
#define HOLDFAST_CKPTD_SCRUB_SCRUB_H

#include "proto/format/retain.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct json_t;
struct manifest_summary;
struct run;
struct service;

/* Behind tier_open and catalog_open: reads the cursors, also where the scrub is off. Blocks. */
int scrub_open(struct service *service);
/* Behind loop_close, before the tiers are closed. */
void scrub_close(struct service *service);
/* A tool brings a checkpoint, run->adopting, and nobody must take it for one that was read back:
 * true, and a cursor that is to be put (store_put_cursor) before it is committed. */
bool scrub_expect(struct scrub_cursor *out, struct run *run,
                  const struct manifest_summary *summary);
/* It is there. */
void scrub_brought(struct run *run, const struct manifest_summary *summary);
/* Starts a pass, or pauses. */
void scrub_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ScrubRequest *request);
/* For Status: of the local tier; of the far one, null where there is none or the scrub is off. */
struct json_t *scrub_describe(const struct service *service);
struct json_t *scrub_describe_far(const struct service *service);

#endif
