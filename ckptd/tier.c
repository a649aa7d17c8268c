/* tier.c - the tiers of a ckptd: opened, closed, and how something is published there.
 *
 * The far tier may be slow, full, or not answer at all, while training goes on: what blocks on it
 * has threads of its own (a crew), so hashing and the local disk never wait for it. It has several
 * writers, one ckptd per node: nobody locks it. What must not be done twice is an exclusive
 * publication there, and the outcome of one that was not answered is unknown until its name was
 * read back:
 *
 *   published ────────────────────────────────────► DURABLE
 *   the name is taken ──► read it ── our nonce ────► DURABLE: an earlier try had its effect
 *                               └─── another ──────► TAKEN
 *   refused before any effect ─────────────────────► ABSENT (no room, no rights, too large)
 *   no answer, or an error ──► read it ── our nonce ──────► DURABLE
 *                                    ├─ another ───► TAKEN
 *                                    └─ nothing ───► UNKNOWN: the effect may be late
 *
 * Who publishes again after UNKNOWN is safe: the same nonce's text has at most one effect. */
#include "ckptd/tier.h"
#include "ckptd/config.h"
#include "ckptd/service.h"
#include "proto/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKET_PART_MIN (5ll << 20) /* S3's, of every part but the last */
#define CREW_BESIDE 2u              /* threads for looks, beside those that move parts */

const struct tier_kind tier_kinds[NUM_TIERS] = {
    [TIER_LOCAL] = {"local", DURABLE_LOCAL}, [TIER_FAR] = {"far", DURABLE_BUCKET}};

bool tier_has_far(const struct service *service)
{
    return service->tiers[TIER_FAR].storage != NULL;
}

void tier_work(struct service *service, enum tier_index tier, struct job *job)
{
    if (service->tiers[tier].crew)
        crew_work(service->tiers[tier].crew, job);
    else
        loop_work(service->loop, job);
}

/* ---- publication ---- */

enum publication tier_settle(struct storage *storage, const char *key, const char *nonce)
{
    char text[TIER_NONCE_BYTES];
    uint64_t bytes = 0;
    int error = storage_fetch(storage, key, text, sizeof text, &bytes);
    bytes = bytes < sizeof text ? bytes : sizeof text;
    if (error == 0 && memmem(text, bytes, nonce, strlen(nonce)))
        return PUBLICATION_DURABLE;
    if (error == 0) {
        report_error(ERR_EXISTS, NULL, "%s is there already, and is not this store's", key);
        return PUBLICATION_TAKEN;
    }
    return error == ERR_NOT_FOUND ? PUBLICATION_ABSENT : PUBLICATION_UNKNOWN;
}

/* These say that nothing was begun. */
static bool is_refusal(int error)
{
    return error == ERR_INVALID || error == ERR_DENIED || error == ERR_SPACE || error == ERR_MEMORY;
}

enum publication tier_publish(struct storage *storage, const char *key, const void *text,
                              size_t bytes, const char *nonce)
{
    struct report_text kept;
    int error = storage_publish(storage, key, text, bytes);
    if (error == 0)
        return PUBLICATION_DURABLE;
    if (is_refusal(error))
        return PUBLICATION_ABSENT;
    report_keep(&kept);
    enum publication found = tier_settle(storage, key, nonce);
    if (found == PUBLICATION_TAKEN)
        return found;
    report_restore(&kept, error);
    /* Nothing there after no answer, or a name that was taken and is gone: nobody can tell. */
    return found == PUBLICATION_DURABLE ? found : PUBLICATION_UNKNOWN;
}

/* ---- opening ---- */

/* What tests add (fault:) is no place that people write. */
static int find_place(struct storage_where *out, const char *text)
{
    if (strncmp(text, "fault:", 6) != 0)
        return storage_where_parse(out, text);
    *out = (struct storage_where){.ops = storage_find("fault")};
    snprintf(out->place, sizeof out->place, "%s", text + 6);
    return out->ops ? 0
                    : report_error(ERR_INVALID, "fault stores are for tests alone",
                                   "this ckptd opens no tier \"%s\"", text);
}

static int open_far(struct service *service)
{
    const struct config *config = service->config;
    struct tier *far = &service->tiers[TIER_FAR];
    struct storage_bucket bucket;
    struct storage_where where;
    ERR_TRY(find_place(&where, config->tier_store));
    ERR_TRY(storage_bucket_environment(&bucket));
    bucket.part_bytes =
        config->tier_part_bytes > BUCKET_PART_MIN ? config->tier_part_bytes : BUCKET_PART_MIN;
    bucket.connections = config->tier_connections;
    const struct storage_options options = {.queue_depth = (uint32_t)config->tier_connections,
                                            .num_threads = (uint32_t)config->tier_connections,
                                            .is_shared = where.is_shared,
                                            .bucket = &bucket};
    int error = storage_open(&far->storage, where.ops, where.place, &options);
    if (error == 0)
        error =
            crew_open(&far->crew, service->loop, (uint32_t)config->tier_connections + CREW_BESIDE,
                      (int)config->tier_cpu_nice);
    if (error == 0)
        log_info("tier", "the far tier is %s (%s)", config->tier_store,
                 storage_describe(far->storage));
    return error;
}

int tier_open(struct service *service)
{
    service->tiers[TIER_LOCAL] = (struct tier){.storage = service->storage};
    return service->config->tier_store[0] ? open_far(service) : 0;
}

void tier_end(struct service *service)
{
    crew_close(service->tiers[TIER_FAR].crew);
    service->tiers[TIER_FAR].crew = NULL;
}

void tier_close(struct service *service)
{
    struct tier *far = &service->tiers[TIER_FAR];
    if (far->storage)
        storage_close(far->storage);
    far->storage = NULL;
}
