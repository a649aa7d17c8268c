/* kernels_gradients.c - every backward function is the derivative of its forward function.
 *
 * Method: a loss is the sum over outputs of out * r with fixed random r, formed in double. Its
 * derivative along a fixed random direction of one input, from central differences with step 2^-6,
 * is compared with the dot product of that direction and the gradient that the backward function
 * gives for dout = r. One direction tests all elements of the gradient at once: an error in any of
 * them shows unless it is orthogonal to a random vector. Done in float for the best level, avx2,
 * sse2 and the plain twins. Rounding of the outputs (2^-24 of their size, over a step of 2^-5) and
 * the third derivative allow 2e-3 of the larger of |derivative| and the direction's typical effect.
 */
#include "tests/unit/kernels_cases.h"
#include "tests/unit/suite.h"

#define STEP 0x1p-6

static double dot(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static double length(const float *a, size_t count)
{
    return sqrt(dot(a, a, count));
}

/* A problem has inputs, and functions from them to a loss and to gradients. */
#define INPUTS_MAX 3
struct problem {
    struct kernels *k;
    struct lane *lane;
    const struct kernel_shapes *s;
    struct run run;
    int num_inputs;
    float *inputs[INPUTS_MAX], *gradients[INPUTS_MAX];
    size_t counts[INPUTS_MAX];
    double (*loss)(struct problem *);
    float *out, *r, *lse, *rstd, *cosines, *sines;
    size_t out_count;
    int32_t *ids;
    const int32_t *starts; /* of documents; NULL: none */
};

static void add_input(struct problem *p, size_t count)
{
    p->inputs[p->num_inputs] = random_buffer(&p->run, count, KERNEL_F32);
    p->gradients[p->num_inputs] = new_buffer(&p->run, count, KERNEL_F32);
    p->counts[p->num_inputs++] = count;
}

static void set_out(struct problem *p, size_t count)
{
    p->out = new_buffer(&p->run, count, KERNEL_F32);
    p->r = random_buffer(&p->run, count, KERNEL_F32);
    p->out_count = count;
}

static void check_input(struct problem *p, int input, const char *name)
{
    size_t count = p->counts[input];
    float *x = p->inputs[input];
    float *direction = random_buffer(&p->run, count, KERNEL_F32);
    float *kept = new_buffer(&p->run, count, KERNEL_F32);
    memcpy(kept, x, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        x[i] = kept[i] + (float)STEP * direction[i];
    double above = p->loss(p);
    for (size_t i = 0; i < count; i++)
        x[i] = kept[i] - (float)STEP * direction[i];
    double below = p->loss(p);
    memcpy(x, kept, count * sizeof(float));
    double numeric = (above - below) / (2 * STEP);
    double analytic = dot(p->gradients[input], direction, count);
    double size = length(p->gradients[input], count);
    if (!(fabs(numeric - analytic) <= 2e-3 * fmax(fabs(analytic), size))) {
        print_error("%s, %s, input %d: difference quotient %g, gradient %g, size %g\n", name,
                    kernels_describe(p->k), input, numeric, analytic, size);
        fail();
    }
}

/* Directions are scaled like the inputs, so `size` is the effect of a typical one. */
static void check_problem(struct problem *p, const char *name)
{
    for (int input = 0; input < p->num_inputs; input++)
        check_input(p, input, name);
    free_run(&p->run);
}

/* ---- The operations ---- */

static double norm_loss(struct problem *p)
{
    kernel_rmsnorm(p->k, p->lane,
                   &(struct kernel_rmsnorm){.out = p->out,
                                            .rstd = p->rstd,
                                            .x = p->inputs[0],
                                            .weight = p->inputs[1],
                                            .rows = p->s->batch * p->s->seq,
                                            .dim = p->s->dim,
                                            .eps = 1e-5f,
                                            .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_norm(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = norm_loss,
                        .run = {.seed = 1, .device = lane->device}};
    uint32_t rows = s->batch * s->seq;
    add_input(&p, (size_t)rows * s->dim);
    add_input(&p, s->dim);
    set_out(&p, (size_t)rows * s->dim);
    p.rstd = new_buffer(&p.run, rows, KERNEL_F32);
    p.loss(&p);
    memset(p.gradients[0], 0, p.counts[0] * sizeof(float));
    kernel_rmsnorm_backward(k, lane,
                            &(struct kernel_rmsnorm_backward){.dx = p.gradients[0],
                                                              .dweight = p.gradients[1],
                                                              .dout = p.r,
                                                              .x = p.inputs[0],
                                                              .rstd = p.rstd,
                                                              .weight = p.inputs[1],
                                                              .rows = rows,
                                                              .dim = s->dim,
                                                              .dtype = KERNEL_F32});
    check_problem(&p, "norm");
}

static double linear_loss(struct problem *p)
{
    kernel_linear(p->k, p->lane,
                  &(struct kernel_linear){.out = p->out,
                                          .x = p->inputs[0],
                                          .w = p->inputs[1],
                                          .rows = p->s->batch * p->s->seq,
                                          .in = p->s->dim,
                                          .out_dim = p->s->hidden,
                                          .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_linear(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = linear_loss,
                        .run = {.seed = 2, .device = lane->device}};
    uint32_t rows = s->batch * s->seq;
    add_input(&p, (size_t)rows * s->dim);
    add_input(&p, (size_t)s->hidden * s->dim);
    set_out(&p, (size_t)rows * s->hidden);
    kernel_linear_backward_input(k, lane,
                                 &(struct kernel_linear_backward_input){.dx = p.gradients[0],
                                                                        .dout = p.r,
                                                                        .w = p.inputs[1],
                                                                        .rows = rows,
                                                                        .in = s->dim,
                                                                        .out_dim = s->hidden,
                                                                        .dtype = KERNEL_F32});
    kernel_linear_backward_weight(k, lane,
                                  &(struct kernel_linear_backward_weight){.dw = p.gradients[1],
                                                                          .dout = p.r,
                                                                          .x = p.inputs[0],
                                                                          .rows = rows,
                                                                          .in = s->dim,
                                                                          .out_dim = s->hidden,
                                                                          .dtype = KERNEL_F32});
    check_problem(&p, "linear");
}

static double rope_loss(struct problem *p)
{
    memcpy(p->out, p->inputs[0], p->out_count * sizeof(float));
    kernel_rope(p->k, p->lane,
                &(struct kernel_rope){.x = p->out,
                                      .cos = p->cosines,
                                      .sin = p->sines,
                                      .batch = p->s->batch,
                                      .seq = p->s->seq,
                                      .heads = p->s->heads,
                                      .head_dim = p->s->head_dim,
                                      .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_rope(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = rope_loss,
                        .run = {.seed = 3, .device = lane->device}};
    size_t count = ROWS * s->heads * s->head_dim;
    add_input(&p, count);
    set_out(&p, count);
    p.cosines = new_buffer(&p.run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    p.sines = new_buffer(&p.run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    rope_table(p.cosines, p.sines, s->seq, s->head_dim);
    memcpy(p.gradients[0], p.r, count * sizeof(float));
    kernel_rope(k, lane,
                &(struct kernel_rope){.x = p.gradients[0],
                                      .cos = p.cosines,
                                      .sin = p.sines,
                                      .batch = s->batch,
                                      .seq = s->seq,
                                      .heads = s->heads,
                                      .head_dim = s->head_dim,
                                      .inverse = true,
                                      .dtype = KERNEL_F32});
    check_problem(&p, "rope");
}

static double attention_loss(struct problem *p)
{
    kernel_attention(p->k, p->lane,
                     &(struct kernel_attention){.out = p->out,
                                                .lse = p->lse,
                                                .q = p->inputs[0],
                                                .key = p->inputs[1],
                                                .value = p->inputs[2],
                                                .starts = p->starts,
                                                .batch = p->s->batch,
                                                .seq = p->s->seq,
                                                .heads = p->s->heads,
                                                .kv_heads = p->s->kv_heads,
                                                .head_dim = p->s->head_dim,
                                                .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_attention_with(struct kernels *k, struct lane *lane,
                                 const struct kernel_shapes *s, bool has_documents)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = attention_loss,
                        .run = {.seed = 4, .device = lane->device}};
    add_input(&p, QUERIES);
    add_input(&p, KEYS);
    add_input(&p, KEYS);
    set_out(&p, QUERIES);
    p.lse = new_buffer(&p.run, ROWS * s->heads, KERNEL_F32);
    if (has_documents)
        p.starts = document_starts(k, lane, s, &p.run);
    p.loss(&p);
    kernel_attention_backward(k, lane,
                              &(struct kernel_attention_backward){.dq = p.gradients[0],
                                                                  .dkey = p.gradients[1],
                                                                  .dvalue = p.gradients[2],
                                                                  .dout = p.r,
                                                                  .out = p.out,
                                                                  .lse = p.lse,
                                                                  .q = p.inputs[0],
                                                                  .key = p.inputs[1],
                                                                  .value = p.inputs[2],
                                                                  .starts = p.starts,
                                                                  .batch = s->batch,
                                                                  .seq = s->seq,
                                                                  .heads = s->heads,
                                                                  .kv_heads = s->kv_heads,
                                                                  .head_dim = s->head_dim,
                                                                  .dtype = KERNEL_F32});
    check_problem(&p, "attention");
}
static void check_attention(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    check_attention_with(k, lane, s, false);
    check_attention_with(k, lane, s, true);
}

static double swiglu_loss(struct problem *p)
{
    kernel_swiglu(p->k, p->lane,
                  &(struct kernel_swiglu){.out = p->out,
                                          .gate = p->inputs[0],
                                          .up = p->inputs[1],
                                          .count = p->out_count,
                                          .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_swiglu(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = swiglu_loss,
                        .run = {.seed = 5, .device = lane->device}};
    size_t count = ROWS * s->hidden;
    add_input(&p, count);
    add_input(&p, count);
    set_out(&p, count);
    kernel_swiglu_backward(k, lane,
                           &(struct kernel_swiglu_backward){.dgate = p.gradients[0],
                                                            .dup = p.gradients[1],
                                                            .dout = p.r,
                                                            .gate = p.inputs[0],
                                                            .up = p.inputs[1],
                                                            .count = count,
                                                            .dtype = KERNEL_F32});
    check_problem(&p, "swiglu");
}

static double cross_entropy_loss(struct problem *p)
{
    uint32_t rows = p->s->batch * p->s->seq;
    memcpy(p->out, p->inputs[0], p->out_count * sizeof(float));
    kernel_cross_entropy(p->k, p->lane,
                         &(struct kernel_cross_entropy){.losses = p->lse,
                                                        .logits = p->out,
                                                        .targets = p->ids,
                                                        .rows = rows,
                                                        .vocab = p->s->vocab,
                                                        .scale = &(float){1},
                                                        .dtype = KERNEL_F32});
    double sum = 0;
    for (uint32_t n = 0; n < rows; n++)
        sum += (double)p->lse[n];
    return sum;
}
static void check_cross_entropy(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = cross_entropy_loss,
                        .run = {.seed = 6, .device = lane->device}};
    size_t count = ROWS * s->vocab;
    add_input(&p, count);
    set_out(&p, count);
    p.lse = new_buffer(&p.run, ROWS, KERNEL_F32);
    p.ids = random_ids(&p.run, ROWS, s->vocab, true);
    p.loss(&p);
    memcpy(p.gradients[0], p.out, count * sizeof(float));
    check_problem(&p, "cross entropy");
}

static double embedding_loss(struct problem *p)
{
    kernel_embedding(p->k, p->lane,
                     &(struct kernel_embedding){.out = p->out,
                                                .tokens = p->ids,
                                                .table = p->inputs[0],
                                                .rows = p->s->batch * p->s->seq,
                                                .dim = p->s->dim,
                                                .dtype = KERNEL_F32});
    return dot(p->out, p->r, p->out_count);
}
static void check_embedding(struct kernels *k, struct lane *lane, const struct kernel_shapes *s)
{
    struct problem p = {.k = k,
                        .lane = lane,
                        .s = s,
                        .loss = embedding_loss,
                        .run = {.seed = 7, .device = lane->device}};
    add_input(&p, (size_t)s->vocab * s->dim);
    set_out(&p, ROWS * s->dim);
    p.ids = random_ids(&p.run, ROWS, s->vocab, false);
    kernel_embedding_backward(k, lane,
                              &(struct kernel_embedding_backward){.dtable = p.gradients[0],
                                                                  .tokens = p.ids,
                                                                  .dout = p.r,
                                                                  .rows = (uint32_t)ROWS,
                                                                  .dim = s->dim,
                                                                  .vocab = s->vocab,
                                                                  .dtype = KERNEL_F32});
    check_problem(&p, "embedding");
}

static void check_everywhere(void (*check)(struct kernels *, struct lane *,
                                           const struct kernel_shapes *))
{
    for (int i = -1; i < 3; i++) {
        enum kernel_backend backend = i < 0 ? KERNEL_BACKEND_REFERENCE : KERNEL_BACKEND_BEST;
        struct engine e = new_engine(backend, i < 0 ? NULL : isa_levels[i], 2);
        if (!e.kernels)
            continue;
        for (int shape = 1; shape < NUM_SHAPES; shape++)
            check(e.kernels, e.lane, &kernel_shapes[shape]);
        free_engine(&e);
    }
}

TEST(test_kernels__norm_backward_is_the_derivative)
{
    check_everywhere(check_norm);
}
TEST(test_kernels__linear_backward_is_the_derivative)
{
    check_everywhere(check_linear);
}
TEST(test_kernels__inverse_rope_is_the_derivative_of_rope)
{
    check_everywhere(check_rope);
}
TEST(test_kernels__attention_backward_is_the_derivative)
{
    check_everywhere(check_attention);
}
TEST(test_kernels__swiglu_backward_is_the_derivative)
{
    check_everywhere(check_swiglu);
}
TEST(test_kernels__cross_entropy_writes_the_derivative_over_the_logits)
{
    check_everywhere(check_cross_entropy);
}
TEST(test_kernels__embedding_backward_is_the_derivative)
{
    check_everywhere(check_embedding);
}

SUITE(NULL, NULL)
