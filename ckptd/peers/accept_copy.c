/* accept_copy.c - accepts a checkpoint that another node has sent: verifies its shards, publishes
 * its manifest, and refreshes the catalog so that it is listed. serve.c has the invariants serve.P1
 * to P6. */
#include "ckptd/peers/accept_copy.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/hooks.h"
#include "ckptd/core/service.h"
#include "ckptd/peers/join_part.h"
#include "ckptd/peers/replica.h"
#include "ckptd/refresh/refresh.h"
#include "ckptd/tiers/complete_copy.h"
#include "ckptd/tiers/replicate.h"
#include "proto/base/report.h"
#include "storage/store/store.h"

#include <stdlib.h>
#include <string.h>

/* ---- the manifest, on the crew ---- */

/* The manifest exists already. If it has the same text that is no error: the part is complete
 * now. */
static int complete_part(const struct manifest_summary *summary, struct storage *storage,
                         const char *key, const void *text, size_t bytes)
{
    struct report_text kept;
    void *there = NULL;
    size_t there_bytes = 0;
    report_keep(&kept);
    int error = storage_fetch_all(storage, key, MANIFEST_BYTES_MAX, &there, &there_bytes);
    if (error == 0 && (there_bytes != bytes || memcmp(there, text, bytes) != 0)) {
        report_restore(&kept, ERR_EXISTS);
        error = ERR_EXISTS;
    }
    if (error == 0)
        error = complete_copy(storage, summary);
    free(there);
    return error;
}

/* serve.P1. */
int accept_copy_publish(struct accept_copy *arrival, struct storage *storage, const char *key,
                        const struct manifest_summary *place, const void *text, size_t bytes)
{
    struct manifest_summary *summary = &arrival->summary;
    size_t head = bytes < MANIFEST_SUMMARY_BYTES ? bytes : MANIFEST_SUMMARY_BYTES;
    ERR_TRY(manifest_read_summary(summary, text, head));
    ERR_TRY(store_settle(summary, storage, place->run, place->step, place->attempt));
    int error = store_prove_shards(storage, summary, text, bytes);
    if (error == ERR_NOT_FOUND || error == ERR_CORRUPT)
        return report_error(ERR_STALE, "send them again", "its shards are not whole here: %s",
                            report_message());
    if (error == 0)
        error = storage_publish(storage, key, text, bytes);
    if (error == ERR_EXISTS)
        error = complete_part(summary, storage, key, text, bytes);
    arrival->is_commit = error == 0;
    arrival->is_in_memory = storage != arrival->service->storage;
    if (arrival->is_commit && arrival->is_in_memory)
        replica_evict(arrival->service, summary);
    return error;
}

/* ---- the catalog ---- */

static void go_on(struct refresh_waiter *waiter)
{
    struct accept_copy *arrival = CONTAINER_OF(waiter, struct accept_copy, look);
    struct service *service = arrival->service;
    struct run *run;
    if (!service->is_closing && run_find(&run, service, arrival->summary.run, false) == 0) {
        service->hooks->apply_retention(run);
        replicate_check_queues(service);
    }
    arrival->done(arrival);
}

/* The copy is listed now, and is whole (serve.P1). The node that sent it has a copy itself, or a
 * part. */
static void complete_listed(struct refresh_waiter *waiter)
{
    struct accept_copy *arrival = CONTAINER_OF(waiter, struct accept_copy, look);
    struct service *service = arrival->service;
    const struct manifest_summary *summary = &arrival->summary;
    struct run *run;
    const char *name = strrchr(arrival->from, '/');
    unsigned tier = name ? catalog_tier_of(service, name + 1) : NUM_TIERS;
    bool is_known = !service->is_closing && run_find(&run, service, summary->run, false) == 0;
    struct checkpoint *checkpoint =
        is_known ? catalog_find(run, summary->step, summary->attempt) : NULL;
    if (checkpoint && arrival->is_in_memory) /* it was damaged before, or is new */
        checkpoint->copies.memory.is_damaged = false;
    else if (checkpoint && checkpoint->copies.local.is_there)
        catalog_completed(checkpoint, TIER_LOCAL);
    else if (is_known)
        part_completed(run, summary);
    arrival->look = (struct refresh_waiter){.go_on = go_on};
    if (is_known && tier < NUM_TIERS && tier_is_peer((enum tier_index)tier))
        refresh_tier(service, (enum tier_index)tier, &arrival->look, service->config->tier_wait_ms);
    else
        go_on(&arrival->look);
}

void accept_copy_announce(struct accept_copy *arrival)
{
    struct service *service = arrival->service;
    const struct manifest_summary *summary = &arrival->summary;
    log_info("nodes",
             "run %s, step %llu, attempt %llu: received a copy from %s, %llu bytes in %u shards%s",
             summary->run, (unsigned long long)summary->step, (unsigned long long)summary->attempt,
             arrival->from, (unsigned long long)summary->bytes, summary->shards,
             arrival->is_in_memory ? ", in memory" : "");
    arrival->look.go_on = complete_listed;
    if (arrival->is_in_memory)
        refresh_tier(service, TIER_MEMORY, &arrival->look, service->config->tier_wait_ms);
    else
        refresh_tier(service, TIER_LOCAL, &arrival->look, REFRESH_STORE_MS);
}
