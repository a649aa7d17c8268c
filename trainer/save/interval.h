/* interval.h - how many steps lie between two saves, with checkpoint.interval = "auto".
 *
 * The interval is the one that loses least (proto/base/daly.h), of checkpoint.mtbf and of what this
 * start has measured, as `ckpt-cli advise` has it: the time of a step between the last two saves,
 * what training has waited for a save on average, and how long the last one took from its copy
 * until it was durable, as soon as that is known. Before the first save of a start is measured,
 * INTERVAL_FIRST_STEPS lie between two. A new interval within 10 % of the one that is in use is not
 * taken.
 *
 * Rank 0 decides; that a save is due travels as SWITCH_SAVE does (config/switches.h). Bits of
 * training do not depend on it: a save changes none. */
#ifndef HOLDFAST_TRAINER_SAVE_INTERVAL_H
#define HOLDFAST_TRAINER_SAVE_INTERVAL_H

#include "proto/base/daly.h"

#include <stdbool.h>
#include <stdint.h>

#define INTERVAL_FIRST_STEPS 10

/* Zeros at first. */
struct interval {
    int64_t steps; /* 0: nothing is measured yet */
    int64_t since; /* the step of the last save, or that this start began with */
    bool is_begun;
};

/* Where training goes on from: a save was begun behind this step, or none is yet. */
void interval_begin(struct interval *interval, int64_t step);
/* Takes another interval where `measured` says so, which is logged. `wait` or `step` of 0: nothing
 * is measured. */
void interval_decide(struct interval *interval, const struct daly *measured);
bool interval_is_over(const struct interval *interval, int64_t step);

#endif
