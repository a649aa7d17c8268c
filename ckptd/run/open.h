/* open.h - OpenAttempt; see open.c. */
#ifndef HOLDFAST_CKPTD_RUN_OPEN_H
#define HOLDFAST_CKPTD_RUN_OPEN_H

#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

struct service;
struct run;
struct commit_action;

void attempt_open(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__OpenAttemptRequest *request);
void attempt_open_close(struct service *service); /* answers the starts that wait */
/* Perform COMMIT_TAKE, COMMIT_OPENED, COMMIT_NOT_OPENED (run.c). */
void open_take(struct run *run, const struct commit_action *action);
void open_done(struct run *run, const struct commit_action *action);
void open_failed(struct run *run, const struct commit_action *action);

#endif
