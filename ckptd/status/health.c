/* health.c - whether ckptd can save. One answer for Status, grpc.health.v1 and the metrics.
 *
 * The answer is no, with the reason, while
 * - the store is offline, or cannot be written (read only, or its device has gone);
 * - the newest save of a run failed because of the store or ckptd: until that run commits a
 *   checkpoint. A save that its own ranks gave up (a killed rank, a newer attempt) counts as a
 *   failure of the run, but does not mean that ckptd cannot save;
 * - the next save of a run with ranks does not fit: the shards that they have described need bytes
 *   and inodes in the ledger, room in the run's quota and in limits.checkpoints;
 * - a new attempt, with a save as large as the newest checkpoint, does not fit into that ledger.
 *
 * A caller that knows the size of the next run's saves asks for that size (health_expect): the same
 * for the disk, and whether the pool can hold an image of it.
 *
 * ckptd checks after each save, and every limits.look_ms, since other programs fill the disk as
 * well. */
#include "ckptd/status/health.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/ledger.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/trash.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/session.h"
#include "ckptd/save/save.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "proto/wire/rpc.h"
#include "storage/storage.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define START_BYTES 65536u /* for an attempt's file and its journal, which are small */
#define START_FILES 4u

int64_t health_age(const struct run *run)
{
    const struct checkpoint *newest = run->checkpoints;
    while (newest && newest->damaged)
        newest = newest->next;
    if (!newest)
        return -1;
    int64_t age = (int64_t)time(NULL) - retain_time(newest->summary.time);
    return age > 0 ? age : 0; /* the clock may have been set back */
}

/* After a restart: of the newest two checkpoints of an attempt in the store. */
double health_interval(const struct run *run)
{
    if (run->pace.interval_ms > 0)
        return (double)run->pace.interval_ms / 1000.0;
    for (const struct checkpoint *c = run->checkpoints; c && c->next; c = c->next) {
        int64_t gap = retain_time(c->summary.time) - retain_time(c->next->summary.time);
        if (c->summary.attempt == c->next->summary.attempt && gap > 0)
            return (double)gap;
    }
    return -1;
}

int64_t health_wait(const struct run *run)
{
    int64_t age = health_age(run), opened_ms = run->coordinator->holder.opened_ms;
    if (run->coordinator->follow || session_ranks_of(run).count == 0)
        return -1;
    int64_t open = opened_ms > 0 ? (clock_ms() - opened_ms) / 1000 : age;
    return age >= 0 && age < open ? age : open;
}

/* Are there ranks that may save, and how many bytes? */
static bool next_save(const struct run *run, uint64_t *out_bytes)
{
    const struct group *group = run->coordinator->group;
    bool has_ranks = false;
    *out_bytes = 0;
    for (uint32_t i = 0; group && group->planned && i < group->world_size; i++) {
        *out_bytes += group->ranks[i].geometry.file_bytes;
        has_ranks |= session_is_there(run->service, group->ranks[i].session);
    }
    return has_ranks;
}

/* 0, or the error with which the next save of the run fails. */
static int check_next(const struct run *run, const struct storage_space *space)
{
    struct ledger ledger = run->service->ledger; /* a copy: promises nothing */
    struct ledger_promise promise;
    uint64_t bytes;
    if (!next_save(run, &bytes))
        return 0;
    ERR_TRY(catalog_check_room(run->service));
    ERR_TRY(save_check_quota(run, bytes));
    return ledger_promise(&ledger, &promise, space, bytes,
                          save_num_files(run->coordinator->group->world_size));
}

/* Bytes of the newest checkpoint of all runs; 0: none. */
static uint64_t last_save_bytes(const struct service *service)
{
    uint64_t bytes = 0;
    int64_t newest = INT64_MIN;
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        const struct checkpoint *last = run->checkpoints;
        if (!last || last->damaged || retain_time(last->summary.time) <= newest)
            continue;
        newest = retain_time(last->summary.time);
        bytes = last->summary.bytes;
    }
    return bytes;
}

/* Is there room for a run that starts now and saves `bytes`? 0, or the error. */
static int check_start(const struct service *service, const struct storage_space *space,
                       uint64_t bytes)
{
    struct ledger ledger = service->ledger; /* a copy: promises nothing */
    struct ledger_promise promise;
    return ledger_promise(&ledger, &promise, space, START_BYTES + bytes,
                          save_num_files(1) + START_FILES);
}

/* Can the pool hold an image of `bytes`? 0, or the error. */
static int check_memory(const struct service *service, uint64_t bytes)
{
    uint64_t pool = pool_size(service->pool) * pool_segment_bytes(service->pool);
    if (bytes <= pool)
        return 0;
    return report_error(ERR_MEMORY, "raise memory.pool_bytes",
                        "the pool has %llu bytes for images of %llu, so ranks save through "
                        "windows, at the speed of the disk",
                        (unsigned long long)pool, (unsigned long long)bytes);
}

/* Reads the free space of the disk. A save can use the space of the trash. */
static int read_disk_space(struct storage_space *out, const struct service *service)
{
    ERR_TRY(storage_space(service->storage, out));
    if (service->trash) {
        out->bytes_free += service->trash->bytes;
        out->inodes_free += service->trash->files;
    }
    return 0;
}

bool health_expect(const struct service *service, uint64_t bytes, char out[HEALTH_REASON_BYTES])
{
    struct report_text text;
    struct storage_space space;
    size_t used = 0;
    report_keep(&text);
    out[0] = '\0';
    int error = service_check_online(service);
    if (error == 0)
        error = read_disk_space(&space, service);
    if (error == 0)
        error = check_start(service, &space, bytes);
    if (error == 0)
        error = catalog_check_room(service);
    if (error != 0)
        used = (size_t)snprintf(out, HEALTH_REASON_BYTES, "disk: %s", report_line());
    if (check_memory(service, bytes) != 0 && used < HEALTH_REASON_BYTES)
        snprintf(out + used, HEALTH_REASON_BYTES - used, "%smemory: %s", used > 0 ? "; " : "",
                 report_line());
    report_make_printable(out);
    report_restore(&text, 0);
    return !out[0];
}

bool health_can_save(const struct service *service, char out[HEALTH_REASON_BYTES])
{
    struct report_text text;
    struct storage_space space;
    report_keep(&text);
    out[0] = '\0';
    if (service->offline[0])
        snprintf(out, HEALTH_REASON_BYTES, "the store is offline: %s", service->offline);
    bool has_space = !out[0] && read_disk_space(&space, service) == 0;
    if (!out[0] && !has_space)
        snprintf(out, HEALTH_REASON_BYTES, "%s", report_line());
    if (has_space && space.refusal_number != 0)
        snprintf(out, HEALTH_REASON_BYTES, "the store cannot be written: %s",
                 strerror(space.refusal_number));
    for (const struct run *run = service->catalog->runs; run && !out[0]; run = run->next) {
        if (run->health.is_store)
            snprintf(out, HEALTH_REASON_BYTES, "the last save of run %s failed: %s", run->name,
                     run->health.reason);
        else if (check_next(run, &space) != 0)
            snprintf(out, HEALTH_REASON_BYTES, "the next save of run %s would be refused: %s",
                     run->name, report_line());
    }
    if (has_space && !out[0] && check_start(service, &space, last_save_bytes(service)) != 0)
        snprintf(out, HEALTH_REASON_BYTES,
                 "there is no room for an attempt and its first save, %llu bytes are free: %s",
                 (unsigned long long)space.bytes_free, report_line());
    report_make_printable(out);
    report_restore(&text, 0);
    return !out[0];
}

void health_check(struct service *service)
{
    char why[HEALTH_REASON_BYTES];
    bool can_save = health_can_save(service, why);
    if (!service->rpc)
        return;
    rpc_server_set_able(service->rpc, can_save);
    if (can_save == !service->cannot_save)
        return;
    service->cannot_save = !can_save;
    if (can_save)
        log_info("health", "ckptd can save again");
    else
        log_warn("health", "ckptd cannot save: %s", why);
}

static void check_again(struct timer *timer)
{
    struct service *service = CONTAINER_OF(timer, struct service, health_timer);
    if (!service->draining)
        health_check(service);
    loop_timer(service->loop, timer, service->config->limit_look_ms);
}

int health_open(struct service *service)
{
    service->health_timer.run = check_again;
    loop_timer(service->loop, &service->health_timer, 0);
    return 0;
}
