/* space_check.c - reserves disk space for a checkpoint that comes from another tier into the local
 * one, in the ledger of the saves, so that both cannot count on the same free bytes. Nothing is
 * removed for it: a checkpoint that does not fit is served from its tier. */
#include "ckptd/tiers/space_check.h"
#include "ckptd/core/service.h"
#include "storage/storage.h"

#define FILES_BESIDE 4u         /* the manifest, the mark, the lease, the directory */
#define BYTES_BESIDE (1u << 20) /* their bytes */

int space_promise(struct ledger_promise *out, struct service *service, uint64_t bytes,
                  uint64_t shards)
{
    struct storage_space space;
    int error = storage_space(service->storage, &space);
    if (error == 0)
        error = ledger_promise(&service->ledger, out, &space, bytes + BYTES_BESIDE,
                               shards + FILES_BESIDE);
    return error;
}

void space_use(struct ledger_promise *promise, struct service *service, uint64_t bytes)
{
    ledger_take(&service->ledger, promise, bytes, 1);
}

void space_end(struct ledger_promise *promise, struct service *service)
{
    ledger_end(&service->ledger, promise);
}
