/* local.h - shared by local.c and local_calls.c: the groups of a world of threads. */
#ifndef HOLDFAST_TRAINER_COMM_LOCAL_H
#define HOLDFAST_TRAINER_COMM_LOCAL_H

#include "trainer/comm/private.h"

#include <pthread.h>

/* A rank's arguments of one collective, visible to the others. */
struct slot {
    const struct comm_call *call;
    struct group *group; /* split: the new group of the slot's rank */
};

/* A send under way, in the caller's request; in its group's list until it is received. */
struct message {
    struct message *next;
    const void *data;
    size_t bytes;
    uint32_t from, to;
    int tag;
    enum { MESSAGE_POSTED, MESSAGE_COPYING, MESSAGE_DONE } state;
};
_Static_assert(sizeof(struct message) <= offsetof(struct comm_request, record), "a message fits");

struct world;
struct group {
    struct world *world;
    struct group *next; /* in the world's list */
    pthread_cond_t changed;
    uint32_t size, users; /* communicators that still refer to the group */
    uint32_t arrived;     /* at the current wait */
    uint32_t copying;     /* ranks between the two waits */
    uint64_t generation;  /* waits completed */
    bool broken;          /* a member has left */
    struct slot *slots;
    struct message *messages; /* in the order of sending */
};

struct world {
    pthread_mutex_t mutex;
    struct group *groups;
    int (*rank_main)(struct comm *comm, void *user);
    void *user;
    bool failed;        /* some rank has failed */
    uint32_t failed_by; /* the first that failed */
    int result;         /* its result; ranks that only lost a peer count last */
};

struct local {
    struct comm base;
    struct group *group;
};

/* ERR_UNAVAILABLE. The last error is empty: the rank that ended has the reason. */
int local_lost(void);
bool local_is_broken(const struct group *group); /* call with the world's mutex held */
/* Waits for a change, at most until `deadline`, if there is one. */
int local_wait_change(struct group *group, const struct timespec *deadline);
/* Waits until the lane's earlier work is done: other ranks read it, or it was copied from them. */
int local_settle(struct lane *lane);
/* The two waits of a collective: after the first all slots are visible, after the second all were
 * read. */
int local_begin(struct local *l, const struct comm_call *call);
int local_end(struct local *l, const struct comm_call *call);
int local_split(struct comm *comm, const struct comm_call *call);

int local_run(struct comm *comm, const struct comm_call *call); /* local_calls.c */

#endif
