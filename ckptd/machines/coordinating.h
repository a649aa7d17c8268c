/* coordinating.h - handles the reports of other nodes at a save's coordinator: how they change the
 * save, what it answers, and which ranks have left. A pure state machine beside commit.c, the other
 * side of participating.c: events go in, actions of commit.c and answers come out. It does no I/O,
 * reads no clock and allocates nothing, so the daemon and the simulators run the same code. The
 * states and the invariants are drawn at the head of coordinating.c.
 *
 *     coordinating_part(commit, &actions, save, &part);              each part of a report
 *     coordinating_reported(&of_save, commit, &actions, save, &report, &ranks);
 *     ... perform the actions ...
 *     answer = coordinating_answer(&of_save, commit, save, &report);
 *
 * An event that no longer fits the save is ignored, as by commit.c. */
#ifndef HOLDFAST_CKPTD_MACHINES_COORDINATING_H
#define HOLDFAST_CKPTD_MACHINES_COORDINATING_H

#include "ckptd/machines/commit.h"
#include "ckptd/machines/manifest_fanout.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* The state of one save, beside that in commit.c; begins as zeros. Nodes are numbered, 0: the
 * coordinator. */
struct coordinating {
    struct fanout fanout;
};

/* May a rank of another node begin a save now? `has_plan`: the plan of the attempt is here.
 * ERR_STALE. ERR_UNAVAILABLE: the node must report its ranks again. */
int coordinating_check(const struct commit *commit, uint64_t attempt, bool has_plan);

/* ---- a report ---- */

/* A node's report of one rank's shard. */
struct coordinating_part {
    uint32_t node, rank;
    Holdfast__V1__PartState state;
    int error; /* of a durable shard: its digests do not fit the plan, or could not be kept */
};

struct coordinating_report {
    uint32_t node, num_parts;
    bool says_placed; /* the manifest is durable there */
    bool has_missed;  /* the node that was named did not supply the manifest */
};

/* ---- ranks that have left ---- */

/* The state of a rank. */
struct coordinating_rank {
    uint32_t node;
    bool is_silent;  /* its node has not reported its part for too long */
    bool is_unnamed; /* nor that the rank is connected there */
};

/* Callback for that state, used while an event is decided. */
struct coordinating_ranks {
    struct coordinating_rank (*of)(const void *user, uint32_t rank);
    const void *user;
};

enum coordinating_loss_kind {
    COORDINATING_NONE,
    COORDINATING_RESTARTED, /* the node has no part of it in memory any more */
    COORDINATING_UNNAMED,   /* the rank has not begun, and its node does not name it */
    COORDINATING_SILENT
};

/* The first rank that has left, and the reason. */
struct coordinating_loss {
    enum coordinating_loss_kind kind;
    uint32_t rank, node;
};

/* A call from a node has that boot id, 0: none. Has its ckptd restarted since `known`? */
bool coordinating_hear_boot(uint64_t *known, uint64_t boot);
/* `restarted`: that node has; 0: check for silent nodes. The save fails, or is kept, if it waits
 * for a rank that has left. */
struct coordinating_loss coordinating_check_ranks(struct commit *commit,
                                                  struct commit_actions *actions, uint64_t save,
                                                  const struct coordinating_ranks *ranks,
                                                  uint32_t restarted);

/* ---- events of a report, and the answer ---- */

void coordinating_part(struct commit *commit, struct commit_actions *actions, uint64_t save,
                       const struct coordinating_part *part);
/* Call after all its parts. */
struct coordinating_loss coordinating_reported(struct coordinating *of_save, struct commit *commit,
                                               struct commit_actions *actions, uint64_t save,
                                               const struct coordinating_report *report,
                                               const struct coordinating_ranks *ranks);

struct coordinating_answer {
    Holdfast__V1__PartVerdict verdict;
    bool is_accepted;  /* every rank has ended its part */
    bool has_manifest; /* PLACE: it is part of the answer; else */
    uint32_t from;     /* that node has it */
};

/* For a save in work, or one that just was. */
struct coordinating_answer coordinating_answer(struct coordinating *of_save,
                                               const struct commit *commit, uint64_t save,
                                               const struct coordinating_report *report);

/* This node's knowledge of a save that is not in work. */
struct coordinating_past {
    bool is_here;       /* its manifest, */
    bool was_committed; /* and every holder has reported that it has it as well */
    bool is_unsure;     /* its attempt is unknown here, or the checkpoint here is damaged */
};

/* False: this node does not know enough to answer. */
bool coordinating_recall(Holdfast__V1__PartVerdict *out, bool says_placed,
                         const struct coordinating_past *past);

#endif
