/* transfer.h - decides how a checkpoint is copied to another tier. A pure state machine, one per
 * transfer under way: events go in, actions come out. It does no I/O, reads no clock, starts no
 * thread and allocates nothing, so the daemon and the simulator run the same code. The states and
 * the invariants are drawn at the head of transfer.c.
 *
 *     transfer_begin(&transfer, &options) ──► an action ──► perform it, tell how it went ──► ...
 *
 * Every function returns the one action that is due; TRANSFER_NOTHING when the call does not fit
 * the state: it came late, or twice. */
#ifndef HOLDFAST_CKPTD_MACHINES_TRANSFER_H
#define HOLDFAST_CKPTD_MACHINES_TRANSFER_H

#include "ckptd/machines/tier_index.h"

#include <stdbool.h>
#include <stdint.h>

#define TRANSFER_DOUBLINGS 6u /* of the pause, after successive errors */

enum transfer_kind {
    TRANSFER_NOTHING,
    TRANSFER_CLAIM, /* take the attempt's number there, and mark the directory; transfer_claimed */
    TRANSFER_COPY,  /* make shard `shard` durable there; then transfer_copied */
    TRANSFER_NAMES, /* make the names of its files durable; then transfer_named */
    TRANSFER_PUBLISH, /* write the manifest; then transfer_published */
    TRANSFER_SETTLE,  /* read back whose manifest is there; then transfer_settled */
    TRANSFER_REST,    /* call transfer_rested after `ms` */
    TRANSFER_HELD,    /* it is committed there: answer all clients; the transfer is over */
    TRANSFER_OVER     /* it ended without that, with `error`; the next start may try again */
};

struct transfer_action {
    enum transfer_kind kind;
    uint32_t shard;
    int64_t ms;
    int error;
};

enum transfer_state {
    TRANSFER_FREE,
    TRANSFER_CLAIMING,
    TRANSFER_COPYING,
    TRANSFER_NAMING,
    TRANSFER_PUBLISHING,
    TRANSFER_SETTLING
};

struct transfer {
    enum transfer_state state;
    bool is_resting; /* in that state */
    uint32_t shards, shard;
    uint32_t failures; /* in succession */
    int64_t retry_ms;  /* the first pause */
};

/* FREE, or NOTHING. `retry_ms`: the first pause after an error. */
struct transfer_action transfer_begin(struct transfer *transfer, uint32_t shards, int64_t retry_ms);
/* ABSENT and UNKNOWN are tried again. */
struct transfer_action transfer_claimed(struct transfer *transfer, enum publication outcome);
/* 0; an error of the tier; or one of the source that no retry resolves. */
struct transfer_action transfer_copied(struct transfer *transfer, uint32_t shard, int error,
                                       bool is_of_source);
struct transfer_action transfer_named(struct transfer *transfer, int error);
struct transfer_action transfer_published(struct transfer *transfer, enum publication outcome);
struct transfer_action transfer_settled(struct transfer *transfer, enum publication outcome);
struct transfer_action transfer_rested(struct transfer *transfer);
/* No action of it is in progress, and none will be: as after a kill. */
void transfer_forget(struct transfer *transfer);

#endif
