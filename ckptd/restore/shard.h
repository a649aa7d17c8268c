/* shard.h - LoadShard: shards are lent when they are verified; see shard.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_SHARD_H
#define HOLDFAST_CKPTD_RESTORE_SHARD_H

#include "ckptd/loop.h"
#include "proto/ckpt.pb-c.h"
#include "proto/rpc.h"

#include <stdint.h>

struct service;
struct image;
struct checkpoint;

/* A LoadShard call that waits for a pass, or for memory. */
struct shard_wait {
    struct shard_wait *next;
    struct service *service;
    struct rpc_call *call;
    uint64_t load; /* by number: the load may have ended */
    uint32_t shard;
    uint64_t from_byte; /* the first that is needed */
    uint32_t end_chunk; /* those from that byte's to here were there when this was last looked at */
    struct timer timer; /* for memory only */
};

void restore_load_shard(struct service *service, struct rpc_call *call,
                        const Holdfast__V1__LoadShardRequest *request);
void shard_proven(struct image *image);
/* More of it is, while it is still being read. */
void shard_grew(struct image *image);
/* Answers with what is proven of it from wait->from_byte on, in one piece, and frees `wait`. */
void shard_lend(struct shard_wait *wait, struct image *image);
/* As much must be proven, from the byte that is needed on, before a part of a shard is lent. */
uint64_t shard_lend_bytes(const struct service *service);
/* Why a file could not be read: damage is the checkpoint's from then on, and ERR_CORRUPT. */
void shard_note_damage(struct checkpoint *checkpoint, struct fault *fault);
/* image->fault says why; the image has left its checkpoint when this returns. */
void shard_failed(struct image *image);
void shard_retry_starved(struct service *service); /* memory came back */
void shard_fail_starved(struct service *service);  /* ckptd ends */

#endif
