/* replicas.c - compares the replicas of a shard (see replicas.h). */
#include "trainer/replicas.h"
#include "proto/checksum.h"
#include "proto/report.h"

#include <stdio.h>
#include <stdlib.h>

#define PARTS 3u /* param, exp_avg, exp_avg_sq */

static const char *const part_names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};

/* Hash [i * PARTS + part] is that of slice i. */
static void hash_state(uint64_t *out, const struct state *state)
{
    const float *const parts[PARTS] = {state->param, state->exp_avg, state->exp_avg_sq};
    for (uint32_t i = 0; i < state->num_slices; i++)
        for (uint32_t part = 0; part < PARTS; part++)
            out[i * PARTS + part] = checksum_bytes(parts[part] + state->slices[i].at,
                                                   state->slices[i].count * sizeof(float));
}

/* How many replicas have the hash that replica r has. */
static uint32_t votes(const uint64_t *all, uint32_t num, uint32_t replicas, uint32_t at, uint32_t r)
{
    uint32_t same = 0;
    for (uint32_t other = 0; other < replicas; other++)
        same += all[(size_t)other * num + at] == all[(size_t)r * num + at];
    return same;
}

/* Hash `at` is not the same on all. */
static int fail(const struct mesh *mesh, const struct state *state, const uint64_t *all,
                uint32_t num, uint32_t at)
{
    uint32_t most = 0, least = 0;
    for (uint32_t r = 1; r < mesh->replicas; r++) {
        uint32_t count = votes(all, num, mesh->replicas, at, r);
        if (count > votes(all, num, mesh->replicas, at, most))
            most = r;
        if (count <= votes(all, num, mesh->replicas, at, least))
            least = r;
    }
    return report_error(
        ERR_ABORTED,
        "start the run again: it goes on from the last checkpoint; test the memory of these hosts",
        "replicas have come apart, nothing more is saved: %s%s is not the same on rank %u and rank "
        "%u; %u of %u replicas hold what rank %u has",
        part_names[at % PARTS], state->slices[at / PARTS].tensor->name,
        most * mesh->shards + mesh->shard, least * mesh->shards + mesh->shard,
        votes(all, num, mesh->replicas, at, most), mesh->replicas,
        most * mesh->shards + mesh->shard);
}

static int compare_in_group(const struct mesh *mesh, const struct state *state, uint64_t *all,
                            size_t *bytes, size_t *places)
{
    uint32_t num = state->num_slices * PARTS;
    uint64_t *own = all + (size_t)mesh->replicas * num;
    for (uint32_t r = 0; r < mesh->replicas; r++) {
        bytes[r] = num * sizeof(*all);
        places[r] = r * bytes[r];
    }
    hash_state(own, state);
    ERR_TRY(mesh->replica_group->ops->all_gather_v(mesh->replica_group, own, num * sizeof(*own),
                                                   all, bytes, places));
    for (uint32_t i = 0; i < num; i++)
        if (votes(all, num, mesh->replicas, i, 0) != mesh->replicas)
            return fail(mesh, state, all, num, i);
    return 0;
}

int replicas_compare(const struct mesh *mesh, const struct state *state)
{
    if (mesh->replicas == 1)
        return 0;
    size_t num = (size_t)state->num_slices * PARTS;
    uint64_t *all = calloc((mesh->replicas + 1) * num, sizeof(*all)); /* of all, then our own */
    size_t *lists = calloc(2 * (size_t)mesh->replicas, sizeof(*lists));
    int rc = all != NULL && lists != NULL
                 ? 0
                 : report_error(ERR_MEMORY, NULL, "no memory to compare the replicas");
    rc = parallel_agree(mesh->world, rc);
    if (rc == 0)
        rc = parallel_agree(mesh->world,
                            compare_in_group(mesh, state, all, lists, lists + mesh->replicas));
    free(all);
    free(lists);
    return rc;
}
