/* transfer.c - the states of a copy of a checkpoint to another tier.
 *
 *                 transfer_begin                      TAKEN: OVER
 *       (free) ───────────────────► CLAIMING ─────────────────────────► (free)
 *          ▲                         │ DURABLE
 *          │     source damaged:     ▼            each shard durable
 *          ├───────── OVER ─────── COPYING ◄──┐
 *          │                         │ └──────┘
 *          │                         ▼ the last one
 *          │                       NAMING
 *          │                         ▼ names durable
 *          ├──── DURABLE: HELD ─── PUBLISHING ◄───── ABSENT ─────┐
 *          ├──── TAKEN: OVER ──────  │                           │
 *          │                         ▼ UNKNOWN                   │
 *          ├──── DURABLE: HELD ─── SETTLING ─────────────────────┘
 *          └──── TAKEN: OVER ──────  │ ▲
 *                                    └─┘ UNKNOWN: rest, then read again
 *   PUBLISHING, LOST: rest, then CLAIMING
 *
 * After an error of the tier the machine rests in that state and repeats the same step; pauses
 * double.
 *
 * Invariants (cited in the code, checked by tests/unit/ckptd_sim.c):
 *   transfer.T1  The manifest is published only when every shard and every name is durable in the
 *       tier.
 *   transfer.T2  HELD comes only after the publication was reported durable or its own nonce was
 *       read.
 *   transfer.T3  Once a manifest may have been sent, the transfer ends only as HELD, or because
 *       another's was read in its place. Until then no file of it is removed: the effect may be
 *       late.
 *   transfer.T4  No file is copied before the attempt's number is this store's in the tier, so two
 *       stores that took one number independently never mix their files.
 *   transfer.T5  A number or manifest that another store has taken ends the transfer: it is never
 *       overwritten.
 *   transfer.T6  No error of the tier ends a transfer, and no pause is longer than
 *       2^TRANSFER_DOUBLINGS times the first.
 *   transfer.T7  If the tier reports that shards are gone which it had (LOST), all of them are
 *       verified or sent again, after a new claim, before the manifest is sent again.
 *
 * After a crash. The machine is memory only. The next start sees in the catalog that the tier lacks
 * the checkpoint and begins again. It finds existing numbers, marks and shards by name and verifies
 * them, so the machine may stop at any arrow. */
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"

#include <string.h>

static const struct transfer_action nothing = {.kind = TRANSFER_NOTHING};

static struct transfer_action act(enum transfer_kind kind)
{
    return (struct transfer_action){.kind = kind};
}

static bool is_in(const struct transfer *transfer, enum transfer_state state)
{
    return transfer->state == state && !transfer->is_resting;
}

/* The action that is due in this state. */
static struct transfer_action step(const struct transfer *transfer)
{
    switch (transfer->state) {
    case TRANSFER_CLAIMING:
        return act(TRANSFER_CLAIM);
    case TRANSFER_COPYING:
        return (struct transfer_action){.kind = TRANSFER_COPY, .shard = transfer->shard};
    case TRANSFER_NAMING:
        CHECK(transfer->shard == transfer->shards); /* transfer.T1 */
        return act(TRANSFER_NAMES);
    case TRANSFER_PUBLISHING:
        CHECK(transfer->shard == transfer->shards); /* transfer.T1 */
        return act(TRANSFER_PUBLISH);
    case TRANSFER_SETTLING:
        return act(TRANSFER_SETTLE);
    default:
        return nothing;
    }
}

static struct transfer_action advance_to(struct transfer *transfer, enum transfer_state state)
{
    transfer->state = state;
    transfer->failures = 0;
    return step(transfer);
}

/* transfer.T6. */
static struct transfer_action rest(struct transfer *transfer, enum transfer_state state)
{
    uint32_t doublings =
        transfer->failures < TRANSFER_DOUBLINGS ? transfer->failures : TRANSFER_DOUBLINGS;
    transfer->state = state;
    transfer->failures++;
    transfer->is_resting = true;
    return (struct transfer_action){.kind = TRANSFER_REST, .ms = transfer->retry_ms << doublings};
}

/* transfer.T7. */
static struct transfer_action begin_again(struct transfer *transfer)
{
    transfer->shard = 0;
    return rest(transfer, TRANSFER_CLAIMING);
}

static struct transfer_action end(struct transfer *transfer, enum transfer_kind kind, int error)
{
    transfer->state = TRANSFER_FREE;
    return (struct transfer_action){.kind = kind, .error = error};
}

void transfer_forget(struct transfer *transfer)
{
    memset(transfer, 0, sizeof *transfer);
}

struct transfer_action transfer_begin(struct transfer *transfer, uint32_t shards, int64_t retry_ms)
{
    if (transfer->state != TRANSFER_FREE)
        return nothing;
    CHECK(shards > 0 && retry_ms > 0);
    *transfer = (struct transfer){.shards = shards, .retry_ms = retry_ms};
    return advance_to(transfer, TRANSFER_CLAIMING);
}

struct transfer_action transfer_claimed(struct transfer *transfer, enum publication outcome)
{
    if (!is_in(transfer, TRANSFER_CLAIMING))
        return nothing;
    if (outcome == PUBLICATION_TAKEN) /* transfer.T5 */
        return end(transfer, TRANSFER_OVER, ERR_EXISTS);
    if (outcome != PUBLICATION_DURABLE) /* transfer.T4 */
        return rest(transfer, TRANSFER_CLAIMING);
    return advance_to(transfer, TRANSFER_COPYING);
}

struct transfer_action transfer_copied(struct transfer *transfer, uint32_t shard, int error,
                                       bool is_of_source)
{
    if (!is_in(transfer, TRANSFER_COPYING) || shard != transfer->shard)
        return nothing;
    if (error != 0 && is_of_source)
        return end(transfer, TRANSFER_OVER, error);
    if (error != 0)
        return rest(transfer, TRANSFER_COPYING);
    transfer->shard++;
    return advance_to(transfer,
                      transfer->shard < transfer->shards ? TRANSFER_COPYING : TRANSFER_NAMING);
}

struct transfer_action transfer_named(struct transfer *transfer, int error)
{
    if (!is_in(transfer, TRANSFER_NAMING))
        return nothing;
    return error != 0 ? rest(transfer, TRANSFER_NAMING) : advance_to(transfer, TRANSFER_PUBLISHING);
}

struct transfer_action transfer_published(struct transfer *transfer, enum publication outcome)
{
    if (!is_in(transfer, TRANSFER_PUBLISHING))
        return nothing;
    if (outcome == PUBLICATION_DURABLE) /* transfer.T2 */
        return end(transfer, TRANSFER_HELD, 0);
    if (outcome == PUBLICATION_TAKEN) /* transfer.T5 */
        return end(transfer, TRANSFER_OVER, ERR_EXISTS);
    if (outcome == PUBLICATION_LOST) /* transfer.T7 */
        return begin_again(transfer);
    /* transfer.T3: only a refusal allows to send it again. */
    return rest(transfer, outcome == PUBLICATION_ABSENT ? TRANSFER_PUBLISHING : TRANSFER_SETTLING);
}

struct transfer_action transfer_settled(struct transfer *transfer, enum publication outcome)
{
    if (!is_in(transfer, TRANSFER_SETTLING))
        return nothing;
    if (outcome == PUBLICATION_DURABLE) /* transfer.T2 */
        return end(transfer, TRANSFER_HELD, 0);
    if (outcome == PUBLICATION_TAKEN) /* transfer.T5 */
        return end(transfer, TRANSFER_OVER, ERR_EXISTS);
    if (outcome == PUBLICATION_UNKNOWN) /* transfer.T3 */
        return rest(transfer, TRANSFER_SETTLING);
    return advance_to(transfer, TRANSFER_PUBLISHING); /* with the same nonce: at most one effect */
}

struct transfer_action transfer_rested(struct transfer *transfer)
{
    if (!transfer->is_resting)
        return nothing;
    transfer->is_resting = false;
    return step(transfer);
}
