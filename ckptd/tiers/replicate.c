/* replicate.c - a replication per tier copies committed checkpoints that the tier lacks, one after
 * the other: from the local tier into the far one and to each peer.
 *
 * It mends a damaged copy, here or in the far tier, in the same way, from a tier that has a whole
 * one. Good shards are kept, the others replaced (shard_copy.c), and the quarantine is lifted. A
 * checkpoint that ranks have loaded from another tier is copied into the local one, if it fits
 * (space_check.c). A part of a save of several nodes is completed to a whole copy, here and at a
 * peer: its own shards are there already, and each of the others comes from its node. This file
 * chooses the next checkpoint, transfer.c decides on the actions, perform.c performs them:
 *
 *   pick.c: which next ──► its manifest is read
 *     ──► TRANSFER_CLAIM    hold.c
 *         TRANSFER_COPY     shard_copy.c, shard by shard
 *         TRANSFER_NAMES    names synced
 *         TRANSFER_PUBLISH  the manifest of that tier
 *         TRANSFER_SETTLE   whose manifest is there?
 *     ──► TRANSFER_HELD     the catalog, waiting clients, one log line
 *
 * precommit_copy.c copies a save before its commit. remote_manifest.c writes each tier's manifest.
 * The queue follows from the contents of the tiers: a start reads the far tier first and continues
 * where the last process stopped. Copies that a client waits for go first and unthrottled.
 *
 * If another store has taken a checkpoint's attempt number or directory, ckptd gives its copy up
 * until a restart, with an alarm: an operator must act. So for a checkpoint that is damaged
 * here. */
#include "ckptd/tiers/replicate.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/config.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/service.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/tiers/queue.h"
#include "ckptd/tiers/replicate_private.h"
#include "ckptd/tiers/space_check.h"
#include "ckptd/tiers/wait_durability.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "storage/engine/measured.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define CHECKS_APART_MS 50 /* between checks that may come in bursts */

/* ---- the next checkpoint ---- */

static int make_room_for_sums(struct manifest *manifest)
{
    if (!manifest->part_sums)
        manifest->part_sums = calloc(manifest->summary.shards, sizeof *manifest->part_sums);
    return manifest->part_sums
               ? 0
               : report_error(ERR_MEMORY, NULL, "no memory for the hashes of shards");
}

/* Reads the manifest, with room for the hashes that follow it in the far tier. */
static void work_begin(struct job *job)
{
    struct replication *replication = CONTAINER_OF(job, struct replication, job);
    int error = store_read_manifest(&replication->manifest,
                                    replication->service->tiers[replication->from].storage,
                                    &replication->checkpoint->summary);
    if (error == 0 && !manifest_has_header_hashes(replication->manifest))
        error = report_error(ERR_VERSION, "make a new one with ckpt-cli convert",
                             "its manifest is of version 1, which no tier accepts");
    if (error == 0)
        error = make_room_for_sums(replication->manifest);
    if (error != 0)
        fault_take(&replication->fault, error);
}

/* A source tier that does not answer is tried again later. */
static void begin_failed(struct replication *replication)
{
    if (replication->from == TIER_LOCAL) {
        perform_give_up(replication, replication->fault.message);
    } else if (replicate_is_loss(&replication->fault)) {
        catalog_damage(replication->checkpoint, replication->from, &replication->fault);
    } else {
        replication->errors++;
        catalog_damage_text(replication->newest_error, sizeof replication->newest_error,
                            &replication->fault);
        replication->is_refreshed = false;
        loop_timer(replication->service->loop, &replication->retry_timer,
                   replication->service->config->tier_retry_ms);
    }
    perform_close(replication, false);
}

/* The checkpoint stays where it is, and is served from there. */
static void lacks_room(struct replication *replication)
{
    replication->checkpoint->is_wanted_local = false;
    replication->checkpoint->copies.local.is_given_up = replicate_is_completing(replication);
    log_warn("drain", "run %s, step %llu is not kept on this node's disk: %s",
             replication->checkpoint->run->name,
             (unsigned long long)replication->checkpoint->summary.step, report_line());
    perform_close(replication, false);
}

static uint64_t bytes_missing(const struct replication *replication)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < replication->manifest->summary.shards; i++)
        if (!copies_has_shard(replication->checkpoint, replication->tier, i) &&
            !precommit_left_has_file(&replication->left_early, i))
            bytes += replication->manifest->shards[i].bytes;
    return bytes;
}

/* No other job uses the directory now. The transfer continues the copy from before the commit. */
static void begin_transfer(struct precommit_copy *early)
{
    struct replication *replication = CONTAINER_OF(early, struct replication, early);
    replication->left_early = precommit_copy_take(early);
    replication->claim = replication->left_early.claim;
    if (replicate_is_keeping(replication) &&
        space_promise(&replication->room, replication->service, bytes_missing(replication),
                      replication->manifest->summary.shards) != 0) {
        lacks_room(replication);
        return;
    }
    perform_action(replication,
                   transfer_begin(&replication->machine, replication->manifest->summary.shards,
                                  replication->service->config->tier_retry_ms));
}

static void begun(struct event *event)
{
    struct replication *replication = CONTAINER_OF(event, struct replication, job.done);
    if (replication->fault.code != 0) {
        begin_failed(replication);
        return;
    }
    if (precommit_copy_give(&replication->early, &replication->manifest->summary, begin_transfer))
        begin_transfer(&replication->early);
}

static void advance_replication(struct replication *replication)
{
    struct service *service = replication->service;
    if (!replication->is_refreshed || service->draining)
        return;
    if (replication->checkpoint) {
        replication->copy.is_hurried = queue_is_wanted(replication->checkpoint, replication->tier);
        copy_queue_advance(&replication->queue);
        return;
    }
    replication->checkpoint =
        queue_next(service, replication->tier, &replication->left, &replication->left_bytes);
    if (!replication->checkpoint) {
        precommit_copy_pass(&replication->early);
        return;
    }
    catalog_lease(replication->checkpoint);
    replication->checkpoint->is_going_far |= replication->tier == TIER_FAR;
    replication->begun_ms = clock_ms();
    replication->bytes_before = replication->copy.bytes_sent;
    replication->from = replication->copy.from =
        queue_source(replication->checkpoint, replication->tier);
    replication->copy.is_of_source = replication->is_volatile = false;
    replication->is_mending = queue_is_damaged(replication->checkpoint, replication->tier);
    replication->is_of_part = queue_is_part(replication->checkpoint, replication->tier);
    replication->copy.stamp = replication->queue.pace.quiet_ms;
    replication->claim = (struct hold){0};
    replication->room = (struct ledger_promise){0};
    perform_work(replication, work_begin, begun);
}

void replicate_check_queues(struct service *service)
{
    if (!service->choices) /* there is no other tier */
        return;
    service->replicate_checked_ms = clock_ms();
    queue_begin_scan(service);
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->replications[tier])
            advance_replication(service->replications[tier]);
    queue_end_scan(service);
}

static void check_tiers_now(struct service *service)
{
    durability_check_waiters(service);
    replicate_check_queues(service);
}

static void check_tiers_later(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, replicate_soon);
    if (!service->is_closing)
        check_tiers_now(service);
}

void replicate_check_queues_soon(struct service *service)
{
    int64_t since_ms = clock_ms() - service->replicate_checked_ms;
    if (service->replicate_soon.armed)
        return;
    service->replicate_soon.run = check_tiers_later;
    if (since_ms >= CHECKS_APART_MS)
        check_tiers_now(service);
    else
        loop_timer(service->loop, &service->replicate_soon, CHECKS_APART_MS - since_ms);
}

static void ended(struct replication *replication, struct run *run)
{
    durability_check_waiters(replication->service);
    replication->service->hooks->apply_retention(run);
    replicate_check_queues(replication->service);
}

void replicate_phase_changed(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->replications[tier])
            copy_queue_advance(&service->replications[tier]->queue);
}

uint32_t replicate_count_holds(const struct checkpoint *checkpoint, unsigned *out_reader)
{
    uint32_t count = 0;
    *out_reader = NUM_TIERS;
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        const struct replication *replication = checkpoint->run->service->replications[tier];
        if (!replication || replication->checkpoint != checkpoint)
            continue;
        count++;
        bool is_reading =
            replication->machine.state == TRANSFER_COPYING && !replication->machine.is_resting;
        if (is_reading || tier == TIER_LOCAL ||
            copies_at(checkpoint, (enum tier_index)tier)->is_given_up)
            *out_reader = tier;
    }
    return count;
}

/* ---- before the commit ---- */

/* Has that peer shards of the save? Then its own mark is in the directory. */
static bool has_part(const struct service *service, enum tier_index tier,
                     const struct places *places)
{
    const char *name = tier == TIER_LOCAL ? service->config->nodes_name : tier_name(service, tier);
    for (uint32_t i = 0; i < places->num_shards; i++)
        if (strcmp(places->nodes[places->shards[i]], name) == 0)
            return tier != TIER_LOCAL;
    return false;
}

static void begin_early(struct service *service, enum tier_index tier,
                        const struct precommit_save *save)
{
    if (service->replications[tier] && !service->draining && !service->tiers[tier].offline[0] &&
        !service->tiers[tier].is_unknown && !service->tiers[tier].takes_nothing &&
        !has_part(service, tier, save->places))
        precommit_copy_begin(&service->replications[tier]->early, save);
}

void replicate_save_begun(struct service *service, const struct checkpoint *promised,
                          const struct precommit_save *save)
{
    enum tier_index chosen[PLACEMENT_COPIES_MAX];
    uint32_t num =
        service->choices ? copies_will_go(chosen, promised, save->places) : 0; /* else to no tier */
    for (uint32_t i = 0; i < num; i++)
        begin_early(service, chosen[i], save);
}

void replicate_save_told(struct service *service, const struct stage *stages,
                         const struct precommit_told *told)
{
    for (unsigned tier = TIER_LOCAL; tier < TIER_FAR; tier++)
        if (service->replications[tier])
            precommit_copy_tell(&service->replications[tier]->early, stages, told);
}

bool replicate_save_left(struct service *service, const struct stage *stages,
                         void (*left)(void *user), void *user)
{
    return !service->replications[TIER_LOCAL] ||
           precommit_copy_is_over(&service->replications[TIER_LOCAL]->early, stages, left, user);
}

void replicate_save_advanced(struct service *service, const struct stage *stages)
{
    for (unsigned tier = TIER_PEER; tier < TIER_FAR; tier++)
        if (service->replications[tier])
            precommit_copy_advance(&service->replications[tier]->early, stages);
}

void replicate_save_over(struct service *service, const struct stage *stages, bool is_committed)
{
    for (unsigned tier = TIER_LOCAL; tier < TIER_FAR; tier++)
        if (service->replications[tier])
            precommit_copy_end(&service->replications[tier]->early, stages, is_committed);
}

/* ---- beginning and end ---- */

/* rounds.c refreshes a peer every nodes.look_ms. Until it answers, this replication asks as well:
 * soon at first, later every nodes.look_ms. */
static int64_t choose_retry_pause(struct replication *replication)
{
    const struct config *config = replication->service->config;
    int64_t pause_ms = config->tier_retry_ms << replication->refreshes_failed;
    if (!tier_is_peer(replication->tier))
        return config->tier_retry_ms;
    if (pause_ms >= config->nodes_look_ms)
        return config->nodes_look_ms;
    replication->refreshes_failed++;
    return pause_ms;
}

static void refresh_target(struct timer *timer)
{
    struct replication *replication = CONTAINER_OF(timer, struct replication, retry_timer);
    if (replication->tier == TIER_LOCAL) { /* its contents are known */
        replication->is_refreshed = true;
        replicate_check_queues(replication->service);
        return;
    }
    refresh_tier(replication->service, replication->tier, &replication->first_refresh,
                 replication->service->config->tier_wait_ms);
}

/* Nothing is sent before the tier has been read: else every shard there is read once more. */
static void first_refreshed(struct refresh_waiter *waiter)
{
    struct replication *replication = CONTAINER_OF(waiter, struct replication, first_refresh);
    if (replication->service->is_closing)
        return;
    replication->is_refreshed = waiter->fault.code == 0;
    if (replication->is_refreshed)
        replication->refreshes_failed = 0;
    else
        loop_timer(replication->service->loop, &replication->retry_timer,
                   choose_retry_pause(replication));
    replicate_check_queues_soon(replication->service);
}

static int open_one(struct service *service, enum tier_index tier)
{
    struct replication *replication = calloc(1, sizeof *replication);
    if (!replication)
        return report_error(ERR_MEMORY, NULL, "no memory for a drain");
    service->replications[tier] = replication;
    replication->service = service;
    replication->tier = tier;
    replication->ended = ended;
    replication->check_queues = replicate_check_queues;
    replication->first_refresh.go_on = first_refreshed;
    replication->retry_timer.run = refresh_target;
    replication->rest.run = perform_rested;
    int error = copy_queue_open(&replication->queue, service, tier);
    shard_copy_open(&replication->copy, &replication->queue);
    precommit_copy_init(&replication->early, service, tier, &replication->queue);
    replication->copy.arrived = perform_arrived;
    replication->is_refreshed = tier == TIER_LOCAL;
    if (error == 0 && tier != TIER_LOCAL)
        refresh_tier(service, tier, &replication->first_refresh, service->config->tier_wait_ms);
    return error;
}

int replicate_open(struct service *service)
{
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++)
        if (tier_is_open(service, (enum tier_index)tier))
            ERR_TRY(open_one(service, (enum tier_index)tier));
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++)
        if (service->replications[tier] && !service->replications[TIER_LOCAL])
            ERR_TRY(open_one(service, TIER_LOCAL)); /* damaged copies can be mended from there */
    if (!service->replications[TIER_LOCAL])
        return 0;
    ERR_TRY(queue_open(service));
    return copies_open(service);
}

void replicate_end(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++)
        if (service->replications[tier])
            copy_queue_leave(&service->replications[tier]->queue);
}

void replicate_close(struct service *service)
{
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        struct replication *replication = service->replications[tier];
        if (!replication)
            continue;
        precommit_copy_close(&replication->early);
        precommit_left_leave(&replication->left_early);
        precommit_left_free(&replication->left_early);
        shard_copy_close(&replication->copy);
        copy_queue_close(&replication->queue);
        hold_leave(&replication->claim);
        manifest_free(replication->manifest);
        free(replication);
        service->replications[tier] = NULL;
    }
    buffers_close(service->peer_buffers);
    service->peer_buffers = NULL;
    copies_close(service);
    queue_close(service);
}

/* ---- Status ---- */

static json_t *describe_now(const struct replication *replication)
{
    static const char *const states[] = {"begin", "claim", "copy", "names", "publish", "settle"};
    const struct checkpoint *checkpoint = replication->checkpoint;
    if (!checkpoint)
        return json_null();
    uint64_t sent = replication->copy.bytes_sent - replication->bytes_before;
    double seconds = (double)(clock_ms() - replication->begun_ms) / 1000.0;
    double rate = seconds > 0 ? (double)sent / seconds : 0;
    uint64_t left = checkpoint->summary.bytes > sent ? checkpoint->summary.bytes - sent : 0;
    return json_pack("{s:s, s:I, s:I, s:s, s:b, s:I, s:I, s:f, s:o}", "run", checkpoint->run->name,
                     "step", (json_int_t)checkpoint->summary.step, "attempt",
                     (json_int_t)checkpoint->summary.attempt, "state",
                     states[replication->machine.state], "resting",
                     (int)replication->machine.is_resting, "bytes_sent", (json_int_t)sent, "bytes",
                     (json_int_t)checkpoint->summary.bytes, "bytes_per_second", rate,
                     "seconds_left", rate > 0 ? json_real((double)left / rate) : json_null());
}

json_t *replicate_describe(const struct service *service, enum tier_index tier)
{
    const struct replication *replication = service->replications[tier];
    const bool is_far = tier == TIER_FAR;
    json_int_t held = 0;
    struct storage_link link;
    if (!replication)
        return json_null();
    storage_link(service->tiers[tier].storage, &link);
    uint64_t left = replication->left, left_bytes = replication->left_bytes;
    if (!replication->is_refreshed) /* everything may be missing there */
        queue_next(service, tier, &left, &left_bytes);
    const char *unread = service->tiers[tier].offline; /* else the tier may refuse data */
    const char *offline = unread[0] ? unread : replication->newest_error;
    for (const struct copy *copy = service->tiers[tier].copies; copy; copy = copy->next)
        held += copy->is_there && !copy->checkpoint->is_promised;
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s, "
        "s:o, s:o}",
        "store", is_far ? service->config->tier_store : tier_name(service, tier), "storage",
        storage_describe(service->tiers[tier].storage), "offline", offline, "checkpoints", held,
        "waiting", (json_int_t)left, "waiting_bytes", (json_int_t)left_bytes, "drained",
        (json_int_t)replication->checkpoints, "mended", (json_int_t)replication->mended,
        "bytes_sent", (json_int_t)replication->copy.bytes_sent, "bytes_from_memory",
        (json_int_t)replication->copy.bytes_from_memory, "bytes_before_commit",
        (json_int_t)precommit_copy_count_bytes(&replication->early), "errors",
        (json_int_t)replication->errors, "given_up", (json_int_t)replication->given_up,
        "bytes_per_second", replication->rate, "last_error", replication->newest_error,
        "clock_ahead_seconds", link.is_clock_known ? json_integer(link.clock_ahead_s) : json_null(),
        "now", describe_now(replication));
}

json_t *replicate_describe_drains(const struct service *service)
{
    json_t *list = json_array();
    for (unsigned tier = 0; tier < NUM_TIERS; tier++) {
        const struct replication *replication = service->replications[tier];
        if (replication && (tier == TIER_FAR || replication->checkpoints > 0))
            json_array_append_new(
                list, json_pack("{s:s, s:o}", "tier", tier_name(service, (enum tier_index)tier),
                                "seconds", histogram_describe(&replication->seconds)));
    }
    return list;
}
