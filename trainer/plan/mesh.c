/* mesh.c - the grid of ranks (see mesh.h). */
#include "trainer/plan/mesh.h"
#include "proto/base/report.h"

#include <string.h>

#define SHARDS (1u << AXIS_PARTS | 1u << AXIS_SHARD)
#define ALL_AXES ((1u << NUM_CUTS) - 1)

static const uint32_t axes_of[NUM_GROUPS + 1] = {
    [GROUP_PP] = 1u << AXIS_PP,
    [GROUP_DATA] = 1u << AXIS_REPLICATE | SHARDS,
    [GROUP_SHARD] = SHARDS,
    [GROUP_SUMS] = SHARDS,
    [GROUP_COPIES] = 1u << AXIS_REPLICATE | 1u << AXIS_CP,
    [GROUP_PEERS] = 1u << AXIS_REPLICATE | 1u << AXIS_CP | 1u << AXIS_TP,
    [GROUP_OWNERS] = 1u << AXIS_REPLICATE | SHARDS | 1u << AXIS_CP,
    [GROUP_REPLICA] = 1u << AXIS_SHARD | 1u << AXIS_CP,
    [GROUP_REPLICAS] = 1u << AXIS_REPLICATE | 1u << AXIS_PARTS,
    [GROUP_CP] = 1u << AXIS_CP,
    [GROUP_RING] = 1u << AXIS_CP,
    [GROUP_TP] = 1u << AXIS_TP,
    [GROUP_WORLD] = ALL_AXES,
};

/* The axes as digits of a rank, outermost first. */
static const enum axis digits[NUM_CUTS] = {AXIS_PP,    AXIS_REPLICATE, AXIS_PARTS,
                                           AXIS_SHARD, AXIS_CP,        AXIS_TP};

static const char *const group_names[NUM_GROUPS] = {
    [GROUP_PP] = "pp",           [GROUP_DATA] = "dp",
    [GROUP_SHARD] = "dp_shard",  [GROUP_COPIES] = "copies",
    [GROUP_PEERS] = "peers",     [GROUP_OWNERS] = "owners",
    [GROUP_CP] = "cp",           [GROUP_TP] = "tp",
    [GROUP_REPLICA] = "replica", [GROUP_REPLICAS] = "replicas",
    [GROUP_RING] = "ring",       [GROUP_SUMS] = "sums",
};

static const char *const names[NUM_CUTS] = {"pp", "dp_replicate", "dp_shard",
                                            "cp", "tp",           "the parts of dp_shard"};

const char *mesh_axis_name(enum axis axis)
{
    return names[axis];
}

uint32_t mesh_group_axes(enum group group)
{
    return axes_of[group];
}

static uint32_t degree_of(const struct mesh *mesh, enum axis axis)
{
    return axis == AXIS_PARTS   ? mesh->parts
           : axis == AXIS_SHARD ? mesh->degree[AXIS_SHARD] / mesh->parts
                                : mesh->degree[axis];
}

static uint32_t place_on(const struct mesh *mesh, const uint32_t place[NUM_AXES], enum axis axis)
{
    uint32_t within = degree_of(mesh, AXIS_SHARD);
    return axis == AXIS_PARTS   ? place[AXIS_SHARD] / within
           : axis == AXIS_SHARD ? place[AXIS_SHARD] % within
                                : place[axis];
}

static uint32_t place_among(const struct mesh *mesh, const uint32_t place[NUM_AXES], uint32_t axes)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < NUM_CUTS; i++)
        if (axes >> digits[i] & 1)
            at = at * degree_of(mesh, digits[i]) + place_on(mesh, place, digits[i]);
    return at;
}

uint32_t mesh_rank_of(const struct mesh *mesh, const uint32_t place[NUM_AXES])
{
    return place_among(mesh, place, ALL_AXES);
}

uint32_t mesh_group_size(const struct mesh *mesh, enum group group)
{
    uint32_t size = 1;
    for (uint32_t i = 0; i < NUM_CUTS; i++)
        size *= axes_of[group] >> digits[i] & 1 ? degree_of(mesh, digits[i]) : 1;
    return size;
}

uint32_t mesh_group_place(const struct mesh *mesh, enum group group)
{
    return place_among(mesh, mesh->place, axes_of[group]);
}

uint32_t mesh_group_rank(const struct mesh *mesh, enum group group, uint32_t place)
{
    uint32_t places[NUM_CUTS], within = degree_of(mesh, AXIS_SHARD);
    for (uint32_t i = NUM_CUTS; i-- > 0;) {
        enum axis axis = digits[i];
        places[axis] = place_on(mesh, mesh->place, axis);
        if ((axes_of[group] >> axis & 1) == 0)
            continue;
        places[axis] = place % degree_of(mesh, axis);
        place /= degree_of(mesh, axis);
    }
    places[AXIS_SHARD] += places[AXIS_PARTS] * within;
    return mesh_rank_of(mesh, places);
}

/* Sets the degrees from the configuration; dp_shard -1 takes the ranks that are left. */
static int fit(struct mesh *mesh, const struct config *config, uint32_t size)
{
    const char *hint = "change the parallelism degrees or the number of ranks";
    const int64_t wanted[NUM_AXES] = {config->pp, config->dp_replicate, config->dp_shard,
                                      config->cp, config->tp};
    int64_t others = 1, shards = config->dp_shard;
    for (uint32_t axis = 0; axis < NUM_AXES; axis++) {
        if (axis == AXIS_SHARD)
            continue;
        if (wanted[axis] < 1)
            return report_error(ERR_INVALID, hint, "the degree of %s is %lld", names[axis],
                                (long long)wanted[axis]);
        others *= wanted[axis];
        mesh->degree[axis] = (uint32_t)wanted[axis];
    }
    if (shards == -1 && size % others != 0)
        return report_error(ERR_INVALID, hint,
                            "%u ranks do not divide by pp %lld x dp_replicate %lld x cp %lld x tp "
                            "%lld = %lld",
                            size, (long long)config->pp, (long long)config->dp_replicate,
                            (long long)config->cp, (long long)config->tp, (long long)others);
    if (shards == -1)
        shards = size / others;
    if (shards < 1 || others * shards != size)
        return report_error(ERR_INVALID, hint,
                            "pp %lld x dp_replicate %lld x dp_shard %lld x cp %lld x tp %lld = "
                            "%lld ranks, but %u were started",
                            (long long)config->pp, (long long)config->dp_replicate,
                            (long long)shards, (long long)config->cp, (long long)config->tp,
                            (long long)(others * shards), size);
    mesh->degree[AXIS_SHARD] = (uint32_t)shards;
    return 0;
}

static void find_places(const struct mesh *mesh, uint32_t rank, uint32_t place[NUM_AXES])
{
    for (uint32_t axis = NUM_AXES; axis-- > 0;) {
        place[axis] = rank % mesh->degree[axis];
        rank /= mesh->degree[axis];
    }
}

/* With groups of leaves: as many parts as a replica has machines, if each part gets a group. */
static uint32_t parts_by_machine(const struct mesh *mesh, const struct config *config)
{
    uint32_t within = mesh->degree[AXIS_CP] * mesh->degree[AXIS_TP];
    uint32_t replica = mesh->degree[AXIS_SHARD] * within, here = (uint32_t)config->machine_ranks;
    if (replica % here != 0 || here % within != 0)
        return 1;
    int64_t all = (int64_t)mesh->degree[AXIS_REPLICATE] * (replica / here);
    return config->groups % all == 0 ? replica / here : 1;
}

static int choose_parts(struct mesh *mesh, const struct config *config)
{
    int64_t parts = config->groups > 1 ? config->shard_parts : 1;
    if (mesh->degree[AXIS_SHARD] % (parts > 0 ? parts : 1) != 0)
        return report_error(ERR_INVALID, "choose a number that divides",
                            "dp_shard %u does not divide by "
                            "parallelism.data_parallel_shard_parts = %lld",
                            mesh->degree[AXIS_SHARD], (long long)parts);
    mesh->parts = parts > 0 ? (uint32_t)parts : parts_by_machine(mesh, config);
    return 0;
}

int mesh_init(struct mesh *out, const struct config *config, uint32_t rank, uint32_t size)
{
    *out = (struct mesh){.world = out->world,
                         .has_sums = out->has_sums,
                         .parts = 1,
                         .tp_blocks = (uint32_t)config->tp_blocks,
                         .has_leaf_groups = config->groups > 1,
                         .has_ring = config->cp_rotate_method == ROTATE_RING};
    ERR_TRY(fit(out, config, size));
    ERR_TRY(choose_parts(out, config));
    find_places(out, rank, out->place);
    return 0;
}

uint32_t mesh_group_on_machine(const struct mesh *mesh, enum group group, uint32_t machine_ranks)
{
    uint32_t others = ~axes_of[group], num = 0;
    uint32_t first = mesh_rank_of(mesh, mesh->place) / machine_ranks * machine_ranks;
    for (uint32_t rank = first; rank < first + machine_ranks; rank++) {
        uint32_t place[NUM_AXES];
        find_places(mesh, rank, place);
        num += rank < mesh->world->size &&
               place_among(mesh, place, others) == place_among(mesh, mesh->place, others);
    }
    return num;
}

struct leaves mesh_leaves(const struct mesh *mesh, const struct config *config)
{
    return (struct leaves){.num = (uint32_t)config->micro_batches,
                           .groups = (uint32_t)config->groups,
                           .replicas = mesh->degree[AXIS_REPLICATE] * mesh->parts,
                           .shards = mesh->degree[AXIS_SHARD] / mesh->parts};
}

int mesh_split(struct mesh *mesh)
{
    for (uint32_t group = 0; group < NUM_GROUPS; group++) {
        bool is_of_leaf_groups = group == GROUP_REPLICA || group == GROUP_REPLICAS;
        if (mesh_group_size(mesh, group) == 1 || (is_of_leaf_groups && !mesh->has_leaf_groups) ||
            (group == GROUP_RING && !mesh->has_ring) || (group == GROUP_SUMS && !mesh->has_sums))
            continue;
        uint32_t color = place_among(mesh, mesh->place, ALL_AXES & ~axes_of[group]);
        uint32_t size = mesh_group_size(mesh, group);
        ERR_TRY(COMM_CALL(mesh->world, .kind = COMM_SPLIT, .out = &mesh->of[group], .color = color,
                          .key = mesh_group_place(mesh, group), .group_size = size));
        CHECK(mesh->of[group]->size == size);
        mesh->of[group]->name = group_names[group];
    }
    return 0;
}

void mesh_free_groups(struct mesh *mesh)
{
    for (uint32_t group = 0; group < NUM_GROUPS; group++)
        comm_free(mesh->of[group]);
}
