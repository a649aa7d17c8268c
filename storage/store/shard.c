/* shard.c - opens a shard's file and verifies it by its manifest; every reader of a shard uses it.
 *
 * It verifies the file's size, every name, type, shape and place of its header, and its checksum
 * table; then each block that is read by its entry of the table. */
#include "proto/base/checksum.h"
#include "storage/store/private.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_READS_MAX 2u /* a bucket's answer may have been damaged on the way */

int store_shard_init(struct store_shard *out, struct storage *storage,
                     const struct manifest *manifest, uint32_t shard)
{
    const struct manifest_summary *summary = &manifest->summary;
    struct shard_tensor *tensors = NULL;
    uint32_t count;
    uint64_t bytes;
    *out = (struct store_shard){.storage = storage, .manifest = manifest, .shard = shard};
    out->identity = checksum_shard_identity(summary->nonce, shard, summary->shards);
    int error = layout_shard_tensors(&tensors, &count, &bytes, manifest->table, shard);
    free(tensors);
    ERR_TRY(error);
    return shard_geometry_derive(&out->geometry, manifest->shards[shard].data_start, bytes);
}

/* The key of the file, with room for a suffix. */
static int make_key(char out[STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX],
                    const struct manifest *manifest, uint32_t shard)
{
    struct shard_identity identity;
    manifest_identity(&identity, &manifest->summary, shard);
    return shard_key(out, STORAGE_KEY_MAX + 1, &identity);
}

/* Reads the header once and compares it with the manifest. `header` has room for it. */
static int fetch_header(struct storage *storage, const struct manifest *manifest, uint32_t shard,
                        struct shard_expected *expected, const char *key, void *header)
{
    const struct manifest_shard *entry = &manifest->shards[shard];
    uint64_t bytes = 0;
    int error = storage_fetch(storage, key, header, entry->data_start, &bytes);
    if (error == ERR_NOT_FOUND)
        return report_error(ERR_CORRUPT, NULL, "%s is missing", key);
    ERR_TRY(error);
    if (bytes != entry->bytes)
        return report_error(ERR_CORRUPT, NULL, "%s has %llu bytes instead of %llu", key,
                            (unsigned long long)bytes, (unsigned long long)entry->bytes);
    return manifest_check_header(expected, manifest, shard, header);
}

int shard_check_header(struct storage *storage, const struct manifest *manifest, uint32_t shard,
                       struct shard_expected *expected)
{
    char key[STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX];
    ERR_TRY(make_key(key, manifest, shard));
    void *header = malloc(manifest->shards[shard].data_start);
    if (!header)
        return report_error(ERR_MEMORY, NULL, "no memory to check %s", key);
    int error = ERR_CORRUPT;
    for (uint32_t i = 0; i < HEADER_READS_MAX && error == ERR_CORRUPT; i++)
        error = fetch_header(storage, manifest, shard, expected, key, header);
    if (error == ERR_CORRUPT || error == ERR_VERSION)
        error = report_error(error, NULL, "%s: %s", key, report_message());
    free(header);
    return error;
}

int store_shard_open(struct store_shard *file, const char *suffix)
{
    char key[STORAGE_KEY_MAX + sizeof SHARD_NEW_SUFFIX];
    ERR_TRY(make_key(key, file->manifest, file->shard));
    strcat(key, suffix);
    ERR_TRY(storage_object_open(file->storage, &file->object, key, &file->bytes));
    return file->bytes == file->geometry.file_bytes
               ? 0
               : report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu",
                              file->shard, (unsigned long long)file->bytes,
                              (unsigned long long)file->geometry.file_bytes);
}

void store_shard_close(struct store_shard *file)
{
    if (file->object)
        storage_object_close(file->storage, file->object);
    free(file->table);
    file->object = NULL;
    file->table = NULL;
}

int store_shard_check_header(const struct store_shard *file, struct shard_expected *expected)
{
    uint64_t bytes = file->geometry.data_start;
    void *header = aligned_alloc(STORAGE_ALIGN, bytes);
    if (header == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    int error =
        storage_transfer(file->storage, STORAGE_READ, file->object, 0, header, (uint32_t)bytes);
    if (error == 0)
        error = manifest_check_header(expected, file->manifest, file->shard, header);
    free(header);
    return error;
}

int store_shard_begin_table(struct store_shard *file, struct storage_transfer *transfer)
{
    uint64_t from = file->geometry.table_start / STORAGE_ALIGN * STORAGE_ALIGN;
    uint64_t bytes = file->geometry.file_bytes - from;
    file->table = aligned_alloc(STORAGE_ALIGN, bytes);
    if (file->table == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table of %llu bytes",
                            (unsigned long long)bytes);
    storage_begin(transfer, file->storage, STORAGE_READ, file->object, from, file->table,
                  (uint32_t)bytes);
    return 0;
}

int store_shard_end_table(struct store_shard *file, struct storage_transfer *transfer)
{
    uint64_t skip = file->geometry.table_start % STORAGE_ALIGN;
    uint64_t bytes = file->geometry.file_bytes - file->geometry.table_start;
    int error = storage_end(transfer);
    memmove(file->table, file->table + skip, error == 0 ? bytes : 0);
    if (error == 0 &&
        checksum_bytes(file->table, bytes) != file->manifest->shards[file->shard].table_hash)
        error = report_error(ERR_CORRUPT, NULL,
                             "the checksum table of shard-%05u-of-%05u does not fit the manifest",
                             file->shard + 1, file->manifest->summary.shards);
    if (error != 0) {
        free(file->table);
        file->table = NULL;
    }
    return error;
}

int store_shard_open_proven(struct store_shard *file)
{
    struct shard_expected expected = {0};
    struct storage_transfer table;
    ERR_TRY(store_shard_open(file, ""));
    int error = store_shard_check_header(file, &expected);
    shard_expected_free(&expected);
    if (error == ERR_CORRUPT || error == ERR_VERSION)
        error = report_error(ERR_CORRUPT, NULL,
                             "the header of shard-%05u-of-%05u does not fit the manifest: %s",
                             file->shard + 1, file->manifest->summary.shards, report_message());
    if (error == 0)
        error = store_shard_begin_table(file, &table);
    return error == 0 ? store_shard_end_table(file, &table) : error;
}

int store_shard_check_sum(const struct store_shard *file, uint64_t block, uint64_t sum)
{
    return shard_table_entry(file->table, block) == sum
               ? 0
               : report_error(ERR_CORRUPT, NULL, "block %llu of shard-%05u-of-%05u is damaged",
                              (unsigned long long)block, file->shard + 1,
                              file->manifest->summary.shards);
}

int store_shard_check_blocks(const struct store_shard *file, const void *data, uint64_t start,
                             uint64_t bytes)
{
    uint64_t table_start = file->geometry.table_start, at, length;
    uint64_t end = start + bytes < table_start ? start + bytes : table_start;
    for (uint64_t block = start / CHECKSUM_BLOCK_BYTES; block * CHECKSUM_BLOCK_BYTES < end;
         block++) {
        shard_block(&at, &length, &file->geometry, block);
        ERR_TRY(store_shard_check_sum(
            file, block,
            checksum_block((const char *)data + (at - start), length, file->identity, block)));
    }
    return 0;
}

int store_prove_shards(struct storage *storage, const struct manifest_summary *summary,
                       const void *text, size_t bytes)
{
    struct manifest *manifest = NULL;
    int error = store_parse_manifest(&manifest, storage, summary, text, bytes);
    for (uint32_t i = 0; error == 0 && i < manifest->summary.shards; i++) {
        struct store_shard file;
        error = store_shard_init(&file, storage, manifest, i);
        if (error == 0)
            error = store_shard_open_proven(&file);
        store_shard_close(&file);
    }
    manifest_free(manifest);
    return error;
}
