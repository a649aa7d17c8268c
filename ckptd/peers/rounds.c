/* rounds.c - polls the peers every nodes.look_ms: which are there, which checkpoints they hold, and
 * their status.
 *
 * So a client hears if it waits for a level at a node that sends no copies. A peer that has not
 * answered for nodes.lost_ms is lost (tier.is_lost, set by refresh/refresh.c): its copies count no
 * more, and ckptd replicates its checkpoints elsewhere. When it answers they count again. Handles
 * of silent clients expire here as well. */
#include "ckptd/peers/rounds.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/peers/serve.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/report.h"

#include <stdlib.h>

struct rounds {
    struct service *service;
    struct timer timer;
    struct refresh_waiter waiters[MEMBERS_PEERS_MAX];
    bool is_polling[MEMBERS_PEERS_MAX];
};

static void peer_refreshed(struct refresh_waiter *waiter)
{
    struct service *service = waiter->service;
    if (service->is_closing || !service->rounds)
        return;
    service->rounds->is_polling[waiter->tier - TIER_PEER] = false;
    replicate_check_queues_soon(service);
}

static void poll_round(struct timer *timer)
{
    struct rounds *rounds = CONTAINER_OF(timer, struct rounds, timer);
    struct service *service = rounds->service;
    loop_timer(service->loop, timer, service->config->nodes_look_ms);
    serve_sweep(service);
    for (uint32_t i = 0; i < service->config->members.count; i++) {
        if (!service->tiers[TIER_PEER + i].offline[0]) /* its next refresh notices that it is
                                                        * back */
            peer_status_ask(service, i);
        if (rounds->is_polling[i])
            continue;
        rounds->is_polling[i] = true;
        rounds->waiters[i] = (struct refresh_waiter){.go_on = peer_refreshed};
        refresh_tier(service, (enum tier_index)(TIER_PEER + i), &rounds->waiters[i],
                     service->config->nodes_wait_ms);
    }
}

int rounds_open(struct service *service)
{
    if (service->config->members.count == 0)
        return 0;
    service->rounds = calloc(1, sizeof *service->rounds);
    if (!service->rounds)
        return report_error(ERR_MEMORY, NULL, "no memory to look at the nodes");
    service->rounds->service = service;
    service->rounds->timer.run = poll_round;
    loop_timer(service->loop, &service->rounds->timer, service->config->nodes_look_ms);
    return 0;
}

void rounds_close(struct service *service)
{
    free(service->rounds);
    service->rounds = NULL;
}
