/* lend.c - the answer of LoadShard. A shard that comes from disk is lent as far as it is verified.
 * What lies before the byte that is asked for is not lent, even where it shares a segment with it:
 * it may not have been read.
 *
 * What a rank saved is lent whole, and with what the reader needs to verify its copies: ranks may
 * write to its segments at any time (shard.c). */
#include "ckptd/restore/lend.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/restore/lease.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/want.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdlib.h>

uint64_t lend_end(struct shard_wait *wait, const struct image *image)
{
    uint64_t start, end;
    if (image->num_missing == 0)
        return image->geometry.file_bytes;
    while (wait->end_chunk < image->end_chunk && image_has_chunk(image, wait->end_chunk))
        wait->end_chunk++;
    image_chunk_range(image, wait->end_chunk - 1, &start, &end);
    return end;
}

void lend_shard(struct shard_wait *wait, struct image *image)
{
    Holdfast__V1__LoadShardReply reply = HOLDFAST__V1__LOAD_SHARD_REPLY__INIT;
    uint64_t segment = pool_segment_bytes(wait->service->pool);
    uint64_t start = image->first_chunk * (uint64_t)wait->service->config->block_bytes;
    struct load *load;
    int error = load_find(&load, wait->service, wait->load);
    if (error != 0) {
        rpc_call_fail(wait->call, error);
        free(wait);
        return;
    }
    load_hold(load, wait->shard, image);
    CHECK(image_has_chunk(image, want_chunk(wait->service, wait->from_byte)));
    uint64_t skip = (wait->from_byte - start) / segment;
    reply.segments = image->segments + skip;
    reply.part_start = start + skip * segment;
    reply.part_bytes = lend_end(wait, image) - reply.part_start;
    reply.n_segments = (reply.part_bytes + segment - 1) / segment;
    reply.bytes = image->geometry.file_bytes;
    if (image->run) {
        reply.table_start = image->geometry.table_start;
        reply.table_hash = image->table_hash;
        reply.identity = image->identity;
    }
    /* From disk for all loads that were open when it was read, whoever asked first. */
    bool from_memory = image->state != IMAGE_READING && load->number > image->read_until;
    reply.tier = from_memory ? "memory" : (char *)(uintptr_t)tier_name(wait->service, image->tier);
    rpc_call_reply(wait->call, &reply.base);
    free(wait);
}

/* A far tier that does not answer says nothing about what lies there. */
static bool is_damage(const struct image *image, const struct fault *fault)
{
    return fault->code == ERR_CORRUPT || fault->code == ERR_NOT_FOUND ||
           (fault->code == ERR_IO && image->tier == TIER_LOCAL);
}

bool lend_note_damage(const struct image *image, struct fault *fault)
{
    struct checkpoint *checkpoint = image->checkpoint;
    if (!is_damage(image, fault))
        return false;
    if (image->tier == TIER_LOCAL && checkpoint->uses)
        checkpoint->uses[image->shard].is_bad_here = true;
    if (!checkpoint->damaged && !copies_at(checkpoint, image->tier)->is_damaged)
        catalog_damage(checkpoint, image->tier, fault);
    fault->code = ERR_CORRUPT;
    return !checkpoint->damaged;
}
