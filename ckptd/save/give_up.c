/* give_up.c - AbortSave: a rank gives up a save, for all ranks, or reports one that failed.
 *
 * It is the save that the rank has begun; or, if the rank has found no image for a later save, the
 * newest of its run that waits for another (commit_give_way). That is no failure: clients of that
 * save are told, and no counter changes. Only the ckptd that coordinates the attempt knows which
 * save waits: another one answers ERR_BUSY, as if none waits.
 *
 * A save that is about to be committed, or is over, stays. */
#include "ckptd/save/give_up.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/save.h"
#include "proto/base/report.h"

/* Gives up nothing if the save is not this rank's, is over, or is about to be committed (a worker
 * holds it). */
static void give_up(struct session *session, uint64_t id, const char *reason)
{
    struct commit_actions actions = {0};
    struct commit *machine = &session->run->coordinator->machine;
    struct save *save = save_find(session->run, id);
    const struct commit_save *known = commit_find(machine, id);
    if (!save || save->stages[session->rank].session != session)
        return;
    if (known && known->state == COMMIT_STAGING) {
        if (save->fault.code == 0) {
            report_error(ERR_ABORTED, NULL, "%.200s", reason);
            fault_take(&save->fault, ERR_ABORTED);
        }
        commit_failed(machine, &actions, id, session->rank, ERR_ABORTED, "a rank gave it up");
        run_perform(session->run, &actions);
    }
    save_give_up_part(save, session->rank, reason);
}

static int make_way(uint64_t *out_step, struct session *session)
{
    struct commit_actions actions = {0};
    struct coordinator *coordinator = session->run->coordinator;
    ERR_TRY(commit_check(&coordinator->machine, session->attempt));
    uint64_t id = coordinator->follow ? 0 : commit_give_way(&coordinator->machine, &actions);
    if (id == 0)
        return report_error(ERR_BUSY, "skip this save, or wait for the one before",
                            "no save of run %s waits behind another", session->run->name);
    struct save *save = save_find(session->run, id);
    save->has_made_way = true;
    *out_step = save->step;
    run_perform(session->run, &actions);
    return 0;
}

/* Notes a save that failed at its rank, with the rank's reason. */
static int take_failure(struct service *service, const Holdfast__V1__AbortSaveRequest *request)
{
    struct run *run;
    ERR_TRY(run_find(&run, service, request->run, false));
    const struct commit *machine = &run->coordinator->machine;
    if (request->attempt != 0 && request->attempt < machine->attempt)
        return report_error(ERR_STALE, NULL, "attempt %llu of run %s is over",
                            (unsigned long long)request->attempt, run->name);
    outcomes_failed_at_client(run, request->step, machine->attempt, request->reason);
    return 0;
}

void save_abort(struct service *service, struct rpc_call *call,
                const Holdfast__V1__AbortSaveRequest *request)
{
    Holdfast__V1__AbortSaveReply reply = HOLDFAST__V1__ABORT_SAVE_REPLY__INIT;
    struct session *session = NULL;
    bool is_told = request->run[0] != '\0';
    int error = is_told ? take_failure(service, request)
                        : session_find_rank(&session, service, request->session);
    if (error == 0 && session && request->waiting)
        error = make_way(&reply.step, session);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    if (session && !request->waiting) {
        give_up(session, request->save, request->reason);
        session_let_go(session, request->save);
    }
    rpc_call_reply(call, &reply.base);
}
