/* early.h - what of a save goes to a peer before its commit, or comes from one; see early.c. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_DRAIN_EARLY_H
#define HOLDFAST_CKPTD_DRAIN_EARLY_H

#include "ckptd/drain/cargo.h"
#include "ckptd/drain/claim.h"
#include "ckptd/loop.h"
#include "ckptd/tier.h"
#include "proto/manifest.h"

#include <stdbool.h>
#include <stdint.h>

struct service;
struct stage;
struct storage;
struct places;

/* A save of which every rank has begun, all of them here; or that this node coordinates, with
 * shards at others, and has marked. Borrowed until early_end(). */
struct early_save {
    const char *run;
    uint64_t step, attempt;
    const char *nonce;
    struct stage *stages; /* per rank */
    uint32_t world_size;
    const struct places *places; /* without shards: all are here */
};

/* A shard at another node. */
struct early_told {
    uint32_t rank;
    enum tier_index from;
    const struct shard_geometry *geometry;
    uint64_t written; /* bytes from the start that are in its file, and final */
};

enum early_state {
    EARLY_FREE,
    EARLY_GOING,
    EARLY_AWAITED,  /* committed: the drain comes to it, or to another first */
    EARLY_STOPPING, /* until nothing is under way */
    EARLY_CLOSING
};

/* One at a time for each peer, and one for what comes here. */
struct early {
    struct service *service;
    enum tier_index tier; /* TIER_LOCAL: other nodes' shards come */
    struct fleet *fleet;
    enum early_state state;
    struct stage *stages;     /* of the save; NULL: it is over */
    const struct stage *of;   /* they were these, until it is free; compared alone */
    struct manifest manifest; /* its summary, as far as it is known */
    struct claim claim;
    bool is_claiming;
    enum publication outcome; /* of that */
    struct ship *ships;       /* per rank */
    uint32_t num_ships;
    bool is_dropped;        /* nothing of it is used */
    struct early_save next; /* begins when this one is out of the way; stages NULL: none */
    struct job job;
    void (*given)(struct early *early); /* who waits for it; NULL: nobody */
    void (*left)(void *user);           /* so does its save, of early_is_over() */
    void *user;
    uint64_t bytes_sent; /* since the start, without `ships` */
};

void early_init(struct early *early, struct service *service, enum tier_index tier,
                struct fleet *fleet);
/* Takes the save, as soon as it is free. Without memory it takes none. */
void early_begin(struct early *early, const struct early_save *save);
/* A chunk of a stage is in its file. */
void early_advance(struct early *early, const struct stage *stages);
/* Of a shard at another node: what has been told. */
void early_tell(struct early *early, const struct stage *stages, const struct early_told *told);
/* Those stages are over: committed, or given up. */
void early_end(struct early *early, const struct stage *stages, bool is_committed);
/* Behind that: is nothing of them left here? Else left(user) comes, once. */
bool early_is_over(struct early *early, const struct stage *stages, void (*left)(void *user),
                   void *user);
/* The drain has nothing to do, or begins with another checkpoint: what is committed and was not
 * taken goes. */
void early_pass(struct early *early);
/* The drain begins with that one: true when nothing is under way in its directory, else given()
 * comes then. */
bool early_give(struct early *early, const struct manifest_summary *summary,
                void (*given)(struct early *early));

/* What went before the commit: the claim, and a ship per shard, at rest. */
struct early_left {
    struct claim claim;
    struct ship *ships; /* NULL: nothing */
    uint32_t count;
};
/* Behind early_give(). Nothing, where that had another nonce, or failed. */
struct early_left early_take(struct early *early, const struct manifest_summary *summary);
/* Was its file made here? Also when it has been taken. */
bool early_left_has_file(const struct early_left *left, uint32_t shard);
/* What was made here, of the checkpoint of that manifest, and not taken, is removed; blocks. */
void early_left_drop(struct early_left *left, struct storage *storage,
                     const struct manifest *manifest);
void early_left_leave(struct early_left *left); /* closes what is open there; blocks */
void early_left_free(struct early_left *left);  /* behind that */

uint64_t early_count_bytes(const struct early *early); /* since the start */
void early_close(struct early *early);                 /* as if the process had ended */

#endif
