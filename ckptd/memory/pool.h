/* pool.h - the memory of images: equal memfd segments, allocated once (pool.c). On the service
 * thread, except where stated otherwise. */
#ifndef HOLDFAST_CKPTD_MEMORY_POOL_H
#define HOLDFAST_CKPTD_MEMORY_POOL_H

#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* The owner of a segment: a run (its tag, from 1), and the attempt whose ranks write there; 0: only
 * ckptd writes, for a load. memory_node: 1 + the preferred NUMA node; 0: any. */
struct pool_owner {
    uint64_t run, attempt;
    uint32_t memory_node;
};

/* Creates only the segments: pool_renew() allocates their memory, and a clean one has it. With
 * `huge` in pages of 2 MiB as far as the kernel has them. ERR_MEMORY: the host has too little. */
int pool_open(struct pool **out, uint64_t pool_bytes, uint64_t segment_bytes, bool huge,
              struct storage *storage);
void pool_close(struct pool *pool);
uint64_t pool_segment_bytes(const struct pool *pool);
uint64_t pool_huge_bytes(const struct pool *pool); /* of it in pages of 2 MiB */
uint32_t pool_size(const struct pool *pool);
uint32_t pool_ready_count(const struct pool *pool); /* of them have their memory; any thread */
uint32_t pool_free_count(const struct pool *pool);
/* Number of free segments that need no cleaning for this owner. */
uint32_t pool_ready_for(const struct pool *pool, struct pool_owner owner);
/* All or nothing; first those that need no cleaning. ERR_BUSY. */
int pool_take(struct pool *pool, uint32_t *out_segments, uint32_t count, struct pool_owner owner);
void pool_give(struct pool *pool, const uint32_t *segments, uint32_t count);
/* True if another owner's bytes may be in them, another owner may still write there, or they have
 * no memory. Then call pool_clean() on a worker before they are lent. ERR_MEMORY: they stay
 * unclean. */
bool pool_is_dirty(const struct pool *pool, const uint32_t *segments, uint32_t count);
int pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count);
/* The ranks of this owner are gone for good. True: pool_renew() has work. */
bool pool_disown(struct pool *pool, struct pool_owner owner);
/* Cleans one unused segment, on a worker. *out_more: call it again. ERR_MEMORY: the pool cannot be
 * filled. */
int pool_renew(struct pool *pool, bool *out_more);
uint8_t *pool_base(const struct pool *pool, uint32_t segment); /* never changes */
/* out[i]: how often segments[i] was replaced; a rank compares it to check whether its mapping is
 * current. For clean segments. */
void pool_generations(const struct pool *pool, uint32_t *out, const uint32_t *segments,
                      uint32_t count);
/* Borrowed descriptors, valid until the next pool_clean(); the second cannot be mapped writable. */
int pool_fd(const struct pool *pool, uint32_t segment);
int pool_fd_read_only(const struct pool *pool, uint32_t segment);

#endif
