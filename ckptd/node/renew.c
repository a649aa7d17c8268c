/* renew.c - memory of the pool that is not ready is made so in the background, a segment at a time,
 * before somebody waits for it: all of it after the start, and what the ranks of an attempt had
 * when they have gone. */
#include "ckptd/node/renew.h"
#include "ckptd/loop.h"
#include "ckptd/node/pool.h"
#include "ckptd/service.h"

static void work_renew(struct job *job)
{
    struct service *service = CONTAINER_OF(job, struct service, renewal);
    int error = pool_renew(service->pool, &service->renews_more);
    if (error != 0)
        fault_take(&service->renewal_fault, error);
}

static void renewed(struct event *event)
{
    struct service *service = CONTAINER_OF(event, struct service, renewal.done);
    service->renews = false;
    if (service->renewal_fault.code != 0)
        service_give_up(service, &service->renewal_fault);
    else if (service->renews_more)
        renew_start(service);
}

void renew_start(struct service *service)
{
    if (service->renews || service->draining)
        return;
    service->renews = true;
    service->renewal = (struct job){.work = work_renew, .done.run = renewed};
    loop_work(service->loop, &service->renewal); /* behind all work that somebody waits for */
}

void renew_disown(struct service *service, struct pool_owner owner)
{
    if (pool_disown(service->pool, owner))
        renew_start(service);
}
