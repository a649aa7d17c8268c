/* bulk_read.h - the files of a stored checkpoint, as the bulk plane reads them; see bulk_read.c. */
#ifndef HOLDFAST_CKPTD_BULK_BULK_READ_H
#define HOLDFAST_CKPTD_BULK_BULK_READ_H

#include "proto/bulk/wire.h"
#include "proto/format/manifest.h"
#include "storage/storage.h"

#include <stddef.h>
#include <stdint.h>

/* Of one connection. */
struct bulk_read {
    struct storage *storage;
    struct manifest_summary summary;
    struct storage_object *file; /* of shard `part`; NULL: none is open */
    uint32_t part;
    uint64_t file_bytes;
    void *manifest; /* while one is read */
    size_t manifest_bytes;
};

/* ERR_NOT_FOUND: no such part, or it has not so many bytes; errors of the store. */
int bulk_read_begin(struct bulk_read *stored, const struct bulk_request *request);
int bulk_read_block(struct bulk_read *stored, const struct bulk_request *request, uint64_t offset,
                    uint64_t bytes, void *room, const void **out);
void bulk_read_end(struct bulk_read *stored);
void bulk_read_close(struct bulk_read *stored);

#endif
