/* renew.c - prepares memory of the pool in the background, a segment at a time, before a save or
 * load waits for it: all of it after the start, and the memory of an attempt when its ranks are
 * gone. */
#include "ckptd/memory/renew.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/pool.h"
#include "proto/base/report.h"
#include <stdlib.h>

struct renewal {
    struct service *service;
    struct job job;
    bool is_busy, has_more;
    struct fault fault; /* the pool cannot be filled */
};

int renew_open(struct service *service)
{
    service->renewal = calloc(1, sizeof *service->renewal);
    if (!service->renewal)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->renewal->service = service;
    return 0;
}

void renew_close(struct service *service)
{
    free(service->renewal);
    service->renewal = NULL;
}

static void work_renew(struct job *job)
{
    struct renewal *renewal = CONTAINER_OF(job, struct renewal, job);
    int error = pool_renew(renewal->service->pool, &renewal->has_more);
    if (error != 0)
        fault_take(&renewal->fault, error);
}

static void renewed(struct event *event)
{
    struct renewal *renewal = CONTAINER_OF(event, struct renewal, job.done);
    renewal->is_busy = false;
    if (renewal->fault.code != 0)
        service_give_up(renewal->service, &renewal->fault);
    else if (renewal->has_more)
        renew_start(renewal->service);
}

void renew_start(struct service *service)
{
    struct renewal *renewal = service->renewal;
    if (renewal->is_busy || service->draining)
        return;
    renewal->is_busy = true;
    renewal->job = (struct job){.work = work_renew, .done.run = renewed};
    loop_work(service->loop, &renewal->job); /* after all jobs for which a client waits */
}

void renew_disown(struct service *service, struct pool_owner owner)
{
    if (pool_disown(service->pool, owner))
        renew_start(service);
}
