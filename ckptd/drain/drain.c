/* drain.c - the drain: what the local tier has committed and the far one lacks goes there, one
 * checkpoint after the other. transfer.c decides, this file performs:
 *
 *   pick.c: which is next ──► its manifest is read ──► TRANSFER_CLAIM    claim.c
 *                                                      TRANSFER_COPY     ship.c, shard by shard
 *                                                      TRANSFER_NAMES    names synced
 *                                                      TRANSFER_PUBLISH  the far manifest
 *                                                      TRANSFER_SETTLE   whose manifest is there?
 *   the catalog, who waits, one log line  ◄────────── TRANSFER_HELD
 *
 * The far tier's manifest is the local one with the hashes of what was sent behind it
 * (proto/manifest.h). The queue is what the tiers hold; a start looks at the far tier first and
 * goes on where the last process stopped. What somebody waits for goes first and unpaced.
 *
 * A checkpoint whose attempt number or place another store has taken is given up until a restart,
 * with an alarm: a person must act. So is one that is damaged here. */
#include "ckptd/drain/drain.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/drain/claim.h"
#include "ckptd/drain/far.h"
#include "ckptd/drain/queue.h"
#include "ckptd/drain/ship.h"
#include "ckptd/drain/transfer.h"
#include "ckptd/history.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/manifest.h"
#include "proto/origin.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct drain_waiter {
    struct drain_waiter *next;
    struct service *service;
    struct rpc_call *call;
    struct run *run;
    uint64_t step, attempt;
    struct timer timer;
};

struct drain {
    struct service *service;
    struct far_waiter first_look;
    struct timer look_again;
    bool has_looked; /* at the far tier, since the start */
    /* The checkpoint under way. */
    struct transfer machine;
    struct ship ship;
    struct checkpoint *checkpoint; /* leased; NULL: none */
    struct manifest *manifest;
    struct claim claim;
    enum publication outcome;
    struct fault fault; /* of the step under way */
    uint64_t text_hash; /* of the manifest that was sent */
    struct job job;
    struct timer rest;
    int64_t begun_ms;
    uint64_t bytes_before; /* ship.bytes_sent when it began */
    bool is_held;          /* how it ended */
    /* Since the start. */
    struct drain_waiter *waiters;
    uint64_t checkpoints, errors, given_up;
    uint64_t left, left_bytes; /* as of the last look */
    double rate;               /* bytes per second of the last checkpoint */
    char newest_error[sizeof((struct checkpoint *)0)->damage];
};

static void perform(struct drain *drain, struct transfer_action action);

static void start_work(struct drain *drain, void (*work)(struct job *),
                       void (*done)(struct event *))
{
    drain->fault = (struct fault){0};
    drain->job = (struct job){.work = work, .done.run = done};
    tier_work(drain->service, TIER_FAR, &drain->job);
}

static struct storage *far_of(const struct drain *drain)
{
    return drain->service->tiers[TIER_FAR].storage;
}

/* ---- who waits ---- */

static void answer(struct drain_waiter *waiter, Holdfast__V1__SaveState state, const char *reason)
{
    Holdfast__V1__WaitSaveReply reply = HOLDFAST__V1__WAIT_SAVE_REPLY__INIT;
    struct drain_waiter **at = &waiter->service->drain->waiters;
    while (*at != waiter)
        at = &(*at)->next;
    *at = waiter->next;
    loop_timer_cancel(waiter->service->loop, &waiter->timer);
    reply.state = state;
    reply.reason = (char *)(uintptr_t)reason;
    reply.durability = (char *)(uintptr_t)durability_text(
        state == HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED ? DURABLE_BUCKET : DURABLE_LOCAL);
    rpc_call_reply(waiter->call, &reply.base);
    free(waiter);
}

static void waited_enough(struct timer *timer)
{
    answer(CONTAINER_OF(timer, struct drain_waiter, timer), HOLDFAST__V1__SAVE_STATE__SAVE_STAGING,
           "");
}

/* Those whose checkpoint is there, or never will be. */
static void answer_waiters(struct drain *drain)
{
    struct drain_waiter *next;
    for (struct drain_waiter *waiter = drain->waiters; waiter; waiter = next) {
        next = waiter->next;
        const struct checkpoint *checkpoint =
            catalog_find(waiter->run, waiter->step, waiter->attempt);
        if (checkpoint && catalog_has_copy(checkpoint, TIER_FAR))
            answer(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED, "");
        else if (!checkpoint)
            answer(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED,
                   "the checkpoint was removed before it was in the far tier");
        else if (checkpoint->given_up[0])
            answer(waiter, HOLDFAST__V1__SAVE_STATE__SAVE_FAILED, checkpoint->given_up);
    }
}

void drain_wait(struct service *service, struct rpc_call *call, struct checkpoint *checkpoint,
                uint32_t timeout_ms)
{
    struct drain_waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter) {
        rpc_call_fail(call, report_error(ERR_MEMORY, NULL, "no memory to wait for a checkpoint"));
        return;
    }
    *waiter = (struct drain_waiter){.next = service->drain->waiters,
                                    .service = service,
                                    .call = call,
                                    .run = checkpoint->run,
                                    .step = checkpoint->summary.step,
                                    .attempt = checkpoint->summary.attempt,
                                    .timer.run = waited_enough};
    service->drain->waiters = waiter;
    checkpoint->is_wanted_far = true;
    loop_timer(service->loop, &waiter->timer,
               timeout_ms < service->config->limit_wait_ms ? (int64_t)timeout_ms
                                                           : service->config->limit_wait_ms);
    answer_waiters(service->drain);
    drain_look(service);
}

/* ---- the end of one ---- */

static void work_close(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    claim_end(&drain->claim, drain->is_held);
}

static void closed(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    struct checkpoint *checkpoint = drain->checkpoint;
    manifest_free(drain->manifest);
    drain->manifest = NULL;
    drain->checkpoint = NULL;
    catalog_unlease(checkpoint);
    answer_waiters(drain);
    drain->service->coordinator_policy->apply_retention(checkpoint->run);
    drain_look(drain->service);
}

static void close_transfer(struct drain *drain, bool is_held)
{
    drain->is_held = is_held;
    start_work(drain, work_close, closed);
}

static void do_held(struct drain *drain, const struct transfer_action *action)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    const struct manifest_summary *summary = &checkpoint->summary;
    double seconds = (double)(loop_now_ms() - drain->begun_ms) / 1000.0;
    uint64_t sent = drain->ship.bytes_sent - drain->bytes_before;
    (void)action;
    catalog_found(checkpoint, TIER_FAR);
    checkpoint->is_wanted_far = false;
    checkpoint->copies[TIER_FAR].read_ms = loop_now_ms();
    checkpoint->far_manifest_hash = drain->text_hash;
    drain->checkpoints++;
    drain->rate = seconds > 0 ? (double)sent / seconds : drain->rate;
    drain->newest_error[0] = '\0';
    history_note(checkpoint->run, &(struct history_event){.name = "drain",
                                                          .step = summary->step,
                                                          .attempt = summary->attempt,
                                                          .by = "ckptd"});
    log_info("drain",
             "run %s, step %llu, attempt %llu is in the far tier: %llu of %llu bytes sent in "
             "%.3f s (%.3f GB/s), durability %s",
             checkpoint->run->name, (unsigned long long)summary->step,
             (unsigned long long)summary->attempt, (unsigned long long)sent,
             (unsigned long long)summary->bytes, seconds,
             seconds > 0 ? (double)sent / seconds / 1e9 : 0.0, durability_text(DURABLE_BUCKET));
    close_transfer(drain, true);
}

static void give_up(struct drain *drain, const char *why)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    snprintf(checkpoint->given_up, sizeof checkpoint->given_up, "%s", why);
    drain->given_up++;
    log_error("drain",
              "run %s, step %llu, attempt %llu does not go into the far tier until ckptd is "
              "started again: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt, why);
}

static void do_over(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    give_up(drain, drain->fault.message);
    if (drain->ship.is_of_source && catalog_is_proof(&drain->fault) &&
        catalog_has_copy(drain->checkpoint, TIER_LOCAL))
        catalog_damage(drain->checkpoint, TIER_LOCAL, &drain->fault);
    close_transfer(drain, false);
}

/* ---- a rest ---- */

static void rested(struct timer *timer)
{
    struct drain *drain = CONTAINER_OF(timer, struct drain, rest);
    perform(drain, transfer_rested(&drain->machine));
}

static void do_rest(struct drain *drain, const struct transfer_action *action)
{
    bool is_first = !drain->newest_error[0];
    drain->errors++;
    catalog_damage_text(drain->newest_error, sizeof drain->newest_error, &drain->fault);
    if (is_first)
        log_error("drain", "the far tier takes nothing, and is tried again: %s",
                  drain->newest_error);
    loop_timer(drain->service->loop, &drain->rest, action->ms);
}

/* ---- claim ---- */

static void work_claim(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    drain->outcome = claim_take(&drain->claim, drain->service, &drain->manifest->summary);
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
}

static void claimed(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    perform(drain, transfer_claimed(&drain->machine, drain->outcome));
}

static void do_claim(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    start_work(drain, work_claim, claimed);
}

/* ---- shards ---- */

static void arrived(struct ship *ship)
{
    struct drain *drain = CONTAINER_OF(ship, struct drain, ship);
    drain->fault = ship->fault;
    if (ship->fault.code == 0) {
        memcpy(drain->manifest->part_sums[ship->shard].sha256, ship->sha256, CHECKSUM_SHA256_HEX);
        drain->newest_error[0] = '\0';
    }
    perform(drain,
            transfer_copied(&drain->machine, ship->shard, ship->fault.code, ship->is_of_source));
}

static void do_copy(struct drain *drain, const struct transfer_action *action)
{
    drain->ship.is_hurried = drain->checkpoint->is_wanted_far;
    ship_start(&drain->ship, drain->checkpoint, drain->manifest, action->shard);
}

/* ---- names and manifest ---- */

/* One that was renamed has the name that manifest and shards know beside it. */
static int publish_origin(const struct drain *drain)
{
    char key[STORAGE_KEY_MAX + 1], text[ORIGIN_BYTES_MAX];
    const struct manifest_summary *summary = &drain->manifest->summary;
    if (!summary->origin[0])
        return 0;
    ERR_TRY(origin_key(key, sizeof key, summary));
    origin_write(text, summary->origin, summary->nonce);
    enum publication outcome = tier_publish(far_of(drain), key, text, strlen(text), summary->nonce);
    return outcome == PUBLICATION_DURABLE ? 0 : ERR_IO;
}

static void work_names(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    int error = publish_origin(drain);
    if (error == 0)
        error = storage_sync_names(far_of(drain), drain->claim.prefix);
    if (error != 0)
        fault_take(&drain->fault, error);
}

static void named(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    perform(drain, transfer_named(&drain->machine, drain->fault.code));
}

static void do_names(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    start_work(drain, work_names, named);
}

static void work_publish(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    struct manifest far = *drain->manifest;
    char key[STORAGE_KEY_MAX + 1], *text = NULL;
    size_t bytes = 0;
    drain->outcome = PUBLICATION_ABSENT;
    int error = manifest_key(key, sizeof key, &far.summary);
    if (far.summary.origin[0])
        memcpy(far.summary.run, far.summary.origin, sizeof far.summary.run);
    far.summary.version = MANIFEST_VERSION_OF_TIER;
    far.part_bytes = (uint64_t)drain->service->config->tier_part_bytes;
    if (error == 0)
        error = manifest_write(&text, &bytes, &far);
    if (error == 0) {
        drain->text_hash = checksum_bytes(text, bytes);
        drain->outcome = tier_publish(far_of(drain), key, text, bytes, far.summary.nonce);
        error = drain->outcome == PUBLICATION_DURABLE ? 0 : ERR_IO;
    }
    free(text);
    if (error != 0)
        fault_take(&drain->fault, error);
}

static void published(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    perform(drain, transfer_published(&drain->machine, drain->outcome));
}

static void do_publish(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    start_work(drain, work_publish, published);
}

static void work_settle(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    char key[STORAGE_KEY_MAX + 1];
    const struct manifest_summary *summary = &drain->manifest->summary;
    drain->outcome = manifest_key(key, sizeof key, summary) == 0
                         ? tier_settle(far_of(drain), key, summary->nonce)
                         : PUBLICATION_UNKNOWN;
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
}

static void settled(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    perform(drain, transfer_settled(&drain->machine, drain->outcome));
}

static void do_settle(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    start_work(drain, work_settle, settled);
}

/* ---- what is decided, and by whom it is done ---- */

static void do_nothing(struct drain *drain, const struct transfer_action *action)
{
    (void)drain;
    (void)action;
}

static void perform(struct drain *drain, struct transfer_action action)
{
    static void (*const performers[])(struct drain *, const struct transfer_action *) = {
        [TRANSFER_NOTHING] = do_nothing, [TRANSFER_CLAIM] = do_claim,
        [TRANSFER_COPY] = do_copy,       [TRANSFER_NAMES] = do_names,
        [TRANSFER_PUBLISH] = do_publish, [TRANSFER_SETTLE] = do_settle,
        [TRANSFER_REST] = do_rest,       [TRANSFER_HELD] = do_held,
        [TRANSFER_OVER] = do_over,
    };
    performers[action.kind](drain, &action);
}

/* ---- the next one ---- */

/* The manifest, and room for the hashes that the far one has behind it. */
static void work_begin(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    int error = catalog_read_manifest(&drain->manifest, drain->service->storage,
                                      &drain->checkpoint->summary);
    if (error == 0 && !manifest_has_header_hashes(drain->manifest))
        error = report_error(ERR_VERSION, "ckpt-cli convert makes a new one of it",
                             "its manifest is of version 1, which no tier takes");
    if (error == 0)
        drain->manifest->part_sums =
            calloc(drain->manifest->summary.shards, sizeof *drain->manifest->part_sums);
    if (error == 0 && !drain->manifest->part_sums)
        error = report_error(ERR_MEMORY, NULL, "no memory for the hashes of shards");
    if (error != 0)
        fault_take(&drain->fault, error);
}

static void begun(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    const struct config *config = drain->service->config;
    if (drain->fault.code != 0) {
        give_up(drain, drain->fault.message);
        close_transfer(drain, false);
        return;
    }
    perform(drain, transfer_begin(&drain->machine, drain->manifest->summary.shards,
                                  config->tier_retry_ms));
}

void drain_look(struct service *service)
{
    struct drain *drain = service->drain;
    if (!drain || !drain->has_looked || service->draining)
        return;
    if (drain->checkpoint) {
        drain->ship.is_hurried = drain->checkpoint->is_wanted_far;
        ship_look(&drain->ship);
        return;
    }
    drain->checkpoint = queue_next(service, &drain->left, &drain->left_bytes);
    if (!drain->checkpoint)
        return;
    catalog_lease(drain->checkpoint);
    drain->begun_ms = loop_now_ms();
    drain->bytes_before = drain->ship.bytes_sent;
    drain->ship.stamp = drain->ship.pace.quiet_ms;
    drain->claim = (struct claim){0};
    start_work(drain, work_begin, begun);
}

void drain_phase_changed(struct service *service)
{
    if (service->drain)
        ship_look(&service->drain->ship);
}

/* ---- beginning and end ---- */

static void look_first(struct timer *timer)
{
    struct drain *drain = CONTAINER_OF(timer, struct drain, look_again);
    far_look(drain->service, &drain->first_look, drain->service->config->tier_wait_ms);
}

/* Without knowing what is there everything would be read again. */
static void looked_first(struct far_waiter *waiter)
{
    struct drain *drain = CONTAINER_OF(waiter, struct drain, first_look);
    if (drain->service->is_closing)
        return;
    drain->has_looked = waiter->fault.code == 0;
    if (!drain->has_looked)
        loop_timer(drain->service->loop, &drain->look_again, drain->service->config->tier_retry_ms);
    drain_look(drain->service);
}

int drain_open(struct service *service)
{
    if (!tier_has_far(service))
        return 0;
    struct drain *drain = calloc(1, sizeof *drain);
    if (!drain)
        return report_error(ERR_MEMORY, NULL, "no memory for the drain");
    service->drain = drain;
    drain->service = service;
    drain->first_look.go_on = looked_first;
    drain->look_again.run = look_first;
    drain->rest.run = rested;
    int error = ship_open(&drain->ship, service, TIER_LOCAL, TIER_FAR);
    drain->ship.arrived = arrived;
    if (error == 0)
        far_look(service, &drain->first_look, service->config->tier_wait_ms);
    return error;
}

void drain_end(struct service *service)
{
    while (service->drain && service->drain->waiters)
        answer(service->drain->waiters, HOLDFAST__V1__SAVE_STATE__SAVE_STAGING, "");
}

void drain_close(struct service *service)
{
    if (!service->drain)
        return;
    ship_close(&service->drain->ship);
    claim_leave(&service->drain->claim, service);
    manifest_free(service->drain->manifest);
    free(service->drain);
    service->drain = NULL;
}

/* ---- Status ---- */

static json_t *describe_now(const struct drain *drain)
{
    static const char *const states[] = {"begin", "claim", "copy", "names", "publish", "settle"};
    const struct checkpoint *checkpoint = drain->checkpoint;
    if (!checkpoint)
        return json_null();
    uint64_t sent = drain->ship.bytes_sent - drain->bytes_before;
    double seconds = (double)(loop_now_ms() - drain->begun_ms) / 1000.0;
    double rate = seconds > 0 ? (double)sent / seconds : 0;
    uint64_t left = checkpoint->summary.bytes > sent ? checkpoint->summary.bytes - sent : 0;
    return json_pack("{s:s, s:I, s:I, s:s, s:b, s:I, s:I, s:f, s:o}", "run", checkpoint->run->name,
                     "step", (json_int_t)checkpoint->summary.step, "attempt",
                     (json_int_t)checkpoint->summary.attempt, "state", states[drain->machine.state],
                     "resting", (int)drain->machine.is_resting, "bytes_sent", (json_int_t)sent,
                     "bytes", (json_int_t)checkpoint->summary.bytes, "bytes_per_second", rate,
                     "seconds_left", rate > 0 ? json_real((double)left / rate) : json_null());
}

json_t *drain_describe(const struct service *service)
{
    const struct drain *drain = service->drain;
    json_int_t held = 0;
    if (!drain)
        return json_null();
    const char *unread = service->tiers[TIER_FAR].offline; /* else it may take nothing */
    const char *offline = unread[0] ? unread : drain->newest_error;
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
            held += c->copies[TIER_FAR].is_there;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:o}",
                     "store", service->config->tier_store, "storage",
                     storage_describe(service->tiers[TIER_FAR].storage), "offline", offline,
                     "checkpoints", held, "waiting", (json_int_t)drain->left, "waiting_bytes",
                     (json_int_t)drain->left_bytes, "drained", (json_int_t)drain->checkpoints,
                     "bytes_sent", (json_int_t)drain->ship.bytes_sent, "bytes_from_memory",
                     (json_int_t)drain->ship.bytes_from_memory, "errors", (json_int_t)drain->errors,
                     "given_up", (json_int_t)drain->given_up, "bytes_per_second", drain->rate,
                     "last_error", drain->newest_error, "now", describe_now(drain));
}
