/* force.c - ForceAttempt: an operator declares that most of the nodes are lost for good.
 *
 * A start needs most of the nodes, so that two sides of a partition never train one run
 * (tiers/majority.c). Only an operator can know that they will not come back. ForceAttempt asks the
 * nodes once more. If most of them answer it is refused. Else only the next start of the run at
 * this ckptd may do without them; the run's journal notes it, and it ends with that start, or with
 * ckptd. */
#include "ckptd/run/force.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/history.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/majority.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>

/* An operator waits for the answer; nodes.wait_ms is for starts. */
#define ASK_MS 5000

struct forcing {
    struct service *service;
    struct rpc_call *call;
    const Holdfast__V1__ForceAttemptRequest *request; /* valid as long as the call */
    struct majority_waiter asked;
};

static int force_attempt(struct run *run, const struct forcing *forcing)
{
    char detail[96];
    if (forcing->asked.fault.code == 0)
        return report_error(ERR_INVALID, "start the run",
                            "most of the nodes answer: a start of run %s needs no force",
                            run->name);
    if (forcing->asked.fault.code != ERR_UNAVAILABLE)
        return fault_raise(&forcing->asked.fault);
    snprintf(detail, sizeof detail, "%u of %u nodes answer; newest attempt known here: %llu",
             forcing->asked.num_answered, forcing->service->config->members.count + 1,
             (unsigned long long)run->newest_attempt);
    run->coordinator->is_forced = true;
    history_note(run,
                 &(struct history_event){.name = "force", .call = forcing->call, .detail = detail});
    log_warn("session", "run %s: an operator allowed its next start without a majority: %s",
             run->name, detail);
    return 0;
}

static void asked(struct majority_waiter *waiter)
{
    struct forcing *forcing = CONTAINER_OF(waiter, struct forcing, asked);
    Holdfast__V1__ForceAttemptReply reply = HOLDFAST__V1__FORCE_ATTEMPT_REPLY__INIT;
    struct run *run = NULL;
    struct sets sets = {0};
    struct quorum quorum;
    int error = run_find(&run, forcing->service, forcing->request->run, false);
    if (error == 0 && !forcing->request->dry_run)
        error = force_attempt(run, forcing);
    if (error == 0)
        error = majority_next(&sets, &quorum, forcing->service, run);
    if (error == 0) {
        reply.newest_attempt = run->newest_attempt;
        reply.nodes = forcing->service->config->members.count + 1;
        reply.answered = waiter->num_answered;
        reply.is_majority = waiter->fault.code == 0;
        reply.n_sets = sets.count;
        reply.sets = sets.names;
        rpc_call_reply(forcing->call, &reply.base);
    } else {
        rpc_call_fail(forcing->call, error);
    }
    sets_free(&sets);
    free(forcing);
}

void force_call(struct service *service, struct rpc_call *call,
                const Holdfast__V1__ForceAttemptRequest *request)
{
    struct run *run = NULL;
    struct forcing *forcing = NULL;
    int error = service_check_open(service);
    if (error == 0)
        error = run_find(&run, service, request->run, false);
    if (error == 0 && !majority_is_needed(service, run))
        error = report_error(ERR_INVALID, "start the run",
                             "a start at this ckptd needs no other nodes (nodes.peers, "
                             "nodes.attempts)");
    if (error == 0 && !(forcing = calloc(1, sizeof *forcing)))
        error = report_error(ERR_MEMORY, NULL, "no memory to force a start");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    *forcing = (struct forcing){
        .service = service, .call = call, .request = request, .asked.go_on = asked};
    majority_refresh_peers(service, request->run, &forcing->asked, ASK_MS);
}
