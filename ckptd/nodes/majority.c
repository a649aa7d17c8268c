/* majority.c - an attempt's number is held by most of the nodes before a trainer hears of it.
 *
 *   start of a run ──► looks at all peers at once; go on when most of the nodes, this one included,
 *   have been looked at ──► the number behind the highest that any of them holds ──► published at
 *   peers, exclusively, until most of the nodes hold it ──► published here ──► answered
 *
 * Two majorities have a node in common (R5 of placement.c). So a node that comes back with old
 * state meets, before it starts a run, one that knows what was started without it: it neither gives
 * a number away twice, nor begins behind an older checkpoint than the newest start could know. It
 * is a write quorum for one number, and no consensus: a number that too few took is spent.
 *
 * Where there is no majority the far tier decides, which takes each number once. Without a far tier
 * an operator does (run/force.c). */
#include "ckptd/nodes/majority.h"
#include "ckptd/config.h"
#include "ckptd/drain/far.h"
#include "ckptd/nodes/placement.h"
#include "ckptd/service.h"
#include "proto/report.h"

#include <stdlib.h>
#include <string.h>

/* A look at all peers. It lives until each has answered or run out of time; who waits does not. */
struct asking {
    struct service *service;
    struct majority_waiter *waiter; /* NULL: it was told */
    struct look_waiter looks[MEMBERS_PEERS_MAX];
    uint32_t num_looked; /* nodes that were looked at, this one included */
    uint32_t num_waiting;
};

bool majority_is_needed(const struct service *service)
{
    return service->config->members.count > 0 &&
           strcmp(service->config->nodes_attempts, "majority") == 0;
}

static int report_too_few(const struct service *service, uint32_t holders)
{
    return report_error(
        ERR_UNAVAILABLE,
        "start the other nodes; or, when they are lost for good: ckpt-cli attempt RUN --force",
        "%u of %u nodes answered, and a start needs more than half of them", holders,
        service->config->members.count + 1);
}

static void tell(struct asking *asking, const struct fault *fault)
{
    struct majority_waiter *waiter = asking->waiter;
    asking->waiter = NULL;
    if (!waiter)
        return;
    waiter->fault = *fault;
    waiter->num_looked = asking->num_looked;
    waiter->go_on(waiter);
}

static void looked(struct look_waiter *look)
{
    struct look_waiter *all = look - (look->tier - TIER_PEER);
    struct asking *asking = CONTAINER_OF(all, struct asking, looks);
    uint32_t nodes = asking->service->config->members.count + 1;
    struct fault fault = {0};
    asking->num_looked += look->fault.code == 0;
    asking->num_waiting--;
    if (placement_is_majority(asking->num_looked, nodes)) {
        tell(asking, &fault);
    } else if (asking->num_waiting == 0) {
        fault_take(&fault, report_too_few(asking->service, asking->num_looked));
        tell(asking, &fault);
    }
    if (asking->num_waiting == 0)
        free(asking);
}

void majority_look(struct service *service, struct majority_waiter *waiter, int64_t ms)
{
    struct asking *asking = calloc(1, sizeof *asking);
    uint32_t count = service->config->members.count;
    if (!asking) {
        fault_take(&waiter->fault, report_error(ERR_MEMORY, NULL, "no memory to ask the nodes"));
        waiter->go_on(waiter);
        return;
    }
    asking->service = service;
    asking->waiter = waiter;
    asking->num_looked = 1;
    asking->num_waiting = count;
    for (uint32_t i = 0; i < count; i++) { /* the last one may free it */
        asking->looks[i].go_on = looked;
        far_look(service, (enum tier_index)(TIER_PEER + i), &asking->looks[i], ms);
    }
}

int majority_publish(const struct service *service, const char *key, const char *text,
                     const char *nonce)
{
    struct quorum quorum = quorum_begin(service->config->members.count + 1);
    enum quorum_state state = QUORUM_ASKS;
    for (uint32_t i = 0; state == QUORUM_ASKS; i++)
        state = quorum_heard(&quorum, tier_publish(service->tiers[TIER_PEER + i].storage, key, text,
                                                   strlen(text), nonce));
    if (state == QUORUM_TAKEN)
        return ERR_EXISTS;
    return state == QUORUM_HELD ? 0 : report_too_few(service, quorum.holders);
}
