/* refresh_gate.c - calls that tell of checkpoints look first whether some came or went without
 * ckptd. The looks at all tiers are under way at the same time. Where there is no memory to wait,
 * or while ckptd ends, the call is handled at once. */
#include "ckptd/tiers/refresh_gate.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/refresh.h"
#include "ckptd/tiers/remote_store.h"

#include <stdlib.h>

#define FAR_WAIT_MS 5000 /* for a far tier that does not answer */

struct first {
    struct service *service;
    uint32_t num_waiting;
    struct rpc_call *call;
    const ProtobufCMessage *request;
    void (*handle)(struct service *service, struct rpc_call *call, const ProtobufCMessage *request);
    struct first_look {
        struct refresh_waiter waiter;
        struct first *first;
    } looks[]; /* of each tier that was not looked at for long */
};

static void handle_now(struct refresh_waiter *waiter)
{
    struct first *first = CONTAINER_OF(waiter, struct first_look, waiter)->first;
    if (--first->num_waiting > 0)
        return;
    first->handle(first->service, first->call, first->request);
    free(first);
}

/* Of the local tier, and of the others that are not fresh; so many. */
static uint32_t find_old(enum tier_index out[NUM_TIERS], const struct service *service,
                         int64_t max_age_ms)
{
    uint32_t count = 0;
    out[count++] = TIER_LOCAL;
    for (enum tier_index tier = TIER_PEER; tier < NUM_TIERS; tier++)
        if (!remote_store_is_fresh(service, tier, max_age_ms))
            out[count++] = tier;
    return count;
}

void refresh_first(struct service *service, int64_t max_age_ms, struct rpc_call *call,
                   const ProtobufCMessage *request,
                   void (*handle)(struct service *service, struct rpc_call *call,
                                  const ProtobufCMessage *request))
{
    enum tier_index old[NUM_TIERS];
    uint32_t count = service->draining ? 0 : find_old(old, service, max_age_ms);
    struct first *first =
        count > 0 ? calloc(1, sizeof *first + count * sizeof first->looks[0]) : NULL;
    if (!first) {
        handle(service, call, request);
        return;
    }
    first->service = service;
    first->call = call;
    first->request = request;
    first->handle = handle;
    first->num_waiting = count;
    for (uint32_t i = 0; i < count; i++) { /* the last may free it */
        struct first_look *look = &first->looks[i];
        look->first = first;
        look->waiter.go_on = handle_now;
        if (old[i] == TIER_LOCAL)
            refresh_store(service, &look->waiter);
        else
            remote_store_look(service, old[i], &look->waiter, FAR_WAIT_MS);
    }
}
