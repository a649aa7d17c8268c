/* readback.h - what storage.verify_after_write does with a shard; see readback.c. */
#ifndef HOLDFAST_CKPTD_NODE_READBACK_H
#define HOLDFAST_CKPTD_NODE_READBACK_H

#include <stdbool.h>

struct stage;

/* Reads some more of the stage's file, which is written and synced, and compares. On a worker.
 * *out_is_over: all of it was as it was hashed. ERR_CORRUPT, ERR_MEMORY, and errors of the disk. */
int readback_step(struct stage *stage, bool *out_is_over);

#endif
