/* pass.h - reads images and verifies what was read; see pass.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_PASS_H
#define HOLDFAST_CKPTD_RESTORE_PASS_H

#include "ckptd/core/loop.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct checkpoint;
struct shard_wait;
struct image;
struct chunk;

/* Both end with an event, verified or failed; until then image->in_pass. A READ takes what open
 * loads and the waiting calls need, and what is asked for until it ends. pass_read makes the image
 * first, whose calls are `waiting` (or NULL), and fails with ERR_BUSY when there is no memory for
 * it now. pass_begin reads more of one that is resident. */
int pass_read(struct checkpoint *checkpoint, uint32_t shard, struct shard_wait *waiting);
void pass_begin(struct image *image);
/* The READ of the image is to take chunks [first, end), where they are not there. */
void pass_ask(struct image *image, uint32_t first, uint32_t end);

/* What parts need, too: */

/* Cleans the segments where others had them, leases the checkpoint where the file is far, opens the
 * file and proves its header and checksum table by the manifest. `opened` takes
 * image->far_hold over (held.h); image->fault says what went wrong. */
void pass_open_file(struct image *image, void (*opened)(struct event *event));
void pass_work(struct image *image);       /* image->job, where its file's tier has its work done */
void pass_close_file(struct image *image); /* on a worker; NULL-safe */
/* Starts what was asked for before the file was open. False: nothing was. */
bool pass_start_asked(struct image *image);
/* What was asked for and not started is given up. */
void pass_drop_asked(struct image *image);
/* A chunk has come: in a READ it is held against the table. */
void pass_take_chunk(struct image *image, struct chunk *chunk);

/* So many chunks are under way at once before what is read ahead waits. */
uint32_t pass_chunks_max(const struct service *service);
/* As much must be verified, from the byte that is needed on, before a part of a shard is lent. */
uint64_t pass_lend_bytes(const struct service *service);

#endif
