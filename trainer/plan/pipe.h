/* pipe.h - schedules of a pipeline: which rank computes what of which micro-batch, and when.
 *
 * The model is cut in num_ranks x chunks stages; stage s is of rank s % num_ranks. An action is the
 * forward of a stage on one leaf, its backward, or one of the backward's halves. All named
 * schedules come from one simulation in which forwards and backwards have fixed orders and a rank
 * takes a backward when one can be had, else a forward while it has not too many leaves under way:
 *
 *   GPipe              every forward first; with chunks LoopedBFS (Lamy-Poirier 2022)
 *   1F1B               rank r has at most num_ranks - r leaves under way
 *   Interleaved1F1B    likewise with chunks, in rounds of num_ranks leaves (Narayanan et al. 2021)
 *   InterleavedZeroBubble   Interleaved1F1B, and the gradients of weights wait as in ZBH1
 *   ZBH1               1F1B, the gradients of weights wait until nothing else can be had (Qi et al.
 *                      2023, the schedule that needs no more memory than 1F1B)
 *
 * A file gives any other, in the form of torch.distributed.pipelining: a line per rank, actions
 * separated by commas: stage, F B I or W, leaf ("0F0,0F1,,0B0"); B is both halves, I the input's, W
 * the weights'. The backwards of a stage are in the order of leaves, in every schedule. */
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
    uint32_t *num_actions;        /* per rank */
    struct pipe_action **actions; /* per rank, in its order */
    double bubble; /* idle part of all ranks' time where a forward, an input's and a weight's
                      gradient take one unit of time each */
};

struct pipe_options {
    uint32_t num_ranks, chunks, num_leaves;
    enum pipe_schedule schedule;
    const char *file; /* of PIPE_FILE */
};

/* ERR_INVALID: the file has no such schedule (the line and action are named), or one that never
 * ends. ERR_MEMORY. */
int pipe_new(struct pipe **out, const struct pipe_options *options);
void pipe_free(struct pipe *pipe);

#endif
