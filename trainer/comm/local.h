/* local.h - what local.c and local_calls.c share: the groups of a world of threads. */
#ifndef HOLDFAST_TRAINER_COMM_LOCAL_H
#define HOLDFAST_TRAINER_COMM_LOCAL_H

#include "trainer/comm/private.h"

#include <pthread.h>

/* What a rank shows to the others during one collective. */
struct slot {
    const struct comm_call *call;
    struct group *group; /* split: the group that the slot's rank was put in */
};

/* A send on its way, in the caller's request; listed in its group until it is received. */
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
    uint32_t size, users; /* communicators that still point here */
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
    uint32_t failed_by; /* it: the first */
    int result;         /* its; those that only lost a peer count last */
};

struct local {
    struct comm base;
    struct group *group;
};

/* ERR_UNAVAILABLE. The last error stays empty: the rank that ended has the reason. */
int local_lost(void);
bool local_is_broken(const struct group *group); /* under the world's mutex */
/* For something to change, until `deadline` where there is one. */
int local_wait_change(struct group *group, const struct timespec *deadline);
/* What the lane was given before is done: others read it, or it was copied from them. */
int local_settle(struct lane *lane);
/* The two waits of a collective: every slot is visible; everyone has read. */
int local_begin(struct local *l, const struct comm_call *call);
int local_end(struct local *l, const struct comm_call *call);
int local_split(struct comm *comm, const struct comm_call *call);

int local_run(struct comm *comm, const struct comm_call *call); /* local_calls.c */

#endif
