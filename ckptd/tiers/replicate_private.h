/* replicate_private.h - a replication, as replicate.c, which says what goes next, and perform.c
 * share it. On the service thread, but for what a job works on. */
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
    enum tier_index from; /* of the checkpoint under way */
    /* replicate.c's: the one of that run is over, another may be next; another replication may have
     * more.
     */
    void (*ended)(struct replication *replication, struct run *run);
    void (*check_queues)(struct service *service);
    struct refresh_waiter first_refresh;
    struct timer retry_timer;
    bool is_refreshed;         /* at the far tier, since the start */
    uint32_t refreshes_failed; /* in a row, of a peer */
    /* The checkpoint under way. */
    struct transfer machine;
    struct copy_queue queue;
    struct shard_copy copy;
    struct precommit_left left_early; /* what of it went before its commit */
    struct checkpoint *checkpoint;    /* leased; NULL: none */
    struct manifest *manifest;
    struct hold claim;
    enum publication outcome;
    struct fault fault; /* of the step under way */
    uint64_t text_hash; /* of the manifest that was sent */
    struct job job;
    struct timer rest;
    int64_t begun_ms;
    uint64_t bytes_before;       /* copy.bytes_sent when it began */
    bool is_held;                /* how it ended */
    bool is_mending;             /* the copy there is damaged; */
    bool is_of_part;             /* it has only some shards: else it becomes whole */
    bool is_volatile;            /* a peer has put it into its memory */
    struct ledger_promise room;  /* on the local disk, for one that was loaded from elsewhere */
    struct precommit_copy early; /* of a peer: a save that is not committed */
    /* Since the start. */
    uint64_t checkpoints, mended, errors, given_up;
    uint64_t left, left_bytes; /* as of the last look */
    double rate;               /* bytes per second of the last checkpoint */
    struct histogram seconds;
    char newest_error[sizeof((struct checkpoint *)0)->damage];
};

/* Does what the machine has decided. */
void perform_action(struct replication *replication, struct transfer_action action);
void perform_arrived(struct shard_copy *copy); /* of a shard */
void perform_rested(struct timer *timer);
/* Has it done by the crew. */
void perform_work(struct replication *replication, void (*work)(struct job *),
                  void (*done)(struct event *));
/* The checkpoint under way is over, `is_held` there or not; the next one comes. */
void perform_close(struct replication *replication, bool is_held);
/* The checkpoint under way never goes into that tier, until a restart. */
void perform_give_up(struct replication *replication, const char *why);

/* Comes what is loaded from another tier into this one? */
static inline bool replicate_is_keeping(const struct replication *replication)
{
    return replication->tier == TIER_LOCAL && !replication->is_mending;
}

/* Does a part become a whole copy? */
static inline bool replicate_is_completing(const struct replication *replication)
{
    return replication->is_of_part && !replication->is_mending;
}

static inline bool replicate_is_loss(const struct fault *fault)
{
    return fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND;
}

#endif
