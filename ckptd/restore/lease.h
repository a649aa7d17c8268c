/* lease.h - the table of loads: the shards that each wants and holds; see lease.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_LEASE_H
#define HOLDFAST_CKPTD_RESTORE_LEASE_H

#include "ckptd/core/loop.h"
#include "proto/layout/layout.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct session;
struct checkpoint;
struct image;
struct load;
struct load_item;
struct slice;
struct storage_hold;

void restore_release_shard(struct service *service, struct rpc_call *call,
                           const Holdfast__V1__ReleaseShardRequest *request);
void restore_close_load(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__CloseLoadRequest *request);
void restore_end_session(struct session *session); /* ends its loads */
bool restore_lends(const struct session *session, uint32_t segment);

/* Takes a lease, with the file *hold if it needs one, and notes the shards of the plan as wanted.
 * `items` are sorted by shard and are of `slices`. ERR_BUSY, ERR_MEMORY. */
int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint,
             struct storage_hold **hold, const struct load_item *items, uint32_t num_items,
             const struct slice *slices);
/* Finds a load by number and begins its lease anew. ERR_NOT_FOUND. */
int load_find(struct load **out, struct service *service, uint64_t number);
/* The load reads `image` of shard `shard` from now on; NULL: none. */
void load_hold(struct load *load, uint32_t shard, struct image *image);
void load_end(struct load *load);

#endif
