/* reclaim.c - reclaims memory of other images for an image.
 *
 * Unused memory is reclaimed in this order: images of superseded checkpoints, spares of sessions,
 * the newest checkpoint of a run, images that open loads will need. Never an image that is being
 * written or read, or into which its rank may still copy: a rank hears late, or never, that its
 * save was given up. The rank releases it when it announces the end, gives the save up, begins
 * another, or disconnects. */
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "ckptd/memory/stage.h"
#include "proto/base/report.h"

#include <stdio.h>

/* A save takes any such image. */
static bool may_take_wanted(const struct image *asking, const struct image *image)
{
    const struct read_taker taker = {asking->checkpoint, asking->shard, asking->waiting != NULL};
    return asking->state != IMAGE_READING ||
           read_plan_may_take(&taker, image->checkpoint, image->shard);
}

/* The order in which images are reclaimed: 1 first; 0 never. */
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

/* ---- holders of memory ---- */

#define HOLDERS_SAID 3u

/* Why the memory of an image cannot be reclaimed. */
static const char *waits_for(const struct image *image)
{
    const struct stage *stage = image->stage;
    if (image->state == IMAGE_READING)
        return "waits for the read of a load";
    if (image->readers > 0)
        return image->state == IMAGE_RESIDENT ? "waits for a load to end" : "is being prepared";
    if (!stage)
        return image->in_hand ? "waits for its rank to release it"
                              : "waits for its requests in progress";
    if (!stage->ended)
        return "waits for its rank to copy";
    if (stage->unwritten > 0)
        return "waits for the disk";
    return stage->durable ? "waits for its other ranks, or an earlier save" : "waits for a sync";
}

static uint64_t step_of(const struct image *image)
{
    return image->stage        ? image->stage->options.identity.step
           : image->checkpoint ? image->checkpoint->summary.step
                               : 0;
}

static const struct run *run_of(const struct image *image)
{
    return image->checkpoint ? image->checkpoint->run : image->run;
}

static bool is_same_holder(const struct image *a, const struct image *b)
{
    return run_of(a) == run_of(b) && step_of(a) == step_of(b);
}

/* The bytes held together with this image; 0: an earlier image in the list stands for them. */
static uint64_t bytes_held(const struct image *asking, const struct image *image)
{
    uint64_t segments = 0;
    bool is_first = true;
    for (const struct image *other = asking->service->images; other; other = other->next) {
        if (other->num_segments == 0 || reclaim_rank(asking, other) > 0 ||
            !is_same_holder(other, image))
            continue;
        is_first = is_first && (segments > 0 || other == image);
        segments += other->num_segments;
    }
    return is_first ? segments * pool_segment_bytes(asking->service->pool) : 0;
}

/* Adds the holders of memory to the error, and what each waits for. */
static int say_holders(const struct image *asking, int error)
{
    char text[REPORT_TEXT_MAX] = "";
    uint32_t count = 0;
    size_t at = 0;
    struct report_text taken;
    report_keep(&taken);
    for (const struct image *image = asking->service->images; image; image = image->next) {
        bool is_held = image->num_segments > 0 && reclaim_rank(asking, image) == 0;
        uint64_t bytes = is_held && run_of(image) ? bytes_held(asking, image) : 0;
        if (bytes == 0 || count++ >= HOLDERS_SAID)
            continue;
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "; run %s step %llu holds %llu bytes and %s", run_of(image)->name,
                               (unsigned long long)step_of(image), (unsigned long long)bytes,
                               waits_for(image));
        at = at < sizeof text ? at : sizeof text - 1;
    }
    if (count > HOLDERS_SAID)
        snprintf(text + at, sizeof text - at, "; and %u more", count - HOLDERS_SAID);
    return report_error(error, taken.hint, "%s%s", taken.message, text);
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
    if (error != 0)
        return image->run ? say_holders(image, error) : error;
    image->num_segments = count;
    return 0;
}
