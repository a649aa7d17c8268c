/* server.c - the service as a whole: opens its parts, runs them, shuts them down. calls.c handles
 * the calls.
 *
 * Shutdown: draining refuses new work and waits until no save and no job is in progress, at most
 * limits.drain_ms; then it gives up saves that still wait for a rank. Waiting calls are answered
 * ERR_UNAVAILABLE. Connected ranks may have been told to end as well, and save a last time after
 * their current step: while there are any, saves may begin for limits.last_save_ms. The other ranks
 * of such a save may act until it is over.
 *
 * Calls are answered while the memory of the pool is still being allocated. If that fails ckptd
 * shuts down in the same way, and service_run() returns why: saves, loads and plans depend on the
 * configured budget. */
#include "ckptd/front/server.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/remote_lease.h"
#include "ckptd/bulk/plane.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/copies.h"
#include "ckptd/core/history.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/front/calls.h"
#include "ckptd/front/listen.h"
#include "ckptd/front/network.h"
#include "ckptd/front/reload.h"
#include "ckptd/keep/gc.h"
#include "ckptd/keep/retain.h"
#include "ckptd/keep/scan.h"
#include "ckptd/keep/trash.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/renew.h"
#include "ckptd/memory/session.h"
#include "ckptd/memory/stage.h"
#include "ckptd/memory/store_watch.h"
#include "ckptd/memory/throttle_queue.h"
#include "ckptd/peers/join_save.h"
#include "ckptd/peers/lead_save.h"
#include "ckptd/peers/peer_status.h"
#include "ckptd/peers/rounds.h"
#include "ckptd/peers/serve.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/restore/held.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/restore.h"
#include "ckptd/run/open.h"
#include "ckptd/run/run.h"
#include "ckptd/save/begin.h"
#include "ckptd/scrub/scrub.h"
#include "ckptd/status/health.h"
#include "ckptd/status/http_server.h"
#include "ckptd/status/leak_watch.h"
#include "ckptd/status/metrics.h"
#include "ckptd/tiers/majority.h"
#include "ckptd/tiers/replicate.h"
#include "ckptd/tiers/wait_durability.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define PWRITE_THREADS 4u
#define RPC_THREADS 2u /* calls are few and small */
#define CLOSE_GRACE_MS 1000u
#define DRAIN_POLL_MS 10
/* ---- the store ---- */

/* "memory:<bytes>", or a back-end that a test has added; else a directory. ERR_INVALID. */
static int find_backend(const struct storage_ops **out, const char **out_where, const char *store)
{
    const char *colon = strchr(store, ':');
    char name[16];
    *out = &storage_local;
    *out_where = store;
    if (strncmp(store, "memory:", 7) != 0 && strncmp(store, "fault:", 6) != 0)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)(colon - store), store);
    *out = storage_find(name);
    *out_where = colon + 1;
    if (*out)
        return 0;
    return report_error(ERR_INVALID, "name a directory; fault stores are only for tests",
                        "this ckptd cannot open a \"%s:\" store", name);
}

static int open_storage(struct service *service)
{
    const struct config *config = service->config;
    const struct storage_ops *ops;
    const char *where;
    ERR_TRY(find_backend(&ops, &where, config->store));
    struct storage_options options = {.is_ours_alone = !config->make_store,
                                      .queue_depth = (uint32_t)config->queue_depth,
                                      .force_pwrite = strcmp(config->engine, "pwrite") == 0,
                                      .num_threads = config->queue_depth < PWRITE_THREADS
                                                         ? (uint32_t)config->queue_depth
                                                         : PWRITE_THREADS};
    int error = 0;
    if (ops == &storage_local && config->store_must_exist && !config->make_store)
        error = directory_need_store(where);
    if (error == 0)
        error = storage_open(&service->storage, ops, where, &options);
    if (error == 0 && ops == &storage_local)
        error = store_watch_note(service, where);
    return error == 0 ? storage_lock(service->storage) : error;
}

int service_make_store(const struct config *config)
{
    struct service service = {.config = config};
    int error = open_storage(&service);
    if (service.storage)
        storage_close(service.storage);
    store_watch_close(&service);
    return error != 0 || !config->tier_store[0] ? error : tier_make_store(config);
}

/* Registered buffers count as locked memory, and every session needs descriptors: raises both
 * limits to the maximum. */
static void raise_limits(void)
{
    const int kinds[] = {RLIMIT_MEMLOCK, RLIMIT_NOFILE};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)kinds[i], &limit) == 0) {
            limit.rlim_cur = limit.rlim_max;
            setrlimit((__rlimit_resource_t)kinds[i], &limit); /* best effort */
        }
    }
}

/* ---- the parts, and their callbacks ---- */

static void phase_changed(struct service *service)
{
    throttle_queue_phase_changed(service);
    replicate_phase_changed(service);
}

static const struct session_events session_events = {.announced = stage_entry,
                                                     .phase_changed = phase_changed,
                                                     .let_go = run_rank_let_go,
                                                     .leaves = stage_leave_session,
                                                     .rank_left = run_rank_left,
                                                     .ended = restore_end_session,
                                                     .part = listen_part,
                                                     .lends = restore_lends};
static const struct hooks hooks = {.apply_retention = retain_apply,
                                   .make_room = trash_make_room,
                                   .is_being_removed = gc_removes,
                                   .join = join_attempt,
                                   .leave = join_leave,
                                   .ask = join_ask,
                                   .part_changed = join_part_changed};

static int open_loop(struct service *service)
{
    return loop_open(&service->loop, (uint32_t)service->config->threads_workers,
                     (int)service->config->pace_cpu_nice);
}

static int open_pool(struct service *service)
{
    const struct config *config = service->config;
    return pool_open(&service->pool, (uint64_t)config->pool_bytes, (uint64_t)config->segment_bytes,
                     strcmp(config->huge_pages, "auto") == 0, service->storage);
}

static int open_sessions(struct service *service)
{
    return session_table_open(service, &session_events);
}

static int open_runs(struct service *service)
{
    return run_open(service, &hooks);
}

static int open_catalog(struct service *service)
{
    return catalog_open(service, &coordinator_events);
}

static int open_rpc(struct service *service)
{
    const struct config *config = service->config;
    struct rpc_server_options options = {
        .methods = service_calls,
        .user = service,
        .num_threads = RPC_THREADS,
        .num_connections = (uint32_t)config->limit_sessions + RPC_CONNECTIONS_BESIDE,
        .silent_ms = (uint32_t)config->limit_connect_ms,
        .tls_directory = config->tls_listen[0] != '\0' ? config->tls_directory : NULL,
        .request_bytes = (uint64_t)config->limit_request_bytes,
        .budget_per_second = (uint32_t)config->limit_identity_rate};
    return rpc_server_open(&service->rpc, &options);
}

/* In this order; each part may use the earlier ones. */
static int (*const parts[])(struct service *service) = {
    open_loop,       reload_open,  history_open,     open_storage,        tier_open,
    serve_open,      open_pool,    renew_open,       throttle_queue_open, open_sessions,
    restore_open,    open_runs,    open_catalog,     scan_store,          held_open,
    refresh_open,    scrub_open,   retain_open,      trash_open,          replicate_open,
    lead_save_open,  join_open,    peer_status_open, rounds_open,         store_watch_start,
    leak_watch_open, metrics_open, open_rpc,         health_open,         listen_open,
    network_open,    plane_open,   http_server_open};

/* ---- opening ---- */

static void drain(struct event *event);

int service_open(struct service **out, const struct config *config)
{
    struct service *service = calloc(1, sizeof *service);
    if (!service)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->config = config;
    service->policies = config->policies;
    service->start_s = time(NULL);
    service->drain_event.run = drain;
    service->ledger.usable_fraction = config->usable_fraction;
    snprintf(service->socket_path, sizeof service->socket_path, "%s", config->listen + 5);
    snprintf(service->arena_path, sizeof service->arena_path, "%s.arena", service->socket_path);
    while (service->boot_id == 0)
        service_random(&service->boot_id, sizeof service->boot_id);
    raise_limits();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int error = parts[i](service);
        if (error == 0)
            continue;
        service_close(service);
        return error;
    }
    renew_start(service);
    remote_lease_open(service);
    log_info("ckptd", "version %s ready on %s; store %s (%s); pool of %u segments of %llu bytes",
             report_version, config->listen, config->store, storage_describe(service->storage),
             pool_size(service->pool), (unsigned long long)pool_segment_bytes(service->pool));
    *out = service;
    return 0;
}

int service_run(struct service *service)
{
    loop_run(service->loop);
    return fault_raise(&service->fault);
}

/* ---- draining ---- */

static bool has_saves(const struct service *service)
{
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        if (run->coordinator->saves || run->coordinator->opening.call)
            return true;
    return false;
}

static bool is_quiet(const struct service *service)
{
    if (service->trash->num_waiting > 0 || has_saves(service))
        return false;
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        if (run->pruning || run->adopting != 0)
            return false;
    for (const struct image *image = service->images; image; image = image->next)
        /* The crew of another tier may be opening its file. */
        if (image->busy > 0 || image->reading.state != READ_IDLE)
            return false;
    return loop_is_idle(service->loop);
}

/* An idle rank looks like one that computes its last step, so the time is short. */
static bool awaits_last_saves(const struct service *service)
{
    return clock_ms() < service->last_saves_until_ms && !service->offline[0] &&
           session_any_rank(service);
}

/* Logs the step from which each run that was saved here resumes: the node may be taken away now. */
static void say_what_is_safe(const struct service *service)
{
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        struct checkpoint *newest = catalog_newest(run);
        if (run->pace.attempt != 0 && newest)
            log_info("ckptd", "run %s: step %llu, attempt %llu is safe (%s)", run->name,
                     (unsigned long long)newest->summary.step,
                     (unsigned long long)newest->summary.attempt, copies_names(newest));
    }
}

static void drain_again(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, drain_timer);
    if (service->takes_last_saves && !awaits_last_saves(service)) {
        service->takes_last_saves = false;
        service_retry_saves(service);
    }
    bool is_late = clock_ms() >= service->drain_until_ms;
    if (!service->takes_last_saves && (is_late || !has_saves(service)))
        tier_hurry(service);
    if (!service->takes_last_saves && remote_lease_end(service) && is_quiet(service)) {
        say_what_is_safe(service);
        loop_stop(service->loop);
        return;
    }
    if (is_late) {
        for (struct run *run = service->catalog->runs; run; run = run->next) {
            struct commit_actions actions = {0};
            commit_abort_all(&run->coordinator->machine, &actions, "ckptd was told to end");
            run_perform(run, &actions);
        }
    }
    loop_timer(service->loop, &service->drain_timer, DRAIN_POLL_MS);
}

static void drain(struct event *event)
{
    struct service *service = CONTAINER_OF(event, struct service, drain_event);
    int64_t drain_ms = service->config->limit_drain_ms;
    int64_t last_ms = service->config->limit_last_save_ms;
    uint32_t saves = 0;
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        saves += commit_num_saves(&run->coordinator->machine);
    last_ms = last_ms < drain_ms ? last_ms : drain_ms;
    log_info("ckptd",
             "shutting down: %u saves in progress have %lld ms to end; connected ranks have %lld "
             "ms to begin a last save",
             saves, (long long)drain_ms, (long long)last_ms);
    service->draining = service->takes_last_saves = true;
    history_hurry(service);
    throttle_queue_hurry(service);
    service->drain_until_ms = clock_ms() + drain_ms;
    service->last_saves_until_ms = clock_ms() + last_ms;
    service->drain_timer.run = drain_again;
    rpc_server_set_serving(service->rpc, false);
    loop_timer(service->loop, &service->drain_timer, 0);
}

/* ---- closing ---- */

/* Fails calls that wait for events which will not come. */
static void fail_waiting(struct service *service)
{
    for (struct run *run = service->catalog ? service->catalog->runs : NULL; run; run = run->next) {
        if (run->coordinator->opening.call)
            rpc_call_fail(run->coordinator->opening.call, service_check_open(service));
        run->coordinator->opening.call = NULL;
        if (run->coordinator->group)
            group_free(run->coordinator->group);
    }
    refresh_end(service);
    durability_end(service);
    save_begin_close(service);
    attempt_open_close(service);
}

void service_close(struct service *service)
{
    if (!service)
        return;
    service->is_closing = true;
    service->draining = true;
    service->takes_last_saves = false;
    fail_waiting(service);
    http_server_end(service);
    plane_close(service);
    network_close(service);
    if (service->rpc)
        rpc_server_close(service->rpc, CLOSE_GRACE_MS);
    /* Runs the events that came meanwhile, without effect for clients, so that their memory is
     * freed. */
    if (service->loop)
        loop_run_pending(service->loop);
    tier_end(service);
    replicate_end(service);
    serve_end(service);
    join_end(service);
    listen_close(service);
    session_table_close(service);
    restore_close(service);
    held_close(service);
    while (service->images) {
        struct image *image = service->images;
        image_detach(image);
        image_free(image);
    }
    join_close(service);
    lead_save_close(service);
    catalog_close(service);
    loop_close(service->loop);
    replicate_close(service);
    refresh_close(service);
    rounds_close(service);
    majority_close(service);
    peer_status_close(service);
    scrub_close(service);
    metrics_close(service);
    http_server_close(service);
    serve_close(service); /* its objects may be on a peer */
    tier_close(service);
    if (service->storage)
        storage_close(service->storage);
    pool_close(service->pool);
    retain_close(service);
    trash_close(service);
    run_close(service);
    throttle_queue_close(service);
    reload_close(service);
    history_close(service);
    renew_close(service);
    store_watch_close(service);
    leak_watch_close(service);
    free(service);
}
