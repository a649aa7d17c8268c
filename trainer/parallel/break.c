/* break.c - finds where the numbers of a step stopped being finite (contract in parallel.h).
 *
 * Costs nothing until the caller asks. Weights that are not finite come first: they make all other
 * numbers so. All ranks know the losses of all leaves: the first that is not finite gives the rank
 * that computed it. If all losses are finite, a backward made the first such number and passed it
 * to the earlier tensors. Each rank then checks its sums of gradients tensor by tensor; the tensor
 * nearest to the loss is named. */
#include "proto/base/report.h"
#include "trainer/parallel/execution.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first rank, in tensor and context parallel, of a leaf's last stage. */
static uint32_t rank_of_leaf(const struct parallel *p, uint32_t data_rank)
{
    const uint32_t *degree = p->plan->mesh.degree;
    uint32_t inner = degree[AXIS_CP] * degree[AXIS_TP];
    return ((degree[AXIS_PP] - 1) * num_data_ranks(p->plan) + data_rank) * inner;
}

static bool find_loss(const struct parallel *p, struct step_break *out)
{
    for (uint32_t leaf = 0; leaf < p->exchange.leaves.num; leaf++) {
        uint32_t data_rank, micro_step;
        if (isfinite(loss_of_leaf(p, leaf)))
            continue;
        leaves_find(&p->exchange.leaves, leaf, &data_rank, &micro_step);
        *out = (struct step_break){.rank = rank_of_leaf(p, data_rank),
                                   .stage = p->plan->mesh.degree[AXIS_PP] - 1,
                                   .is_loss = true,
                                   .leaf = leaf};
        return true;
    }
    return false;
}

/* An exact sum of squares is finite if all numbers are. */
static int is_finite_here(struct parallel *p, const struct state_slice *slice, bool is_weight,
                          bool *out)
{
    lane_zero(p->plan->lane, &p->run.numbers->squares, sizeof(p->run.numbers->squares));
    if (is_weight)
        reduce_sum_weights(&p->exchange, &p->run.numbers->squares, slice);
    else
        reduce_sum_squares(&p->exchange, &p->run.numbers->squares, slice->tensor);
    lane_copy(p->plan->lane, &p->run.host_numbers->squares, &p->run.numbers->squares,
              sizeof(p->run.numbers->squares));
    ERR_TRY(lane_settle(p->plan->lane));
    *out = isfinite(kernel_exact_value(&p->run.host_numbers->squares));
    return 0;
}

/* `broken` [num_tensors]: the number of ranks with rows of the tensor that are not finite. */
static int count_broken(struct parallel *p, bool is_weight, int64_t *broken)
{
    for (uint32_t i = 0; i < p->state.num_slices; i++) {
        const struct state_slice *slice = &p->state.slices[i];
        bool is_finite = true;
        ERR_TRY(is_finite_here(p, slice, is_weight, &is_finite));
        broken[slice->tensor - p->plan->table->tensors] = !is_finite;
    }
    return 0;
}

/* Names the model's first tensor of weights, or the tensor of gradients nearest to the loss.
 * `broken` [2][num_tensors]. */
static int find_tensor(struct parallel *p, bool is_weight, int64_t *broken, struct step_break *out)
{
    struct comm *world = p->plan->mesh.world;
    uint32_t num = p->plan->table->num_tensors, found = num;
    bool is_mine;
    ERR_TRY(count_broken(p, is_weight, broken));
    memcpy(broken + num, broken, num * sizeof(*broken));
    ERR_TRY(comm_all_reduce_i64(world, broken, num));
    *out = (struct step_break){.rank = world->rank, .is_weight = is_weight};
    for (uint32_t i = 0; i < num; i++) {
        out->num_tensors += broken[i] > 0;
        found = broken[i] > 0 && (found == num || !is_weight) ? i : found;
    }
    is_mine = found < num && broken[num + found] != 0;
    int rc = parallel_agree_quietly(world, is_mine ? ERR_INVALID : 0, &out->rank);
    if (rc != 0 && rc != ERR_INVALID)
        return rc;
    out->stage = out->rank / (world->size / p->plan->mesh.degree[AXIS_PP]);
    if (found < num)
        strcpy(out->tensor, p->plan->table->tensors[found].name);
    return 0;
}

int parallel_find_break(struct parallel *p, struct step_break *out)
{
    uint32_t num = p->plan->table->num_tensors;
    int64_t *broken = calloc(4 * (size_t)num, sizeof(*broken));
    if (broken == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to look for what is not finite");
    int rc = find_tensor(p, true, broken, out);
    if (rc == 0 && out->num_tensors == 0 && !find_loss(p, out))
        rc = find_tensor(p, false, broken + 2 * (size_t)num, out);
    free(broken);
    return rc;
}
