/* shard.h - LoadShard: shards are lent when they are verified, or for the reader to verify; see
 * shard.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_SHARD_H
#define HOLDFAST_CKPTD_RESTORE_SHARD_H

#include "ckptd/core/loop.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdint.h>

struct service;
struct image;

void restore_load_shard(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__LoadShardRequest *request);
void shard_verified(struct image *image);
/* More of it is verified, while it is still being read. */
void shard_grew(struct image *image);
/* image->fault has the error; the image has left its checkpoint when this returns. */
void shard_failed(struct image *image);
void shard_retry_starved(struct service *service); /* memory was freed */
void shard_fail_starved(struct service *service);  /* at shutdown */

#endif
