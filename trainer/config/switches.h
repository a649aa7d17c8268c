/* switches.h - what saves or ends a run from outside: switch files and clocks.
 *
 * A kill switch is a file that an operator makes to stop every start of a run: the trainer saves
 * and ends with a code that no launcher starts again. A save switch asks for one save and is
 * removed when it is seen. The clocks are checkpoint.interval in seconds,
 * training.exit_duration_in_mins, and the end of the batch system's job. Before that a run ends
 * early enough for a step and a save: the longest of this start, doubled, and no later than
 * training.exit_lead_seconds. That time is said, for those who signal a run at its limit.
 *
 * Memory that leaks ends a run before the system does: training.exit_memory_gib bounds what is a
 * process's own (files that are mapped, and what ckptd lends, are not), and
 * training.exit_free_memory_gib is the least that a machine must have left. Each rank looks at its
 * own, at most once a second; one that is over ends all, saved, with 75.
 *
 * What ckptd is asked for (`ckpt-cli stop`) every rank sees, too (snapshot_asked), as not every
 * ckptd has rank 0. At the rest rank 0 looks alone, once per step. The answers ride in the
 * reduction that carries stop requests (step.c), so all ranks act behind the same step, whatever
 * their clocks and file systems say. */
#ifndef HOLDFAST_TRAINER_CONFIG_SWITCHES_H
#define HOLDFAST_TRAINER_CONFIG_SWITCHES_H

#include "trainer/config/config.h"

enum {
    SWITCH_SAVE = 1,          /* a save is due: the switch file, or an interval that is not one of
                                 steps */
    SWITCH_KILL = 2,          /* the kill switch is there */
    SWITCH_DURATION = 4,      /* training.exit_duration_in_mins or the job's time are over */
    SWITCH_MEMORY = 8,        /* some rank is short of memory */
    SWITCH_STOP = 16,         /* ckptd was asked to stop the run */
    SWITCH_STOP_UNSAVED = 32, /* and not to save */
    SWITCHES_FOR_GOOD = SWITCH_KILL | SWITCH_STOP | SWITCH_STOP_UNSAVED,
    SWITCHES_STOP = SWITCHES_FOR_GOOD | SWITCH_DURATION | SWITCH_MEMORY,
    SWITCHES_BITS = 6,
};

struct switches {
    const struct config *config;
    double opened_at, saved_at;    /* CLOCK_MONOTONIC */
    bool is_save_broken;           /* the save switch could not be removed; said once */
    const char *root;              /* of the memory's files (memory_check.h): "", but in tests */
    double memory_at;              /* when they were read last */
    double job_end;                /* launched_job_end() */
    double looked_at, longest_lap; /* between two looks: a step with all that is beside it */
    double said_lead;              /* seconds; 0: none yet */
};

void switches_open(struct switches *out, const struct config *config);
/* Rank 0's look, behind each step: a mask of SWITCH_*. Removes the save switch. `save_seconds`: the
 * longest that a save took to be durable; 0: none is yet. */
unsigned switches_look(struct switches *switches, double save_seconds);
/* Every rank's look at its memory. True: the run should save and end, which is said. */
bool switches_memory_is_short(struct switches *switches);
/* A save was begun, or training starts: the interval in seconds begins anew. */
void switches_saved(struct switches *switches);

/* The kill switch of this configuration is there: nothing may be started. */
bool switches_is_killed(const struct config *config);
/* Logs that ckptd was asked to stop the run, if it was. */
void switches_log_stop(unsigned seen);
/* The exit code of a run that was stopped before its last step. */
int switches_exit_code(unsigned seen);

#endif
