/* kernels_cuda.c - the .cu files, run on lanes of a CPU, against the back-end of the CPU.
 *
 * Goal: operations without tensor cores have the bits of the CPU's back-end, products and attention
 * those of its avx2 level. Operations with tensor cores are as near to the plain twins as rounding
 * allows. No result depends on the order of blocks or threads; nothing is written past a tensor.
 * Method: the cases of kernels_cases.h with the kernels of kernels/cuda (tests/cuda/lanes.h):
 * the orders of LANES_SEEDS seeds (3; the first 6 are all kinds of order), at LANES_SHAPES awkward
 * shapes (3; all: 10), each byte compared. Compiled with -DON_GPU the same runs on a GPU, so often
 * in its own orders (`make gpu-check`). The test prints the names of the compared cases. */
#ifdef ON_GPU
#include "tests/cuda/gpu_bed.h"
#include "tests/unit/suite.h"
#else
#include "tests/cuda/lanes_bed.h"
#define need_gpu() ((void)0)
#endif
#include "tests/unit/kernels_close.h"
#include "tests/unit/kernels_ranges.h"

/* Those of kernels_cases.h, and rows that tensor cores take: several tiles, partial ones. The first
 * three meet most edges. */
static const struct kernel_shapes shapes[] = {
    {3, 33, 100, 50, 6, 2, 10, 130, KERNEL_F32},  {2, 75, 136, 264, 4, 2, 64, 96, KERNEL_F32},
    {1, 130, 8, 136, 4, 1, 128, 40, KERNEL_F32},  {2, 261, 64, 129, 8, 2, 16, 64, KERNEL_F32},
    {1, 1, 16, 16, 1, 1, 16, 17, KERNEL_F32},     {1, 7, 5, 3, 3, 1, 6, 11, KERNEL_F32},
    {1, 150, 48, 200, 4, 4, 24, 250, KERNEL_F32}, {1, 70, 300, 260, 5, 1, 64, 96, KERNEL_F32},
    {1, 66, 32, 24, 70, 1, 2, 40, KERNEL_F32},    {2, 65, 520, 40, 2, 2, 96, 40, KERNEL_F32},
};

static bool is_attention(int which)
{
    return strncmp(kernel_cases[which].name, "attention", 9) == 0;
}
static bool is_float8(int which)
{
    return strstr(kernel_cases[which].name, "_float8") != NULL;
}

/* True when tensor cores are involved: their sums have a different order. */
static bool by_tensor_cores(int which, const struct kernel_shapes *s, enum kernel_dtype dtype)
{
    bool is_product = strncmp(kernel_cases[which].name, "linear", 6) == 0;
    if (is_attention(which))
        return dtype == KERNEL_BF16 && (s->head_dim == 64 || s->head_dim == 128);
    if (is_float8(which))
        return dtype == KERNEL_BF16;
    return is_product && dtype == KERNEL_BF16 && s->dim % 8 == 0 && s->hidden % 8 == 0;
}

/* Attention by tensor cores rounds probabilities and their gradients to bf16 before it sums them
 * up, each by half a unit of 2^-8; where a query sees few keys, a few large ones show it. So much
 * of the root mean square, half as much again as the worst of some random tensors: forward and
 * backward. */
#define PROBABILITIES_OF_RMS 1.2e-2
#define GRADIENTS_OF_RMS 4.8e-2
static bool is_close(int which, const struct buffer *got, const struct buffer *want,
                     enum kernel_dtype dtype)
{
    bool is_backward = kernel_cases[which].op == KERNEL_ATTENTION_BACKWARD;
    if (!is_attention(which) || want->dtype == KERNEL_F32)
        return close_enough(got, want, dtype);
    return within(got, want, 0x1p-7,
                  (is_backward ? GRADIENTS_OF_RMS : PROBABILITIES_OF_RMS) * root_mean_square(want));
}

static bool has_same_bits(const struct buffer *got, const struct buffer *want)
{
    size_t bytes = kernel_dtype_bytes(want->dtype);
    for (size_t i = 0; i < want->count; i++) {
        if (memcmp((char *)got->data + i * bytes, (char *)want->data + i * bytes, bytes) == 0)
            continue;
        print_error("element %zu of %zu: %.9g, on the CPU %.9g\n", i, want->count,
                    (double)value_of(got->data, i, got->dtype),
                    (double)value_of(want->data, i, want->dtype));
        return false;
    }
    return true;
}

/* One case in the orders of all seeds against `cpu`: the same bits, or near and among each other
 * the same bits. */
static void compare(const struct engine *lanes, const struct engine *cpu, int which,
                    const struct kernel_shapes *shape, enum kernel_dtype dtype, bool is_near)
{
    struct run want = run_case(cpu, which, *shape, dtype, 0), first = {0};
    for (uint64_t seed = 0; seed < random_rounds("LANES_SEEDS", 3); seed++) {
        set_order(seed);
        struct run got = run_case(lanes, which, *shape, dtype, 0);
        const struct run *like = is_near && seed > 0 ? &first : &want;
        for (int i = 0; i < want.num_outputs; i++) {
            bool is_right = is_near && seed == 0
                                ? is_close(which, &got.buffers[i], &want.buffers[i], dtype)
                                : has_same_bits(&got.buffers[i], &like->buffers[i]);
            if (!is_right) {
                say_case(is_near ? "near" : "bits", which, shape, dtype);
                fail_msg("output %d, seed %d", i, (int)seed);
            }
        }
        nothing_written_past(&got);
        if (seed == 0)
            first = got;
        else
            free_run(&got);
    }
    free_run(&first);
    free_run(&want);
}

typedef bool wanted_fn(int which, const struct kernel_shapes *shape, enum kernel_dtype dtype);

/* Calls `look` with every case that `wanted` accepts; returns their number. */
static int each_case(wanted_fn *wanted, void *user,
                     void look(void *user, int which, const struct kernel_shapes *shape,
                               enum kernel_dtype dtype))
{
    int num_shapes = (int)random_rounds("LANES_SHAPES", 3), num_run = 0;
    for (int i = 0; i < num_shapes * NUM_CASES * 2; i++) {
        int which = i / 2 % NUM_CASES;
        const struct kernel_shapes *shape = &shapes[i / 2 / NUM_CASES];
        enum kernel_dtype dtype = i % 2 ? KERNEL_BF16 : KERNEL_F32;
        if (!wanted(which, shape, dtype))
            continue;
        look(user, which, shape, dtype);
        num_run++;
    }
    return num_run;
}

/* `how`: "bits", or the unit that computed numbers within tolerance. */
struct comparison {
    const struct engine *gpu, *cpu;
    const char *how;
    int said; /* the case that was named last */
    int num_differ;
};

static void compare_case(void *user, int which, const struct kernel_shapes *shape,
                         enum kernel_dtype dtype)
{
    struct comparison *c = user;
    compare(c->gpu, c->cpu, which, shape, dtype, strcmp(c->how, "bits") != 0);
    if (c->said != which)
        printf("# compared, %s: %s%s\n", c->how, kernel_op_name(kernel_cases[which].op),
               is_float8(which) ? "_float8" : "");
    c->said = which;
}

static void compare_all(const struct engine *cpu, wanted_fn *wanted, const char *how)
{
    struct engine gpu = new_cuda_engine();
    struct comparison c = {.gpu = &gpu, .cpu = cpu, .how = how, .said = -1};
    assert_true(each_case(wanted, &c, compare_case) > 0);
    free_engine(&gpu);
}

static bool is_elementwise(int which, const struct kernel_shapes *shape, enum kernel_dtype dtype)
{
    (void)shape;
    (void)dtype;
    return !kernel_cases[which].fused;
}
static bool is_plain(int which, const struct kernel_shapes *shape, enum kernel_dtype dtype)
{
    return kernel_cases[which].fused && !by_tensor_cores(which, shape, dtype);
}

TEST(test_kernels_cuda__without_products_bits_are_those_of_the_cpu)
{
    struct engine cpu = new_engine(KERNEL_BACKEND_BEST, "sse2", 1);
    compare_all(&cpu, is_elementwise, "bits");
    free_engine(&cpu);
}
TEST(test_kernels_cuda__without_tensor_cores_bits_are_those_of_avx2)
{
    struct engine cpu = new_engine(KERNEL_BACKEND_BEST, "avx2", 1);
    if (!cpu.kernels) {
        print_message("this CPU has no avx2\n");
        skip();
    }
    compare_all(&cpu, is_plain, "bits");
    free_engine(&cpu);
}
TEST(test_kernels_cuda__tensor_cores_agree_with_the_plain_twins)
{
    struct engine cpu = new_engine(KERNEL_BACKEND_REFERENCE, NULL, 1);
    compare_all(&cpu, by_tensor_cores, "near");
    free_engine(&cpu);
}

#ifdef ON_GPU
/* NVIDIA's libraries in place of our kernels, where they are found. */
static bool by_blas(int which, const struct kernel_shapes *shape, enum kernel_dtype dtype)
{
    return !is_attention(which) && by_tensor_cores(which, shape, dtype);
}
static bool by_dnn(int which, const struct kernel_shapes *shape, enum kernel_dtype dtype)
{
    return is_attention(which) && !strstr(kernel_cases[which].name, "_documents") &&
           by_tensor_cores(which, shape, dtype);
}

/* Sums in another order are those of another kernel: a library that silently left all to ours would
 * show none. (A simulated one adds in our order.) */
static void count_difference(void *user, int which, const struct kernel_shapes *shape,
                             enum kernel_dtype dtype)
{
    struct comparison *c = user;
    struct run library = run_case(c->gpu, which, *shape, dtype, 0);
    struct run own = run_case(c->cpu, which, *shape, dtype, 0);
    for (int i = 0; i < own.num_outputs; i++) {
        size_t bytes = own.buffers[i].count * kernel_dtype_bytes(own.buffers[i].dtype);
        c->num_differ += memcmp(library.buffers[i].data, own.buffers[i].data, bytes) != 0;
    }
    free_run(&own);
    free_run(&library);
}

static void compare_library(const char *library, const char *how, wanted_fn *wanted)
{
    struct engine gpu = new_gpu_engine(KERNEL_BACKEND_BEST, false), own = new_cuda_engine();
    struct engine cpu = new_engine(KERNEL_BACKEND_REFERENCE, NULL, 1);
    bool is_there = strstr(kernels_describe(gpu.kernels), library) != NULL;
    if (is_there) {
        struct comparison c = {.gpu = &gpu, .cpu = &own};
        each_case(wanted, &c, count_difference);
        assert_true(c.num_differ > 0 || strstr(kernels_describe(gpu.kernels), "simulated"));
        c = (struct comparison){.gpu = &gpu, .cpu = &cpu, .how = how, .said = -1};
        each_case(wanted, &c, compare_case);
    }
    free_engine(&cpu);
    free_engine(&own);
    free_engine(&gpu);
    if (!is_there)
        skip();
}
TEST(test_kernels_cuda__products_by_cublaslt_agree_with_the_plain_twins)
{
    compare_library("cuBLASLt", "cublaslt", by_blas);
}
TEST(test_kernels_cuda__attention_by_cudnn_agrees_with_the_plain_twins)
{
    compare_library("cuDNN", "cudnn", by_dnn);
}
#endif

/* Products at once and one by one: of a size that tensor cores take, and of one that they do not.
 */
static void linears_agree(const struct engine *e, const uint32_t *out_dim, bool is_backward)
{
    struct run run = {.seed = 5, .device = e->lane->device};
    const size_t rows = 40, in = 72;
    struct kernel_linears f = {.num = 3, .rows = rows, .in = in, .dtype = KERNEL_BF16};
    struct kernel_linears_backward_weight b = {
        .num = 3, .rows = rows, .in = in, .dtype = KERNEL_BF16};
    f.x = b.x = random_buffer(&run, rows * in, KERNEL_BF16);
    void *want[3];
    for (int i = 0; i < 3; i++) {
        size_t outputs = is_backward ? out_dim[i] * in : rows * out_dim[i];
        enum kernel_dtype dtype = is_backward ? KERNEL_F32 : KERNEL_BF16;
        f.out_dim[i] = b.out_dim[i] = out_dim[i];
        f.w[i] = random_buffer(&run, out_dim[i] * in, KERNEL_BF16);
        b.dout[i] = random_buffer(&run, rows * out_dim[i], KERNEL_BF16);
        f.out[i] = b.dw[i] = new_buffer(&run, outputs, dtype);
        want[i] = new_buffer(&run, outputs, dtype);
        if (is_backward)
            POST(e->kernels, e->lane, linear_backward_weight, .dw = want[i], .dout = b.dout[i],
                 .x = b.x, .rows = rows, .in = in, .out_dim = out_dim[i], .dtype = KERNEL_BF16);
        else
            POST(e->kernels, e->lane, linear, .out = want[i], .x = f.x, .w = f.w[i], .rows = rows,
                 .in = in, .out_dim = out_dim[i], .dtype = KERNEL_BF16);
    }
    if (is_backward)
        kernel_linears_backward_weight(e->kernels, e->lane, &b);
    else
        kernel_linears(e->kernels, e->lane, &f);
    assert_int_equal(lane_settle(e->lane), 0);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(f.out[i], want[i],
                            is_backward ? out_dim[i] * in * 4 : rows * out_dim[i] * 2);
    free_run(&run);
}
TEST(test_kernels_cuda__products_at_once_have_the_bits_of_each_alone)
{
    static const uint32_t out_dims[][3] = {
        {264, 136, 136}, {8, 264, 130}, {136, 11, 11}, {129, 136, 8}, {65, 7, 64}};
    struct engine lanes = new_cuda_engine();
    for (unsigned i = 0; i < 10; i++) {
        set_order(i);
        linears_agree(&lanes, out_dims[i / 2], i % 2 == 1);
    }
    free_engine(&lanes);
}

/* By tensor cores, heads of 64 and of 128: rows of a range have the bits of the whole's. The sums
 * of ranges are near those of the whole. */
static void ranges_agree(const struct engine *lanes, uint32_t head_dim, bool has_documents)
{
    const struct kernel_shapes shapes = {.batch = 2,
                                         .seq = 131,
                                         .heads = 2,
                                         .kv_heads = 1,
                                         .head_dim = head_dim,
                                         .dtype = KERNEL_BF16};
    size_t keys = (size_t)shapes.batch * shapes.seq * head_dim;
    struct ranges r = {
        .engine = lanes, .shapes = shapes, .run = {.seed = 77, .device = lanes->lane->device}};
    whole_attention(&r, has_documents);
    struct buffer want[] = {{.data = r.dkey, .count = keys, .dtype = KERNEL_BF16},
                            {.data = r.dvalue, .count = keys, .dtype = KERNEL_BF16}};
    struct buffer got[2] = {{.count = keys, .dtype = KERNEL_F32},
                            {.count = keys, .dtype = KERNEL_F32}};
    got[0].data = new_buffer(&r.run, keys, KERNEL_F32);
    got[1].data = new_buffer(&r.run, keys, KERNEL_F32);
    assert_true(range_agrees(&r, 0, 70, got[0].data, got[1].data));
    assert_true(range_agrees(&r, 70, shapes.seq - 70, got[0].data, got[1].data));
    for (int i = 0; i < 2; i++)
        assert_true(within(&got[i], &want[i], 0x1p-7, 4e-3 * root_mean_square(&want[i])));
    free_run(&r.run);
}
TEST(test_kernels_cuda__ranges_of_queries_agree_with_the_whole)
{
    struct engine lanes = new_cuda_engine();
    for (unsigned i = 0; i < 4; i++) {
        set_order(i);
        ranges_agree(&lanes, i % 2 ? 128 : 64, i / 2 == 1);
    }
    free_engine(&lanes);
}

/* Without them, by both types: of sums too, where a tile of the CPU ends. */
TEST(test_kernels_cuda__ranges_have_the_bits_of_the_whole)
{
    struct engine lanes = new_cuda_engine();
    for (unsigned i = 0; i < 12; i++) {
        struct kernel_shapes s = shapes[i / 4 == 2 ? 8 : i / 4 * 3]; /* 3, 4 and 70 heads a key */
        uint32_t group = s.heads / s.kv_heads, positions = group >= 64 ? 1 : 64 / group;
        s.dtype = i % 2 ? KERNEL_BF16 : KERNEL_F32;
        set_order(i);
        if (!ranges_have_the_bits(&lanes, s, s.seq / 2 / positions * positions, i / 2 % 2 == 1))
            fail_msg("heads %u, way %u", s.heads, i % 4);
    }
    free_engine(&lanes);
}

/* Squares of all sizes: they reach each digit of the exact sum, and exceed all digits. */
TEST(test_kernels_cuda__exact_sums_of_any_size_have_the_limbs_of_the_cpu)
{
    struct engine lanes = new_cuda_engine(), cpu = new_engine(KERNEL_BACKEND_BEST, "sse2", 1);
    struct run run = {.device = lanes.lane->device};
    float *x = new_buffer(&run, 300, KERNEL_F32);
    struct kernel_exact_sum *got =
        new_buffer(&run, sizeof(*got) / kernel_dtype_bytes(KERNEL_F32), KERNEL_F32);
    for (int i = 0; i < 300; i++)
        x[i] = ldexpf(1 + (float)i / 512, i - 149);
    for (int i = 0; i < 300; i += 100)
        x[i] = i == 0 ? 0 : i == 100 ? INFINITY : NAN;
    struct kernel_exact_sum want = {{3}};
    *got = want;
    struct kernel_squares_piece *piece =
        new_buffer(&run, sizeof(*piece) / sizeof(float), KERNEL_F32);
    *piece = (struct kernel_squares_piece){.x = x, .width = 1, .end = 300};
    struct kernel_sum_squares args = {.sum = got, .pieces = piece, .rows = 300, .num = 1};
    kernel_sum_squares(lanes.kernels, lanes.lane, &args);
    assert_int_equal(lane_settle(lanes.lane), 0);
    args.sum = &want;
    kernel_sum_squares(cpu.kernels, cpu.lane, &args);
    assert_memory_equal(got, &want, sizeof(want));
    free_run(&run);
    free_engine(&lanes);
    free_engine(&cpu);
}

int main(void)
{
    need_gpu();
    return suite_run(NULL, NULL);
}
