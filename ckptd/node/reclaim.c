/* reclaim.c - memory for an image, which others give up for it.
 *
 * Memory that nobody uses goes in this order: images of superseded checkpoints, spares of sessions,
 * the newest checkpoint of a run, what open loads will ask for. Never one that is written or read,
 * and never one that its rank may still copy into: a rank hears late, or never, that its save was
 * given up. It has let go when it announces the end, gives the save up, begins another, or hangs
 * up. */
#include "ckptd/catalog.h"
#include "ckptd/checkpoint.h"
#include "ckptd/node/image.h"
#include "ckptd/node/pool.h"
#include "ckptd/service.h"
#include "proto/report.h"

/* Loads go through the shards upwards: memory of a later shard may go for an earlier one, never the
 * other way, or a slow rank would find what a fast one has taken. Another checkpoint's goes when
 * somebody waits; a save takes what it needs. */
static bool may_take_wanted(const struct image *asking, const struct image *image)
{
    if (asking->state != IMAGE_READING)
        return true;
    if (asking->checkpoint == image->checkpoint)
        return image->shard > asking->shard;
    return asking->waiting != NULL;
}

/* How soon an image may go when memory is short: 1 first; 0 never. */
static int reclaim_rank(const struct image *asking, const struct image *image)
{
    if (image == asking || image->readers > 0 || image->busy > 0 || image->in_hand)
        return 0;
    if (image->state == IMAGE_SPARE)
        return 2;
    if (image->state != IMAGE_RESIDENT)
        return 0;
    if (image_is_wanted(image))
        return may_take_wanted(asking, image) ? 4 : 0;
    return image->checkpoint == catalog_newest(image->checkpoint->run) ? 3 : 1;
}

static uint32_t count_reclaimable(const struct image *asking)
{
    uint32_t count = 0;
    for (const struct image *image = asking->service->images; image; image = image->next)
        if (reclaim_rank(asking, image) > 0)
            count += image->num_segments;
    return count;
}

static void reclaim(struct image *asking, uint32_t count)
{
    struct pool *pool = asking->service->pool;
    for (int rank = 1; rank <= 4; rank++) {
        struct image *next;
        for (struct image *image = asking->service->images; image; image = next) {
            next = image->next;
            if (pool_free_count(pool) >= count)
                return;
            if (reclaim_rank(asking, image) != rank)
                continue;
            log_debug("memory", "reclaimed %u segments of shard %u", image->num_segments,
                      image->shard);
            image_detach(image);
            image_free(image);
        }
    }
}

int image_take_segments(struct image *image, struct pool_owner owner)
{
    struct pool *pool = image->service->pool;
    uint32_t count = image->max_segments;
    CHECK(image->num_segments == 0);
    if (count > pool_size(pool))
        return report_error(ERR_SPACE, "enlarge memory.pool_bytes",
                            "a shard of %llu bytes is larger than the whole pool",
                            (unsigned long long)image->geometry.file_bytes);
    if (pool_free_count(pool) < count && pool_free_count(pool) + count_reclaimable(image) >= count)
        reclaim(image, count);
    int error = pool_take(pool, image->segments, count, owner);
    if (error == 0)
        image->num_segments = count;
    return error;
}
