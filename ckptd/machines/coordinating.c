/* coordinating.c - the states of a save at its coordinator, and of another node's part.
 *
 *   STAGING to PUBLISHING of commit.c            PLACING                         over
 *
 *   ABSENT ── PART_BEGUN ... PART_DURABLE ──► to place ── says placed ──► placed ──► committed
 *      │                                         │                          (when all have)
 *      └─ has left: the save fails               └─ has left: the save is kept
 *
 * The answer to each report, which has the full state of the node:
 *
 *   the save is               the node has no manifest     it reports the manifest
 *   STAGING to PUBLISHING     WAIT                         WAIT
 *   PLACING                   PLACE, or WAIT (fanout)      WAIT
 *   DISCARDING                OVER                         OVER
 *   over, and here            KEPT                         COMMITTED if it was, else KEPT
 *   over, and not here        OVER, or no answer           OVER, or no answer
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_coordinating.c and
 * tests/unit/ckptd_sim_nodes.c):
 *   coordinating.C1  A report counts only for the save with its attempt, step and nonce, and only
 *       of ranks that described themselves at the node that sends it (peers/lead_save.c).
 *   coordinating.C2  Only a coordinator that knows the attempt of a save answers that it is over;
 *       else the node keeps its part.
 *   coordinating.C3  The coordinator answers COMMITTED only to a node that has reported the
 *       manifest.
 *   coordinating.C4  A save waits for a rank that has begun its part while its node reports that
 *       part, and for a rank that has not while its node names it among those that are connected.
 *   coordinating.C5  No save waits for parts in the memory of a ckptd that has restarted, or that
 *       asks about the save and has no part of it.
 *   coordinating.C6  A shard counts as durable only with digests that fit the plan.
 *   coordinating.C7  A rank hears that its attempt is over only when another has come, not while a
 *       restarted coordinator has not resumed it.
 *   coordinating.C8  Saves that a rank reports as ended count as ended before it begins another
 *       one, which gives up earlier saves that it has not ended. */
#include "ckptd/machines/coordinating.h"
#include "proto/base/report.h"

int coordinating_check(const struct commit *commit, uint64_t attempt, bool has_plan)
{
    bool is_back = commit_may_resume(commit, attempt); /* coordinating.C7 */
    int error = is_back ? 0 : commit_check(commit, attempt);
    if (error == 0 && (is_back || !has_plan))
        error = report_error(
            ERR_UNAVAILABLE, "the node describes its ranks again",
            "the coordinator was started again, or not every rank has described its tensors");
    return error;
}

/* ---- parts ---- */

void coordinating_part(struct commit *commit, struct commit_actions *actions, uint64_t save,
                       const struct coordinating_part *part)
{
    int error =
        part->state == HOLDFAST__V1__PART_STATE__PART_FAILED ? ERR_ABORTED : part->error; /* C6 */
    if (error != 0) {
        commit_failed(commit, actions, save, part->rank, error, "a part at another node failed");
        return;
    }
    if (part->state >= HOLDFAST__V1__PART_STATE__PART_ENDED)
        commit_ended(commit, actions, save, part->rank);
    if (part->state == HOLDFAST__V1__PART_STATE__PART_DURABLE)
        commit_durable_at(commit, actions, save, part->rank, part->node);
}

struct coordinating_loss coordinating_reported(struct coordinating *of_save, struct commit *commit,
                                               struct commit_actions *actions, uint64_t save,
                                               const struct coordinating_report *report,
                                               const struct coordinating_ranks *ranks)
{
    if (report->says_placed) {
        fanout_has(&of_save->fanout, report->node);
        commit_placed(commit, actions, save, report->node, 0);
    } else if (report->num_parts == 0) { /* coordinating.C5 */
        return coordinating_check_ranks(commit, actions, save, ranks, report->node);
    }
    return (struct coordinating_loss){COORDINATING_NONE, 0, 0};
}

/* ---- ranks that have left ---- */

bool coordinating_hear_boot(uint64_t *known, uint64_t boot)
{
    uint64_t before = *known;
    if (boot != 0)
        *known = boot;
    return boot != 0 && before != 0 && before != boot; /* coordinating.C5 */
}

/* Does the save wait for the rank, and has that left? */
static enum coordinating_loss_kind find_loss(const struct commit_save *save, uint32_t rank,
                                             const struct coordinating_rank *known,
                                             uint32_t restarted)
{
    bool is_part_gone = restarted != 0 ? known->node == restarted : known->is_silent;
    enum coordinating_loss_kind kind =
        restarted != 0 ? COORDINATING_RESTARTED : COORDINATING_SILENT;
    if (known->node == 0)
        return COORDINATING_NONE;
    if (save->state == COMMIT_PLACING)
        return is_part_gone && !commit_has_placed(save, known->node) ? kind : COORDINATING_NONE;
    if (save->state != COMMIT_STAGING || save->ranks[rank] == RANK_DURABLE)
        return COORDINATING_NONE;
    if (save->ranks[rank] != RANK_ABSENT) /* coordinating.C4 */
        return is_part_gone ? kind : COORDINATING_NONE;
    return restarted == 0 && known->is_unnamed ? COORDINATING_UNNAMED : COORDINATING_NONE;
}

struct coordinating_loss coordinating_check_ranks(struct commit *commit,
                                                  struct commit_actions *actions, uint64_t save_id,
                                                  const struct coordinating_ranks *ranks,
                                                  uint32_t restarted)
{
    const struct commit_save *save = commit_find(commit, save_id);
    struct coordinating_loss loss = {COORDINATING_NONE, 0, 0};
    for (uint32_t i = 0; save && i < save->world_size && loss.kind == COORDINATING_NONE; i++) {
        const struct coordinating_rank known = ranks->of(ranks->user, i);
        loss = (struct coordinating_loss){find_loss(save, i, &known, restarted), i, known.node};
    }
    if (loss.kind == COORDINATING_NONE)
        return loss;
    if (save->state == COMMIT_PLACING)
        commit_placed(commit, actions, save_id, loss.node, ERR_UNAVAILABLE);
    else
        commit_failed(commit, actions, save_id, loss.rank, ERR_UNAVAILABLE,
                      "the node of a rank has left");
    return loss;
}

/* ---- answers ---- */

static void hand_out(struct coordinating_answer *answer, struct fanout *fanout,
                     const struct coordinating_report *report)
{
    switch (fanout_ask(fanout, &answer->from, report->node, report->has_missed)) {
    case FANOUT_WAIT:
        return;
    case FANOUT_HERE:
        answer->has_manifest = true;
        break;
    case FANOUT_FROM:
        break;
    }
    answer->verdict = HOLDFAST__V1__PART_VERDICT__VERDICT_PLACE;
}

struct coordinating_answer coordinating_answer(struct coordinating *of_save,
                                               const struct commit *commit, uint64_t save_id,
                                               const struct coordinating_report *report)
{
    const struct commit_save *save = commit_find(commit, save_id);
    struct coordinating_answer answer = {.verdict = HOLDFAST__V1__PART_VERDICT__VERDICT_WAIT};
    if (!save)
        return answer;
    answer.is_accepted = save->num_ended == save->world_size;
    if (save->state == COMMIT_DISCARDING)
        answer.verdict = HOLDFAST__V1__PART_VERDICT__VERDICT_OVER;
    else if (save->state == COMMIT_PLACING && !report->says_placed)
        hand_out(&answer, &of_save->fanout, report);
    return answer;
}

bool coordinating_recall(Holdfast__V1__PartVerdict *out, bool says_placed,
                         const struct coordinating_past *past)
{
    if (!past->is_here) {
        *out = HOLDFAST__V1__PART_VERDICT__VERDICT_OVER;
        return !past->is_unsure; /* coordinating.C2 */
    }
    *out = says_placed && past->was_committed /* coordinating.C3 */
               ? HOLDFAST__V1__PART_VERDICT__VERDICT_COMMITTED
               : HOLDFAST__V1__PART_VERDICT__VERDICT_KEPT;
    return true;
}
