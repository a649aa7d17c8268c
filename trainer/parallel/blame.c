/* blame.c - finds the leaf of a step, and the module, that is out of line (debug.replay_blame).
 *
 * Losses. All ranks have the losses of all leaves. Norms. A leaf's gradient is whole after its
 * backward, before it is added to other sums. Its squares are summed there exactly, block by block,
 * so all meshes have the same norm. Context parallel makes the gradient in parts: there is no norm
 * then.
 *
 * Modules. The notes of watch.c for one leaf are compared with those of all others. The mean of the
 * bits of the largest magnitudes, as integers, is about that of their logarithms. The one farthest
 * above its mean is named. A weight is the same in all leaves, so it is never out of line. With
 * tensor or context parallel a rank compares its part. */
#include "proto/base/report.h"
#include "trainer/base/median.h"
#include "trainer/parallel/execution.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_BITS 0x2b800000u /* 2^-40: smaller values, and zeros, are noise */

struct blame {
    uint32_t num_notes, num_leaves; /* of a leaf; of the longest step */
    struct note_name {
        char module[64];
        const char *what;
    } * names;       /* [num_notes] */
    uint32_t *reach; /* [micro-steps][num_notes] bits of the largest magnitude; 0: none */
    int64_t *sums;   /* [num_notes][2] the sum of those bits, and their number */
    int64_t *all;    /* [ranks] */
    struct kernel_exact_sum *squares; /* [num_leaves] */
    double *values, *sorted;          /* [num_leaves] */
    bool is_named;
};

int blame_open(struct parallel *p, uint32_t num_notes)
{
    const struct rank_plan *plan = p->plan;
    struct blame *b;
    if (!plan->config->replay_blame)
        return 0;
    p->run.blame = b = calloc(1, sizeof(*b));
    if (b == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to compare leaves");
    b->num_notes = num_notes;
    b->num_leaves = plan->leaves.num;
    b->names = calloc(b->num_notes, sizeof(*b->names));
    b->reach = calloc((size_t)leaves_micro_steps(&plan->leaves) * b->num_notes, sizeof(*b->reach));
    b->sums = calloc(2 * (size_t)b->num_notes, sizeof(*b->sums));
    b->all = calloc(plan->mesh.world->size, sizeof(*b->all));
    b->squares = calloc(b->num_leaves, sizeof(*b->squares));
    b->values = calloc(b->num_leaves, sizeof(*b->values));
    b->sorted = calloc(b->num_leaves, sizeof(*b->sorted));
    bool has_all = b->names != NULL && b->reach != NULL && b->sums != NULL && b->all != NULL &&
                   b->squares != NULL && b->values != NULL && b->sorted != NULL;
    return has_all ? 0 : report_error(ERR_MEMORY, NULL, "no memory to compare leaves");
}

void blame_close(struct blame *b)
{
    if (b == NULL)
        return;
    free(b->names);
    free(b->reach);
    free(b->sums);
    free(b->all);
    free(b->squares);
    free(b->values);
    free(b->sorted);
    free(b);
}

void blame_is_named(struct blame *b)
{
    b->is_named = true;
}

/* ---- during the step ---- */

/* Adds the squares of a block's gradient to its leaf's sum. */
static int add_squares(struct parallel *p, const struct op *op)
{
    struct blame *b = p->run.blame;
    uint32_t leaf = leaves_at(&p->exchange.leaves, my_data_rank(p->plan), op->leaf);
    struct kernel_exact_sum *sum = &p->run.numbers->squares;
    lane_zero(p->plan->lane, sum, sizeof(*sum));
    reduce_sum_leaf(&p->exchange, sum, op->block);
    lane_copy(p->plan->lane, &p->run.host_numbers->squares, sum, sizeof(*sum));
    ERR_TRY(lane_settle(p->plan->lane));
    for (uint32_t i = 0; i < KERNEL_EXACT_LIMBS; i++)
        b->squares[leaf].limb[i] += p->run.host_numbers->squares.limb[i];
    return 0;
}

int blame_add_notes(struct parallel *p, const struct op *op, uint32_t first,
                    const struct model_notes *notes, const struct kernel_extent *extents)
{
    struct blame *b = p->run.blame;
    for (uint32_t i = 0; i < notes->num; i++) {
        uint32_t bits = extents[i].largest;
        memcpy(b->names[first + i].module, notes->of[i].module, sizeof(b->names->module));
        b->names[first + i].what = notes->of[i].what;
        b->reach[(size_t)op->leaf * b->num_notes + first + i] =
            bits > LEAST_BITS ? bits : LEAST_BITS;
    }
    bool has_weights = op->kind == OP_BACKWARD || op->kind == OP_BACKWARD_WEIGHT;
    return has_weights ? add_squares(p, op) : 0;
}

/* ---- after the step ---- */

static struct leaf_value find_largest(struct blame *b, uint32_t num)
{
    struct leaf_value found = {.leaf = 0};
    uint32_t num_finite = 0;
    for (uint32_t i = 0; i < num; i++) {
        bool is_above = !(b->values[i] <= b->values[found.leaf]); /* a NaN is above */
        if (is_above && isfinite(b->values[found.leaf]))
            found.leaf = i;
        if (isfinite(b->values[i]))
            b->sorted[num_finite++] = b->values[i];
    }
    found.value = b->values[found.leaf];
    found.median = num_finite > 0 ? median_of(b->sorted, num_finite) : (double)NAN;
    return found;
}

/* The distance of a note's bits above the mean of all leaves. */
static int64_t above_mean(const struct blame *b, uint32_t micro_step, uint32_t note)
{
    int64_t bits = b->reach[(size_t)micro_step * b->num_notes + note];
    return bits != 0 ? bits - b->sums[2 * note] / b->sums[2 * note + 1] : 0;
}

static double value_of(int64_t bits)
{
    uint32_t narrow = (uint32_t)bits;
    float value;
    memcpy(&value, &narrow, sizeof(value));
    return (double)value;
}

static void name_note(const struct parallel *p, uint32_t micro_step, uint32_t note)
{
    const struct blame *b = p->run.blame;
    const struct comm *world = p->plan->mesh.world;
    log_warn("replay",
             "largest outlier: %s of %s, leaf %u, reaches %.3g, the mean of all leaves is %.3g "
             "(rank %u, stage %u)",
             b->names[note].what, b->names[note].module,
             leaves_at(&p->exchange.leaves, my_data_rank(p->plan), micro_step),
             value_of(b->reach[(size_t)micro_step * b->num_notes + note]),
             value_of(b->sums[2 * note] / b->sums[2 * note + 1]), world->rank,
             world->rank / (world->size / p->plan->mesh.degree[AXIS_PP]));
}

static void sum_notes(struct blame *b, uint32_t micro_steps)
{
    for (uint32_t note = 0; note < b->num_notes; note++)
        for (uint32_t i = 0; i < micro_steps; i++) {
            uint32_t bits = b->reach[(size_t)i * b->num_notes + note];
            b->sums[2 * note] += bits;
            b->sums[2 * note + 1] += bits != 0;
        }
}

/* The rank with the note farthest out of line logs it. */
static int name_module(struct parallel *p)
{
    struct blame *b = p->run.blame;
    struct comm *world = p->plan->mesh.world, *data = p->plan->mesh.of[GROUP_DATA];
    uint32_t micro_steps = leaves_micro_steps(&p->exchange.leaves), first = 0, step = 0, most = 0;
    sum_notes(b, micro_steps);
    if (data != NULL)
        ERR_TRY(comm_all_reduce_i64(data, b->sums, 2 * (size_t)b->num_notes));
    for (uint32_t i = 0; i < micro_steps; i++)
        for (uint32_t note = 0; note < b->num_notes; note++)
            if (above_mean(b, i, note) > above_mean(b, step, most)) {
                step = i;
                most = note;
            }
    b->all[world->rank] = above_mean(b, step, most);
    ERR_TRY(comm_all_reduce_i64(world, b->all, world->size));
    for (uint32_t rank = 1; rank < world->size; rank++)
        first = b->all[rank] > b->all[first] ? rank : first;
    if (b->all[first] <= 0 && world->rank == 0)
        log_warn("replay", "no module is an outlier: all leaves of the step reach the same values");
    else if (b->all[first] > 0 && world->rank == first)
        name_note(p, step, most);
    return 0;
}

int parallel_blame(struct parallel *p, struct step_blame *out)
{
    struct blame *b = p->run.blame;
    uint32_t num = p->exchange.leaves.num;
    if (!b->is_named)
        ERR_TRY(name_module(p));
    ERR_TRY(comm_all_reduce_i64(p->plan->mesh.world, (int64_t *)b->squares,
                                (size_t)num * KERNEL_EXACT_LIMBS));
    for (uint32_t leaf = 0; leaf < num; leaf++)
        b->values[leaf] = loss_of_leaf(p, leaf);
    out->loss = find_largest(b, num);
    for (uint32_t leaf = 0; leaf < num; leaf++)
        b->values[leaf] = sqrt(kernel_exact_value(&b->squares[leaf]));
    out->norm = find_largest(b, num);
    out->has_norm = p->plan->mesh.degree[AXIS_CP] == 1;
    return 0;
}
