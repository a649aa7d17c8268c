/* store_watch.c - watches whether the directory of the store is still in its place.
 *
 * With store_must_exist ckptd starts only if there is a store (directory.c). While it serves it
 * checks the path every PLACE_CHECK_MS, on a worker, and before the first byte of a save. If
 * another directory is there, the store is offline, with the reason, until the opened one is
 * back. */
#include "ckptd/memory/store_watch.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"

#include <stdlib.h>

#define PLACE_CHECK_MS 1000

int store_watch_note(struct service *service, const char *where)
{
    struct store_watch *place = calloc(1, sizeof *place);
    if (!place)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->store_watch = place;
    place->service = service;
    directory_take(&place->directory, where);
    return 0;
}

int store_watch_check(const struct store_watch *place)
{
    return place ? directory_check(&place->directory) : 0;
}

static void work_check(struct job *job)
{
    struct store_watch *place = CONTAINER_OF(job, struct store_watch, job);
    int error = store_watch_check(place);
    if (error != 0)
        fault_take(&place->fault, error);
}

static void checked(struct event *event)
{
    struct store_watch *place = CONTAINER_OF(event, struct store_watch, job.done);
    struct service *service = place->service;
    if (place->fault.code != 0)
        service_go_away(service, place->fault.message);
    else
        service_come_back(service);
    if (!service->offline[0] || service->is_away)
        loop_timer(service->loop, &place->timer, PLACE_CHECK_MS);
}

static void check_again(struct timer *timer)
{
    struct store_watch *place = CONTAINER_OF(timer, struct store_watch, timer);
    struct service *service = place->service;
    place->fault = (struct fault){0};
    place->job = (struct job){.work = work_check, .done.run = checked};
    loop_work(service->loop, &place->job);
}

int store_watch_start(struct service *service)
{
    struct store_watch *place = service->store_watch;
    if (!place || !place->directory.path)
        return 0;
    place->timer.run = check_again;
    loop_timer(service->loop, &place->timer, PLACE_CHECK_MS);
    return 0;
}

void store_watch_close(struct service *service)
{
    if (service->store_watch)
        free(service->store_watch->directory.path);
    free(service->store_watch);
    service->store_watch = NULL;
}
