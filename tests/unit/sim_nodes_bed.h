/* sim_nodes_bed.h - the world of ckptd_sim_nodes.c: nodes with a disk and a process, links between
 * them that fail, and trainers whose ranks live on the nodes. Every decision of ckptd is made by
 * its own code: the machines commit.c, coordinating.c, joining.c, participating.c, placement.c,
 * precommit.c, quorum.c and transfer.c. */
#ifndef HOLDFAST_TESTS_SIM_NODES_BED_H
#define HOLDFAST_TESTS_SIM_NODES_BED_H

#include "ckptd/machines/commit.h"
#include "ckptd/machines/coordinating.h"
#include "ckptd/machines/joining.h"
#include "ckptd/machines/participating.h"
#include "ckptd/machines/placement.h"
#include "ckptd/machines/precommit.h"
#include "ckptd/machines/quorum.h"
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"
#include "tests/unit/sim.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NODES 4u /* in three domains: the last two share one */
#define RANKS_MAX 4u
#define REPLICAS 2u
#define TRAINERS 2u
#define SAVES_MAX 64u /* bits of a number */
#define ATTEMPTS_MAX 64u
#define PENDING_MAX 16u
#define MESSAGES_MAX 32u
#define NOBODY UINT32_MAX

static const char *const domains[NODES] = {"a", "b", "c", "c"};

/* A save, as seen from outside: no node of the world sees all of it. */
struct made {
    uint64_t attempt, step, id; /* its id in the commit machine */
    uint32_t leader, boot, store, nonce;
    uint32_t ranks, holder[RANKS_MAX];
    uint64_t asked[RANKS_MAX]; /* by which call the rank began it */
    uint32_t lost;             /* a bit per node whose disk was lost since the save began */
    uint64_t acked;            /* the event at which it was acknowledged as committed; 0: never */
    bool is_replicated;        /* and as being on two domains */
    uint8_t digests;           /* of shards at other nodes: the coordinator has them */
    uint8_t offered;           /* a bit per node that it went to before its commit */
    struct coordinating coordinating;
};

/* A disk's part of it: a bit per shard. */
struct held {
    uint8_t shards, named; /* written and synced; and their names durable, too */
    bool mark, manifest, is_sent /* sent by another node */;
};

/* A node's memory of its part of a save that another coordinates. */
struct part {
    bool is_live;
    struct participating machine;
    uint64_t call;                               /* the report under way; 0: none */
    uint32_t from;                               /* the node that has the manifest */
    uint8_t begun, ended, durable, failed, told; /* a bit per rank */
};

struct pending {
    enum commit_action_kind kind;
    uint64_t save, number;
};

/* A request for a number, under way. */
struct taking {
    bool is_busy;
    uint64_t number;
    uint32_t nonce;
    uint32_t waiting; /* bits of the nodes that are asked */
    enum quorum_state state;
    struct quorum quorum;
};

/* A copy, under way. */
struct sending {
    struct transfer transfer;
    struct transfer_action due;
    uint32_t save;
    bool is_waiting; /* for shards sent there earlier */
};

/* Shards sent there before the commit of their save; at the node itself, those received. */
struct early {
    struct precommit machine;
    uint32_t save, next;
    enum precommit_action due;   /* a claim, a removal or the release of the lease is under way */
    uint8_t begun, moving, made; /* a bit per shard */
    bool is_claimed, has_failed;
};

struct node {
    uint32_t index, boot, store;
    bool is_up;
    /* The disk. */
    uint32_t owner[ATTEMPTS_MAX]; /* the nonce of each number that it holds */
    struct held held[SAVES_MAX];
    /* The process. */
    struct commit *commit;
    struct pending pending[PENDING_MAX];
    uint32_t num_pending;
    uint64_t newest; /* the highest number it knows */
    uint64_t open;   /* attempt that it serves; 0: none */
    uint32_t leader; /* its coordinator */
    uint8_t own, described,
        connected; /* bits of its ranks: here; and of them those that have come */
    uint8_t group; /* as coordinator: the known ranks */
    bool has_plan;
    struct joining joining;
    bool told[RANKS_MAX];
    struct joining_call asks; /* the Join that is under way, */
    uint64_t join_call;       /* and its number; 0: none */
    uint32_t opens_for;       /* the trainer whose start it performs */
    uint64_t
        must_know; /* acknowledged saves that were whole at the nodes that answered its start */
    uint64_t lost_before;     /* disks at that time */
    uint64_t answered_before; /* the highest number at that time */
    struct taking taking;
    bool was_committed[SAVES_MAX], is_kept[SAVES_MAX];
    struct part parts[SAVES_MAX];
    struct held knows[NODES][SAVES_MAX];
    bool is_away[NODES], is_given_up[NODES][SAVES_MAX];
    uint64_t heard_boot[NODES];
    struct sending sending[NODES]; /* one to each node, as replicate.c to each tier */
    struct early early[NODES];
};

/* A start of the run: ranks on nodes. The start before may still run on the other side of a
 * partition. */
struct trainer {
    bool is_up, is_opening;
    uint64_t attempt, step;
    uint32_t leader, ranks, node[RANKS_MAX];
    uint32_t boot[RANKS_MAX];                    /* of the node when the rank described itself */
    uint64_t begun[RANKS_MAX], ended[RANKS_MAX]; /* steps */
    uint64_t asked[RANKS_MAX];                   /* the call by which the rank begins its step */
    uint32_t in[RANKS_MAX];                      /* the save of it, or NOBODY */
};

enum message_kind {
    MESSAGE_JOIN,
    MESSAGE_JOINED,
    MESSAGE_BEGIN,
    MESSAGE_BEGUN,
    MESSAGE_REPORT,
    MESSAGE_VERDICT
};

struct message {
    enum message_kind kind;
    uint32_t from, to, boot; /* of the sender's process */
    uint32_t trainer, rank, save;
    uint64_t attempt, step, asked;
    uint64_t call;                      /* of a report, and of its answer: */
    struct participating_report report; /* the report's contents, */
    uint8_t ranks, digests;             /* of which ranks, and with whose digests */
    Holdfast__V1__PartState states[RANKS_MAX];
    uint64_t ended;                      /* a bit per save that the rank has ended */
    bool has_slices, is_known, has_plan; /* of a Join, and of its answer */
    uint32_t world_size;                 /* of a Join */
    int error;
    Holdfast__V1__PartVerdict verdict;
    uint32_t manifest_at; /* that node has the manifest; otherwise it comes with the verdict */
};

struct world {
    struct sim sim;
    uint32_t stores, boots, nonces;
    uint64_t calls;
    struct node nodes[NODES];
    bool is_cut[NODES][NODES];
    struct trainer trainers[TRAINERS];
    struct message messages[MESSAGES_MAX];
    uint32_t num_messages;
    struct made made[SAVES_MAX];
    uint32_t num_made, num_made_max;
    uint32_t first_healed; /* save since the faults stopped */
    bool is_ending;        /* the run saves no more */
    uint64_t answered;     /* the highest number of an attempt */
    uint64_t num_acked, num_replicated, num_given, num_opened, num_refused, num_crashed, num_lost;
    bool is_doubted[ATTEMPTS_MAX]; /* a disk, with its numbers, was lost while the number was taken
                                    */
};

/* ---- links ---- */

static bool reaches(const struct world *world, uint32_t from, uint32_t to)
{
    return world->nodes[from].is_up && world->nodes[to].is_up && !world->is_cut[from][to];
}

static bool can_call(const struct world *world, uint32_t from, uint32_t to)
{
    return reaches(world, from, to) && reaches(world, to, from);
}

static void post(struct world *world, struct message message)
{
    message.boot = world->nodes[message.from].boot;
    if (world->num_messages < MESSAGES_MAX)
        world->messages[world->num_messages++] = message;
}

/* ---- saves and disks ---- */

static uint8_t all_shards(const struct made *made)
{
    return (uint8_t)((1u << made->ranks) - 1);
}

static uint8_t own_shards(const struct made *made, uint32_t node)
{
    uint8_t bits = 0;
    for (uint32_t i = 0; i < made->ranks; i++)
        bits |= (uint8_t)((made->holder[i] == node) << i);
    return bits;
}

/* In the order of a catalog. */
static bool is_newer(const struct made *a, const struct made *b)
{
    return a->attempt != b->attempt ? a->attempt > b->attempt : a->step > b->step;
}

static struct made *find_made(struct world *world, const struct node *node, uint64_t id)
{
    for (uint32_t i = world->num_made; i-- > 0;) {
        struct made *made = &world->made[i];
        if (made->leader == node->index && made->boot == node->boot && made->id == id)
            return made;
    }
    return NULL;
}

static uint32_t index_of(const struct world *world, const struct made *made)
{
    return (uint32_t)(made - world->made);
}

/* A manifest and every shard, on the disks of these nodes. */
static bool is_whole_on(const struct world *world, uint32_t save, uint32_t nodes)
{
    uint8_t found = 0;
    bool manifest = false;
    for (uint32_t n = 0; n < NODES; n++) {
        const struct held *held = &world->nodes[n].held[save];
        if ((nodes >> n & 1u) == 0)
            continue;
        found |= held->shards & held->named;
        manifest |= held->manifest;
    }
    return manifest && found == all_shards(&world->made[save]);
}

static uint32_t domains_of(uint32_t nodes)
{
    uint32_t count = 0;
    for (uint32_t n = 0; n < NODES; n++) {
        bool is_first = nodes >> n & 1u;
        for (uint32_t m = 0; m < n; m++)
            is_first &= !((nodes >> m & 1u) && strcmp(domains[m], domains[n]) == 0);
        count += is_first;
    }
    return count;
}

/* The index of a node in the machine of another, which is 0 there. */
static uint32_t number_at(uint32_t leader, uint32_t node)
{
    return (node + NODES - leader) % NODES;
}

static uint32_t node_of(uint32_t leader, uint32_t number)
{
    return (leader + number) % NODES;
}

#endif
