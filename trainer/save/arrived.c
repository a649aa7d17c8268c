/* arrived.c - compares the state with a checkpoint: on devices after a load, and after a step that
 * is replayed (snapshot.h).
 *
 * libckpt verifies each block when the host reads it. Then the bytes are cut for this mesh and
 * copied onto devices, which no checksum covers. So each rank digests a part of the state on its
 * device; of ranks with copies only one does. The sums of all ranks are added. Rank 0 compares them
 * with the manifest's digests, which ckptd made when the checkpoint was saved. Digests do not
 * depend on the mesh (proto/base/checksum.h). A device reads its state once and returns two numbers
 * for each tensor. If the host has the state, nothing is compared after a load. */
#include "kernels/device.h"
#include "proto/base/report.h"
#include "trainer/save/private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A digest is summed over ranks as halves of its two numbers, so sums do not overflow. */
enum { NUMBERS = 2, HALVES = 2 * NUMBERS };

struct arrived {
    const struct snapshot *s;
    uint32_t parts; /* parts of the state to compare: only the first, or all */
    bool is_made;   /* by training: tensors that the checkpoint lacks are not compared */
    size_t count;   /* of `all` */
    int64_t *all;   /* [tensors of the model, parts, HALVES] */
    uint64_t *own;  /* PINNED, [slices, parts, NUMBERS] */
    uint64_t *sums; /* the same on the device */
};

/* Of ranks with copies one digests. With ZeRO all moments are different. */
static bool answers_for(const struct snapshot *s, const struct state_slice *slice, uint32_t part)
{
    bool is_one_copy = s->state->is_zero && part != STATE_PARAM;
    return slice->is_counted && (is_one_copy || mesh_group_place(s->mesh, GROUP_COPIES) == 0);
}

static int take_room(struct arrived *a)
{
    const struct snapshot *s = a->s;
    size_t bytes = (size_t)s->state->num_slices * a->parts * NUMBERS * sizeof(*a->own);
    struct device *device = s->state->lane->device;
    void *own = NULL, *sums = NULL;
    a->count = (size_t)s->of.model->num_tensors * a->parts * HALVES;
    a->all = calloc(a->count, sizeof(*a->all));
    if (a->all == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests of a load");
    int rc = device_alloc(device, &own, bytes, PINNED);
    if (rc == 0)
        rc = device_alloc(device, &sums, bytes, ON_DEVICE);
    a->own = own;
    a->sums = sums;
    return rc;
}

static void give_room(struct arrived *a)
{
    device_free(a->s->state->lane->device, a->own);
    device_free(a->s->state->lane->device, a->sums);
    free(a->all);
}

/* Digests this rank's part; other elements are zero. */
static int digest_own(struct arrived *a)
{
    const struct snapshot *s = a->s;
    const struct state *state = s->state;
    uint32_t num = state->num_slices * a->parts;
    ERR_TRY(take_room(a));
    lane_zero(state->lane, a->sums, num * NUMBERS * sizeof(*a->sums));
    for (uint32_t i = 0; i < num; i++)
        if (answers_for(s, &state->slices[i / a->parts], i % a->parts))
            state_digest(state, s->kernels, &state->slices[i / a->parts], i % a->parts,
                         a->sums + (size_t)i * NUMBERS);
    lane_copy(state->lane, a->own, a->sums, num * NUMBERS * sizeof(*a->sums));
    ERR_TRY(lane_settle(state->lane));
    for (uint32_t i = 0; i < num; i++) {
        size_t tensor = (size_t)(state->slices[i / a->parts].tensor - s->of.model->tensors);
        int64_t *to = a->all + (tensor * a->parts + i % a->parts) * HALVES;
        for (uint32_t half = 0; half < HALVES; half++)
            to[half] += (uint32_t)(a->own[(size_t)i * NUMBERS + half / 2] >> (half % 2 * 32));
    }
    return 0;
}

static bool is_same(const struct ckpt_tensor_info *saved, const int64_t *half)
{
    for (uint32_t n = 0; n < NUMBERS; n++, half += 2)
        if ((uint64_t)half[0] + ((uint64_t)half[1] << 32) != saved->digest[n])
            return false;
    return true;
}

static void compare(struct state_compared *out, const struct arrived *a,
                    const struct ckpt_metadata *metadata)
{
    const struct model_table *model = a->s->of.model;
    const struct partial *partial = &a->s->partial;
    *out = (struct state_compared){.num = 0};
    for (uint32_t i = 0; i < model->num_tensors * a->parts; i++) {
        char name[SNAPSHOT_NAME_BYTES];
        if (partial->rows != NULL && !partial_is_whole(partial, i / a->parts))
            continue; /* it was not loaded from the checkpoint */
        snapshot_name(name, &model->tensors[i / a->parts], i % a->parts);
        const struct ckpt_tensor_info *saved = partial_find(metadata, name);
        if (saved == NULL && a->is_made)
            continue;
        out->num++;
        if (saved != NULL && is_same(saved, a->all + (size_t)i * HALVES))
            continue;
        if (out->num_apart++ == 0)
            snprintf(out->first_apart, sizeof(out->first_apart), "%s", name);
    }
}

/* After a load all tensors must be the same. */
static int judge_load(const struct state_compared *compared, int64_t step, int64_t attempt)
{
    if (compared->num_apart > 0)
        return report_error(ERR_ABORTED,
                            "start the run again; if it happens again test the GPUs, their "
                            "links and the memory of these hosts",
                            "%s on the devices is not that of step %" PRId64 " of attempt %" PRId64
                            ": its digest differs",
                            compared->first_apart, step, attempt);
    log_info("checkpoint", "the devices hold the saved state: digests of %u tensors are the same",
             compared->num);
    return 0;
}

/* Called on rank 0. */
static int compare_with(struct state_compared *out, const struct arrived *a, struct ckpt *ckpt,
                        int64_t step, int64_t attempt)
{
    struct ckpt_metadata *metadata = NULL;
    ERR_TRY(ckpt_metadata(ckpt, step, (uint64_t)attempt, &metadata));
    compare(out, a, metadata);
    ckpt_metadata_free(metadata);
    return a->is_made ? 0 : judge_load(out, step, attempt);
}

/* Rank 0 gets *out. Collective. */
static int compare_all(struct state_compared *out, struct arrived *a, struct ckpt *ckpt,
                       int64_t step, int64_t attempt)
{
    struct comm *world = a->s->mesh->world;
    bool is_first = snapshot_is_rank_0(a->s);
    int rc = parallel_agree(world, digest_own(a));
    if (rc == 0)
        rc = comm_all_reduce_i64(world, a->all, a->count);
    if (rc == 0)
        rc = parallel_agree(world, is_first ? compare_with(out, a, ckpt, step, attempt) : 0);
    give_room(a);
    return rc;
}

int snapshot_check_arrived(struct snapshot *s, struct ckpt *ckpt, int64_t step, int64_t attempt,
                           bool has_moments)
{
    struct arrived a = {.s = s, .parts = has_moments ? STATE_PARTS : 1};
    struct state_compared compared;
    if (s->device_copy == NULL)
        return 0;
    return compare_all(&compared, &a, ckpt, step, attempt);
}

int snapshot_compare_made(struct snapshot *s, int64_t step, int64_t attempt,
                          struct state_compared *out)
{
    struct arrived a = {.s = s, .parts = STATE_PARTS, .is_made = true};
    return compare_all(out, &a, s->ckpt, step, attempt);
}
