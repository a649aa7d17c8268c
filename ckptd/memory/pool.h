/* pool.h - the memory that images are made of: equal memfd segments, taken once (pool.c). Called on
 * the service thread, but for what says otherwise. */
#ifndef HOLDFAST_CKPTD_MEMORY_POOL_H
#define HOLDFAST_CKPTD_MEMORY_POOL_H

#include "storage/storage.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* Who gets a segment: a run (its tag, from 1), and the attempt of it whose ranks write there; 0:
 * nobody but ckptd writes, it is for a load. memory_node: 1 + the NUMA node where its memory had
 * best be; 0: anywhere. */
struct pool_owner {
    uint64_t run, attempt;
    uint32_t memory_node;
};

/* Only the segments, bare: pool_renew takes their memory, and a clean one has it. With `huge` in
 * pages of 2 MiB as far as the kernel gives them. ERR_MEMORY: the host does not have it. */
int pool_open(struct pool **out, uint64_t pool_bytes, uint64_t segment_bytes, bool huge,
              struct storage *storage);
void pool_close(struct pool *pool);
uint64_t pool_segment_bytes(const struct pool *pool);
uint64_t pool_huge_bytes(const struct pool *pool); /* of it in pages of 2 MiB */
uint32_t pool_size(const struct pool *pool);
uint32_t pool_ready_count(const struct pool *pool); /* of them have their memory; any thread */
uint32_t pool_free_count(const struct pool *pool);
/* So many of the free ones need no cleaning for this owner. */
uint32_t pool_ready_for(const struct pool *pool, struct pool_owner owner);
/* All or nothing; first those that need no cleaning. ERR_BUSY. */
int pool_take(struct pool *pool, uint32_t *out_segments, uint32_t count, struct pool_owner owner);
void pool_give(struct pool *pool, const uint32_t *segments, uint32_t count);
/* Might another owner see in them what is not his, or still write there, or are they bare? Then
 * pool_clean, on a worker, before they are lent. ERR_MEMORY: they are as unclean as before. */
bool pool_is_dirty(const struct pool *pool, const uint32_t *segments, uint32_t count);
int pool_clean(struct pool *pool, const uint32_t *segments, uint32_t count);
/* The ranks of this owner have gone for good. True: pool_renew has something to do. */
bool pool_disown(struct pool *pool, struct pool_owner owner);
/* Cleans one segment that nobody asked for, on a worker. *out_more: call it again. ERR_MEMORY: the
 * pool cannot be filled. */
int pool_renew(struct pool *pool, bool *out_more);
uint8_t *pool_base(const struct pool *pool, uint32_t segment); /* for ever the same */
/* out[i]: how often segments[i] was made anew, by which a rank knows whether what it has mapped is
 * still the segment. Of segments that are clean. */
void pool_generations(const struct pool *pool, uint32_t *out, const uint32_t *segments,
                      uint32_t count);
/* Borrowed descriptors, until the next pool_clean; the second cannot be mapped writable. */
int pool_fd(const struct pool *pool, uint32_t segment);
int pool_fd_read_only(const struct pool *pool, uint32_t segment);

#endif
