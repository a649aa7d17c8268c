/* readback.c - with storage.verify_after_write a shard is read again between its sync and its
 * commit, and a save is refused of which the disk gives other bytes than were hashed.
 *
 *   synced ──► header ──► blocks, READBACK_BYTES in each job ──► table, digests ──► closed
 *
 * A chunk is hashed and written side by side from memory that its rank can write to. A rank that
 * does so after it has announced the chunk makes a checkpoint that is damaged and looks whole. Only
 * the file can tell, so it is read, and not the image. The file is open with O_DIRECT, where the
 * file system takes that: then the bytes come from the disk. */
#include "ckptd/node/readback.h"
#include "ckptd/node/image.h"
#include "ckptd/node/stage.h"
#include "ckptd/service.h"
#include "proto/checksum.h"
#include "proto/report.h"
#include "proto/shard.h"
#include "storage/storage.h"

#include <stdlib.h>
#include <string.h>

#define READBACK_BYTES (64ull << 20) /* in one job: others want the worker */

static int differs(const struct stage *stage, const char *what, uint64_t number)
{
    return report_error(
        ERR_CORRUPT,
        "a rank must not write to its image before the save has ended; else test the disk",
        "%s %llu of shard-%05u-of-%05u is on the disk as other bytes than were hashed: its rank "
        "wrote to it after announcing it, or the disk changed it",
        what, (unsigned long long)number, stage->rank + 1, stage->options.identity.shards);
}

static int read_bytes(const struct stage *stage, uint64_t from, void *out, uint64_t bytes)
{
    return storage_transfer(stage->service->storage, STORAGE_READ, stage->image->object, from, out,
                            (uint32_t)bytes);
}

/* What the file is to begin with is made anew. */
static int check_header(const struct stage *stage, uint8_t *found, uint8_t *wanted)
{
    const struct shard_geometry *geometry = &stage->image->geometry;
    ERR_TRY(shard_header_write(wanted, geometry, stage->options.table, &stage->options.identity));
    ERR_TRY(read_bytes(stage, 0, found, geometry->data_start));
    return memcmp(found, wanted, geometry->data_start) == 0 ? 0 : differs(stage, "byte", 0);
}

static int check_block(const struct stage *stage, uint64_t block, uint8_t *found)
{
    struct image *image = stage->image;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &image->geometry, block);
    ERR_TRY(read_bytes(stage, start, found,
                       (bytes + STORAGE_ALIGN - 1) / STORAGE_ALIGN * STORAGE_ALIGN));
    return image_fits(image, block, found, stage->read_digests) ? 0
                                                                : differs(stage, "block", block);
}

/* The table, and the digests: they were made of the same bytes as the checksums, but a rank that
 * writes can come between. */
static int check_end(const struct stage *stage, uint8_t *found, uint64_t from)
{
    const struct image *image = stage->image;
    uint64_t table = image->geometry.table_start, end = image->geometry.file_bytes;
    ERR_TRY(read_bytes(stage, from, found, end - from));
    if (checksum_bytes(found + (table - from), end - table) != stage->table_hash)
        return differs(stage, "byte", table);
    for (uint32_t i = 0; i < image->num_tensors; i++)
        if (memcmp(&stage->read_digests[i], &image->digests[i], sizeof *image->digests) != 0)
            return differs(stage, "tensor", i);
    return 0;
}

static int check_some(struct stage *stage, uint8_t *found, uint8_t *header, uint64_t table_page)
{
    const struct shard_geometry *geometry = &stage->image->geometry;
    if (stage->read_blocks == 0)
        ERR_TRY(check_header(stage, found, header));
    for (uint64_t done = 0; stage->read_blocks < geometry->num_blocks && done < READBACK_BYTES;
         done += CHECKSUM_BLOCK_BYTES)
        ERR_TRY(check_block(stage, stage->read_blocks++, found));
    return stage->read_blocks < geometry->num_blocks ? 0 : check_end(stage, found, table_page);
}

int readback_step(struct stage *stage, bool *out_is_over)
{
    const struct shard_geometry *geometry = &stage->image->geometry;
    uint64_t table_page = geometry->table_start / STORAGE_ALIGN * STORAGE_ALIGN;
    uint64_t bytes = geometry->file_bytes - table_page;
    bytes = bytes > geometry->data_start ? bytes : geometry->data_start;
    bytes = bytes > CHECKSUM_BLOCK_BYTES ? bytes : CHECKSUM_BLOCK_BYTES;
    void *found = NULL;
    uint8_t *header = malloc(geometry->data_start);
    if (!stage->read_digests)
        stage->read_digests = calloc(stage->image->num_tensors + 1, sizeof *stage->read_digests);
    int error = !header || !stage->read_digests || posix_memalign(&found, STORAGE_ALIGN, bytes) != 0
                    ? report_error(ERR_MEMORY, NULL, "no memory to read a shard back")
                    : check_some(stage, found, header, table_page);
    *out_is_over = error == 0 && stage->read_blocks == geometry->num_blocks;
    free(found);
    free(header);
    return error;
}
