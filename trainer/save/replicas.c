/* replicas.c - compares the copies of the state on several ranks (see replicas.h).
 *
 * Ranks that differ only in dp_replicate, cp or tp are peers: they hold the same tensors, and the
 * same rows of tensors that tp does not cut. Each peer gets the digests of all peers. A rank
 * compares the digests of peers that hold the same part of a tensor as itself: its copies. A tied
 * matrix on both ends of a pipeline is compared between their ranks, too.
 *
 * If copies differ, two ranks with different copies find the first different element. They digest
 * PIECES pieces of the part and repeat this within the first that differs, until it is one element.
 * Other ranks of their group only receive these digests. */
#include "trainer/save/replicas.h"
#include "kernels/device.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "trainer/plan/layout.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTS ((uint32_t)NUM_STATE_PARTS)
#define PIECES 16u
#define START_AGAIN \
    "start the run again: it goes on from the last checkpoint; test the memory of these hosts"

static const char *const part_names[PARTS] = {"", "exp_avg of ", "exp_avg_sq of "};

struct replicas {
    const struct mesh *mesh;
    const struct state *state;
    struct kernels *kernels;
    uint32_t count;            /* peers, this rank included */
    uint32_t num;              /* digests of one peer */
    struct digest *all, *own;  /* of all peers, in order; of this rank */
    struct digest *theirs;     /* [PARTS] of the tied matrix on the other end */
    struct digest *pieces[2];  /* [PIECES] of two copies that differ */
    struct digest *device_own; /* [num], or [PIECES], on the device */
    size_t *bytes, *places;    /* of each peer in `all` */
};

/* Two different copies. */
struct apart {
    uint32_t group;           /* enum group: the group of both ranks */
    uint32_t place[2];        /* in the group; the first has the copy of the majority */
    uint32_t rank[2];         /* in the world */
    uint32_t at;              /* the digest; of GROUP_PP counted from the tied matrix on */
    uint32_t same, copies;    /* number of copies equal to the first, and of all copies */
    uint64_t elements, width; /* of the part, and of a row */
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
                          ((count + (size_t)1) * num + PARTS + 2 * PIECES) * sizeof(*replicas->all),
                          PINNED);
    replicas->all = all;
    if (rc == 0)
        rc = device_alloc(device, &own, (num > PIECES ? num : PIECES) * sizeof(*replicas->own),
                          ON_DEVICE);
    replicas->device_own = own;
    replicas->bytes = calloc(2 * (size_t)count, sizeof(*replicas->bytes));
    if (rc != 0 || replicas->bytes == NULL) {
        replicas_close(replicas);
        return rc != 0 ? rc : report_error(ERR_MEMORY, NULL, "no memory to compare the replicas");
    }
    replicas->own = replicas->all + (size_t)count * num;
    replicas->theirs = replicas->own + num;
    replicas->pieces[0] = replicas->theirs + PARTS;
    replicas->pieces[1] = replicas->pieces[0] + PIECES;
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

/* True if peer r holds the same part of the tensor of digest `at` as this rank. With ZeRO only
 * ranks that differ in tp only hold the same moments. */
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

/* The number of copies with the same digest as peer r. */
static uint32_t votes(const struct replicas *replicas, uint32_t at, uint32_t r)
{
    const struct digest *all = replicas->all + at;
    uint32_t same = 0;
    for (uint32_t other = 0; other < replicas->count; other++)
        same += is_copy(replicas, at, other) &&
                is_same(&all[(size_t)other * replicas->num], &all[(size_t)r * replicas->num]);
    return same;
}

static const struct state_place *place_of(const struct replicas *replicas, uint32_t at)
{
    return state_place(&replicas->state->slices[at / PARTS], at % PARTS);
}

/* Call if digest `at` differs between copies: chooses two ranks with different copies. */
static void take_apart(struct apart *out, const struct replicas *replicas, uint32_t at)
{
    const struct mesh *mesh = replicas->mesh;
    const struct state_place *place = place_of(replicas, at);
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
    *out = (struct apart){.group = GROUP_PEERS,
                          .place = {most, least},
                          .rank = {mesh_group_rank(mesh, GROUP_PEERS, most),
                                   mesh_group_rank(mesh, GROUP_PEERS, least)},
                          .at = at,
                          .same = votes(replicas, at, most),
                          .copies = copies(replicas, at),
                          .elements = place->count,
                          .width = place->box.extent[1]};
}

/* ---- the ends of a pipeline ---- */

/* The other rank of the pipeline that holds the tied matrix; UINT32_MAX: this rank has none. */
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

/* Digests parts that have copies; digests of other parts are 0. Digest [i * PARTS + part] is that
 * of slice i. */
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

/* Returns false if they differ. */
static bool compare_tied(struct apart *out, const struct replicas *replicas)
{
    const struct mesh *mesh = replicas->mesh;
    uint32_t tied = digest_of_tied(replicas), me = mesh->place[AXIS_PP], end = other_end(replicas);
    uint32_t part = 0;
    while (part < PARTS && is_same(&replicas->own[tied + part], &replicas->theirs[part]))
        part++;
    if (part == PARTS)
        return true;
    const struct state_place *place = place_of(replicas, tied + part);
    *out = (struct apart){
        .group = GROUP_PP,
        .place = {me, end},
        .rank = {mesh_group_rank(mesh, GROUP_PP, me), mesh_group_rank(mesh, GROUP_PP, end)},
        .at = part,
        .same = 1,
        .copies = 2,
        .elements = place->count,
        .width = place->box.extent[1]};
    return false;
}

/* ERR_ABORTED: copies differ; *out names two. */
static int compare_all(struct apart *out, const struct replicas *replicas)
{
    struct comm *peers = replicas->mesh->of[GROUP_PEERS];
    uint32_t me = mesh_group_place(replicas->mesh, GROUP_PEERS);
    bool is_end = other_end(replicas) != UINT32_MAX;
    if (peers != NULL)
        ERR_TRY(comm_all_gather_v(peers, replicas->own, replicas->num * sizeof(*replicas->own),
                                  replicas->all, replicas->bytes, replicas->places));
    if (is_end)
        ERR_TRY(swap_tied(replicas));
    for (uint32_t i = 0; i < replicas->num && peers != NULL; i++)
        if (votes(replicas, i, me) != copies(replicas, i)) {
            take_apart(out, replicas, i);
            return ERR_ABORTED;
        }
    return is_end && !compare_tied(out, replicas) ? ERR_ABORTED : 0;
}

/* ---- the first different element ---- */

/* Elements of a part, row-major: several rows, or a part of one row. */
struct range {
    uint64_t first, num;
};

/* Piece `i` of the range; 0 elements: there is none. */
static struct range piece_of(const struct range *range, uint64_t width, uint32_t i)
{
    uint64_t unit = range->num > width ? width : 1, units = range->num / unit;
    uint64_t size = (units + PIECES - 1) / PIECES * unit, at = i * size;
    uint64_t left = at < range->num ? range->num - at : 0;
    return (struct range){range->first + at, left < size ? left : size};
}

static uint32_t digest_here(const struct replicas *r, const struct apart *apart)
{
    return apart->at + (apart->group == GROUP_PP ? digest_of_tied(r) : 0);
}

static void post_digest(const struct replicas *r, uint32_t at, const struct range *range,
                        struct digest *out)
{
    struct kernel_digest digest =
        state_digested(r->state, &r->state->slices[at / PARTS], at % PARTS);
    uint64_t width = digest.width;
    digest.sum = out->sum;
    digest.x = state_at(r->state, at % PARTS, place_of(r, at)->at + range->first);
    digest.first += range->first / width * digest.stride + range->first % width;
    digest.width = range->num < width ? range->num : width;
    digest.rows = range->num / digest.width;
    kernel_digest(r->kernels, r->state->lane, &digest);
}

static int digest_pieces(const struct replicas *r, const struct apart *apart,
                         const struct range *range, struct digest *out)
{
    struct lane *lane = r->state->lane;
    lane_zero(lane, r->device_own, PIECES * sizeof(*out));
    for (uint32_t i = 0; i < PIECES; i++) {
        struct range piece = piece_of(range, apart->width, i);
        if (piece.num > 0)
            post_digest(r, digest_here(r, apart), &piece, &r->device_own[i]);
    }
    lane_copy(lane, out, r->device_own, PIECES * sizeof(*out));
    return lane_settle(lane);
}

/* The first different piece of the range; PIECES: none. */
static int find_piece(const struct replicas *r, const struct apart *apart,
                      const struct range *range, uint32_t *out)
{
    struct comm *group = r->mesh->of[apart->group];
    uint32_t me = mesh_group_place(r->mesh, apart->group);
    for (uint32_t i = 0; i < 2; i++) {
        if (me == apart->place[i])
            ERR_TRY(digest_pieces(r, apart, range, r->pieces[i]));
        ERR_TRY(
            comm_broadcast(group, r->pieces[i], PIECES * sizeof(*r->pieces[i]), apart->place[i]));
    }
    *out = 0;
    while (*out < PIECES && is_same(&r->pieces[0][*out], &r->pieces[1][*out]))
        ++*out;
    return 0;
}

/* Collective of the group. The first different element, counted within the part. */
static int find_element(const struct replicas *r, const struct apart *apart, uint64_t *out)
{
    struct range range = {0, apart->elements};
    while (range.num > 1) {
        uint32_t piece;
        ERR_TRY(find_piece(r, apart, &range, &piece));
        if (piece == PIECES)
            return ERR_ABORTED; /* this time the device read other bits */
        range = piece_of(&range, apart->width, piece);
    }
    *out = range.first;
    return 0;
}

static int fail(const struct replicas *r, const struct apart *apart, const uint64_t *element)
{
    uint32_t at = digest_here(r, apart);
    const struct model_tensor *tensor = r->state->slices[at / PARTS].tensor;
    const uint64_t *offset = place_of(r, at)->box.offset;
    char where[96] = "";
    if (element != NULL && tensor->dims == 1)
        snprintf(where, sizeof(where), "; the first element that differs is [%" PRIu64 "]",
                 offset[0] + *element);
    else if (element != NULL)
        snprintf(where, sizeof(where),
                 "; the first element that differs is [%" PRIu64 ", %" PRIu64 "]",
                 offset[0] + *element / apart->width, offset[1] + *element % apart->width);
    char held[96] = ", the two ends of a pipeline";
    if (apart->group == GROUP_PEERS)
        snprintf(held, sizeof(held), "; %u of %u replicas hold what rank %u has", apart->same,
                 apart->copies, apart->rank[0]);
    return report_error(
        ERR_ABORTED, START_AGAIN,
        "replicas differ, nothing more is saved: %s%s is not the same on rank %u and rank %u%s%s",
        part_names[at % PARTS], tensor->name, apart->rank[0], apart->rank[1], held, where);
}

int replicas_compare(struct replicas *replicas)
{
    struct apart apart = {0};
    uint64_t element;
    uint32_t first;
    if (replicas == NULL)
        return 0;
    const struct mesh *mesh = replicas->mesh;
    ERR_TRY(parallel_agree(mesh->world, digest_state(replicas)));
    int rc = parallel_agree_quietly(mesh->world, compare_all(&apart, replicas), &first);
    bool is_mine = first == mesh->world->rank;
    if (rc != 0 && !is_mine)
        report_clear();
    if (rc != ERR_ABORTED)
        return rc;
    int found = comm_broadcast(mesh->world, &apart, sizeof(apart), first);
    if (found == 0 && mesh_group_rank(mesh, apart.group, apart.place[0]) == apart.rank[0])
        found = find_element(replicas, &apart, &element);
    if (is_mine)
        return fail(replicas, &apart, found == 0 ? &element : NULL);
    report_clear();
    return ERR_ABORTED;
}
