/* state.c - a rank's part of the state: its places, bytes and digests. Initial weights are drawn on
 * the host, moments start as zeros.
 *
 * A weight's bits depend only on its place in the tensor (model/table.h), so threads draw rows in
 * parallel. A billion normal deviates take one thread about a minute. */
#include "trainer/exchange/state.h"
#include "kernels/device.h"
#include "trainer/parallel/execution.h"

#include <pthread.h>

/* ---- places and digests ---- */

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

/* First and stride are those of the tensor, and so are the keys. */
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

/* ---- bytes ---- */

/* Count of the numbers in the sums of a tensor's gradient on this rank. `twice`: the output is the
 * embedding's matrix and has separate sums (reduce_accumulator_count). */
static size_t sum_count(const struct parallel *p, const struct model_tensor *tensor)
{
    uint64_t width = width_of(p->plan, tensor);
    size_t count = 0;
    if (p->plan->is_canonical)
        count = aligned(
            piece_of(p->plan, tensor, mesh_group_place(&p->plan->mesh, GROUP_OWNERS)).rows * width);
    for (uint32_t r = 0; r < p->exchange.leaves.replicas && has_groups(p->plan); r++)
        count += aligned(piece_of(p->plan, tensor, owner_in(p->plan, r)).rows * width);
    if (p->plan->is_canonical)
        return count;
    for (uint32_t s = 0; s < p->plan->mesh.degree[AXIS_SHARD]; s++)
        count += aligned(shard_of(p->plan, tensor, s).rows * width);
    return count;
}

static size_t gradient_bytes(const struct parallel *p, const struct state_slice *slice)
{
    const struct block *blocks = p->plan->blocks;
    bool has_both =
        is_tied(p->plan) && blocks[0].is_here && blocks[p->plan->table->num_blocks].is_here;
    bool is_twice = slice->tensor->block == 0 && has_both;
    bool has_shard = p->state.grad != p->exchange.accumulators;
    size_t count = sum_count(p, slice->tensor) * (is_twice ? 2 : 1);
    return sums_bytes(&p->state, count + (has_shard ? aligned(slice->param.count) : 0));
}

struct footprint parallel_footprint(const struct parallel *p, const struct state_slice *slice)
{
    const struct rank_plan *plan = p->plan;
    uint32_t tensor = (uint32_t)(slice->tensor - plan->table->tensors);
    uint32_t copies = mesh_group_size(&plan->mesh, GROUP_COPIES);
    size_t moment = kernel_dtype_bytes(p->state.moments);
    struct footprint out = {.weights = aligned(slice->param.count) * sizeof(float),
                            .optimizer = 2 * aligned(slice->moment.count) * moment,
                            .gradients = gradient_bytes(p, slice)};
    if (p->exchange.compute_params != p->state.param)
        out.weights += codes_packed_bytes(
            plan, tensor, shard_of(plan, slice->tensor, plan->mesh.place[AXIS_SHARD]));
    out.image = slice->param.count * sizeof(float) / copies;
    out.image += 2 * slice->moment.count * moment / (p->state.is_zero ? 1 : copies);
    return out;
}

/* ---- initial state ---- */

#define THREADS_MAX 64

/* Rows of a slice that one thread draws. */
struct share {
    const struct state_slice *slice;
    float *out; /* of the slice */
    uint64_t seed;
    uint32_t index, num;
    pthread_t thread;
};

static void *draw(void *user)
{
    const struct share *share = user;
    struct box box = share->slice->param.box;
    uint64_t rows = box.extent[0], first = rows * share->index / share->num;
    box.offset[0] += first;
    box.extent[0] = rows * (share->index + 1) / share->num - first;
    model_init_box(share->out + first * box.extent[1], share->slice->tensor, &box, share->seed);
    return NULL;
}

static void draw_slice(const struct state_slice *slice, float *out, uint64_t seed, uint32_t num)
{
    struct share shares[THREADS_MAX];
    uint32_t num_started = 1;
    for (uint32_t i = 0; i < num; i++)
        shares[i] =
            (struct share){.slice = slice, .out = out, .seed = seed, .index = i, .num = num};
    while (num_started < num &&
           pthread_create(&shares[num_started].thread, NULL, draw, &shares[num_started]) == 0)
        num_started++;
    draw(&shares[0]);
    for (uint32_t i = num_started; i < num; i++) /* no thread was started for them */
        draw(&shares[i]);
    for (uint32_t i = 1; i < num_started; i++)
        pthread_join(shares[i].thread, NULL);
}

/* `staging`: host memory to draw in; NULL: draws in place. Each thread gets at least one row. */
static int init_slice(struct parallel *p, const struct state_slice *slice, float *staging,
                      uint64_t seed)
{
    const struct state_place *place = &slice->param;
    uint64_t rows = place->box.extent[0], threads = (uint64_t)p->plan->config->threads;
    uint64_t num = threads < rows ? threads : rows;
    num = num < 1 ? 1 : num < THREADS_MAX ? num : THREADS_MAX;
    float *to = p->state.param + place->at;
    draw_slice(slice, staging != NULL ? staging : to, seed, (uint32_t)num);
    if (staging == NULL)
        return 0;
    lane_copy(p->state.lane, to, staging, place->count * sizeof(*to));
    return lane_settle(p->state.lane);
}

int parallel_init_state(struct parallel *p, uint64_t seed)
{
    const struct state *state = &p->state;
    size_t most = 0;
    float *staging = NULL;
    int rc = state_zero_moments(state);
    for (uint32_t i = 0; i < state->num_slices; i++)
        if (state->slices[i].param.count > most)
            most = state->slices[i].param.count;
    if (rc == 0 && !state_is_on_host(state))
        rc = pinned_new(p->plan, &staging, most * sizeof(*staging));
    for (uint32_t i = 0; i < state->num_slices && rc == 0; i++)
        rc = init_slice(p, &state->slices[i], staging, seed);
    device_free(p->plan->device, staging);
    if (rc == 0)
        parallel_params_changed(p);
    return rc;
}
