/* proof.h - a thread that hashes whole tokens files behind the training's back.
 *
 * It runs at the lowest priority (SCHED_IDLE): what a start must not wait for takes no time that
 * somebody else wants. Thread safe. */
#ifndef HOLDFAST_TRAINER_PROOF_H
#define HOLDFAST_TRAINER_PROOF_H

#include "trainer/data/tokens_file.h"

struct proof;
/* The files must outlive it. ERR_MEMORY. */
int proof_open(struct proof **out, const struct tokens_file *const *files, uint32_t num);
/* Gives up what is not done. NULL is allowed. */
void proof_close(struct proof *proof);
/* 0 as long as nothing is wrong; otherwise the error, with its text. NULL: 0. */
int proof_result(struct proof *proof);

#endif
