/* precommit_copy.h - performs the decisions of machines/precommit.c: sends a save's shards to a
 * peer before the commit, or fetches them from one; see precommit_copy.c. On the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_PRECOMMIT_COPY_H
#define HOLDFAST_CKPTD_TIERS_PRECOMMIT_COPY_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/precommit.h"
#include "ckptd/tiers/hold.h"
#include "ckptd/tiers/shard_copy_private.h"
#include "proto/format/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct stage;
struct storage;
struct places;

/* A save that all its ranks, all of this node, have begun. Or one that this node coordinates and
 * has marked, with shards at other nodes. Borrowed until precommit_copy_end(). */
struct precommit_save {
    const char *run;
    uint64_t step, attempt;
    const char *nonce;
    struct stage *stages; /* per rank */
    uint32_t world_size;
    const struct places *places; /* empty: all shards are here */
};

/* A shard at another node. */
struct precommit_told {
    uint32_t rank;
    enum tier_index from;
    const struct shard_geometry *geometry;
    uint64_t written; /* bytes from the start that are written, and final */
};

/* One for each peer, and one for shards that this node fetches. */
struct precommit_copy {
    struct service *service;
    enum tier_index tier; /* TIER_LOCAL: fetches other nodes' shards */
    struct copy_queue *queue;
    struct precommit machine; /* identifies a save by its stages */
    struct stage *stages;     /* of the save; valid until it is over */
    struct manifest manifest; /* only the summary, as far as it is known */
    struct hold claim;
    enum publication outcome; /* of the claim */
    struct shard_copy *ships; /* per rank */
    uint32_t num_ships;
    struct precommit_save next; /* for precommit_next() */
    struct job job;
    /* Called when the drain may begin; NULL: no drain waits. */
    void (*given)(struct precommit_copy *early);
    /* Called when the directory is free, for precommit_copy_is_over(). */
    void (*left)(void *user);
    void *user;
    uint64_t bytes_sent; /* since the start, except those of `ships` */
};

void precommit_copy_init(struct precommit_copy *early, struct service *service,
                         enum tier_index tier, struct copy_queue *queue);
/* Takes the save as soon as the former one is out of the way. Without memory it ignores the
 * save. */
void precommit_copy_begin(struct precommit_copy *early, const struct precommit_save *save);
/* A chunk of a stage has been written to its file. */
void precommit_copy_advance(struct precommit_copy *early, const struct stage *stages);
/* A shard at another node has advanced, as that node reports. */
void precommit_copy_tell(struct precommit_copy *early, const struct stage *stages,
                         const struct precommit_told *told);
/* The save of these stages is over: committed, or given up. */
void precommit_copy_end(struct precommit_copy *early, const struct stage *stages,
                        bool is_committed);
/* After precommit_copy_end(): true if none of its files are left here. Else left(user) is called,
 * once. */
bool precommit_copy_is_over(struct precommit_copy *early, const struct stage *stages,
                            void (*left)(void *user), void *user);
/* The drain is idle, or begins with another checkpoint: removes files of a committed save that it
 * did not take. */
void precommit_copy_pass(struct precommit_copy *early);
/* The drain begins with that checkpoint: true if no job is active in its directory, else given() is
 * called when none is. */
bool precommit_copy_give(struct precommit_copy *early, const struct manifest_summary *summary,
                         void (*given)(struct precommit_copy *early));

/* Results of a copy before the commit: the claim, and a shard copy per rank, at rest. */
struct precommit_left {
    struct hold claim;
    struct shard_copy *ships; /* NULL: none */
    uint32_t count;
};
/* After precommit_copy_give(). Empty if the copy had another nonce, or failed. */
struct precommit_left precommit_copy_take(struct precommit_copy *early);
/* Was the shard's file made here? Stays true after the replication took it. */
bool precommit_left_has_file(const struct precommit_left *left, uint32_t shard);
/* Removes the files that were made here of that checkpoint and not taken; blocks. */
void precommit_left_drop(struct precommit_left *left, struct storage *storage,
                         const struct manifest *manifest);
void precommit_left_leave(struct precommit_left *left); /* closes its files; blocks */
void precommit_left_free(struct precommit_left *left);  /* after precommit_left_leave() */

uint64_t precommit_copy_count_bytes(const struct precommit_copy *early); /* since the start */
/* Leaves lease and files in place, as a killed process does. */
void precommit_copy_close(struct precommit_copy *early);

#endif
