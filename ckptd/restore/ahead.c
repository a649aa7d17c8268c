/* ahead.c - which shard is read next, before anybody waits for it.
 *
 * A plan says which shards a load will ask for, so ckptd need not wait to be asked. Every client
 * walks through its plan in the order of the shard numbers, and so does ckptd, over the plans of
 * all open loads together: the lowest shard of which an open load wants what is not there is next.
 * Thus the ranks of a job that load together find the same shard in memory at the same time, and it
 * goes when the last of them has released it: a load through a pool much smaller than the
 * checkpoint still reads each byte once.
 *
 * Bounds: a pass is started while fewer than DEPTHS_MAX (pass.c) times the storage's queue depth of
 * chunks are under way, which keeps the device busy from one shard to the next. Memory is taken
 * from nobody who reads it, and not while a LoadShard waits for memory. A failure is left to the
 * LoadShard that meets it. */
#include "ckptd/restore/ahead.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/restore/loads.h"
#include "ckptd/restore/part.h"
#include "ckptd/restore/pass.h"
#include "ckptd/restore/want.h"
#include "proto/base/report.h"

/* A pass that is under way takes what the load needs (join_passes). */
static bool is_sparse(const struct image *image, const struct load *load)
{
    return image->state == IMAGE_RESIDENT && !image->in_pass && want_lacks(load, image);
}

/* The first shard of the load's plan that a pass would help. What is behind load->next was in
 * memory or under way when it was looked at: should it go, LoadShard gets it again. */
static bool find_shard(uint32_t *out, struct load *load)
{
    struct checkpoint *checkpoint = load->checkpoint;
    if (checkpoint->damaged)
        return false;
    for (; load->next < load->num_planned; load->next++) {
        uint32_t shard = load->plan[load->next];
        const struct image *image = catalog_image(checkpoint, shard);
        *out = shard;
        bool is_missing = !image && !part_is_needed(checkpoint, shard);
        if (load->shards[shard].wanted && (is_missing || (image && is_sparse(image, load))))
            return true;
    }
    return false;
}

/* False when there is nothing to do, or no memory to do it in. */
static bool start_wanted(struct service *service)
{
    struct load *first = NULL;
    uint32_t shard = 0;
    for (int64_t i = 0; i < service->config->limit_loads; i++) {
        struct load *load = &service->loads->rows[i];
        uint32_t found;
        if (load->number == 0 || (first && load->checkpoint != first->checkpoint) ||
            !find_shard(&found, load) || (first && found >= shard))
            continue;
        first = load;
        shard = found;
    }
    if (!first)
        return false;
    struct image *image = catalog_image(first->checkpoint, shard);
    if (image) {
        pass_begin(image);
        return true;
    }
    int error = pass_read(first->checkpoint, shard, NULL);
    first->next += error != 0 && error != ERR_BUSY;
    return error != ERR_BUSY;
}

void ahead_run(struct service *service)
{
    while (!service->draining && !service->loads->starved &&
           service->loads->chunks_in_passes < pass_chunks_max(service))
        if (!start_wanted(service))
            return;
}
