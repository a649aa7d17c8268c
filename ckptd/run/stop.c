/* stop.c - Stop and AskSave: asks the ranks of a run to end, or to save, for operators and for
 * the user or certificate that trains it.
 *
 * ckptd writes the request into the control page of each rank that is connected here. A rank reads
 * that in every step, and tells the others; so the call may go to any node of the run. A rank on
 * another node fetches it within about a second (attend.c). ckptd keeps no state: a rank that
 * connects later is not asked, and a later start trains normally. A rank that has the request for
 * a save keeps it when ckptd ends (clients/session.c, trainer/save/save.c). The journal names the
 * caller. The request has the time by which the ranks should have ended, in this host's
 * CLOCK_MONOTONIC. */
#include "ckptd/run/stop.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/history.h"
#include "ckptd/core/rights.h"
#include "ckptd/memory/session.h"
#include "proto/base/report.h"

#include <stdio.h>

#define STOP_GRACE_MAX 86400u /* seconds; a longer time is no limit in practice */

/* The run, if the caller may stop it. ERR_NOT_FOUND also if no rank is connected. */
static int find_owned(struct run **out, struct service *service, struct rpc_call *call,
                      const char *name)
{
    struct principal caller;
    char who[RPC_WHO_MAX];
    ERR_TRY(run_find(out, service, name, false));
    if (!rpc_call_principal(call, &caller, who))
        return report_error(ERR_DENIED, NULL, "the connection was closed");
    const struct principal *owner = session_owner(*out, &caller);
    if (owner == NULL)
        return report_error(
            ERR_NOT_FOUND,
            "ask the ckptd of a node that trains it; after its restart, wait for a step",
            "no rank of run %s is connected to this ckptd", name);
    int error = rights_check_owner(&caller, who, owner, name);
    if (error != 0)
        log_info("audit", "Stop or AskSave refused to %s: %s", who, report_message());
    return error;
}

void stop_call(struct service *service, struct rpc_call *call,
               const Holdfast__V1__StopRequest *request)
{
    Holdfast__V1__StopReply reply = HOLDFAST__V1__STOP_REPLY__INIT;
    struct run *run = NULL;
    uint32_t grace_s =
        request->grace_seconds < STOP_GRACE_MAX ? request->grace_seconds : STOP_GRACE_MAX;
    char detail[96], within[32] = "";
    int error = find_owned(&run, service, call, request->run);
    if (error == 0)
        reply.ranks = session_ask(
            run, ARENA_ASKED_STOP | (request->without_save ? ARENA_ASKED_NO_SAVE : 0), grace_s);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    reply.grace_seconds = grace_s;
    if (grace_s != 0)
        snprintf(within, sizeof within, " within %u s", grace_s);
    snprintf(detail, sizeof detail, "%u ranks are to end%s%s", reply.ranks, within,
             request->without_save ? " without a save" : "");
    history_note(run, &(struct history_event){.name = "stop", .call = call, .detail = detail});
    rpc_call_reply(call, &reply.base);
}

void ask_save_call(struct service *service, struct rpc_call *call,
                   const Holdfast__V1__AskSaveRequest *request)
{
    Holdfast__V1__AskSaveReply reply = HOLDFAST__V1__ASK_SAVE_REPLY__INIT;
    struct run *run = NULL;
    char detail[64];
    int error = find_owned(&run, service, call, request->run);
    if (error == 0)
        reply.ranks = session_ask_save(run);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    snprintf(detail, sizeof detail, "%u ranks are to save", reply.ranks);
    history_note(run, &(struct history_event){.name = "ask save", .call = call, .detail = detail});
    rpc_call_reply(call, &reply.base);
}
