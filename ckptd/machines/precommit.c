/* precommit.c - the states of a save whose bytes are copied before its commit.
 *
 *              begin               committed               the replication comes to it
 *      (free) ───────► GOING ─────────────────► AWAITED ─────────────────► GIVING
 *        ▲     CLAIM     │                         │ it comes to another     │ at rest: GIVE,
 *        │               │ error, given up         │ one; error              │ take ──► (free)
 *        │               ▼                         ▼                         │ error
 *        │            DROPPING ◄───────────────────┴─────────────────────────┘
 *        │               │ at rest: REMOVE
 *        │            REMOVING
 *        │               │ gone: CLOSE
 *        └─ gone: END ─ CLOSING
 *
 * STOP leaves GOING, AWAITED and, after an error, GIVING. The next action is due after the last
 * copy's end, or at once if none is in progress. A claim may be in progress in GOING, AWAITED,
 * GIVING and DROPPING, and counts as a copy does.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_sim_nodes.c):
 *   precommit.E1  No action publishes: no node lists, loads or counts an uncommitted checkpoint.
 *   precommit.E2  GIVE comes only for a save that was committed and met no error, and only to the
 *       checkpoint with its nonce.
 *   precommit.E3  Neither GIVE nor END comes while a claim, a copy or a removal is in progress in
 *       the directory. Until then the replication does not touch it.
 *   precommit.E4  The files that the replication does not take are removed, and then the lease
 *       ends. After a crash the end of the lease, or the mark of the save, leads to their removal.
 *       A save waits for the removal, never for the end of a lease.
 *   precommit.E5  An error ends only this transfer. It leads to END, and the replication starts
 *       from the beginning at the commit.
 *   precommit.E6  One save is copied at a time. The newest of those that come meanwhile begins
 *       after it, unless that save is over by then.
 *   precommit.E7  No copy starts before the directory is claimed, or after the save's end.
 *
 * After a crash. The machine is memory only: the next start begins with the contents of the
 * stores. */
#include "ckptd/machines/precommit.h"

#include <stddef.h>

static enum precommit_action drop(struct precommit *precommit)
{
    if (precommit->state == PRECOMMIT_FREE || precommit->state >= PRECOMMIT_DROPPING)
        return PRECOMMIT_NOTHING;
    precommit->state = PRECOMMIT_DROPPING;
    return PRECOMMIT_STOP;
}

/* precommit.E3. */
static enum precommit_action check_at_rest(struct precommit *precommit, bool is_moving)
{
    if (is_moving || precommit->is_claiming)
        return PRECOMMIT_NOTHING;
    if (precommit->state == PRECOMMIT_GIVING)
        return PRECOMMIT_GIVE;
    if (precommit->state != PRECOMMIT_DROPPING)
        return PRECOMMIT_NOTHING;
    precommit->state = PRECOMMIT_REMOVING;
    return PRECOMMIT_REMOVE;
}

enum precommit_action precommit_begin(struct precommit *precommit, const void *save,
                                      bool must_claim)
{
    if (precommit->state != PRECOMMIT_FREE) { /* precommit.E6 */
        precommit->next = save;
        return PRECOMMIT_LATER;
    }
    *precommit =
        (struct precommit){.state = PRECOMMIT_GOING, .of = save, .is_claiming = must_claim};
    return must_claim ? PRECOMMIT_CLAIM : PRECOMMIT_START;
}

enum precommit_action precommit_claimed(struct precommit *precommit, bool is_ours)
{
    precommit->is_claiming = false;
    if (is_ours && precommit->state == PRECOMMIT_GOING)
        return PRECOMMIT_START;
    return precommit_rested(precommit, !is_ours, false); /* precommit.E7: no copy has begun */
}

enum precommit_action precommit_rested(struct precommit *precommit, bool has_failed, bool is_moving)
{
    enum precommit_action action = has_failed ? drop(precommit) : PRECOMMIT_NOTHING;
    return action == PRECOMMIT_NOTHING ? check_at_rest(precommit, is_moving) : action;
}

enum precommit_action precommit_ended(struct precommit *precommit, const void *save,
                                      bool is_committed)
{
    if (precommit->next == save)
        precommit->next = NULL;
    if (precommit->state != PRECOMMIT_GOING || precommit->of != save)
        return PRECOMMIT_NOTHING;
    if (!is_committed)
        return drop(precommit);
    precommit->state = PRECOMMIT_AWAITED;
    return PRECOMMIT_STOP;
}

bool precommit_is_in_the_way(const struct precommit *precommit, enum precommit_match match)
{
    return precommit->state != PRECOMMIT_FREE && match != PRECOMMIT_OTHER;
}

enum precommit_action precommit_give(struct precommit *precommit, enum precommit_match match)
{
    bool is_awaited = precommit->state == PRECOMMIT_AWAITED;
    if (match == PRECOMMIT_OTHER && !is_awaited) /* its save may still be committed */
        return PRECOMMIT_NOTHING;
    if (match != PRECOMMIT_SAME || !is_awaited) /* precommit.E2 */
        return drop(precommit);
    precommit->state = PRECOMMIT_GIVING;
    return PRECOMMIT_STOP;
}

bool precommit_take(struct precommit *precommit)
{
    bool is_given = precommit->state == PRECOMMIT_GIVING;
    if (is_given)
        precommit->state = PRECOMMIT_FREE;
    return is_given;
}

/* precommit.E4. */
enum precommit_action precommit_gone(struct precommit *precommit)
{
    bool is_removed = precommit->state == PRECOMMIT_REMOVING;
    if (!is_removed && precommit->state != PRECOMMIT_CLOSING)
        return PRECOMMIT_NOTHING;
    precommit->state = is_removed ? PRECOMMIT_CLOSING : PRECOMMIT_FREE;
    return is_removed ? PRECOMMIT_CLOSE : PRECOMMIT_END;
}

bool precommit_next(struct precommit *precommit)
{
    bool has_next = precommit->next != NULL;
    precommit->next = NULL;
    return has_next;
}

bool precommit_may_start(const struct precommit *precommit, const void *save)
{
    return precommit->state == PRECOMMIT_GOING && precommit->of == save && !precommit->is_claiming;
}

bool precommit_has(const struct precommit *precommit, const void *save)
{
    return precommit->of == save && precommit->state != PRECOMMIT_FREE &&
           precommit->state != PRECOMMIT_CLOSING;
}
