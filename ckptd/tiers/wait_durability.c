/* wait_durability.c - calls that wait until a committed checkpoint is replicated, or in the far
 * tier. */
#include "ckptd/tiers/wait_durability.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"

#include <stdlib.h>

struct durability_waiter {
    struct durability_waiter *next;
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    uint64_t step, attempt;
    enum durability level;
    struct timer timer;
};

static void answer_waiter(struct durability_waiter *waiter, Holdfast__V1__SaveState state,
                          const char *durability, const char *reason)
{
    Holdfast__V1__WaitSaveReply reply = HOLDFAST__V1__WAIT_SAVE_REPLY__INIT;
    struct durability_waiter **at = &waiter->service->durability_waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    loop_timer_cancel(waiter->service->loop, &waiter->timer);
    reply.state = state;
    reply.reason = (char *)(uintptr_t)reason;
    reply.durability = (char *)(uintptr_t)durability;
    rpc_call_reply(waiter->call, &reply.base);
    free(waiter);
}

static void waited_enough(struct timer *timer)
{
    answer_waiter(CONTAINER_OF(timer, struct durability_waiter, timer),
                  HOLDFAST__V1__SAVE_STATE__SAVE_STAGING, DURABILITY_LOCAL, "");
}

void durability_check_waiters(struct service *service)
{
    struct durability_waiter *next;
    for (struct durability_waiter *waiter = service->durability_waiters; waiter; waiter = next) {
        next = waiter->next;
        const struct checkpoint *checkpoint =
            catalog_find(waiter->run, waiter->step, waiter->attempt);
        enum durability has = checkpoint ? catalog_durability(checkpoint) : DURABLE_NOT;
        if (checkpoint && waiter->level == DURABLE_BUCKET &&
            waiter->run->fenced_attempt == waiter->attempt)
            answer_waiter(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, DURABILITY_LOCAL,
                          waiter->run->fenced);
        else if (has >= waiter->level)
            answer_waiter(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED,
                          copies_level(checkpoint), "");
        else if (!checkpoint)
            answer_waiter(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, DURABILITY_LOCAL,
                          waiter->level == DURABLE_BUCKET
                              ? "the checkpoint was removed before it was in the far tier"
                              : "the checkpoint was removed before it was replicated");
        else if (waiter->level == DURABLE_BUCKET && checkpoint->given_up[0])
            answer_waiter(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, DURABILITY_LOCAL,
                          checkpoint->given_up);
    }
}

void wait_durability(struct service *service, struct rpc_call *call, struct checkpoint *checkpoint,
                     enum durability level, uint32_t timeout_ms)
{
    struct durability_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to wait for a checkpoint"));
        return;
    }
    *waiter = (struct durability_waiter){.next = service->durability_waiters,
                                         .service = service,
                                         .call = call,
                                         .run = checkpoint->run,
                                         .step = checkpoint->summary.step,
                                         .attempt = checkpoint->summary.attempt,
                                         .level = level,
                                         .timer.run = waited_enough};
    service->durability_waiters = waiter;
    checkpoint->is_wanted_far |= level == DURABLE_BUCKET;
    checkpoint->is_wanted_replicated |= level == DURABLE_REPLICATED;
    loop_timer(service->loop, &waiter->timer,
               timeout_ms < SERVICE_WAIT_MS_MAX ? (int64_t)timeout_ms : SERVICE_WAIT_MS_MAX);
    durability_check_waiters(service);
    replicate_check_queues(service);
}

void durability_end(struct service *service)
{
    while (service->durability_waiters)
        answer_waiter(service->durability_waiters, HOLDFAST__V1__SAVE_STATE__SAVE_STAGING,
                      DURABILITY_LOCAL, "");
}
