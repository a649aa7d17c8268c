/* trash.c - keeps removed checkpoints for retention.trash_s seconds, those that the far tier drops
 * for tier.trash_s, so that they can be restored.
 *
 *   a prune, retention, rm ──► <run>/trash/ ──► its term is over, or a save lacks space: gone
 *                                  │
 *                                  └──► undelete.c: back in the list
 *
 * A worker sweeps the trash at the start, every TRASH_SWEEP_MS, and after changes. It notes the
 * term of each run in the store, for tools that remove without ckptd (storage/trash.c), removes
 * items that are older than their term, and counts the others. A save that lacks space waits for
 * such a sweep: the oldest items of all runs are removed until there is enough. If all of the trash
 * is not enough, it stays, and the save is refused.
 *
 * Each tier has its trash, and the crew of the far tier does the blocking work there. That one has
 * no limit of space, so only terms empty it; it is swept every FAR_SWEEP_MS, or as soon as a term
 * ends. Other ckptds sweep it as well: each yields to the others (storage/trash.c), and tries
 * again.
 *
 * Without a term (0) items stay in the trash until a save lacks space: a mistake in the
 * configuration removes nothing. If the wall clock jumps ahead while ckptd runs, no term ends
 * early: the jump is subtracted from every age. */
#include "ckptd/keep/trash.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/policy.h"
#include "ckptd/core/service.h"
#include "proto/base/array.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRASH_SWEEP_MS 60000
#define FAR_SWEEP_MS 600000 /* each sweep costs two requests per run */
#define SOON_MS 1000
#define JUMP_MS 60000 /* a smaller step of the wall clock is no jump */

struct emptied {
    struct store_trashed item; /* for one with is_back: no files, no bytes */
    uint64_t term;
    bool is_gone;
};

/* A run, with the fields that the worker needs. */
struct sweep_run {
    char name[RUN_NAME_MAX + 1];
    uint64_t term;
};

struct sweep {
    struct service *service;
    struct sweep_run *runs;
    uint32_t num_runs;
    struct emptied *items;
    uint32_t count, room;
    uint64_t term;                       /* of the run that is being listed */
    uint64_t now;                        /* seconds since 1970, without the jumps of the clock */
    uint64_t wanted_files, wanted_bytes; /* to be freed */
    enum tier_index tier;
    uint64_t next_s; /* until the next term ends; 0: no item has a term */
    struct job job;
};

uint64_t trash_term(const struct run *run, enum tier_index tier)
{
    const struct policy *policy = policy_of(&run->service->policies, run->name);
    return (uint64_t)(tier == TIER_FAR ? policy->far_trash : policy->trash);
}

static struct trash *trash_of(const struct service *service, enum tier_index tier)
{
    return tier == TIER_FAR ? service->far_trash : service->trash;
}

static struct storage *storage_of(const struct sweep *sweep)
{
    return sweep->service->tiers[sweep->tier].storage;
}

/* ---- a sweep, on a worker ---- */

static int add_item(void *user, const struct store_trashed *item)
{
    struct sweep *sweep = user;
    ERR_TRY(array_reserve(&sweep->items, &sweep->room, sweep->count, sizeof *sweep->items));
    struct emptied *to = &sweep->items[sweep->count++];
    *to = (struct emptied){.item = *item, .term = sweep->term};
    if (item->is_back)
        to->item.files = to->item.bytes = 0;
    return 0;
}

static void empty_item(struct sweep *sweep, struct emptied *item, const char *why)
{
    int error = store_trash_empty(storage_of(sweep), &item->item);
    item->is_gone = true; /* even if it could not be removed: a save cannot count on its space */
    if (error != 0)
        log_warn("trash", "could not remove %s: %s", item->item.key, report_line());
    else
        log_info("trash", "%s was removed for good: %s, %llu bytes", item->item.key, why,
                 (unsigned long long)item->item.bytes);
}

static int compare_ages(const void *a, const void *b)
{
    const struct store_trashed *x = &((const struct emptied *)a)->item;
    const struct store_trashed *y = &((const struct emptied *)b)->item;
    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return strcmp(strrchr(x->key, '/'), strrchr(y->key, '/')); /* then the lower step first */
}

static void note_next(struct sweep *sweep, const struct emptied *item)
{
    if (item->term == 0)
        return;
    uint64_t end = item->item.seconds + item->term, left = end > sweep->now ? end - sweep->now : 1;
    if (sweep->next_s == 0 || left < sweep->next_s)
        sweep->next_s = left;
}

static void work_sweep(struct job *job)
{
    struct sweep *sweep = CONTAINER_OF(job, struct sweep, job);
    uint64_t files = 0, bytes = 0;
    if (tier_reach(sweep->service, sweep->tier) != 0) /* another store, or none */
        return;
    struct storage *storage = storage_of(sweep);
    for (uint32_t i = 0; i < sweep->num_runs; i++) {
        const struct sweep_run *run = &sweep->runs[i];
        sweep->term = run->term;
        int error = store_trash_set_term(storage, run->name, run->term);
        if (error == 0)
            error = store_trash_list(storage, run->name, add_item, sweep);
        if (error != 0)
            log_warn("trash", "could not read the trash of run %s: %s", run->name, report_line());
    }
    if (sweep->count > 0)
        qsort(sweep->items, sweep->count, sizeof *sweep->items, compare_ages);
    for (uint32_t i = 0; i < sweep->count; i++) {
        struct emptied *item = &sweep->items[i];
        bool is_over = item->term > 0 && sweep->now >= item->item.seconds &&
                       sweep->now - item->item.seconds >= item->term;
        bool is_wanted = files < sweep->wanted_files || bytes < sweep->wanted_bytes;
        if (!is_over && !is_wanted) {
            note_next(sweep, item);
            continue;
        }
        empty_item(sweep, item,
                   is_over ? "its time in the trash is over" : "space was needed for a save");
        files += item->item.files;
        bytes += item->item.bytes;
    }
}

static void start_sweep(struct trash *trash);

static void end_sweep(struct trash *trash)
{
    trash->is_busy = trash->makes_room = false;
    if (trash->must_again)
        trash_sweep_soon(trash->service, trash->tier);
    trash->must_again = false;
}

static void swept(struct event *event)
{
    struct sweep *sweep = CONTAINER_OF(event, struct sweep, job.done);
    struct service *service = sweep->service;
    struct trash *trash = trash_of(service, sweep->tier);
    int64_t period = trash->tier == TIER_FAR ? FAR_SWEEP_MS : TRASH_SWEEP_MS;
    int64_t next = sweep->next_s > 0 && sweep->next_s < (uint64_t)period / 1000
                       ? (int64_t)sweep->next_s * 1000 + SOON_MS
                       : period;
    loop_timer_cancel(service->loop, &trash->timer);
    loop_timer(service->loop, &trash->timer, next);
    trash->files = trash->bytes = trash->checkpoints = 0;
    for (uint32_t i = 0; i < sweep->count; i++) {
        const struct store_trashed *item = &sweep->items[i].item;
        if (sweep->items[i].is_gone)
            continue;
        trash->files += item->files;
        trash->bytes += item->bytes;
        trash->checkpoints += !item->is_back;
    }
    free(sweep->items);
    free(sweep->runs);
    free(sweep);
    end_sweep(trash);
    service_retry_saves(service);
    service_check_health(service);
}

/* ---- beginning ---- */

/* Detects a jump: the wall clock gains on the monotonic one. */
static void follow_clock(struct trash *trash)
{
    int64_t ahead = clock_wall_ms() - clock_ms();
    if (ahead - trash->clock_ms > JUMP_MS)
        trash->jumped_ms += ahead - trash->clock_ms;
    trash->clock_ms = ahead;
}

static void start_sweep(struct trash *trash)
{
    struct service *service = trash->service;
    uint32_t num_runs = service->catalog->num_runs;
    struct sweep *sweep = calloc(1, sizeof *sweep);
    struct sweep_run *runs = calloc(num_runs + 1, sizeof *runs);
    if (!sweep || !runs) {
        free(sweep);
        free(runs);
        return; /* the next sweep */
    }
    follow_clock(trash);
    *sweep = (struct sweep){.service = service,
                            .runs = runs,
                            .tier = trash->tier,
                            .now = (uint64_t)((clock_wall_ms() - trash->jumped_ms) / 1000),
                            .wanted_files = trash->wanted_files,
                            .wanted_bytes = trash->wanted_bytes};
    for (const struct run *run = service->catalog->runs; run; run = run->next) {
        if (run->unreadable.code != 0 || (run->newest_attempt == 0 && !run->checkpoints))
            continue; /* it may have no directory yet */
        if (trash->tier == TIER_FAR && !trash->must_note && trash_term(run, TIER_FAR) == 0)
            continue;
        struct sweep_run *to = &runs[sweep->num_runs++];
        snprintf(to->name, sizeof to->name, "%s", run->name);
        to->term = trash_term(run, trash->tier);
    }
    trash->must_note = false;
    trash->makes_room = trash->wanted_files > 0 || trash->wanted_bytes > 0;
    trash->wanted_files = trash->wanted_bytes = 0;
    trash->is_busy = true;
    sweep->job = (struct job){.work = work_sweep, .done.run = swept};
    tier_work(service, trash->tier, &sweep->job);
}

static void sweep_now(struct timer *timer)
{
    struct trash *trash = CONTAINER_OF(timer, struct trash, timer);
    struct service *service = trash->service;
    if (trash->is_busy)
        trash->must_again = true;
    else if (!service->draining && !service->offline[0] && !service->tiers[trash->tier].offline[0])
        start_sweep(trash);
    loop_timer(service->loop, timer, TRASH_SWEEP_MS);
}

void trash_sweep_soon(struct service *service, enum tier_index tier)
{
    struct trash *trash = trash_of(service, tier);
    if (!trash)
        return;
    loop_timer_cancel(service->loop, &trash->timer);
    loop_timer(service->loop, &trash->timer, 0);
}

void trash_reloaded(struct service *service)
{
    if (service->far_trash)
        service->far_trash->must_note = true;
    trash_sweep_soon(service, TIER_LOCAL);
    trash_sweep_soon(service, TIER_FAR);
}

int trash_begin(struct service *service)
{
    if (service->trash->is_busy)
        return report_error(ERR_BUSY, "try again", "the trash is being read");
    service->trash->is_busy = true;
    return 0;
}

void trash_end(struct service *service)
{
    end_sweep(service->trash);
}

bool trash_make_room(struct service *service, uint64_t bytes, uint64_t files)
{
    struct trash *trash = service->trash;
    if (trash->bytes < bytes || trash->files < files || trash->checkpoints == 0)
        return false;
    if (trash->makes_room) /* perhaps for a rank of the same save; if it then still lacks space it
                            * is told */
        return true;
    if (trash->wanted_bytes < bytes)
        trash->wanted_bytes = bytes;
    if (trash->wanted_files < files)
        trash->wanted_files = files;
    trash_sweep_soon(service, TIER_LOCAL);
    return true;
}

static int open_one(struct trash **out, struct service *service, enum tier_index tier, int64_t ms)
{
    struct trash *trash = *out = calloc(1, sizeof *trash);
    if (!trash)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    trash->service = service;
    trash->tier = tier;
    trash->must_note = true;
    trash->timer.run = sweep_now;
    trash->clock_ms = clock_wall_ms() - clock_ms();
    loop_timer(service->loop, &trash->timer, ms);
    return 0;
}

int trash_open(struct service *service)
{
    ERR_TRY(open_one(&service->trash, service, TIER_LOCAL, 0));
    return tier_has_far(service) ? open_one(&service->far_trash, service, TIER_FAR, SOON_MS) : 0;
}

void trash_close(struct service *service)
{
    free(service->trash);
    free(service->far_trash);
    service->trash = service->far_trash = NULL;
}
