/* shard_file.c - the file of a committed shard, as whoever reads it needs it: opened, its header
 * and its checksum table proven by the manifest, a block's checksum held against the table.
 *
 * Loads, the scrub, copies to other tiers and adoption go through here. All of it blocks; any
 * thread. */
#include "ckptd/core/shard_file.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/layout.h"
#include "proto/format/manifest.h"
#include "proto/format/origin.h"
#include "proto/format/shard.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>

int file_geometry(struct shard_geometry *out, const struct manifest *manifest, uint32_t shard)
{
    struct shard_tensor *tensors = NULL;
    uint32_t count;
    uint64_t bytes;
    int error = layout_shard_tensors(&tensors, &count, &bytes, manifest->table, shard);
    free(tensors);
    if (error != 0)
        return error;
    return shard_geometry_derive(out, manifest->shards[shard].data_start, bytes);
}

int file_open(struct storage_object **out, struct storage *storage,
              const struct manifest_summary *summary, uint32_t shard, uint64_t want_bytes)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    uint64_t bytes = 0;
    manifest_identity(&identity, summary, shard);
    int error = shard_key(key, sizeof key, &identity);
    if (error == 0)
        error = storage_object_open(storage, out, key, &bytes);
    if (error != 0 || bytes == want_bytes)
        return error;
    storage_object_close(storage, *out);
    *out = NULL;
    return report_error(ERR_CORRUPT, NULL, "shard %u has %llu bytes instead of %llu", shard,
                        (unsigned long long)bytes, (unsigned long long)want_bytes);
}

/* Every name, type, shape and place of the header is the manifest's. */
static int check_header(struct storage *storage, struct storage_object *object,
                        const struct manifest *manifest, uint32_t shard)
{
    struct shard_expected expected = {0};
    uint64_t bytes = manifest->shards[shard].data_start;
    void *header = NULL;
    if (posix_memalign(&header, STORAGE_ALIGN, bytes) != 0)
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    int error = storage_transfer(storage, STORAGE_READ, object, 0, header, (uint32_t)bytes);
    if (error == 0)
        error = manifest_check_header(&expected, manifest, shard, header);
    if (error == ERR_CORRUPT || error == ERR_VERSION)
        error = report_error(ERR_CORRUPT, NULL,
                             "the header of shard-%05u-of-%05u does not fit the manifest: %s",
                             shard + 1, manifest->summary.shards, report_message());
    shard_expected_free(&expected);
    free(header);
    return error;
}

static int read_table(uint8_t **out, struct storage *storage, struct storage_object *object,
                      const struct shard_geometry *geometry, uint64_t table_hash,
                      const struct manifest_summary *summary, uint32_t shard)
{
    uint64_t skip = geometry->table_start % STORAGE_ALIGN, from = geometry->table_start - skip;
    uint64_t bytes = geometry->file_bytes - from;
    void *room = NULL;
    *out = NULL;
    if (posix_memalign(&room, STORAGE_ALIGN, bytes) != 0)
        return report_error(ERR_MEMORY, NULL, "no memory for a checksum table of %llu bytes",
                            (unsigned long long)bytes);
    int error = storage_transfer(storage, STORAGE_READ, object, from, room, (uint32_t)bytes);
    if (error == 0 && checksum_bytes((uint8_t *)room + skip, bytes - skip) != table_hash)
        error = report_error(ERR_CORRUPT, NULL,
                             "the checksum table of shard-%05u-of-%05u does not fit the manifest",
                             shard + 1, summary->shards);
    if (error != 0)
        free(room);
    else
        *out = room;
    return error;
}

int file_open_proven(struct storage_object **out, uint8_t **out_table, struct storage *storage,
                     const struct manifest *manifest, uint32_t shard,
                     const struct shard_geometry *geometry)
{
    int error = file_open(out, storage, &manifest->summary, shard, geometry->file_bytes);
    if (error == 0)
        error = check_header(storage, *out, manifest, shard);
    if (error == 0)
        error = read_table(out_table, storage, *out, geometry, manifest->shards[shard].table_hash,
                           &manifest->summary, shard);
    return error;
}

int file_check_block(const uint8_t *table, const struct shard_geometry *geometry, uint64_t block,
                     uint64_t sum, const struct manifest_summary *summary, uint32_t shard)
{
    return shard_table_entry(table + geometry->table_start % STORAGE_ALIGN, block) == sum
               ? 0
               : report_error(ERR_CORRUPT, NULL, "block %llu of shard-%05u-of-%05u is damaged",
                              (unsigned long long)block, shard + 1, summary->shards);
}

static int check_one(struct storage *storage, const struct manifest *manifest, uint32_t shard)
{
    struct shard_geometry geometry;
    struct storage_object *object = NULL;
    uint8_t *table = NULL;
    int error = file_geometry(&geometry, manifest, shard);
    if (error == 0)
        error = file_open_proven(&object, &table, storage, manifest, shard, &geometry);
    free(table);
    storage_object_close(storage, object);
    return error;
}

int file_check_all(struct storage *storage, const struct manifest_summary *summary,
                   const void *text, size_t bytes)
{
    struct manifest *manifest = NULL;
    int error = store_parse_manifest(&manifest, storage, summary, text, bytes);
    for (uint32_t i = 0; error == 0 && i < manifest->summary.shards; i++)
        error = check_one(storage, manifest, i);
    manifest_free(manifest);
    return error;
}
