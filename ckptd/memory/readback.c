/* readback.c - with storage.verify_after_write ckptd reads a shard again between its sync and its
 * commit, and fails the save if the disk returns other bytes than were hashed.
 *
 *   synced ──► header ──► blocks, READBACK_BYTES in each job ──► table, digests ──► closed
 *
 * A chunk is hashed and written in parallel from memory to which its rank can write. A rank that
 * writes after it has announced the chunk makes a damaged checkpoint that looks whole. Only the
 * file shows that, so the file is read, not the image. It is open with O_DIRECT if the file system
 * supports that: then the bytes come from the disk. */
#include "ckptd/memory/readback.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <string.h>

#define READBACK_BYTES (64ull << 20) /* in one job: others need the worker */

static int differs(const struct readback *readback, const char *what, uint64_t number)
{
    return report_error(
        ERR_CORRUPT,
        "a rank must not write to its image before the save has ended; else test the disk",
        "%s %llu of shard-%05u-of-%05u on the disk differs from the bytes that were hashed: its "
        "rank wrote to it after announcing it, or the disk changed it",
        what, (unsigned long long)number, readback->image->shard + 1, readback->identity->shards);
}

static int read_bytes(const struct readback *readback, uint64_t from, void *out, uint64_t bytes)
{
    return storage_transfer(readback->image->service->storage, STORAGE_READ,
                            readback->image->object, from, out, (uint32_t)bytes);
}

/* Makes the expected beginning of the file anew. */
static int check_header(const struct readback *readback, uint8_t *found, uint8_t *wanted)
{
    const struct shard_geometry *geometry = &readback->image->geometry;
    ERR_TRY(shard_header_write(wanted, geometry, readback->table, readback->identity));
    ERR_TRY(read_bytes(readback, 0, found, geometry->data_start));
    return memcmp(found, wanted, geometry->data_start) == 0 ? 0 : differs(readback, "byte", 0);
}

static int check_block(const struct readback *readback, uint64_t block, uint8_t *found)
{
    struct image *image = readback->image;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &image->geometry, block);
    ERR_TRY(read_bytes(readback, start, found,
                       (bytes + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN));
    return image_fits(image, block, found, readback->digests) ? 0
                                                              : differs(readback, "block", block);
}

/* The table, and the digests: both come from the bytes of the checksums, but a rank may have
 * written in between. */
static int check_end(const struct readback *readback, uint8_t *found, uint64_t from)
{
    const struct image *image = readback->image;
    uint64_t table = image->geometry.table_start, end = image->geometry.file_bytes;
    ERR_TRY(read_bytes(readback, from, found, end - from));
    if (checksum_bytes(found + (table - from), end - table) != readback->table_hash)
        return differs(readback, "byte", table);
    for (uint32_t i = 0; i < image->num_tensors; i++)
        if (memcmp(&readback->digests[i], &image->digests[i], sizeof *image->digests) != 0)
            return differs(readback, "tensor", i);
    return 0;
}

static int check_some(struct readback *readback, uint8_t *found, uint8_t *header,
                      uint64_t table_page)
{
    const struct shard_geometry *geometry = &readback->image->geometry;
    if (readback->num_blocks == 0)
        ERR_TRY(check_header(readback, found, header));
    for (uint64_t done = 0; readback->num_blocks < geometry->num_blocks && done < READBACK_BYTES;
         done += CHECKSUM_BLOCK_BYTES)
        ERR_TRY(check_block(readback, readback->num_blocks++, found));
    return readback->num_blocks < geometry->num_blocks ? 0 : check_end(readback, found, table_page);
}

int readback_step(struct readback *readback, bool *out_is_over)
{
    const struct shard_geometry *geometry = &readback->image->geometry;
    uint64_t table_page = geometry->table_start / STORAGE_ALIGN * STORAGE_ALIGN;
    uint64_t bytes = geometry->file_bytes - table_page;
    bytes = bytes > geometry->data_start ? bytes : geometry->data_start;
    bytes = bytes > CHECKSUM_BLOCK_BYTES ? bytes : CHECKSUM_BLOCK_BYTES;
    void *found = NULL;
    uint8_t *header = malloc(geometry->data_start);
    if (!readback->digests)
        readback->digests = calloc(readback->image->num_tensors + 1, sizeof *readback->digests);
    int error = !header || !readback->digests || posix_memalign(&found, STORAGE_ALIGN, bytes) != 0
                    ? report_error(ERR_MEMORY, NULL, "no memory to read a shard back")
                    : check_some(readback, found, header, table_page);
    *out_is_over = error == 0 && readback->num_blocks == geometry->num_blocks;
    free(found);
    free(header);
    return error;
}
