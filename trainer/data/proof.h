/* proof.h - a thread that hashes whole tokens files in the background.
 *
 * It runs at the lowest priority (SCHED_IDLE), so it does not delay a start or training. Thread
 * safe. */
#ifndef HOLDFAST_TRAINER_PROOF_H
#define HOLDFAST_TRAINER_PROOF_H

#include "trainer/data/tokens_file.h"

struct proof;
/* The files must outlive it. ERR_MEMORY. */
int proof_open(struct proof **out, const struct tokens_file *const *files, uint32_t num);
/* Ends the thread before it is done. NULL is allowed. */
void proof_close(struct proof *proof);
/* 0 until an error is found; then the error, with its text. NULL: 0. */
int proof_result(struct proof *proof);

#endif
