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
    uint32_t num_notes, batch; /* of a leaf: notes, samples */
    struct note_name {
        char module[64];
        const char *what;
    } * names; /* [num_notes] */
    /* [micro-steps][num_notes][batch] bits of the largest magnitude; 0: none, or another stage's */
    int64_t *reach;
    int64_t *sums;  /* [num_notes][2] the sum of those bits, and their number */
    int64_t *parts; /* of each rank of a group: take_greatest() */
    struct model_notes *notes;
    struct kernel_exact_sum *squares; /* [samples of the longest step], PINNED */
    double *values, *sorted;          /* [samples] */
    uint32_t named_leaf;              /* LEAF_NONE: no number was out of range */
};

/* ---- memory ---- */

/* The numbers that are compared, and the sample of each extent. */
static int take_host(struct blame *b, const struct rank_plan *plan)
{
    const struct mesh *mesh = &plan->mesh;
    size_t each = (size_t)b->num_notes * b->batch, samples = (size_t)plan->leaves.num * b->batch;
    size_t reach = leaves_micro_steps(&plan->leaves) * each, sums = 2 * (size_t)b->num_notes;
    size_t tp = mesh->degree[AXIS_TP], cp = mesh->degree[AXIS_CP];
    size_t parts = (tp > cp ? tp : cp) * each;
    parts = parts > mesh->world->size ? parts : mesh->world->size;
    b->names = calloc(b->num_notes, sizeof(*b->names));
    b->reach = calloc(reach + sums + parts, sizeof(*b->reach));
    b->values = calloc(2 * samples, sizeof(*b->values));
    b->notes->samples = calloc(model_note_extents(plan->model), sizeof(*b->notes->samples));
    if (b->names == NULL || b->reach == NULL || b->values == NULL || b->notes->samples == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare samples");
    b->sums = b->reach + reach;
    b->parts = b->sums + sums;
    b->sorted = b->values + samples;
    return pinned_new(plan, &b->squares, samples * sizeof(*b->squares));
}

/* The buffers in which the model sums squares. */
static int take_squares(struct model_notes *notes, const struct rank_plan *plan, uint32_t batch)
{
    void *squares = NULL, *pieces = NULL;
    size_t bytes = model_note_parts(plan->model) * sizeof(*notes->pieces);
    ERR_TRY(device_alloc(plan->device, &squares, batch * sizeof(*notes->squares), ON_DEVICE));
    notes->squares = squares;
    ERR_TRY(device_alloc(plan->device, &pieces, bytes, ON_DEVICE));
    notes->pieces = pieces;
    return pinned_new(plan, &notes->host_pieces, bytes);
}

int blame_open(struct parallel *p, uint32_t num_notes, struct model_notes *notes)
{
    const struct rank_plan *plan = p->plan;
    struct blame *b;
    if (!plan->config->replay_blame)
        return 0;
    p->run.blame = b = calloc(1, sizeof(*b));
    if (b == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare samples");
    b->notes = notes;
    b->num_notes = num_notes;
    b->batch = (uint32_t)plan->config->local_batch_size;
    b->named_leaf = LEAF_NONE;
    ERR_TRY(take_host(b, plan));
    return take_squares(notes, plan, b->batch);
}

void blame_close(struct blame *b, struct device *device)
{
    if (b == NULL)
        return;
    device_free(device, b->squares);
    device_free(device, b->notes->squares);
    device_free(device, b->notes->pieces);
    device_free(device, b->notes->host_pieces);
    free(b->notes->samples);
    free(b->names);
    free(b->reach);
    free(b->values);
    free(b);
}

void blame_is_named(struct blame *b, uint32_t leaf)
{
    b->named_leaf = leaf;
}

/* ---- during the step ---- */

static int64_t *reach_of(const struct blame *b, uint32_t micro_step, uint32_t note)
{
    return b->reach + ((size_t)micro_step * b->num_notes + note) * b->batch;
}

int blame_add_notes(struct parallel *p, const struct op *op, uint32_t first,
                    const struct model_notes *notes, const struct kernel_extent *extents)
{
    struct blame *b = p->run.blame;
    for (uint32_t i = 0; i < notes->num; i++) {
        const struct model_note *note = &notes->of[i];
        int64_t *reach = reach_of(b, op->leaf, first + i);
        memcpy(b->names[first + i].module, note->module, sizeof(note->module));
        b->names[first + i].what = note->what;
        for (uint32_t k = note->first; k < note->first + note->num; k++) {
            uint32_t sample = notes->samples[k], bits = extents[k].largest;
            bits = bits > LEAST_BITS ? bits : LEAST_BITS;
            if (sample != MODEL_NO_SAMPLE && bits > reach[sample])
                reach[sample] = bits;
        }
    }
    if (!notes->has_squares)
        return 0;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    lane_copy(p->plan->lane, b->squares + (size_t)leaf * b->batch, notes->squares,
              b->batch * sizeof(*b->squares));
    return lane_settle(p->plan->lane);
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

/* Gives each rank of the group the greatest numbers of all of them. NULL: a group of one. */
static int take_greatest(struct blame *b, struct comm *comm, int64_t *of, size_t num)
{
    if (comm == NULL)
        return 0;
    memset(b->parts, 0, comm->size * num * sizeof(*b->parts));
    memcpy(b->parts + comm->rank * num, of, num * sizeof(*of));
    ERR_TRY(comm_all_reduce_i64(comm, b->parts, comm->size * num));
    for (size_t i = 0; i < comm->size * num; i++)
        of[i % num] = b->parts[i] > of[i % num] ? b->parts[i] : of[i % num];
    return 0;
}

static void sum_notes(struct blame *b, uint32_t micro_step)
{
    const int64_t *reach = reach_of(b, micro_step, 0);
    for (uint32_t note = 0; note < b->num_notes; note++)
        for (uint32_t i = 0; i < b->batch; i++) {
            b->sums[2 * note] += reach[note * b->batch + i];
            b->sums[2 * note + 1] += reach[note * b->batch + i] != 0;
        }
}

/* Ranks of tp and of cp have parts of the same tensors. */
static int compare_notes(struct parallel *p)
{
    struct blame *b = p->run.blame;
    struct comm *const *of = p->plan->mesh.of;
    size_t each = (size_t)b->num_notes * b->batch;
    memset(b->sums, 0, 2 * (size_t)b->num_notes * sizeof(*b->sums));
    for (uint32_t i = 0; i < leaves_micro_steps(&p->exchange.leaves); i++) {
        ERR_TRY(take_greatest(b, of[GROUP_TP], reach_of(b, i, 0), each));
        ERR_TRY(take_greatest(b, of[GROUP_CP], reach_of(b, i, 0), each));
        sum_notes(b, i);
    }
    return of[GROUP_DATA] != NULL
               ? comm_all_reduce_i64(of[GROUP_DATA], b->sums, 2 * (size_t)b->num_notes)
               : 0;
}

/* The distance of a sample's bits above the mean of all samples. */
static int64_t above_mean(const struct blame *b, const int64_t *reach, uint32_t note)
{
    int64_t bits = reach[note * b->batch];
    return bits != 0 ? bits - b->sums[2 * note] / b->sums[2 * note + 1] : 0;
}

static void describe(const struct parallel *p, const int64_t *reach, uint32_t note,
                     struct blamed_module *out)
{
    const struct blame *b = p->run.blame;
    const struct comm *world = p->plan->mesh.world;
    snprintf(out->what, sizeof(out->what), "%s", b->names[note].what);
    memcpy(out->name, b->names[note].module, sizeof(out->name));
    out->reach = extent_value((uint32_t)reach[note * b->batch]);
    out->mean = extent_value((uint32_t)(b->sums[2 * note] / b->sums[2 * note + 1]));
    out->rank = world->rank;
    out->stage = world->rank / (world->size / p->plan->mesh.degree[AXIS_PP]);
}

/* The tensor in which the sample is farthest out of line. Of tensors that are as far, all meshes
 * take the first of the step, and of ranks that have it the first. */
static int find_module(struct parallel *p, uint32_t sample, struct blamed_module *out)
{
    struct blame *b = p->run.blame;
    struct comm *world = p->plan->mesh.world;
    uint32_t data_rank, micro_step, most = 0, last_note = b->num_notes - 1, last = world->size - 1;
    ERR_TRY(compare_notes(p));
    leaves_find(&p->exchange.leaves, sample / b->batch, &data_rank, &micro_step);
    const int64_t *reach = reach_of(b, micro_step, 0) + sample % b->batch;
    for (uint32_t note = 0; note < b->num_notes; note++)
        most = above_mean(b, reach, note) > above_mean(b, reach, most) ? note : most;
    int64_t above = data_rank == my_data_rank(p->plan) ? above_mean(b, reach, most) : 0, found = 0;
    if (above > 0)
        found = (above * b->num_notes + last_note - most) * world->size + last - world->rank;
    ERR_TRY(take_greatest(b, world, &found, 1));
    if (found == 0)
        return 0;
    uint32_t rank = last - (uint32_t)(found % world->size);
    if (world->rank == rank)
        describe(p, reach, most, out);
    return comm_broadcast(world, out, sizeof(*out), rank);
}

int parallel_blame(struct parallel *p, struct step_blame *out)
{
    *out = (struct step_blame){.is_named = p->run.blame->named_leaf != LEAF_NONE};
    ERR_TRY(find_samples(p, out));
    return out->is_named ? 0 : find_module(p, out->gradient.sample, &out->module);
}
