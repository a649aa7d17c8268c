/* remote_store.h - what the far tier and the peers hold, read into the catalog; see remote_store.c.
 * On the service thread. */
#ifndef HOLDFAST_CKPTD_TIERS_REMOTE_STORE_H
#define HOLDFAST_CKPTD_TIERS_REMOTE_STORE_H

#include "ckptd/core/tier.h"
#include "ckptd/tiers/refresh.h"

#include <stdbool.h>
#include <stdint.h>

struct service;

int remote_store_open(struct service *service);   /* behind scan_store: the first look begins */
void remote_store_end(struct service *service);   /* ckptd ends: who waits hears of it */
void remote_store_close(struct service *service); /* behind tier_end */
/* Has a look come to its end within the last max_age_ms? Without such a tier: always. */
bool remote_store_is_fresh(const struct service *service, enum tier_index tier, int64_t max_age_ms);
/* A look that begins from now on, at most `ms`; then ERR_TIMEOUT. One at a time: who comes
 * meanwhile waits for the next. */
void remote_store_look(struct service *service, enum tier_index tier, struct refresh_waiter *waiter,
                       int64_t ms);
/* ckptd has removed something in the far tier: a look that is under way is made again. */
void remote_store_changed(struct service *service);

#endif
