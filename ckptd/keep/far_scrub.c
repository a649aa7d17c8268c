/* far_scrub.c - the scrub of the far tier: every committed checkpoint there is read again once in
 * scrub.period_s, at scrub.rate, and each block held against its checksum.
 *
 *   timer ──► the copy that was proven longest ago ──► crew: leased there, manifest, table and
 * shard ▲                                                │     opened; some blocks read and hashed
 *     └── as long as scrub.rate asks for ──────────────┴──► damage: catalog_damage(), which has the
 *                                                           drain mend it from the local copy
 *
 * A copy is proven when it was sent, when retention read it back, and by this. That is kept in
 * memory: a start reads the oldest first again, and an interrupted checkpoint from its beginning.
 * The lease in the tier keeps other nodes' retention from removing what is being read; what they
 * had removed before is no damage. A tier that does not answer is asked again later. It costs one
 * buffer of READ_BYTES. */
#include "ckptd/keep/far_scrub.h"
#include "ckptd/catalog.h"
#include "ckptd/config.h"
#include "ckptd/loop.h"
#include "ckptd/restore/file.h"
#include "ckptd/service.h"
#include "proto/checksum.h"
#include "proto/manifest.h"
#include "proto/report.h"
#include "proto/shard.h"
#include "storage/storage.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

/* A request to a bucket costs as much as bytes do. */
#define READ_BYTES (4u * CHECKSUM_BLOCK_BYTES)
#define RETRY_MS 600000 /* before a copy that could not be read is tried again */
#define IDLE_MS 5000    /* between two looks for a copy that is due, */
#define IDLE_MS_MIN 200 /* but not more often than this */

struct far_scrub {
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
    bool is_read, is_gone, is_over;
    struct fault fault;
    /* Since the start. */
    uint64_t bytes_read, checkpoints_read, damaged;
};

static struct storage *far_of(const struct far_scrub *scrub)
{
    return scrub->service->tiers[TIER_FAR].storage;
}

/* ---- on the crew ---- */

static void close_shard(struct far_scrub *scrub)
{
    storage_object_close(far_of(scrub), scrub->object);
    free(scrub->table);
    scrub->object = NULL;
    scrub->table = NULL;
    scrub->at = 0;
}

static void close_checkpoint(struct far_scrub *scrub)
{
    close_shard(scrub);
    manifest_free(scrub->manifest);
    storage_release(far_of(scrub), scrub->lease);
    scrub->manifest = NULL;
    scrub->lease = NULL;
    scrub->shard = 0;
}

/* Behind the lease nobody removes it: what is missing then was gone before, or is damage. */
static int open_checkpoint(struct far_scrub *scrub)
{
    char prefix[STORAGE_KEY_MAX];
    const struct manifest_summary *summary = &scrub->summary;
    ERR_TRY(shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt));
    int error = storage_group_lease(far_of(scrub), &scrub->lease, prefix, "ckptd scrubs it\n");
    if (error == 0)
        error = catalog_read_manifest(&scrub->manifest, far_of(scrub), summary);
    scrub->is_gone = error == ERR_NOT_FOUND;
    return error;
}

static int open_shard(struct far_scrub *scrub)
{
    const struct manifest *manifest = scrub->manifest;
    ERR_TRY(file_geometry(&scrub->geometry, manifest, scrub->shard));
    ERR_TRY(file_open(&scrub->object, far_of(scrub), &manifest->summary, scrub->shard,
                      scrub->geometry.file_bytes));
    return file_read_table(&scrub->table, far_of(scrub), scrub->object, &scrub->geometry,
                           manifest->shards[scrub->shard].table_hash, &manifest->summary,
                           scrub->shard);
}

/* The blocks of [at, at + bytes), which begins with one. */
static int check_blocks(const struct far_scrub *scrub, uint64_t bytes)
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

static int read_some(struct far_scrub *scrub)
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
    scrub->is_read = ++scrub->shard >= scrub->manifest->summary.shards;
    return 0;
}

static void work_read(struct job *job)
{
    struct far_scrub *scrub = CONTAINER_OF(job, struct far_scrub, job);
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

/* ---- on the service thread ---- */

static void judge(struct far_scrub *scrub)
{
    const struct fault *fault = &scrub->fault;
    struct checkpoint *checkpoint = scrub->checkpoint;
    bool is_damage = fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND;
    if (!is_damage || scrub->is_gone) {
        checkpoint->copies[TIER_FAR].tried_ms = loop_now_ms();
        log_warn("scrub", "run %s, step %llu was not read in the far tier: %s",
                 checkpoint->run->name, (unsigned long long)checkpoint->summary.step,
                 fault->message);
        return;
    }
    scrub->damaged++;
    if (catalog_has_copy(checkpoint, TIER_FAR))
        catalog_damage(checkpoint, TIER_FAR, fault);
}

static void was_read(struct event *event)
{
    struct far_scrub *scrub = CONTAINER_OF(event, struct far_scrub, job.done);
    struct checkpoint *checkpoint = scrub->checkpoint;
    int64_t ms = (int64_t)(scrub->bytes * 1000 / (uint64_t)scrub->service->config->scrub_rate);
    scrub->bytes_read += scrub->bytes;
    if (scrub->is_over) {
        scrub->checkpoints_read += scrub->is_read;
        if (scrub->is_read)
            checkpoint->copies[TIER_FAR].read_ms = loop_now_ms();
        else
            judge(scrub);
        scrub->checkpoint = NULL;
        catalog_unlease(checkpoint);
    }
    loop_timer(scrub->service->loop, &scrub->timer, ms);
}

/* One that could not be read is tried again, but not before all others that are due. */
static bool is_due(const struct service *service, const struct copy *copy)
{
    int64_t now = loop_now_ms(), period = 1000 * service->config->scrub_period;
    int64_t again = period < RETRY_MS ? period : RETRY_MS;
    return (copy->read_ms == 0 || copy->read_ms <= now - period) &&
           (copy->tried_ms == 0 || copy->tried_ms <= now - again);
}

/* Looked at longest ago, and due; NULL: none. */
static struct checkpoint *find_next(const struct service *service)
{
    struct checkpoint *next = NULL;
    int64_t next_ms = 0;
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next) {
            const struct copy *copy = &c->copies[TIER_FAR];
            int64_t ms = copy->tried_ms > copy->read_ms ? copy->tried_ms : copy->read_ms;
            if (!catalog_has_copy(c, TIER_FAR) || c->damaged || !is_due(service, copy) ||
                (next && ms >= next_ms))
                continue;
            next = c;
            next_ms = ms;
        }
    return next;
}

static void go_on(struct timer *timer)
{
    struct far_scrub *scrub = CONTAINER_OF(timer, struct far_scrub, timer);
    struct service *service = scrub->service;
    if (service->draining || service->offline[0])
        return;
    if (!scrub->checkpoint && !service->tiers[TIER_FAR].offline[0]) {
        scrub->checkpoint = find_next(service);
        if (scrub->checkpoint) {
            catalog_lease(scrub->checkpoint);
            scrub->summary = scrub->checkpoint->summary;
        }
    }
    if (!scrub->checkpoint) {
        int64_t ms = 1000 * service->config->scrub_period;
        loop_timer(service->loop, timer,
                   ms < IDLE_MS_MIN ? IDLE_MS_MIN
                   : ms < IDLE_MS   ? ms
                                    : IDLE_MS);
        return;
    }
    scrub->fault = (struct fault){0};
    scrub->bytes = 0;
    scrub->is_read = scrub->is_gone = scrub->is_over = false;
    scrub->job = (struct job){.work = work_read, .done.run = was_read};
    tier_work(service, TIER_FAR, &scrub->job);
}

/* ---- life ---- */

int far_scrub_open(struct service *service)
{
    void *buffer = NULL;
    if (!tier_has_far(service) || service->config->scrub_rate == 0)
        return 0;
    struct far_scrub *scrub = calloc(1, sizeof *scrub);
    if (!scrub || posix_memalign(&buffer, STORAGE_ALIGN, READ_BYTES) != 0) {
        free(scrub);
        return report_error(ERR_MEMORY, NULL, "no memory for the scrub of the far tier");
    }
    scrub->service = service;
    scrub->buffer = buffer;
    scrub->timer.run = go_on;
    service->far_scrub = scrub;
    loop_timer(service->loop, &scrub->timer, service->config->scrub_start_ms);
    return 0;
}

void far_scrub_close(struct service *service)
{
    struct far_scrub *scrub = service->far_scrub;
    if (!scrub)
        return;
    close_checkpoint(scrub);
    free(scrub->buffer);
    free(scrub);
    service->far_scrub = NULL;
}

json_t *far_scrub_describe(const struct service *service)
{
    const struct far_scrub *scrub = service->far_scrub;
    const struct checkpoint *checkpoint = scrub ? scrub->checkpoint : NULL;
    if (!scrub)
        return json_null();
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "doing", checkpoint ? "reading" : "waiting",
                     "run", checkpoint ? checkpoint->run->name : "", "step",
                     (json_int_t)(checkpoint ? checkpoint->summary.step : 0), "bytes_read",
                     (json_int_t)scrub->bytes_read, "checkpoints_read",
                     (json_int_t)scrub->checkpoints_read, "damaged", (json_int_t)scrub->damaged);
}
