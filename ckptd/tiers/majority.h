/* majority.h - what must be known to, or held by, most of the nodes before a run is started; see
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

/* nodes.attempts, and there are other nodes, now or in the run's last attempt (run NULL: it is
 * new).
 */
bool majority_is_needed(const struct service *service, const struct run *run);
/* The sets of the run's next attempt, and their quorum. ERR_MEMORY, ERR_BUSY. */
int majority_next(struct sets *out_sets, struct quorum *out, const struct service *service,
                  const struct run *run);
/* Who waits for a look at most of the nodes; lies still until go_on, which is called once. `fault`:
 * why there is no majority; code 0: the catalog knows what they held. */
struct majority_waiter {
    struct fault fault;
    uint32_t num_answered; /* nodes that have answered, this one included */
    void (*go_on)(struct majority_waiter *waiter);
};
/* On the service thread; at most `ms`. */
void majority_refresh_peers(struct service *service, const char *run,
                            struct majority_waiter *waiter, int64_t ms);
/* Publishes an attempt's number at so many peers that with this node they are the quorum. `fault`:
 * ERR_EXISTS: another has taken it. ERR_UNAVAILABLE: too few took it; nobody may count on the
 * number, nor take it again. ERR_MEMORY. On the service thread, as what follows. */
void majority_publish(struct service *service, const struct quorum *quorum, const char *key,
                      const char *text, const char *nonce, struct majority_waiter *waiter);
/* Tells the peers that it is held (sets.h), as far as they answer; nobody waits. */
void majority_publish_held(struct service *service, const char *key, const char *nonce);
void majority_close(struct service *service); /* no job is under way any more */

#endif
