/* kernels_bits.c - results are the same to the last bit where the header promises it.
 *
 * Goal: bits do not depend on the number of threads, on the addresses of buffers or on earlier
 * calls; code without fused operations agrees across ISA levels; exact sums do not depend on split
 * or order. Method: the cases of kernels_cases.h, outputs compared byte by byte with those of one
 * thread. */
#include "kernels/cpu/items.h"
#include "proto/base/checksum.h"
#include "tests/unit/kernels_cases.h"
#include "tests/unit/kernels_ranges.h"
#include "tests/unit/suite.h"

/* Runs every case on both engines. */
static void compare_all(const struct engine *a, size_t misalignment, const struct engine *b,
                        const char *what, bool unfused_only)
{
    for (int i = 0; i < NUM_SHAPES * NUM_CASES * 2; i++) {
        int which = i / 2 % NUM_CASES, shape = i / 2 / NUM_CASES;
        enum kernel_dtype dtype = i % 2 ? KERNEL_BF16 : KERNEL_F32;
        if (unfused_only && kernel_cases[which].fused)
            continue;
        same_case(a, b, what, which, shape, dtype, misalignment);
    }
}

TEST(test_kernels__bits_do_not_depend_on_threads)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine one = level_engine(level, 1);
        for (uint32_t threads = 2; one.kernels && threads <= 4; threads++) {
            struct engine many = level_engine(level, threads);
            compare_all(&many, 0, &one, kernels_describe(many.kernels), false);
            free_engine(&many);
        }
        free_engine(&one);
    }
}

TEST(test_kernels__bits_do_not_depend_on_addresses_or_on_repetition)
{
    struct engine one = new_engine(KERNEL_BACKEND_BEST, NULL, 2);
    for (size_t misalignment = 0; misalignment <= 192; misalignment += 64)
        compare_all(&one, misalignment, &one, "moved or repeated", false);
    free_engine(&one);
}

static void compare_levels(const char *isa, const char *other, bool unfused_only)
{
    struct engine a = new_engine(KERNEL_BACKEND_BEST, isa, 1);
    struct engine b = new_engine(KERNEL_BACKEND_BEST, other, 1);
    if (!a.kernels || !b.kernels)
        print_message("this CPU has no %s\n", a.kernels ? other : isa);
    else
        compare_all(&a, 0, &b, isa, unfused_only);
    free_engine(&a);
    free_engine(&b);
}

TEST(test_kernels__unfused_code_has_the_same_bits_on_every_isa_level)
{
    compare_levels("avx2", "sse2", true);
    compare_levels("avx512", "sse2", true);
}

/* Products of avx512 are the library's, so attention represents the fused code there. */
TEST(test_kernels__attention_has_the_same_bits_on_avx2_and_avx512)
{
    struct engine a = new_engine(KERNEL_BACKEND_BEST, "avx2", 1);
    struct engine b = new_engine(KERNEL_BACKEND_BEST, "avx512", 1);
    for (int i = 0; a.kernels && b.kernels && i < NUM_SHAPES * NUM_CASES; i++) {
        int which = i % NUM_CASES, shape = i / NUM_CASES;
        if (strncmp(kernel_cases[which].name, "attention", 9) != 0)
            continue;
        same_case(&a, &b, "avx2 against avx512", which, shape, KERNEL_F32, 0);
    }
    free_engine(&a);
    free_engine(&b);
}

/* ---- Ranges of queries ---- */

/* The tiles of the CPU's back-end. */
static uint32_t cut_of(const struct kernel_shapes *s)
{
    struct attention_args tile = {.heads = s->heads, .kv_heads = s->kv_heads};
    return s->seq / 2 / attention_positions(&tile) * attention_positions(&tile);
}

/* The sum of ranges in order is the fold of the whole: one chain of float additions. */
TEST(test_kernels__attention_by_ranges_of_queries_has_the_bits_of_the_whole)
{
    for (int level = 0; level < NUM_LEVELS; level++) {
        struct engine engine = level_engine(level, 2);
        for (int i = 0; engine.kernels && i < NUM_SHAPES * 4; i++) {
            struct kernel_shapes shapes = kernel_shapes[i / 4];
            shapes.dtype = i % 2 ? KERNEL_BF16 : KERNEL_F32;
            if (!ranges_have_the_bits(&engine, shapes, cut_of(&shapes), i / 2 % 2 == 1))
                fail_msg("%s: shape %d, way %d", kernels_describe(engine.kernels), i / 4, i % 4);
        }
        free_engine(&engine);
    }
}

/* Rows that begin at a position are turned as those of a whole sequence. */
TEST(test_kernels__rope_of_a_range_has_the_bits_of_the_whole)
{
    enum { T = 40, CUT = 13, HEADS = 3, D = 10, ROW = HEADS * D };
    float cosines[T * D / 2], sines[T * D / 2], x[T * ROW], part[(T - CUT) * ROW];
    int32_t starts[T];
    uint64_t seed = 5;
    rope_table(cosines, sines, T, D);
    for (int i = 0; i < T * ROW; i++)
        x[i] = random_value(&seed);
    for (int t = 0; t < T; t++)
        starts[t] = t / 7 * 7;
    memcpy(part, x + CUT * ROW, sizeof(part));
    for (int backend = 0; backend < 2; backend++) {
        struct engine e = new_engine((enum kernel_backend)backend, NULL, 1);
        struct kernel_rope rope = {.x = x,
                                   .cos = cosines,
                                   .sin = sines,
                                   .starts = starts,
                                   .batch = 1,
                                   .seq = T,
                                   .heads = HEADS,
                                   .head_dim = D};
        kernel_rope(e.kernels, e.lane, &rope);
        rope.x = part;
        rope.starts = starts + CUT;
        rope.seq = T - CUT;
        rope.first = CUT;
        kernel_rope(e.kernels, e.lane, &rope);
        assert_int_equal(lane_settle(e.lane), 0);
        assert_memory_equal(part, x + CUT * ROW, sizeof(part));
        free_engine(&e);
    }
}

/* ---- Exact sums ---- */

#define EXACT_ROWS 97
#define EXACT_WIDTH 37

/* Values over the whole range of float, subnormals included. */
static void fill_wild(float *x, size_t count)
{
    uint64_t seed = 5;
    for (size_t i = 0; i < count; i++)
        x[i] = ldexpf(random_value(&seed), (int)(splitmix64(&seed) % 260) - 140);
}

static void add_squares(const struct engine *e, struct kernel_exact_sum *sum, const float *x,
                        uint64_t rows, uint64_t width)
{
    const struct kernel_squares_piece piece = {x, width, rows};
    POST(e->kernels, e->lane, sum_squares, .sum = sum, .pieces = &piece, .rows = rows, .num = 1);
    assert_int_equal(lane_settle(e->lane), 0);
}

TEST(test_kernels__exact_sum_does_not_depend_on_split_or_order)
{
    static float x[EXACT_ROWS * EXACT_WIDTH];
    fill_wild(x, EXACT_ROWS * EXACT_WIDTH);
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 3);
    struct kernel_exact_sum whole = {0};
    add_squares(&e, &whole, x, EXACT_ROWS, EXACT_WIDTH);
    double want = kernel_exact_value(&whole);
    for (uint64_t parts = 2; parts <= EXACT_ROWS; parts += 5) {
        struct kernel_exact_sum each[EXACT_ROWS] = {0}, total = {0};
        for (uint64_t p = 0; p < parts; p++) {
            uint64_t begin = EXACT_ROWS * p / parts, end = EXACT_ROWS * (p + 1) / parts;
            add_squares(&e, &each[p], x + begin * EXACT_WIDTH, end - begin, EXACT_WIDTH);
        }
        for (uint64_t p = parts; p-- > 0;) /* last first, as ranks might */
            for (int i = 0; i < KERNEL_EXACT_LIMBS; i++)
                total.limb[i] += each[p].limb[i];
        assert_true(kernel_exact_value(&total) == want);
    }
    free_engine(&e);
}

/* 1 once and 2^-54 4096 times: added one by one to a double, the small ones would all be lost. */
TEST(test_kernels__exact_sum_keeps_what_double_would_drop)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    static float x[4097];
    for (int i = 0; i < 4097; i++)
        x[i] = 0x1p-27f;
    x[17] = 1;
    struct kernel_exact_sum sum = {0};
    add_squares(&e, &sum, x, 4097, 1);
    assert_true(kernel_exact_value(&sum) == 1 + 0x1p-42);
    struct kernel_exact_sum large = {0};
    float most = 0x1.fffffep127f, least = 0x1p-149f;
    add_squares(&e, &large, &most, 1, 1);
    assert_true(kernel_exact_value(&large) == (double)most * (double)most);
    add_squares(&e, &large, &least, 1, 1);
    assert_true(kernel_exact_value(&large) == (double)most * (double)most);
    free_engine(&e);
}

/* Around 2^54 a double counts in fours. */
TEST(test_kernels__exact_sum_rounds_once_to_nearest_even)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 1);
    const struct {
        float large, small;
        int times;
        double want;
    } rows[] = {
        {0x1p27f, 1, 1, 0x1p54},     /* a quarter: down */
        {0x1p27f, 1, 2, 0x1p54},     /* half way: to even, down */
        {0x1p27f, 1, 3, 0x1p54 + 4}, /* above half */
        {0x1p27f, 1, 6, 0x1p54 + 8}, /* half way: to even, up */
        {0x1p27f, 0x1p-70f, 1, 0x1p54},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct kernel_exact_sum sum = {0};
        add_squares(&e, &sum, &rows[i].large, 1, 1);
        for (int t = 0; t < rows[i].times; t++)
            add_squares(&e, &sum, &rows[i].small, 1, 1);
        assert_true(kernel_exact_value(&sum) == rows[i].want);
    }
    /* Half way and a hair more, from 200 bits further down. */
    struct kernel_exact_sum sum = {0};
    float parts[4] = {0x1p27f, 1, 1, 0x1p-70f};
    add_squares(&e, &sum, parts, 4, 1);
    assert_true(kernel_exact_value(&sum) == 0x1p54 + 4);
    free_engine(&e);
}

TEST(test_kernels__exact_sum_surfaces_nan_and_infinity)
{
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 2);
    float x[3 * 20] = {0};
    struct kernel_exact_sum sum = {0}, other = {0};
    x[25] = -INFINITY;
    add_squares(&e, &sum, x, 3, 20);
    assert_true(isinf(kernel_exact_value(&sum)));
    x[47] = NAN;
    add_squares(&e, &other, x, 3, 20);
    for (int i = 0; i < KERNEL_EXACT_LIMBS; i++)
        sum.limb[i] += other.limb[i];
    assert_true(isnan(kernel_exact_value(&sum)));
    free_engine(&e);
}

/* Each box of a tensor by itself, by rows and by columns, against the store's own digest. */
TEST(test_kernels__digests_of_boxes_add_up_to_the_tensors)
{
    enum { TENSOR_ROWS = 300, COLUMNS = 117 };
    struct engine e = new_engine(KERNEL_BACKEND_BEST, NULL, 3);
    for (int type = 0; type < 2; type++) {
        enum kernel_dtype dtype = type == 0 ? KERNEL_F32 : KERNEL_BF16;
        uint32_t bytes = (uint32_t)kernel_dtype_bytes(dtype), cuts[] = {0, 1, 64, COLUMNS};
        struct run run = {.device = e.lane->device};
        char *x = random_buffer(&run, TENSOR_ROWS * COLUMNS, dtype);
        char *box = random_buffer(&run, TENSOR_ROWS * COLUMNS, dtype);
        struct digest want = {0}, got = {{0}};
        digest_add(&want, x, TENSOR_ROWS * COLUMNS, bytes, 0);
        for (int i = 0; i < 3; i++) {
            uint32_t first = cuts[i], width = cuts[i + 1] - cuts[i];
            for (size_t row = 0; row < TENSOR_ROWS; row++)
                memcpy(box + row * width * bytes, x + (row * COLUMNS + first) * bytes,
                       (size_t)width * bytes);
            POST(e.kernels, e.lane, digest, .sum = got.sum, .x = box, .rows = TENSOR_ROWS,
                 .width = width, .first = first, .stride = COLUMNS, .dtype = dtype);
            assert_int_equal(lane_settle(e.lane), 0);
        }
        assert_memory_equal(&got, &want, sizeof(want));
        free_run(&run);
    }
    free_engine(&e);
}

SUITE(NULL, NULL)
