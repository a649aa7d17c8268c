/* pinned.c - host memory that lanes copy to or from: tokens, losses, the numbers of a step. */
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/execution.h"

#include <string.h>

int pinned_new(const struct rank_plan *plan, void *out, size_t bytes)
{
    void *at = NULL;
    ERR_TRY(device_alloc(plan->device, &at, bytes, PINNED));
    memset(at, 0, bytes);
    memcpy(out, &at, sizeof(at));
    return 0;
}

/* ---- tokens ---- */

/* The lists of numbers of a leaf lie one after the other. */
static size_t lists_of_tokens(const struct parallel *p)
{
    return 2 + p->plan->config->document_mask + (p->plan->cut.tp > 1 ? 3 : 0);
}

static struct tokens cut_tokens(const struct parallel *p, int32_t *at, size_t rows)
{
    struct tokens out = {.inputs = at, .targets = at + rows};
    at += 2 * rows;
    if (p->plan->config->document_mask) {
        out.starts = at;
        at += rows;
    }
    if (p->plan->cut.tp > 1) {
        out.own = at;
        out.own_or_other = at + rows;
        out.owners = at + 2 * rows;
    }
    return out;
}

void pinned_take_tokens(struct parallel *p)
{
    size_t rows = rows_of_leaf(p->plan) / p->plan->cut.cp;
    for (uint32_t i = 0; i < p->plan->num_reads; i++) {
        int32_t *at =
            memory_take(p->plan->memory, "tokens", i, lists_of_tokens(p) * rows * sizeof(int32_t));
        if (at != NULL)
            p->run.tokens[i].device = cut_tokens(p, at, rows);
    }
}

/* ---- all host buffers ---- */

/* Losses of a step's leaves of this rank and of all, or of a round of an evaluation. */
static int take_losses(struct parallel *p)
{
    size_t values = leaves_micro_steps(&p->plan->leaves);
    values *= 1 + 2 * (size_t)p->plan->config->local_batch_size;
    if (values < ROUND_NUMBERS)
        values = ROUND_NUMBERS;
    size_t bytes = values * sizeof(*p->run.losses);
    if (p->plan->mesh.place[AXIS_PP] + 1 == p->plan->mesh.degree[AXIS_PP])
        ERR_TRY(pinned_new(p->plan, &p->run.row_losses,
                           leaves_micro_steps(&p->plan->leaves) * rows_of_leaf(p->plan) *
                               sizeof(*p->run.row_losses)));
    ERR_TRY(pinned_new(p->plan, &p->run.losses, bytes));
    return pinned_new(p->plan, &p->run.all_losses, num_data_ranks(p->plan) * bytes);
}

int pinned_take(struct parallel *p)
{
    size_t rows = rows_of_leaf(p->plan), lists = lists_of_tokens(p) * sizeof(int32_t);
    int32_t *at = NULL;
    for (uint32_t i = 0; i < p->plan->num_reads; i++) {
        ERR_TRY(pinned_new(p->plan, &at, lists * rows / p->plan->cut.cp));
        p->run.tokens[i].host = cut_tokens(p, at, rows / p->plan->cut.cp);
    }
    ERR_TRY(pinned_new(p->plan, &at, lists * rows));
    p->run.raw = cut_tokens(p, at, rows);
    if (has_codes(p->plan))
        ERR_TRY(pinned_new(p->plan, &p->exchange.host_largest,
                           (p->plan->mesh.degree[AXIS_SHARD] + 1) * p->plan->num_codes *
                               sizeof(uint32_t)));
    ERR_TRY(take_losses(p));
    ERR_TRY(pinned_new(p->plan, &p->run.host_numbers, sizeof(*p->run.host_numbers)));
    ERR_TRY(pinned_new(p->plan, &p->state.host_update, state_update_bytes(p->state.num_slices)));
    ERR_TRY(pinned_new(p->plan, &p->exchange.host_squares,
                       p->state.num_slices * sizeof(*p->exchange.host_squares)));
    lane_zero(p->plan->lane, p->state.param, state_bytes(&p->state, STATE_PARAM));
    lane_zero(p->plan->lane, p->state.exp_avg, state_bytes(&p->state, STATE_EXP_AVG));
    lane_zero(p->plan->lane, p->state.exp_avg_sq, state_bytes(&p->state, STATE_EXP_AVG_SQ));
    return lane_settle(p->plan->lane);
}

void pinned_free(struct parallel *p)
{
    if (p->plan->device == NULL)
        return;
    void *const all[] = {p->run.losses,
                         p->run.all_losses,
                         p->run.raw.inputs,
                         p->run.host_numbers,
                         p->state.host_update,
                         p->exchange.host_largest,
                         p->exchange.host_squares,
                         p->run.row_losses};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        device_free(p->plan->device, all[i]);
    for (uint32_t i = 0; p->run.tokens != NULL && i < p->plan->num_reads; i++)
        device_free(p->plan->device, p->run.tokens[i].host.inputs);
}
