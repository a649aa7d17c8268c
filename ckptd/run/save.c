/* save.c - one save of all ranks: hands its events to commit.c and performs what that decides.
 *
 *   BeginSave of each rank ──► begin.c: an image, a stage   (stage.c makes the shard durable)
 *   COMMIT_SYNC_NAMES      ──► publish.c: the files' names become durable
 *   COMMIT_PUBLISH         ──► publish.c: the manifest
 *   COMMIT_DONE            ──► the catalog, the memory tier, everybody who waits; one log line;
 *                              an alarm when every tensor equals the checkpoint before it
 *   COMMIT_DISCARD         ──► stages stop and remove their files; then the directory
 *   COMMIT_KEEP            ──► reported as failed, nothing removed, the store goes offline
 *
 * The reason of a failed save is kept in a ring of the newest FAILURES_MAX for WaitSave; when an
 * older one is asked for, the answer is SAVE_UNKNOWN.
 *
 * Limit: limits.wait_ms per WaitSave (answered SAVE_STAGING). */
#include "ckptd/run/save.h"
#include "ckptd/catalog.h"
#include "ckptd/health.h"
#include "ckptd/keep/retain.h"
#include "ckptd/ledger.h"
#include "ckptd/loop.h"
#include "ckptd/node/gate.h"
#include "ckptd/node/image.h"
#include "ckptd/node/session.h"
#include "ckptd/node/stage.h"
#include "ckptd/run/commit.h"
#include "ckptd/run/publish.h"
#include "ckptd/run/run.h"
#include "ckptd/service.h"
#include "proto/array.h"
#include "proto/ckpt.pb-c.h"
#include "proto/report.h"
#include "proto/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPEAT_TEXT_BYTES 128u

/* ---- finding ---- */

void save_identity(struct shard_identity *out, const struct save *save, uint32_t rank)
{
    memset(out, 0, sizeof *out);
    snprintf(out->run, sizeof out->run, "%s", save->run->name);
    snprintf(out->nonce, sizeof out->nonce, "%s", save->nonce);
    out->step = save->step;
    out->attempt = save->attempt;
    out->shard = rank;
    out->shards = save->world_size;
}

struct save *save_find(struct run *run, uint64_t id)
{
    struct save *save = run->saves;
    while (save && save->id != id)
        save = save->next;
    return save;
}

/* ---- the end of a save ---- */

static void answer_wait(struct rpc_call *call, Holdfast__V1__SaveState state, const char *reason)
{
    Holdfast__V1__WaitSaveReply reply = HOLDFAST__V1__WAIT_SAVE_REPLY__INIT;
    reply.state = state;
    reply.durability = state == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED ? DURABILITY_LOCAL
                       : state == HOLDFAST__V1__SAVE_STATE__SAVE_STAGING ? "accepted"
                                                                         : "";
    reply.reason = (char *)(uintptr_t)reason;
    rpc_call_reply(call, &reply.base);
}

static void answer_waiters(struct save *save, Holdfast__V1__SaveState state, const char *reason)
{
    while (save->waiters) {
        struct save_waiter *waiter = save->waiters;
        save->waiters = waiter->next;
        loop_timer_cancel(save->service->loop, &waiter->timer);
        answer_wait(waiter->call, state, reason);
        free(waiter);
    }
}

/* Of a rank, or of the save itself: it explains the machine's reason. */
static const struct fault *first_fault(const struct save *save)
{
    const struct fault *fault = &save->fault;
    for (uint32_t i = 0; i < save->world_size && fault->code == 0; i++)
        fault = &save->stages[i].fault;
    return fault;
}

/* `code`: the error that explains it; 0: its ranks gave it up. */
static void remember(struct run *run, uint64_t step, uint64_t attempt, int code, const char *reason)
{
    struct service *service = run->service;
    struct failure *failure = &service->failures[service->num_failures++ % FAILURES_MAX];
    snprintf(failure->run, sizeof failure->run, "%s", run->name);
    snprintf(failure->reason, sizeof failure->reason, "%s", reason);
    failure->step = step;
    failure->attempt = attempt;
    service->stats.failed++;
    log_warn("commit", "run %s, step %llu, attempt %llu failed: %s", run->name,
             (unsigned long long)step, (unsigned long long)attempt, reason);
    health_failed(run, code, reason);
}

static void remember_failure(struct save *save, const char *reason)
{
    remember(save->run, save->step, save->attempt, first_fault(save)->code, reason);
    answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, reason);
}

static const struct failure *find_failure(const struct service *service, const char *run,
                                          uint64_t step, uint64_t attempt)
{
    uint32_t count = service->num_failures < FAILURES_MAX ? service->num_failures : FAILURES_MAX;
    for (uint32_t i = 1; i <= count; i++) {
        const struct failure *failure =
            &service->failures[(service->num_failures - i) % FAILURES_MAX];
        if (failure->step == step && failure->attempt == attempt && strcmp(failure->run, run) == 0)
            return failure;
    }
    return NULL;
}

int save_check_quota(const struct run *run, uint64_t bytes)
{
    uint64_t quota = (uint64_t)policy_of(&run->service->policies, run->name)->quota, used = 0;
    if (quota == 0)
        return 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        used += c->summary.bytes;
    for (const struct save *save = run->saves; save; save = save->next)
        used += save->bytes;
    if (used <= quota && bytes <= quota - used)
        return 0;
    return report_error(ERR_SPACE, "remove checkpoints, or raise the quota and `ckpt-cli reload`",
                        "a checkpoint of %llu bytes does not fit: the quota of run %s is %llu "
                        "bytes, of which its checkpoints use %llu",
                        (unsigned long long)bytes, run->name, (unsigned long long)quota,
                        (unsigned long long)used);
}

/* Each rank is refused: once is enough. */
void save_refuse(struct run *run, uint64_t step, uint64_t attempt, int error)
{
    if (find_failure(run->service, run->name, step, attempt))
        return;
    run->service->stats.refused++;
    remember(run, step, attempt, error, report_line());
}

static void failure_text(char *out, size_t size, const struct save *save,
                         const struct commit_action *action)
{
    const struct fault *fault = first_fault(save);
    char who[32] = "";
    if (action->rank >= 0)
        snprintf(who, sizeof who, " (rank %lld)", (long long)action->rank);
    snprintf(out, size, "%s%s%s%.200s%s%.200s", action->reason, who, fault->code ? ": " : "",
             fault->code ? fault->message : "", fault->code && fault->detail[0] ? ": " : "",
             fault->code ? fault->detail : "");
}

/* The image leaves the save: a spare of its session, or nobody's. */
static void release_image(struct stage *stage)
{
    struct image *image = stage->image;
    if (!image)
        return;
    if (stage->session)
        stage->session->slot_saves[stage->slot] = NULL;
    stage->image = NULL;
    image->stage = NULL;
    image->tensors = NULL;
    image->metas = NULL;
    image->num_tensors = 0;
    if (image->state == IMAGE_STAGING)
        image->state = IMAGE_SPARE;
    if (!image_settle(image))
        service_retry_waiting(image->service); /* kept, but memory that may be reclaimed */
}

void save_free(struct save *save)
{
    struct run *run = save->run;
    struct save **at = &run->saves;
    while (*at != save)
        at = &(*at)->next;
    *at = save->next;
    CHECK(!save->waiters);
    ledger_end(&run->service->ledger, &save->promise);
    for (uint32_t i = 0; i < save->world_size; i++) {
        release_image(&save->stages[i]);
        free(save->stages[i].announced);
    }
    free(save->stages);
    catalog_drop(save->checkpoint);
    free(save->digests);
    free(save->state_json);
    free(save);
    service_retry_saves(run->service);
}

/* ---- committed ---- */

static double seconds_between(int64_t from_ms, int64_t to_ms)
{
    return (double)(to_ms - from_ms) / 1000.0;
}

static void report_commit(struct save *save)
{
    struct service *service = save->service;
    int64_t now = loop_now_ms();
    double seconds = seconds_between(save->begun_ms, now);
    service->stats.commits++;
    service->stats.bytes_written += save->bytes;
    snprintf(service->stats.run, sizeof service->stats.run, "%s", save->run->name);
    service->stats.step = save->step;
    service->stats.attempt = save->attempt;
    service->stats.bytes = save->bytes;
    service->stats.seconds = seconds;
    service->stats.staging_seconds = seconds_between(save->begun_ms, save->ended_ms);
    service->stats.sync_seconds = seconds_between(save->ended_ms, save->durable_ms);
    service->stats.names_seconds = seconds_between(save->durable_ms, save->named_ms);
    service->stats.manifest_seconds = seconds_between(save->named_ms, now);
    log_info("commit",
             "run %s, step %llu, attempt %llu committed: %llu bytes in %.3f s (%.3f GB/s; staging "
             "%.3f, write and sync %.3f, names %.3f, manifest %.3f), %u shards, durability local",
             save->run->name, (unsigned long long)save->step, (unsigned long long)save->attempt,
             (unsigned long long)save->bytes, seconds,
             seconds > 0 ? (double)save->bytes / seconds / 1e9 : 0.0,
             service->stats.staging_seconds, service->stats.sync_seconds,
             service->stats.names_seconds, service->stats.manifest_seconds, save->world_size);
}

/* Says how much of the disk is left, and warns while there is time. */
static void report_disk(const struct save *save)
{
    struct service *service = save->service;
    struct storage_space space;
    int64_t now = loop_now_ms();
    ledger_note(&service->ledger, now, (int64_t)save->bytes);
    if (storage_space(service->storage, &space) != 0)
        return;
    char hours[48] = "";
    double left = ledger_hours_to_full(&service->ledger, &space, now);
    if (left >= 0)
        snprintf(hours, sizeof hours, "; at the rate of the last saves for %.1f hours", left);
    bool is_short = ledger_must_warn(&service->ledger, &space, now, save->bytes);
    log_print(is_short ? LOG_WARN : LOG_DEBUG, "disk",
              "%llu of %llu usable bytes are in use, %llu are left%s",
              (unsigned long long)ledger_used(&space),
              (unsigned long long)ledger_usable(&service->ledger, &space),
              (unsigned long long)ledger_room(&service->ledger, &space), hours);
}

/* The memory tier: the images of the newest checkpoint stay, older ones go. Of a window nothing
 * stays: it held a part of the shard at a time; nor without memory for the list of them. */
static void enter_memory(struct save *save, struct checkpoint *checkpoint)
{
    struct run *run = save->run;
    bool newest = catalog_newest(run) == checkpoint;
    for (uint32_t i = 0; i < save->world_size && newest; i++) {
        struct image *image = save->stages[i].image;
        if (image->is_window || image_enter_checkpoint(image, checkpoint, i) != 0)
            continue;
        image->state = IMAGE_RESIDENT;
        image->table_hash = save->stages[i].table_hash;
        image->read_until = 0;
        release_image(&save->stages[i]);
    }
    struct image *next;
    for (struct image *image = run->service->images; image; image = next) {
        const struct checkpoint *holds = image->checkpoint;
        next = image->next; /* leaving may free the image, and no other */
        if (holds && holds->run == run && holds != checkpoint && image->state == IMAGE_RESIDENT &&
            image->readers == 0)
            image_leave_checkpoint(image);
    }
}

/* What a client is told about a committed save: "", or the alarm. */
static const char *repeat_text(char out[REPEAT_TEXT_BYTES], const struct repeat *repeat)
{
    out[0] = '\0';
    if (repeat->attempt != 0)
        snprintf(out, REPEAT_TEXT_BYTES,
                 "every tensor equals the checkpoint of step %llu, attempt %llu, to the bit",
                 (unsigned long long)repeat->step, (unsigned long long)repeat->attempt);
    return out;
}

/* A checkpoint that equals the one of another step, to the bit, is kept, but means that training
 * stands still or that other memory is saved than is trained. */
static void compare_content(struct save *save)
{
    struct service *service = save->service;
    struct checkpoint *before = publish_before(save);
    if (!before || before->summary.step == save->step)
        return;
    if (!before->content[0] && before->summary.step == save->before.step &&
        before->summary.attempt == save->before.attempt)
        memcpy(before->content, save->before.content, sizeof before->content);
    if (!save->content[0] || strcmp(before->content, save->content) != 0)
        return;
    save->repeat = (struct repeat){before->summary.step, before->summary.attempt};
    service->stats.unchanged++;
    snprintf(service->stats.unchanged_run, sizeof service->stats.unchanged_run, "%s",
             save->run->name);
    service->stats.unchanged_save = (struct repeat){save->step, save->attempt};
    service->stats.unchanged_before = save->repeat;
    log_error("commit",
              "run %s, step %llu, attempt %llu: every tensor equals the checkpoint of step %llu, "
              "attempt %llu, to the bit: the optimizer stands still, or what is saved is not what "
              "is trained; the checkpoint is kept",
              save->run->name, (unsigned long long)save->step, (unsigned long long)save->attempt,
              (unsigned long long)save->repeat.step, (unsigned long long)save->repeat.attempt);
}

static void perform_done(struct save *save)
{
    struct run *run = save->run;
    struct checkpoint *checkpoint = save->checkpoint;
    char text[REPEAT_TEXT_BYTES];
    report_commit(save);
    report_disk(save);
    compare_content(save);
    save->checkpoint = NULL;
    catalog_enter(checkpoint, &save->summary);
    checkpoint->manifest_hash = save->manifest_hash;
    memcpy(checkpoint->content, save->content, sizeof checkpoint->content);
    checkpoint->repeat = save->repeat;
    enter_memory(save, checkpoint);
    answer_waiters(save, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED,
                   repeat_text(text, &save->repeat));
    save_free(save);
    health_saved(run);
    retain_apply(run);
}

/* ---- failed ---- */

static void work_remove_dir(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    /* Not there, or not empty: what is left is rubbish for the next start. */
    storage_remove(save->service->storage, save->dir);
}

static void dir_removed(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    struct run *run = save->run;
    struct commit_actions actions = {0};
    commit_discarded(&run->machine, &actions, save->id);
    save_free(save);
    run_perform(run, &actions);
}

static void check_stopped(struct save *save)
{
    if (save->num_stopped < save->num_begun)
        return;
    save->job = (struct job){.work = work_remove_dir, .done.run = dir_removed};
    loop_work(save->service->loop, &save->job);
}

void save_stage_stopped(struct stage *stage)
{
    struct save *save = stage->save;
    release_image(stage);
    save->num_stopped++;
    check_stopped(save);
}

static void perform_discard(struct save *save, const struct commit_action *action)
{
    char reason[512];
    save->discarding = true;
    failure_text(reason, sizeof reason, save, action);
    remember_failure(save, reason);
    /* Stopping is never synchronous, so `save` lives until the loop comes round. */
    for (uint32_t i = 0; i < save->world_size; i++)
        if (save->stages[i].save)
            stage_stop(&save->stages[i]);
    check_stopped(save); /* no stage may have begun */
}

static void perform_keep(struct save *save, const struct commit_action *action)
{
    char reason[512];
    failure_text(reason, sizeof reason, save, action);
    remember_failure(save, reason);
    service_go_offline(save->service, reason);
    save_free(save);
}

void save_perform(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    CHECK(save);
    switch (action->kind) {
    case COMMIT_SYNC_NAMES:
        publish_sync_names(save);
        break;
    case COMMIT_PUBLISH:
        publish_manifest(save);
        break;
    case COMMIT_DONE:
        perform_done(save);
        break;
    case COMMIT_DISCARD:
        perform_discard(save, action);
        break;
    case COMMIT_KEEP:
        perform_keep(save, action);
        break;
    default:
        CHECK(!"an action of the run");
    }
}

/* ---- what stages tell ---- */

void save_stage_ended(struct stage *stage)
{
    struct commit_actions actions = {0};
    stage->save->ended_ms = loop_now_ms();
    commit_ended(&stage->save->run->machine, &actions, stage->save->id, stage->rank);
    run_perform(stage->save->run, &actions);
}

void save_stage_durable(struct stage *stage)
{
    struct commit_actions actions = {0};
    commit_durable(&stage->save->run->machine, &actions, stage->save->id, stage->rank);
    run_perform(stage->save->run, &actions);
}

void save_stage_failed(struct stage *stage, const char *reason)
{
    struct commit_actions actions = {0};
    commit_failed(&stage->save->run->machine, &actions, stage->save->id, stage->rank,
                  stage->fault.code != 0 ? stage->fault.code : ERR_ABORTED, reason);
    run_perform(stage->save->run, &actions);
}

/* ---- WaitSave, AbortSave ---- */

static void wait_expired(struct timer *timer)
{
    struct save_waiter *waiter = CONTAINER_OF(timer, struct save_waiter, timer);
    struct save_waiter **at = &waiter->save->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    answer_wait(waiter->call, HOLDFAST__V1__SAVE_STATE__SAVE_STAGING, "");
    free(waiter);
}

static void wait_for(struct save *save, struct rpc_call *call, uint32_t timeout_ms)
{
    struct service *service = save->service;
    struct save_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to wait for a save"));
        return;
    }
    int64_t ms = timeout_ms < service->config->limit_wait_ms ? (int64_t)timeout_ms
                                                             : service->config->limit_wait_ms;
    *waiter = (struct save_waiter){
        .next = save->waiters, .call = call, .save = save, .timer.run = wait_expired};
    save->waiters = waiter;
    loop_timer(service->loop, &waiter->timer, ms);
    if (ms > 0)
        gate_hurry_save(save); /* a question alone is no reason to hurry */
}

void save_wait(struct service *service, struct rpc_call *call,
               const Holdfast__V1__WaitSaveRequest *request)
{
    struct run *run;
    if (run_find(&run, service, request->run, false) != 0) {
        answer_wait(call, HOLDFAST__V1__SAVE_STATE__SAVE_UNKNOWN, report_message());
        return;
    }
    uint64_t attempt = request->attempt ? request->attempt : run->machine.attempt;
    const struct checkpoint *checkpoint = catalog_find(run, request->step, attempt);
    if (checkpoint) {
        char text[REPEAT_TEXT_BYTES];
        answer_wait(call, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED,
                    repeat_text(text, &checkpoint->repeat));
        return;
    }
    for (struct save *save = run->saves; save; save = save->next) {
        if (save->step != request->step || save->attempt != attempt || save->discarding)
            continue;
        wait_for(save, call, request->timeout_ms);
        return;
    }
    const struct failure *failure = find_failure(service, request->run, request->step, attempt);
    answer_wait(call,
                failure ? HOLDFAST__V1__SAVE_STATE__SAVE_FAILED
                        : HOLDFAST__V1__SAVE_STATE__SAVE_UNKNOWN,
                failure ? failure->reason : "no such save is known since ckptd started");
}

void save_abort(struct service *service, struct rpc_call *call,
                const Holdfast__V1__AbortSaveRequest *request)
{
    Holdfast__V1__AbortSaveReply reply = HOLDFAST__V1__ABORT_SAVE_REPLY__INIT;
    struct session *session;
    struct commit_actions actions = {0};
    int error = session_find(&session, service, request->session);
    if (error == 0 && !session->is_rank)
        error = report_error(ERR_NOT_FOUND, "describe first", "the session is not a rank's");
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    struct save *save = save_find(session->run, request->save);
    const struct commit_save *known = commit_find(&session->run->machine, request->save);
    /* Not its own, over, or about to be committed (a worker holds it): nothing is given up. */
    if (save && known && known->state == COMMIT_STAGING &&
        save->stages[session->rank].session == session) {
        if (save->fault.code == 0) {
            report_error(ERR_ABORTED, NULL, "%.200s", request->reason);
            fault_take(&save->fault, ERR_ABORTED);
        }
        commit_failed(&session->run->machine, &actions, save->id, session->rank, ERR_ABORTED,
                      "a rank gave it up");
        run_perform(session->run, &actions);
    }
    session_let_go(session, request->save);
    rpc_call_reply(call, &reply.base);
}
