/* coordinator.h - what the coordinator of a run knows: its attempt, its ranks, its saves; see
 * coordinator.c. */
#ifndef HOLDFAST_CKPTD_RUN_COORDINATOR_H
#define HOLDFAST_CKPTD_RUN_COORDINATOR_H

#include "ckptd/loop.h"
#include "ckptd/run/commit.h"
#include "proto/rpc.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct run;
struct save;
struct service;
struct group;
struct attempt;

struct parked { /* a call that waits; its message lives as long as the call */
    struct parked *next;
    struct rpc_call *call;
    const ProtobufCMessage *message;
};

/* Blocking work on an attempt's files; one at a time per run. */
struct attempt_work {
    struct job job;
    bool busy;
    uint64_t number;
    char *text;              /* to be written */
    struct attempt *attempt; /* read back */
    struct fault fault;
};

/* The start that opened the attempt; of one that a restart found nothing is known. */
struct holder {
    int64_t opened_ms;
    struct principal principal;
    char who[PRINCIPAL_TEXT_MAX], since[32], host[64], launch[128]; /* launch "": no token */
};

struct coordinator {
    struct run *run;
    struct commit machine;
    struct attempt *attempt; /* the open one, or NULL */
    struct group *group;
    struct parked opening;     /* call NULL: none */
    struct holder holder;      /* of that start, else of the open attempt */
    struct parked *describing; /* wait until the attempt is read back */
    struct attempt_work take, resume, parent;
    struct save *saves;
};

/* Who performs what the machine of a run decides. */
struct coordinator_ops {
    void (*perform[COMMIT_NOT_OPENED + 1])(struct run *run, const struct commit_action *action);
};

/* What the saves of all runs ask of keep/, which is above them. */
struct coordinator_policy {
    void (*apply_retention)(struct run *run); /* this thread's last error stays */
    /* A save lacks so much of the disk. True: so much is being removed of what was removed before
     * and could be taken back, and saves that wait are tried again then. */
    bool (*make_room)(struct service *service, uint64_t bytes, uint64_t inodes);
    /* Is what there is of this checkpoint being removed? Then nobody may begin it. */
    bool (*is_being_removed)(const struct service *service, const char *run, uint64_t step,
                             uint64_t attempt);
};

/* Performs the actions of a run's machine; called after every commit_*() call. */
void run_perform(struct run *run, const struct commit_actions *actions);

#endif
