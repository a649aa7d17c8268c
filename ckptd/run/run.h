/* run.h - a run: its attempts, what is in work, its checkpoints. */
#ifndef HOLDFAST_CKPTD_RUN_RUN_H
#define HOLDFAST_CKPTD_RUN_RUN_H

#include "ckptd/catalog.h"
#include "ckptd/health.h"
#include "ckptd/run/attempt.h"
#include "ckptd/run/commit.h"
#include "ckptd/run/describe.h"
#include "proto/retain.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct save;
struct pruning;
struct checkpoint;

struct run {
    struct run *next;
    char name[RUN_NAME_MAX + 1];
    uint64_t tag; /* number of the run within this process, from 1 */
    struct service *service;
    struct commit machine;
    struct attempt *attempt; /* the open one, or NULL */
    struct group *group;
    struct parked opening;     /* call NULL: none */
    struct parked *describing; /* wait until the attempt is read back */
    struct attempt_work take, resume, parent;
    struct pruning *pruning;        /* under way, or NULL */
    bool retain_again;              /* there was a commit meanwhile */
    uint64_t adopting;              /* the attempt of keep/admit.c's work; 0: none */
    struct fault unreadable;        /* why the start could not read it; code 0: it could */
    uint64_t newest_attempt;        /* durable; from the store */
    struct checkpoint *checkpoints; /* newest first */
    struct save *saves;
    struct scrub_cursor scrubbed;
    struct run_health health;
    uint64_t looked_stamp; /* of its directory, when its names were read last; 0: look again */
};

/* Performs the actions of a run's machine; called after every commit_*() call. */
void run_perform(struct run *run, const struct commit_actions *actions);

#endif
