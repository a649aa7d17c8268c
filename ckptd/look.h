/* look.h - waiting for looks at a tier: the store's directory (rescan.c), the far tier or a peer
 * (drain/far.c). One look at a tier at a time; who comes meanwhile waits for the next. On the
 * service thread. */
#ifndef HOLDFAST_CKPTD_LOOK_H
#define HOLDFAST_CKPTD_LOOK_H

#include "ckptd/loop.h"
#include "ckptd/tier.h"
#include "proto/report.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

/* Embedded in what goes on behind a look; lies still until go_on, which is called once. `fault`:
 * why the look came to nothing; code 0: the catalog knows what was there. */
struct look_waiter {
    struct look_waiter *next;
    struct looks *looks;
    struct service *service;
    enum tier_index tier;
    struct fault fault;
    struct timer timer;
    void (*go_on)(struct look_waiter *waiter);
};

/* All looks at one tier. */
struct looks {
    struct service *service;
    enum tier_index tier;
    /* Begins one: calls looks_begun, and looks_ended or looks_repeat when it is over; or
     * looks_give_up where it cannot begin. */
    void (*start)(struct looks *looks);
    bool is_under_way;
    struct look_waiter *present, *coming; /* who waits for the look under way, for the next */
};

void looks_init(struct looks *out, struct service *service, enum tier_index tier,
                void (*start)(struct looks *looks));
/* Calls go_on when a look that begins from now on has ended, or after `ms` with ERR_TIMEOUT. */
void look_wait(struct looks *looks, struct look_waiter *waiter, int64_t ms);
/* The same of the store's directory (rescan.c), for at most LOOK_STORE_MS. */
#define LOOK_STORE_MS 1000
void look_store(struct service *service, struct look_waiter *waiter);
/* Whoever waits now waits for the look that begins. */
void looks_begun(struct looks *looks);
/* It has ended; the next one begins where somebody came meanwhile. */
void looks_ended(struct looks *looks, const struct fault *fault);
/* It is worth nothing: who waited for it waits for another, which begins. */
void looks_repeat(struct looks *looks);
/* No look can begin, for this thread's last error: who waits hears of it. */
void looks_give_up(struct looks *looks, int error);
/* ckptd ends: whoever waits hears of it. */
void looks_end(struct looks *looks);

#endif
