/* berth.c - both ends of a shard's way into another tier, on the crew: the source opened and its
 * table proven, the target found or made, parts proven, the target synced, or put in the place of
 * what was there. ship.c says when. */
#include "ckptd/drain/berth.h"
#include "ckptd/config.h"
#include "ckptd/restore/file.h"
#include "ckptd/service.h"
#include "proto/checksum.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHIP_KEY_MAX (STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX)

struct storage *berth_storage(const struct ship *ship, enum tier_index tier)
{
    return ship->service->tiers[tier].storage;
}

/* ---- proof, on the crew ---- */

/* Every block of [start, start + bytes) of the file, and what it has of the table. */
int berth_prove(const struct ship *ship, const uint8_t *data, uint64_t start, uint64_t bytes)
{
    const struct shard_geometry *geometry = &ship->geometry;
    const struct manifest_summary *summary = &ship->manifest->summary;
    const uint8_t *table = ship->table + geometry->table_start % STORAGE_ALIGN;
    uint64_t end = start + bytes,
             data_end = end < geometry->table_start ? end : geometry->table_start;
    for (uint64_t at = start; at < data_end; at += CHECKSUM_BLOCK_BYTES) {
        uint64_t left = data_end - at, block = at / CHECKSUM_BLOCK_BYTES;
        size_t length = left < CHECKSUM_BLOCK_BYTES ? (size_t)left : CHECKSUM_BLOCK_BYTES;
        uint64_t sum = checksum_block(data + (at - start), length, ship->identity, block);
        ERR_TRY(file_check_block(ship->table, geometry, block, sum, summary, ship->shard));
    }
    uint64_t from = start > geometry->table_start ? start : geometry->table_start;
    if (from < end &&
        memcmp(data + (from - start), table + (from - geometry->table_start), end - from) != 0)
        return report_error(ERR_CORRUPT, NULL,
                            "the checksum table of shard-%05u-of-%05u differs from what was proven",
                            ship->shard + 1, summary->shards);
    return 0;
}

void berth_part_range(const struct ship *ship, uint64_t index, uint64_t *out_start,
                      uint32_t *out_bytes)
{
    uint64_t size = (uint64_t)ship->service->config->tier_part_bytes;
    *out_start = index * size;
    uint64_t left = ship->geometry.file_bytes - *out_start;
    *out_bytes = (uint32_t)(left < size ? left : size);
}

/* A peer's manifest is the local one, without the hashes of what was sent. */
int berth_hash_part(const struct ship *ship, uint64_t index, const void *data, uint32_t bytes)
{
    return tier_is_peer(ship->to) ? 0 : checksum_sha256_hex(ship->sums[index], data, bytes);
}

int berth_read_part(const struct ship *ship, enum tier_index tier, struct storage_object *object,
                    void *data, uint64_t index)
{
    uint64_t start;
    uint32_t bytes;
    berth_part_range(ship, index, &start, &bytes);
    ERR_TRY(storage_transfer(berth_storage(ship, tier), STORAGE_READ, object, start, data, bytes));
    ERR_TRY(berth_prove(ship, data, start, bytes));
    return berth_hash_part(ship, index, data, bytes);
}

int berth_read_early(struct ship *ship, void *data, uint64_t start, uint32_t bytes)
{
    uint8_t *table = ship->table + ship->geometry.table_start % STORAGE_ALIGN;
    ERR_TRY(storage_transfer(berth_storage(ship, ship->from), STORAGE_READ, ship->source, start,
                             data, bytes));
    for (uint32_t at = 0; at < bytes; at += CHECKSUM_BLOCK_BYTES) {
        uint64_t block = (start + at) / CHECKSUM_BLOCK_BYTES;
        shard_table_put(
            table, block,
            checksum_block((uint8_t *)data + at, CHECKSUM_BLOCK_BYTES, ship->identity, block));
    }
    return 0;
}

/* ---- the beginning, on the crew ---- */

static int key_of(char key[SHIP_KEY_MAX], const struct ship *ship, bool is_new)
{
    struct shard_identity identity;
    manifest_identity(&identity, &ship->manifest->summary, ship->shard);
    ERR_TRY(shard_key(key, STORAGE_KEY_MAX, &identity));
    if (is_new)
        strcat(key, SHARD_NEW_SUFFIX);
    return 0;
}

/* Does a whole shard lie in that tier under its name, or its new one? ERR_NOT_FOUND: nothing does;
 * ERR_CORRUPT: something else or a part of it. Every block is read. */
static int prove_object(struct ship *ship, enum tier_index tier, bool is_new)
{
    struct storage *storage = berth_storage(ship, tier);
    struct storage_object *object = NULL;
    char key[SHIP_KEY_MAX];
    void *room = NULL; /* others use the fleet's meanwhile */
    uint64_t bytes = 0;
    int error = key_of(key, ship, is_new);
    if (error == 0)
        error = storage_object_open(storage, &object, key, &bytes);
    if (error == 0 && bytes != ship->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu", ship->shard,
                         (unsigned long long)bytes, (unsigned long long)ship->geometry.file_bytes);
    if (error == 0 &&
        posix_memalign(&room, STORAGE_ALIGN, (size_t)ship->service->config->tier_part_bytes) != 0)
        error = report_error(ERR_MEMORY, NULL, "no memory to read a shard back");
    for (uint64_t i = 0; error == 0 && i < ship->num_parts; i++)
        error = berth_read_part(ship, tier, object, room, i);
    free(room);
    if (object)
        storage_object_close(storage, object);
    return error;
}

/* What is not whole there makes way, or waits for its successor. */
static int make_way(struct ship *ship, const char *key)
{
    struct storage *storage = berth_storage(ship, ship->to);
    ship->is_replacing = storage_replaces(storage);
    if (!ship->is_replacing) {
        int error = prove_object(ship, ship->from, false);
        ship->is_of_source = error != 0;
        return error != 0 ? error : storage_remove(storage, key);
    }
    int error = storage_remove(storage, key); /* what a crash left of an earlier try */
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int prepare_target(struct ship *ship)
{
    struct storage *storage = berth_storage(ship, ship->to);
    char key[SHIP_KEY_MAX];
    ERR_TRY(key_of(key, ship, false));
    int error = storage_object_create(storage, &ship->target, key, ship->geometry.file_bytes);
    if (error != ERR_EXISTS)
        return error;
    error = prove_object(ship, ship->to, false);
    bool is_damaged = error == ERR_CORRUPT || (error == ERR_IO && ship->to == TIER_LOCAL);
    ship->is_kept = error == 0;
    if (error == 0)
        return 0;
    if (!is_damaged && error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(key_of(key, ship, is_damaged && storage_replaces(storage)));
    if (is_damaged)
        ERR_TRY(make_way(ship, key));
    return storage_object_create(storage, &ship->target, key, ship->geometry.file_bytes);
}

/* It is durable beside what it replaces: read back, then it takes the name. */
static int replace_target(struct ship *ship)
{
    struct storage *storage = berth_storage(ship, ship->to);
    char key[SHIP_KEY_MAX], name[SHIP_KEY_MAX];
    ERR_TRY(key_of(name, ship, false));
    ERR_TRY(key_of(key, ship, true));
    ERR_TRY(prove_object(ship, ship->to, true));
    return storage_replace(storage, key, name);
}

static int prepare_source(struct ship *ship)
{
    return file_open_proven(&ship->source, &ship->table, berth_storage(ship, ship->from),
                            ship->manifest, ship->shard, &ship->geometry);
}

/* Blocks of the shard that lie in the parts that were sent. */
static uint64_t count_blocks_sent(const struct ship *ship)
{
    uint64_t bytes = ship->num_sent * (uint64_t)ship->service->config->tier_part_bytes;
    uint64_t blocks = (bytes + CHECKSUM_BLOCK_BYTES - 1) / CHECKSUM_BLOCK_BYTES;
    return blocks < ship->geometry.num_blocks ? blocks : ship->geometry.num_blocks;
}

/* What went before the commit is the beginning of this shard, where it is what the manifest says:
 * it was proven by sums that the table now has. */
static bool take_up(struct ship *ship)
{
    struct ship *left = ship->left;
    uint64_t skip = ship->geometry.table_start % STORAGE_ALIGN;
    bool is_good = left && left->fault.code == 0 && left->num_sent > 0 &&
                   left->geometry.file_bytes == ship->geometry.file_bytes &&
                   left->geometry.table_start == ship->geometry.table_start &&
                   memcmp(left->table + skip, ship->table + skip,
                          count_blocks_sent(left) * sizeof(uint64_t)) == 0;
    if (!is_good)
        return false;
    ship->target = left->target;
    left->target = NULL;
    ship->is_kept = !ship->target; /* it was synced and closed */
    ship->next_part = ship->num_sent = left->num_sent;
    return true;
}

static void close_target(struct ship *ship)
{
    if (ship->target)
        storage_object_close(berth_storage(ship, ship->to), ship->target);
    ship->target = NULL;
}

void berth_close(struct ship *ship)
{
    close_target(ship);
    if (ship->source)
        storage_object_close(berth_storage(ship, ship->from), ship->source);
    ship->source = NULL;
}

void berth_remove_early(struct ship *ship, struct storage *storage,
                        const struct manifest_summary *summary)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    manifest_identity(&identity, summary, ship->shard);
    close_target(ship);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_remove(storage, key);
    if (error != 0)
        log_warn("drain", "a shard that came before its commit stays: %s", report_line());
    ship->is_ours = false;
}

/* It was taken, or goes: what is at a peer is proven there. */
static void end_left(struct ship *left, const struct ship *ship, bool is_taken)
{
    berth_close(left);
    left->num_sent = 0; /* it counts once: T7 of transfer.c */
    if (left->is_ours && !is_taken)
        berth_remove_early(left, berth_storage(ship, ship->to), &ship->manifest->summary);
    left->is_ours = false;
}

void berth_prepare(struct job *job)
{
    struct ship *ship = CONTAINER_OF(job, struct ship, job);
    int error = prepare_source(ship);
    ship->is_of_source = error != 0;
    bool is_begun = error == 0 && take_up(ship);
    if (ship->left)
        end_left(ship->left, ship, is_begun);
    if (error == 0 && !is_begun)
        error = prepare_target(ship);
    if (error != 0)
        fault_take(&ship->fault, error);
}

void berth_prepare_early(struct job *job)
{
    struct ship *ship = CONTAINER_OF(job, struct ship, job);
    char key[SHIP_KEY_MAX];
    int error = key_of(key, ship, false);
    if (error == 0 && ship->from != TIER_LOCAL)
        error = file_open(&ship->source, berth_storage(ship, ship->from), &ship->manifest->summary,
                          ship->shard, ship->geometry.file_bytes);
    if (error == 0)
        error = storage_object_create(berth_storage(ship, ship->to), &ship->target, key,
                                      ship->geometry.file_bytes);
    ship->is_made = ship->is_ours = error == 0 && ship->to == TIER_LOCAL;
    if (error != 0)
        fault_take(&ship->fault, error);
}

/* ---- the end ---- */

/* The hash of the parts' hashes, as bytes. */
static int sum_parts(struct ship *ship)
{
    uint8_t *bytes = malloc(ship->num_parts * 32);
    if (!bytes)
        return report_error(ERR_MEMORY, NULL, "no memory for the hashes of %llu parts",
                            (unsigned long long)ship->num_parts);
    for (uint64_t i = 0; i < ship->num_parts * 32; i++) {
        unsigned value = 0;
        sscanf(&ship->sums[i / 32][i % 32 * 2], "%2x", &value);
        bytes[i] = (uint8_t)value;
    }
    int error = checksum_sha256_hex(ship->sha256, bytes, ship->num_parts * 32);
    free(bytes);
    return error;
}

/* It did not take the name, and is nobody's; the error that says why stays this thread's. */
static void remove_new(const struct ship *ship)
{
    struct report_text text;
    char key[SHIP_KEY_MAX];
    report_keep(&text);
    if (key_of(key, ship, true) == 0 && storage_remove(berth_storage(ship, ship->to), key) != 0)
        log_debug("drain", "%s stays: %s", key, report_line());
    report_restore(&text, 0);
}

void berth_end(struct job *job)
{
    struct ship *ship = CONTAINER_OF(job, struct ship, job);
    struct storage *storage = berth_storage(ship, ship->to);
    int error = 0;
    if (ship->fault.code == 0 && ship->target)
        error = storage_transfer(storage, STORAGE_SYNC, ship->target, 0, NULL, 0);
    berth_close(ship);
    if (error == 0 && ship->fault.code == 0 && ship->is_replacing)
        error = replace_target(ship);
    if (ship->is_replacing && (error != 0 || ship->fault.code != 0))
        remove_new(ship);
    if (error == 0 && ship->fault.code == 0 && !tier_is_peer(ship->to))
        error = sum_parts(ship);
    if (error != 0)
        fault_take(&ship->fault, error);
}
