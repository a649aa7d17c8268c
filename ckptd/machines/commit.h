/* commit.h - decides when a checkpoint exists. A pure state machine, one per run: events go in,
 * actions come out. It does no I/O, reads no clock, starts no thread and allocates nothing, so the
 * daemon and the simulator run the same code. The states and the invariants are drawn at the head
 * of commit.c.
 *
 *     struct commit machine;
 *     struct commit_actions actions = {0};
 *     commit_init(&machine, newest_durable_attempt);
 *     error = commit_begin(&machine, &actions, &save, attempt, rank, step);
 *     for (i = 0; i < actions.count; i++)
 *         ... perform actions.items[i]; tell the machine how it went ...
 *
 * Every function appends to `actions`. The caller performs each action once, in the order given.
 * Calls that answer an action may come late, twice or never: the machine ignores one that no longer
 * fits. A refusal is a code with the error text set; it changes nothing. */
#ifndef HOLDFAST_CKPTD_MACHINES_COMMIT_H
#define HOLDFAST_CKPTD_MACHINES_COMMIT_H

#include <stdbool.h>
#include <stdint.h>

#define COMMIT_RANKS_MAX 32768u /* of one attempt; more are refused */
#define COMMIT_SAVES_MAX 4u     /* of one run in work at once; more are ERR_BUSY */
#define COMMIT_ACTIONS_MAX (2 * COMMIT_SAVES_MAX + 2)
#define COMMIT_NODES_MAX 4096u /* the coordinator is node 0 */
#define COMMIT_TAKE_TRIES 16u  /* numbers tried when names of attempts are already used */

enum commit_action_kind {
    COMMIT_SYNC_NAMES, /* make the names of the save's files durable; then commit_names_synced */
    COMMIT_PUBLISH,    /* write the manifest; then commit_published */
    COMMIT_PLACE,      /* the holders must write it as well; then commit_placed for each */
    COMMIT_DONE,       /* the save is committed: answer all clients; its id is free */
    COMMIT_DISCARD,    /* failed: stop its I/O, remove its files; then commit_discarded */
    COMMIT_KEEP,       /* failed, and unknown whether the manifest is durable: touch no file; its id
                          is free */
    COMMIT_TAKE,       /* make attempt `number` durable, exclusively; then commit_taken */
    COMMIT_OPENED,     /* attempt `number` is open: answer */
    COMMIT_NOT_OPENED  /* no attempt could be taken: answer with `error` */
};

struct commit_action {
    enum commit_action_kind kind;
    uint64_t save;      /* id */
    uint64_t number;    /* attempt */
    int error;          /* the reason, a code of report.h */
    int64_t rank;       /* the rank, or -1 */
    const char *reason; /* static text */
};

struct commit_actions {
    uint32_t count;
    struct commit_action items[COMMIT_ACTIONS_MAX];
};

/* How the publication of a manifest ended. The default is unknown. */
enum commit_outcome {
    OUTCOME_UNKNOWN, /* it may be there, now or after a power loss */
    OUTCOME_ABSENT,  /* it is certainly not there and never will be */
    OUTCOME_DURABLE  /* it is there and survives power loss */
};

enum commit_save_state {
    COMMIT_FREE,
    COMMIT_STAGING,
    COMMIT_NAMING,
    COMMIT_PUBLISHING,
    COMMIT_PLACING,
    COMMIT_DISCARDING
};

enum commit_rank_state { RANK_ABSENT, RANK_BEGUN, RANK_ENDED, RANK_DURABLE };

/* Arrays per rank are as long as the largest world, so that the machine allocates nothing; only the
 * entries of the open world are ever touched, and cost memory. */
struct commit_save {
    enum commit_save_state state;
    uint64_t id, step;
    uint32_t world_size; /* of its attempt: the run's may be that of the next already */
    /* Ranks that have at least begun, ended, are durable. */
    uint32_t num_begun, num_ended, num_durable;
    uint32_t num_holders, num_placed; /* other nodes with a shard; those that have the manifest */
    uint64_t holders[COMMIT_NODES_MAX / 64], placed[COMMIT_NODES_MAX / 64]; /* a bit for each */
    uint8_t ranks[COMMIT_RANKS_MAX]; /* enum commit_rank_state */
};

enum commit_run_state { RUN_CLOSED, RUN_OPEN, RUN_SETTLING, RUN_TAKING };

struct commit {
    enum commit_run_state state;
    uint64_t attempt; /* the newest that is durable here, or that a start found used; 0: none */
    uint64_t heard;   /* the highest number known, here or elsewhere */
    uint64_t taking;  /* the number that is being made durable */
    uint32_t world_size;
    uint32_t take_tries;
    bool take_again; /* another open came while a number was being made durable */
    uint64_t next_id;
    uint64_t sealed;     /* of the attempt, newest step that has, or may have, a manifest, plus 1 */
    uint64_t latest_max; /* the highest of these */
    uint64_t latest[COMMIT_RANKS_MAX];  /* newest step begun by each rank, plus 1; 0: none */
    uint64_t unaware[COMMIT_RANKS_MAX]; /* step, plus 1, of a save that was given up while the rank
                                           copied; 0: it knows */
    struct commit_save saves[COMMIT_SAVES_MAX];
};

/* In zeroed memory. */
void commit_init(struct commit *commit, uint64_t newest_attempt);

/* Another node has, or had, an attempt of that number: later attempts here get higher ones. */
void commit_hear(struct commit *commit, uint64_t attempt);
/* Rank 0 (re)starts: settle what is in work, then take a new attempt. ERR_INVALID. */
int commit_open(struct commit *commit, struct commit_actions *actions, uint32_t world_size);
/* How making attempt `number` durable ended: 0, ERR_EXISTS (try the next) or another code. */
void commit_taken(struct commit *commit, struct commit_actions *actions, uint64_t number,
                  int error);
/* A restarted ckptd meets ranks of the newest durable attempt: resumes it. ERR_STALE. */
bool commit_may_resume(const struct commit *commit, uint64_t attempt);
int commit_resume(struct commit *commit, uint64_t attempt, uint32_t world_size);
/* A new attempt has begun, here or at another node: gives up saves that not every rank has ended,
 * as no rank will; the others continue. */
void commit_yield(struct commit *commit, struct commit_actions *actions);
/* Another node coordinates this attempt from now on: no save is in work or decided here. */
void commit_follow(struct commit *commit, uint64_t attempt, uint32_t world_size);
/* ERR_STALE unless `attempt` is the open one. */
int commit_check(const struct commit *commit, uint64_t attempt);

/* Can commit_begin() succeed? The same refusals, without a change. */
int commit_may_begin(const struct commit *commit, uint64_t attempt, uint32_t rank, uint64_t step);
/* The rank begins `step`: gives up saves of earlier steps that it has not ended, and one of `step`
 * itself that it has begun and not ended. Call before commit_begin(), if those hold resources that
 * it needs. */
void commit_leave(struct commit *commit, struct commit_actions *actions, uint32_t rank,
                  uint64_t step);
/* The rank knows that its saves which it has begun and not ended are over: it gave them up, or its
 * part ends. */
void commit_let_go(struct commit *commit, uint64_t attempt, uint32_t rank);
/* A rank begins the save of `step`, and leaves the earlier ones. A step that was given up may be
 * begun again.
 * ERR_STALE; ERR_EXISTS: the step is committed or being written, or this rank began a later one;
 * ERR_ABORTED: a rank began a later one, or does not know that the save of this step is over: give
 * this one up, then begin again; ERR_BUSY: too many saves in work, or the files of the former save
 * of this step are still being removed. */
int commit_begin(struct commit *commit, struct commit_actions *actions, uint64_t *out_save,
                 uint64_t attempt, uint32_t rank, uint64_t step);
/* The rank has announced all bytes. */
void commit_ended(struct commit *commit, struct commit_actions *actions, uint64_t save,
                  uint32_t rank);
/* The rank's shard is written and synced. */
void commit_durable(struct commit *commit, struct commit_actions *actions, uint64_t save,
                    uint32_t rank);
/* The same, of a rank at another node, 1 to COMMIT_NODES_MAX - 1, which holds the shard. */
void commit_durable_at(struct commit *commit, struct commit_actions *actions, uint64_t save,
                       uint32_t rank, uint32_t node);
/* The shard of a rank, or the whole save when rank is negative, failed. */
void commit_failed(struct commit *commit, struct commit_actions *actions, uint64_t save,
                   int64_t rank, int error, const char *reason);
void commit_names_synced(struct commit *commit, struct commit_actions *actions, uint64_t save,
                         int error);
void commit_published(struct commit *commit, struct commit_actions *actions, uint64_t save,
                      enum commit_outcome outcome, int error);
/* A node that holds a shard has the manifest durably; with an error: it does not answer. */
void commit_placed(struct commit *commit, struct commit_actions *actions, uint64_t save,
                   uint32_t node, int error);
void commit_discarded(struct commit *commit, struct commit_actions *actions, uint64_t save);
/* The rank is gone: saves that it has not ended are given up. */
void commit_rank_died(struct commit *commit, struct commit_actions *actions, uint64_t attempt,
                      uint32_t rank);
/* A later save finds no image: gives up the newest save in work that waits for another one. Returns
 * its id, or 0: none waits for another. */
uint64_t commit_give_way(struct commit *commit, struct commit_actions *actions);
/* Gives up every save that may still be given up. */
void commit_abort_all(struct commit *commit, struct commit_actions *actions, const char *reason);

/* Borrowed; NULL when no such save is in work. */
const struct commit_save *commit_find(const struct commit *commit, uint64_t save);
const struct commit_save *commit_find_step(const struct commit *commit, uint64_t step);
uint32_t commit_num_saves(const struct commit *commit);
/* Has that node reported that it has the manifest? */
bool commit_has_placed(const struct commit_save *save, uint32_t node);

#endif
