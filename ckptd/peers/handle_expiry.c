/* handle_expiry.c - ends handles of other nodes and tools. A node that held a directory and
 * published no checkpoint in it leaves unfinished files: it gave the save up, or has died. ckptd
 * removes them with the lease (peers/replica.c), as nothing else removes them before the next
 * start. */
#include "ckptd/peers/handle_expiry.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/peers/handles.h"
#include "ckptd/peers/replica.h"

#include <stdio.h>
#include <stdlib.h>

struct handle *handle_expiry_take_silent(struct service *service, struct handles *handles)
{
    int64_t lost_ms = service->config->nodes_lost_ms;
    return handles_take_silent(handles, lost_ms < HANDLES_SILENT_MS ? lost_ms : HANDLES_SILENT_MS);
}

void handle_expiry_end(struct service *service, struct handle *first, bool stays)
{
    while (first) {
        struct handle *handle = first;
        char held[STORAGE_KEY_MAX];
        first = handle->next;
        handle->next = NULL;
        snprintf(held, sizeof held, "%s", handle->is_node && !stays ? handle->held : "");
        handles_end(handle, service->storage, stays);
        if (held[0])
            replica_remove_left(service, held);
    }
}

struct sweep {
    struct service *service;
    struct handle *silent;
    struct job job;
};

static void work_sweep(struct job *job)
{
    struct sweep *sweep = CONTAINER_OF(job, struct sweep, job);
    handle_expiry_end(sweep->service, sweep->silent, false);
}

static void swept(struct event *event)
{
    free(CONTAINER_OF(event, struct sweep, job.done));
}

void handle_expiry_sweep(struct service *service, struct handles *handles, struct crew *crew)
{
    struct sweep *sweep = calloc(1, sizeof *sweep);
    if (!sweep)
        return; /* the next sweep does it */
    *sweep = (struct sweep){.service = service,
                            .silent = handle_expiry_take_silent(service, handles),
                            .job = {.work = work_sweep, .done.run = swept}};
    if (sweep->silent)
        crew_work(crew, &sweep->job);
    else
        free(sweep);
}
