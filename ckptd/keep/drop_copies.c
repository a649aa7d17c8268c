/* drop_copies.c - before a tier drops its copy of a checkpoint, checks that the tier which keeps it
 * has a verified copy now.
 *
 * The local tier drops a copy that is wanted in the far tier only when it is there. ckptd checks
 * the manifest there, and size and header of every shard. Every block must have been read back
 * within scrub.period_s, when it was sent or by the scrub; if that is longer ago, ckptd reads it
 * now. A checkpoint that is still draining stays: rules that keep little, with a slow far tier,
 * fill the disk, which status and the log report.
 *
 * The far tier drops a copy by its own rules (tier.keep_last, ...). It keeps checkpoints longest,
 * so it does not depend on the local tier. */
#include "ckptd/keep/drop_copies.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/retain.h"
#include "storage/store/store.h"

#include <stdlib.h>
#include <time.h>

#define BLOCKS_AT_ONCE 8u

enum drop_copy_need drop_copy_need(bool goes_far, bool is_far, int64_t age_s, int64_t verify_age_s)
{
    if (!goes_far)
        return DROP_COPY_NOTHING;
    if (!is_far)
        return DROP_COPY_ARRIVAL;
    return age_s < 0 || age_s > verify_age_s ? DROP_COPY_PROOF : DROP_COPY_PRESENCE;
}

void drop_copy_note_other(struct other_copy *out, const struct checkpoint *checkpoint,
                          enum tier_index tier)
{
    const struct service *service = checkpoint->run->service;
    const struct copy *far = &checkpoint->copies.far;
    *out = (struct other_copy){.tier = TIER_FAR, .manifest_hash = far->manifest_hash};
    if (tier != TIER_LOCAL || !tier_has_far(service))
        return;
    /* It was sent after its commit: without a scrub the commit time is the latest verification
     * known after a start. */
    int64_t proven = far->proven != 0 ? far->proven : retain_time(checkpoint->summary.time);
    int64_t age = (int64_t)time(NULL) - proven;
    out->need =
        drop_copy_need(checkpoint->goes_far, far->is_there, age, service->config->scrub_period);
}

/* ---- reading it back ---- */

static int prove_shard(struct storage *storage, const struct manifest *manifest, uint32_t shard,
                       uint8_t *room)
{
    struct store_shard file;
    ERR_TRY(store_shard_init(&file, storage, manifest, shard));
    int error = store_shard_open_proven(&file);
    uint64_t step = (uint64_t)BLOCKS_AT_ONCE * CHECKSUM_BLOCK_BYTES;
    for (uint64_t at = 0; error == 0 && at < file.geometry.table_start; at += step) {
        uint64_t left = file.geometry.file_bytes - at, bytes = left < step ? left : step;
        error = storage_transfer(storage, STORAGE_READ, file.object, at, room, (uint32_t)bytes);
        if (error == 0)
            error = store_shard_check_blocks(&file, room, at, bytes);
    }
    store_shard_close(&file);
    return error;
}

static int prove_all(struct storage *storage, const struct manifest_summary *summary)
{
    struct manifest *manifest = NULL;
    void *room = NULL;
    int error = store_read_manifest(&manifest, storage, summary);
    if (error == 0 &&
        posix_memalign(&room, STORAGE_ALIGN, BLOCKS_AT_ONCE * CHECKSUM_BLOCK_BYTES) != 0)
        error = report_error(ERR_MEMORY, NULL, "no memory to read a checkpoint back");
    for (uint32_t i = 0; error == 0 && i < manifest->summary.shards; i++)
        error = prove_shard(storage, manifest, i, room);
    free(room);
    manifest_free(manifest);
    return error;
}

int drop_copy_check_other(struct service *service, const struct manifest_summary *summary,
                          const struct other_copy *other)
{
    struct storage *storage = service->tiers[other->tier].storage;
    if (other->need == DROP_COPY_NOTHING)
        return 0;
    if (other->need == DROP_COPY_ARRIVAL)
        return report_error(ERR_BUSY, NULL, "it is not in the tier %s yet",
                            tier_name(service, other->tier));
    ERR_TRY(store_check(storage, summary, other->manifest_hash));
    return other->need == DROP_COPY_PROOF ? prove_all(storage, summary) : 0;
}
