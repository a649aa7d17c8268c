/* trainer_optimizer.c - the update of a rank's shards.
 *
 * Goal: AdamW with torch's clipping, on every slice and nothing beside it. Method: a state of two
 * slices with a gap, two updates, compared with the definition in double; the clipping is read off
 * the first moment, since the parameters hardly show it (Adam does not care for the scale of a
 * gradient, so twenty steps against another program did not notice when it was missing). */
#include "tests/unit/suite.h"
#include "tests/unit/trainer_bed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 8 /* floats per buffer: elements 0, 1 and 4, 5, 6 are slices, the rest padding */

struct bed {
    struct kernels *kernels;
    struct lane *lane;
    struct config config;
    struct model_tensor norm, matrix;
    struct state_slice slices[2];
    struct state state;
    max_align_t updates[2][64]; /* struct state_update: the device's and the host's */
    float param[COUNT], exp_avg[COUNT], exp_avg_sq[COUNT], grad[COUNT];
};

static struct state_slice slice_of(const struct model_tensor *tensor, struct state_place place)
{
    return (struct state_slice){
        .tensor = tensor, .param = place, .moment = place, .grad_at = place.at};
}

static int setup(void **out)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    assert_non_null(bed);
    assert_int_equal(new_kernels(&bed->kernels, 1), 0);
    bed->lane = new_lane();
    bed->config = (struct config){
        .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 1.0};
    bed->norm.dims = 1;
    bed->matrix.dims = 2;
    bed->slices[0] = slice_of(&bed->norm, (struct state_place){.at = 0, .count = 2});
    bed->slices[1] = slice_of(&bed->matrix, (struct state_place){.at = 4, .count = 3});
    bed->state = (struct state){.num_slices = 2,
                                .slices = bed->slices,
                                .count = COUNT,
                                .param = bed->param,
                                .exp_avg = bed->exp_avg,
                                .exp_avg_sq = bed->exp_avg_sq,
                                .update = (struct state_update *)bed->updates[0],
                                .host_update = (struct state_update *)bed->updates[1],
                                .grad = bed->grad};
    for (int i = 0; i < COUNT; i++) {
        bed->param[i] = 0.5f * (float)(i - 3);
        bed->grad[i] = (float)(i % 3) - 1.25f;
    }
    *out = bed;
    return 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    free_lane(bed->lane);
    kernels_free(bed->kernels);
    free(bed);
    return 0;
}

static void update(struct bed *bed, int64_t number, double lr, double grad_norm)
{
    struct optimizer_step step = {.update = number, .lr = lr, .grad_norm = grad_norm};
    optimizer_begin(&bed->state, bed->lane, &bed->config, &step);
    optimizer_update(&bed->state, bed->kernels, bed->lane, 0);
}

static void want(double got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-6 * (1 + fabs(expected)));
}

TEST_BETWEEN(test_optimizer__two_updates_are_adamws, setup, teardown)
{
    struct bed *bed = *state;
    float before[COUNT];
    memcpy(before, bed->param, sizeof(before));
    update(bed, 1, 0.01, 0.5);
    update(bed, 2, 0.02, 0.5);
    for (int i = 0; i < COUNT; i++) {
        double p = before[i], g = bed->grad[i], m = 0, v = 0;
        for (int n = 1; n <= 2; n++) {
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            double hat = m / (1 - pow(0.9, n)) / (sqrt(v / (1 - pow(0.95, n))) + 1e-8);
            p -= 0.01 * n * (hat + 0.1 * p);
        }
        bool is_padding = i == 2 || i == 3 || i == 7;
        want(bed->param[i], is_padding ? before[i] : p);
        want(bed->exp_avg[i], is_padding ? 0 : m);
        want(bed->exp_avg_sq[i], is_padding ? 0 : v);
    }
}

TEST_BETWEEN(test_optimizer__a_gradient_above_the_norm_alone_is_scaled_down_to_it, setup, teardown)
{
    static const struct {
        double max_norm, norm, scale;
    } cases[] = {{1, 5, 1 / (5.0 + 1e-6)}, {1, 0.75, 1}, {0, 5, 1}}; /* 0: never */
    struct bed *bed = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        memset(bed->exp_avg, 0, sizeof(bed->exp_avg));
        memset(bed->exp_avg_sq, 0, sizeof(bed->exp_avg_sq));
        bed->config.max_norm = cases[i].max_norm;
        update(bed, 1, 0.01, cases[i].norm);
        want(bed->exp_avg[4], 0.1 * bed->grad[4] * cases[i].scale);
        want(bed->exp_avg_sq[4], 0.05 * pow(bed->grad[4] * cases[i].scale, 2));
    }
}

TEST_BETWEEN(test_optimizer__adam_decays_through_the_gradient, setup, teardown)
{
    struct bed *bed = *state;
    float before[COUNT];
    memcpy(before, bed->param, sizeof(before));
    bed->config.optimizer = OPTIMIZER_ADAM;
    update(bed, 1, 0.01, 0.5);
    for (int i = 4; i < 7; i++) {
        double g = bed->grad[i] + 0.1 * before[i], m = 0.1 * g, v = 0.05 * g * g;
        want(bed->exp_avg[i], m);
        want(bed->param[i], before[i] - 0.01 * (m / 0.1) / (sqrt(v / 0.05) + 1e-8));
    }
}

TEST_BETWEEN(test_optimizer__weights_of_norms_need_not_decay, setup, teardown)
{
    struct bed *bed = *state;
    float before[COUNT];
    memcpy(before, bed->param, sizeof(before));
    bed->config.no_decay_norms = true;
    update(bed, 1, 0.01, 0.5);
    for (int i = 0; i < 6; i++) {
        if (i == 2 || i == 3)
            continue;
        double g = bed->grad[i], hat = 0.1 * g / 0.1 / (sqrt(0.05 * g * g / 0.05) + 1e-8);
        want(bed->param[i], before[i] - 0.01 * (hat + (i < 2 ? 0 : 0.1 * before[i])));
    }
}

/* More tensors than one operation takes, some of them of another block, one of them empty. */
#define TENSORS (2 * KERNEL_ADAMW_PIECES + 3)
#define EACH 64u

TEST_BETWEEN(test_optimizer__a_block_of_many_tensors_is_updated_whole_and_alone, setup, teardown)
{
    struct bed *bed = *state;
    static float param[TENSORS * EACH], moments[2][TENSORS * EACH], grad[TENSORS * EACH];
    static max_align_t updates[2][256];
    struct state_slice slices[TENSORS];
    assert_true(state_update_bytes(TENSORS) <= sizeof(updates[0]));
    for (uint32_t i = 0; i < TENSORS; i++) {
        size_t count = i == 5 ? 0 : EACH - i % 3;
        slices[i] =
            slice_of(&bed->matrix, (struct state_place){.at = (size_t)i * EACH, .count = count});
        slices[i].block = i == 2 || i == 7 ? 1 : 0;
    }
    for (uint32_t i = 0; i < TENSORS * EACH; i++)
        grad[i] = (float)(i % 7) + 1;
    bed->state.slices = slices;
    bed->state.num_slices = TENSORS;
    bed->state.param = param;
    bed->state.exp_avg = moments[0];
    bed->state.exp_avg_sq = moments[1];
    bed->state.grad = grad;
    bed->state.update = (struct state_update *)updates[0];
    bed->state.host_update = (struct state_update *)updates[1];
    update(bed, 1, 0.01, 0.5);
    for (uint32_t i = 0; i < TENSORS * EACH; i++) {
        const struct state_slice *slice = &slices[i / EACH];
        bool is_in = slice->block == 0 && i % EACH < slice->param.count;
        want(moments[0][i], is_in ? 0.1 * grad[i] : 0);
        want(param[i], is_in ? -0.01 : 0);
    }
}

/* Steps of a tenth of the resolution of 8 bits: rounded to nearest, no moment would ever move. */
#define MANY 4096u
#define STEPS 60

/* One slice of MANY elements, without padding. */
static void take_many(struct bed *bed, float *param, void *exp_avg, void *exp_avg_sq, float *grad)
{
    strcpy(bed->matrix.name, "layers.0.attention.wq.weight");
    bed->slices[1] = slice_of(
        &bed->matrix, (struct state_place){.box = {.extent = {MANY / 64, 64}}, .count = MANY});
    bed->state.slices = &bed->slices[1];
    bed->state.num_slices = 1;
    bed->state.param = param;
    bed->state.exp_avg = exp_avg;
    bed->state.exp_avg_sq = exp_avg_sq;
    bed->state.grad = grad;
}

TEST_BETWEEN(test_optimizer__moments_of_bf16_keep_small_steps_on_average, setup, teardown)
{
    struct bed *bed = *state;
    static float param[MANY], grad[MANY];
    static uint16_t moments[2][MANY];
    take_many(bed, param, moments[0], moments[1], grad);
    bed->state.moments = KERNEL_BF16;
    double expected = 1;
    for (uint32_t i = 0; i < MANY; i++) {
        moments[0][i] = 0x3f80; /* 1, whose neighbours are 1 + 2^-7 and 1 - 2^-8 */
        grad[i] = 1 + 0x1p-7f;  /* a tenth of the way in each update */
    }
    for (int64_t n = 1; n <= STEPS; n++) {
        expected = 0.9 * expected + 0.1 * (1 + 0x1p-7);
        update(bed, n, 0, 0.5);
    }
    double sum = 0, stuck = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t bits = (uint32_t)moments[0][i] << 16;
        float value;
        memcpy(&value, &bits, sizeof(value));
        sum += value;
        stuck += moments[0][i] == 0x3f80;
    }
    /* One sigma of the mean of 4,096 values 2^-7 apart is 2^-7 / 128. */
    assert_true(fabs(sum / MANY - expected) < 0x1p-7 / 16);
    assert_true(stuck < 0.05 * MANY);
}

/* Parameters and both moments, in double, and as PyTorch's operations on floats leave them. */
enum { EXP_AVG, EXP_AVG_SQ, PARAM, NUM_QUANTITIES };
static double exact[NUM_QUANTITIES][MANY];
static float theirs[NUM_QUANTITIES][MANY], ours[NUM_QUANTITIES][MANY];

static void step_exactly(const struct config *c, const float *grad, int64_t n, double lr)
{
    for (uint32_t i = 0; i < MANY; i++) {
        double g = grad[i], *m = &exact[EXP_AVG][i], *v = &exact[EXP_AVG_SQ][i];
        *m = c->beta1 * *m + (1 - c->beta1) * g;
        *v = c->beta2 * *v + (1 - c->beta2) * g * g;
        double hat = *v / (1 - pow(c->beta2, (double)n));
        double update = *m / (1 - pow(c->beta1, (double)n)) / (sqrt(hat) + c->eps);
        exact[PARAM][i] -= lr * (update + c->weight_decay * exact[PARAM][i]);
    }
}

/* The operations of torch.optim.AdamW(foreach=False, fused=False), torch/optim/adam.py of PyTorch
 * 2.1 to 2.9: param.mul_(1 - lr * decay), exp_avg.lerp_(grad, 1 - beta1) (ATen/native/Lerp.h),
 * exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2), denom = (exp_avg_sq.sqrt() /
 * bias_correction2 ** 0.5).add_(eps), param.addcdiv_(exp_avg, denom, value=-lr /
 * bias_correction1): Python's numbers are doubles, which each operation rounds to float. */
static void step_as_pytorch(const struct config *c, const float *grad, int64_t n, double lr)
{
    const float decay = (float)(1 - lr * c->weight_decay), eps = (float)c->eps;
    const float rest1 = (float)(1 - c->beta1), rest2 = (float)(1 - c->beta2);
    const float beta2 = (float)c->beta2, root = (float)sqrt(1 - pow(c->beta2, (double)n));
    const float rate = (float)(-lr / (1 - pow(c->beta1, (double)n)));
    for (uint32_t i = 0; i < MANY; i++) {
        float g = grad[i], *p = &theirs[PARAM][i];
        float *m = &theirs[EXP_AVG][i], *v = &theirs[EXP_AVG_SQ][i];
        *p = *p * decay;
        *m = *m + rest1 * (g - *m);
        *v = *v * beta2;
        *v = *v + rest2 * g * g;
        float denominator = sqrtf(*v) / root + eps;
        *p = *p + rate * *m / denominator;
    }
}

/* The square of the relative distance. */
static double distance(const float *values, const double *from)
{
    double apart = 0, size = 0;
    for (uint32_t i = 0; i < MANY; i++) {
        apart += (values[i] - from[i]) * (values[i] - from[i]);
        size += from[i] * from[i];
    }
    return apart / size;
}

/* Near a normal one: the sum of four even ones. */
static float next_normal(uint32_t *noise)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *noise = *noise * 1664525u + 1013904223u;
        sum += (float)(*noise >> 8) * 0x1p-23f - 1;
    }
    return sum;
}

TEST_BETWEEN(test_optimizer__is_as_near_to_the_real_numbers_as_pytorch, setup, teardown)
{
    static const double betas[] = {0.9, 0.95, 0.99, 0.999, 0.9999};
    static const char *const names[] = {"exp_avg", "exp_avg_sq", "param"};
    static float grad[MANY];
    struct bed *bed = *state;
    uint32_t noise = 1;
    take_many(bed, ours[PARAM], ours[EXP_AVG], ours[EXP_AVG_SQ], grad);
    bed->config.max_norm = 0;
    for (size_t b = 0; b < sizeof(betas) / sizeof(betas[0]); b++) {
        double apart[NUM_QUANTITIES][2] = {{0}};
        bed->config.beta2 = betas[b];
        memset(exact, 0, sizeof(exact));
        memset(ours, 0, sizeof(ours));
        for (uint32_t i = 0; i < MANY; i++)
            exact[PARAM][i] = ours[PARAM][i] = next_normal(&noise) * 0.02f;
        memcpy(theirs, ours, sizeof(theirs));
        for (int64_t n = 1; n <= 30; n++) {
            for (uint32_t i = 0; i < MANY; i++)
                grad[i] = 1e-3f * (next_normal(&noise) + (float)(i % 2));
            step_exactly(&bed->config, grad, n, 1e-3);
            step_as_pytorch(&bed->config, grad, n, 1e-3);
            update(bed, n, 1e-3, 0.5);
            for (int q = 0; q < NUM_QUANTITIES; q++) {
                apart[q][0] += distance(ours[q], exact[q]);
                apart[q][1] += distance(theirs[q], exact[q]);
            }
        }
        for (int q = 0; q < NUM_QUANTITIES; q++)
            if (!(apart[q][0] <= apart[q][1]))
                fail_msg("beta2 %g: %s is %g away, PyTorch's %g", betas[b], names[q],
                         sqrt(apart[q][0] / 30), sqrt(apart[q][1] / 30));
    }
}

SUITE(NULL, NULL)
