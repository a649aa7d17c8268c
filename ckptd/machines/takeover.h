/* takeover.h - decides whether a start may take a run over from its present holder. A pure
 * decision: open.c gathers the facts, asks again while the answer is to wait, and reports the
 * holder. */
#ifndef HOLDFAST_CKPTD_MACHINES_TAKEOVER_H
#define HOLDFAST_CKPTD_MACHINES_TAKEOVER_H

#include <stdbool.h>
#include <stdint.h>

/* The end of a sentence, for users of any client. */
#define RUN_TAKE_OVER_HINT \
    "take it over by take_over of the client (trainer: --checkpoint.take_over)"

struct takeover_facts {
    bool is_forced;        /* the start requested a takeover */
    bool is_same_launcher; /* it has the token, and the uid, of the start that holds the run */
    bool is_opening;       /* another start is being opened */
    bool is_gathering;     /* ranks of the open attempt have not all come yet */
    uint32_t num_alive;    /* connected ranks that acted within limits.silent_ms */
    int64_t opened_ms_ago; /* time since the open attempt was answered */
    int64_t waited_ms;     /* time that this start has waited */
    int64_t limit_ms;      /* limits.takeover_ms; 0: every start takes over at once */
};

enum takeover { TAKEOVER_NOW, TAKEOVER_WAIT, TAKEOVER_REFUSED };

static inline enum takeover takeover_decide(const struct takeover_facts *facts)
{
    if (facts->is_forced || facts->is_same_launcher || facts->limit_ms == 0)
        return TAKEOVER_NOW;
    /* Ranks that have not come in the time that a start may wait count as dead. */
    bool is_coming = facts->is_gathering && facts->opened_ms_ago < facts->limit_ms;
    if (!facts->is_opening && !is_coming && facts->num_alive == 0)
        return TAKEOVER_NOW;
    return facts->waited_ms < facts->limit_ms ? TAKEOVER_WAIT : TAKEOVER_REFUSED;
}

#endif
