/* look.c - see look.h. */
#include "ckptd/look.h"
#include "ckptd/service.h"

void looks_init(struct looks *out, struct service *service, enum tier_index tier,
                void (*start)(struct looks *looks))
{
    *out = (struct looks){.service = service, .tier = tier, .start = start};
}

/* They may wait again, for the next look. */
static void let_go_on(struct look_waiter *waiters, const struct fault *fault)
{
    while (waiters) {
        struct look_waiter *waiter = waiters;
        waiters = waiter->next;
        loop_timer_cancel(waiter->service->loop, &waiter->timer);
        waiter->fault = *fault;
        waiter->go_on(waiter);
    }
}

static struct look_waiter *take_all(struct look_waiter **list)
{
    struct look_waiter *all = *list;
    *list = NULL;
    return all;
}

static bool take_out(struct look_waiter **at, const struct look_waiter *waiter)
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
    struct look_waiter *waiter = CONTAINER_OF(timer, struct look_waiter, timer);
    struct looks *looks = waiter->looks;
    struct fault fault;
    if (!take_out(&looks->coming, waiter))
        take_out(&looks->present, waiter);
    fault_take(&fault, report_error(ERR_TIMEOUT, NULL, "the tier %s has not answered yet",
                                    tier_name(looks->service, looks->tier)));
    waiter->next = NULL;
    let_go_on(waiter, &fault);
}

void look_wait(struct looks *looks, struct look_waiter *waiter, int64_t ms)
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

void look_store(struct service *service, struct look_waiter *waiter)
{
    look_wait(service->store_looks, waiter, LOOK_STORE_MS);
}

void looks_begun(struct looks *looks)
{
    looks->is_under_way = true;
    looks->present = take_all(&looks->coming);
}

void looks_ended(struct looks *looks, const struct fault *fault)
{
    looks->is_under_way = false;
    let_go_on(take_all(&looks->present), fault);
    if (looks->coming && !looks->is_under_way)
        looks->start(looks);
}

void looks_repeat(struct looks *looks)
{
    struct look_waiter **end = &looks->coming;
    while (*end)
        end = &(*end)->next;
    *end = take_all(&looks->present);
    looks->is_under_way = false;
    looks->start(looks);
}

void looks_give_up(struct looks *looks, int error)
{
    struct fault fault = {0};
    if (looks->coming)
        fault_take(&fault, error);
    let_go_on(take_all(&looks->coming), &fault);
}

void looks_end(struct looks *looks)
{
    struct fault fault = {0};
    if (looks->coming || looks->present) /* else the thread's last error stays what it was */
        fault_take(&fault, report_error(ERR_UNAVAILABLE, NULL, "ckptd ends"));
    let_go_on(take_all(&looks->coming), &fault);
    let_go_on(take_all(&looks->present), &fault);
}
