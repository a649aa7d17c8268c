/* coordinator.h - the state of a run's coordinator: its attempt, its ranks, its saves; see
 * coordinator.c. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_COORDINATOR_H
#define HOLDFAST_CKPTD_ATTEMPT_COORDINATOR_H

#include "ckptd/core/loop.h"
#include "ckptd/machines/commit.h"
#include "ckptd/machines/quorum.h"
#include "ckptd/tiers/majority.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct run;
struct save;
struct group;
struct attempt;
struct follow;
struct remote_lease;

struct parked { /* a waiting call; its message is valid as long as the call */
    struct parked *next;
    struct rpc_call *call;
    const ProtobufCMessage *message;
};

/* Blocking work on an attempt's files; one at a time per run. */
struct attempt_work {
    struct job job;
    bool busy;
    bool is_alone;                /* no majority of the nodes is needed */
    bool has_quorum;              /* otherwise other nodes need not hold it either */
    struct quorum quorum;         /* of a number to be made durable */
    struct majority_waiter asked; /* waits for it */
    uint64_t number;
    char *text;              /* to be written */
    struct attempt *attempt; /* read back */
    struct fault fault;
};

/* The start that opened the attempt; unknown for an attempt that a restart found. */
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
    bool is_alone;             /* that start goes on without most of the nodes */
    bool is_forced;            /* the next start may: an operator allowed it */
    struct holder holder;      /* of that start, or of the open attempt */
    bool is_owned;             /* by: */
    struct principal owner;    /* the identity to which the run is charged (quota.c) */
    struct parked *describing; /* calls that wait until the attempt is read back */
    struct attempt_work take, resume, parent;
    struct save *saves;
    struct follow *follow; /* peers/join_save.c: another node coordinates the attempt; else NULL */
    struct remote_lease *far_lease; /* attempt/remote_lease.c; NULL: not needed yet */
};

/* Performers of the decisions of a run's machine. */
struct coordinator_ops {
    void (*perform[COMMIT_NOT_OPENED + 1])(struct run *run, const struct commit_action *action);
};

/* A BeginSave that the coordinator must allow: the nonce of the save, or the error. */
struct part_asking {
    char nonce[33];
    struct fault fault;
    void (*go_on)(struct part_asking *asking);
};

/* Performs the actions of a run's machine; called after every commit_*() call. */
void run_perform(struct run *run, const struct commit_actions *actions);

#endif
