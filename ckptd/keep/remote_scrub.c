/* remote_scrub.c - the scrub of the far tier: every committed checkpoint there is read again once
 * in scrub.period_s, at scrub.rate, and each block held against its checksum.
 *
 *   timer ──► the copy that was proven longest ago ──► crew: leased there, manifest, table and
 * shard ▲                                                │     opened; some blocks read and hashed
 *     └── as long as scrub.rate asks for ──────────────┴──► damage: catalog_damage(), which has the
 *                                                           drain mend it from the local copy
 *
 * A copy is proven when it was sent, when retention read it back, and by this. When that was, and
 * the place within the checkpoint that is being read, lie in the tier (scrub_log.c): read for each
 * run before its first checkpoint, written every NOTE_MS and behind each checkpoint. So a restart
 * goes on where the last ckptd stood, also on another machine.
 *
 * The lease in the tier keeps other nodes' retention from removing what is being read; what they
 * had removed before is no damage. Whether it is the same store is asked before each checkpoint and
 * each note (core/store_identity.c): what another one lacks is no damage either. A tier that does
 * not answer is asked again later. Who pauses the scrub pauses this one, too; it holds no
 * checkpoint then. It costs one buffer of READ_BYTES. */
#include "ckptd/keep/remote_scrub.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/core/shard_file.h"
#include "ckptd/keep/scrub.h"
#include "ckptd/keep/scrub_log.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A request to a bucket costs as much as bytes do. */
#define READ_BYTES (4u * CHECKSUM_BLOCK_BYTES)
#define RETRY_MS 600000 /* before a copy that could not be read is tried again */
#define IDLE_MS 5000    /* between two looks for a copy that is due, */
#define IDLE_MS_MIN 200 /* but not more often than this */
#define NOTE_MS 30000   /* what a crash makes it read again, at most */

struct remote_scrub {
    struct service *service;
    struct timer timer;
    struct job job;
    struct checkpoint *checkpoint; /* leased; NULL: none */
    /* The worker's while it has the job. */
    struct manifest_summary summary;
    struct manifest *manifest;
    struct storage_hold *lease;
    struct storage_object *object;
    struct shard_geometry geometry;
    uint8_t *table, *buffer;
    uint32_t shard;
    uint64_t at; /* byte of the shard */
    uint64_t bytes;
    bool is_read, is_away, is_gone, is_over; /* away: the tier, which proves nothing */
    struct fault fault;
    /* What is kept in the tier, or fetched from there: of that run. */
    char run[RUN_NAME_MAX + 1];
    char *text;
    uint64_t number;
    int64_t kept_ms; /* loop_now_ms() of the last time */
    int64_t rest_ms; /* as scrub.rate asks, once what is to be kept is */
    int64_t begun;   /* the checkpoint; seconds since the epoch */
    /* Since the start. */
    uint64_t bytes_read, checkpoints_read, damaged;
};

static struct storage *far_of(const struct remote_scrub *scrub)
{
    return scrub->service->tiers[TIER_FAR].storage;
}

/* ---- on the crew ---- */

static void close_shard(struct remote_scrub *scrub)
{
    storage_object_close(far_of(scrub), scrub->object);
    free(scrub->table);
    scrub->object = NULL;
    scrub->table = NULL;
}

static void close_checkpoint(struct remote_scrub *scrub)
{
    close_shard(scrub);
    manifest_free(scrub->manifest);
    storage_release(far_of(scrub), scrub->lease);
    scrub->manifest = NULL;
    scrub->lease = NULL;
}

/* Behind the lease nobody removes it: what is missing then was gone before, or is damage. */
static int open_checkpoint(struct remote_scrub *scrub)
{
    char prefix[STORAGE_KEY_MAX];
    const struct manifest_summary *summary = &scrub->summary;
    int error = tier_reach(scrub->service, TIER_FAR);
    scrub->is_away = error != 0;
    if (error != 0)
        return error;
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    error = store_lease(far_of(scrub), &scrub->lease, prefix, "ckptd scrubs it\n");
    if (error == 0)
        error = store_read_manifest(&scrub->manifest, far_of(scrub), summary);
    scrub->is_gone = error == ERR_NOT_FOUND;
    if (error == 0 && scrub->shard >= scrub->manifest->summary.shards) /* a place of nothing */
        scrub->shard = scrub->at = 0;
    return error;
}

static int open_shard(struct remote_scrub *scrub)
{
    const struct manifest *manifest = scrub->manifest;
    ERR_TRY(file_geometry(&scrub->geometry, manifest, scrub->shard));
    if (scrub->at % READ_BYTES != 0 || scrub->at >= scrub->geometry.table_start)
        scrub->at = 0;
    return file_open_proven(&scrub->object, &scrub->table, far_of(scrub), manifest, scrub->shard,
                            &scrub->geometry);
}

/* The blocks of [at, at + bytes), which begins with one. */
static int check_blocks(const struct remote_scrub *scrub, uint64_t bytes)
{
    const struct manifest_summary *summary = &scrub->manifest->summary;
    uint64_t identity = checksum_shard_identity(summary->nonce, scrub->shard, summary->shards);
    for (uint64_t i = 0; i < bytes && scrub->at + i < scrub->geometry.table_start;
         i += CHECKSUM_BLOCK_BYTES) {
        uint64_t block = (scrub->at + i) / CHECKSUM_BLOCK_BYTES, start, length;
        shard_block(&start, &length, &scrub->geometry, block);
        uint64_t sum = checksum_block(scrub->buffer + i, length, identity, block);
        ERR_TRY(
            file_check_block(scrub->table, &scrub->geometry, block, sum, summary, scrub->shard));
    }
    return 0;
}

static int read_some(struct remote_scrub *scrub)
{
    uint64_t left = scrub->geometry.file_bytes - scrub->at;
    uint64_t bytes = left < READ_BYTES ? left : READ_BYTES;
    ERR_TRY(storage_transfer(far_of(scrub), STORAGE_READ, scrub->object, scrub->at, scrub->buffer,
                             (uint32_t)bytes));
    ERR_TRY(check_blocks(scrub, bytes));
    scrub->bytes = bytes;
    scrub->at += bytes;
    if (scrub->at < scrub->geometry.table_start)
        return 0;
    close_shard(scrub);
    scrub->at = 0;
    scrub->is_read = ++scrub->shard >= scrub->manifest->summary.shards;
    return 0;
}

static void work_read(struct job *job)
{
    struct remote_scrub *scrub = CONTAINER_OF(job, struct remote_scrub, job);
    int error = scrub->manifest ? 0 : open_checkpoint(scrub);
    if (error == 0 && !scrub->object)
        error = open_shard(scrub);
    if (error == 0)
        error = read_some(scrub);
    if (error != 0)
        fault_take(&scrub->fault, error);
    scrub->is_over = error != 0 || scrub->is_read;
    if (scrub->is_over)
        close_checkpoint(scrub);
}

static void work_close(struct job *job)
{
    close_checkpoint(CONTAINER_OF(job, struct remote_scrub, job));
}

static void work_fetch(struct job *job)
{
    struct remote_scrub *scrub = CONTAINER_OF(job, struct remote_scrub, job);
    int error = tier_reach(scrub->service, TIER_FAR);
    if (error == 0)
        error = scrub_log_fetch(far_of(scrub), scrub->run, &scrub->number, &scrub->text);
    if (error != 0)
        fault_take(&scrub->fault, error);
}

static void work_keep(struct job *job)
{
    struct remote_scrub *scrub = CONTAINER_OF(job, struct remote_scrub, job);
    int error = tier_reach(scrub->service, TIER_FAR);
    if (error == 0)
        error = scrub_log_keep(far_of(scrub), scrub->run, scrub->number, scrub->text);
    if (error != 0)
        fault_take(&scrub->fault, error);
}

/* ---- on the service thread ---- */

static void go_on_in(struct remote_scrub *scrub, int64_t ms)
{
    loop_timer(scrub->service->loop, &scrub->timer, ms);
}

static void start_job(struct remote_scrub *scrub, void (*work)(struct job *),
                      void (*done)(struct event *))
{
    scrub->fault = (struct fault){0};
    scrub->job = (struct job){.work = work, .done.run = done};
    tier_work(scrub->service, TIER_FAR, &scrub->job);
}

static void name_run(struct remote_scrub *scrub, const struct run *run)
{
    snprintf(scrub->run, sizeof scrub->run, "%s", run->name);
    scrub->number = run->proven.number;
}

static void free_text(struct remote_scrub *scrub)
{
    free(scrub->text);
    scrub->text = NULL;
}

/* Where it cannot be read, the scrub begins with what is known. */
static void fetched(struct event *event)
{
    struct remote_scrub *scrub = CONTAINER_OF(event, struct remote_scrub, job.done);
    struct run *run;
    bool is_fetched = scrub->fault.code == 0;
    if (run_find(&run, scrub->service, scrub->run, false) == 0) {
        run->proven.is_known = true;
        if (is_fetched)
            scrub_log_take(run, scrub->text);
        if (is_fetched)
            run->proven.number = scrub->number;
    }
    if (!is_fetched)
        log_warn("scrub", "run %s: what was proven in the far tier is not known: %s", scrub->run,
                 scrub->fault.message);
    free_text(scrub);
    go_on_in(scrub, 0);
}

static void kept(struct event *event)
{
    struct remote_scrub *scrub = CONTAINER_OF(event, struct remote_scrub, job.done);
    struct run *run;
    bool is_taken = scrub->fault.code == ERR_EXISTS; /* by another ckptd: read first, then again */
    if (run_find(&run, scrub->service, scrub->run, false) == 0) {
        run->proven.is_known = !is_taken;
        run->proven.must_keep |= is_taken;
        run->proven.number = scrub->number + (scrub->fault.code == 0);
    }
    scrub->kept_ms = loop_now_ms();
    if (scrub->fault.code != 0 && !is_taken)
        log_debug("scrub", "run %s: what was proven in the far tier is not kept: %s", scrub->run,
                  scrub->fault.message);
    free_text(scrub);
    go_on_in(scrub, 0);
}

static void judge(struct remote_scrub *scrub)
{
    const struct fault *fault = &scrub->fault;
    struct checkpoint *checkpoint = scrub->checkpoint;
    bool is_damage = fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND;
    if (!is_damage || scrub->is_gone || scrub->is_away) {
        checkpoint->copies.far.tried_ms = loop_now_ms();
        log_warn("scrub", "run %s, step %llu was not read in the far tier: %s",
                 checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
                 fault->message);
        return;
    }
    scrub->damaged++;
    if (catalog_has_copy(checkpoint, TIER_FAR))
        catalog_damage(checkpoint, TIER_FAR, fault);
}

static void note_place(struct remote_scrub *scrub)
{
    scrub->checkpoint->run->proven.place = (struct proven_place){.step = scrub->summary.step,
                                                                 .attempt = scrub->summary.attempt,
                                                                 .shard = scrub->shard,
                                                                 .byte = scrub->at,
                                                                 .begun = scrub->begun};
}

static void let_go(struct remote_scrub *scrub)
{
    struct checkpoint *checkpoint = scrub->checkpoint;
    checkpoint->run->proven.must_keep = true;
    scrub->checkpoint = NULL;
    catalog_unlease(checkpoint);
}

static void was_read(struct event *event)
{
    struct remote_scrub *scrub = CONTAINER_OF(event, struct remote_scrub, job.done);
    struct checkpoint *checkpoint = scrub->checkpoint;
    int64_t ms = (int64_t)(scrub->bytes * 1000 / (uint64_t)scrub->service->config->scrub_rate);
    scrub->bytes_read += scrub->bytes;
    note_place(scrub);
    checkpoint->run->proven.must_keep |= loop_now_ms() - scrub->kept_ms > NOTE_MS;
    if (scrub->is_over) {
        checkpoint->run->proven.place = (struct proven_place){0};
        scrub->checkpoints_read += scrub->is_read;
        if (scrub->is_read)
            checkpoint->copies.far.proven = (int64_t)time(NULL);
        else
            judge(scrub);
        let_go(scrub);
    }
    scrub->rest_ms = ms;
    go_on_in(scrub, 0);
}

static void closed(struct event *event)
{
    struct remote_scrub *scrub = CONTAINER_OF(event, struct remote_scrub, job.done);
    let_go(scrub);
    go_on_in(scrub, 0);
}

/* One that could not be read is tried again, but not before all others that are due. A clock that
 * was set back proves nothing. */
static bool is_due(const struct service *service, const struct copy *copy)
{
    int64_t now = loop_now_ms(), period = service->config->scrub_period;
    int64_t again = 1000 * period < RETRY_MS ? 1000 * period : RETRY_MS;
    int64_t age = (int64_t)time(NULL) - copy->proven;
    return (copy->proven == 0 || age < 0 || age >= period) &&
           (copy->tried_ms == 0 || copy->tried_ms <= now - again);
}

static bool is_at_place(const struct checkpoint *checkpoint)
{
    const struct proven_place *place = &checkpoint->run->proven.place;
    int64_t age = (int64_t)time(NULL) - place->begun;
    return place->step == checkpoint->summary.step &&
           place->attempt == checkpoint->summary.attempt && age >= 0 &&
           age < checkpoint->run->service->config->scrub_period;
}

static bool is_before(const struct checkpoint *a, const struct checkpoint *b)
{
    const struct copy *one = &a->copies.far, *other = &b->copies.far;
    if (is_at_place(a) != is_at_place(b))
        return is_at_place(a);
    return one->tried_ms != other->tried_ms ? one->tried_ms < other->tried_ms
                                            : one->proven < other->proven;
}

/* Looked at longest ago, and due; NULL: none. */
static struct checkpoint *find_next(const struct service *service)
{
    struct checkpoint *next = NULL;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next)
            if (catalog_has_copy(c, TIER_FAR) && !c->damaged && is_due(service, &c->copies.far) &&
                (!next || is_before(c, next)))
                next = c;
    return next;
}

/* Of which nothing was fetched yet, or something is to be kept; NULL: there is none. */
static struct run *find_run(const struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (const struct checkpoint *c = run->checkpoints;
             c && (!run->proven.is_known || run->proven.must_keep); c = c->next)
            if (c->copies.far.is_there)
                return run;
    return NULL;
}

static void take_next(struct remote_scrub *scrub)
{
    struct checkpoint *next = find_next(scrub->service);
    scrub->checkpoint = next;
    if (!next)
        return;
    const struct proven_place *place = &next->run->proven.place;
    bool goes_on = is_at_place(next);
    catalog_lease(next);
    scrub->summary = next->summary;
    scrub->shard = goes_on ? (uint32_t)place->shard : 0;
    scrub->at = goes_on ? place->byte : 0;
    scrub->begun = goes_on ? place->begun : (int64_t)time(NULL);
}

/* Fetches or keeps what has to be. False: there is nothing of that. */
static bool see_to_notes(struct remote_scrub *scrub)
{
    struct run *run = find_run(scrub->service);
    if (!run)
        return false;
    name_run(scrub, run);
    if (!run->proven.is_known) {
        start_job(scrub, work_fetch, fetched);
        return true;
    }
    run->proven.must_keep = false;
    scrub->text = scrub_log_write(run);
    if (scrub->text)
        start_job(scrub, work_keep, kept);
    return scrub->text != NULL;
}

static void rest(struct remote_scrub *scrub)
{
    int64_t ms = 1000 * scrub->service->config->scrub_period;
    go_on_in(scrub, ms < IDLE_MS_MIN ? IDLE_MS_MIN : ms < IDLE_MS ? ms : IDLE_MS);
}

static void go_on(struct timer *timer)
{
    struct remote_scrub *scrub = CONTAINER_OF(timer, struct remote_scrub, timer);
    struct service *service = scrub->service;
    bool is_paused = scrub_is_paused(service);
    if (service->draining || service->offline[0])
        return;
    if (service->tiers[TIER_FAR].offline[0] && !scrub->checkpoint) {
        rest(scrub);
        return;
    }
    if (is_paused && scrub->checkpoint) {
        start_job(scrub, work_close, closed);
        return;
    }
    if (see_to_notes(scrub))
        return;
    if (scrub->rest_ms > 0) {
        go_on_in(scrub, scrub->rest_ms);
        scrub->rest_ms = 0;
        return;
    }
    if (!scrub->checkpoint && !is_paused)
        take_next(scrub);
    if (!scrub->checkpoint) {
        rest(scrub);
        return;
    }
    scrub->bytes = 0;
    scrub->is_read = scrub->is_gone = scrub->is_over = false;
    start_job(scrub, work_read, was_read);
}

/* ---- life ---- */

int remote_scrub_open(struct service *service)
{
    void *buffer = NULL;
    if (!tier_has_far(service) || service->config->scrub_rate == 0)
        return 0;
    struct remote_scrub *scrub = calloc(1, sizeof *scrub);
    if (!scrub || posix_memalign(&buffer, STORAGE_ALIGN, READ_BYTES) != 0) {
        free(scrub);
        return report_error(ERR_MEMORY, NULL, "no memory for the scrub of the far tier");
    }
    scrub->service = service;
    scrub->buffer = buffer;
    scrub->timer.run = go_on;
    service->remote_scrub = scrub;
    loop_timer(service->loop, &scrub->timer, service->config->scrub_start_ms);
    return 0;
}

void remote_scrub_close(struct service *service)
{
    struct remote_scrub *scrub = service->remote_scrub;
    if (!scrub)
        return;
    close_checkpoint(scrub);
    free_text(scrub);
    free(scrub->buffer);
    free(scrub);
    service->remote_scrub = NULL;
}

json_t *remote_scrub_describe(const struct service *service)
{
    const struct remote_scrub *scrub = service->remote_scrub;
    const struct checkpoint *checkpoint = scrub ? scrub->checkpoint : NULL;
    if (!scrub)
        return json_null();
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "doing",
                     checkpoint                 ? "reading"
                     : scrub_is_paused(service) ? "paused"
                                                : "waiting",
                     "run", checkpoint ? checkpoint->run->name : "", "step",
                     (json_int_t)(checkpoint ? checkpoint->summary.step : 0), "bytes_read",
                     (json_int_t)scrub->bytes_read, "checkpoints_read",
                     (json_int_t)scrub->checkpoints_read, "damaged", (json_int_t)scrub->damaged);
}
