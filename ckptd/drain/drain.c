/* drain.c - a drain per tier: what another tier has committed and this one lacks goes there, one
 * checkpoint after the other; into the far one and to each peer from the local one. A copy that is
 * damaged, here or in the far tier, is mended the same way, from a tier that has it whole: its good
 * shards are kept, the others replaced (ship.c), and the quarantine is lifted. So does what ranks
 * have loaded from another tier into the local one, when it fits (room.c). transfer.c decides, this
 * file performs:
 *
 *   pick.c: which is next ──► its manifest is read ──► TRANSFER_CLAIM    claim.c
 *                                                      TRANSFER_COPY     ship.c, shard by shard
 *                                                      TRANSFER_NAMES    names synced
 *                                                      TRANSFER_PUBLISH  the far manifest
 *                                                      TRANSFER_SETTLE   whose manifest is there?
 *   the catalog, who waits, one log line  ◄────────── TRANSFER_HELD
 *
 * Each tier's manifest: marker.c. The queue is what the tiers hold; a start looks at the far tier
 * first and goes on where the last process stopped. What somebody waits for goes first and unpaced.
 *
 * A checkpoint whose attempt number or place another store has taken is given up until a restart,
 * with an alarm: a person must act. So is one that is damaged here. */
#include "ckptd/drain/drain.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/drain/claim.h"
#include "ckptd/drain/far.h"
#include "ckptd/drain/level.h"
#include "ckptd/drain/marker.h"
#include "ckptd/drain/queue.h"
#include "ckptd/drain/room.h"
#include "ckptd/drain/ship.h"
#include "ckptd/drain/transfer.h"
#include "ckptd/history.h"
#include "ckptd/run/coordinator.h"
#include "ckptd/service.h"
#include "proto/ckpt.pb-c.h"
#include "proto/manifest.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct drain {
    struct service *service;
    enum tier_index tier;
    enum tier_index from; /* of the checkpoint under way */
    struct look_waiter first_look;
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
    uint64_t bytes_before;      /* ship.bytes_sent when it began */
    bool is_held;               /* how it ended */
    bool is_mending;            /* the copy there is damaged */
    struct ledger_promise room; /* on the local disk, for one that was loaded from elsewhere */
    /* Since the start. */
    uint64_t checkpoints, mended, errors, given_up;
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
    tier_work(drain->service, tier_of_crew(drain->from, drain->tier), &drain->job);
}

static struct storage *far_of(const struct drain *drain)
{
    return drain->service->tiers[drain->tier].storage;
}

/* ---- the end of one ---- */

/* Comes what is loaded from another tier into this one? */
static bool is_keeping(const struct drain *drain)
{
    return drain->tier == TIER_LOCAL && !drain->is_mending;
}

/* What was not ended here is no use without its manifest, and takes space. */
static void remove_rest(const struct drain *drain, const char *prefix)
{
    int error = storage_group_clear(far_of(drain), &checkpoint_kind, prefix);
    if (error != 0)
        log_warn("drain", "%s stays until the next start: %s", prefix, report_line());
}

static void work_close(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    char prefix[STORAGE_KEY_MAX];
    memcpy(prefix, drain->claim.prefix, sizeof prefix);
    claim_end(&drain->claim, drain->is_held);
    if (!drain->is_held && is_keeping(drain) && prefix[0])
        remove_rest(drain, prefix);
    if (!drain->is_held || !drain->is_mending)
        return;
    int error = storage_group_unnote(far_of(drain), STORAGE_QUARANTINE, prefix);
    if (error != 0 && error != ERR_NOT_FOUND) /* an error of a read leaves none */
        log_warn("drain", "%s stays in quarantine for the next start: %s", prefix, report_line());
}

/* Whole again: for the list, the journal and status. */
static void note_mended(struct drain *drain)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    char detail[128];
    snprintf(detail, sizeof detail, "the copy in the tier %s, from the tier %s",
             tier_name(drain->service, drain->tier), tier_name(drain->service, drain->from));
    drain->mended++;
    catalog_mended(checkpoint, drain->tier);
    checkpoint->copies[drain->tier].read_ms = loop_now_ms();
    history_note(checkpoint->run, &(struct history_event){.name = "mend",
                                                          .step = checkpoint->summary.step,
                                                          .attempt = checkpoint->summary.attempt,
                                                          .by = "ckptd",
                                                          .detail = detail});
    log_info("drain", "run %s, step %llu, attempt %llu: mended %s, %llu bytes",
             checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
             (unsigned long long)checkpoint->summary.attempt, detail,
             (unsigned long long)(drain->ship.bytes_sent - drain->bytes_before));
}

static void closed(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    struct checkpoint *checkpoint = drain->checkpoint;
    if (drain->is_held && drain->is_mending)
        note_mended(drain);
    room_end(&drain->room, drain->service);
    manifest_free(drain->manifest);
    drain->manifest = NULL;
    drain->checkpoint = NULL;
    catalog_unlease(checkpoint);
    level_look(drain->service);
    drain->service->coordinator_policy->apply_retention(checkpoint->run);
    drain_look(drain->service);
}

static void close_transfer(struct drain *drain, bool is_held)
{
    drain->is_held = is_held;
    start_work(drain, work_close, closed);
}

/* It takes what is sent. */
static void forget_error(struct drain *drain)
{
    drain->newest_error[0] = '\0';
    drain->service->tiers[drain->tier].takes_nothing = false;
}

static void do_held(struct drain *drain, const struct transfer_action *action)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    const struct manifest_summary *summary = &checkpoint->summary;
    double seconds = (double)(loop_now_ms() - drain->begun_ms) / 1000.0;
    uint64_t sent = drain->ship.bytes_sent - drain->bytes_before;
    (void)action;
    forget_error(drain);
    if (drain->is_mending) {
        close_transfer(drain, true);
        return;
    }
    catalog_found(checkpoint, drain->tier);
    checkpoint->is_wanted_far &= drain->tier != TIER_FAR;
    checkpoint->is_wanted_local &= drain->tier != TIER_LOCAL;
    checkpoint->copies[drain->tier].read_ms = loop_now_ms();
    checkpoint->copies[drain->tier].manifest_hash = drain->text_hash;
    drain->checkpoints++;
    drain->rate = seconds > 0 ? (double)sent / seconds : drain->rate;
    history_note(checkpoint->run,
                 &(struct history_event){.name = is_keeping(drain)         ? "keep"
                                                 : drain->tier == TIER_FAR ? "drain"
                                                                           : "replicate",
                                         .step = summary->step,
                                         .attempt = summary->attempt,
                                         .by = "ckptd"});
    log_info("drain",
             "run %s, step %llu, attempt %llu is in the tier %s: %llu of %llu bytes sent in "
             "%.3f s (%.3f GB/s), durability %s",
             checkpoint->run->name, (unsigned long long)summary->step,
             (unsigned long long)summary->attempt, tier_name(drain->service, drain->tier),
             (unsigned long long)sent, (unsigned long long)summary->bytes, seconds,
             seconds > 0 ? (double)sent / seconds / 1e9 : 0.0,
             durability_text(catalog_durability(checkpoint)));
    close_transfer(drain, true);
}

static void give_up(struct drain *drain, const char *why)
{
    struct checkpoint *checkpoint = drain->checkpoint;
    checkpoint->copies[drain->tier].is_given_up = true;
    if (drain->tier == TIER_FAR)
        snprintf(checkpoint->given_up, sizeof checkpoint->given_up, "%s", why);
    drain->given_up++;
    log_error("drain",
              "run %s, step %llu, attempt %llu does not go into the tier %s until ckptd is "
              "started again: %s",
              checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
              (unsigned long long)checkpoint->summary.attempt,
              tier_name(drain->service, drain->tier), why);
}

static void do_over(struct drain *drain, const struct transfer_action *action)
{
    (void)action;
    bool is_damage = drain->ship.is_of_source && catalog_is_proof(&drain->fault) &&
                     catalog_has_copy(drain->checkpoint, drain->ship.from);
    if (!is_damage || drain->ship.from == TIER_LOCAL)
        give_up(drain, drain->fault.message); /* else another tier may have it whole */
    if (is_damage)
        catalog_damage(drain->checkpoint, drain->ship.from, &drain->fault);
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
    drain->service->tiers[drain->tier].takes_nothing = true;
    drain->errors++;
    catalog_damage_text(drain->newest_error, sizeof drain->newest_error, &drain->fault);
    if (is_first)
        log_error("drain", "the tier %s takes nothing, and is tried again: %s",
                  tier_name(drain->service, drain->tier), drain->newest_error);
    loop_timer(drain->service->loop, &drain->rest, action->ms);
    if (is_first)
        drain_look(drain->service); /* another node may do */
}

/* ---- claim ---- */

static void work_claim(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    drain->outcome =
        claim_take(&drain->claim, drain->service, drain->tier, &drain->manifest->summary);
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

static bool is_absent_or_damaged(const struct fault *fault)
{
    return fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND;
}

/* A source that does not answer says nothing about what lies there; a disk of this node with errors
 * is not troubled for what is whole elsewhere. */
static bool no_try_helps(const struct drain *drain, const struct ship *ship)
{
    if (!ship->is_of_source)
        return is_keeping(drain);
    return drain->from == TIER_LOCAL || is_absent_or_damaged(&ship->fault);
}

static void arrived(struct ship *ship)
{
    struct drain *drain = CONTAINER_OF(ship, struct drain, ship);
    drain->fault = ship->fault;
    if (ship->fault.code == 0) {
        if (drain->tier == TIER_FAR)
            memcpy(drain->manifest->part_sums[ship->shard].sha256, ship->sha256,
                   CHECKSUM_SHA256_HEX);
        forget_error(drain);
    }
    if (ship->fault.code == 0 && is_keeping(drain))
        room_use(&drain->room, drain->service, ship->geometry.file_bytes);
    perform(drain, transfer_copied(&drain->machine, ship->shard, ship->fault.code,
                                   no_try_helps(drain, ship)));
}

static void do_copy(struct drain *drain, const struct transfer_action *action)
{
    drain->ship.is_hurried = queue_is_wanted(drain->checkpoint, drain->tier);
    ship_start(&drain->ship, drain->checkpoint, drain->manifest, action->shard);
}

/* ---- names and manifest ---- */

static void work_names(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    int error = marker_publish_origin(far_of(drain), &drain->manifest->summary);
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
    const struct marker marker = {.service = drain->service,
                                  .manifest = drain->manifest,
                                  .from = drain->from,
                                  .to = drain->tier,
                                  .is_mending = drain->is_mending};
    drain->outcome = marker_publish(&marker, &drain->text_hash);
    if (drain->outcome != PUBLICATION_DURABLE)
        fault_take(&drain->fault, ERR_IO);
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

static int make_room_for_sums(struct manifest *manifest)
{
    if (!manifest->part_sums)
        manifest->part_sums = calloc(manifest->summary.shards, sizeof *manifest->part_sums);
    return manifest->part_sums
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for the hashes of shards");
}

/* The manifest, and room for the hashes that the far one has behind it. */
static void work_begin(struct job *job)
{
    struct drain *drain = CONTAINER_OF(job, struct drain, job);
    int error = catalog_read_manifest(&drain->manifest, drain->service->tiers[drain->from].storage,
                                      &drain->checkpoint->summary);
    if (error == 0 && !manifest_has_header_hashes(drain->manifest))
        error = report_error(ERR_VERSION, "ckpt-cli convert makes a new one of it",
                             "its manifest is of version 1, which no tier takes");
    if (error == 0)
        error = make_room_for_sums(drain->manifest);
    if (error != 0)
        fault_take(&drain->fault, error);
}

/* Another tier that does not answer is asked again, later. */
static void begin_failed(struct drain *drain)
{
    if (drain->from == TIER_LOCAL) {
        give_up(drain, drain->fault.message);
    } else if (is_absent_or_damaged(&drain->fault)) {
        catalog_damage(drain->checkpoint, drain->from, &drain->fault);
    } else {
        drain->errors++;
        catalog_damage_text(drain->newest_error, sizeof drain->newest_error, &drain->fault);
        drain->has_looked = false;
        loop_timer(drain->service->loop, &drain->look_again, drain->service->config->tier_retry_ms);
    }
    close_transfer(drain, false);
}

/* It is served from where it lies. */
static void lacks_room(struct drain *drain)
{
    drain->checkpoint->is_wanted_local = false;
    log_warn("drain", "run %s, step %llu is not kept on this node's disk: %s",
             drain->checkpoint->run->name, (unsigned long long)drain->checkpoint->summary.step,
             report_line());
    close_transfer(drain, false);
}

static void begun(struct event *event)
{
    struct drain *drain = CONTAINER_OF(event, struct drain, job.done);
    const struct config *config = drain->service->config;
    if (drain->fault.code != 0) {
        begin_failed(drain);
        return;
    }
    if (is_keeping(drain) &&
        room_promise(&drain->room, drain->service, &drain->checkpoint->summary) != 0) {
        lacks_room(drain);
        return;
    }
    perform(drain, transfer_begin(&drain->machine, drain->manifest->summary.shards,
                                  config->tier_retry_ms));
}

static void look_at_queue(struct drain *drain)
{
    struct service *service = drain->service;
    if (!drain->has_looked || service->draining)
        return;
    if (drain->checkpoint) {
        drain->ship.is_hurried = queue_is_wanted(drain->checkpoint, drain->tier);
        ship_look(&drain->ship);
        return;
    }
    drain->checkpoint = queue_next(service, drain->tier, &drain->left, &drain->left_bytes);
    if (!drain->checkpoint)
        return;
    catalog_lease(drain->checkpoint);
    drain->begun_ms = loop_now_ms();
    drain->bytes_before = drain->ship.bytes_sent;
    drain->from = drain->ship.from = queue_source(drain->checkpoint, drain->tier);
    drain->is_mending = queue_is_damaged(drain->checkpoint, drain->tier);
    drain->ship.stamp = drain->ship.pace.quiet_ms;
    drain->claim = (struct claim){0};
    drain->room = (struct ledger_promise){0};
    start_work(drain, work_begin, begun);
}

void drain_look(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->drains[tier])
            look_at_queue(service->drains[tier]);
}

void drain_phase_changed(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->drains[tier])
            ship_look(&service->drains[tier]->ship);
}

/* ---- beginning and end ---- */

static void look_first(struct timer *timer)
{
    struct drain *drain = CONTAINER_OF(timer, struct drain, look_again);
    if (drain->tier == TIER_LOCAL) { /* which is known */
        drain->has_looked = true;
        drain_look(drain->service);
        return;
    }
    far_look(drain->service, drain->tier, &drain->first_look, drain->service->config->tier_wait_ms);
}

/* Without knowing what is there everything would be read again. */
static void looked_first(struct look_waiter *waiter)
{
    struct drain *drain = CONTAINER_OF(waiter, struct drain, first_look);
    if (drain->service->is_closing)
        return;
    drain->has_looked = waiter->fault.code == 0;
    if (!drain->has_looked)
        loop_timer(drain->service->loop, &drain->look_again, drain->service->config->tier_retry_ms);
    drain_look(drain->service);
}

static int open_one(struct service *service, enum tier_index tier)
{
    struct drain *drain = calloc(1, sizeof *drain);
    if (!drain)
        return report_error(ERR_MEMORY, NULL, "no memory for a drain");
    service->drains[tier] = drain;
    drain->service = service;
    drain->tier = tier;
    drain->first_look.go_on = looked_first;
    drain->look_again.run = look_first;
    drain->rest.run = rested;
    int error = ship_open(&drain->ship, service, tier);
    drain->ship.arrived = arrived;
    drain->has_looked = tier == TIER_LOCAL;
    if (error == 0 && tier != TIER_LOCAL)
        far_look(service, tier, &drain->first_look, service->config->tier_wait_ms);
    return error;
}

int drain_open(struct service *service)
{
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++)
        if (tier_is_open(service, (enum tier_index)tier))
            ERR_TRY(open_one(service, (enum tier_index)tier));
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++)
        if (service->drains[tier] && !service->drains[TIER_LOCAL])
            ERR_TRY(open_one(service, TIER_LOCAL)); /* what is damaged can be had from there */
    return 0;
}

void drain_close(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        struct drain *drain = service->drains[tier];
        if (!drain)
            continue;
        ship_close(&drain->ship);
        claim_leave(&drain->claim);
        manifest_free(drain->manifest);
        free(drain);
        service->drains[tier] = NULL;
    }
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

json_t *drain_describe(const struct service *service, enum tier_index tier)
{
    const struct drain *drain = service->drains[tier];
    const bool is_far = tier == TIER_FAR;
    json_int_t held = 0;
    if (!drain)
        return json_null();
    const char *unread = service->tiers[tier].offline; /* else it may take nothing */
    const char *offline = unread[0] ? unread : drain->newest_error;
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
            held += c->copies[tier].is_there;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, s:o}",
                     "store", is_far ? service->config->tier_store : tier_name(service, tier),
                     "storage", storage_describe(service->tiers[tier].storage), "offline", offline,
                     "checkpoints", held, "waiting", (json_int_t)drain->left, "waiting_bytes",
                     (json_int_t)drain->left_bytes, "drained", (json_int_t)drain->checkpoints,
                     "mended", (json_int_t)drain->mended, "bytes_sent",
                     (json_int_t)drain->ship.bytes_sent, "bytes_from_memory",
                     (json_int_t)drain->ship.bytes_from_memory, "errors", (json_int_t)drain->errors,
                     "given_up", (json_int_t)drain->given_up, "bytes_per_second", drain->rate,
                     "last_error", drain->newest_error, "now", describe_now(drain));
}
