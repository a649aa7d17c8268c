/* ship.c - one shard on its way from one tier into another.
 *
 *   crew: source opened, its checksum table proven by the manifest; what lies at the target under
 *   its name is kept when every block of it is right; else it is created, with its size
 *    ▼
 *   parts, several at once: taken (from the image where it is in memory still, else read), every
 *   block held against the table, SHA-256 of the part ──► sent
 *    ▼
 *   crew: synced, closed ──► arrived
 *
 * What lies at the target and is not right stays there until its successor is durable beside it and
 * was read back whole; then that takes its name. A tier that cannot do this (a bucket, a peer) has
 * it removed first, and the source proven before that: its good blocks may be the last ones.
 *
 * The bytes are proven in the very buffer that is sent, so what a rank writes into an image too
 * late, or a disk that lies, is found here and never sent. An image is held only while a part of it
 * is copied: a rank that needs it for its next save waits a few milliseconds at most. What is not
 * right in an image is read from the file; what is not right there is damage of the source.
 *
 * Parts wait for their time in pace.c: a rate, and the quiet phases of the ranks; for those a
 * checkpoint waits pace.quiet_wait_ms in all. When somebody waits for it nothing is held back.
 *
 * Memory: for each tier tier.connections buffers of tier.part_bytes, and 65 bytes per part. */
#include "ckptd/drain/ship.h"
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/config.h"
#include "ckptd/node/image.h"
#include "ckptd/node/session.h"
#include "ckptd/restore/file.h"
#include "ckptd/service.h"
#include "proto/checksum.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHIP_KEY_MAX (STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX)

static struct storage *storage_of(const struct ship *ship, enum tier_index tier)
{
    return ship->service->tiers[tier].storage;
}

/* ---- proof, on the crew ---- */

/* Every block of [start, start + bytes) of the file, and what it has of the table. */
static int prove(const struct ship *ship, const uint8_t *data, uint64_t start, uint64_t bytes)
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

static void part_range(const struct ship *ship, uint64_t index, uint64_t *out_start,
                       uint32_t *out_bytes)
{
    uint64_t size = (uint64_t)ship->service->config->tier_part_bytes;
    *out_start = index * size;
    uint64_t left = ship->geometry.file_bytes - *out_start;
    *out_bytes = (uint32_t)(left < size ? left : size);
}

/* A peer's manifest is the local one, without the hashes of what was sent. */
static int hash_part(const struct ship *ship, uint64_t index, const void *data, uint32_t bytes)
{
    return tier_is_peer(ship->to) ? 0 : checksum_sha256_hex(ship->sums[index], data, bytes);
}

static int read_part(const struct ship *ship, enum tier_index tier, struct storage_object *object,
                     void *data, uint64_t index)
{
    uint64_t start;
    uint32_t bytes;
    part_range(ship, index, &start, &bytes);
    ERR_TRY(storage_transfer(storage_of(ship, tier), STORAGE_READ, object, start, data, bytes));
    ERR_TRY(prove(ship, data, start, bytes));
    return hash_part(ship, index, data, bytes);
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
    struct storage *storage = storage_of(ship, tier);
    struct storage_object *object = NULL;
    char key[SHIP_KEY_MAX];
    uint64_t bytes = 0;
    int error = key_of(key, ship, is_new);
    if (error == 0)
        error = storage_object_open(storage, &object, key, &bytes);
    if (error == 0 && bytes != ship->geometry.file_bytes)
        error =
            report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu", ship->shard,
                         (unsigned long long)bytes, (unsigned long long)ship->geometry.file_bytes);
    for (uint64_t i = 0; error == 0 && i < ship->num_parts; i++)
        error = read_part(ship, tier, object, ship->parts[0].data, i);
    if (object)
        storage_object_close(storage, object);
    return error;
}

/* What is not whole there makes way, or waits for its successor. */
static int make_way(struct ship *ship, const char *key)
{
    struct storage *storage = storage_of(ship, ship->to);
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
    struct storage *storage = storage_of(ship, ship->to);
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
    struct storage *storage = storage_of(ship, ship->to);
    char key[SHIP_KEY_MAX], name[SHIP_KEY_MAX];
    ERR_TRY(key_of(name, ship, false));
    ERR_TRY(key_of(key, ship, true));
    ERR_TRY(prove_object(ship, ship->to, true));
    return storage_replace(storage, key, name);
}

static int prepare_source(struct ship *ship)
{
    struct storage *storage = storage_of(ship, ship->from);
    const struct manifest *manifest = ship->manifest;
    int error = file_open(&ship->source, storage, &manifest->summary, ship->shard,
                          ship->geometry.file_bytes);
    if (error == 0)
        error = file_read_table(&ship->table, storage, ship->source, &ship->geometry,
                                manifest->shards[ship->shard].table_hash, &manifest->summary,
                                ship->shard);
    return error;
}

static void work_prepare(struct job *job)
{
    struct ship *ship = CONTAINER_OF(job, struct ship, job);
    int error = prepare_source(ship);
    ship->is_of_source = error != 0;
    if (error == 0)
        error = prepare_target(ship);
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
    if (key_of(key, ship, true) == 0 && storage_remove(storage_of(ship, ship->to), key) != 0)
        log_debug("drain", "%s stays: %s", key, report_line());
    report_restore(&text, 0);
}

static void work_end(struct job *job)
{
    struct ship *ship = CONTAINER_OF(job, struct ship, job);
    struct storage *storage = storage_of(ship, ship->to);
    int error = 0;
    if (ship->fault.code == 0 && ship->target)
        error = storage_transfer(storage, STORAGE_SYNC, ship->target, 0, NULL, 0);
    if (ship->target)
        storage_object_close(storage, ship->target);
    if (ship->source)
        storage_object_close(storage_of(ship, ship->from), ship->source);
    ship->target = ship->source = NULL;
    if (error == 0 && ship->fault.code == 0 && ship->is_replacing)
        error = replace_target(ship);
    if (ship->is_replacing && (error != 0 || ship->fault.code != 0))
        remove_new(ship);
    if (error == 0 && ship->fault.code == 0 && !tier_is_peer(ship->to))
        error = sum_parts(ship);
    if (error != 0)
        fault_take(&ship->fault, error);
}

static void free_shard(struct ship *ship)
{
    free(ship->table);
    free(ship->sums);
    ship->table = NULL;
    ship->sums = NULL;
}

static void ended(struct event *event)
{
    struct ship *ship = CONTAINER_OF(event, struct ship, job.done);
    free_shard(ship);
    ship->is_under_way = false;
    ship->arrived(ship);
}

static void end(struct ship *ship)
{
    while (ship->num_paced > 0) {
        pace_leave(&ship->pace, loop_now_ms());
        ship->num_paced--;
    }
    loop_timer_cancel(ship->service->loop, &ship->timer);
    ship->is_ending = true;
    ship->job = (struct job){.work = work_end, .done.run = ended};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &ship->job);
}

static void end_if_done(struct ship *ship)
{
    if (!ship->is_ending && ship->in_flight == 0 &&
        (ship->fault.code != 0 || ship->num_sent == ship->num_parts))
        end(ship);
}

/* ---- a part ---- */

static void work_take(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct ship *ship = part->ship;
    int error = 0;
    if (part->image) {
        image_get(part->image, part->start, part->data, part->bytes);
        error = prove(ship, part->data, part->start, part->bytes);
        if (error == 0)
            error = hash_part(ship, part->index, part->data, part->bytes);
    } else {
        error = read_part(ship, ship->from, ship->source, part->data, part->index);
    }
    if (error != 0)
        fault_take(&part->fault, error);
}

static void work_send(struct job *job)
{
    struct part *part = CONTAINER_OF(job, struct part, job);
    struct ship *ship = part->ship;
    const char *sha256 = tier_is_peer(ship->to) ? NULL : ship->sums[part->index];
    int error = storage_write_hashed(storage_of(ship, ship->to), ship->target, part->start,
                                     part->data, part->bytes, sha256);
    if (error != 0)
        fault_take(&part->fault, error);
}

static void taken(struct event *event);

static void take(struct part *part)
{
    struct ship *ship = part->ship;
    struct image *image = ship->is_from_file ? NULL : catalog_image(ship->checkpoint, ship->shard);
    bool is_usable = image && image->state == IMAGE_RESIDENT && image->num_missing == 0 &&
                     !image->is_window &&
                     image->table_hash == ship->manifest->shards[ship->shard].table_hash;
    part->image = is_usable ? image : NULL;
    part->fault = (struct fault){0};
    if (part->image)
        part->image->readers++;
    part->job = (struct job){.work = work_take, .done.run = taken};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &part->job);
}

static void fail_part(struct part *part, bool is_of_source)
{
    struct ship *ship = part->ship;
    part->is_busy = false;
    ship->in_flight--;
    if (ship->fault.code == 0) {
        ship->fault = part->fault;
        ship->is_of_source = is_of_source;
    }
    end_if_done(ship);
}

static void sent(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct ship *ship = part->ship;
    if (part->fault.code != 0) {
        fail_part(part, false);
        return;
    }
    part->is_busy = false;
    ship->in_flight--;
    ship->num_sent++;
    ship->bytes_sent += part->bytes;
    ship_look(ship);
    end_if_done(ship);
}

/* The image is somebody else's again. */
static void leave_image(struct part *part)
{
    struct image *image = part->image;
    struct service *service = image->service;
    part->image = NULL;
    image->readers--;
    image_drop_unwanted(image);
    service_retry_waiting(service);
    service_retry_saves(service);
}

static void taken(struct event *event)
{
    struct part *part = CONTAINER_OF(event, struct part, job.done);
    struct ship *ship = part->ship;
    bool was_image = part->image != NULL;
    if (was_image)
        leave_image(part);
    if (part->fault.code != 0 && was_image) {
        ship->is_from_file = true;
        take(part);
        return;
    }
    if (part->fault.code != 0 || ship->fault.code != 0) {
        fail_part(part, true);
        return;
    }
    if (was_image)
        ship->bytes_from_memory += part->bytes;
    part->job = (struct job){.work = work_send, .done.run = sent};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &part->job);
}

/* ---- when ---- */

static struct part *find_free(struct ship *ship)
{
    for (uint32_t i = 0; i < ship->num_parts_max; i++)
        if (!ship->parts[i].is_busy)
            return &ship->parts[i];
    return NULL;
}

/* May the next part begin? */
static bool is_time(struct ship *ship, uint32_t bytes)
{
    struct service *service = ship->service;
    int64_t wait_ms;
    if (ship->is_hurried || ship->num_paced == 0)
        return true;
    const struct pace_moment moment = {
        loop_now_ms(), ship->pace.options.quiet && session_num_busy(service) > 0, ship->in_flight};
    if (pace_ask(&ship->pace, &moment, bytes, ship->stamp, &wait_ms) == PACE_GO) {
        ship->num_paced--;
        return true;
    }
    if (wait_ms >= 0)
        loop_timer(service->loop, &ship->timer, wait_ms);
    return false;
}

void ship_look(struct ship *ship)
{
    if (!ship->is_under_way || ship->is_ending || ship->is_kept)
        return;
    while (ship->next_part < ship->num_parts && ship->fault.code == 0) {
        struct part *part = find_free(ship);
        uint64_t start;
        uint32_t bytes;
        part_range(ship, ship->next_part, &start, &bytes);
        if (!part || !ship->target || !is_time(ship, bytes))
            return;
        part->is_busy = true;
        part->index = ship->next_part++;
        part->start = start;
        part->bytes = bytes;
        ship->in_flight++;
        take(part);
    }
}

static void look_again(struct timer *timer)
{
    ship_look(CONTAINER_OF(timer, struct ship, timer));
}

static void prepared(struct event *event)
{
    struct ship *ship = CONTAINER_OF(event, struct ship, job.done);
    if (ship->is_kept)
        ship->num_sent = ship->num_parts;
    else if (ship->fault.code == 0 && pace_is_on(&ship->pace)) {
        for (; ship->num_paced < ship->num_parts; ship->num_paced++)
            pace_enter(&ship->pace, loop_now_ms());
    }
    ship_look(ship);
    end_if_done(ship);
}

/* ---- beginning ---- */

void ship_start(struct ship *ship, struct checkpoint *checkpoint, const struct manifest *manifest,
                uint32_t shard)
{
    uint64_t size = (uint64_t)ship->service->config->tier_part_bytes;
    CHECK(!ship->is_under_way && ship->in_flight == 0 && ship->num_paced == 0);
    ship->checkpoint = checkpoint;
    ship->manifest = manifest;
    ship->shard = shard;
    if (checkpoint->places)
        ship->from = catalog_shard_source(checkpoint, shard);
    ship->fault = (struct fault){0};
    ship->is_of_source = ship->is_kept = ship->is_from_file = ship->is_ending = false;
    ship->is_replacing = false;
    ship->next_part = ship->num_sent = ship->num_parts = 0;
    ship->is_under_way = true;
    ship->identity =
        checksum_shard_identity(manifest->summary.nonce, shard, manifest->summary.shards);
    int error = file_geometry(&ship->geometry, manifest, shard);
    if (error == 0) {
        ship->num_parts = (ship->geometry.file_bytes + size - 1) / size;
        ship->sums = calloc(ship->num_parts, sizeof *ship->sums);
        error = ship->sums ? 0 : report_error(ERR_MEMORY, NULL, "no memory for hashes of parts");
    }
    if (error != 0) {
        fault_take(&ship->fault, error);
        end(ship);
        return;
    }
    ship->job = (struct job){.work = work_prepare, .done.run = prepared};
    tier_work(ship->service, tier_of_crew(ship->from, ship->to), &ship->job);
}

int ship_open(struct ship *ship, struct service *service, enum tier_index to)
{
    const struct config *config = service->config;
    bool is_peer = tier_is_peer(to);
    uint32_t connections =
        (uint32_t)(is_peer ? config->nodes_connections : config->tier_connections);
    const struct pace_options options = {.write_rate =
                                             is_peer ? config->nodes_rate : config->tier_rate,
                                         .quiet = config->tier_quiet,
                                         .quiet_wait_ms = config->pace_quiet_wait_ms,
                                         .in_flight_max = connections,
                                         .chunk_bytes = (uint32_t)config->tier_part_bytes};
    *ship = (struct ship){.service = service, .to = to, .timer.run = look_again};
    pace_init(&ship->pace, &options);
    ship->num_parts_max = connections;
    ship->parts = calloc(ship->num_parts_max, sizeof *ship->parts);
    for (uint32_t i = 0; ship->parts && i < ship->num_parts_max; i++) {
        ship->parts[i].ship = ship;
        if (posix_memalign(&ship->parts[i].data, STORAGE_ALIGN, (size_t)config->tier_part_bytes) ==
            0)
            continue;
        ship_close(ship);
        break;
    }
    return ship->parts ? 0
                       : report_error(ERR_MEMORY, "lower tier.part_bytes or tier.connections",
                                      "no memory for %u parts of %lld bytes", ship->num_parts_max,
                                      (long long)config->tier_part_bytes);
}

void ship_leave(struct ship *ship)
{
    for (uint32_t i = 0; ship->parts && i < ship->num_parts_max; i++)
        if (ship->parts[i].image) {
            ship->parts[i].image->readers--;
            ship->parts[i].image = NULL;
        }
}

void ship_close(struct ship *ship)
{
    if (ship->target)
        storage_object_close(storage_of(ship, ship->to), ship->target);
    if (ship->source)
        storage_object_close(storage_of(ship, ship->from), ship->source);
    for (uint32_t i = 0; ship->parts && i < ship->num_parts_max; i++)
        free(ship->parts[i].data);
    free(ship->parts);
    ship->parts = NULL;
    free_shard(ship);
}
