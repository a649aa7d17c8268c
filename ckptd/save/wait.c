/* wait.c - WaitSave: clients that wait for a save, their answers, and the end of throttling for
 * them.
 *
 * Limit: SERVICE_WAIT_MS_MAX per WaitSave (answered SAVE_STAGING). */
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/stage.h"
#include "ckptd/memory/throttle_queue.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/save.h"
#include "ckptd/tiers/wait_durability.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- answers ---- */

/* Has every rank announced its end? Then the end of the attempt still commits it. */
static bool is_accepted(const struct save *save)
{
    const struct commit_save *known = commit_find(&save->run->coordinator->machine, save->id);
    if (save->is_part)
        return save->is_accepted;
    return known != NULL && known->num_ended == known->world_size;
}

/* With its present level. */
static void answer_committed(struct rpc_call *call, const struct checkpoint *checkpoint,
                             const char *reason)
{
    Holdfast__V1__WaitSaveReply reply = HOLDFAST__V1__WAIT_SAVE_REPLY__INIT;
    enum durability level = catalog_durability(checkpoint);
    reply.state = HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED;
    reply.durability =
        (char *)(uintptr_t)(level > DURABLE_LOCAL ? copies_level(checkpoint) : DURABILITY_LOCAL);
    reply.reason = (char *)(uintptr_t)reason;
    rpc_call_reply(call, &reply.base);
}

/* `save`: while it is in work; else NULL. */
static void answer_wait(struct rpc_call *call, const struct save *save,
                        Holdfast__V1__SaveState state, const char *reason)
{
    Holdfast__V1__WaitSaveReply reply = HOLDFAST__V1__WAIT_SAVE_REPLY__INIT;
    reply.state = state;
    reply.accepted = state == HOLDFAST__V1__SAVE_STATE__SAVE_STAGING && is_accepted(save);
    reply.durability = state == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED ? DURABILITY_LOCAL
                       : state == HOLDFAST__V1__SAVE_STATE__SAVE_STAGING ? "accepted"
                                                                         : "";
    reply.reason = (char *)(uintptr_t)reason;
    rpc_call_reply(call, &reply.base);
}

void save_answer_waiters(struct save *save, Holdfast__V1__SaveState state, const char *reason)
{
    while (save->waiters) {
        struct save_waiter *waiter = save->waiters;
        save->waiters = waiter->next;
        loop_timer_cancel(save->service->loop, &waiter->timer);
        /* For a better level than local the wait continues after the commit. */
        if (state == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED && waiter->level > DURABLE_LOCAL)
            wait_durability(save->service, waiter->call,
                            catalog_find(save->run, save->step, save->attempt), waiter->level,
                            waiter->timeout_ms);
        else
            answer_wait(waiter->call, save, state, reason);
        free(waiter);
    }
}

const char *save_warning_text(char out[SAVE_WARNING_BYTES], const struct checkpoint *checkpoint)
{
    const struct repeat *repeat = &checkpoint->repeat;
    size_t used = 0;
    out[0] = '\0';
    if (repeat->attempt != 0)
        used = (size_t)snprintf(
            out, SAVE_WARNING_BYTES,
            "every tensor equals the checkpoint of step %llu, attempt %llu, to the bit",
            (unsigned long long)repeat->step, (unsigned long long)repeat->attempt);
    if (checkpoint->replicas)
        snprintf(out + used, SAVE_WARNING_BYTES - used, "%sreplicas differ: %s", used ? "; " : "",
                 checkpoint->replicas);
    return out;
}

/* ---- without throttling ---- */

static void hurry_save(struct save *save)
{
    save->urgent = true;
    for (uint32_t i = 0; i < save->world_size; i++)
        stage_hurry(&save->stages[i]);
}

/* Saves of a run are committed in the order of their steps: the older ones as well. */
static void hurry_until(const struct save *save)
{
    for (struct save *older = save->run->coordinator->saves; older; older = older->next)
        if (older->step <= save->step && !older->urgent)
            hurry_save(older);
    throttle_queue_hurry(save->service);
}

void save_hurry_run(struct run *run)
{
    for (struct save *save = run->coordinator->saves; save; save = save->next)
        hurry_save(save);
    throttle_queue_hurry(run->service);
}

void save_hurry_all(struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next)
        save_hurry_run(run);
}

/* ---- waiting ---- */

static void wait_expired(struct timer *timer)
{
    struct save_waiter *waiter = CONTAINER_OF(timer, struct save_waiter, timer);
    struct save_waiter **at = &waiter->save->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    answer_wait(waiter->call, waiter->save, HOLDFAST__V1__SAVE_STATE__SAVE_STAGING, "");
    free(waiter);
}

/* The last rank has announced its end: answers clients that wait only for that. */
void save_answer_accepted(struct save *save)
{
    struct save_waiter **at = &save->waiters, *waiter;
    while (is_accepted(save) && (waiter = *at) != NULL) {
        if (waiter->level > DURABLE_ACCEPTED) {
            at = &waiter->next;
            continue;
        }
        loop_timer_cancel(save->service->loop, &waiter->timer);
        wait_expired(&waiter->timer);
    }
}

static void wait_for(struct save *save, struct rpc_call *call, uint32_t timeout_ms,
                     enum durability level)
{
    struct service *service = save->service;
    struct save_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to wait for a save"));
        return;
    }
    int64_t ms = timeout_ms < SERVICE_WAIT_MS_MAX ? (int64_t)timeout_ms : SERVICE_WAIT_MS_MAX;
    *waiter = (struct save_waiter){.next = save->waiters,
                                   .call = call,
                                   .save = save,
                                   .level = level,
                                   .timeout_ms = timeout_ms,
                                   .timer.run = wait_expired};
    save->waiters = waiter;
    loop_timer(service->loop, &waiter->timer, ms);
    if (ms > 0 && level > DURABLE_ACCEPTED)
        hurry_until(save); /* a query without a wait ends no throttling */
    save_answer_accepted(save);
}

/* ERR_INVALID: unknown level, or one that this ckptd cannot reach. */
static int read_level(enum durability *out, const struct service *service, const char *text)
{
    bool is_known = text[0] == '\0' || durability_parse(out, text);
    bool is_given = *out <= DURABLE_LOCAL || (*out == DURABLE_BUCKET && tier_has_far(service)) ||
                    (*out == DURABLE_REPLICATED && service->config->members.count > 0);
    return is_known && is_given
               ? 0
               : report_error(
                     ERR_INVALID,
                     "wait for accepted or local; bucket needs tier.store, replicated nodes.peers",
                     "this ckptd has no tier that makes a save %.32s", text);
}

void save_wait(struct service *service, struct rpc_call *call,
               const Holdfast__V1__WaitSaveRequest *request)
{
    struct run *run;
    enum durability level = DURABLE_LOCAL;
    int error = read_level(&level, service, request->durability);
    if (error != 0) {
        rpc_call_fail(call, error);
        return;
    }
    if (run_find(&run, service, request->run, false) != 0) {
        answer_wait(call, NULL, HOLDFAST__V1__SAVE_STATE__SAVE_UNKNOWN, report_message());
        return;
    }
    uint64_t attempt = request->attempt ? request->attempt : run->coordinator->machine.attempt;
    struct checkpoint *checkpoint = catalog_find(run, request->step, attempt);
    if (checkpoint && !catalog_is_uncommitted(checkpoint)) {
        char text[SAVE_WARNING_BYTES];
        bool is_fenced = level == DURABLE_BUCKET && run->fenced_attempt == attempt;
        if (level > DURABLE_LOCAL && (catalog_durability(checkpoint) < level || is_fenced))
            wait_durability(service, call, checkpoint, level, request->timeout_ms);
        else
            answer_committed(call, checkpoint, save_warning_text(text, checkpoint));
        return;
    }
    for (struct save *save = run->coordinator->saves; save; save = save->next) {
        if (save->step != request->step || save->attempt != attempt || save->discarding)
            continue;
        wait_for(save, call, request->timeout_ms, level);
        return;
    }
    const struct failure *failure = outcomes_find(service, request->run, request->step, attempt);
    answer_wait(call, NULL,
                failure ? HOLDFAST__V1__SAVE_STATE__SAVE_FAILED
                        : HOLDFAST__V1__SAVE_STATE__SAVE_UNKNOWN,
                failure ? failure->reason : "no such save is known since ckptd started");
}
