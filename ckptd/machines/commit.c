/* commit.c - the life of a checkpoint, drawn.
 *
 * A save of one step by all ranks of one attempt:
 *
 *                    commit_begin (first rank)
 *        (free) ────────────────────────────────► STAGING ───┐ a rank fails, dies, skips it,
 *           ▲                                        │       │ gives it up; a new attempt comes
 *           │            commit_durable of the last  │       │ before every rank ended; it makes
 *           │            rank, and no earlier step   ▼       ▼ way for a later one
 *           │            in work           SYNC_NAMES│    DISCARDING ◄──────────┐
 *           │                                        ▼       │ commit_discarded │
 *           │                                     NAMING ────┼── sync failed ───┤
 *           │                     commit_names_synced│       │                  │
 *           │                                 PUBLISH▼       ▼                  │
 *           │                                 PUBLISHING   (free)               │
 *           │        DURABLE: DONE               │ │ │                          │
 *           ├────────────────────────────────────┘ │ └── ABSENT ────────────────┘
 *           │        UNKNOWN: KEEP                 │
 *           ├──────────────────────────────────────┤ DURABLE, and other nodes hold shards: PLACE
 *           │                                      ▼
 *           │ commit_placed of the last: DONE   PLACING
 *           └──────────────────────────────────────┘
 *             one of them does not answer: KEEP
 *
 * Each rank within a save: ABSENT ─begin─► BEGUN ─ended─► ENDED ─durable─► DURABLE, never back.
 *
 * The run: CLOSED ─open─► SETTLING ─no save in work─► TAKING ─taken─► OPEN ─open─► SETTLING ...
 *                                                            └─failed─► CLOSED
 * A restart begins CLOSED with the newest durable attempt; CLOSED ─resume─► OPEN.
 *
 * Invariants (cited in the code and checked by tests/unit/ckptd_commit.c):
 *   commit.I1  A manifest is published only when every shard and every name is durable.
 *   commit.I2  A save is called committed only after its publication was reported durable.
 *   commit.I3  The files of a save may be removed only while no manifest can name them: never after
 *       PUBLISH, unless the publication was reported absent.
 *   commit.I4  When an attempt is answered, no save of an older attempt is in work, and none begins
 *       later.
 *   commit.I5  Attempt numbers grow, beyond all that this node has heard of, and a number is
 *       durable before it is answered.
 *   commit.I6  At most one save of a step is in work, its files included; a rank's steps never fall
 *       within an attempt. A step is begun again only when its save was given up, its files are
 *       gone, and every rank that was copying knows: so all ranks of a save mean the same one.
 *   commit.I7  A rank only moves forward within a save; a save that is being discarded never comes
 *       back.
 *   commit.I8  Saves in work at once are published in the order of their steps: a later one waits
 *       for the earlier, which needs no rank any more: a rank that began the later one has ended or
 *       left the earlier.
 *   commit.I9  A step that has, or may have, a manifest is not begun again by its attempt.
 *   commit.I10  A save is called committed only after every node that holds a shard of it has said
 *       that the manifest is durable there, each counted once. From the coordinator's PUBLISH on no
 *       file of it is removed, whatever happens to those nodes (commit.I3).
 *   commit.I11  The first file of a save is created when the mark of the save is durable in its
 *       directory, and the mark is removed after the manifest is published, or after the last of
 *       its files is removed. ckptd never deletes files that no mark proves to be unfinished work
 *       (mark.c; checked by tests/unit/ckptd_power.c).
 *   commit.I12  Of the saves in work the earliest is never given up for a later one
 *       (commit_give_way): so where saves come faster than they are written, one always goes on to
 *       its end.
 *
 * After a crash. The machine is memory only: a restart begins without saves, whatever their state
 * was. Files without a manifest are rubbish, as their mark proves (commit.I11; scan.c removes
 * them); with one the checkpoint is whole by commit.I1. So every arrow above may be cut at any
 * point. */
#include "ckptd/machines/commit.h"
#include "proto/base/report.h"

#include <stddef.h>
#include <string.h>

/* ---- finding and telling ---- */

static void push(struct commit_actions *actions, struct commit_action action)
{
    CHECK(actions->count < COMMIT_ACTIONS_MAX);
    actions->items[actions->count++] = action;
}

static void push_save(struct commit_actions *actions, enum commit_action_kind kind,
                      const struct commit_save *save)
{
    push(actions, (struct commit_action){.kind = kind, .save = save->id, .rank = -1});
}

static struct commit_save *find_save(struct commit *commit, uint64_t id)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (commit->saves[i].state != COMMIT_FREE && commit->saves[i].id == id)
            return &commit->saves[i];
    return NULL;
}

const struct commit_save *commit_find(const struct commit *commit, uint64_t save)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (commit->saves[i].state != COMMIT_FREE && commit->saves[i].id == save)
            return &commit->saves[i];
    return NULL;
}

/* The save of a step that may still be committed. A discarded one is over. */
const struct commit_save *commit_find_step(const struct commit *commit, uint64_t step)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        const struct commit_save *save = &commit->saves[i];
        if (save->state != COMMIT_FREE && save->state != COMMIT_DISCARDING && save->step == step)
            return save;
    }
    return NULL;
}

uint32_t commit_num_saves(const struct commit *commit)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        count += commit->saves[i].state != COMMIT_FREE;
    return count;
}

static bool has_bit(const uint64_t *bits, uint32_t node)
{
    return bits[node / 64] >> node % 64 & 1u;
}

bool commit_has_placed(const struct commit_save *save, uint32_t node)
{
    CHECK(node < COMMIT_NODES_MAX);
    return has_bit(save->placed, node);
}

/* 1: it was not set. */
static uint32_t set_bit(uint64_t *bits, uint32_t node)
{
    bool was_set = has_bit(bits, node);
    bits[node / 64] |= 1ull << node % 64;
    return !was_set;
}

void commit_init(struct commit *commit, uint64_t newest_attempt)
{
    memset(commit, 0, offsetof(struct commit, latest));
    commit->attempt = newest_attempt;
    commit->next_id = 1;
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        commit->saves[i].state = COMMIT_FREE;
}

/* ---- giving up ---- */

/* STAGING, NAMING or PUBLISHING (absent) -> DISCARDING. */
static void discard_save(struct commit *commit, struct commit_save *save,
                         struct commit_actions *actions, int64_t rank, int error,
                         const char *reason)
{
    CHECK(save->state != COMMIT_FREE && save->state != COMMIT_DISCARDING); /* commit.I7 */
    save->state = COMMIT_DISCARDING;
    for (uint32_t i = 0; i < save->world_size; i++)
        if (save->ranks[i] == RANK_BEGUN)
            commit->unaware[i] = save->step + 1;
    push(actions, (struct commit_action){.kind = COMMIT_DISCARD,
                                         .save = save->id,
                                         .rank = rank,
                                         .error = error,
                                         .reason = reason});
}

/* ---- the order of saves ---- */

/* Must `save` wait for an earlier step that may still be committed? */
static bool must_wait(const struct commit *commit, const struct commit_save *save)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        const struct commit_save *other = &commit->saves[i];
        if (other->state != COMMIT_FREE && other->state != COMMIT_DISCARDING &&
            other->step < save->step)
            return true;
    }
    return false;
}

/* STAGING -> NAMING, for the save whose turn it is. */
static void name_next(struct commit *commit, struct commit_actions *actions)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        struct commit_save *save = &commit->saves[i];
        if (save->state != COMMIT_STAGING || save->num_durable < save->world_size ||
            must_wait(commit, save))
            continue;
        save->state = COMMIT_NAMING; /* commit.I8: every later one now waits for it */
        push_save(actions, COMMIT_SYNC_NAMES, save);
    }
}

void commit_failed(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                   int64_t rank, int error, const char *reason)
{
    struct commit_save *save = find_save(commit, save_id);
    /* After STAGING every shard is durable: a rank can fail no more. */
    if (save && save->state == COMMIT_STAGING)
        discard_save(commit, save, actions, rank, error, reason);
    name_next(commit, actions);
}

void commit_let_go(struct commit *commit, uint64_t attempt, uint32_t rank)
{
    if (commit->attempt == attempt && rank < commit->world_size)
        commit->unaware[rank] = 0;
}

void commit_rank_died(struct commit *commit, struct commit_actions *actions, uint64_t attempt,
                      uint32_t rank)
{
    if (commit->attempt != attempt)
        return;
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        struct commit_save *save = &commit->saves[i];
        if (save->state == COMMIT_STAGING && rank < save->world_size &&
            save->ranks[rank] < RANK_ENDED)
            discard_save(commit, save, actions, rank, ERR_ABORTED,
                         "a rank ended before it had announced its part");
    }
    commit_let_go(commit, attempt, rank);
    name_next(commit, actions);
}

void commit_abort_all(struct commit *commit, struct commit_actions *actions, const char *reason)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (commit->saves[i].state == COMMIT_STAGING)
            discard_save(commit, &commit->saves[i], actions, -1, ERR_ABORTED, reason);
}

uint64_t commit_give_way(struct commit *commit, struct commit_actions *actions)
{
    struct commit_save *newest = NULL;
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        struct commit_save *save = &commit->saves[i];
        if (save->state == COMMIT_STAGING && must_wait(commit, save) && /* commit.I12 */
            (!newest || save->step > newest->step))
            newest = save;
    }
    if (!newest)
        return 0;
    discard_save(commit, newest, actions, -1, ERR_ABORTED, "it made way for a later save");
    return newest->id;
}

/* ---- attempts ---- */

/* No rank of the attempt has begun a save yet. */
static void forget_steps(struct commit *commit)
{
    memset(commit->latest, 0, commit->world_size * sizeof commit->latest[0]);
    memset(commit->unaware, 0, commit->world_size * sizeof commit->unaware[0]);
    commit->latest_max = commit->sealed = 0;
}

static void take_number(struct commit *commit, struct commit_actions *actions)
{
    CHECK(commit_num_saves(commit) == 0); /* commit.I4 */
    commit->state = RUN_TAKING;
    commit->taking =
        (commit->heard > commit->attempt ? commit->heard : commit->attempt) + 1; /* commit.I5 */
    push(actions,
         (struct commit_action){.kind = COMMIT_TAKE, .number = commit->taking, .rank = -1});
}

void commit_hear(struct commit *commit, uint64_t attempt)
{
    if (attempt > commit->heard)
        commit->heard = attempt;
}

/* A save left the table: was it the last one for which an open waits? */
static void settle_saves(struct commit *commit, struct commit_actions *actions)
{
    if (commit->state == RUN_SETTLING && commit_num_saves(commit) == 0)
        take_number(commit, actions);
}

void commit_yield(struct commit *commit, struct commit_actions *actions)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++) {
        struct commit_save *save = &commit->saves[i];
        if (save->state == COMMIT_STAGING && save->num_ended < save->world_size)
            discard_save(commit, save, actions, -1, ERR_ABORTED,
                         "a new attempt began before every rank ended");
    }
}

int commit_open(struct commit *commit, struct commit_actions *actions, uint32_t world_size)
{
    if (world_size == 0 || world_size > COMMIT_RANKS_MAX)
        return report_error(ERR_INVALID, NULL, "a world of %u ranks is outside 1 to %u", world_size,
                            COMMIT_RANKS_MAX);
    if (commit->state == RUN_TAKING) {
        /* The current number belongs to a start whose client no longer waits. */
        commit->take_again = true;
        commit->world_size = world_size;
        return 0;
    }
    commit_yield(commit, actions);
    commit->world_size = world_size;
    commit->state = RUN_SETTLING;
    commit->take_tries = 0;
    settle_saves(commit, actions);
    return 0;
}

void commit_taken(struct commit *commit, struct commit_actions *actions, uint64_t number, int error)
{
    if (commit->state != RUN_TAKING || number != commit->taking)
        return;
    if (error == 0 || error == ERR_EXISTS)
        commit->attempt = number; /* commit.I5: this number is used up, by this start or another */
    if (error == ERR_EXISTS && ++commit->take_tries < COMMIT_TAKE_TRIES) {
        take_number(commit, actions);
        return;
    }
    if (commit->take_again && error == 0) {
        commit->take_again = false;
        commit->take_tries = 0;
        take_number(commit, actions);
        return;
    }
    commit->take_again = false;
    commit->state = error == 0 ? RUN_OPEN : RUN_CLOSED;
    if (commit->attempt == number) /* else the former attempt may resume */
        forget_steps(commit);
    push(actions, (struct commit_action){.kind = error == 0 ? COMMIT_OPENED : COMMIT_NOT_OPENED,
                                         .number = number,
                                         .rank = -1,
                                         .error = error});
}

bool commit_may_resume(const struct commit *commit, uint64_t attempt)
{
    return commit->state == RUN_CLOSED && attempt == commit->attempt && attempt != 0;
}

int commit_resume(struct commit *commit, uint64_t attempt, uint32_t world_size)
{
    if (!commit_may_resume(commit, attempt))
        return commit_check(commit, attempt);
    CHECK(world_size >= 1 && world_size <= COMMIT_RANKS_MAX);
    commit->world_size = world_size;
    commit->state = RUN_OPEN;
    return 0;
}

void commit_follow(struct commit *commit, uint64_t attempt, uint32_t world_size)
{
    CHECK(commit_num_saves(commit) == 0 && world_size >= 1 && world_size <= COMMIT_RANKS_MAX);
    uint64_t next_id = commit->next_id;
    commit_init(commit, attempt);
    commit->next_id = next_id;
    commit->world_size = world_size;
    forget_steps(commit);
    commit->state = RUN_OPEN;
}

int commit_check(const struct commit *commit, uint64_t attempt)
{
    if (commit->state == RUN_OPEN && attempt == commit->attempt)
        return 0;
    if (attempt == commit->attempt)
        return report_error(ERR_STALE, "this process belongs to an older start of the run: end it",
                            "attempt %llu is over: another start of the run replaced it",
                            (unsigned long long)attempt);
    return report_error(ERR_STALE, "this process belongs to an older start of the run: end it",
                        "attempt %llu is not the open one (the newest is %llu)",
                        (unsigned long long)attempt, (unsigned long long)commit->attempt);
}

/* ---- a save ---- */

/* Does `rank` give this save up when it begins that of `step`? */
static bool is_left_by(const struct commit_save *save, uint32_t rank, uint64_t step)
{
    if (save->state != COMMIT_STAGING || rank >= save->world_size)
        return false;
    return save->step == step ? save->ranks[rank] == RANK_BEGUN
                              : save->step < step && save->ranks[rank] < RANK_ENDED;
}

/* May the rank join the save of its step that is in work? */
static int may_join(const struct commit_save *save, uint32_t rank)
{
    unsigned long long step = save->step;
    if (save->state == COMMIT_STAGING && save->ranks[rank] == RANK_ABSENT)
        return 0;
    if (save->state == COMMIT_STAGING && save->ranks[rank] == RANK_BEGUN)
        return report_error(ERR_ABORTED, "begin it again, on all ranks",
                            "rank %u had begun the save of step %llu and begins it again: that "
                            "save is given up",
                            rank, step);
    return report_error(ERR_EXISTS, "wait for it", "the save of step %llu is being written", step);
}

/* A save of the step was begun before, and is over: may another one begin? */
static int may_repeat(const struct commit *commit, uint64_t step)
{
    for (uint32_t i = 0; i < commit->world_size; i++)
        if (commit->unaware[i] == step + 1)
            return report_error(ERR_ABORTED, "give it up on all ranks, then begin it again",
                                "the save of step %llu is over, which rank %u does not know yet",
                                (unsigned long long)step, i);
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (commit->saves[i].state == COMMIT_DISCARDING && commit->saves[i].step == step)
            return report_error(ERR_BUSY, "try again",
                                "files of an earlier save of step %llu are being removed",
                                (unsigned long long)step);
    return 0;
}

int commit_may_begin(const struct commit *commit, uint64_t attempt, uint32_t rank, uint64_t step)
{
    int error = commit_check(commit, attempt);
    if (error != 0)
        return error;
    if (rank >= commit->world_size || step >= UINT64_MAX - 1)
        return report_error(ERR_INVALID, NULL, "rank %u of %u cannot save step %llu", rank,
                            commit->world_size, (unsigned long long)step);
    if (commit->latest[rank] > step + 1) /* commit.I6 */
        return report_error(ERR_EXISTS, "steps of an attempt only grow; open a new attempt",
                            "rank %u has begun the save of step %llu before", rank,
                            (unsigned long long)(commit->latest[rank] - 1));
    if (commit->sealed > step) /* commit.I9 */
        return report_error(ERR_EXISTS, "steps of an attempt only grow; open a new attempt",
                            "the attempt has committed step %llu before",
                            (unsigned long long)(commit->sealed - 1));
    const struct commit_save *save = commit_find_step(commit, step);
    if (save)
        return may_join(save, rank);
    if (commit->latest_max > step + 1) /* a rank is past it: it can never be complete */
        return report_error(ERR_ABORTED, "the next save is not affected",
                            "the save of step %llu is over already", (unsigned long long)step);
    if (commit->latest_max == step + 1)
        error = may_repeat(commit, step); /* commit.I6 */
    if (error == 0 && commit_num_saves(commit) == COMMIT_SAVES_MAX)
        error = report_error(ERR_BUSY, "save less often, or use a faster disk",
                             "%u saves of the run are still in progress", COMMIT_SAVES_MAX);
    return error;
}

void commit_leave(struct commit *commit, struct commit_actions *actions, uint32_t rank,
                  uint64_t step)
{
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX; i++)
        if (is_left_by(&commit->saves[i], rank, step))
            discard_save(commit, &commit->saves[i], actions, rank, ERR_ABORTED,
                         commit->saves[i].step < step ? "a rank went on to a later save"
                                                      : "a rank began it again");
    commit_let_go(commit, commit->attempt, rank);
    name_next(commit, actions);
}

int commit_begin(struct commit *commit, struct commit_actions *actions, uint64_t *out_save,
                 uint64_t attempt, uint32_t rank, uint64_t step)
{
    int error = commit_may_begin(commit, attempt, rank, step);
    if (error != 0)
        return error;
    struct commit_save *save = NULL;
    commit_leave(commit, actions, rank, step);
    for (uint32_t i = 0; i < COMMIT_SAVES_MAX && !save; i++)
        if (commit->saves[i].state == COMMIT_FREE)
            save = &commit->saves[i];
    const struct commit_save *known = commit_find_step(commit, step);
    if (known)
        save = find_save(commit, known->id);
    CHECK(save &&
          (!known || save->state == COMMIT_STAGING)); /* commit.I6: it waits for this rank */
    if (!known) {
        memset(save, 0, offsetof(struct commit_save, ranks));
        memset(save->ranks, RANK_ABSENT, commit->world_size);
        save->state = COMMIT_STAGING;
        save->id = commit->next_id++;
        save->step = step;
        save->world_size = commit->world_size;
    }
    CHECK(save->ranks[rank] == RANK_ABSENT); /* commit.I7 */
    save->ranks[rank] = RANK_BEGUN;
    save->num_begun++;
    commit->latest[rank] = step + 1;
    if (commit->latest_max < step + 1)
        commit->latest_max = step + 1;
    *out_save = save->id;
    return 0;
}

void commit_ended(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                  uint32_t rank)
{
    struct commit_save *save = find_save(commit, save_id);
    (void)actions;
    if (!save || save->state != COMMIT_STAGING || rank >= save->world_size ||
        save->ranks[rank] != RANK_BEGUN)
        return;
    save->ranks[rank] = RANK_ENDED;
    save->num_ended++;
}

void commit_durable_at(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                       uint32_t rank, uint32_t node)
{
    struct commit_save *save = find_save(commit, save_id);
    CHECK(node < COMMIT_NODES_MAX);
    if (!save || save->state != COMMIT_STAGING || rank >= save->world_size ||
        save->ranks[rank] != RANK_ENDED)
        return;
    save->ranks[rank] = RANK_DURABLE;
    save->num_durable++;
    if (node != 0)
        save->num_holders += set_bit(save->holders, node);
    name_next(commit, actions);
}

void commit_durable(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                    uint32_t rank)
{
    commit_durable_at(commit, actions, save_id, rank, 0);
}

void commit_names_synced(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                         int error)
{
    struct commit_save *save = find_save(commit, save_id);
    if (!save || save->state != COMMIT_NAMING)
        return;
    if (error != 0) {
        discard_save(commit, save, actions, -1, error,
                     "the names of its files could not be made durable");
        name_next(commit, actions);
        return;
    }
    CHECK(save->num_durable == save->world_size); /* commit.I1 */
    save->state = COMMIT_PUBLISHING;
    push_save(actions, COMMIT_PUBLISH, save);
}

/* PUBLISHING or PLACING -> free: the manifest exists, or it is unknown which nodes have it. */
static void end_published(struct commit *commit, struct commit_actions *actions,
                          struct commit_save *save, const struct commit_action *action)
{
    push(actions, *action);
    save->state = COMMIT_FREE;
    name_next(commit, actions);
    settle_saves(commit, actions);
}

void commit_published(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                      enum commit_outcome outcome, int error)
{
    struct commit_save *save = find_save(commit, save_id);
    if (!save || save->state != COMMIT_PUBLISHING)
        return;
    if (outcome == OUTCOME_ABSENT) { /* commit.I3 */
        discard_save(commit, save, actions, -1, error,
                     error == ERR_ABORTED ? "it was refused" : "its manifest could not be written");
        name_next(commit, actions);
        return;
    }
    commit->sealed = save->step + 1; /* commit.I9; it grows: commit.I8 */
    if (outcome == OUTCOME_DURABLE && save->num_holders > 0) {
        save->state = COMMIT_PLACING; /* commit.I10 */
        push_save(actions, COMMIT_PLACE, save);
        return;
    }
    struct commit_action done = {.kind = COMMIT_DONE, .save = save->id, .rank = -1}; /* commit.I2 */
    if (outcome != OUTCOME_DURABLE) {
        done.kind = COMMIT_KEEP;
        done.error = error;
        done.reason = "it is unknown whether its manifest is durable; nothing was removed";
    }
    end_published(commit, actions, save, &done);
}

void commit_placed(struct commit *commit, struct commit_actions *actions, uint64_t save_id,
                   uint32_t node, int error)
{
    struct commit_save *save = find_save(commit, save_id);
    if (!save || save->state != COMMIT_PLACING || node == 0 || node >= COMMIT_NODES_MAX ||
        !has_bit(save->holders, node))
        return;
    struct commit_action done = {.kind = COMMIT_DONE, .save = save->id, .rank = -1};
    if (error == 0)
        save->num_placed += set_bit(save->placed, node);
    if (error != 0) {
        done.kind = COMMIT_KEEP;
        done.error = error;
        done.reason = "a node that holds a shard of it did not confirm that it has the manifest";
    } else if (save->num_placed < save->num_holders) { /* commit.I10 */
        return;
    }
    end_published(commit, actions, save, &done);
}

void commit_discarded(struct commit *commit, struct commit_actions *actions, uint64_t save_id)
{
    struct commit_save *save = find_save(commit, save_id);
    if (!save || save->state != COMMIT_DISCARDING)
        return;
    save->state = COMMIT_FREE;
    settle_saves(commit, actions);
}
