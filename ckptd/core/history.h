/* history.h - the journal of a run: who committed, pinned, removed and took over, and when; see
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
    uint64_t step, attempt; /* attempt 0: of no checkpoint */
    struct rpc_call *call;  /* who asked for it; not answered yet. NULL: */
    const char *by;         /* this text says who it was */
    const char *detail;     /* NULL: nothing to add */
};
int history_open(struct service *service);
void history_close(struct service *service); /* behind the loop, before the catalog is closed */
/* Is a worker writing the run's journal now? */
bool history_is_written(const struct run *run);
/* Into the journal, and the log: one line, with who it was, of the area "audit". */
void history_note(struct run *run, const struct history_event *event);
void history_log(const char *run, const struct history_event *event); /* of a run that is no more */
void history_call(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__HistoryRequest *request);
/* ckptd ends: what is not on the disk yet is written now. */
void history_hurry(struct service *service);

#endif
