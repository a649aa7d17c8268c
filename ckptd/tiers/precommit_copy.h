/* precommit_copy.h - performs what machines/precommit.c decides: what of a save goes to a peer
 * before its commit, or comes from one; see precommit_copy.c. On the service thread. */
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

/* A save of which every rank has begun, all of them here; or that this node coordinates, with
 * shards at others, and has marked. Borrowed until precommit_copy_end(). */
struct precommit_save {
    const char *run;
    uint64_t step, attempt;
    const char *nonce;
    struct stage *stages; /* per rank */
    uint32_t world_size;
    const struct places *places; /* without shards: all are here */
};

/* A shard at another node. */
struct precommit_told {
    uint32_t rank;
    enum tier_index from;
    const struct shard_geometry *geometry;
    uint64_t written; /* bytes from the start that are in its file, and final */
};

/* One at a time for each peer, and one for what comes here. */
struct precommit_copy {
    struct service *service;
    enum tier_index tier; /* TIER_LOCAL: other nodes' shards come */
    struct copy_queue *queue;
    struct precommit machine; /* a save is known there by its stages */
    struct stage *stages;     /* of the save, until it is over */
    struct manifest manifest; /* its summary, as far as it is known */
    struct hold claim;
    enum publication outcome; /* of that */
    struct shard_copy *ships; /* per rank */
    uint32_t num_ships;
    struct precommit_save next; /* of precommit_next() */
    struct job job;
    void (*given)(struct precommit_copy *early); /* who waits for it; NULL: nobody */
    void (*left)(void *user);                    /* so does its save, of precommit_copy_is_over() */
    void *user;
    uint64_t bytes_sent; /* since the start, without `ships` */
};

void precommit_copy_init(struct precommit_copy *early, struct service *service,
                         enum tier_index tier, struct copy_queue *queue);
/* Takes the save, as soon as the one before is out of the way. Without memory it takes none. */
void precommit_copy_begin(struct precommit_copy *early, const struct precommit_save *save);
/* A chunk of a stage is in its file. */
void precommit_copy_advance(struct precommit_copy *early, const struct stage *stages);
/* Of a shard at another node: what has been told. */
void precommit_copy_tell(struct precommit_copy *early, const struct stage *stages,
                         const struct precommit_told *told);
/* Those stages are over: committed, or given up. */
void precommit_copy_end(struct precommit_copy *early, const struct stage *stages,
                        bool is_committed);
/* Behind that: is nothing of them left here? Else left(user) comes, once. */
bool precommit_copy_is_over(struct precommit_copy *early, const struct stage *stages,
                            void (*left)(void *user), void *user);
/* The drain has nothing to do, or begins with another checkpoint: what is committed and was not
 * taken goes. */
void precommit_copy_pass(struct precommit_copy *early);
/* The drain begins with that one: true when nothing is under way in its directory, else given()
 * comes then. */
bool precommit_copy_give(struct precommit_copy *early, const struct manifest_summary *summary,
                         void (*given)(struct precommit_copy *early));

/* What went before the commit: the claim, and a copy per shard, at rest. */
struct precommit_left {
    struct hold claim;
    struct shard_copy *ships; /* NULL: nothing */
    uint32_t count;
};
/* Behind precommit_copy_give(). Nothing, where that had another nonce, or failed. */
struct precommit_left precommit_copy_take(struct precommit_copy *early);
/* Was its file made here? Also when it has been taken. */
bool precommit_left_has_file(const struct precommit_left *left, uint32_t shard);
/* What was made here, of the checkpoint of that manifest, and not taken, is removed; blocks. */
void precommit_left_drop(struct precommit_left *left, struct storage *storage,
                         const struct manifest *manifest);
void precommit_left_leave(struct precommit_left *left); /* closes what is open there; blocks */
void precommit_left_free(struct precommit_left *left);  /* behind that */

uint64_t precommit_copy_count_bytes(const struct precommit_copy *early); /* since the start */
void precommit_copy_close(struct precommit_copy *early); /* as if the process had ended */

#endif
