/* optimizer.c - AdamW and Adam on shards.
 *
 * Each rank that holds an element's moments updates the element from the same inputs. So replicas
 * stay equal bit for bit without communication. Clipping is torch's clip_grad_norm_: the gradient
 * is scaled by min(1, max_norm / (norm + 1e-6)), in double, rounded once. Weight decay is AdamW's,
 * or with Adam a part of the gradient (L2), as in torch; it applies to all parameters, as in
 * torchtitan, or with optimizer.no_decay_norms to all but the weights of norms. The update goes
 * block by block, so that it waits only for blocks that a save has not copied. The tensors of a
 * block are one launch on a GPU.
 *
 * Moments of bf16 are rounded with noise (kernels.h). It depends on the seed, the update, the
 * tensor and the element's place in it, so moments are the same on every rank.
 *
 * training.numerics = 1: the moments are sums of two products, and 1 - beta is computed from the
 * rounded beta. Its relative error is up to 2^-25 / (1 - beta): at most 3e-4 at beta = 0.9999. 2:
 * the moments are means (kernels.h), and 1 - beta is computed in double and rounded once. */
#include "trainer/run/optimizer.h"
#include "kernels/device.h"
#include "trainer/data/random.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DECAYS, DECAYS_NOT };

#define NAME_BYTES 128u

/* The box as the kernel takes it, with the noise of the tensor. */
static void place_slice(struct kernel_adamw_piece *out, const struct state_slice *slice,
                        int64_t seed)
{
    char stream[NAME_BYTES];
    snprintf(stream, sizeof(stream), "rounding/%s", slice->tensor->name);
    struct random_key key = random_key((uint64_t)seed, stream);
    const struct box *box = &slice->moment.box;
    out->first_row = (uint32_t)box->offset[0];
    out->first_column = (uint32_t)box->offset[1];
    out->columns = (uint32_t)box->extent[1];
    memcpy(out->noise, key.key, sizeof(out->noise));
}

static void *moment_at(const struct state *state, void *moment, size_t at)
{
    return (char *)moment + at * kernel_dtype_bytes(state->moments);
}

static const void *gradient_at(const struct state *state, size_t at)
{
    return (const char *)state->grad + at * kernel_dtype_bytes(state->gradients);
}

/* The first parameter whose moments this rank holds. */
static size_t updated_at(const struct state_slice *slice)
{
    const struct box *whole = &slice->param.box, *box = &slice->moment.box;
    return slice->param.at + (box->offset[0] - whole->offset[0]) * whole->extent[1];
}

static void *copy_of(const struct state *state, const struct state_slice *slice)
{
    size_t at = updated_at(slice) * kernel_dtype_bytes(KERNEL_BF16);
    return state->copy == NULL ? NULL : (char *)state->copy + at;
}

static struct kernel_adamw_piece piece_of(const struct state *state, const struct config *config,
                                          const struct state_slice *slice)
{
    const struct state_place *moment = &slice->moment;
    bool is_norm = slice->tensor->dims == 1; /* the model has no other vectors */
    bool decays_not = is_norm && config->no_decay_norms;
    struct kernel_adamw_piece piece = {
        .param = state->param + updated_at(slice),
        .exp_avg = moment_at(state, state->exp_avg, moment->at),
        .exp_avg_sq = moment_at(state, state->exp_avg_sq, moment->at),
        .grad = gradient_at(state, slice->grad_at),
        .numbers = &state->update->numbers[decays_not ? DECAYS_NOT : DECAYS],
        .copy = copy_of(state, slice),
        .count = moment->count};
    if (state->moments == KERNEL_BF16)
        place_slice(&piece, slice, config->seed);
    return piece;
}

static void weigh(struct kernel_adamw_numbers *out, const struct config *config)
{
    float beta1 = (float)config->beta1, beta2 = (float)config->beta2;
    bool is_mean = config->numerics != 1;
    out->is_mean = is_mean;
    out->keep1 = is_mean ? 1 : beta1;
    out->keep2 = is_mean ? 1 : beta2;
    out->rest1 = is_mean ? (float)(1 - config->beta1) : 1 - beta1;
    out->rest2 = is_mean ? (float)(1 - config->beta2) : 1 - beta2;
}

/* Writes to host memory: the lane has copied the previous update's arguments. */
void optimizer_begin(struct state *state, struct lane *lane, const struct config *config,
                     const struct optimizer_step *step)
{
    double scale = 1.0;
    if (config->max_norm > 0 && config->max_norm / (step->grad_norm + 1e-6) < 1.0)
        scale = config->max_norm / (step->grad_norm + 1e-6);
    struct kernel_adamw_numbers numbers = {
        .lr = (float)step->lr,
        .eps = (float)config->eps,
        .grad_scale = (float)scale,
        .bias1 = (float)(1.0 - pow(config->beta1, (double)step->update)),
        .bias2 = (float)(1.0 - pow(config->beta2, (double)step->update)),
    };
    weigh(&numbers, config);
    uint32_t noise[4];
    random_philox(noise, 0, (uint64_t)step->update, random_key((uint64_t)config->seed, "rounding"));
    memcpy(numbers.noise, noise, sizeof(numbers.noise));
    bool is_adam = config->optimizer == OPTIMIZER_ADAM;
    for (uint32_t i = 0; i < 2; i++) {
        float decay = i == DECAYS_NOT ? 0 : (float)config->weight_decay;
        numbers.weight_decay = is_adam ? 0 : decay;
        numbers.l2 = is_adam ? decay : 0;
        state->host_update->numbers[i] = numbers;
    }
    for (uint32_t i = 0; i < state->num_slices; i++)
        state->host_update->pieces[i] = piece_of(state, config, &state->slices[i]);
    lane_copy(lane, state->update, state->host_update, state_update_bytes(state->num_slices));
}

void optimizer_update(struct state *state, struct kernels *kernels, struct lane *lane,
                      uint32_t block)
{
    struct kernel_adamw args = {.moments = state->moments, .gradients = state->gradients};
    for (uint32_t i = 0; i <= state->num_slices; i++) {
        bool is_of = i < state->num_slices && state->slices[i].block == block;
        if (args.num > 0 && (!is_of || args.num == KERNEL_ADAMW_PIECES)) {
            if (args.end[args.num - 1] > 0)
                kernel_adamw(kernels, lane, &args);
            args.num = 0;
        }
        if (!is_of)
            continue;
        if (args.num == 0)
            args.pieces = &state->update->pieces[i];
        kernel_adamw_add(&args, state->slices[i].moment.count);
    }
}
