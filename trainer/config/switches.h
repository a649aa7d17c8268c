/* switches.h - requests from outside to save or end a run: switch files and clocks.
 *
 * A kill switch is a file by which an operator stops every start of a run: the trainer saves, then
 * exits with a code after which launchers do not restart it. A save switch asks for one save and is
 * removed when it is seen. The clocks are checkpoint.interval in seconds,
 * training.exit_duration_in_mins, and the end of the batch system's job. Before the end of the job
 * a run stops early enough for a step and a save: twice the longest of this start, and at least
 * training.exit_lead_seconds. This time is logged, for operators whose batch system signals a run
 * at its limit.
 *
 * A run that leaks memory ends before the system kills it. training.exit_memory_gib limits a
 * process's private memory (without mapped files and memory that ckptd lends).
 * A leak is also found by its growth, hour after hour (proto/base/leak.h). It is logged when it
 * begins, and ends the run if it is as quick as training.exit_leak_gib_per_hour.
 * training.exit_free_memory_gib is the least free memory of a machine. Each rank measures its
 * process at most once a second. If one exceeds a limit, all ranks save and end with 75.
 *
 * Every rank sees requests to its ckptd (`ckpt-cli stop`; snapshot_asked), since rank 0 has only
 * one of several ckptd. Only rank 0 checks the other switches, once per step. The results are part
 * of the reduction of stop requests (step.c). So all ranks act after the same step, even if clocks
 * and file systems differ. */
#ifndef HOLDFAST_TRAINER_CONFIG_SWITCHES_H
#define HOLDFAST_TRAINER_CONFIG_SWITCHES_H

#include "proto/base/leak.h"
#include "trainer/config/config.h"

enum {
    /* A save is due: by the switch file, or by an interval that is not in steps. */
    SWITCH_SAVE = 1,
    SWITCH_KILL = 2,          /* the kill switch exists */
    SWITCH_DURATION = 4,      /* training.exit_duration_in_mins or the job's time is over */
    SWITCH_MEMORY = 8,        /* a rank is short of memory */
    SWITCH_STOP = 16,         /* ckptd was asked to stop the run */
    SWITCH_STOP_UNSAVED = 32, /* and not to save */
    SWITCH_RENEW = 64,        /* a rank has lost its ckptd, and it is time to look for it */
    SWITCHES_FOR_GOOD = SWITCH_KILL | SWITCH_STOP | SWITCH_STOP_UNSAVED,
    SWITCHES_STOP = SWITCHES_FOR_GOOD | SWITCH_DURATION | SWITCH_MEMORY,
    SWITCHES_BITS = 7,
};

struct switches {
    const struct config *config;
    double opened_at, saved_at; /* CLOCK_MONOTONIC */
    bool is_save_broken;        /* the save switch could not be removed; logged once */
    const char *root;           /* of memory_check.h: "", except in tests */
    double memory_at;           /* time of the last measurement */
    struct leak leak;
    bool is_leak_said;
    double job_end;                /* launched_job_end() */
    double polled_at, longest_lap; /* between two checks: a step with all work after it */
    double said_lead;              /* seconds; 0: none yet */
};

void switches_open(struct switches *out, const struct config *config);
/* Call on rank 0 after each step: returns a mask of SWITCH_* and removes the save switch.
 * `save_seconds`: the longest time until a save was durable; 0: none yet. */
unsigned switches_poll(struct switches *switches, double save_seconds);
/* Call on every rank: measures its memory. True: the run should save and end, which is logged. */
bool switches_memory_is_short(struct switches *switches);
/* Call when a save was begun, or training starts: restarts the interval in seconds. */
void switches_saved(struct switches *switches);

/* True if the kill switch of this configuration exists: do not start. */
bool switches_is_killed(const struct config *config);
/* Logs a request to ckptd to stop the run, if there was one. */
void switches_log_stop(unsigned seen);
/* The exit code of a run that was stopped before its last step. */
int switches_exit_code(unsigned seen);

#endif
