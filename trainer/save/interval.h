/* interval.h - the number of steps between two saves, with checkpoint.interval = "auto".
 *
 * The interval loses the least work (proto/base/daly.h). Its inputs are checkpoint.mtbf and the
 * measurements of this start, as in `ckpt-cli advise`: the time of a step between the last two
 * saves, the average wait of training for a save, and the time from the last save's copy until it
 * was durable. Until the first save of a start is measured, the interval is INTERVAL_FIRST_STEPS. A
 * new interval within 10 % of the current one is ignored.
 *
 * Rank 0 decides and tells the other ranks as SWITCH_SAVE does (config/switches.h). A save changes
 * no bit of training. */
#ifndef HOLDFAST_TRAINER_SAVE_INTERVAL_H
#define HOLDFAST_TRAINER_SAVE_INTERVAL_H

#include "proto/base/daly.h"

#include <stdbool.h>
#include <stdint.h>

#define INTERVAL_FIRST_STEPS 10

/* Zeros before the start. */
struct interval {
    int64_t steps; /* 0: not measured yet */
    int64_t since; /* the step of the last save, or the first step of this start */
    bool is_begun;
};

/* Call when a save of this step begins, or when training starts at it. */
void interval_begin(struct interval *interval, int64_t step);
/* Changes the interval if `measured` says so, and logs it. `wait` or `step` of 0: nothing is
 * measured. */
void interval_decide(struct interval *interval, const struct daly *measured);
bool interval_is_over(const struct interval *interval, int64_t step);

#endif
