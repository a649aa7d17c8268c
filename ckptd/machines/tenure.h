/* tenure.h - decides which of several ckptds that share only a remote tier trains a run. Two pure
 * decisions; remote_lease.c reads and writes the lease, open.c watches it.
 *
 * The ckptd that trains a run renews its lease in the remote tier: the numbered object (storage.h)
 * "<run>/lease". Each renewal has the next number, so of two simultaneous writers one finds it
 * taken.
 *
 *     start:    none, ended, ours, run out, taken over ──► go on
 *               a stranger's ──► watched ──► it changes: refused
 *     renewal:  none or ours ──► published, or, when the ranks are gone, ended
 *               a stranger's ──► this attempt is fenced
 *
 * tenure.T1  No two clocks are compared: a lease is fresh if its number changes while a start
 *     watches it, for TENURE_INTERVALS of the lease's own intervals, by the watcher's clock.
 * tenure.T2  Only a start with a takeover request ignores a stranger's fresh lease.
 * tenure.T3  An unreadable lease stops no training: the start goes on, and a renewal is tried
 *     again.
 * tenure.T4  A start ignores only the lease that it saw. If the lease has changed since, its holder
 *     is alive: the start yields, unless a takeover was requested.
 * tenure.T5  An attempt never takes a lease again that it has lost.
 * tenure.T6  Only the attempt that a lease names ends it.
 * tenure.T7  Checkpoints that a fenced attempt had committed still go to the remote tier: they are
 *     whole, and older than all those of its successor. ckptd tells no client that they are durable
 *     there. */
#ifndef HOLDFAST_CKPTD_MACHINES_TENURE_H
#define HOLDFAST_CKPTD_MACHINES_TENURE_H

#include <stdbool.h>
#include <stdint.h>

#define TENURE_INTERVALS 3 /* without a renewal, after which a lease has expired */

struct tenure_seen {
    uint64_t number; /* 0: there is no lease */
    uint64_t attempt;
    bool is_ours; /* of this store, or of a node of its cluster */
    bool is_ended;
};

struct tenure_start {
    struct tenure_seen seen;
    bool is_unknown;  /* it could not be read */
    bool is_forced;   /* a takeover was requested */
    uint64_t watched; /* the number at the first query; 0: this is the first */
    int64_t watched_ms, every_ms;
};

enum tenure_answer { TENURE_GO, TENURE_WATCH, TENURE_REFUSED };

static inline enum tenure_answer tenure_decide(const struct tenure_start *start)
{
    const struct tenure_seen *seen = &start->seen;
    if (start->is_unknown || seen->number == 0 || seen->is_ours || seen->is_ended)
        return TENURE_GO; /* tenure.T3 */
    if (start->is_forced)
        return TENURE_GO; /* tenure.T2 */
    if (start->watched != 0 && seen->number != start->watched)
        return TENURE_REFUSED; /* tenure.T1 */
    return start->watched_ms >= TENURE_INTERVALS * start->every_ms ? TENURE_GO : TENURE_WATCH;
}

struct tenure_renewal {
    struct tenure_seen seen;
    uint64_t attempt;
    uint64_t passed;  /* the number of the lease that its start ignored */
    bool is_forced;   /* and every other, until it has published its own */
    bool is_training; /* else its ranks are gone */
};

enum tenure_step { TENURE_NOTHING, TENURE_PUBLISH, TENURE_END, TENURE_LOST };

static inline enum tenure_step tenure_renew(const struct tenure_renewal *renewal)
{
    const struct tenure_seen *seen = &renewal->seen;
    bool is_own = seen->number != 0 && seen->is_ours && seen->attempt == renewal->attempt;
    if (!renewal->is_training)
        return is_own && !seen->is_ended ? TENURE_END : TENURE_NOTHING; /* tenure.T6 */
    if (seen->number == 0)
        return TENURE_PUBLISH;
    if (seen->is_ours) /* a newer attempt of the cluster fences in another way */
        return seen->attempt <= renewal->attempt ? TENURE_PUBLISH : TENURE_NOTHING;
    if (renewal->is_forced || seen->number <= renewal->passed)
        return TENURE_PUBLISH;
    if (seen->is_ended && seen->attempt < renewal->attempt)
        return TENURE_PUBLISH;
    return TENURE_LOST; /* tenure.T4 */
}

#endif
