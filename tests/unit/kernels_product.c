/* kernels_product.c - our own products, bit by bit.
 *
 * Goal: panels, strips, tiles, cuts and threads do not affect the result: an element is one chain
 * over the contraction in order. Method: plain C with fmaf() beside the kernels at shapes that end
 * within a strip, a panel, a group of columns and a depth. Chained (kernels_chain_products), the
 * chain begins with the old value; otherwise the old value is added at its end, and without fused
 * instructions the product is rounded first (sse2). */
#include <math.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/unit/kernels_cases.h"
#include "tests/unit/suite.h"

/* A layer: [rows,in] and weights [out,in]. */
struct product {
    uint32_t rows, in, out;
};
static const struct product shapes[] = {
    {1, 1, 1},     {5, 7, 3},      {6, 16, 8},   {97, 50, 33},
    {100, 97, 95}, {33, 300, 530}, {4, 40, 961}, {9, 4500, 49},
};
#define NUM_PRODUCTS (sizeof(shapes) / sizeof(shapes[0]))

enum kind { FORWARD, INPUT, INPUT_ADDED, WEIGHT, WEIGHT_ADDED, NUM_KINDS };

struct how {
    const char *isa;
    uint32_t threads;
    bool is_chained, is_fused, is_bf16; /* operands of bf16; the result is of floats all the same */
};

/* The operands, and the old values of the output. */
struct operands {
    float *x, *w, *out; /* [rows,in], [out,in], [rows,out] */
};

static float *numbers(size_t count, uint32_t seed)
{
    float *p = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    return p;
}

static float *numbers_of(const struct how *how, size_t count, uint32_t seed)
{
    float *p = numbers(count, seed);
    for (size_t i = 0; i < count && how->is_bf16; i++)
        p[i] = value_of(&(uint16_t){bf16_of(p[i])}, 0, KERNEL_BF16);
    return p;
}

static struct operands make(const struct how *how, const struct product *s)
{
    return (struct operands){numbers_of(how, (size_t)s->rows * s->in, 1),
                             numbers_of(how, (size_t)s->out * s->in, 2),
                             numbers_of(how, (size_t)s->rows * s->out, 3)};
}

/* The same numbers in the type of the operands. */
static void *typed(const struct how *how, const float *from, size_t count)
{
    char *p = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    assert_non_null(p);
    memcpy(p, from, count * sizeof(float));
    for (size_t i = 0; i < count && how->is_bf16; i++)
        ((uint16_t *)p)[i] = bf16_of(from[i]);
    return p;
}

static void release(struct operands *o)
{
    free(o->x);
    free(o->w);
    free(o->out);
}

static float step(const struct how *how, float a, float b, float sum)
{
    volatile float product = a * b; /* a separate rounding, whatever the compiler prefers */
    return how->is_fused ? fmaf(a, b, sum) : product + sum;
}

/* One element: of k values, `a` and `b` apart from the next ones. */
static float chain(const struct how *how, const float *a, size_t a_step, const float *b,
                   size_t b_step, size_t k, float there)
{
    bool begins_there = how->is_chained && !how->is_bf16;
    float sum = begins_there ? there : 0;
    for (size_t l = 0; l < k; l++)
        sum = step(how, a[l * a_step], b[l * b_step], sum);
    return begins_there ? sum : sum + there;
}

/* The result in plain C, in the place that the kernel writes. */
static void by_definition(const struct how *how, enum kind kind, const struct product *s,
                          const struct operands *o)
{
    bool is_added = kind == INPUT_ADDED || kind == WEIGHT_ADDED;
    if (kind == FORWARD)
        for (size_t r = 0; r < s->rows; r++)
            for (size_t j = 0; j < s->out; j++)
                o->out[r * s->out + j] =
                    chain(how, o->x + r * s->in, 1, o->w + j * s->in, 1, s->in, 0);
    else if (kind == INPUT || kind == INPUT_ADDED)
        for (size_t r = 0; r < s->rows; r++)
            for (size_t i = 0; i < s->in; i++)
                o->x[r * s->in + i] = chain(how, o->out + r * s->out, 1, o->w + i, s->in, s->out,
                                            is_added ? o->x[r * s->in + i] : 0);
    else
        for (size_t j = 0; j < s->out; j++)
            for (size_t i = 0; i < s->in; i++)
                o->w[j * s->in + i] = chain(how, o->out + j, s->out, o->x + i, s->in, s->rows,
                                            is_added ? o->w[j * s->in + i] : 0);
}

static void by_kernel(const struct engine *e, const struct how *how, enum kind kind,
                      const struct product *s, const struct operands *o)
{
    enum kernel_dtype dtype = how->is_bf16 ? KERNEL_BF16 : KERNEL_F32;
    void *x = typed(how, o->x, (size_t)s->rows * s->in);
    void *w = typed(how, o->w, (size_t)s->out * s->in);
    void *dout = typed(how, o->out, (size_t)s->rows * s->out);
    if (kind == FORWARD)
        POST(e->kernels, e->lane, linear, .out = o->out, .x = x, .w = w, .rows = s->rows,
             .in = s->in, .out_dim = s->out, .dtype = dtype, .is_partial = true);
    else if (kind == INPUT || kind == INPUT_ADDED)
        POST(e->kernels, e->lane, linear_backward_input, .dx = o->x, .dout = dout, .w = w,
             .rows = s->rows, .in = s->in, .out_dim = s->out, .accumulate = kind == INPUT_ADDED,
             .dtype = dtype, .is_partial = true);
    else
        POST(e->kernels, e->lane, linear_backward_weight, .dw = o->w, .dout = dout, .x = x,
             .rows = s->rows, .in = s->in, .out_dim = s->out, .accumulate = kind == WEIGHT_ADDED,
             .dtype = dtype);
    lane_settle(e->lane);
    free(x);
    free(w);
    free(dout);
}

static void compare(const struct engine *e, const struct how *how, enum kind kind,
                    const struct product *s)
{
    struct operands got = make(how, s), want = make(how, s);
    by_kernel(e, how, kind, s, &got);
    by_definition(how, kind, s, &want);
    bool is_same = memcmp(got.x, want.x, sizeof(float) * s->rows * s->in) == 0 &&
                   memcmp(got.w, want.w, sizeof(float) * s->out * s->in) == 0 &&
                   memcmp(got.out, want.out, sizeof(float) * s->rows * s->out) == 0;
    if (!is_same)
        print_message("%s, kind %d, rows %u, in %u, out %u\n", how->isa, kind, s->rows, s->in,
                      s->out);
    assert_true(is_same);
    release(&got);
    release(&want);
}

static void compare_all(const struct how *how)
{
    struct engine e = {0};
    struct kernels_options options = {.num_threads = how->threads, .isa = how->isa};
    if (kernels_new(&e.kernels, &options) != 0) {
        print_message("this CPU has no %s\n", how->isa);
        return;
    }
    if (how->is_chained)
        assert_int_equal(kernels_chain_products(e.kernels), 0);
    engine_lane(&e, new_lane());
    for (size_t i = 0; i < NUM_PRODUCTS; i++)
        for (enum kind kind = FORWARD; kind < NUM_KINDS; kind++)
            compare(&e, how, kind, &shapes[i]);
    free_engine(&e);
}

TEST(test_product__chained_is_one_chain_that_begins_with_what_is_there)
{
    compare_all(&(struct how){"avx2", 1, true, true, false});
    compare_all(&(struct how){"avx2", 3, true, true, false});
    compare_all(&(struct how){"avx512", 1, true, true, false});
    compare_all(&(struct how){"avx512", 3, true, true, false});
}

TEST(test_product__of_a_level_by_name_is_one_chain_that_is_added_at_its_end)
{
    compare_all(&(struct how){"avx2", 2, false, true, false});
    compare_all(&(struct how){"sse2", 2, false, false, false});
    compare_all(&(struct how){"avx2", 2, false, true, true});
    compare_all(&(struct how){"avx512", 2, true, true, true});
    compare_all(&(struct how){"sse2", 2, false, false, true});
}

/* A leaf's own product and its fold, against both in one. */
static void compare_folded(const struct engine *e, const struct how *how, const struct product *s)
{
    struct operands o = make(how, s);
    size_t count = (size_t)s->out * s->in;
    float *leaf = numbers(count, 4), *want = numbers(count, 5), *got = numbers(count, 5);
    void *x = typed(how, o.x, (size_t)s->rows * s->in);
    void *dout = typed(how, o.out, (size_t)s->rows * s->out);
    struct kernel_linear_backward_weight args = {.dw = leaf,
                                                 .dout = dout,
                                                 .x = x,
                                                 .rows = s->rows,
                                                 .in = s->in,
                                                 .out_dim = s->out,
                                                 .dtype = how->is_bf16 ? KERNEL_BF16 : KERNEL_F32};
    kernel_linear_backward_weight(e->kernels, e->lane, &args);
    POST(e->kernels, e->lane, fold, .acc = want, .leaf = leaf, .count = count);
    args.dw = got;
    args.is_folded = true;
    kernel_linear_backward_weight(e->kernels, e->lane, &args);
    lane_settle(e->lane);
    assert_memory_equal(got, want, count * sizeof(float));
    release(&o);
    free(leaf);
    free(want);
    free(got);
    free(x);
    free(dout);
}

TEST(test_product__that_is_folded_has_the_bits_of_a_leaf_and_its_fold)
{
    static const struct how hows[] = {
        {NULL, 2, false, true, false}, /* by the library */
        {NULL, 3, false, true, true},     {"avx2", 3, true, true, false},
        {"avx512", 2, true, true, false}, {"avx2", 2, false, true, true},
        {"sse2", 2, false, false, false}};
    static const struct product deep = {4500, 9, 49};
    for (size_t h = 0; h < sizeof(hows) / sizeof(hows[0]); h++) {
        struct engine e = {0};
        struct kernels_options options = {.num_threads = hows[h].threads, .isa = hows[h].isa};
        if (kernels_new(&e.kernels, &options) != 0)
            continue;
        if (hows[h].is_chained)
            assert_int_equal(kernels_chain_products(e.kernels), 0);
        engine_lane(&e, new_lane());
        for (size_t i = 0; i < NUM_PRODUCTS; i++)
            if (hows[h].isa != NULL || shapes[i].in <= 300) /* the lane's scratch is for that */
                compare_folded(&e, &hows[h], &shapes[i]);
        compare_folded(&e, &hows[h], &deep);
        free_engine(&e);
    }
}

/* Deeper than is packed at a time for floats: a result of bf16 is that of floats, rounded. */
TEST(test_product__of_bf16_is_rounded_once_however_deep)
{
    enum { ROW = 5000, OUT = 50 };
    static _Alignas(64) uint16_t w[OUT * ROW], x[ROW], got[OUT];
    static _Alignas(64) float wide[OUT];
    struct engine e = level_engine(2, 1); /* sse2, which every CPU has */
    float *values = numbers(OUT * ROW, 1);
    for (size_t i = 0; i < OUT * ROW; i++)
        w[i] = bf16_of(values[i]);
    memcpy(x, w + ROW, sizeof(x));
    struct kernel_linear product = {
        .out = got, .x = x, .w = w, .rows = 1, .in = ROW, .out_dim = OUT, .dtype = KERNEL_BF16};
    kernel_linear(e.kernels, e.lane, &product);
    product.out = wide;
    product.is_partial = true;
    kernel_linear(e.kernels, e.lane, &product);
    lane_settle(e.lane);
    for (int i = 0; i < OUT; i++)
        assert_int_equal(got[i], bf16_of(wide[i]));
    free(values);
    free_engine(&e);
}

TEST(test_product__without_fused_instructions_there_are_no_chains)
{
    struct kernels *kernels = NULL;
    struct kernels_options options = {.num_threads = 1, .isa = "sse2"};
    assert_int_equal(kernels_new(&kernels, &options), 0);
    assert_int_equal(kernels_chain_products(kernels), ERR_INVALID);
    kernels_free(kernels);
}

SUITE(NULL, NULL)
