/* verified.c - KeepVerified: stores the result of a tool that read a checkpoint of this store over
 * TLS.
 *
 * A tool on this node writes its note into the directory itself. A remote one cannot, so ckptd
 * writes it (proto/format/verified.h). Retention relies on "whole" and skips "damaged", so the call
 * needs an operator, who may remove by name. A tool reads the local copy if there is one
 * (serve.P7); without one the note is of another copy, and ckptd refuses it.
 *
 * The checkpoint is leased until the note is durable: a removal meanwhile leaves a directory with
 * only the note. */
#include "ckptd/scrub/verified.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <stdlib.h>
#include <string.h>

/* A call in progress on a worker. */
struct keeping {
    struct service *service;
    struct rpc_call *call;
    struct checkpoint *checkpoint; /* leased */
    struct verified result, kept;
    struct fault fault;
    struct job job;
};

static void work_keep(struct job *job)
{
    struct keeping *keeping = CONTAINER_OF(job, struct keeping, job);
    int error = store_put_verified(&keeping->kept, keeping->service->storage,
                                   &keeping->checkpoint->summary, &keeping->result);
    if (error != 0)
        fault_take(&keeping->fault, error);
}

static void kept(struct event *event)
{
    Holdfast__V1__KeepVerifiedReply reply = HOLDFAST__V1__KEEP_VERIFIED_REPLY__INIT;
    struct keeping *keeping = CONTAINER_OF(event, struct keeping, job.done);
    if (keeping->fault.code == 0)
        catalog_take_verified(keeping->checkpoint, &keeping->kept);
    catalog_unlease(keeping->checkpoint);
    keeping->service->catalog->events->changed(keeping->service);
    if (keeping->fault.code != 0)
        rpc_call_fail(keeping->call, fault_raise(&keeping->fault));
    else
        rpc_call_reply(keeping->call, &reply.base);
    free(keeping);
}

static int find_checkpoint(struct checkpoint **out, struct service *service,
                           const Holdfast__V1__KeepVerifiedRequest *request)
{
    struct run *run;
    ERR_TRY(service_check_open(service));
    ERR_TRY(service_check_online(service));
    if (!(request->percent > 0 && request->percent <= 100))
        return report_error(ERR_INVALID, NULL, "%g%% is not a valid share of verified blocks",
                            request->percent);
    ERR_TRY(run_find(&run, service, request->run, false));
    *out = catalog_find(run, request->step, request->attempt);
    if (*out && (*out)->copies.local.is_there && strcmp((*out)->summary.nonce, request->nonce) == 0)
        return 0;
    return report_error(ERR_NOT_FOUND, NULL, "run '%s' has no such checkpoint of step %llu here",
                        run->name, (unsigned long long)request->step);
}

void verified_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__KeepVerifiedRequest *request)
{
    struct checkpoint *checkpoint = NULL;
    int error = find_checkpoint(&checkpoint, service, request);
    struct keeping *keeping = error == 0 ? calloc(1, sizeof *keeping) : NULL;
    if (error == 0 && !keeping)
        error = report_error(ERR_MEMORY, NULL, "no memory to keep the result of a verify");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    *keeping = (struct keeping){
        .service = service,
        .call = call,
        .checkpoint = checkpoint,
        .result = {.percent = request->percent, .seed = request->seed, .damages = request->damages},
        .job = {.work = work_keep, .done.run = kept}};
    catalog_lease(checkpoint);
    loop_work(service->loop, &keeping->job);
}
