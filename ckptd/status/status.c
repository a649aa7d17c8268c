/* status.c - the reply of Status as JSON: for `ckpt-cli status` and `watch`, and for metrics.c. It
 * is the current state, made on the service thread; this file keeps none. */
#include "ckptd/status/status.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/bulk/plane.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/tier.h"
#include "ckptd/keep/retain.h"
#include "ckptd/keep/trash.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/store_watch.h"
#include "ckptd/memory/throttle_queue.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/peers/peers.h"
#include "ckptd/restore/loads.h"
#include "ckptd/save/outcomes.h"
#include "ckptd/save/save.h"
#include "ckptd/scrub/scrub.h"
#include "ckptd/status/alarms.h"
#include "ckptd/status/health.h"
#include "ckptd/status/leak_watch.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/clock.h"
#include "proto/base/histogram.h"
#include "proto/base/process.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "storage/engine/measured.h"
#include "storage/storage.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static json_t *describe_saves(const struct service *service)
{
    json_t *list = json_array();
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        for (const struct save *save = run->coordinator->saves; save; save = save->next) {
            const struct commit_save *state = commit_find(&run->coordinator->machine, save->id);
            json_array_append_new(
                list,
                json_pack("{s:s, s:I, s:I, s:I, s:i, s:i, s:i, s:i, s:b, s:s}", "run", run->name,
                          "step", (json_int_t)save->step, "attempt", (json_int_t)save->attempt,
                          "bytes", (json_int_t)save->bytes, "ranks", (int)save->world_size,
                          "ranks_begun", state ? (int)state->num_begun : 0, "ranks_ended",
                          state ? (int)state->num_ended : 0, "ranks_durable",
                          state ? (int)state->num_durable : 0, "failing", (int)save->discarding,
                          "durability", "accepted"));
        }
    }
    return list;
}

static json_t *describe_commit(const struct service *service)
{
    if (service->outcomes->commits == 0)
        return json_null();
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:s}", "run", service->outcomes->newest.run,
        "step", (json_int_t)service->outcomes->newest.step, "attempt",
        (json_int_t)service->outcomes->newest.attempt, "bytes",
        (json_int_t)service->outcomes->newest.bytes, "seconds", service->outcomes->newest.seconds,
        "staging_seconds", service->outcomes->newest.staging_seconds, "sync_seconds",
        service->outcomes->newest.sync_seconds, "names_seconds",
        service->outcomes->newest.names_seconds, "manifest_seconds",
        service->outcomes->newest.manifest_seconds, "durability", DURABILITY_LOCAL);
}

/* The settings, and the seconds since the start in which a chunk was delayed. */
static json_t *describe_pace(const struct service *service)
{
    const struct config *config = service->config;
    const struct throttle_queue *gate = service->throttle_queue;
    return json_pack("{s:i, s:I, s:b, s:I, s:f, s:i, s:i, s:f, s:f, s:I}", "cpu_nice",
                     (int)config->pace_cpu_nice, "write_rate", (json_int_t)config->pace_write_rate,
                     "quiet", (int)config->pace_quiet, "quiet_wait_ms",
                     (json_int_t)config->pace_quiet_wait_ms, "quiet_wait_seconds",
                     (double)config->pace_quiet_wait_ms / 1000.0, "ranks_busy",
                     (int)session_num_busy(service), "chunks_held", (int)gate->num_held,
                     "held_by_rate_seconds", (double)gate->pace.rate_ms / 1000.0,
                     "held_by_phases_seconds", (double)gate->pace.quiet_ms / 1000.0,
                     "chunks_in_busy_phases", (json_int_t)gate->pace.num_late);
}

/* The alarm: a save whose every tensor equals the checkpoint before it. */
static json_t *describe_unchanged(const struct service *service)
{
    const struct repeat *save = &service->outcomes->unchanged_save,
                        *before = &service->outcomes->unchanged_before;
    if (service->outcomes->unchanged == 0)
        return json_null();
    return json_pack("{s:s, s:I, s:I, s:I, s:I}", "run", service->outcomes->unchanged_run, "step",
                     (json_int_t)save->step, "attempt", (json_int_t)save->attempt, "equals_step",
                     (json_int_t)before->step, "equals_attempt", (json_int_t)before->attempt);
}

/* Memory that is not ready yet is prepared in the background since the start. */
static json_t *describe_pool(const struct service *service)
{
    uint32_t size = pool_size(service->pool), left = pool_free_count(service->pool);
    json_int_t bytes = (json_int_t)pool_segment_bytes(service->pool);
    int ready = (int)pool_ready_count(service->pool);
    return json_pack("{s:I, s:i, s:i, s:i, s:I, s:I}", "segment_bytes", bytes, "segments",
                     (int)size, "segments_ready", ready, "segments_used", (int)(size - left),
                     "bytes", bytes * size, "bytes_ready", bytes * ready);
}

static json_t *describe_sessions(const struct service *service)
{
    int ranks = 0, all = 0, loads = 0;
    for (int64_t i = 0; i < service->config->limit_sessions; i++) {
        all += service->sessions->rows[i].token != 0;
        ranks += service->sessions->rows[i].token != 0 && service->sessions->rows[i].is_rank;
    }
    for (int64_t i = 0; i < service->config->limit_sessions; i++)
        loads += service->loads->rows[i].number != 0;
    return json_pack("{s:i, s:i, s:i}", "ranks", ranks, "all", all, "loads", loads);
}

static json_t *describe_catalog(const struct service *service)
{
    json_t *unreadable = json_array();
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        if (run->unreadable.code != 0)
            json_array_append_new(unreadable, json_pack("{s:s, s:s}", "run", run->name, "reason",
                                                        run->unreadable.message));
    return json_pack("{s:i, s:i, s:o}", "runs", (int)service->catalog->num_runs, "checkpoints",
                     (int)service->catalog->num_checkpoints, "unreadable", unreadable);
}

static json_t *describe_totals(const struct service *service)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "commits",
                     (json_int_t)service->outcomes->commits, "failed_saves",
                     (json_int_t)service->outcomes->failed, "refused_saves",
                     (json_int_t)service->outcomes->refused, "unchanged_saves",
                     (json_int_t)service->outcomes->unchanged, "replicas_differ",
                     (json_int_t)service->outcomes->replicas_differ, "pruned",
                     (json_int_t)service->retention->pruned, "bytes_committed",
                     (json_int_t)service->outcomes->bytes_written, "bytes_read",
                     (json_int_t)service->loads->bytes_read);
}

static json_t *describe_disk(const struct service *service)
{
    const struct ledger *ledger = &service->ledger;
    struct storage_space space;
    int64_t now = clock_ms();
    if (storage_space(service->storage, &space) != 0)
        return json_null();
    double hours = ledger_hours_to_full(ledger, &space, now);
    return json_pack(
        "{s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:o}",
        "bytes_total", (json_int_t)space.bytes_total, "bytes_used", (json_int_t)ledger_used(&space),
        "bytes_free", (json_int_t)space.bytes_free, "usable_fraction", ledger->usable_fraction,
        "bytes_usable", (json_int_t)ledger_usable(ledger, &space), "bytes_promised",
        (json_int_t)ledger->promised.bytes, "bytes_left", (json_int_t)ledger_room(ledger, &space),
        "inodes_total", (json_int_t)space.inodes_total, "inodes_free",
        (json_int_t)space.inodes_free, "inodes_promised", (json_int_t)ledger->promised.inodes,
        "bytes_trash", (json_int_t)service->trash->bytes, "checkpoints_trash",
        (json_int_t)service->trash->checkpoints, "growth_known",
        (int)ledger_knows_growth(ledger, now), "growth_bytes_per_hour", ledger_growth(ledger, now),
        "hours_to_full", hours < 0 ? json_null() : json_real(hours));
}

static json_t *describe_requests(const struct storage_measured_op *of)
{
    return json_pack("{s:I, s:I, s:f, s:f}", "operations", (json_int_t)of->operations, "bytes",
                     (json_int_t)of->bytes, "p50_seconds", of->p50_seconds, "p99_seconds",
                     of->p99_seconds);
}

/* Requests to the store. */
static json_t *describe_io(const struct service *service)
{
    struct storage_measured measured;
    storage_measured(service->storage, &measured);
    json_t *io = json_pack("{s:i}", "in_work", (int)measured.in_work);
    for (unsigned op = 0; op < STORAGE_OPS; op++)
        json_object_set_new(io, storage_measure_name(op), describe_requests(&measured.of[op]));
    return io;
}

/* By tier and kind of request; requests of the bucket itself (GET, PUT) have no bytes. */
static json_t *describe_tier_io(const struct service *service)
{
    json_t *list = json_array();
    for (unsigned at = 0; at < NUM_TIERS; at++) {
        struct storage_measured measured;
        if (!tier_is_open(service, (enum tier_index)at))
            continue;
        storage_measured(service->tiers[at].storage, &measured);
        for (unsigned op = 0; op < STORAGE_MEASURES; op++) {
            const struct storage_measured_op *of = &measured.of[op];
            json_t *row = of->operations > 0 ? describe_requests(of) : NULL;
            if (!row)
                continue;
            json_object_set_new(row, "tier", json_string(tier_name(service, (enum tier_index)at)));
            json_object_set_new(row, "op", json_string(storage_measure_name(op)));
            json_object_set_new(row, "seconds", histogram_describe(&of->seconds));
            if (op >= STORAGE_OPS)
                json_object_del(row, "bytes");
            json_array_append_new(list, row);
        }
    }
    return list;
}

/* The process's use of the machine. */

static json_t *describe_process(const struct service *service)
{
    struct process_memory memory;
    uint32_t waiting, under_way;
    process_measure(&memory, "");
    loop_depth(service->loop, &waiting, &under_way);
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:i, s:i}", "bytes_resident",
                     (json_int_t)memory.resident, "bytes_private",
                     (json_int_t)memory.private_memory, "bytes_private_max",
                     (json_int_t)service->config->limit_private_bytes, "bytes_private_exit",
                     (json_int_t)service->config->limit_exit_private_bytes, "leak_bytes_per_hour",
                     leak_rate(leak_watch_seen(service)), "bytes_shared", (json_int_t)memory.shared,
                     "bytes_files", (json_int_t)memory.files, "bytes_pinned",
                     (json_int_t)memory.pinned, "bytes_locked", (json_int_t)memory.locked,
                     "jobs_waiting", (int)waiting, "jobs_under_way", (int)under_way);
}

/* Images of committed checkpoints in memory, and how many of them ckptd read and verified; the
 * others are as ranks saved them, and their readers verify them. */
static json_t *describe_images(const struct service *service)
{
    int resident = 0, proven = 0;
    for (const struct image *image = service->images; image; image = image->next) {
        resident += image->state == IMAGE_RESIDENT;
        proven += image->state == IMAGE_RESIDENT && !image->run;
    }
    return json_pack("{s:i, s:i}", "resident", resident, "proven", proven);
}

/* Can the next save be expected to succeed? As in grpc.health.v1, with the reason if not. */
static json_t *describe_health(const struct service *service)
{
    char why[HEALTH_REASON_BYTES];
    bool can_save = health_can_save(service, why);
    return json_pack("{s:b, s:s}", "saving", (int)can_save, "reason", why);
}

static json_t *describe_expected(const struct service *service, uint64_t bytes)
{
    char why[HEALTH_REASON_BYTES];
    bool fits = health_expect(service, bytes, why);
    return json_pack("{s:I, s:b, s:s}", "bytes", (json_int_t)bytes, "fits", (int)fits, "reason",
                     why);
}

/* Age of the newest checkpoint that the far tier has whole: the loss of this node costs that much
 * training. */
static json_t *describe_far_age(const struct run *run)
{
    const struct checkpoint *newest = run->checkpoints;
    while (newest && !catalog_has_copy(newest, TIER_FAR))
        newest = newest->next;
    if (!newest)
        return json_null();
    int64_t age = (int64_t)time(NULL) - retain_time(newest->summary.time);
    return json_integer(age > 0 ? age : 0);
}

/* Only for runs with saves or loads: there are many runs, and most rest. */
static json_t *describe_run_seconds(const struct histogram *seconds)
{
    static const struct histogram none;
    return memcmp(seconds, &none, sizeof none) != 0 ? histogram_describe(seconds) : json_null();
}

/* How many checkpoints each tier has, whole or the part of that node, nearest tier first:
 * {"local": 3, "n2": 3, "far": 0}. Another node without one is left out. */
static json_t *describe_run_copies(const struct run *run)
{
    const bool has_far = tier_has_far(run->service);
    int counts[NUM_TIERS] = {0};
    json_t *copies = json_object();
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
        for (uint32_t i = 0; i < copies_count(c); i++) {
            const struct copy *copy = copies_get(c, i);
            counts[copy->tier] += copy->is_there && !copy->is_damaged;
        }
    for (unsigned at = 0; at < NUM_TIERS; at++)
        if (counts[at] > 0 || at == TIER_LOCAL || (at == TIER_FAR && has_far))
            json_object_set_new(copies, tier_name(run->service, (enum tier_index)at),
                                json_integer(counts[at]));
    return copies;
}

/* Of a checkpoint, what this node's ranks write here: all of it, or the share of their shards. */
static json_int_t bytes_here(const struct checkpoint *checkpoint)
{
    const uint32_t shards = checkpoint->summary.shards;
    uint32_t here = 0;
    if (!checkpoint->places || shards == 0)
        return (json_int_t)checkpoint->summary.bytes;
    for (uint32_t i = 0; i < shards; i++)
        here += checkpoint->places[i] == TIER_LOCAL;
    return (json_int_t)(checkpoint->summary.bytes / shards * here);
}

static json_t *describe_run(const struct run *run)
{
    const struct session_ranks ranks = session_ranks_of(run);
    const struct checkpoint *newest = run->checkpoints;
    int64_t age = health_age(run), wait = health_wait(run);
    double interval = health_interval(run);
    int checkpoints = 0, damaged = 0;
    json_int_t bytes = 0;
    for (const struct checkpoint *c = run->checkpoints; c; c = c->next) {
        checkpoints++;
        damaged += c->damaged;
        bytes += (json_int_t)c->summary.bytes;
    }
    while (newest && newest->damaged)
        newest = newest->next;
    return json_pack(
        "{s:s, s:i, s:o, s:i, s:I, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:i, s:s, s:i, "
        "s:s, s:i, s:o, s:o, s:s, s:s, s:o, s:o, s:o}",
        "run", run->name, "checkpoints", checkpoints, "copies", describe_run_copies(run), "damaged",
        damaged, "bytes", bytes, "newest_step",
        newest ? json_integer((json_int_t)newest->summary.step) : json_null(), "newest_attempt",
        newest ? json_integer((json_int_t)newest->summary.attempt) : json_null(), "newest_bytes",
        newest ? (json_int_t)newest->summary.bytes : 0, "newest_bytes_here",
        newest ? bytes_here(newest) : 0, "newest_age_seconds",
        age >= 0 ? json_integer(age) : json_null(), "far_age_seconds", describe_far_age(run),
        "commit_interval_seconds", interval >= 0 ? json_real(interval) : json_null(),
        "commit_wait_seconds", wait >= 0 ? json_integer(wait) : json_null(), "failures_in_row",
        (int)run->health.failures, "last_failure", run->health.reason, "failures_at_client",
        (int)run->health.at_client, "last_failure_at_client", run->health.client_reason, "ranks",
        (int)ranks.count, "silent_seconds",
        ranks.silent_ms >= 0 ? json_integer(ranks.silent_ms / 1000) : json_null(), "silent_rank",
        ranks.silent_ms >= 0 ? json_integer(ranks.silent) : json_null(), "silent_doing",
        ranks.doing, "last_lost", run->lost.text, "last_lost_seconds",
        run->lost.attempt != 0 ? json_integer((clock_ms() - run->lost.at_ms) / 1000) : json_null(),
        "save_seconds", describe_run_seconds(&run->save_seconds), "load_seconds",
        describe_run_seconds(&run->load_seconds));
}

static json_t *describe_runs(const struct service *service)
{
    json_t *list = json_array();
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        json_array_append_new(list, describe_run(run));
    return list;
}

static json_t *describe_save_seconds(const struct service *service)
{
    return histogram_describe(&service->outcomes->save);
}

static json_t *describe_commit_seconds(const struct service *service)
{
    return histogram_describe(&service->outcomes->commit);
}

static json_t *describe_load_seconds(const struct service *service)
{
    return histogram_describe(&service->loads->seconds);
}

static json_t *describe_tls(const struct service *service)
{
    int64_t left_s;
    return service_seconds_left(&left_s, service)
               ? json_pack("{s:I}", "certificate_seconds_left", (json_int_t)left_s)
               : json_null();
}

static json_t *describe_tier(const struct service *service)
{
    return replicate_describe(service, TIER_FAR);
}

/* Checkpoints that are damaged on the node's own disk and are served from another tier. */
static json_t *describe_mending(const struct service *service)
{
    return replicate_describe(service, TIER_LOCAL);
}

/* The parts of Status, in its order. `is_told`: other nodes show it of this node. */
static const struct {
    const char *name;
    json_t *(*describe)(const struct service *service);
    bool is_told;
} status_parts[] = {
    {"health", describe_health, false},
    {"alarms", alarms_describe, true},
    {"runs", describe_runs, false},
    {"pool", describe_pool, true},
    {"sessions", describe_sessions, false},
    {"catalog", describe_catalog, false},
    {"disk", describe_disk, true},
    {"io", describe_io, false},
    {"tier_io", describe_tier_io, false},
    {"process", describe_process, false},
    {"tier", describe_tier, true},
    {"mending", describe_mending, false},
    {"nodes", peers_describe, false},
    {"behind", peers_describe_lag, true},
    {"bulk", plane_describe, true},
    {"tls", describe_tls, false},
    {"scrub", scrub_describe, false},
    {"far_scrub", scrub_describe_far, false},
    {"saves", describe_saves, true},
    {"images", describe_images, false},
    {"last_commit", describe_commit, false},
    {"last_unchanged", describe_unchanged, false},
    {"pace", describe_pace, false},
    {"since_start", describe_totals, false},
    {"save_seconds", describe_save_seconds, false},
    {"commit_seconds", describe_commit_seconds, false},
    {"load_seconds", describe_load_seconds, false},
    {"drains", replicate_describe_drains, false},
};

/* Bounds the list, which grows with the number of runs, for other nodes. */
static void shorten(json_t *list, size_t max)
{
    while (json_array_size(list) > max)
        json_array_remove(list, json_array_size(list) - 1);
}

char *service_status(const struct service *service, bool own, uint64_t expected_bytes)
{
    const struct store_watch *place = service->store_watch;
    const char *store =
        place && place->directory.path ? place->directory.path : service->config->store;
    json_t *root = json_pack("{s:s, s:f, s:I, s:s, s:s, s:i, s:b, s:s, s:s}", "version",
                             report_version, "time_seconds", clock_wall_seconds(),
                             "start_time_seconds", (json_int_t)service->start_s, "store", store,
                             "store_id", place ? place->directory.id : "", "uid", (int)geteuid(),
                             "draining", (int)service->draining, "offline", service->offline,
                             "storage", storage_describe(service->storage));
    bool whole = root != NULL;
    for (size_t i = 0; i < sizeof status_parts / sizeof status_parts[0]; i++)
        if (status_parts[i].is_told || !own)
            whole &= json_object_set_new(root, status_parts[i].name,
                                         status_parts[i].describe(service)) == 0;
    if (expected_bytes > 0 && !own)
        whole &= json_object_set_new(json_object_get(root, "health"), "expected",
                                     describe_expected(service, expected_bytes)) == 0;
    if (own) {
        shorten(json_object_get(root, "alarms"), PEER_STATUS_ALARMS_MAX);
        shorten(json_object_get(root, "saves"), PEER_STATUS_SAVES_MAX);
    }
    char *text = whole ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    return text;
}
