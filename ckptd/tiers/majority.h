/* majority.h - asks most of the nodes before a run is started, and publishes its number there; see
 * majority.c. */
#ifndef HOLDFAST_CKPTD_TIERS_MAJORITY_H
#define HOLDFAST_CKPTD_TIERS_MAJORITY_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"

#include <stdbool.h>
#include <stdint.h>

struct run;
struct service;
struct quorum;
struct sets;

/* True if nodes.attempts is "majority" and other nodes exist, now or in the run's last attempt (run
 * NULL: it is new). */
bool majority_is_needed(const struct service *service, const struct run *run);
/* The node sets of the run's next attempt, and their quorum. ERR_MEMORY, ERR_BUSY. */
int majority_next(struct sets *out_sets, struct quorum *out, const struct service *service,
                  const struct run *run);
/* Waits for a refresh of most of the nodes. It must not move until go_on, which is called once.
 * `fault`: why there is no majority; code 0: the catalog has their checkpoints and attempts. */
struct majority_waiter {
    struct fault fault;
    uint32_t num_answered; /* nodes that have answered, including this one */
    void (*go_on)(struct majority_waiter *waiter);
};
/* On the service thread; takes at most `ms`. */
void majority_refresh_peers(struct service *service, const char *run,
                            struct majority_waiter *waiter, int64_t ms);
/* Publishes an attempt's number at enough peers to form the quorum with this node. `fault`:
 * ERR_EXISTS: another start has taken it. ERR_UNAVAILABLE: too few took it; the number is neither
 * valid nor free. ERR_MEMORY. On the service thread, as the functions below. */
void majority_publish(struct service *service, const struct quorum *quorum, const char *key,
                      const char *text, const char *nonce, struct majority_waiter *waiter);
/* Publishes at the peers that answer that the number is held (sets.h). Does not wait. */
void majority_publish_held(struct service *service, const char *key, const char *nonce);
void majority_close(struct service *service); /* call when none of its jobs is in progress */

#endif
