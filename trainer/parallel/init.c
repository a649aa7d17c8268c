/* init.c - the state at its beginning: initial weights, drawn on the host, and zero moments.
 *
 * A weight's bits come from its place in the tensor alone (model/table.h), so threads draw rows
 * side by side. A billion normal deviates take one thread about a minute. */
#include "trainer/parallel/private.h"

#include <pthread.h>

#define THREADS_MAX 64

/* Rows of a slice that one thread draws. */
struct share {
    const struct state_slice *slice;
    float *out; /* the slice's */
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
    for (uint32_t i = num_started; i < num; i++) /* no thread for them */
        draw(&shares[i]);
    for (uint32_t i = 1; i < num_started; i++)
        pthread_join(shares[i].thread, NULL);
}

/* `staging` is where the host may write, NULL: right there. No thread is begun without a row. */
static int init_slice(struct parallel *p, const struct state_slice *slice, float *staging,
                      uint64_t seed)
{
    const struct state_place *place = &slice->param;
    uint64_t rows = place->box.extent[0], threads = (uint64_t)p->config->threads;
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
        rc = pinned_new(p, &staging, most * sizeof(*staging));
    for (uint32_t i = 0; i < state->num_slices && rc == 0; i++)
        rc = init_slice(p, &state->slices[i], staging, seed);
    device_free(p->device, staging);
    if (rc == 0)
        parallel_params_changed(p);
    return rc;
}
