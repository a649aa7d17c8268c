/* peer_call.c - see peer_call.h. Every call has a deadline, and may be repeated. */
#include "ckptd/peers/peer_call.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <string.h>

#define CALL_MS 5000u

static int perform_call(struct peer_call *peer_call)
{
    char path[96];
    if (peer_call->before)
        ERR_TRY(peer_call->before(peer_call));
    if (!peer_call->method)
        return 0;
    snprintf(path, sizeof path, "/holdfast.v1.Checkpoint/%s", peer_call->method);
    ERR_TRY(rpc_client_call(peer_call->service->tiers[TIER_PEER + peer_call->peer].client, path,
                            peer_call->request, peer_call->reply_type, &peer_call->reply, CALL_MS));
    return peer_call->then ? peer_call->then(peer_call) : 0;
}

static void work(struct job *job)
{
    struct peer_call *peer_call = CONTAINER_OF(job, struct peer_call, job);
    int error = perform_call(peer_call);
    if (error == 0)
        return;
    fault_take(&peer_call->fault, error);
    peer_call_end(peer_call);
}

static void call_ended(struct event *event)
{
    struct peer_call *peer_call = CONTAINER_OF(event, struct peer_call, job.done);
    peer_call->done(peer_call);
}

void peer_call_send(struct peer_call *peer_call)
{
    peer_call->job = (struct job){.work = work, .done.run = call_ended};
    struct followers *followers = peer_call->service->followers;
    if (peer_call->method)
        crew_work_in(followers->crew, &followers->lanes[peer_call->peer], &peer_call->job);
    else
        crew_work(followers->crew, &peer_call->job);
}

void peer_call_end(struct peer_call *peer_call)
{
    if (peer_call->reply)
        protobuf_c_message_free_unpacked(peer_call->reply, NULL);
    peer_call->reply = NULL;
}
