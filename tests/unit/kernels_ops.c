/* kernels_ops.c - every operation against its plain C twin.
 *
 * Goal: each ISA level, with the library and with our own products, computes the same as
 * reference.c. Method: the cases of kernels_cases.h at awkward shapes, same inputs on both sides.
 * Tolerances: kernels_close.h. */
#include "tests/unit/kernels_close.h"
#include "tests/unit/suite.h"

static void compare_case(const struct engine *engine, const struct engine *reference, int which,
                         int shape, enum kernel_dtype dtype)
{
    struct run got = run_case(engine, which, kernel_shapes[shape], dtype, 0);
    struct run want = run_case(reference, which, kernel_shapes[shape], dtype, 0);
    for (int i = 0; i < want.num_outputs; i++) {
        if (!close_enough(&got.buffers[i], &want.buffers[i], dtype)) {
            say_case(kernels_describe(engine->kernels), which, &kernel_shapes[shape], dtype);
            fail();
        }
    }
    free_run(&got);
    free_run(&want);
}

TEST(test_kernels__every_level_agrees_with_the_plain_twins)
{
    struct engine reference = level_engine(TWINS, 1);
    for (int level = 0; level < TWINS; level++) {
        struct engine engine = level_engine(level, 2);
        for (int i = 0; engine.kernels && i < NUM_SHAPES * NUM_CASES * 2; i++)
            compare_case(&engine, &reference, i / 2 % NUM_CASES, i / 2 / NUM_CASES,
                         i % 2 ? KERNEL_BF16 : KERNEL_F32);
        free_engine(&engine);
    }
    free_engine(&reference);
}

TEST(test_kernels__every_operation_has_a_case)
{
    for (int op = 0; op < NUM_KERNEL_OPS; op++) {
        int which = 0;
        while (which < NUM_CASES && (int)kernel_cases[which].op != op)
            which++;
        if (which == NUM_CASES)
            fail_msg("kernel_cases[] has no case of %s", kernel_op_name(op));
    }
}

/* softmax of equal logits is known in closed form */
TEST(test_kernels__loss_of_equal_logits_is_log_of_the_vocabulary)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float losses[3], logits[3 * 40];
    int32_t targets[3] = {0, 39, -1};
    for (int i = 0; i < 120; i++)
        logits[i] = 3;
    POST(e.kernels, e.lane, cross_entropy, .losses = losses, .logits = logits, .targets = targets,
         .rows = 3, .vocab = 40, .scale = &(float){1}, .dtype = KERNEL_F32);
    assert_float_equal(losses[0], log(40), 1e-6);
    assert_float_equal(losses[1], log(40), 1e-6);
    assert_true(losses[2] == 0 && logits[80] == 0 && logits[119] == 0);
    assert_float_equal(logits[0], 1.0 / 40 - 1, 1e-6);
    assert_float_equal(logits[1], 1.0 / 40, 1e-6);
    free_engine(&e);
}

TEST(test_kernels__extreme_logits_give_finite_losses)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float loss, logits[5] = {-3e38f, 300, -200, 299, -INFINITY};
    POST(e.kernels, e.lane, cross_entropy, .losses = &loss, .logits = logits,
         .targets = (int32_t[]){2}, .rows = 1, .vocab = 5, .scale = &(float){1},
         .dtype = KERNEL_F32);
    assert_float_equal(loss, 500.313262, 1e-3);
    assert_true(logits[0] == 0 && logits[4] == 0 && logits[2] == -1);
    free_engine(&e);
}

/* The caller must see a damaged value; an operation must not smooth it away. */
TEST(test_kernels__nan_surfaces_in_loss_attention_and_norm)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 1);
        if (!e.kernels)
            continue;
        float loss, logits[40] = {0}, x[64] = {0}, out[64], rstd[1], weight[64], lse[4];
        logits[37] = NAN;
        POST(e.kernels, e.lane, cross_entropy, .losses = &loss, .logits = logits,
             .targets = (int32_t[]){3}, .rows = 1, .vocab = 40, .scale = &(float){1},
             .dtype = KERNEL_F32);
        assert_true(isnan(loss) && isnan(logits[3]));
        for (int c = 0; c < 64; c++)
            weight[c] = 1;
        x[5] = NAN;
        POST(e.kernels, e.lane, rmsnorm, .out = out, .rstd = rstd, .x = x, .weight = weight,
             .rows = 1, .dim = 64, .eps = 1e-5f, .dtype = KERNEL_F32);
        assert_true(isnan(rstd[0]) && isnan(out[63]));
        POST(e.kernels, e.lane, attention, .out = out, .lse = lse, .q = x, .key = weight,
             .value = weight, .batch = 1, .seq = 4, .heads = 1, .kv_heads = 1, .head_dim = 16,
             .dtype = KERNEL_F32);
        assert_true(isnan(out[0]) && isnan(lse[0]) && !isnan(out[16]));
        free_engine(&e);
    }
}

/* Of each parameter with each mean and square. */
#define ZERO_CASES 24
struct updated {
    _Alignas(64) float param[ZERO_CASES], exp_avg[ZERO_CASES], exp_avg_sq[ZERO_CASES];
};
static struct updated updated_by(const struct engine *e, float gradient, enum kernel_dtype moments,
                                 float l2)
{
    static const float params[] = {0, -0.0f, 1}, means[] = {0, -0.0f, 1e-3f, -0x1p-149f};
    struct updated u = {0};
    _Alignas(64) float gradients[ZERO_CASES];
    for (int i = 0; i < ZERO_CASES; i++) {
        gradients[i] = gradient;
        u.param[i] = params[i % 3];
        if (moments == KERNEL_F32) {
            u.exp_avg[i] = means[i / 3 % 4];
            u.exp_avg_sq[i] = i < ZERO_CASES / 2 ? 0 : 0.1f;
        } else {
            ((uint16_t *)u.exp_avg)[i] = bf16_of(means[i / 3 % 4]);
            ((uint16_t *)u.exp_avg_sq)[i] = bf16_of(i < ZERO_CASES / 2 ? 0 : 0.1f);
        }
    }
    struct kernel_adamw_numbers numbers = {.lr = 1e-2f,
                                           .eps = 1e-8f,
                                           .weight_decay = l2 > 0 ? 0 : 0.1f,
                                           .grad_scale = 0.5f,
                                           .keep1 = 1,
                                           .rest1 = 0.1f,
                                           .keep2 = 1,
                                           .rest2 = 0.05f,
                                           .bias1 = 0.1f,
                                           .bias2 = 0.05f,
                                           .l2 = l2,
                                           .is_mean = 1};
    struct kernel_adamw_piece piece = {.param = u.param,
                                       .exp_avg = u.exp_avg,
                                       .exp_avg_sq = u.exp_avg_sq,
                                       .grad = gradients,
                                       .numbers = &numbers,
                                       .count = ZERO_CASES,
                                       .columns = ZERO_CASES};
    struct kernel_adamw args = {.pieces = &piece, .moments = moments};
    kernel_adamw_add(&args, ZERO_CASES);
    kernel_adamw(e->kernels, e->lane, &args);
    assert_int_equal(lane_settle(e->lane), 0);
    return u;
}

/* So a sum of gradients may have either (C3 of trainer/exchange/reduce.c). */
TEST(test_kernels__a_gradient_of_minus_zero_updates_means_as_zero_does)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 1);
        for (int i = 0; e.kernels && i < 4; i++) {
            enum kernel_dtype moments = i / 2 == 0 ? KERNEL_F32 : KERNEL_BF16;
            struct updated zero = updated_by(&e, 0, moments, i % 2 ? 0.3f : 0);
            struct updated minus = updated_by(&e, -0.0f, moments, i % 2 ? 0.3f : 0);
            assert_memory_equal(&zero, &minus, sizeof(zero));
        }
        free_engine(&e);
    }
}

TEST(test_kernels__bf16_keeps_nan_and_rounds_to_even)
{
    const uint32_t in[] = {0x7f800001, 0xff800001, 0x7f800000, 0x3f808000, 0x3f818000,
                           0x3f808001, 0x7f7fffff, 0x80000000, 0x00000001};
    const uint16_t want[] = {0x7fc0, 0xffc0, 0x7f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x8000, 0};
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 1);
        if (!e.kernels)
            continue;
        uint16_t out[9];
        float values[9];
        memcpy(values, in, sizeof(in));
        POST(e.kernels, e.lane, convert, .out = out, .out_dtype = KERNEL_BF16, .in = values,
             .count = 9);
        assert_memory_equal(out, want, sizeof(want));
        free_engine(&e);
    }
}

/* The value of a code without sign, as the format defines it. */
static float float8_value(int code, int bits, int bias)
{
    int exponent = code >> bits, rest = code & ((1 << bits) - 1);
    return exponent == 0 ? ldexpf((float)rest, 1 - bias - bits)
                         : ldexpf((float)(rest + (1 << bits)), exponent - bias - bits);
}

/* Between each code and the next: a quarter goes down, the middle to the even code, the rest up. */
static void want_codes(const struct engine *e, enum kernel_float8 format, int last, int bits,
                       int bias)
{
    float in[4 * 128 + 1], want[4 * 128 + 1], out[4 * 128 + 1];
    int count = 0;
    for (int code = 0; code < last; code++) {
        float low = float8_value(code, bits, bias), high = float8_value(code + 1, bits, bias);
        float sign = code % 3 == 0 ? -1.0f : 1.0f;
        const float values[] = {low, 0.75f * low + 0.25f * high, 0.5f * (low + high),
                                0.25f * low + 0.75f * high};
        const float to[] = {low, low, code % 2 == 0 ? low : high, high};
        for (int i = 0; i < 4; i++, count++) {
            in[count] = sign * values[i];
            want[count] = sign * to[i];
        }
    }
    in[count] = want[count] = float8_value(last, bits, bias); /* the largest: the scale is 1 */
    count++;
    for (int scale = -20; scale <= 20; scale += 10) {
        for (int i = 0; i < count; i++)
            in[i] = ldexpf(in[i], scale);
        POST(e->kernels, e->lane, round_float8, .out = out, .x = in, .count = (size_t)count,
             .format = format);
        for (int i = 0; i < count; i++) {
            assert_float_equal(ldexpf(out[i], -scale), want[i], 0);
            in[i] = ldexpf(in[i], -scale);
        }
    }
}

/* The operand that a product reads is the same from codes. Tested for every code's number and the
 * midpoints between them, under the scale of another part, and for values that are not finite. */
static void want_decoded(const struct engine *e, enum kernel_dtype dtype, float largest)
{
    enum { CODE_WIDTH = 33, NUM_CODES = 16 * CODE_WIDTH };
    size_t bytes = NUM_CODES * kernel_dtype_bytes(dtype);
    float whole[NUM_CODES], numbers[NUM_CODES], want[NUM_CODES], got[NUM_CODES];
    uint8_t coded[KERNEL_CODES_AT + (NUM_CODES + 63) / 64 * 64];
    uint32_t bits;
    for (int i = 0; i < NUM_CODES; i++)
        whole[i] = (i % 2 ? -0.5f : 0.5f) *
                   (float8_value(i / 2 % 127, 3, 7) + float8_value((i + 1) / 2 % 127, 3, 7));
    whole[NUM_CODES - 1] = largest;
    POST(e->kernels, e->lane, convert, numbers, whole, NUM_CODES, dtype);
    POST(e->kernels, e->lane, round_float8, .out = want, .x = numbers, .count = NUM_CODES,
         .width = CODE_WIDTH, .dtype = dtype);
    POST(e->kernels, e->lane, float8_largest, &bits, numbers, NUM_CODES, dtype);
    POST(e->kernels, e->lane, float8_encode, coded, numbers, &bits, NUM_CODES, dtype);
    POST(e->kernels, e->lane, float8_decode, got, coded, NUM_CODES, CODE_WIDTH, dtype);
    for (size_t i = 0; i < bytes / kernel_dtype_bytes(dtype) && !isfinite(largest); i++)
        assert_true(isnan(value_of(got, i, dtype)) && isnan(value_of(want, i, dtype)));
    if (isfinite(largest))
        assert_memory_equal(got, want, bytes);
}

TEST(test_kernels__operands_of_codes_are_those_that_are_rounded)
{
    static const float largest[] = {448, 3.5f, 0x1p-80f, 0x1.fp20f, NAN, -INFINITY};
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 2);
        for (size_t k = 0; e.kernels && k < sizeof(largest) / sizeof(largest[0]); k++) {
            want_decoded(&e, KERNEL_F32, largest[k]);
            want_decoded(&e, KERNEL_BF16, largest[k]);
        }
        free_engine(&e);
    }
}

TEST(test_kernels__float8_rounds_between_any_two_codes)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine e = level_engine(level, 2);
        if (!e.kernels)
            continue;
        want_codes(&e, KERNEL_E4M3, 0x7e, 3, 7);
        want_codes(&e, KERNEL_E5M2, 0x7b, 2, 15);
        float x[] = {1, NAN, 2, 0, INFINITY}, out[5];
        for (size_t first = 0; first < 5; first++) {
            POST(e.kernels, e.lane, round_float8, .out = out, .x = x + first, .count = 5 - first);
            assert_true(isnan(out[0]) && isnan(out[4 - first]));
        }
        /* Above 1.75 the scale is a half: small values lie between 0 and the first step. */
        float small[] = {0x1p-17f, 1.8f}, rounded[2];
        POST(e.kernels, e.lane, round_float8, .out = rounded, .x = small, .count = 2);
        assert_true(rounded[0] == 0 && rounded[1] == 1.75f);
        memset(x, 0, sizeof(x));
        POST(e.kernels, e.lane, round_float8, .out = out, .x = x, .count = 5);
        assert_memory_equal(out, x, sizeof(x));
        free_engine(&e);
    }
}

TEST(test_kernels__pack_and_unpack_move_the_rectangle_that_they_name)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float full[5 * 7], packed[2 * 3], back[5 * 7] = {0};
    for (int i = 0; i < 35; i++)
        full[i] = (float)i;
    POST(e.kernels, e.lane, pack, .packed = packed, .full = full, .first_row = 2, .rows = 2,
         .first_column = 4, .columns = 3, .width = 7);
    const float want[6] = {18, 19, 20, 25, 26, 27};
    assert_memory_equal(packed, want, sizeof(want));
    POST(e.kernels, e.lane, unpack, .full = back, .packed = packed, .first_row = 2, .rows = 2,
         .first_column = 4, .columns = 3, .width = 7);
    for (int i = 0; i < 35; i++)
        assert_true(back[i] == (i / 7 >= 2 && i / 7 < 4 && i % 7 >= 4 ? full[i] : 0));
    free_engine(&e);
}

TEST(test_kernels__new_refuses_what_it_cannot_serve)
{
    struct kernels *k;
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 0}) < 0);
    assert_null(k);
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 100000}) < 0);
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 1, .isa = "neon"}) < 0);
    assert_null(k);
}

TEST(test_kernels__describe_names_level_and_library)
{
    struct engine best = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    struct engine sse2 = new_engine(KERNEL_BACKEND_BEST, "sse2", 1);
    struct engine plain = new_engine(KERNEL_BACKEND_REFERENCE, NULL, 1);
    print_message("%s\n", kernels_describe(best.kernels));
    assert_non_null(strstr(kernels_describe(best.kernels), "oneDNN"));
    assert_string_equal(kernels_describe(sse2.kernels), "sse2, products by own code");
    assert_string_equal(kernels_describe(plain.kernels), "reference, products by own code");
    free_engine(&best);
    free_engine(&sse2);
    free_engine(&plain);
}

SUITE(NULL, NULL)
