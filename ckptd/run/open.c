/* open.c - OpenAttempt: a start of a run's ranks takes the next fencing number.
 *
 *   OpenAttempt ──► rings drained ──► commit.c settles older saves ──► COMMIT_TAKE: worker writes
 *   "<run>/attempts/0003", exclusively and durably ──► COMMIT_OPENED: older sessions end, answer
 *
 * A second OpenAttempt while one is settling takes its place: the first call is answered
 * ERR_ABORTED. */
#include "ckptd/run/open.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/history.h"
#include "ckptd/loop.h"
#include "ckptd/node/session.h"
#include "ckptd/run/attempt.h"
#include "ckptd/run/commit.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/run/describe.h"
#include "ckptd/run/save.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/json.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <string.h>

#define REPLY_CHECKPOINTS_MAX 64u

static void work_take(struct job *job)
{
    struct attempt_work *work = CONTAINER_OF(job, struct attempt_work, job);
    struct run *run = CONTAINER_OF(work, struct coordinator, take)->run;
    int error = attempt_publish(&work->attempt, run, work->number, work->text);
    if (error != 0)
        fault_take(&work->fault, error);
    else if (storage_groups_prepare(run->service->storage, run->name) != 0)
        log_warn("session", "run %s: a prune may need room that a full disk lacks: %s", run->name,
                 report_line());
}

static void taken(struct event *event)
{
    struct attempt_work *work = CONTAINER_OF(event, struct attempt_work, job.done);
    struct run *run = CONTAINER_OF(work, struct coordinator, take)->run;
    struct commit_actions actions = {0};
    work->busy = false;
    free(work->text);
    work->text = NULL;
    commit_taken(&run->coordinator->machine, &actions, work->number, work->fault.code);
    run_perform(run, &actions);
}

void open_take(struct run *run, const struct commit_action *action)
{
    uint64_t number = action->number;
    struct attempt_work *work = &run->coordinator->take;
    CHECK(!work->busy && run->coordinator->opening.call);
    attempt_free(work->attempt);
    *work = (struct attempt_work){
        .job = {.work = work_take, .done.run = taken}, .busy = true, .number = number};
    int error =
        attempt_write(&work->text, run, number,
                      (const Holdfast__V1__OpenAttemptRequest *)run->coordinator->opening.message);
    if (error == 0) {
        loop_work(run->service->loop, &work->job);
        return;
    }
    struct commit_actions actions = {0};
    fault_take(&work->fault, error);
    work->busy = false;
    commit_taken(&run->coordinator->machine, &actions, number, error);
    run_perform(run, &actions);
}

static void reply_opened(struct run *run, uint64_t number)
{
    Holdfast__V1__OpenAttemptReply reply = HOLDFAST__V1__OPEN_ATTEMPT_REPLY__INIT;
    Holdfast__V1__CheckpointSummary summaries[REPLY_CHECKPOINTS_MAX];
    Holdfast__V1__CheckpointSummary *pointers[REPLY_CHECKPOINTS_MAX];
    reply.attempt = number;
    reply.boot_id = run->service->boot_id;
    reply.checkpoints = pointers;
    for (struct checkpoint *c = run->checkpoints; c && reply.n_checkpoints < REPLY_CHECKPOINTS_MAX;
         c = c->next) {
        if (c->damaged)
            continue;
        pointers[reply.n_checkpoints] = &summaries[reply.n_checkpoints];
        catalog_summary(&summaries[reply.n_checkpoints++], c);
    }
    rpc_call_reply(run->coordinator->opening.call, &reply.base);
}

/* Before the call is answered, and before the attempt that it ends is forgotten. */
static void note_opened(struct run *run, struct attempt *attempt)
{
    char detail[160] = "";
    uid_t uid;
    if (run->coordinator->attempt)
        snprintf(detail, sizeof detail, "%u ranks; takes over from attempt %llu%s%s",
                 attempt->world_size, (unsigned long long)run->coordinator->attempt->number,
                 run->coordinator->attempt->who[0] ? " of " : "", run->coordinator->attempt->who);
    else
        snprintf(detail, sizeof detail, "%u ranks", attempt->world_size);
    rpc_call_who(run->coordinator->opening.call, &uid, attempt->who);
    history_note(run,
                 &(struct history_event){.name = "attempt", .by = attempt->who, .detail = detail});
}

void open_done(struct run *run, const struct commit_action *action)
{
    uint64_t number = action->number;
    struct attempt *attempt = run->coordinator->take.attempt;
    run->coordinator->take.attempt = NULL;
    CHECK(attempt && attempt->number == number && !run->coordinator->saves); /* I4, I5 */
    run->newest_attempt = number;
    session_end_older(run, number);
    note_opened(run, attempt);
    if (run->coordinator->group)
        group_free(run->coordinator->group);
    attempt_free(run->coordinator->attempt);
    run->coordinator->attempt = attempt;
    struct checkpoint *newest = catalog_newest(run);
    log_info("session", "run %s: attempt %llu of %u ranks is open; newest checkpoint: step %lld",
             run->name, (unsigned long long)number, attempt->world_size,
             newest ? (long long)newest->summary.step : -1LL);
    reply_opened(run, number);
    run->coordinator->opening.call = NULL;
}

void open_failed(struct run *run, const struct commit_action *action)
{
    (void)action;
    rpc_call_fail(run->coordinator->opening.call, fault_raise(&run->coordinator->take.fault));
    run->coordinator->opening.call = NULL;
}

/* Everything that can be wrong is found before the run's saves are touched. */
static int check_open(struct service *service, const Holdfast__V1__OpenAttemptRequest *request)
{
    const char *texts[] = {request->config_json, request->identity_json, request->mesh_json,
                           request->data_json};
    const char *names[] = {"config_json", "identity_json", "mesh_json", "data_json"};
    int error = service_check_open(service);
    if (error == 0 && (request->world_size == 0 || request->world_size > COMMIT_RANKS_MAX))
        error = report_error(ERR_INVALID, NULL, "a world of %u ranks is outside 1 to %u",
                             request->world_size, COMMIT_RANKS_MAX);
    if (error == 0 && strlen(request->code_version) >= sizeof((struct attempt *)0)->code_version)
        error = report_error(ERR_INVALID, NULL, "code_version is longer than 63 bytes");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0] && error == 0; i++) {
        json_t *object = NULL;
        error = attempt_read_object(&object, texts[i], names[i]);
        json_decref(object);
    }
    return error;
}

void attempt_open(struct service *service, struct rpc_call *call,
                  const Holdfast__V1__OpenAttemptRequest *request)
{
    struct run *run = NULL;
    struct commit_actions actions = {0};
    int error = check_open(service, request);
    if (error == 0)
        error = run_find(&run, service, request->run, true);
    if (error == 0 && run->adopting > run->newest_attempt)
        error = catalog_report_adopting(run);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    if (run->coordinator->opening.call)
        rpc_call_fail(
            run->coordinator->opening.call,
            report_error(ERR_ABORTED, NULL, "another start of the run came after this one"));
    run->coordinator->opening.call = call;
    run->coordinator->opening.message = &request->base;
    save_hurry_run(run); /* they are to be settled */
    /* What the older ranks have announced counts, even when it was not read yet. */
    session_drain_run(run);
    error = commit_open(&run->coordinator->machine, &actions, request->world_size);
    CHECK(error == 0); /* check_open has asked */
    if (run->coordinator->saves)
        log_info("session", "run %s: settling older saves before a new attempt", run->name);
    run_perform(run, &actions);
}
