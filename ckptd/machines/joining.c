/* joining.c - see joining.h.
 *
 *   quiet ── next: TELL, NAME ──► asking ── answered: NEXT, WAIT, PLAN, FAIL ──► quiet
 *     └───── next: REST
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_joining.c):
 *   joining.J1  A node describes each rank to the coordinator until the coordinator answers that it
 *       knows it; when it no longer knows one, the node describes all.
 *   joining.J2  A plan is taken when it is awaited, and only when every rank that it has at this
 *       node is here. After a restart of this ckptd they come one by one, while the coordinator has
 *       had its plan for long.
 *   joining.J3  While a rank that is known there is connected, and no other call is due, the node
 *       reports it each `every_ms` (coordinating.C4).
 *   joining.J4  At most one call is in progress.
 *   joining.J5  A coordinator that is away, or busy, is asked again; other errors go to the
 *       ranks. */
#include "ckptd/machines/joining.h"
#include "proto/base/report.h"

#include <string.h>

/* The next rank to report; while the plan is awaited, any rank. num_ranks: none. */
static uint32_t find_rank(const struct joining *joining, const struct joining_facts *facts)
{
    uint32_t any = joining->num_ranks;
    for (uint32_t i = 0; i < joining->num_ranks; i++) {
        if (!facts->is_described(facts->user, i))
            continue;
        if (!joining->told[i]) /* joining.J1 */
            return i;
        any = i;
    }
    return facts->awaits_plan ? any : joining->num_ranks;
}

static uint32_t find_connected(const struct joining *joining, const struct joining_facts *facts)
{
    for (uint32_t i = 0; i < joining->num_ranks; i++)
        if (joining->told[i] && facts->is_connected(facts->user, i))
            return i;
    return joining->num_ranks;
}

struct joining_call joining_next(struct joining *joining, const struct joining_facts *facts)
{
    struct joining_call call = {JOINING_NOTHING, 0};
    if (joining->is_asking) /* joining.J4 */
        return call;
    call = (struct joining_call){JOINING_TELL, find_rank(joining, facts)};
    if (call.rank == joining->num_ranks) {
        bool is_due = facts->now_ms - joining->named_ms >= facts->every_ms; /* joining.J3 */
        call.rank = is_due ? find_connected(joining, facts) : joining->num_ranks;
        call.action = call.rank < joining->num_ranks ? JOINING_NAME : JOINING_REST;
    }
    if (call.action == JOINING_REST)
        return call;
    joining->is_asking = true;
    joining->named_ms = facts->now_ms;
    return call;
}

void joining_forgotten(struct joining *joining)
{
    memset(joining->told, 0, joining->num_ranks * sizeof *joining->told); /* joining.J1 */
}

static bool is_passing(int error)
{
    return error == ERR_UNAVAILABLE || error == ERR_TIMEOUT || error == ERR_BUSY;
}

enum joining_action joining_answered(struct joining *joining, const struct joining_call *call,
                                     const struct joining_answer *answer, bool awaits_plan)
{
    joining->is_asking = false;
    if (call->action == JOINING_NAME) {
        if (answer->error == 0 && !answer->is_known)
            joining_forgotten(joining);
        return JOINING_NEXT;
    }
    if (answer->error == 0)
        joining->told[call->rank] = answer->is_known;
    else if (!is_passing(answer->error)) /* joining.J5 */
        return JOINING_FAIL;
    if (answer->error != 0 || !answer->has_plan || answer->num_away > 0) /* joining.J2 */
        return JOINING_WAIT;
    return awaits_plan ? JOINING_PLAN
                       : JOINING_NEXT; /* there may be others that it does not know */
}
