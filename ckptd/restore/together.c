/* together.c - the ranks of an attempt that load the newest checkpoint go on from the same one.
 *
 * A rank that needs a damaged block finds the damage while it reads the checkpoint. It then loads
 * the former checkpoint, and so must all other ranks, including those that have copied all they
 * wanted. So no rank goes on before ckptd knows of all others:
 *
 *            OpenLoad            CloseLoad, is_loaded       every rank HAS it
 *     OUT ─────────────► LOADS ─────────────────────► HAS ─────────────────────► DONE
 *      ▲                   │                           │
 *      └───────────────────┴── the choice is damaged ──┘     (the next to open chooses again)
 *
 * together.L1  Ranks that go on from a load together go on from the same checkpoint, the choice.
 * together.L2  No rank goes on from a choice that was found damaged before the first rank went on.
 * together.L3  Once a rank goes on, the choice stays: a rank that finds it damaged after that is
 *     refused, and its load fails. When a rank that is done opens the newest, another load together
 *     begins.
 * together.L4  A rank waits for those that are loading the choice. For those that have not opened
 *     it, it waits at most TOGETHER_WAIT_MS from when the first rank had it: programs may load on
 *     some ranks only, or on one after the other.
 * together.L5  No rank waits for one whose load failed or whose session ended.
 *
 * ckptd keeps a group from the first load of an attempt until every rank is done, or the session of
 * its last rank ends. There are at most as many groups as runs that have ranks here. A restart of
 * ckptd loses the group: clients then continue with the checkpoint that they have opened, or
 * fail. */
#include "ckptd/restore/together.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/session.h"
#include "ckptd/restore/loads.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

/* ---- the decisions ---- */

struct together *together_new(const struct run *run, uint64_t attempt, uint32_t world_size)
{
    struct together *together =
        calloc(1, sizeof *together + world_size * sizeof together->ranks[0]);
    if (!together)
        return NULL;
    together->run = run;
    together->attempt = attempt;
    together->world_size = world_size;
    together->first_ms = -1;
    return together;
}

static bool is_choice(const struct together *together, struct together_choice choice)
{
    return together->choice.attempt == choice.attempt && together->choice.step == choice.step;
}

enum together_open together_open(struct together *together, uint32_t rank, enum together_fate fate,
                                 bool is_newest)
{
    bool is_done = together->ranks[rank] == TOGETHER_DONE;
    if (together->choice.attempt == 0 || fate == TOGETHER_GONE ||
        (together->is_decided && (is_done || (fate == TOGETHER_WHOLE && !is_newest))))
        return TOGETHER_CHOOSE;
    if (fate == TOGETHER_DAMAGED && !together->is_decided)
        return TOGETHER_CHOOSE;
    together->ranks[rank] = fate == TOGETHER_DAMAGED ? TOGETHER_DONE : TOGETHER_LOADS;
    return fate == TOGETHER_DAMAGED ? TOGETHER_REFUSED : TOGETHER_JOIN; /* together.L3 */
}

void together_choose(struct together *together, uint32_t rank, struct together_choice choice)
{
    for (uint32_t i = 0; i < together->world_size; i++)
        together->ranks[i] = TOGETHER_OUT;
    together->choice = choice;
    together->is_decided = false;
    together->first_ms = -1;
    together->ranks[rank] = TOGETHER_LOADS;
}

static uint32_t count(const struct together *together, enum together_rank state)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < together->world_size; i++)
        ranks += together->ranks[i] == state;
    return ranks;
}

enum together_word together_has(struct together *together, uint32_t rank,
                                struct together_choice loaded, enum together_fate fate,
                                int64_t now_ms)
{
    if (!is_choice(together, loaded))
        return TOGETHER_AGAIN; /* together.L1 */
    if (!together->is_decided && fate != TOGETHER_WHOLE) {
        together->ranks[rank] = TOGETHER_OUT; /* together.L2 */
        return TOGETHER_AGAIN;
    }
    together->ranks[rank] = TOGETHER_HAS;
    if (together->first_ms < 0)
        together->first_ms = now_ms;
    bool is_late = now_ms - together->first_ms >= TOGETHER_WAIT_MS;
    if (!together->is_decided &&
        (count(together, TOGETHER_LOADS) > 0 || (count(together, TOGETHER_OUT) > 0 && !is_late)))
        return TOGETHER_WAIT; /* together.L4 */
    together->is_decided = true;
    together->ranks[rank] = TOGETHER_DONE;
    return TOGETHER_AGREED;
}

void together_fail(struct together *together, uint32_t rank, struct together_choice choice,
                   enum together_fate fate)
{
    if (!is_choice(together, choice) || together->ranks[rank] == TOGETHER_DONE)
        return;
    /* A rank that found the damage opens the load again: ckptd refuses it then, if another rank
     * went on (together.L3). */
    together->ranks[rank] =
        fate == TOGETHER_DAMAGED ? TOGETHER_OUT : TOGETHER_DONE; /* together.L5 */
}

bool together_is_over(const struct together *together)
{
    return count(together, TOGETHER_DONE) == together->world_size;
}

/* ---- the groups of a service ---- */

static struct together **find_group(const struct run *run, uint64_t attempt)
{
    struct together **at = &run->service->loads->together;
    while (*at && ((*at)->run != run || (*at)->attempt != attempt))
        at = &(*at)->next;
    return at;
}

static struct together *find_of(const struct together_member *member)
{
    return *find_group(member->run, member->attempt);
}

static void forget_group(struct together **at)
{
    struct together *together = *at;
    *at = together->next;
    free(together);
}

static struct together_choice choice_of(const struct checkpoint *checkpoint)
{
    return (struct together_choice){checkpoint->summary.step, checkpoint->summary.attempt};
}

/* NULL: it is gone, or there is no choice. */
static struct checkpoint *checkpoint_of(struct run *run, struct together_choice choice)
{
    return catalog_find(run, choice.step, choice.attempt);
}

static enum together_fate fate_of(const struct checkpoint *checkpoint)
{
    if (!checkpoint)
        return TOGETHER_GONE;
    return checkpoint->damaged ? TOGETHER_DAMAGED : TOGETHER_WHOLE;
}

/* The group of the session's attempt, made if every rank is here; NULL: none. */
static struct together *group_of(const struct session *session)
{
    struct together **at = find_group(session->run, session->attempt);
    if (!*at && session_ranks_of(session->run).count == session->world_size)
        *at = together_new(session->run, session->attempt, session->world_size);
    return *at;
}

int together_enter(struct together_member *out, struct checkpoint **found,
                   const struct session *session)
{
    struct together *together = group_of(session);
    *out = (struct together_member){.run = NULL};
    if (!together)
        return 0;
    struct checkpoint *choice = checkpoint_of(session->run, together->choice);
    switch (together_open(together, session->rank, fate_of(choice), choice == *found)) {
    case TOGETHER_REFUSED:
        return report_error(ERR_CORRUPT, "load the newest again on every rank",
                            "step %llu of run %s is damaged, and other ranks of attempt %llu have "
                            "loaded it already: %s",
                            (unsigned long long)choice->summary.step, session->run->name,
                            (unsigned long long)session->attempt, choice->damage);
    case TOGETHER_JOIN:
        *found = choice;
        break;
    case TOGETHER_CHOOSE:
        together_choose(together, session->rank, choice_of(*found));
        break;
    }
    *out = (struct together_member){.run = session->run,
                                    .attempt = session->attempt,
                                    .rank = session->rank,
                                    .loads = choice_of(*found)};
    return 0;
}

int together_loaded(const struct together_member *member)
{
    struct together *together = find_of(member);
    const struct checkpoint *checkpoint = checkpoint_of(member->run, member->loads);
    if (!together)
        return report_error(ERR_NOT_FOUND, "load again", "the joint load of the ranks is over");
    switch (together_has(together, member->rank, member->loads, fate_of(checkpoint), clock_ms())) {
    case TOGETHER_AGREED:
        return 0;
    case TOGETHER_WAIT:
        return report_error(
            ERR_BUSY, "ask again", "other ranks of attempt %llu still load step %llu",
            (unsigned long long)member->attempt, (unsigned long long)member->loads.step);
    case TOGETHER_AGAIN:
        break;
    }
    bool is_damaged = checkpoint && checkpoint->damaged;
    return report_error(ERR_CORRUPT, "load the newest again",
                        "step %llu of run %s is not loaded by every rank: %s",
                        (unsigned long long)member->loads.step, member->run->name,
                        is_damaged ? checkpoint->damage : "other ranks load another step");
}

void together_end(const struct together_member *member)
{
    struct together *together = member->run ? find_of(member) : NULL;
    if (!together)
        return;
    together_fail(together, member->rank, member->loads,
                  fate_of(checkpoint_of(member->run, member->loads)));
    if (together_is_over(together))
        forget_group(find_group(member->run, member->attempt));
}

void together_leave(const struct session *session)
{
    struct together **at = session->is_rank ? find_group(session->run, session->attempt) : NULL;
    if (!at || !*at)
        return;
    (*at)->ranks[session->rank] = TOGETHER_DONE; /* together.L5 */
    if (together_is_over(*at) || session_ranks_of(session->run).count <= 1)
        forget_group(at);
}
