/* preflight.h - are the ranks of a world fit to train? Asked before hours are spent on it.
 *
 * Each rank opens its device, copies to it and back, and multiplies small integers, whose product
 * is exact in any order, so that every device has to have the same bits. Where all can, each sends
 * to the rank behind it, around, and all gather from all: what moves by NCCL, MPI or memory in
 * training moves the same way here. No data, no model and no ckptd are needed. */
#ifndef HOLDFAST_TRAINER_RUN_PREFLIGHT_H
#define HOLDFAST_TRAINER_RUN_PREFLIGHT_H

#include "trainer/run/rank.h"

#define PREFLIGHT_PROBLEM_BYTES 256

/* What a rank has found. Rates are those of this moment, on whatever else runs there. */
struct finding {
    char host[64];
    char device[160];                 /* as kernels_describe() says; "": it was not opened */
    char identity[96];                /* device_identity() */
    uint64_t memory_all, memory_free; /* bytes of the device's own; 0: its memory is the host's */
    double copy_rate;                 /* bytes/s, to the device and back */
    double product_rate;              /* floating-point operations/s */
    double link_rate;                 /* bytes/s from the rank in front of it; 0: not tried */
    char problem[PREFLIGHT_PROBLEM_BYTES]; /* "": none */
};

enum fitness { FIT, SLOW, BROKEN };
/* Slow: one of its rates is below PREFLIGHT_SLOW of the median of all ranks. */
#define PREFLIGHT_SLOW 0.7
void preflight_judge(enum fitness *out, const struct finding *all, uint32_t num); /* [num] */

/* The ranks' work (ranks_run): rank 0 prints a line for each rank, or with memory_estimation.json
 * one JSON object. *out_exit: EXIT_DO_NOT_RETRY when a rank is broken. ERR_UNAVAILABLE: a rank did
 * not answer. Collective. */
int preflight(struct rank *rank, int *out_exit);

#endif
