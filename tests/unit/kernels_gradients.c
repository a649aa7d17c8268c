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
    float *out, *r, *second_out, *second_r, *lse, *rstd, *cosines, *sines;
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
    POST(p->k, p->lane, rmsnorm, .out = p->out, .rstd = p->rstd, .x = p->inputs[0],
         .weight = p->inputs[1], .rows = p->s->batch * p->s->seq, .dim = p->s->dim, .eps = 1e-5f,
         .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_norm(struct problem *p, const struct kernel_shapes *s)
{
    uint32_t rows = s->batch * s->seq;
    add_input(p, (size_t)rows * s->dim);
    add_input(p, s->dim);
    set_out(p, (size_t)rows * s->dim);
    p->rstd = new_buffer(&p->run, rows, KERNEL_F32);
    p->loss(p);
    memset(p->gradients[0], 0, p->counts[0] * sizeof(float));
    POST(p->k, p->lane, rmsnorm_backward, .dx = p->gradients[0], .dweight = p->gradients[1],
         .dout = p->r, .x = p->inputs[0], .rstd = p->rstd, .weight = p->inputs[1], .rows = rows,
         .dim = s->dim, .dtype = KERNEL_F32);
}

static double linear_loss(struct problem *p)
{
    POST(p->k, p->lane, linear, .out = p->out, .x = p->inputs[0], .w = p->inputs[1],
         .rows = p->s->batch * p->s->seq, .in = p->s->dim, .out_dim = p->s->hidden,
         .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_linear(struct problem *p, const struct kernel_shapes *s)
{
    uint32_t rows = s->batch * s->seq;
    add_input(p, (size_t)rows * s->dim);
    add_input(p, (size_t)s->hidden * s->dim);
    set_out(p, (size_t)rows * s->hidden);
    POST(p->k, p->lane, linear_backward_input, .dx = p->gradients[0], .dout = p->r,
         .w = p->inputs[1], .rows = rows, .in = s->dim, .out_dim = s->hidden, .dtype = KERNEL_F32);
    POST(p->k, p->lane, linear_backward_weight, .dw = p->gradients[1], .dout = p->r,
         .x = p->inputs[0], .rows = rows, .in = s->dim, .out_dim = s->hidden, .dtype = KERNEL_F32);
}

static double linears_loss(struct problem *p)
{
    POST(p->k, p->lane, linears, .out = {p->out, p->second_out}, .x = p->inputs[0],
         .w = {p->inputs[1], p->inputs[2]}, .out_dim = {p->s->hidden, p->s->hidden}, .num = 2,
         .rows = p->s->batch * p->s->seq, .in = p->s->dim, .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count) + dot(p->second_out, p->second_r, p->out_count);
}
static void check_linears(struct problem *p, const struct kernel_shapes *s)
{
    uint32_t rows = s->batch * s->seq;
    add_input(p, (size_t)rows * s->dim);
    add_input(p, (size_t)s->hidden * s->dim);
    add_input(p, (size_t)s->hidden * s->dim);
    set_out(p, (size_t)rows * s->hidden);
    p->second_out = new_buffer(&p->run, p->out_count, KERNEL_F32);
    p->second_r = random_buffer(&p->run, p->out_count, KERNEL_F32);
    for (int i = 0; i < 2; i++)
        POST(p->k, p->lane, linear_backward_input, .dx = p->gradients[0],
             .dout = i == 0 ? p->r : p->second_r, .w = p->inputs[1 + i], .rows = rows, .in = s->dim,
             .out_dim = s->hidden, .accumulate = i > 0, .dtype = KERNEL_F32);
    POST(p->k, p->lane, linears_backward_weight, .dw = {p->gradients[1], p->gradients[2]},
         .dout = {p->r, p->second_r}, .x = p->inputs[0], .out_dim = {s->hidden, s->hidden},
         .num = 2, .rows = rows, .in = s->dim, .dtype = KERNEL_F32);
}

static double rope_loss(struct problem *p)
{
    memcpy(p->out, p->inputs[0], p->out_count * sizeof(float));
    POST(p->k, p->lane, rope, .x = p->out, .cos = p->cosines, .sin = p->sines, .batch = p->s->batch,
         .seq = p->s->seq, .heads = p->s->heads, .head_dim = p->s->head_dim, .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_rope(struct problem *p, const struct kernel_shapes *s)
{
    size_t count = ROWS * s->heads * s->head_dim;
    add_input(p, count);
    set_out(p, count);
    p->cosines = new_buffer(&p->run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    p->sines = new_buffer(&p->run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    rope_table(p->cosines, p->sines, s->seq, s->head_dim);
    memcpy(p->gradients[0], p->r, count * sizeof(float));
    POST(p->k, p->lane, rope, .x = p->gradients[0], .cos = p->cosines, .sin = p->sines,
         .batch = s->batch, .seq = s->seq, .heads = s->heads, .head_dim = s->head_dim,
         .inverse = true, .dtype = KERNEL_F32);
}

static double attention_loss(struct problem *p)
{
    POST(p->k, p->lane, attention, .out = p->out, .lse = p->lse, .q = p->inputs[0],
         .key = p->inputs[1], .value = p->inputs[2], .starts = p->starts, .batch = p->s->batch,
         .seq = p->s->seq, .heads = p->s->heads, .kv_heads = p->s->kv_heads,
         .head_dim = p->s->head_dim, .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_attention_with(struct problem *p, const struct kernel_shapes *s,
                                 bool has_documents)
{
    add_input(p, QUERIES);
    add_input(p, KEYS);
    add_input(p, KEYS);
    set_out(p, QUERIES);
    p->lse = new_buffer(&p->run, ROWS * s->heads, KERNEL_F32);
    if (has_documents)
        p->starts = document_starts(p->k, p->lane, s, &p->run);
    p->loss(p);
    POST(p->k, p->lane, attention_backward, .dq = p->gradients[0], .dkey = p->gradients[1],
         .dvalue = p->gradients[2], .dout = p->r, .out = p->out, .lse = p->lse, .q = p->inputs[0],
         .key = p->inputs[1], .value = p->inputs[2], .starts = p->starts, .batch = s->batch,
         .seq = s->seq, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim,
         .dtype = KERNEL_F32);
}
static void check_attention(struct problem *p, const struct kernel_shapes *s)
{
    check_attention_with(p, s, false);
}
static void check_attention_documents(struct problem *p, const struct kernel_shapes *s)
{
    check_attention_with(p, s, true);
}

static double swiglu_loss(struct problem *p)
{
    POST(p->k, p->lane, swiglu, .out = p->out, .gate = p->inputs[0], .up = p->inputs[1],
         .count = p->out_count, .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_swiglu(struct problem *p, const struct kernel_shapes *s)
{
    size_t count = ROWS * s->hidden;
    add_input(p, count);
    add_input(p, count);
    set_out(p, count);
    POST(p->k, p->lane, swiglu_backward, .dgate = p->gradients[0], .dup = p->gradients[1],
         .dout = p->r, .gate = p->inputs[0], .up = p->inputs[1], .count = count,
         .dtype = KERNEL_F32);
}

static double cross_entropy_loss(struct problem *p)
{
    uint32_t rows = p->s->batch * p->s->seq;
    memcpy(p->out, p->inputs[0], p->out_count * sizeof(float));
    POST(p->k, p->lane, cross_entropy, .losses = p->lse, .logits = p->out, .targets = p->ids,
         .rows = rows, .vocab = p->s->vocab, .scale = &(float){1}, .dtype = KERNEL_F32);
    double sum = 0;
    for (uint32_t n = 0; n < rows; n++)
        sum += (double)p->lse[n];
    return sum;
}
static void check_cross_entropy(struct problem *p, const struct kernel_shapes *s)
{
    size_t count = ROWS * s->vocab;
    add_input(p, count);
    set_out(p, count);
    p->lse = new_buffer(&p->run, ROWS, KERNEL_F32);
    p->ids = random_ids(&p->run, ROWS, s->vocab, true);
    p->loss(p);
    memcpy(p->gradients[0], p->out, count * sizeof(float));
}

static double embedding_loss(struct problem *p)
{
    POST(p->k, p->lane, embedding, .out = p->out, .tokens = p->ids, .table = p->inputs[0],
         .rows = p->s->batch * p->s->seq, .dim = p->s->dim, .dtype = KERNEL_F32);
    return dot(p->out, p->r, p->out_count);
}
static void check_embedding(struct problem *p, const struct kernel_shapes *s)
{
    add_input(p, (size_t)s->vocab * s->dim);
    set_out(p, ROWS * s->dim);
    p->ids = random_ids(&p->run, ROWS, s->vocab, false);
    POST(p->k, p->lane, embedding_backward, .dtable = p->gradients[0], .tokens = p->ids,
         .dout = p->r, .rows = (uint32_t)ROWS, .dim = s->dim, .vocab = s->vocab,
         .dtype = KERNEL_F32);
}

static const struct {
    const char *name;
    double (*loss)(struct problem *);
    void (*check)(struct problem *, const struct kernel_shapes *);
    uint64_t seed;
} operations[] = {
    {"norm", norm_loss, check_norm, 1},
    {"linear", linear_loss, check_linear, 2},
    {"linears", linears_loss, check_linears, 8},
    {"rope", rope_loss, check_rope, 3}, /* by its inverse */
    {"attention", attention_loss, check_attention, 4},
    {"attention of documents", attention_loss, check_attention_documents, 4},
    {"swiglu", swiglu_loss, check_swiglu, 5},
    {"cross entropy", cross_entropy_loss, check_cross_entropy, 6},
    {"embedding", embedding_loss, check_embedding, 7},
};
#define NUM_OPERATIONS (int)(sizeof(operations) / sizeof(operations[0]))

/* To be freed: its run. */
static struct problem problem_of(int which, const struct engine *e, int shape)
{
    struct problem p = {.k = e->kernels,
                        .lane = e->lane,
                        .s = &kernel_shapes[shape],
                        .loss = operations[which].loss,
                        .run = {.seed = operations[which].seed, .device = e->lane->device}};
    operations[which].check(&p, p.s);
    return p;
}

TEST(test_kernels__each_backward_is_the_derivative)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 2);
        for (int i = 0; e.kernels && i < NUM_OPERATIONS; i++)
            for (int shape = 1; shape < NUM_SHAPES; shape++) {
                struct problem p = problem_of(i, &e, shape);
                check_problem(&p, operations[i].name);
            }
        free_engine(&e);
    }
}

/* Between this file and the kernels (WRAP_ in mk/tests.mk). */
static bool is_posted[NUM_KERNEL_OPS];
void __real_kernel_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                       const void *args);
void __wrap_kernel_run(struct kernels *kernels, struct lane *lane, enum kernel_op op,
                       const void *args)
{
    is_posted[op] = true;
    __real_kernel_run(kernels, lane, op, args);
}

TEST(test_kernels__each_backward_operation_has_a_row)
{
    struct engine e = level_engine(TWINS, 1);
    memset(is_posted, 0, sizeof(is_posted));
    for (int i = 0; i < NUM_OPERATIONS; i++) {
        struct problem p = problem_of(i, &e, 1);
        free_run(&p.run);
    }
    for (int op = 0; op < NUM_KERNEL_OPS; op++)
        if (strstr(kernel_op_name(op), "_backward") && !is_posted[op])
            fail_msg("no row of operations[] posts %s", kernel_op_name(op));
    free_engine(&e);
}

SUITE(NULL, NULL)
