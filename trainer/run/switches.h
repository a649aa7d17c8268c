/* switches.h - what saves or ends a run from outside: switch files and clocks.
 *
 * A kill switch is a file that an operator makes to stop every start of a run: the trainer saves
 * and ends with a code that no launcher starts again. A save switch asks for one save and is
 * removed when it is seen. The clocks are checkpoint.interval in seconds and
 * training.exit_duration_in_mins.
 *
 * Only rank 0 looks, once per step. Its answer rides in the reduction that carries stop requests
 * (step.c), so all ranks act behind the same step, whatever their clocks and file systems say. */
#ifndef HOLDFAST_TRAINER_SWITCHES_H
#define HOLDFAST_TRAINER_SWITCHES_H

#include "trainer/config/config.h"

enum {
    SWITCH_SAVE = 1,     /* a save is due: the switch file, or the interval in seconds */
    SWITCH_KILL = 2,     /* the kill switch is there */
    SWITCH_DURATION = 4, /* training.exit_duration_in_mins are over */
    SWITCHES_STOP = SWITCH_KILL | SWITCH_DURATION,
};

struct switches {
    const struct config *config;
    double opened_at, saved_at; /* CLOCK_MONOTONIC */
    bool is_save_broken;        /* the save switch could not be removed; said once */
};

void switches_open(struct switches *out, const struct config *config);
/* Rank 0's look: a mask of SWITCH_*. Removes the save switch. */
unsigned switches_look(struct switches *switches);
/* A save was begun, or training starts: the interval in seconds begins anew. */
void switches_saved(struct switches *switches);

/* The kill switch of this configuration is there: nothing may be started. */
bool switches_is_killed(const struct config *config);
/* The exit code of a run that was stopped before its last step. */
int switches_exit_code(unsigned seen);

#endif
