/* errand.c - see errand.h. Every call has a deadline, and may be made again. */
#include "ckptd/member/errand.h"
#include "ckptd/service.h"
#include "proto/report.h"

#include <stdio.h>
#include <string.h>

#define CALL_MS 5000u

static int perform(struct errand *errand)
{
    char path[96];
    if (errand->before)
        ERR_TRY(errand->before(errand));
    if (!errand->method)
        return 0;
    snprintf(path, sizeof path, "/holdfast.v1.Checkpoint/%s", errand->method);
    ERR_TRY(rpc_client_call(errand->service->tiers[TIER_PEER + errand->peer].client, path,
                            errand->request, errand->reply_type, &errand->reply, CALL_MS));
    return errand->behind ? errand->behind(errand) : 0;
}

static void work(struct job *job)
{
    struct errand *errand = CONTAINER_OF(job, struct errand, job);
    int error = perform(errand);
    if (error == 0)
        return;
    fault_take(&errand->fault, error);
    errand_end(errand);
}

static void worked(struct event *event)
{
    struct errand *errand = CONTAINER_OF(event, struct errand, job.done);
    errand->done(errand);
}

void errand_send(struct errand *errand)
{
    errand->job = (struct job){.work = work, .done.run = worked};
    struct followers *followers = errand->service->followers;
    if (errand->method)
        crew_work_in(followers->crew, &followers->lanes[errand->peer], &errand->job);
    else
        crew_work(followers->crew, &errand->job);
}

void errand_end(struct errand *errand)
{
    if (errand->reply)
        protobuf_c_message_free_unpacked(errand->reply, NULL);
    errand->reply = NULL;
}
