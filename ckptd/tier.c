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
 *   refused, as its shards are not there ──────────► LOST (by a peer that was started again)
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

const char *tier_name(const struct service *service, enum tier_index tier)
{
    if (tier_is_peer(tier))
        return service->config->members.peers[tier - TIER_PEER].name;
    return tier == TIER_LOCAL ? "local" : "far";
}

bool tier_is_open(const struct service *service, enum tier_index tier)
{
    return service->tiers[tier].storage != NULL;
}

bool tier_has_far(const struct service *service)
{
    return tier_is_open(service, TIER_FAR);
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
    if (error == ERR_STALE)
        return PUBLICATION_LOST;
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

static int open_peer(struct service *service, uint32_t index)
{
    const struct config *config = service->config;
    const struct member *peer = &config->members.peers[index];
    struct tier *tier = &service->tiers[TIER_PEER + index];
    const struct storage_options options = {.num_threads = (uint32_t)config->nodes_connections,
                                            .tls_directory = config->tls_directory};
    ERR_TRY(storage_open(&tier->storage, &storage_peer, peer->address, &options));
    ERR_TRY(crew_open(&tier->crew, service->loop, (uint32_t)config->nodes_connections + CREW_BESIDE,
                      (int)config->tier_cpu_nice));
    log_info("tier", "node %s is at %s, in domain %s", peer->name, peer->address, peer->domain);
    return 0;
}

int tier_open(struct service *service)
{
    service->tiers[TIER_LOCAL] = (struct tier){.storage = service->storage};
    for (uint32_t i = 0; i < service->config->members.count; i++)
        ERR_TRY(open_peer(service, i));
    return service->config->tier_store[0] ? open_far(service) : 0;
}

void tier_end(struct service *service)
{
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++) {
        crew_close(service->tiers[tier].crew);
        service->tiers[tier].crew = NULL;
    }
}

void tier_close(struct service *service)
{
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++) {
        if (service->tiers[tier].storage)
            storage_close(service->tiers[tier].storage);
        service->tiers[tier].storage = NULL;
    }
}
