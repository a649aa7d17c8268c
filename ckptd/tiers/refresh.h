/* refresh.h - waiting for looks at a tier: the store's directory (rescan.c), the far tier or a peer
 * (tiers/remote_store.c). One look at a tier at a time; who comes meanwhile waits for the next. On
 * the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_REFRESH_H
#define HOLDFAST_CKPTD_TIERS_REFRESH_H

#include "ckptd/core/loop.h"
#include "ckptd/core/tier.h"
#include "proto/base/report.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

/* Embedded in what goes on behind a look; lies still until go_on, which is called once. `fault`:
 * why the look came to nothing; code 0: the catalog knows what was there. */
struct refresh_waiter {
    struct refresh_waiter *next;
    struct refreshes *looks;
    struct service *service;
    enum tier_index tier;
    struct fault fault;
    struct timer timer;
    void (*go_on)(struct refresh_waiter *waiter);
};

/* All looks at one tier. */
struct refreshes {
    struct service *service;
    enum tier_index tier;
    /* Begins one: calls refresh_begun, and refresh_ended or refresh_repeat when it is over; or
     * refresh_give_up where it cannot begin. */
    void (*start)(struct refreshes *looks);
    bool is_under_way;
    struct refresh_waiter *present, *coming; /* who waits for the look under way, for the next */
};

void refresh_init(struct refreshes *out, struct service *service, enum tier_index tier,
                  void (*start)(struct refreshes *looks));
/* Calls go_on when a look that begins from now on has ended, or after `ms` with ERR_TIMEOUT. */
void refresh_wait(struct refreshes *looks, struct refresh_waiter *waiter, int64_t ms);
/* The same of the store's directory (rescan.c), for at most REFRESH_STORE_MS. */
#define REFRESH_STORE_MS 1000
void refresh_store(struct service *service, struct refresh_waiter *waiter);
/* Whoever waits now waits for the look that begins. */
void refresh_begun(struct refreshes *looks);
/* It has ended; the next one begins where somebody came meanwhile. */
void refresh_ended(struct refreshes *looks, const struct fault *fault);
/* It is worth nothing: who waited for it waits for another, which begins. */
void refresh_repeat(struct refreshes *looks);
/* No look can begin, for this thread's last error: who waits hears of it. */
void refresh_give_up(struct refreshes *looks, int error);
/* ckptd ends: whoever waits hears of it. */
void refresh_end(struct refreshes *looks);

#endif
