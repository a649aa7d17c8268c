/* replicas.c - compares what several ranks hold (see replicas.h).
 *
 * Ranks that differ in dp_replicate, cp or tp alone are peers: they hold the same tensors, and of a
 * tensor the same rows but for what tp cuts. All peers' digests go to all; each rank compares those
 * of the peers that hold the same part of the tensor as itself: its copies. A tied matrix that both
 * ends of a pipeline hold is compared between their ranks, too. */
#include "trainer/save/replicas.h"
#include "kernels/device.h"
#include "proto/checksum.h"
#include "proto/report.h"
#include "trainer/parallel/layout.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTS ((uint32_t)NUM_STATE_PARTS)
#define START_AGAIN \
    "start the run again: it goes on from the last checkpoint; test the memory of these hosts"

static const char *const part_names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};

struct replicas {
    const struct mesh *mesh;
    const struct state *state;
    struct kernels *kernels;
    uint32_t count;            /* peers, this rank included */
    uint32_t num;              /* digests of one */
    struct digest *all, *own;  /* of all peers, one after the other; of this rank */
    struct digest *theirs;     /* [PARTS] of the tied matrix, the other end's */
    struct digest *device_own; /* [num] on the device */
    size_t *bytes, *places;    /* of each in `all` */
};

int replicas_open(struct replicas **out, const struct mesh *mesh, const struct state *state,
                  struct kernels *kernels)
{
    *out = NULL;
    if (mesh_group_size(mesh, GROUP_PEERS) == 1 && !state->is_tied_apart)
        return 0;
    uint32_t count = mesh_group_size(mesh, GROUP_PEERS), num = state->num_slices * PARTS;
    struct replicas *replicas = calloc(1, sizeof(*replicas));
    if (replicas == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare the replicas");
    *replicas = (struct replicas){
        .mesh = mesh, .state = state, .kernels = kernels, .count = count, .num = num};
    struct device *device = state->lane->device;
    void *all = NULL, *own = NULL;
    int rc = device_alloc(device, &all,
                          ((count + (size_t)1) * num + PARTS) * sizeof(*replicas->all), PINNED);
    replicas->all = all;
    if (rc == 0)
        rc = device_alloc(device, &own, num * sizeof(*replicas->own), ON_DEVICE);
    replicas->device_own = own;
    replicas->bytes = calloc(2 * (size_t)count, sizeof(*replicas->bytes));
    if (rc != 0 || replicas->bytes == NULL) {
        replicas_close(replicas);
        return rc != 0 ? rc : report_error(ERR_MEMORY, NULL, "no memory to compare the replicas");
    }
    replicas->own = replicas->all + (size_t)count * num;
    replicas->theirs = replicas->own + num;
    replicas->places = replicas->bytes + count;
    for (uint32_t r = 0; r < count; r++) {
        replicas->bytes[r] = num * sizeof(*replicas->all);
        replicas->places[r] = r * replicas->bytes[r];
    }
    *out = replicas;
    return 0;
}

void replicas_close(struct replicas *replicas)
{
    if (replicas == NULL)
        return;
    device_free(replicas->state->lane->device, replicas->all);
    device_free(replicas->state->lane->device, replicas->device_own);
    free(replicas->bytes);
    free(replicas);
}

/* Whether peer r holds what this rank holds of the tensor of digest `at`. With ZeRO only ranks that
 * differ in tp alone hold the same moments. */
static bool is_copy(const struct replicas *replicas, uint32_t at, uint32_t r)
{
    const struct mesh *mesh = replicas->mesh;
    const struct model_tensor *tensor = replicas->state->slices[at / PARTS].tensor;
    uint32_t me = mesh_group_place(mesh, GROUP_PEERS), tp = mesh->degree[AXIS_TP];
    if (replicas->state->is_zero && at % PARTS != STATE_PARAM && r / tp != me / tp)
        return false;
    return layout_tp_part(mesh, tensor, r % mesh->degree[AXIS_TP]) ==
           layout_tp_part(mesh, tensor, mesh->place[AXIS_TP]);
}

static uint32_t copies(const struct replicas *replicas, uint32_t at)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < replicas->count; r++)
        count += is_copy(replicas, at, r);
    return count;
}

static bool is_same(const struct digest *a, const struct digest *b)
{
    return a->sum[0] == b->sum[0] && a->sum[1] == b->sum[1];
}

/* How many copies have the digest that peer r has. */
static uint32_t votes(const struct replicas *replicas, uint32_t at, uint32_t r)
{
    const struct digest *all = replicas->all + at;
    uint32_t same = 0;
    for (uint32_t other = 0; other < replicas->count; other++)
        same += is_copy(replicas, at, other) &&
                is_same(&all[(size_t)other * replicas->num], &all[(size_t)r * replicas->num]);
    return same;
}

static uint32_t rank_of(const struct mesh *mesh, uint32_t peer)
{
    uint32_t place[NUM_AXES], tp = mesh->degree[AXIS_TP], cp = mesh->degree[AXIS_CP];
    for (uint32_t axis = 0; axis < NUM_AXES; axis++)
        place[axis] = mesh->place[axis];
    place[AXIS_REPLICATE] = peer / tp / cp;
    place[AXIS_CP] = peer / tp % cp;
    place[AXIS_TP] = peer % tp;
    return mesh_rank_of(mesh, place);
}

/* Digest `at` is not the same on all. */
static int fail(const struct replicas *replicas, uint32_t at)
{
    const struct mesh *mesh = replicas->mesh;
    uint32_t me = mesh_group_place(mesh, GROUP_PEERS), most = me, least = me;
    for (uint32_t r = 0; r < replicas->count; r++) {
        uint32_t count = votes(replicas, at, r);
        if (!is_copy(replicas, at, r))
            continue;
        if (count > votes(replicas, at, most))
            most = r;
        if (count <= votes(replicas, at, least))
            least = r;
    }
    return report_error(
        ERR_ABORTED, START_AGAIN,
        "replicas have come apart, nothing more is saved: %s%s is not the same on rank %u and rank "
        "%u; %u of %u replicas hold what rank %u has",
        part_names[at % PARTS], replicas->state->slices[at / PARTS].tensor->name,
        rank_of(mesh, most), rank_of(mesh, least), votes(replicas, at, most), copies(replicas, at),
        rank_of(mesh, most));
}

/* ---- the ends of a pipeline ---- */

/* The rank of the pipeline that holds the tied matrix, too; UINT32_MAX: this one does not. */
static uint32_t other_end(const struct replicas *replicas)
{
    uint32_t last = replicas->mesh->degree[AXIS_PP] - 1, place = replicas->mesh->place[AXIS_PP];
    bool is_end = replicas->state->is_tied_apart && (place == 0 || place == last);
    return !is_end ? UINT32_MAX : place == 0 ? last : 0;
}

/* The first digest of the tied matrix. */
static uint32_t digest_of_tied(const struct replicas *replicas)
{
    return replicas->mesh->place[AXIS_PP] == 0 ? 0 : replicas->num - PARTS;
}

/* ---- the digests of a rank ---- */

/* Of what has a copy; 0 of the others. Digest [i * PARTS + part] is that of slice i. */
static int digest_state(const struct replicas *r)
{
    struct lane *lane = r->state->lane;
    uint32_t tied = digest_of_tied(r);
    bool is_end = other_end(r) != UINT32_MAX;
    lane_zero(lane, r->device_own, r->num * sizeof(*r->own));
    for (uint32_t i = 0; i < r->num; i++)
        if (copies(r, i) > 1 || (is_end && i >= tied && i < tied + PARTS))
            state_digest(r->state, r->kernels, &r->state->slices[i / PARTS], i % PARTS,
                         r->device_own[i].sum);
    lane_copy(lane, r->own, r->device_own, r->num * sizeof(*r->own));
    return lane_settle(lane);
}

static int swap_tied(const struct replicas *replicas)
{
    struct comm *stages = replicas->mesh->of[GROUP_PP];
    const struct digest *mine = replicas->own + digest_of_tied(replicas);
    size_t bytes = PARTS * sizeof(*mine);
    struct comm_request request = {0};
    ERR_TRY(comm_send(stages, other_end(replicas), COMM_TAG_TIED, mine, bytes, &request));
    ERR_TRY(comm_receive(stages, other_end(replicas), COMM_TAG_TIED, replicas->theirs, bytes));
    return comm_wait(stages, &request);
}

static int compare_tied(const struct replicas *replicas)
{
    const struct mesh *mesh = replicas->mesh;
    uint32_t at = digest_of_tied(replicas), place[NUM_AXES];
    for (uint32_t axis = 0; axis < NUM_AXES; axis++)
        place[axis] = mesh->place[axis];
    place[AXIS_PP] = other_end(replicas);
    for (uint32_t part = 0; part < PARTS; part++)
        if (!is_same(&replicas->own[at + part], &replicas->theirs[part]))
            return report_error(
                ERR_ABORTED, START_AGAIN,
                "replicas have come apart, nothing more is saved: %s%s is not the same on rank %u "
                "and rank %u, the two ends of a pipeline",
                part_names[part], replicas->state->slices[at / PARTS].tensor->name,
                mesh_rank_of(mesh, mesh->place), mesh_rank_of(mesh, place));
    return 0;
}

static int compare_all(const struct replicas *replicas)
{
    struct comm *peers = replicas->mesh->of[GROUP_PEERS];
    uint32_t me = mesh_group_place(replicas->mesh, GROUP_PEERS);
    bool is_end = other_end(replicas) != UINT32_MAX;
    ERR_TRY(parallel_agree(replicas->mesh->world, digest_state(replicas)));
    if (peers != NULL)
        ERR_TRY(comm_all_gather_v(peers, replicas->own, replicas->num * sizeof(*replicas->own),
                                  replicas->all, replicas->bytes, replicas->places));
    if (is_end)
        ERR_TRY(swap_tied(replicas));
    for (uint32_t i = 0; i < replicas->num && peers != NULL; i++)
        if (votes(replicas, i, me) != copies(replicas, i))
            return fail(replicas, i);
    return is_end ? compare_tied(replicas) : 0;
}

int replicas_compare(struct replicas *replicas)
{
    if (replicas == NULL)
        return 0;
    return parallel_agree(replicas->mesh->world, compare_all(replicas));
}
