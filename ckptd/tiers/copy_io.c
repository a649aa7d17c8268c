/* copy_io.c - both ends of a shard copy, on the crew: opens the source and verifies its table,
 * finds or creates the target, verifies parts, then syncs the target or renames it over the old
 * file. shard_copy.c says when. */
#include "ckptd/tiers/copy_io.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHIP_KEY_MAX (STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX)

struct storage *copy_io_storage(const struct shard_copy *copy, enum tier_index tier)
{
    return copy->service->tiers[tier].storage;
}

/* ---- verification, on the crew ---- */

/* Verifies every block of [start, start + bytes) of the file, and the bytes of the table in that
 * range. */
int copy_io_prove(const struct shard_copy *copy, const uint8_t *data, uint64_t start,
                  uint64_t bytes)
{
    const struct shard_geometry *geometry = &copy->file.geometry;
    uint64_t end = start + bytes;
    ERR_TRY(store_shard_check_blocks(&copy->file, data, start, bytes));
    uint64_t from = start > geometry->table_start ? start : geometry->table_start;
    if (from < end && memcmp(data + (from - start),
                             copy->file.table + (from - geometry->table_start), end - from) != 0)
        return report_error(
            ERR_CORRUPT, NULL,
            "the checksum table of shard-%05u-of-%05u differs from the verified one",
            copy->file.shard + 1, copy->file.manifest->summary.shards);
    return 0;
}

void copy_io_part_range(const struct shard_copy *copy, uint64_t index, uint64_t *out_start,
                        uint32_t *out_bytes)
{
    uint64_t size = (uint64_t)copy->service->config->tier_part_bytes;
    *out_start = index * size;
    uint64_t left = copy->file.geometry.file_bytes - *out_start;
    *out_bytes = (uint32_t)(left < size ? left : size);
}

/* A peer's manifest equals the local one, without the hashes of parts. */
int copy_io_hash_part(const struct shard_copy *copy, uint64_t index, const void *data,
                      uint32_t bytes)
{
    return tier_is_peer(copy->to) ? 0 : checksum_sha256_hex(copy->sums[index], data, bytes);
}

int copy_io_read_part(const struct shard_copy *copy, enum tier_index tier,
                      struct storage_object *object, void *data, uint64_t index)
{
    uint64_t start;
    uint32_t bytes;
    copy_io_part_range(copy, index, &start, &bytes);
    ERR_TRY(
        storage_transfer(copy_io_storage(copy, tier), STORAGE_READ, object, start, data, bytes));
    ERR_TRY(copy_io_prove(copy, data, start, bytes));
    return copy_io_hash_part(copy, index, data, bytes);
}

int copy_io_read_early(struct shard_copy *copy, void *data, uint64_t start, uint32_t bytes)
{
    ERR_TRY(storage_transfer(copy_io_storage(copy, copy->from), STORAGE_READ, copy->file.object,
                             start, data, bytes));
    for (uint32_t at = 0; at < bytes; at += CHECKSUM_BLOCK_BYTES) {
        uint64_t block = (start + at) / CHECKSUM_BLOCK_BYTES;
        shard_table_put(
            copy->file.table, block,
            checksum_block((uint8_t *)data + at, CHECKSUM_BLOCK_BYTES, copy->file.identity, block));
    }
    return 0;
}

/* ---- the beginning, on the crew ---- */

static int key_of(char key[SHIP_KEY_MAX], const struct shard_copy *copy, bool is_new)
{
    struct shard_identity identity;
    manifest_identity(&identity, &copy->file.manifest->summary, copy->file.shard);
    ERR_TRY(shard_key(key, STORAGE_KEY_MAX, &identity));
    if (is_new)
        strcat(key, SHARD_NEW_SUFFIX);
    return 0;
}

/* Does that tier have a whole shard under its name, or its new one? ERR_NOT_FOUND: there is no
 * file; ERR_CORRUPT: the file is another one or incomplete. Reads every block. */
static int prove_object(struct shard_copy *copy, enum tier_index tier, bool is_new)
{
    struct store_shard there = {.storage = copy_io_storage(copy, tier),
                                .manifest = copy->file.manifest,
                                .shard = copy->file.shard,
                                .geometry = copy->file.geometry};
    void *room = NULL; /* others use the buffers of the queue meanwhile */
    int error = store_shard_open(&there, is_new ? SHARD_NEW_SUFFIX : "");
    if (error == 0 &&
        posix_memalign(&room, STORAGE_ALIGN, (size_t)copy->service->config->tier_part_bytes) != 0)
        error = report_error(ERR_MEMORY, NULL, "no memory to read a shard back");
    for (uint64_t i = 0; error == 0 && i < copy->num_parts; i++)
        error = copy_io_read_part(copy, tier, there.object, room, i);
    free(room);
    store_shard_close(&there);
    return error;
}

/* Removes a damaged file at the target, or keeps it until its successor is durable. */
static int make_way(struct shard_copy *copy, const char *key)
{
    struct storage *storage = copy_io_storage(copy, copy->to);
    copy->is_replacing = storage_replaces(storage);
    if (!copy->is_replacing) {
        int error = prove_object(copy, copy->from, false);
        copy->is_of_source = error != 0;
        return error != 0 ? error : storage_remove(storage, key);
    }
    int error = storage_remove(storage, key); /* remains of an earlier try before a crash */
    return error == ERR_NOT_FOUND ? 0 : error;
}

static int prepare_target(struct shard_copy *copy)
{
    struct storage *storage = copy_io_storage(copy, copy->to);
    char key[SHIP_KEY_MAX];
    ERR_TRY(key_of(key, copy, false));
    int error = storage_object_create(storage, &copy->target, key, copy->file.geometry.file_bytes);
    if (error != ERR_EXISTS)
        return error;
    error = prove_object(copy, copy->to, false);
    bool is_damaged = error == ERR_CORRUPT || (error == ERR_IO && copy->to == TIER_LOCAL);
    copy->is_kept = error == 0;
    if (error == 0)
        return 0;
    if (!is_damaged && error != ERR_NOT_FOUND)
        return error;
    ERR_TRY(key_of(key, copy, is_damaged && storage_replaces(storage)));
    if (is_damaged)
        ERR_TRY(make_way(copy, key));
    return storage_object_create(storage, &copy->target, key, copy->file.geometry.file_bytes);
}

/* The new file is durable beside the old one: reads it back, then renames it over the old one. */
static int replace_target(struct shard_copy *copy)
{
    struct storage *storage = copy_io_storage(copy, copy->to);
    char key[SHIP_KEY_MAX], name[SHIP_KEY_MAX];
    ERR_TRY(key_of(name, copy, false));
    ERR_TRY(key_of(key, copy, true));
    ERR_TRY(prove_object(copy, copy->to, true));
    return storage_replace(storage, key, name);
}

/* Number of blocks of the shard in the parts that were sent. */
static uint64_t count_blocks_sent(const struct shard_copy *copy)
{
    uint64_t bytes = copy->num_sent * (uint64_t)copy->service->config->tier_part_bytes;
    uint64_t blocks = (bytes + CHECKSUM_BLOCK_BYTES - 1) / CHECKSUM_BLOCK_BYTES;
    return blocks < copy->file.geometry.num_blocks ? blocks : copy->file.geometry.num_blocks;
}

/* Resumes the copy from before the commit if its sums equal those of the manifest's table: these
 * parts are verified. */
static bool resume_early(struct shard_copy *copy)
{
    struct shard_copy *left = copy->left;
    bool is_good =
        left && left->fault.code == 0 && left->num_sent > 0 &&
        left->file.geometry.file_bytes == copy->file.geometry.file_bytes &&
        left->file.geometry.table_start == copy->file.geometry.table_start &&
        memcmp(left->file.table, copy->file.table, count_blocks_sent(left) * sizeof(uint64_t)) == 0;
    if (!is_good)
        return false;
    copy->target = left->target;
    left->target = NULL;
    copy->is_kept = !copy->target; /* it was synced and closed */
    copy->next_part = copy->num_sent = left->num_sent;
    return true;
}

static void close_target(struct shard_copy *copy)
{
    if (copy->target)
        storage_object_close(copy_io_storage(copy, copy->to), copy->target);
    copy->target = NULL;
}

void copy_io_close(struct shard_copy *copy)
{
    close_target(copy);
    if (copy->file.object)
        storage_object_close(copy->file.storage, copy->file.object);
    copy->file.object = NULL;
}

void copy_io_remove_early(struct shard_copy *copy, struct storage *storage,
                          const struct manifest_summary *summary)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    manifest_identity(&identity, summary, copy->file.shard);
    close_target(copy);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_remove(storage, key);
    if (error != 0)
        log_warn("drain", "could not remove a shard that was copied before its commit: %s",
                 report_line());
    copy->is_ours = false;
}

/* Ends the copy from before the commit: the new one has taken it, or its file is removed. */
static void end_left(struct shard_copy *left, const struct shard_copy *copy, bool is_taken)
{
    copy_io_close(left);
    left->num_sent = 0; /* its bytes count once: transfer.T7 */
    if (left->is_ours && !is_taken)
        copy_io_remove_early(left, copy_io_storage(copy, copy->to), &copy->file.manifest->summary);
    left->is_ours = false;
}

void copy_io_prepare(struct job *job)
{
    struct shard_copy *copy = CONTAINER_OF(job, struct shard_copy, job);
    copy->file.storage = copy_io_storage(copy, copy->from);
    int error = store_shard_open_proven(&copy->file);
    copy->is_of_source = error != 0;
    bool is_begun = error == 0 && resume_early(copy);
    if (copy->left)
        end_left(copy->left, copy, is_begun);
    if (error == 0 && !is_begun)
        error = prepare_target(copy);
    if (error != 0)
        fault_take(&copy->fault, error);
}

void copy_io_prepare_early(struct job *job)
{
    struct shard_copy *copy = CONTAINER_OF(job, struct shard_copy, job);
    char key[SHIP_KEY_MAX];
    copy->file.storage = copy_io_storage(copy, copy->from);
    int error = key_of(key, copy, false);
    if (error == 0 && copy->from != TIER_LOCAL)
        error = store_shard_open(&copy->file, "");
    if (error == 0)
        error = storage_object_create(copy_io_storage(copy, copy->to), &copy->target, key,
                                      copy->file.geometry.file_bytes);
    copy->is_made = copy->is_ours = error == 0 && copy->to == TIER_LOCAL;
    if (error != 0)
        fault_take(&copy->fault, error);
}

/* ---- the end ---- */

/* The hash of the parts' hashes, as bytes. */
static int sum_parts(struct shard_copy *copy)
{
    uint8_t *bytes = malloc(copy->num_parts * 32);
    if (!bytes)
        return report_error(ERR_MEMORY, NULL, "no memory for the hashes of %llu parts",
                            (unsigned long long)copy->num_parts);
    for (uint64_t i = 0; i < copy->num_parts * 32; i++) {
        unsigned value = 0;
        sscanf(&copy->sums[i / 32][i % 32 * 2], "%2x", &value);
        bytes[i] = (uint8_t)value;
    }
    int error = checksum_sha256_hex(copy->sha256, bytes, copy->num_parts * 32);
    free(bytes);
    return error;
}

/* Removes the new file that did not replace the old one. Keeps this thread's last error. */
static void remove_new(const struct shard_copy *copy)
{
    struct report_text text;
    char key[SHIP_KEY_MAX];
    report_keep(&text);
    if (key_of(key, copy, true) == 0 && storage_remove(copy_io_storage(copy, copy->to), key) != 0)
        log_debug("drain", "%s is kept: %s", key, report_line());
    report_restore(&text, 0);
}

void copy_io_end(struct job *job)
{
    struct shard_copy *copy = CONTAINER_OF(job, struct shard_copy, job);
    struct storage *storage = copy_io_storage(copy, copy->to);
    int error = 0;
    if (copy->fault.code == 0 && copy->target)
        error = storage_transfer(storage, STORAGE_SYNC, copy->target, 0, NULL, 0);
    copy_io_close(copy);
    if (error == 0 && copy->fault.code == 0 && copy->is_replacing)
        error = replace_target(copy);
    if (copy->is_replacing && (error != 0 || copy->fault.code != 0))
        remove_new(copy);
    if (error == 0 && copy->fault.code == 0 && !tier_is_peer(copy->to))
        error = sum_parts(copy);
    if (error != 0)
        fault_take(&copy->fault, error);
}
