/* trace.h - real steps, drawn: what each lane did when.
 *
 * Each operation of the step's program and each call of the rank's communicators (flight.h) becomes
 * an event. Of one step (debug.timeline_file) rank 0 gets those of all ranks and writes them: as a
 * Chrome trace (chrome://tracing, ui.perfetto.dev), or where the file's name ends in .svg as a
 * drawing. Of every so manieth step (profiling.profile_freq) each rank writes its own, as a Chrome
 * trace where torchtitan has its. Times are of CLOCK_MONOTONIC: ranks on several machines are each
 * drawn by their own clock. */
#ifndef HOLDFAST_TRAINER_TRACE_H
#define HOLDFAST_TRAINER_TRACE_H

#include "trainer/parallel/parallel.h"

struct trace;

struct trace_options {
    const char *path;  /* of all ranks; "": none */
    int64_t at_step;   /* the how manieth step of this start it is of, from 1 */
    char folder[512];  /* of each rank's: FOLDER/iteration_N/rankR_trace.json; "": none */
    int64_t freq;      /* of steps that it divides */
    const char *steps; /* or of those of a list (config_has_step), where it is not empty */
};
/* Before the first step; path and steps outlive it. *out is NULL where nothing is to be drawn.
 * ERR_INVALID where rank 0 cannot create the file; ERR_MEMORY. */
int trace_new(struct trace **out, const struct trace_options *options, struct parallel *parallel);
/* NULL is none. Warns where no step was drawn. */
void trace_free(struct trace *trace);
/* parallel_step, drawn if it is one of those; trace NULL: never. What cannot be written does not
 * end training. Collective. */
int trace_step(struct trace *trace, struct parallel *parallel, const struct step_input *input,
               struct step_result *out);

#endif
