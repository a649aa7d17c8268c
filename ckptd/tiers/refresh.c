/* refresh.c - see refresh.h. */
#include "ckptd/tiers/refresh.h"
#include "ckptd/core/service.h"

void refresh_init(struct refreshes *out, struct service *service, enum tier_index tier,
                  void (*start)(struct refreshes *looks))
{
    *out = (struct refreshes){.service = service, .tier = tier, .start = start};
}

/* They may wait again, for the next look. */
static void let_go_on(struct refresh_waiter *waiters, const struct fault *fault)
{
    while (waiters) {
        struct refresh_waiter *waiter = waiters;
        waiters = waiter->next;
        loop_timer_cancel(waiter->service->loop, &waiter->timer);
        waiter->fault = *fault;
        waiter->go_on(waiter);
    }
}

static struct refresh_waiter *take_all(struct refresh_waiter **list)
{
    struct refresh_waiter *all = *list;
    *list = NULL;
    return all;
}

static bool take_out(struct refresh_waiter **at, const struct refresh_waiter *waiter)
{
    while (*at && *at != waiter)
        at = &(*at)->next;
    if (!*at)
        return false;
    *at = waiter->next;
    return true;
}

static void waited_enough(struct timer *timer)
{
    struct refresh_waiter *waiter = CONTAINER_OF(timer, struct refresh_waiter, timer);
    struct refreshes *looks = waiter->looks;
    struct fault fault;
    if (!take_out(&looks->coming, waiter))
        take_out(&looks->present, waiter);
    fault_take(&fault, report_error(ERR_TIMEOUT, NULL, "the tier %s has not answered yet",
                                    tier_name(looks->service, looks->tier)));
    waiter->next = NULL;
    let_go_on(waiter, &fault);
}

void refresh_wait(struct refreshes *looks, struct refresh_waiter *waiter, int64_t ms)
{
    waiter->looks = looks;
    waiter->service = looks->service;
    waiter->tier = looks->tier;
    waiter->fault = (struct fault){0};
    waiter->next = looks->coming;
    waiter->timer = (struct timer){.run = waited_enough};
    looks->coming = waiter;
    loop_timer(looks->service->loop, &waiter->timer, ms);
    if (!looks->is_under_way)
        looks->start(looks);
}

void refresh_store(struct service *service, struct refresh_waiter *waiter)
{
    refresh_wait(service->store_looks, waiter, REFRESH_STORE_MS);
}

void refresh_begun(struct refreshes *looks)
{
    looks->is_under_way = true;
    looks->present = take_all(&looks->coming);
}

void refresh_ended(struct refreshes *looks, const struct fault *fault)
{
    looks->is_under_way = false;
    let_go_on(take_all(&looks->present), fault);
    if (looks->coming && !looks->is_under_way)
        looks->start(looks);
}

void refresh_repeat(struct refreshes *looks)
{
    struct refresh_waiter **end = &looks->coming;
    while (*end)
        end = &(*end)->next;
    *end = take_all(&looks->present);
    looks->is_under_way = false;
    looks->start(looks);
}

void refresh_give_up(struct refreshes *looks, int error)
{
    struct fault fault = {0};
    if (looks->coming)
        fault_take(&fault, error);
    let_go_on(take_all(&looks->coming), &fault);
}

void refresh_end(struct refreshes *looks)
{
    struct fault fault = {0};
    if (looks->coming || looks->present) /* else the thread's last error stays what it was */
        fault_take(&fault, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
    let_go_on(take_all(&looks->coming), &fault);
    let_go_on(take_all(&looks->present), &fault);
}
