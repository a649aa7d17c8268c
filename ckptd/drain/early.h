/* early.h - what of a save goes to a peer before its commit; see early.c. On the service thread. */
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

/* A save of which every rank has begun, all of them here. Borrowed until early_end(). */
struct early_save {
    const char *run;
    uint64_t step, attempt;
    const char *nonce;
    struct stage *stages; /* per rank */
    uint32_t world_size;
};

enum early_state {
    EARLY_FREE,
    EARLY_GOING,
    EARLY_AWAITED,  /* committed: the drain comes to it, or to another first */
    EARLY_STOPPING, /* until nothing is under way */
    EARLY_CLOSING
};

/* One at a time for each peer. */
struct early {
    struct service *service;
    enum tier_index tier;
    struct fleet *fleet;
    enum early_state state;
    struct stage *stages;     /* of the save; NULL: it is over */
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
    uint64_t bytes_sent;                /* since the start, without `ships` */
};

void early_init(struct early *early, struct service *service, enum tier_index tier,
                struct fleet *fleet);
/* Takes the save, as soon as it is free. Without memory it takes none. */
void early_begin(struct early *early, const struct early_save *save);
/* Those stages are over: committed, or given up. */
void early_end(struct early *early, const struct stage *stages, bool is_committed);
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
void early_left_leave(struct early_left *left); /* closes what is open there; blocks */
void early_left_free(struct early_left *left);  /* behind that */

uint64_t early_count_bytes(const struct early *early); /* since the start */
void early_close(struct early *early);                 /* as if the process had ended */

#endif
