/* joining.h - decides how a node reports its ranks to the coordinator of an attempt, and the action
 * after each answer. A pure state machine, one per run: it does no I/O, reads no clock and
 * allocates nothing. The invariants are at the head of joining.c.
 *
 *     struct joining joining = {.told = told, .num_ranks = world_size};
 *     call = joining_next(&joining, &facts);
 *     ... perform it; of JOINING_TELL and JOINING_NAME: joining_answered(), perform ... */
#ifndef HOLDFAST_CKPTD_MACHINES_JOINING_H
#define HOLDFAST_CKPTD_MACHINES_JOINING_H

#include <stdbool.h>
#include <stdint.h>

struct joining {
    bool *told; /* by rank: the coordinator knows it; owned by the caller */
    uint32_t num_ranks;
    bool is_asking;
    int64_t named_ms; /* when the connected ranks were last reported */
};

enum joining_action {
    JOINING_NOTHING,
    JOINING_TELL, /* ask for the plan, and describe the rank; then joining_answered */
    JOINING_NAME, /* report the rank, and which are connected; then joining_answered */
    JOINING_NEXT, /* joining_next */
    JOINING_WAIT, /* joining_next after a moment */
    JOINING_REST, /* joining_next when names are due again */
    JOINING_PLAN, /* take the plan; then JOINING_NEXT or, with an error, JOINING_FAIL */
    JOINING_FAIL  /* fail the ranks that wait for the plan; they describe themselves again */
};

struct joining_call {
    enum joining_action action;
    uint32_t rank;
};

struct joining_facts {
    bool awaits_plan;
    int64_t now_ms, every_ms;                              /* names are due at this interval */
    bool (*is_described)(const void *user, uint32_t rank); /* here, and */
    bool (*is_connected)(const void *user, uint32_t rank); /* it has a session */
    const void *user;
};

struct joining_answer {
    int error;         /* no answer; else */
    bool is_known;     /* the rank, */
    bool has_plan;     /* which is only taken with all its ranks of this node: */
    uint32_t num_away; /* ranks that have not described themselves yet */
};

/* Something has changed, or the wait is over. */
struct joining_call joining_next(struct joining *joining, const struct joining_facts *facts);
/* The answer to that call. */
enum joining_action joining_answered(struct joining *joining, const struct joining_call *call,
                                     const struct joining_answer *answer, bool awaits_plan);
/* The coordinator was restarted. */
void joining_forgotten(struct joining *joining);

#endif
