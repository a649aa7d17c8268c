/* pipe.h - schedules of a pipeline: which rank computes which stage of which micro-batch, and when.
 *
 * The model is cut into num_ranks x chunks stages; rank s % num_ranks has stage s. An action is the
 * forward of a stage on one leaf, its backward, or one of the backward's halves. One simulation
 * makes all named schedules. Forwards and backwards have fixed orders. A rank takes a backward when
 * one is ready, else a forward if its limit of leaves under way allows it:
 *
 *   GPipe              every forward first; with chunks LoopedBFS (Lamy-Poirier 2022)
 *   1F1B               rank r has at most num_ranks - r leaves under way
 *   Interleaved1F1B    likewise with chunks, in rounds of num_ranks leaves (Narayanan et al. 2021)
 *   InterleavedZeroBubble   Interleaved1F1B, and the gradients of weights wait as in ZBH1
 *   ZBH1               1F1B, the gradients of weights wait until no other action is ready (Qi et
 *                      al. 2023, the schedule that needs no more memory than 1F1B)
 *
 * A file gives any other schedule, in the form of torch.distributed.pipelining: a line per rank,
 * actions separated by commas: stage, F B I or W, leaf ("0F0,0F1,,0B0"); B is both halves, I the
 * input's, W the weights'. The backwards of a stage are in the order of leaves, in every
 * schedule. */
#ifndef HOLDFAST_TRAINER_PLAN_PIPE_H
#define HOLDFAST_TRAINER_PLAN_PIPE_H

#include "trainer/config/config.h"

#include <stdbool.h>
#include <stdint.h>

enum pipe_kind { PIPE_FORWARD, PIPE_BACKWARD, PIPE_INPUT, PIPE_WEIGHT };

struct pipe_action {
    uint32_t stage, leaf;
    enum pipe_kind kind;
};

struct pipe {
    uint32_t num_ranks, chunks, num_leaves;
    uint32_t *num_actions;        /* [num_ranks] */
    struct pipe_action **actions; /* [num_ranks] each rank's actions in its order */
    /* Idle part of all ranks' time, if a forward, an input's and a weight's gradient take one unit
     * of time each. */
    double bubble;
};

struct pipe_options {
    uint32_t num_ranks, chunks, num_leaves;
    enum pipe_schedule schedule;
    const char *file; /* path of a PIPE_FILE schedule */
};

/* ERR_INVALID: the file has no such schedule (the error names line and action), or its schedule
 * never ends. ERR_MEMORY. */
int pipe_new(struct pipe **out, const struct pipe_options *options);
void pipe_free(struct pipe *pipe);

#endif
