/* restore.h - what the files of restore/ share. Private to them.
 *
 * open.c makes a load of an OpenLoad, lease.c keeps the table of loads, shard.c lends shards to
 * LoadShard, part.c parts of the very large ones, pass.c reads and proves images, ahead.c says
 * which image is next. Everything runs on the service thread unless a function says otherwise. */
#ifndef HOLDFAST_CKPTD_RESTORE_H
#define HOLDFAST_CKPTD_RESTORE_H

#include "ckptd/ckptd.h"

/* A LoadShard call that waits for a pass, or for memory. */
struct shard_wait {
    struct shard_wait *next;
    struct service *service;
    struct rpc_call *call;
    uint64_t load; /* by number: the load may have ended */
    uint32_t shard;
    uint64_t from_byte; /* the first that is needed */
    struct timer timer; /* for memory only */
};

/* ---- lease.c ---- */

/* The checkpoint's manifest stays cached between the two. */
void lease_take(struct checkpoint *checkpoint);
void lease_drop(struct checkpoint *checkpoint);
/* Takes a lease, and notes the shards of the plan as wanted. `items` are sorted by shard. ERR_BUSY,
 * ERR_MEMORY. */
int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint,
             const struct load_item *items, uint32_t num_items);
/* By number, and its lease begins anew. ERR_NOT_FOUND. */
int load_find(struct load **out, struct service *service, uint64_t number);
/* The load reads `image` of shard `shard` from now on; NULL: none. */
void load_hold(struct load *load, uint32_t shard, struct image *image);
void load_end(struct load *load);
/* An image that nobody reads or wants goes, unless it is of the newest checkpoint. */
void load_settle(struct image *image);

/* ---- pass.c ---- */

/* Both end with shard_proven() or shard_failed(); until then image->in_pass. A READ makes the image
 * first, whose calls are `waiting` (or NULL), and fails with ERR_BUSY when there is no memory for
 * it now. */
int pass_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting);
void pass_verify(struct image *image);
/* On a worker: cleans the segments where others had them, opens and measures the file, reads its
 * checksum table and proves it by the manifest. */
int pass_open_file(struct image *image);
/* The blocks of chunks [first, end), read and hashed, against that table. ERR_CORRUPT names the
 * first that differs. */
int pass_check_chunks(const struct image *image, uint32_t first, uint32_t end);

/* ---- part.c ---- */

/* Of a checkpoint whose manifest is there. */
bool part_is_needed(const struct checkpoint *checkpoint, uint32_t shard);
/* Reads the part around wait->from_byte, lends it and frees `wait`. ERR_BUSY: no memory for it now.
 */
int part_load(struct load *load, struct shard_wait *wait);

/* ---- shard.c ---- */

void shard_proven(struct image *image);
/* More of it is, while it is still being read. */
void shard_grew(struct image *image);
/* Answers with what is proven of it from the segment of wait->from_byte on, and frees `wait`. */
void shard_lend(struct shard_wait *wait, struct image *image);
/* As much must be proven, from the byte that is needed on, before a part of a shard is lent. */
uint64_t shard_lend_bytes(const struct service *service);
/* Why a file could not be read: damage is the checkpoint's from then on, and ERR_CORRUPT. */
void shard_note_damage(struct checkpoint *checkpoint, struct fault *fault);
/* image->fault says why; the image has left its checkpoint when this returns. */
void shard_failed(struct image *image);
void shard_retry_starved(struct service *service); /* memory came back */
void shard_fail_starved(struct service *service);  /* ckptd ends */

/* ---- ahead.c ---- */

/* Starts what is to be read and proven next, as far as the queue and the memory allow. */
void ahead_run(struct service *service);
/* So few chunks are under way that ahead_run() may start more. */
uint32_t ahead_chunks(const struct service *service);

#endif
