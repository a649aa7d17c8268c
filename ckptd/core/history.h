/* history.h - the journal of a run: commits, pins, removals, takeovers, with user and time; see
 * history.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_CORE_HISTORY_H
#define HOLDFAST_CKPTD_CORE_HISTORY_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct run;

struct history_event {
    const char *name;       /* "commit", "remove", ... */
    uint64_t step, attempt; /* attempt 0: no checkpoint */
    struct rpc_call *call;  /* the caller; not answered yet. NULL: */
    const char *by;         /* this text names the actor */
    const char *detail;     /* NULL: no detail */
};
int history_open(struct service *service);
/* Call after the loop has ended, before the catalog is closed. */
void history_close(struct service *service);
/* Is a worker writing the run's journal now? */
bool history_is_written(const struct run *run);
/* Adds the event to the journal, and logs one line with the caller, in the area "audit". */
void history_note(struct run *run, const struct history_event *event);
/* For a run that does not exist any more. */
void history_log(const char *run, const struct history_event *event);
/* The run's directory is gone, and its journal with it: does not make it again for the lines that
 * are not written yet. */
void history_drop(struct run *run);
/* The call History. `now`: a line for its reply alone, or "". */
#define HISTORY_NOW_MAX 256u
void history_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__HistoryRequest *request, const char *now);
/* At shutdown: writes the remaining lines now. */
void history_hurry(struct service *service);

#endif
