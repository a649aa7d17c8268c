/* blame.c - finds the sample of a step, and its module, that are out of line
 * (debug.replay_blame).
 *
 * Sample. Sequences of a micro-batch meet only in sums of gradients of weights, so each sample has
 * a gradient of its own where the backward ends: at the output of the embedding. Its squares are
 * summed exactly (model/notes.c), so all meshes have the same norms. The sample with the largest
 * norm is blamed, or the first whose norm is not finite. Losses of samples are compared, too.
 *
 * Modules. The largest magnitudes of the sample's activations, and of their gradients, are compared
 * with those of all other samples. The mean of their bits, as integers, is about that of their
 * logarithms. The tensor in which the sample is farthest above the mean is named. A part of a
 * tensor, of tensor or context parallel, counts with the largest magnitude of all parts. */
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/parallel/execution.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_BITS 0x2b800000u /* 2^-40: smaller values, and zeros, are noise */

struct blame {
    struct device *device;
    uint32_t num_notes, batch; /* of a leaf: notes, samples */
    struct note_name {
        char module[64];
        const char *what; /* NULL: this rank has no such note */
    } * names;            /* [num_notes] */
    /* [micro-steps][num_notes][batch] bits of the largest magnitude; 0: none */
    uint32_t *reach;
    int64_t *sums;            /* [num_notes][2] the sum of those bits, and their number */
    uint32_t *used, num_used; /* [num_notes] this rank's notes */
    int64_t *parts;           /* [ranks of tp or cp][num_notes * batch] */
    int64_t *all;             /* [ranks] */
    struct model_notes *notes;
    struct kernel_exact_sum *of_leaf, *squares; /* [batch] PINNED; [samples of the longest step] */
    double *values, *sorted;                    /* [samples] */
    uint32_t named_leaf;                        /* LEAF_NONE: no number was out of range */
};

/* ---- memory ---- */

static int take(const struct blame *b, void *out, size_t bytes, enum device_memory kind)
{
    void *at = NULL;
    ERR_TRY(device_alloc(b->device, &at, bytes, kind));
    memcpy(out, &at, sizeof(at));
    return 0;
}

/* The buffers in which the model records samples. */
static int take_notes(struct blame *b, const struct model *model)
{
    size_t parts = model_note_parts(model);
    b->notes->samples = calloc(model_note_extents(model), sizeof(*b->notes->samples));
    if (b->notes->samples == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare samples");
    ERR_TRY(take(b, &b->notes->squares, b->batch * sizeof(*b->notes->squares), ON_DEVICE));
    ERR_TRY(take(b, &b->of_leaf, b->batch * sizeof(*b->of_leaf), PINNED));
    ERR_TRY(take(b, &b->notes->pieces, parts * sizeof(*b->notes->pieces), ON_DEVICE));
    return take(b, &b->notes->host_pieces, parts * sizeof(*b->notes->host_pieces), PINNED);
}

int blame_open(struct parallel *p, uint32_t num_notes, struct model_notes *notes)
{
    const struct rank_plan *plan = p->plan;
    const uint32_t *degree = plan->mesh.degree;
    struct blame *b;
    if (!plan->config->replay_blame)
        return 0;
    p->run.blame = b = calloc(1, sizeof(*b));
    if (b == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare samples");
    b->device = plan->device;
    b->notes = notes;
    b->num_notes = num_notes;
    b->batch = (uint32_t)plan->config->local_batch_size;
    b->named_leaf = LEAF_NONE;
    size_t samples = (size_t)plan->leaves.num * b->batch, each = (size_t)num_notes * b->batch;
    uint32_t ranks = degree[AXIS_TP] > degree[AXIS_CP] ? degree[AXIS_TP] : degree[AXIS_CP];
    b->names = calloc(num_notes, sizeof(*b->names));
    b->reach = calloc(leaves_micro_steps(&plan->leaves) * each, sizeof(*b->reach));
    b->used = calloc(num_notes, sizeof(*b->used));
    b->sums = calloc(2 * (size_t)num_notes, sizeof(*b->sums));
    b->parts = calloc(ranks * each, sizeof(*b->parts));
    b->all = calloc(plan->mesh.world->size, sizeof(*b->all));
    b->squares = calloc(samples, sizeof(*b->squares));
    b->values = calloc(samples, sizeof(*b->values));
    b->sorted = calloc(samples, sizeof(*b->sorted));
    bool has_all = b->names != NULL && b->reach != NULL && b->used != NULL && b->sums != NULL &&
                   b->parts != NULL && b->all != NULL && b->squares != NULL && b->values != NULL &&
                   b->sorted != NULL;
    return has_all ? take_notes(b, plan->model)
                   : report_error(ERR_MEMORY, NULL, "no memory to compare samples");
}

void blame_close(struct blame *b)
{
    if (b == NULL)
        return;
    device_free(b->device, b->notes->squares);
    device_free(b->device, b->of_leaf);
    device_free(b->device, b->notes->pieces);
    device_free(b->device, b->notes->host_pieces);
    free(b->notes->samples);
    free(b->names);
    free(b->reach);
    free(b->used);
    free(b->sums);
    free(b->parts);
    free(b->all);
    free(b->squares);
    free(b->values);
    free(b->sorted);
    free(b);
}

void blame_is_named(struct blame *b, uint32_t leaf)
{
    b->named_leaf = leaf;
}

/* ---- during the step ---- */

static uint32_t *reach_of(const struct blame *b, uint32_t micro_step, uint32_t note)
{
    return b->reach + ((size_t)micro_step * b->num_notes + note) * b->batch;
}

/* Keeps the sums of squares of a leaf's samples. */
static int keep_squares(struct parallel *p, const struct op *op)
{
    struct blame *b = p->run.blame;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    size_t bytes = b->batch * sizeof(*b->squares);
    lane_copy(p->plan->lane, b->of_leaf, b->notes->squares, bytes);
    ERR_TRY(lane_settle(p->plan->lane));
    memcpy(b->squares + (size_t)leaf * b->batch, b->of_leaf, bytes);
    return 0;
}

int blame_add_notes(struct parallel *p, const struct op *op, uint32_t first,
                    const struct model_notes *notes, const struct kernel_extent *extents)
{
    struct blame *b = p->run.blame;
    for (uint32_t i = 0, next = 0; i < notes->num; i++) {
        uint32_t end = i + 1 < notes->num ? notes->of[i + 1].first : notes->num_extents;
        uint32_t *reach = reach_of(b, op->leaf, first + i);
        for (; next < end; next++) {
            uint32_t sample = notes->samples[next], bits = extents[next].largest;
            if (sample == MODEL_NO_SAMPLE)
                continue;
            bits = bits > LEAST_BITS ? bits : LEAST_BITS;
            reach[sample] = bits > reach[sample] ? bits : reach[sample];
            memcpy(b->names[first + i].module, notes->of[i].module, sizeof(b->names->module));
            b->names[first + i].what = notes->of[i].what;
        }
    }
    return notes->has_squares ? keep_squares(p, op) : 0;
}

/* ---- the sample ---- */

static bool is_worse(double a, double b)
{
    return isfinite(b) && !(a <= b); /* a NaN is worse */
}

/* The first value that is not finite, otherwise the largest, of samples [first, end). The median is
 * that of all samples. */
static struct sample_value find_largest(struct blame *b, uint32_t num, uint32_t first, uint32_t end)
{
    struct sample_value found = {.sample = first};
    uint32_t num_finite = 0;
    for (uint32_t i = first; i < end; i++)
        found.sample = is_worse(b->values[i], b->values[found.sample]) ? i : found.sample;
    for (uint32_t i = 0; i < num; i++)
        if (isfinite(b->values[i]))
            b->sorted[num_finite++] = b->values[i];
    found.value = b->values[found.sample];
    found.num_finite = num_finite;
    found.median = num_finite > 0 ? median_of(b->sorted, num_finite) : (double)NAN;
    return found;
}

/* The mean loss of a sample, scaled as if its counted tokens were its part of the step's. */
static double loss_of_sample(const struct parallel *p, uint32_t sample, uint32_t num)
{
    uint32_t batch = p->run.blame->batch;
    return gathered_of_leaf(p, sample / batch)[1 + sample % batch] /
           (tokens_that_count(p) / (double)num);
}

static int find_samples(struct parallel *p, struct step_blame *out)
{
    struct blame *b = p->run.blame;
    uint32_t num = p->exchange.leaves.num * b->batch, first = 0, end = num;
    ERR_TRY(comm_all_reduce_i64(p->plan->mesh.world, (int64_t *)b->squares,
                                (size_t)num * KERNEL_EXACT_LIMBS));
    for (uint32_t i = 0; i < num; i++)
        b->values[i] = loss_of_sample(p, i, num);
    out->loss = find_largest(b, num, 0, num);
    for (uint32_t i = 0; i < num; i++)
        b->values[i] = sqrt(kernel_exact_value(&b->squares[i]));
    if (b->named_leaf != LEAF_NONE) {
        first = b->named_leaf * b->batch;
        end = first + b->batch;
    }
    out->gradient = find_largest(b, num, first, end);
    out->num_samples = num;
    return 0;
}

/* ---- its module ---- */

/* Number `k` of a micro-step: the samples of one note after those of another. */
static uint32_t *used_reach(const struct blame *b, uint32_t micro_step, size_t k)
{
    return reach_of(b, micro_step, b->used[k / b->batch]) + k % b->batch;
}

/* Gives each rank of the group, whose ranks have parts of the same tensors, the largest magnitudes
 * of all of them. */
static int merge_parts(struct blame *b, struct comm *comm, uint32_t micro_step)
{
    size_t each = (size_t)b->num_used * b->batch;
    if (comm == NULL)
        return 0;
    memset(b->parts, 0, comm->size * each * sizeof(*b->parts));
    for (size_t k = 0; k < each; k++)
        b->parts[comm->rank * each + k] = *used_reach(b, micro_step, k);
    ERR_TRY(comm_all_reduce_i64(comm, b->parts, comm->size * each));
    for (size_t k = 0; k < comm->size * each; k++) {
        uint32_t *reach = used_reach(b, micro_step, k % each);
        *reach = b->parts[k] > *reach ? (uint32_t)b->parts[k] : *reach;
    }
    return 0;
}

static void sum_notes(struct blame *b, uint32_t micro_step)
{
    const uint32_t *reach = reach_of(b, micro_step, 0);
    for (uint32_t note = 0; note < b->num_notes; note++)
        for (uint32_t i = 0; i < b->batch; i++) {
            b->sums[2 * note] += reach[note * b->batch + i];
            b->sums[2 * note + 1] += reach[note * b->batch + i] != 0;
        }
}

/* Numbers of this rank's samples, then those of all samples. */
static int compare_notes(struct parallel *p)
{
    struct blame *b = p->run.blame;
    struct comm *const *of = p->plan->mesh.of;
    b->num_used = 0;
    memset(b->sums, 0, 2 * (size_t)b->num_notes * sizeof(*b->sums));
    for (uint32_t note = 0; note < b->num_notes; note++)
        if (b->names[note].what != NULL)
            b->used[b->num_used++] = note;
    for (uint32_t i = 0; i < leaves_micro_steps(&p->exchange.leaves); i++) {
        ERR_TRY(merge_parts(b, of[GROUP_TP], i));
        ERR_TRY(merge_parts(b, of[GROUP_CP], i));
        sum_notes(b, i);
    }
    return of[GROUP_DATA] != NULL
               ? comm_all_reduce_i64(of[GROUP_DATA], b->sums, 2 * (size_t)b->num_notes)
               : 0;
}

/* The distance of a sample's bits above the mean of all samples. */
static int64_t above_mean(const struct blame *b, const uint32_t *reach, uint32_t note)
{
    int64_t bits = reach[note * b->batch];
    return bits != 0 ? bits - b->sums[2 * note] / b->sums[2 * note + 1] : 0;
}

static double value_of(int64_t bits)
{
    uint32_t narrow = (uint32_t)bits;
    float value;
    memcpy(&value, &narrow, sizeof(value));
    return (double)value;
}

static void describe(const struct parallel *p, const uint32_t *reach, uint32_t note,
                     struct blamed_module *out)
{
    const struct blame *b = p->run.blame;
    const struct comm *world = p->plan->mesh.world;
    snprintf(out->what, sizeof(out->what), "%s", b->names[note].what);
    memcpy(out->name, b->names[note].module, sizeof(out->name));
    out->reach = value_of(reach[note * b->batch]);
    out->mean = value_of(b->sums[2 * note] / b->sums[2 * note + 1]);
    out->rank = world->rank;
    out->stage = world->rank / (world->size / p->plan->mesh.degree[AXIS_PP]);
}

/* All ranks get the tensor from the first rank in which the sample is farthest out of line. Of
 * tensors that are as far, all meshes take the first of the step. */
static int find_module(struct parallel *p, uint32_t sample, struct blamed_module *out)
{
    struct blame *b = p->run.blame;
    struct comm *world = p->plan->mesh.world;
    uint32_t data_rank, micro_step, most = 0, first = 0;
    ERR_TRY(compare_notes(p));
    leaves_find(&p->exchange.leaves, sample / b->batch, &data_rank, &micro_step);
    const uint32_t *reach = reach_of(b, micro_step, 0) + sample % b->batch;
    for (uint32_t note = 0; note < b->num_notes; note++)
        most = above_mean(b, reach, note) > above_mean(b, reach, most) ? note : most;
    memset(b->all, 0, world->size * sizeof(*b->all));
    if (data_rank == my_data_rank(p->plan) && above_mean(b, reach, most) > 0)
        b->all[world->rank] = above_mean(b, reach, most) * b->num_notes + b->num_notes - most;
    ERR_TRY(comm_all_reduce_i64(world, b->all, world->size));
    for (uint32_t rank = 1; rank < world->size; rank++)
        first = b->all[rank] > b->all[first] ? rank : first;
    *out = (struct blamed_module){.name = ""};
    if (b->all[first] > 0 && world->rank == first)
        describe(p, reach, most, out);
    return comm_broadcast(world, out, sizeof(*out), first);
}

int parallel_blame(struct parallel *p, struct step_blame *out)
{
    *out = (struct step_blame){.is_named = p->run.blame->named_leaf != LEAF_NONE};
    ERR_TRY(find_samples(p, out));
    return out->is_named ? 0 : find_module(p, out->gradient.sample, &out->module);
}
