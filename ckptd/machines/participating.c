/* participating.c - the states of a node's part of a save that another node coordinates.
 *
 * Before: a rank comes, of a later attempt than the one served here.
 *
 *   saves in work here ──► SETTLE, after a while GIVE_UP ──► none ──► a peer's: FOLLOW
 *
 * A part:
 *
 *   zeroed, or    PLACE, KEPT:            written: SEND
 *   recovered       PLACE                  (of a part that was recovered: KEEP ──► OVER)
 *   UNDECIDED ─────────────────► PLACING ───────────────► PLACED
 *    │ │ ▲ │                        │                      ▲ │
 *    │ │ └─│─── not written: WAIT ──┘                      │ │ COMMITTED: DONE; KEPT: KEEP;
 *    │ │   └─── a whole copy came: SEND ───────────────────┘ │ another attempt comes: LEAVE
 *    │ │                                                     ▼
 *    │ └─────── OVER: DISCARD ────────────────────────────► OVER
 *    │                                                       ▲
 *    └───────── another attempt comes: DISCARD or LEAVE ─────┘
 *
 * Verdicts without an arrow: WAIT. Reports are independent of the states, one at a time; each has
 * the full state, so a lost or late one changes nothing:
 *
 *   quiet ── changed: SEND ──► reporting ── answered or not: WAIT ──► quiet
 *                                   ▲ └── answered, and something has changed since: SEND ┐
 *                                   └─────────────────────────────────────────────────────┘
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_participating.c and
 * tests/unit/ckptd_sim_nodes.c):
 *   participating.P1  A shard is reported durable only when its name is durable as well.
 *   participating.P2  A node removes a part only when the coordinator answers OVER, or while some
 *       of its shards are not durable, so that no manifest can name them. It never removes a part
 *       that has a manifest here, or is getting one.
 *   participating.P3  `placed` is reported only when the manifest is durable here.
 *   participating.P4  Until a part is removed or has its manifest, its mark names the coordinator
 *       (peers/join_part.c).
 *   participating.P5  At most one report of a part is in progress. A change meanwhile is reported
 *       after its answer.
 *   participating.P6  The digests of a durable shard are reported until a report with them was
 *       answered.
 *   participating.P7  A node follows attempts in the order of their numbers, and another one only
 *       when no save of the former is in work here, its parts included.
 *
 * After a crash. The machine is memory only. Files with a manifest are a checkpoint; with the mark
 * alone they are a part that is recovered (participating.P4). */
#include "ckptd/machines/participating.h"

#include <stddef.h>

/* ---- the attempt and its coordinator ---- */

bool participating_is_unknown(const struct participating_arrival *arrival)
{
    return arrival->attempt >= arrival->newest && arrival->attempt > arrival->served;
}

enum participating_entry participating_arrive(const struct participating_arrival *arrival)
{
    if (arrival->attempt <= arrival->served) /* participating.P7 */
        return PARTICIPATING_DESCRIBE;
    if (arrival->has_saves) /* participating.P7 */
        return arrival->has_waited ? PARTICIPATING_GIVE_UP : PARTICIPATING_SETTLE;
    if (arrival->whose == PARTICIPATING_OURS)
        return PARTICIPATING_DESCRIBE;
    return arrival->whose == PARTICIPATING_A_PEERS ? PARTICIPATING_FOLLOW : PARTICIPATING_REFUSE;
}

/* ---- a part of a save ---- */

void participating_recover(struct participating *part)
{
    *part = (struct participating){.is_left = true};
}

/* ---- reports ---- */

/* True if no report is in progress, and none follows. */
static bool is_deaf(const struct participating *part)
{
    return part->state == PARTICIPATING_PLACING || part->state == PARTICIPATING_OVER;
}

enum participating_action participating_changed(struct participating *part)
{
    part->has_news = part->is_reporting || is_deaf(part);
    if (part->has_news) /* participating.P5 */
        return PARTICIPATING_NOTHING;
    part->is_reporting = true;
    return PARTICIPATING_SEND;
}

struct participating_report participating_report(const struct participating *part)
{
    return (struct participating_report){.is_placed = part->state == PARTICIPATING_PLACED, /* P3 */
                                         .has_missed = part->has_missed,
                                         .num_named = part->num_named};
}

static Holdfast__V1__PartState state_of(const struct participating_shard *shard)
{
    if (shard->has_failed)
        return HOLDFAST__V1__PART_STATE__PART_FAILED;
    if (shard->is_durable)
        return HOLDFAST__V1__PART_STATE__PART_DURABLE;
    return shard->is_ended ? HOLDFAST__V1__PART_STATE__PART_ENDED
                           : HOLDFAST__V1__PART_STATE__PART_BEGUN;
}

struct participating_line participating_add(struct participating_report *report,
                                            const struct participating_shard *shard)
{
    struct participating_line line = {.state = state_of(shard)};
    if (line.state != HOLDFAST__V1__PART_STATE__PART_DURABLE)
        return line;
    line.has_digests = !shard->is_told; /* participating.P6 */
    report->num_durable++;
    report->must_name = report->num_durable > report->num_named; /* participating.P1 */
    return line;
}

/* ---- the coordinator's answer ---- */

static enum participating_action apply_verdict(Holdfast__V1__PartVerdict verdict, bool is_placed)
{
    static const enum participating_action actions[][2] = {
        [HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT] = {PARTICIPATING_WAIT, PARTICIPATING_WAIT},
        [HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE] = {PARTICIPATING_PLACE, PARTICIPATING_WAIT},
        [HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED] = {PARTICIPATING_WAIT, PARTICIPATING_DONE},
        [HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT] = {PARTICIPATING_PLACE, PARTICIPATING_KEEP},
        [HOLDFAST__V1__PART_VERDICT__VERDICT_OVER] = {PARTICIPATING_DISCARD, /* participating.P2 */
                                                      PARTICIPATING_WAIT},
    };
    bool is_known = (size_t)verdict < sizeof actions / sizeof actions[0];
    return is_known ? actions[verdict][is_placed] : PARTICIPATING_WAIT;
}

enum participating_action participating_answered(struct participating *part,
                                                 const struct participating_report *report,
                                                 Holdfast__V1__PartVerdict verdict)
{
    if (is_deaf(part))
        return PARTICIPATING_NOTHING;
    enum participating_action action = apply_verdict(verdict, part->state == PARTICIPATING_PLACED);
    part->is_reporting = false;
    if (report->num_durable > part->num_named)
        part->num_named = report->num_durable;
    if (action == PARTICIPATING_WAIT)
        return part->has_news ? participating_changed(part) : PARTICIPATING_WAIT;
    part->state = action == PARTICIPATING_PLACE ? PARTICIPATING_PLACING : PARTICIPATING_OVER;
    return action;
}

enum participating_action participating_unanswered(struct participating *part)
{
    if (is_deaf(part))
        return PARTICIPATING_NOTHING;
    part->is_reporting = false;
    return PARTICIPATING_WAIT;
}

/* ---- the manifest ---- */

enum participating_action participating_placed(struct participating *part, bool is_durable,
                                               bool was_elsewhere)
{
    if (part->state != PARTICIPATING_PLACING)
        return PARTICIPATING_NOTHING;
    part->has_missed = !is_durable && was_elsewhere;
    part->state = is_durable ? PARTICIPATING_PLACED : PARTICIPATING_UNDECIDED;
    if (!is_durable)
        return PARTICIPATING_WAIT;
    if (!part->is_left)
        return participating_changed(part);
    part->state = PARTICIPATING_OVER;
    return PARTICIPATING_KEEP;
}

enum participating_action participating_completed(struct participating *part)
{
    if (is_deaf(part))
        return PARTICIPATING_NOTHING;
    part->is_whole = true;
    part->state = PARTICIPATING_PLACED; /* participating.P3: the manifest came with them */
    return participating_changed(part);
}

/* ---- leaving ---- */

enum participating_action participating_leave(struct participating *part, uint32_t num_begun,
                                              uint32_t num_durable)
{
    if (is_deaf(part))
        return PARTICIPATING_NOTHING; /* it is ending already */
    bool may_remove = part->state == PARTICIPATING_UNDECIDED && num_durable < num_begun;
    part->state = PARTICIPATING_OVER;
    return may_remove ? PARTICIPATING_DISCARD : PARTICIPATING_LEAVE; /* participating.P2 */
}
