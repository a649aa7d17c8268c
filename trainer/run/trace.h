/* trace.h - draws real steps: the work of each lane over time.
 *
 * Each operation of the step's program and each call of the rank's communicators (flight.h) becomes
 * an event. For one step (debug.timeline_file) rank 0 gathers the events of all ranks and writes
 * them: as a Chrome trace (chrome://tracing, ui.perfetto.dev), or as a drawing if the file's name
 * ends in .svg. For every n-th step (profiling.profile_freq) each rank writes its own events as a
 * Chrome trace, at torchtitan's place. Times are of CLOCK_MONOTONIC: each rank is drawn by its
 * machine's clock. A GPU works later than the host queues: "LANE, device" has the times of that
 * work, by timed marks between operations, too late by the time of one wait for the GPU. */
#ifndef HOLDFAST_TRAINER_TRACE_H
#define HOLDFAST_TRAINER_TRACE_H

#include "trainer/parallel/parallel.h"

struct trace;

struct trace_options {
    const char *path;  /* for all ranks; "": none */
    int64_t at_step;   /* the step of this start, counted from 1 */
    char folder[512];  /* for each rank: FOLDER/iteration_N/rankR_trace.json; "": none */
    int64_t freq;      /* draw steps that are multiples of it */
    const char *steps; /* or, if not empty, the steps of this list (config_has_step) */
};
/* Call before the first step; path and steps must outlive it. *out is NULL if nothing is to be
 * drawn. ERR_INVALID: rank 0 cannot create the file; ERR_MEMORY. */
int trace_new(struct trace **out, const struct trace_options *options, struct parallel *parallel);
/* NULL is allowed. Warns if no step was drawn. */
void trace_free(struct trace *trace);
/* Calls parallel_step and draws the step if it is chosen; trace NULL: never. A write error does not
 * end training. Collective. */
int trace_step(struct trace *trace, struct parallel *parallel, const struct step_input *input,
               struct step_result *out);

#endif
