/* lend.h - the answer of LoadShard: what is verified is lent; see lend.c. */
#ifndef HOLDFAST_CKPTD_RESTORE_LEND_H
#define HOLDFAST_CKPTD_RESTORE_LEND_H

#include <stdint.h>

struct service;
struct image;
struct shard_wait;
struct checkpoint;
struct fault;

/* Answers with what is verified of it from wait->from_byte on, in one piece, and frees `wait`. */
void lend_shard(struct shard_wait *wait, struct image *image);
/* Moves wait->end_chunk on over the chunks that are there; returns the byte where they end. */
uint64_t lend_end(struct shard_wait *wait, const struct image *image);
/* Why a file could not be read: damage is the checkpoint's from then on, and ERR_CORRUPT. */
void lend_note_damage(struct checkpoint *checkpoint, struct fault *fault);

#endif
