/* first.c - calls that tell of checkpoints look first whether some came or went without ckptd. The
 * looks at all tiers are under way at the same time. Where there is no memory to wait, or while
 * ckptd ends, the call is handled at once. */
#include "ckptd/first.h"
#include "ckptd/config.h"
#include "ckptd/drain/far.h"
#include "ckptd/look.h"
#include "ckptd/rescan.h"
#include "ckptd/service.h"

#include <stdlib.h>

#define FAR_WAIT_MS 5000 /* for a far tier that does not answer */

struct first {
    struct look_waiter waiters[NUM_TIERS];
    struct service *service;
    uint32_t num_waiting;
    struct rpc_call *call;
    const ProtobufCMessage *request;
    void (*handle)(struct service *service, struct rpc_call *call, const ProtobufCMessage *request);
};

static void handle_now(struct look_waiter *waiter)
{
    struct look_waiter *all = waiter - waiter->tier;
    struct first *first = CONTAINER_OF(all, struct first, waiters);
    if (--first->num_waiting > 0)
        return;
    first->handle(first->service, first->call, first->request);
    free(first);
}

void look_first(struct service *service, struct rpc_call *call, const ProtobufCMessage *request,
                void (*handle)(struct service *service, struct rpc_call *call,
                               const ProtobufCMessage *request))
{
    struct first *first = service->draining ? NULL : calloc(1, sizeof *first);
    bool is_old[NUM_TIERS] = {[TIER_LOCAL] = true};
    if (!first) {
        handle(service, call, request);
        return;
    }
    first->service = service;
    first->call = call;
    first->request = request;
    first->handle = handle;
    first->num_waiting = 1;
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++) {
        is_old[tier] = !far_is_fresh(service, (enum tier_index)tier, service->config->tier_look_ms);
        first->num_waiting += is_old[tier];
    }
    uint32_t count = first->num_waiting;
    for (unsigned tier = 0; tier < NUM_TIERS && count > 0; tier++) {
        if (!is_old[tier])
            continue;
        count--; /* the last may free it */
        first->waiters[tier].go_on = handle_now;
        if (tier == TIER_LOCAL)
            rescan_wait(service, &first->waiters[tier]);
        else
            far_look(service, (enum tier_index)tier, &first->waiters[tier], FAR_WAIT_MS);
    }
}
