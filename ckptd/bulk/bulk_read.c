/* bulk_read.c - reads the files of a stored checkpoint for the bulk plane. A file stays open
 * between two requests for it; it is read without the page cache, in whole pages around the
 * requested bytes. ckptd verifies nothing here: the client has the manifest, and verifies every
 * block by it. Blocks; on the connection's thread. */
#include "ckptd/bulk/entered.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "proto/format/manifest.h"
#include "proto/format/shard.h"

#include <stdlib.h>
#include <string.h>

static int open_manifest(struct bulk_read *stored)
{
    char key[STORAGE_KEY_MAX];
    ERR_TRY(manifest_key(key, sizeof key, &stored->summary));
    return storage_fetch_all(stored->storage, key, MANIFEST_BYTES_MAX, &stored->manifest,
                             &stored->manifest_bytes);
}

static int open_file(struct bulk_read *stored, uint32_t part)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX];
    if (stored->file && stored->part == part)
        return 0;
    bulk_read_close(stored);
    if (part >= stored->summary.world_size)
        return report_error(ERR_NOT_FOUND, NULL, "there is no part %u of that checkpoint", part);
    manifest_identity(&identity, &stored->summary, part);
    ERR_TRY(shard_key(key, sizeof key, &identity));
    stored->part = part;
    return storage_object_open(stored->storage, &stored->file, key, &stored->file_bytes);
}

static void end_stored(struct bulk_entered *entered)
{
    free(entered->stored.manifest);
    entered->stored.manifest = NULL;
}

/* ERR_NOT_FOUND: no such part, or it is shorter; errors of the store. */
static int begin_stored(struct bulk_entered *entered, const struct bulk_request *request)
{
    struct bulk_read *stored = &entered->stored;
    bool is_manifest = request->part == BULK_MANIFEST;
    ERR_TRY(is_manifest ? open_manifest(stored) : open_file(stored, request->part));
    uint64_t size = is_manifest ? stored->manifest_bytes : stored->file_bytes;
    if (request->offset <= size && request->bytes <= size - request->offset)
        return 0;
    end_stored(entered);
    return report_error(ERR_NOT_FOUND, NULL, "part %u has %llu bytes", request->part,
                        (unsigned long long)size);
}

static int block_stored(struct bulk_entered *entered, const struct bulk_request *request,
                        uint64_t offset, uint64_t bytes, void *room, const void **out)
{
    const struct bulk_read *stored = &entered->stored;
    if (request->part == BULK_MANIFEST) {
        *out = (const char *)stored->manifest + offset;
        return 0;
    }
    uint64_t skip = offset % STORAGE_ALIGN, need = skip + bytes;
    need += (STORAGE_ALIGN - need % STORAGE_ALIGN) % STORAGE_ALIGN;
    *out = (const char *)room + skip;
    return storage_transfer(stored->storage, STORAGE_READ, stored->file, offset - skip, room,
                            (uint32_t)need);
}

const struct bulk_ops stored_source = {
    .get_begin = begin_stored, .get_block = block_stored, .get_end = end_stored};

void bulk_read_close(struct bulk_read *stored)
{
    if (stored->file)
        storage_object_close(stored->storage, stored->file);
    stored->file = NULL;
}
