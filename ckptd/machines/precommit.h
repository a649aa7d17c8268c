/* precommit.h - decides how a save's bytes are copied to another tier, or from other nodes, before
 * its commit. A pure state machine, one per tier: it does no I/O, reads no clock and allocates
 * nothing. The states and the invariants are drawn at the head of precommit.c.
 *
 *     precommit_begin(&precommit, save, true) ──► an action ──► perform it, report back ──► ...
 *
 * An event returns the one action that is due; PRECOMMIT_NOTHING where it does not fit the
 * state. */
#ifndef HOLDFAST_CKPTD_MACHINES_PRECOMMIT_H
#define HOLDFAST_CKPTD_MACHINES_PRECOMMIT_H

#include <stdbool.h>

enum precommit_action {
    PRECOMMIT_NOTHING,
    PRECOMMIT_LATER, /* keep the arguments of that save for precommit_next() */
    PRECOMMIT_CLAIM, /* take lease and mark of the directory there; then precommit_claimed */
    /* Start the copies that may start; precommit_rested for each that comes to rest. */
    PRECOMMIT_START,
    PRECOMMIT_STOP,   /* start no more of it; then precommit_rested */
    PRECOMMIT_GIVE,   /* the replication may take it: precommit_take */
    PRECOMMIT_REMOVE, /* remove its files; then precommit_gone */
    PRECOMMIT_CLOSE,  /* the save need not wait; end the lease; then precommit_gone */
    /* All is removed: callers that wait for the directory continue; precommit_next. */
    PRECOMMIT_END
};

enum precommit_state {
    PRECOMMIT_FREE,
    PRECOMMIT_GOING,
    PRECOMMIT_AWAITED, /* committed: the replication begins with it, or with another first */
    PRECOMMIT_GIVING,  /* the replication has begun with it */
    PRECOMMIT_DROPPING,
    PRECOMMIT_REMOVING,
    PRECOMMIT_CLOSING
};

struct precommit {
    enum precommit_state state;
    const void *of;   /* the save; only compared */
    const void *next; /* begins when this one is done; NULL: none */
    bool is_claiming; /* in that state */
};

/* Is the replication's checkpoint the save whose bytes were copied before? */
enum precommit_match {
    PRECOMMIT_OTHER,     /* it has another directory */
    PRECOMMIT_SAME_STEP, /* the same directory with another nonce: that save was given up */
    PRECOMMIT_SAME
};

/* LATER; CLAIM, or START if the directory is the save's own. */
enum precommit_action precommit_begin(struct precommit *precommit, const void *save,
                                      bool must_claim);
enum precommit_action precommit_claimed(struct precommit *precommit, bool is_ours);
/* A copy came to rest, or failed; `is_moving`: another one is still moving. */
enum precommit_action precommit_rested(struct precommit *precommit, bool has_failed,
                                       bool is_moving);
/* The save is over. */
enum precommit_action precommit_ended(struct precommit *precommit, const void *save,
                                      bool is_committed);
/* The replication begins with a checkpoint; OTHER: also if it has none. If this save is in the way,
 * GIVE or END later lets it continue. */
bool precommit_is_in_the_way(const struct precommit *precommit, enum precommit_match match);
enum precommit_action precommit_give(struct precommit *precommit, enum precommit_match match);
/* After GIVE: the replication owns it, and this machine is free. False: there is none. */
bool precommit_take(struct precommit *precommit);
/* Its files are removed, or the lease has ended. */
enum precommit_action precommit_gone(struct precommit *precommit);
/* When free: does a save begin now? True once. */
bool precommit_next(struct precommit *precommit);

/* May a copy of that save start? */
bool precommit_may_start(const struct precommit *precommit, const void *save);
/* Are any of its files still there? */
bool precommit_has(const struct precommit *precommit, const void *save);

#endif
