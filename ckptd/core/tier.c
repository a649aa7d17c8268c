/* tier.c - opens and closes the tiers of a ckptd, and publishes files there.
 *
 * The far tier may be slow, full, or silent during training: its blocking jobs have their own
 * threads (a crew), so hashing and the local disk never wait for it. It has several writers, one
 * ckptd per node, without a lock. So a name there is taken by an exclusive publication; if that has
 * no answer, the outcome is unknown until the name was read back:
 *
 *   published ────────────────────────────────────► DURABLE
 *   the name is taken ──► read it ── our nonce ────► DURABLE: an earlier try had its effect
 *                               └─── another ──────► TAKEN
 *   refused before any effect ─────────────────────► ABSENT (no room, no rights, too large)
 *   refused, as its shards are not there ──────────► LOST (by a peer that was restarted)
 *   no answer, or an error ──► read it ── our nonce ──────► DURABLE
 *                                    ├─ another ───► TAKEN
 *                                    └─ nothing ───► UNKNOWN: the effect may be late
 *
 * Publishing again after UNKNOWN is safe: the text with one nonce takes effect at most once.
 *
 * All peers share one crew, of PEER_WORKERS threads at most, however many peers there are. Each has
 * a lane in it: a silent peer occupies some threads for as long as its calls wait. After a refresh
 * has found it silent it gets one thread, and all silent peers together half of them.
 *
 * ckptd starts without the far tier: an outage there must not keep a node from saving to its disk
 * and loading. Until the tier was reached, storage_absent takes its place and refuses all calls.
 * Each refresh (refresh/refresh.c) tries to open it; a drain repeats the first one every
 * tier.retry_ms. A bucket is open once its probe has succeeded, so nothing drains before
 * conditional writes are known to work.
 *
 *   no answer, an error of the server's  ──► alarm, tried again: it ends by itself
 *   a directory without a store's mark   ──► the same: it may be mounted later (core/directory.c)
 *   a directory of another identity      ──► the same (core/store_identity.c)
 *   keys, rights, a name or certificate  ──► ends the start, if the server says so within FIRST_S:
 *   that are refused; no conditional         the operator must act. In a running ckptd it is
 *   write; a bucket of another identity      an alarm: new checkpoints stay on the local disk */
#include "ckptd/core/tier.h"
#include "ckptd/core/config.h"
#include "ckptd/core/directory.h"
#include "ckptd/core/service.h"
#include "ckptd/core/store_identity.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/wire/rpc.h"
#include "storage/bucket/options.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BUCKET_PART_MIN (5ll << 20) /* of S3, for every part but the last */
#define CREW_BESIDE 2u              /* threads for refreshes, besides those that move parts */
#define PEER_WORKERS 32u            /* for all peers, at most, unless one needs no more */
/* How long a start waits for the first answer of the far tier. */
#define FIRST_S 5
/* How long a shutdown waits for requests of a bucket: without an answer what they were about to do
 * is done after the next start, as after a kill. */
#define END_S 2

const char *tier_name(const struct service *service, enum tier_index tier)
{
    if (tier_is_peer(tier))
        return service->config->members.peers[tier - TIER_PEER].name;
    return tier == TIER_LOCAL ? "local" : tier == TIER_MEMORY ? "memory" : "far";
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
    struct tier *at = &service->tiers[tier];
    if (at->crew)
        crew_work_in(at->crew, &at->lane, job);
    else
        loop_work(service->loop, job);
}

void tier_note_answer(struct service *service, enum tier_index tier, bool answers)
{
    struct tier *at = &service->tiers[tier];
    if (tier_is_peer(tier) && at->crew)
        crew_set_away(at->crew, &at->lane, !answers);
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
        report_error(ERR_EXISTS, NULL, "%s exists already, and belongs to another store", key);
        return PUBLICATION_TAKEN;
    }
    return error == ERR_NOT_FOUND ? PUBLICATION_ABSENT : PUBLICATION_UNKNOWN;
}

/* Errors after which nothing was begun. */
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
    /* Not found after no answer, or a taken name that is gone: the outcome is unknown. */
    return found == PUBLICATION_DURABLE ? found : PUBLICATION_UNKNOWN;
}

/* ---- opening ---- */

/* A store of the tests (fault:) is not a place in the settings' syntax, and is new each time. */
static int find_place(struct storage_where *out, bool *out_is_real, const char *text)
{
    *out_is_real = strncmp(text, "fault:", 6) != 0;
    if (*out_is_real)
        return storage_where_parse(out, text);
    *out = (struct storage_where){.ops = storage_find("fault")};
    snprintf(out->place, sizeof out->place, "%s", text + 6);
    return out->ops ? 0
                    : report_error(ERR_INVALID, "fault stores are only for tests",
                                   "this ckptd cannot open the tier \"%s\"", text);
}

/* Opens the far tier, at the start or later, and again after an outage. */
struct reach {
    struct service *service;
    struct storage_where where;
    struct storage_bucket bucket;
    _Atomic uint64_t ends_ns; /* of its storage */
    pthread_mutex_t opening;  /* held during a try */
    bool is_open;             /* guarded by it */
    struct directory place;   /* guarded by it: a directory that was opened */
    bool is_known;            /* the tier has an identity: this, guarded by it */
    char identity[STORE_IDENTITY_BYTES];
    pthread_mutex_t mutex; /* guards the fields below */
    pthread_cond_t tried;
    bool has_tried;
    struct fault first; /* error of the first try */
    struct job job;
};

/* Waiting does not resolve these errors. A missing directory may be mounted later. */
static bool is_final(const struct storage_where *where, int error)
{
    return error == ERR_MEMORY ||
           (!where->is_shared && (error == ERR_MISMATCH || error == ERR_INVALID ||
                                  error == ERR_DENIED || error == ERR_VERSION));
}

static int open_far(struct reach *reach)
{
    const struct config *config = reach->service->config;
    const struct storage_options options = {.queue_depth = (uint32_t)config->tier_connections,
                                            .num_threads = (uint32_t)config->tier_connections,
                                            .is_shared = reach->where.is_shared,
                                            .bucket = &reach->bucket,
                                            .ends_ns = &reach->ends_ns,
                                            .opens_briefly = true};
    struct storage *storage = NULL;
    if (reach->where.is_shared)
        ERR_TRY(directory_need_tier(reach->where.place));
    ERR_TRY(storage_open(&storage, reach->where.ops, reach->where.place, &options));
    int error = reach->is_known ? store_identity_take(reach->identity, storage,
                                                      reach->service->storage, config->tier_store)
                                : 0;
    if (error != 0) {
        storage_close(storage);
        return error;
    }
    reach->service->tiers[TIER_FAR].storage = storage;
    reach->is_open = true;
    if (reach->where.is_shared)
        directory_take(&reach->place, reach->where.place);
    log_info("tier", "the far tier is %s (%s)", config->tier_store, storage_describe(storage));
    return 0;
}

int tier_reach(struct service *service, enum tier_index tier)
{
    struct reach *reach = service->tiers[tier].reach;
    if (!reach)
        return 0;
    pthread_mutex_lock(&reach->opening);
    bool was_open = reach->is_open;
    int error = was_open ? directory_check(&reach->place) : open_far(reach);
    pthread_mutex_unlock(&reach->opening);
    return error == 0 && was_open && reach->is_known
               ? store_identity_check(service->tiers[tier].storage, reach->identity,
                                      service->config->tier_store)
               : error;
}

static void work_reach(struct job *job)
{
    struct reach *reach = CONTAINER_OF(job, struct reach, job);
    int error = tier_reach(reach->service, TIER_FAR);
    pthread_mutex_lock(&reach->mutex);
    if (error != 0)
        fault_take(&reach->first, error);
    reach->has_tried = true;
    pthread_cond_signal(&reach->tried);
    pthread_mutex_unlock(&reach->mutex);
}

static bool await_first(struct reach *reach)
{
    const struct timespec until =
        clock_after_ns(CLOCK_MONOTONIC, (uint64_t)FIRST_S * CLOCK_SECOND_NS);
    pthread_mutex_lock(&reach->mutex);
    for (int error = 0; !reach->has_tried && error == 0;)
        error = pthread_cond_clockwait(&reach->tried, &reach->mutex, CLOCK_MONOTONIC, &until);
    bool has_tried = reach->has_tried;
    pthread_mutex_unlock(&reach->mutex);
    return has_tried;
}

static int try_first(struct reach *reach)
{
    struct tier *far = &reach->service->tiers[TIER_FAR];
    struct fault fault;
    reach->job = (struct job){.work = work_reach};
    tier_work(reach->service, TIER_FAR, &reach->job);
    if (await_first(reach))
        fault = reach->first;
    else
        fault_take(&fault, report_error(ERR_TIMEOUT, NULL, "no answer in %d s", FIRST_S));
    if (fault.code == 0 || is_final(&reach->where, fault.code))
        return fault_raise(&fault);
    snprintf(far->offline, sizeof far->offline, "%s", fault.message);
    far->silent_since_ms = clock_ms();
    log_error("tier", "the far tier %s cannot be reached, ckptd retries: %s",
              reach->service->config->tier_store, fault.message);
    return 0;
}

static int open_reach(struct service *service)
{
    const struct config *config = service->config;
    struct tier *far = &service->tiers[TIER_FAR];
    struct reach *reach = far->reach = calloc(1, sizeof *reach);
    struct storage *absent;
    if (!reach)
        return report_error(ERR_MEMORY, NULL, "no memory for the far tier");
    reach->service = service;
    pthread_mutex_init(&reach->opening, NULL);
    pthread_mutex_init(&reach->mutex, NULL);
    pthread_cond_init(&reach->tried, NULL);
    ERR_TRY(find_place(&reach->where, &reach->is_known, config->tier_store));
    ERR_TRY(storage_bucket_environment(&reach->bucket));
    reach->bucket.part_bytes =
        config->tier_part_bytes > BUCKET_PART_MIN ? config->tier_part_bytes : BUCKET_PART_MIN;
    reach->bucket.connections = config->tier_connections;
    ERR_TRY(storage_open(&absent, &storage_absent, "", NULL));
    far->storage = absent;
    uint32_t num_workers = (uint32_t)config->tier_connections + CREW_BESIDE;
    ERR_TRY(crew_open(&far->crew, service->loop, num_workers, TIER_NICE));
    crew_lane(far->crew, &far->lane, num_workers);
    return try_first(reach);
}

static int visit_none(void *user, const struct storage_entry *entry)
{
    (void)user;
    (void)entry;
    return 0;
}

int tier_check(bool *out_is_final, const struct config *config)
{
    struct storage_bucket bucket = {.part_bytes = BUCKET_PART_MIN, .connections = 1};
    struct storage_where where;
    struct storage *storage = NULL;
    bool is_real;
    *out_is_final = true;
    ERR_TRY(find_place(&where, &is_real, config->tier_store));
    ERR_TRY(storage_bucket_environment(&bucket));
    const struct storage_options options = {
        .read_only = true, .is_shared = where.is_shared, .bucket = &bucket, .opens_briefly = true};
    int error = where.is_shared ? directory_need_tier(where.place) : 0;
    if (error == 0)
        error = storage_open(&storage, where.ops, where.place, &options);
    if (error == 0)
        error = storage_list(storage, "", visit_none, NULL);
    if (storage)
        storage_close(storage);
    *out_is_final = error != 0 && is_final(&where, error);
    return error;
}

static void close_reach(struct reach *reach)
{
    if (!reach)
        return;
    pthread_mutex_destroy(&reach->opening);
    pthread_mutex_destroy(&reach->mutex);
    pthread_cond_destroy(&reach->tried);
    free(reach->place.path);
    free(reach);
}

static int open_peer(struct service *service, uint32_t index)
{
    const struct config *config = service->config;
    const struct member *peer = &config->members.peers[index];
    struct tier *tier = &service->tiers[TIER_PEER + index];
    struct storage *storage = NULL;
    ERR_TRY(rpc_client_open_as(&tier->client, peer->address, config->tls_directory));
    const struct storage_options options = {.num_threads = TIER_PEER_PARTS,
                                            .tls_directory = config->tls_directory,
                                            .rpc = tier->client};
    ERR_TRY(storage_open(&storage, &storage_peer, peer->address, &options));
    tier->storage = storage;
    tier->is_unknown = true;
    tier->crew = service->peer_crew;
    crew_lane(tier->crew, &tier->lane, TIER_PEER_PARTS + CREW_BESIDE);
    log_info("tier", "node %s is at %s, in domain %s", peer->name, peer->address, peer->domain);
    return 0;
}

/* Few peers get a worker for each job that they may have at once; many share PEER_WORKERS. */
static int open_peers(struct service *service)
{
    const struct config *config = service->config;
    uint32_t each = TIER_PEER_PARTS + CREW_BESIDE;
    uint32_t all = each * config->members.count, most = each > PEER_WORKERS ? each : PEER_WORKERS;
    if (all == 0)
        return 0;
    ERR_TRY(crew_open(&service->peer_crew, service->loop, all < most ? all : most, TIER_NICE));
    for (uint32_t i = 0; i < config->members.count; i++)
        ERR_TRY(open_peer(service, i));
    return 0;
}

/* For copies from other nodes: peers/replica.c. */
static int open_memory(struct service *service)
{
    char bytes[32];
    struct storage *storage = NULL;
    if (strcmp(service->config->nodes_replicas_in, "memory") != 0)
        return 0;
    snprintf(bytes, sizeof bytes, "%lld", (long long)service->config->nodes_memory_bytes);
    ERR_TRY(storage_open(&storage, &storage_memory, bytes, NULL));
    service->tiers[TIER_MEMORY].storage = storage;
    return 0;
}

int tier_make_store(const struct config *config)
{
    struct storage_where where;
    struct storage *storage = NULL;
    bool is_real;
    ERR_TRY(find_place(&where, &is_real, config->tier_store));
    if (!where.is_shared)
        return 0;
    ERR_TRY(storage_open(&storage, where.ops, where.place,
                         &(struct storage_options){.is_shared = true, .is_quiet = true}));
    int error = storage_lock(storage);
    storage_close(storage);
    if (error == 0)
        log_info("tier", "%s is a store", config->tier_store);
    return error;
}

int tier_open(struct service *service)
{
    service->tiers[TIER_LOCAL] = (struct tier){.storage = service->storage};
    ERR_TRY(open_peers(service));
    ERR_TRY(open_memory(service));
    return service->config->tier_store[0] ? open_reach(service) : 0;
}

void tier_hurry(struct service *service)
{
    struct reach *reach = service->tiers[TIER_FAR].reach;
    if (reach && atomic_load(&reach->ends_ns) == 0)
        atomic_store(&reach->ends_ns, clock_ns() + END_S * CLOCK_SECOND_NS);
}

void tier_end(struct service *service)
{
    tier_hurry(service);
    crew_close(service->tiers[TIER_FAR].crew);
    crew_close(service->peer_crew);
    service->peer_crew = NULL;
    for (unsigned tier = TIER_PEER; tier < NUM_TIERS; tier++)
        service->tiers[tier].crew = NULL;
}

void tier_close(struct service *service)
{
    for (unsigned tier = TIER_LOCAL + 1; tier < NUM_TIERS; tier++) {
        if (service->tiers[tier].storage)
            storage_close(service->tiers[tier].storage);
        service->tiers[tier].storage = NULL;
        rpc_client_close(service->tiers[tier].client);
        service->tiers[tier].client = NULL;
        close_reach(service->tiers[tier].reach);
        service->tiers[tier].reach = NULL;
    }
}
