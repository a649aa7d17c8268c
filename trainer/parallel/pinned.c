/* pinned.c - what the host writes or reads and lanes copy: tokens, losses, the numbers of a step;
 * and where the state lies. */
#include "proto/base/report.h"
#include "trainer/base/memory_plan.h"
#include "trainer/parallel/private.h"

#include <string.h>

int pinned_new(struct parallel *p, void *out, size_t bytes)
{
    void *at = NULL;
    ERR_TRY(device_alloc(p->device, &at, bytes, PINNED));
    memset(at, 0, bytes);
    memcpy(out, &at, sizeof(at));
    return 0;
}

/* ---- tokens ---- */

/* The numbers of a leaf lie in one piece, list after list. */
static size_t lists_of_tokens(const struct parallel *p)
{
    return 2 + p->config->document_mask + (p->cut.tp > 1 ? 3 : 0);
}

static size_t rows_of_leaf(const struct parallel *p)
{
    return (size_t)p->config->local_batch_size * (size_t)p->config->seq_len;
}

static struct tokens cut_tokens(const struct parallel *p, int32_t *at, size_t rows)
{
    struct tokens out = {.inputs = at, .targets = at + rows};
    at += 2 * rows;
    if (p->config->document_mask) {
        out.starts = at;
        at += rows;
    }
    if (p->cut.tp > 1) {
        out.own = at;
        out.own_or_other = at + rows;
        out.owners = at + 2 * rows;
    }
    return out;
}

void pinned_take_tokens(struct parallel *p)
{
    size_t rows = rows_of_leaf(p) / p->cut.cp;
    for (uint32_t i = 0; i < p->num_reads; i++) {
        int32_t *at =
            memory_take(p->memory, "tokens", i, lists_of_tokens(p) * rows * sizeof(int32_t));
        if (at != NULL)
            p->tokens[i].device = cut_tokens(p, at, rows);
    }
}

/* ---- all of them ---- */

int pinned_take(struct parallel *p)
{
    size_t rows = rows_of_leaf(p), lists = lists_of_tokens(p) * sizeof(int32_t);
    int32_t *at = NULL;
    for (uint32_t i = 0; i < p->num_reads; i++) {
        ERR_TRY(pinned_new(p, &at, lists * rows / p->cut.cp));
        p->tokens[i].host = cut_tokens(p, at, rows / p->cut.cp);
    }
    ERR_TRY(pinned_new(p, &at, lists * rows));
    p->raw = cut_tokens(p, at, rows);
    if (has_codes(p))
        ERR_TRY(pinned_new(p, &p->host_largest,
                           (p->mesh.degree[AXIS_SHARD] + 1) * p->num_codes * sizeof(uint32_t)));
    ERR_TRY(pinned_new(p, &p->host_numbers, sizeof(*p->host_numbers)));
    ERR_TRY(pinned_new(p, &p->state.host_update, state_update_bytes(p->state.num_slices)));
    lane_zero(p->lane, p->state.param, state_bytes(&p->state, STATE_PARAM));
    lane_zero(p->lane, p->state.exp_avg, state_bytes(&p->state, STATE_EXP_AVG));
    lane_zero(p->lane, p->state.exp_avg_sq, state_bytes(&p->state, STATE_EXP_AVG_SQ));
    return lane_settle(p->lane);
}

void pinned_free(struct parallel *p)
{
    if (p->device == NULL)
        return;
    void *const all[] = {p->losses,       p->all_losses,        p->raw.inputs,
                         p->host_numbers, p->state.host_update, p->host_largest};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        device_free(p->device, all[i]);
    for (uint32_t i = 0; p->tokens != NULL && i < p->num_reads; i++)
        device_free(p->device, p->tokens[i].host.inputs);
}

/* ---- the state ---- */

void *state_at(const struct state *state, enum state_part part, size_t at)
{
    void *const parts[NUM_STATE_PARTS] = {state->param, state->exp_avg, state->exp_avg_sq};
    return (char *)parts[part] + at * kernel_dtype_bytes(state_dtype(state, part));
}

bool state_is_on_host(const struct state *state)
{
    uint32_t flags = state->lane->device->ops->flags;
    return (flags & DEVICE_DRY) || ((flags & DEVICE_HOST_MEMORY) && !(flags & DEVICE_QUEUED));
}

int state_zero_moments(const struct state *state)
{
    lane_zero(state->lane, state->exp_avg, state_bytes(state, STATE_EXP_AVG));
    lane_zero(state->lane, state->exp_avg_sq, state_bytes(state, STATE_EXP_AVG_SQ));
    return lane_settle(state->lane);
}

/* First and stride are of the tensor, so are its keys. */
struct kernel_digest state_digested(const struct state *state, const struct state_slice *slice,
                                    enum state_part part)
{
    const struct state_place *place = state_place(slice, part);
    const struct box *box = &place->box;
    uint64_t columns = slice->tensor->width;
    return (struct kernel_digest){.x = state_at(state, part, place->at),
                                  .rows = box->extent[0],
                                  .width = box->extent[1],
                                  .first = box->offset[0] * columns + box->offset[1],
                                  .stride = columns,
                                  .dtype = state_dtype(state, part)};
}

void state_digest(const struct state *state, struct kernels *kernels,
                  const struct state_slice *slice, enum state_part part, uint64_t *sum)
{
    struct kernel_digest digest = state_digested(state, slice, part);
    digest.sum = sum;
    kernel_digest(kernels, state->lane, &digest);
}
