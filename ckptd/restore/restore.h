/* restore.h - what the files of restore/ share. Private to them.
 *
 * open.c makes a load of an OpenLoad, lease.c keeps the table of loads, want.c knows which chunks
 * they need, shard.c lends shards to LoadShard, part.c parts of the very large ones, pass.c reads
 * and proves images, ahead.c says which image is next. Everything runs on the service thread unless
 * a function says otherwise. */
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
    uint32_t end_chunk; /* those from that byte's to here were there when this was last looked at */
    struct timer timer; /* for memory only */
};

/* ---- lease.c ---- */

/* The checkpoint's manifest stays cached between the two. */
void lease_take(struct checkpoint *checkpoint);
void lease_drop(struct checkpoint *checkpoint);
/* Takes a lease, and notes the shards of the plan as wanted. `items` are sorted by shard and are of
 * `slices`. ERR_BUSY, ERR_MEMORY. */
int load_new(struct load **out, struct session *session, struct checkpoint *checkpoint,
             const struct load_item *items, uint32_t num_items, const struct slice *slices);
/* By number, and its lease begins anew. ERR_NOT_FOUND. */
int load_find(struct load **out, struct service *service, uint64_t number);
/* The load reads `image` of shard `shard` from now on; NULL: none. */
void load_hold(struct load *load, uint32_t shard, struct image *image);
void load_end(struct load *load);
/* An image that nobody reads or wants goes, unless it is of the newest checkpoint. */
void load_settle(struct image *image);

/* ---- want.c ---- */

/* Notes which chunks the load needs of each shard. ERR_MEMORY. */
int want_note(struct load *load, const struct load_item *items, uint32_t num_items,
              const struct slice *slices);
/* The chunk in which a byte of a file lies. */
uint32_t want_chunk(const struct service *service, uint64_t byte);
/* These have pass_ask() take what is not there. */
void want_ask(const struct load *load, struct image *image); /* what the load needs of the image */
void want_ask_from(struct image *image, uint64_t byte); /* to the end, if nobody asked for it */
void want_ask_all(struct image *image);                 /* for open loads and waiting calls */
/* Is there less in memory than the load needs? */
bool want_lacks(const struct load *load, const struct image *image);

/* ---- pass.c ---- */

/* Both end with shard_proven() or shard_failed(); until then image->in_pass. A READ takes what open
 * loads and the waiting calls need, and what is asked for until it ends. pass_read makes the image
 * first, whose calls are `waiting` (or NULL), and fails with ERR_BUSY when there is no memory for
 * it now. pass_begin takes one that is resident: READ where something is missing, else VERIFY. */
int pass_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting);
void pass_begin(struct image *image);
/* The READ of the image is to take chunks [first, end), where they are not there. */
void pass_ask(struct image *image, uint32_t first, uint32_t end);

/* What parts need, too: */

/* The work of image->job: cleans the segments where others had them, opens and measures the file,
 * reads its checksum table and proves it by the manifest. image->fault says what went wrong. */
void pass_work_open_file(struct job *job);
void pass_close_file(struct image *image); /* on a worker; NULL-safe */
/* Starts what was asked for before the file was open. False: nothing was. */
bool pass_start_asked(struct image *image);
/* What was asked for and not started is given up. */
void pass_drop_asked(struct image *image);
/* A chunk has come: in a READ it is held against the table. */
void pass_take_chunk(struct image *image, struct chunk *chunk);

/* ---- part.c ---- */

/* Of a checkpoint whose manifest is there. */
bool part_is_needed(const struct checkpoint *checkpoint, uint32_t shard);
/* The part that the load has, when it holds the byte that is needed, or NULL. */
struct image *part_held(const struct load *load, const struct shard_wait *wait);
/* Reads the part around wait->from_byte, lends it and frees `wait`. ERR_BUSY: no memory for it now.
 */
int part_load(struct load *load, struct shard_wait *wait);

/* ---- shard.c ---- */

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

/* ---- ahead.c ---- */

/* Starts what is to be read and proven next, as far as the queue and the memory allow. */
void ahead_run(struct service *service);
/* So few chunks are under way that ahead_run() may start more. */
uint32_t ahead_chunks(const struct service *service);

#endif
