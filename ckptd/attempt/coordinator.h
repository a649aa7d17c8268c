/* coordinator.h - what the coordinator of a run knows: its attempt, its ranks, its saves; see
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

struct parked { /* a call that waits; its message lives as long as the call */
    struct parked *next;
    struct rpc_call *call;
    const ProtobufCMessage *message;
};

/* Blocking work on an attempt's files; one at a time per run. */
struct attempt_work {
    struct job job;
    bool busy;
    bool is_alone;                /* no majority of the nodes is needed */
    bool has_quorum;              /* else neither is any other node */
    struct quorum quorum;         /* of a number to be taken */
    struct majority_waiter asked; /* likewise */
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
    bool is_alone;             /* that start goes on without most of the nodes */
    bool is_forced;            /* the next may, an operator says */
    struct holder holder;      /* of that start, else of the open attempt */
    bool is_owned;             /* by: */
    struct principal owner;    /* as whose the run counts (quota.c) */
    struct parked *describing; /* wait until the attempt is read back */
    struct attempt_work take, resume, parent;
    struct save *saves;
    struct follow *follow; /* peers/join_save.c: another node coordinates the attempt; else NULL */
    struct remote_lease *far_lease; /* attempt/remote_lease.c; NULL: none was needed yet */
};

/* Who performs what the machine of a run decides. */
struct coordinator_ops {
    void (*perform[COMMIT_NOT_OPENED + 1])(struct run *run, const struct commit_action *action);
};

/* A BeginSave that the coordinator is asked about: the nonce of the save, or why not. */
struct part_asking {
    char nonce[33];
    struct fault fault;
    void (*go_on)(struct part_asking *asking);
};

/* Performs the actions of a run's machine; called after every commit_*() call. */
void run_perform(struct run *run, const struct commit_actions *actions);

#endif
