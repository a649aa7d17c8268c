/* replica.c - copies of other nodes' checkpoints in this node's memory.
 *
 * With nodes.replicas_in = "memory" the tier TIER_MEMORY is a store in memory (storage/memory.c) of
 * nodes.memory_bytes. serve.c stores there the copies that peers send; peers call the same
 * operations and see only a flag in the list. A copy arrives at the speed of the network, without a
 * write to this node's disk. It is lost when ckptd stops, so the senders check every nodes.look_ms
 * which copies remain, and send the others again.
 *
 * Invariants (cited in the code):
 *   replica.M1  The files that nodes send of a step have one place: the disk, if its manifest is
 *       there (a part that becomes whole), else memory. Numbers of attempts and leases are always
 *       on the disk.
 *   replica.M2  Loads, drains, peers and tools find a copy in memory as one on the disk; the disk
 *       is tried first.
 *   replica.M3  A copy is evicted from memory only when a newer one of its run is whole there and
 *       no lease holds it, or when it is damaged. ckptd removes files that a sender left
 *       unfinished, from memory and disk, when it releases its lease or is silent.
 *   replica.M4  A copy counts for the node's failure domain, beside one on another node's disk, and
 *       the level is named "replicated(mem)" (copies.c). Without another copy it is "accepted".
 *   replica.M5  Where every disk with the checkpoint is lost, the node writes its copy to its own
 *       disk (tiers/queue.c). So does a node whose ranks load it.
 *   replica.M6  A copy that does not fit into nodes.memory_bytes is refused before its first byte
 *       (ERR_SPACE): the sender logs it and sends to another node. No acknowledged copy is evicted
 *       to make room for it.
 *
 * Not done: the newest copy of a run that has ended stays until ckptd stops. */
#include "ckptd/peers/replica.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/core/store_key.h"
#include "proto/base/report.h"
#include "proto/format/mark.h"
#include "proto/format/retain.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses the key of a step's directory, or of a file in it. */
static bool find_step(struct manifest_summary *out, const char *key)
{
    char text[STORAGE_KEY_MAX + 2];
    const char *name;
    snprintf(text, sizeof text, "%s/", key);
    return store_key_parse(out, &name, text);
}

struct storage *replica_place(struct service *service, const char *key)
{
    struct storage *memory = service->tiers[TIER_MEMORY].storage;
    struct manifest_summary step = {0};
    char manifest[STORAGE_KEY_MAX + 1];
    uint64_t bytes;
    if (!memory || !find_step(&step, key) || manifest_key(manifest, sizeof manifest, &step) != 0)
        return service->storage;
    bool is_on_disk =
        storage_fetch(service->storage, manifest, NULL, 0, &bytes) == 0; /* replica.M1 */
    return is_on_disk ? service->storage : memory;
}

/* ---- eviction ---- */

struct evicting {
    const struct manifest_summary *newest;
    const char *name; /* of the step to check */
    bool is_leased;
    char (*names)[64];
    size_t count, room;
};

static int visit_lease(void *user, const struct storage_entry *entry)
{
    struct evicting *evicting = user;
    evicting->is_leased |= strcmp(entry->name, evicting->name) == 0;
    return 0;
}

static int visit_step(void *user, const struct storage_entry *entry)
{
    struct evicting *evicting = user;
    const struct manifest_summary *newest = evicting->newest;
    uint64_t step, attempt;
    bool is_older =
        retain_parse(entry->name, &step, &attempt) &&
        (attempt < newest->attempt || (attempt == newest->attempt && step < newest->step));
    if (!is_older || strlen(entry->name) >= sizeof evicting->names[0])
        return 0;
    if (evicting->count == evicting->room)
        return 1; /* the next eviction takes the rest */
    snprintf(evicting->names[evicting->count++], sizeof evicting->names[0], "%s", entry->name);
    return 0;
}

/* replica.M3. */
static void evict_one(struct service *service, struct evicting *evicting, const char *name)
{
    char prefix[STORAGE_KEY_MAX + 1];
    evicting->name = name;
    evicting->is_leased = false;
    int error = store_for_leases(service->storage, evicting->newest->run, visit_lease, evicting);
    if (evicting->is_leased || (error != 0 && error != ERR_NOT_FOUND) ||
        !storage_join(prefix, evicting->newest->run, name))
        return;
    error = store_erase(service->tiers[TIER_MEMORY].storage, prefix);
    if (error != 0)
        log_warn("nodes", "could not remove %s from memory; the next copy retries: %s", prefix,
                 report_line());
}

/* The directory is another node's unfinished work, or empty. A mark of this ckptd names its own
 * boot id. */
static bool is_left(struct service *service, struct storage *storage, const char *prefix)
{
    char key[STORAGE_KEY_MAX + 32], text[MARK_BYTES_MAX] = "", own[32];
    uint64_t bytes;
    snprintf(key, sizeof key, "%s/" MANIFEST_NAME, prefix);
    if (storage_fetch(storage, key, NULL, 0, &bytes) != ERR_NOT_FOUND)
        return false;
    snprintf(key, sizeof key, "%s/" MARK_NAME, prefix);
    snprintf(own, sizeof own, "\"%016llx\"", (unsigned long long)service->boot_id);
    return storage_fetch(storage, key, text, sizeof text - 1, &bytes) == 0 && !strstr(text, own);
}

void replica_remove_left(struct service *service, const char *lease)
{
    char run[RUN_NAME_MAX + 1], name[64], prefix[STORAGE_KEY_MAX + 1];
    struct evicting evicting = {.name = name};
    if (sscanf(lease, "%100[^/]/leases/%63[^/.]", run, name) != 2 ||
        !storage_join(prefix, run, name))
        return;
    struct storage *storage = replica_place(service, prefix);
    int error = store_for_leases(service->storage, run, visit_lease, &evicting);
    if (evicting.is_leased || (error != 0 && error != ERR_NOT_FOUND) ||
        !is_left(service, storage, prefix))
        return;
    error = store_clear(storage, prefix);
    if (error == 0)
        log_info("nodes", "removed %s, which another node did not finish", prefix);
    else
        log_warn("nodes", "could not remove %s before the next start: %s", prefix, report_line());
}

#define EVICTED_AT_ONCE 64u

void replica_evict(struct service *service, const struct manifest_summary *newest)
{
    char names[EVICTED_AT_ONCE][64];
    struct evicting evicting = {.newest = newest, .names = names, .room = EVICTED_AT_ONCE};
    storage_list(service->tiers[TIER_MEMORY].storage, newest->run, visit_step, &evicting);
    for (size_t i = 0; i < evicting.count; i++)
        evict_one(service, &evicting, names[i]);
}

/* ---- Status ---- */

json_t *replica_describe(const struct service *service)
{
    struct storage *memory = service->tiers[TIER_MEMORY].storage;
    struct storage_space space;
    json_int_t copies = 0;
    if (!memory || storage_space(memory, &space) != 0)
        return json_null();
    for (const struct run *run = service->catalog->runs; run; run = run->next)
        for (const struct checkpoint *c = run->checkpoints; c; c = c->next)
            copies += catalog_has_copy(c, TIER_MEMORY);
    return json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)space.bytes_total, "bytes_left",
                     (json_int_t)space.bytes_free, "copies", copies);
}
