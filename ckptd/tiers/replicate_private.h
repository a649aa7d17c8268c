/* replicate_private.h - a replication, shared by replicate.c, which chooses the next checkpoint,
 * and perform.c, which copies it. On the service thread, except for the fields that a job uses. */
#ifndef HOLDFAST_CKPTD_TIERS_REPLICATE_PRIVATE_H
#define HOLDFAST_CKPTD_TIERS_REPLICATE_PRIVATE_H

#include "ckptd/core/checkpoint.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "ckptd/machines/transfer.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/tiers/hold.h"
#include "ckptd/tiers/precommit_copy.h"
#include "ckptd/tiers/shard_copy.h"
#include "proto/base/histogram.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

struct replication {
    struct service *service;
    enum tier_index tier;
    enum tier_index from; /* source of the current checkpoint */
    /* Functions of replicate.c. The current copy of that run is over; check_queues starts the next
     * ones, of other tiers as well. */
    void (*ended)(struct replication *replication, struct run *run);
    void (*check_queues)(struct service *service);
    struct refresh_waiter first_refresh;
    struct timer retry_timer;
    bool is_refreshed;         /* the tier has been read since the start */
    uint32_t refreshes_failed; /* of a peer, in succession */
    /* The current checkpoint. */
    struct transfer machine;
    struct copy_queue queue;
    struct shard_copy copy;
    struct precommit_left left_early; /* shards that were copied before its commit */
    struct checkpoint *checkpoint;    /* leased; NULL: none */
    struct manifest *manifest;
    struct hold claim;
    enum publication outcome;
    struct fault fault; /* of the current action */
    uint64_t text_hash; /* of the manifest that was published */
    struct job job;
    struct timer rest;
    int64_t begun_ms;
    uint64_t bytes_before;       /* copy.bytes_sent at the beginning */
    bool is_held;                /* result: the tier holds it */
    bool is_mending;             /* the copy there is damaged; */
    bool is_of_part;             /* it has only some shards: if not mended, it is completed */
    bool is_volatile;            /* a peer keeps it in memory */
    struct ledger_promise room;  /* on the local disk, for a copy from another tier */
    struct precommit_copy early; /* copies an uncommitted save to or from peers */
    /* Since the start. */
    uint64_t checkpoints, mended, errors, given_up;
    uint64_t left, left_bytes; /* as of the last check */
    double rate;               /* bytes per second of the last checkpoint */
    struct histogram seconds;
    char newest_error[sizeof((struct checkpoint *)0)->damage];
};

/* Performs the machine's decision. */
void perform_action(struct replication *replication, struct transfer_action action);
void perform_arrived(struct shard_copy *copy); /* a shard is done */
void perform_rested(struct timer *timer);
/* Runs the work on the crew, then `done`. */
void perform_work(struct replication *replication, void (*work)(struct job *),
                  void (*done)(struct event *));
/* The current checkpoint is over; `is_held`: the tier holds it. Then the next one begins. */
void perform_close(struct replication *replication, bool is_held);
/* Never copies the current checkpoint to that tier again, until a restart. */
void perform_give_up(struct replication *replication, const char *why);

/* Is a checkpoint copied from another tier to the local one? */
static inline bool replicate_is_keeping(const struct replication *replication)
{
    return replication->tier == TIER_LOCAL && !replication->is_mending;
}

/* Is a part completed to a whole copy? */
static inline bool replicate_is_completing(const struct replication *replication)
{
    return replication->is_of_part && !replication->is_mending;
}

static inline bool replicate_is_loss(const struct fault *fault)
{
    return fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND;
}

#endif
