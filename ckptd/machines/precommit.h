/* precommit.h - decides what becomes of a save's bytes that go into another tier, or come from
 * other nodes, before its commit. A pure state machine, one per tier: it does no I/O, reads no
 * clock and allocates nothing. The states and the invariants are drawn at the head of precommit.c.
 *
 *     precommit_begin(&precommit, save, true) ──► an action ──► perform it, tell how it went ──►
 * ...
 *
 * An event returns the one action that is due; PRECOMMIT_NOTHING where it does not fit the state.
 */
#ifndef HOLDFAST_CKPTD_MACHINES_PRECOMMIT_H
#define HOLDFAST_CKPTD_MACHINES_PRECOMMIT_H

#include <stdbool.h>

enum precommit_action {
    PRECOMMIT_NOTHING,
    PRECOMMIT_LATER,  /* keep what is known of that save for precommit_next() */
    PRECOMMIT_CLAIM,  /* take lease and mark of the directory there; then precommit_claimed */
    PRECOMMIT_START,  /* start what may go; each copy that comes to rest: precommit_rested */
    PRECOMMIT_STOP,   /* begin no more of it; then precommit_rested */
    PRECOMMIT_GIVE,   /* the replication may have it: precommit_take */
    PRECOMMIT_REMOVE, /* remove what was made; then precommit_gone */
    PRECOMMIT_CLOSE,  /* the save need not wait; end the lease; then precommit_gone */
    PRECOMMIT_END     /* nothing is left: who waits for the directory goes on; precommit_next */
};

enum precommit_state {
    PRECOMMIT_FREE,
    PRECOMMIT_GOING,
    PRECOMMIT_AWAITED, /* committed: the replication comes to it, or to another first */
    PRECOMMIT_GIVING,  /* it has come to it */
    PRECOMMIT_DROPPING,
    PRECOMMIT_REMOVING,
    PRECOMMIT_CLOSING
};

struct precommit {
    enum precommit_state state;
    const void *of;   /* the save; compared alone */
    const void *next; /* begins when this one is out of the way; NULL: none */
    bool is_claiming; /* in that state */
};

/* Is the checkpoint that the replication begins with the one whose bytes went before? */
enum precommit_match {
    PRECOMMIT_OTHER,     /* it has another directory */
    PRECOMMIT_SAME_STEP, /* the same directory, and another nonce: that save was given up */
    PRECOMMIT_SAME
};

/* LATER; CLAIM, or START where the directory is the save's own. */
enum precommit_action precommit_begin(struct precommit *precommit, const void *save,
                                      bool must_claim);
enum precommit_action precommit_claimed(struct precommit *precommit, bool is_ours);
/* A copy came to rest, or failed; `is_moving`: another one has not. */
enum precommit_action precommit_rested(struct precommit *precommit, bool has_failed,
                                       bool is_moving);
/* The save is over. */
enum precommit_action precommit_ended(struct precommit *precommit, const void *save,
                                      bool is_committed);
/* The replication begins with a checkpoint; OTHER: also when it has none. Where this is in the way,
 * GIVE or END says later that it may go on. */
bool precommit_is_in_the_way(const struct precommit *precommit, enum precommit_match match);
enum precommit_action precommit_give(struct precommit *precommit, enum precommit_match match);
/* After GIVE: it is the replication's, and this is free. False: there is nothing. */
bool precommit_take(struct precommit *precommit);
/* What was made is removed, or the lease has ended. */
enum precommit_action precommit_gone(struct precommit *precommit);
/* When it is free: is there a save that begins now? Once. */
bool precommit_next(struct precommit *precommit);

/* May a copy of that save start? */
bool precommit_may_start(const struct precommit *precommit, const void *save);
/* Is anything that was made of it still there? */
bool precommit_has(const struct precommit *precommit, const void *save);

#endif
