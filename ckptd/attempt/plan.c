/* plan.c - the plan of an attempt: the bytes of the tensors that each rank saves, their file, and
 * the segments of its image; see describe.h.
 *
 * The coordinating node plans from the slices of all ranks; other nodes read its text and plan
 * their own ranks by it, so both name the same slices. */
#include "ckptd/attempt/plan.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/replicas.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/pool.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/format/shard.h"
#include "proto/layout/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `slices`: those of the rank, as named in the plan. */
static int plan_rank(struct group *group, uint32_t rank, const struct slice *slices)
{
    struct group_rank *mine = &group->ranks[rank];
    uint64_t bytes;
    int error =
        layout_shard_tensors(&mine->tensors, &mine->num_tensors, &bytes, group->table, rank);
    if (error == 0)
        error = shard_geometry(&mine->geometry, group->table, rank, group->run->name,
                               group->world_size);
    if (error == 0)
        error = layout_save_items(&mine->items, &mine->num_items, group->table, rank, slices,
                                  mine->count);
    return error;
}

/* Can an image of that many segments move over the file? The header is in it before the rank comes,
 * and the last chunks stay until the checksum table is made. */
static bool window_suffices(const struct service *service, const struct shard_geometry *geometry,
                            uint32_t segments)
{
    uint64_t bytes = segments * pool_segment_bytes(service->pool);
    uint64_t chunk_bytes = (uint64_t)service->config->block_bytes;
    return geometry->data_start <= bytes &&
           image_tail_chunks(service, geometry) * chunk_bytes <= bytes;
}

/* The segments for one image of every rank, if none gets more than `share`. */
static uint64_t images_demand(const struct group *group, uint32_t share)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < group->world_size; i++) {
        uint32_t need =
            group->ranks[i].node == 0
                ? image_segments_needed(group->run->service, group->ranks[i].geometry.file_bytes)
                : 0;
        sum += need < share ? need : share;
    }
    return sum;
}

/* Sets the segments of an image of each rank. If the pool does not hold a whole image of every rank
 * at once, all get the largest equal share; images that need more become windows. ERR_INVALID: no
 * start of these ranks can succeed with this pool. */
static int plan_images(struct group *group)
{
    const struct service *service = group->run->service;
    uint32_t pool = pool_size(service->pool), share = 0, too_much = pool + 1;
    if (images_demand(group, UINT32_MAX) <= pool)
        share = too_much = UINT32_MAX;
    while (too_much - share > 1) {
        uint32_t middle = share + (too_much - share) / 2;
        if (images_demand(group, middle) <= pool)
            share = middle;
        else
            too_much = middle;
    }
    for (uint32_t i = 0; i < group->world_size; i++) {
        struct group_rank *rank = &group->ranks[i];
        if (rank->node != 0 || !rank->slices)
            continue;
        uint32_t need = image_segments_needed(service, rank->geometry.file_bytes);
        rank->image_segments = need < share ? need : share;
        if (rank->image_segments < need &&
            !window_suffices(service, &rank->geometry, rank->image_segments))
            return report_error(
                ERR_INVALID, "enlarge memory.pool_bytes, or lower memory.segment_bytes",
                "a pool of %u segments leaves %u for each of %u ranks: too little "
                "for rank %u even to save its %llu bytes piece by piece",
                pool, share, group->world_size, i, (unsigned long long)rank->geometry.file_bytes);
        group->num_windows += rank->image_segments < need;
    }
    return 0;
}

static bool is_spread(const struct group *group)
{
    uint32_t here = 0;
    for (uint32_t i = 0; i < group->world_size; i++)
        here += group->ranks[i].node == 0;
    return here < group->world_size;
}

/* The places of the ranks, if some are at other nodes. */
static int make_places(struct group *group)
{
    const struct config *config = group->run->service->config;
    struct places *places = &group->places;
    uint16_t places_of[MEMBERS_PEERS_MAX + 1] = {0}; /* 1 + their index, of nodes with ranks */
    if (!is_spread(group))
        return 0;
    ERR_TRY(places_make(places, config->members.count + 1, group->world_size));
    places->num_nodes = 0;
    snprintf(places->here, sizeof places->here, "%s", config->nodes_name);
    for (uint32_t i = 0; i < group->world_size; i++) {
        uint32_t node = group->ranks[i].node;
        const char *name = node == 0 ? config->nodes_name : config->members.peers[node - 1].name;
        if (places_of[node] == 0) {
            snprintf(places->nodes[places->num_nodes++], sizeof *places->nodes, "%s", name);
            places_of[node] = (uint16_t)places->num_nodes;
        }
        places->shards[i] = (uint16_t)(places_of[node] - 1);
    }
    return 0;
}

static int find_replicas(struct group *group, const struct slice *const *slices,
                         const uint32_t *counts)
{
    struct replica_slice **replicas = calloc(group->world_size, sizeof *replicas);
    uint32_t *num = calloc(group->world_size, sizeof *num);
    int error = replicas && num
                    ? replicas_find(replicas, num, group->table, slices, counts, group->world_size)
                    : report_error(ERR_MEMORY, NULL, "no memory for the plan");
    for (uint32_t i = 0; replicas && num && i < group->world_size; i++) {
        group->ranks[i].replicas = replicas[i];
        group->ranks[i].num_replicas = error == 0 ? num[i] : 0;
    }
    if (error == 0 && is_spread(group))
        error = replicas_mark(&group->replicated, &group->replicated_bytes, group->table, replicas,
                              num, group->world_size);
    free(replicas);
    free(num);
    return error;
}

/* Plans from the slices of all ranks. */
static int make_plan(struct group *group)
{
    const struct slice **slices = calloc(group->world_size, sizeof *slices);
    uint32_t *counts = calloc(group->world_size, sizeof *counts);
    struct slice **split = NULL; /* of ranks with several boxes of a tensor */
    enum layout_replicas replicas = LAYOUT_EQUAL_REPLICAS;
    int error = slices && counts ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the plan");
    for (uint32_t i = 0; i < group->world_size && error == 0; i++) {
        slices[i] = group->ranks[i].slices;
        counts[i] = group->ranks[i].count;
        if (!group->ranks[i].compares_replicas)
            replicas = LAYOUT_ONE_REPLICA;
    }
    if (error == 0)
        error = layout_split(&split, slices, counts, group->world_size);
    for (uint32_t i = 0; split != NULL && i < group->world_size; i++)
        slices[i] = split[i];
    if (error == 0)
        error = layout_plan_save(&group->table, slices, counts, group->world_size, replicas);
    for (uint32_t i = 0; i < group->world_size && error == 0; i++)
        error = plan_rank(group, i, slices[i]);
    if (error == 0 && replicas == LAYOUT_ONE_REPLICA)
        error = find_replicas(group, slices, counts);
    if (error == 0 && split && is_spread(group))
        error = report_error(ERR_INVALID, "start all ranks on one node, or describe a tensor once",
                             "a rank describes several boxes of a tensor, and ranks are on "
                             "several nodes");
    layout_split_free(split);
    free(slices);
    free(counts);
    return error == 0 ? make_places(group) : error;
}

/* Reads the coordinator's plan. */
static int read_plan(struct group *group)
{
    struct manifest *manifest = NULL;
    ERR_TRY(manifest_read(&manifest, group->plan, strlen(group->plan)));
    int error = 0;
    if (manifest->summary.world_size != group->world_size ||
        manifest->summary.attempt != group->attempt)
        error = report_error(ERR_CORRUPT, "use the same release on both nodes",
                             "received the plan of another attempt");
    if (error == 0) {
        group->table = manifest->table;
        manifest->table = NULL;
    }
    manifest_free(manifest);
    for (uint32_t i = 0; i < group->world_size && error == 0; i++)
        if (group->ranks[i].slices) /* other nodes plan their own */
            error = plan_rank(group, i, group->ranks[i].slices);
    const struct replica_marks marks = {group->replicated, group->replicated_bytes};
    for (uint32_t i = 0; i < group->world_size && error == 0 && marks.bits; i++) {
        struct group_rank *rank = &group->ranks[i];
        if (rank->slices)
            error = replicas_find_marked(&rank->replicas, &rank->num_replicas, group->table,
                                         rank->slices, rank->count, &marks);
    }
    return error;
}

int group_plan(struct group *group)
{
    ERR_TRY(group->plan ? read_plan(group) : make_plan(group));
    return plan_images(group);
}
