/* kernels_ops.c - every operation against its plain C twin.
 *
 * Goal: each ISA level, with the library and with our own products, computes what reference.c says.
 * Method: the cases of kernels_cases.h at awkward shapes, same inputs on both sides. How
 * near they have to be: kernels_close.h. */
#include "tests/unit/kernels_close.h"

static void compare_case(const struct engine *engine, const struct engine *reference, int which,
                         int shape, enum kernel_dtype dtype)
{
    struct run got = run_case(engine, which, kernel_shapes[shape], dtype, 0);
    struct run want = run_case(reference, which, kernel_shapes[shape], dtype, 0);
    for (int i = 0; i < want.num_outputs; i++) {
        if (!close_enough(&got.buffers[i], &want.buffers[i], dtype)) {
            say_case(kernels_describe(engine->kernels), which, shape, dtype);
            fail();
        }
    }
    free_run(&got);
    free_run(&want);
}

static void compare_level(const char *isa)
{
    struct engine engine = new_engine(KERNEL_BACKEND_BEST, isa, 2);
    if (!engine.kernels) {
        print_message("this CPU has no %s\n", isa);
        skip();
    }
    struct engine reference = new_engine(KERNEL_BACKEND_REFERENCE, NULL, 1);
    for (int shape = 0; shape < NUM_SHAPES; shape++)
        for (int which = 0; which < NUM_CASES; which++)
            for (int dtype = KERNEL_F32; dtype <= KERNEL_BF16; dtype++)
                compare_case(&engine, &reference, which, shape, (enum kernel_dtype)dtype);
    free_engine(&engine);
    free_engine(&reference);
}

static void test_kernels__best_level_agrees_with_the_plain_twins(void **state)
{
    (void)state;
    compare_level(NULL);
}
static void test_kernels__avx512_agrees_with_the_plain_twins(void **state)
{
    (void)state;
    compare_level("avx512");
}
static void test_kernels__avx2_agrees_with_the_plain_twins(void **state)
{
    (void)state;
    compare_level("avx2");
}
static void test_kernels__sse2_agrees_with_the_plain_twins(void **state)
{
    (void)state;
    compare_level("sse2");
}

/* softmax of equal logits is known in closed form */
static void test_kernels__loss_of_equal_logits_is_log_of_the_vocabulary(void **state)
{
    (void)state;
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float losses[3], logits[3 * 40];
    int32_t targets[3] = {0, 39, -1};
    for (int i = 0; i < 120; i++)
        logits[i] = 3;
    kernel_cross_entropy(e.kernels, e.lane,
                         &(struct kernel_cross_entropy){.losses = losses,
                                                        .logits = logits,
                                                        .targets = targets,
                                                        .rows = 3,
                                                        .vocab = 40,
                                                        .scale = &(float){1},
                                                        .dtype = KERNEL_F32});
    assert_float_equal(losses[0], log(40), 1e-6);
    assert_float_equal(losses[1], log(40), 1e-6);
    assert_true(losses[2] == 0 && logits[80] == 0 && logits[119] == 0);
    assert_float_equal(logits[0], 1.0 / 40 - 1, 1e-6);
    assert_float_equal(logits[1], 1.0 / 40, 1e-6);
    free_engine(&e);
}

static void test_kernels__extreme_logits_give_finite_losses(void **state)
{
    (void)state;
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float loss, logits[5] = {-3e38f, 300, -200, 299, -INFINITY};
    kernel_cross_entropy(e.kernels, e.lane,
                         &(struct kernel_cross_entropy){.losses = &loss,
                                                        .logits = logits,
                                                        .targets = (int32_t[]){2},
                                                        .rows = 1,
                                                        .vocab = 5,
                                                        .scale = &(float){1},
                                                        .dtype = KERNEL_F32});
    assert_float_equal(loss, 500.313262, 1e-3);
    assert_true(logits[0] == 0 && logits[4] == 0 && logits[2] == -1);
    free_engine(&e);
}

/* A damaged value must be seen by the caller, never be smoothed away. */
static void test_kernels__nan_surfaces_in_loss_attention_and_norm(void **state)
{
    (void)state;
    const char *const levels[] = {"avx512", "avx2", "sse2", NULL};
    for (int i = 0; i < 4; i++) {
        struct engine e = new_engine(KERNEL_BACKEND_BEST, levels[i], 1);
        if (!e.kernels)
            continue;
        float loss, logits[40] = {0}, x[64] = {0}, out[64], rstd[1], weight[64], lse[4];
        logits[37] = NAN;
        kernel_cross_entropy(e.kernels, e.lane,
                             &(struct kernel_cross_entropy){.losses = &loss,
                                                            .logits = logits,
                                                            .targets = (int32_t[]){3},
                                                            .rows = 1,
                                                            .vocab = 40,
                                                            .scale = &(float){1},
                                                            .dtype = KERNEL_F32});
        assert_true(isnan(loss) && isnan(logits[3]));
        for (int c = 0; c < 64; c++)
            weight[c] = 1;
        x[5] = NAN;
        kernel_rmsnorm(e.kernels, e.lane,
                       &(struct kernel_rmsnorm){.out = out,
                                                .rstd = rstd,
                                                .x = x,
                                                .weight = weight,
                                                .rows = 1,
                                                .dim = 64,
                                                .eps = 1e-5f,
                                                .dtype = KERNEL_F32});
        assert_true(isnan(rstd[0]) && isnan(out[63]));
        kernel_attention(e.kernels, e.lane,
                         &(struct kernel_attention){.out = out,
                                                    .lse = lse,
                                                    .q = x,
                                                    .key = weight,
                                                    .value = weight,
                                                    .batch = 1,
                                                    .seq = 4,
                                                    .heads = 1,
                                                    .kv_heads = 1,
                                                    .head_dim = 16,
                                                    .dtype = KERNEL_F32});
        assert_true(isnan(out[0]) && isnan(lse[0]) && !isnan(out[16]));
        free_engine(&e);
    }
}

static void test_kernels__bf16_keeps_nan_and_rounds_to_even(void **state)
{
    (void)state;
    const char *const levels[] = {"avx512", "avx2", "sse2"};
    const uint32_t in[] = {0x7f800001, 0xff800001, 0x7f800000, 0x3f808000, 0x3f818000,
                           0x3f808001, 0x7f7fffff, 0x80000000, 0x00000001};
    const uint16_t want[] = {0x7fc0, 0xffc0, 0x7f80, 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x8000, 0};
    for (int i = 0; i < 3; i++) {
        struct engine e = new_engine(KERNEL_BACKEND_BEST, levels[i], 1);
        if (!e.kernels)
            continue;
        uint16_t out[9];
        float values[9];
        memcpy(values, in, sizeof(in));
        kernel_convert(e.kernels, e.lane,
                       &(struct kernel_convert){
                           .out = out, .out_dtype = KERNEL_BF16, .in = values, .count = 9});
        assert_memory_equal(out, want, sizeof(want));
        free_engine(&e);
    }
}

static void test_kernels__pack_and_unpack_move_the_rectangle_that_they_name(void **state)
{
    (void)state;
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    float full[5 * 7], packed[2 * 3], back[5 * 7] = {0};
    for (int i = 0; i < 35; i++)
        full[i] = (float)i;
    kernel_pack(e.kernels, e.lane,
                &(struct kernel_pack){.packed = packed,
                                      .full = full,
                                      .first_row = 2,
                                      .rows = 2,
                                      .first_column = 4,
                                      .columns = 3,
                                      .width = 7});
    const float want[6] = {18, 19, 20, 25, 26, 27};
    assert_memory_equal(packed, want, sizeof(want));
    kernel_unpack(e.kernels, e.lane,
                  &(struct kernel_unpack){.full = back,
                                          .packed = packed,
                                          .first_row = 2,
                                          .rows = 2,
                                          .first_column = 4,
                                          .columns = 3,
                                          .width = 7});
    for (int i = 0; i < 35; i++)
        assert_true(back[i] == (i / 7 >= 2 && i / 7 < 4 && i % 7 >= 4 ? full[i] : 0));
    free_engine(&e);
}

static void test_kernels__new_refuses_what_it_cannot_serve(void **state)
{
    (void)state;
    struct kernels *k;
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 0}) < 0);
    assert_null(k);
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 100000}) < 0);
    assert_true(kernels_new(&k, &(struct kernels_options){.num_threads = 1, .isa = "neon"}) < 0);
    assert_null(k);
}

static void test_kernels__describe_names_level_and_library(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__best_level_agrees_with_the_plain_twins),
        cmocka_unit_test(test_kernels__avx512_agrees_with_the_plain_twins),
        cmocka_unit_test(test_kernels__avx2_agrees_with_the_plain_twins),
        cmocka_unit_test(test_kernels__sse2_agrees_with_the_plain_twins),
        cmocka_unit_test(test_kernels__loss_of_equal_logits_is_log_of_the_vocabulary),
        cmocka_unit_test(test_kernels__extreme_logits_give_finite_losses),
        cmocka_unit_test(test_kernels__nan_surfaces_in_loss_attention_and_norm),
        cmocka_unit_test(test_kernels__bf16_keeps_nan_and_rounds_to_even),
        cmocka_unit_test(test_kernels__pack_and_unpack_move_the_rectangle_that_they_name),
        cmocka_unit_test(test_kernels__new_refuses_what_it_cannot_serve),
        cmocka_unit_test(test_kernels__describe_names_level_and_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
