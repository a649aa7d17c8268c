/* lend.h - the answer of LoadShard; see lend.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_LEND_H
#define HOLDFAST_CKPTD_RESTORE_LEND_H

#include <stdbool.h>
#include <stdint.h>

struct service;
struct image;
struct shard_wait;
struct fault;

/* Answers with what is there of it from wait->from_byte on, in one piece, and frees `wait`. */
void lend_shard(struct shard_wait *wait, struct image *image);
/* Moves wait->end_chunk on over the chunks that are there; returns the byte where they end. */
uint64_t lend_end(struct shard_wait *wait, const struct image *image);
/* Why the image's file could not be read: damage is noted, and ERR_CORRUPT. True: it is the file's
 * in that tier alone, and another tier has the checkpoint whole: read it there. */
bool lend_note_damage(const struct image *image, struct fault *fault);

#endif
