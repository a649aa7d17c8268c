/* kernels_cuda.c - the .cu files, run on lanes of a CPU, against the back-end of the CPU.
 *
 * Goal: what has no tensor core in it has the bits of the CPU's back-end; the rest is as near to
 * the plain twins as rounding allows; no result depends on the order of blocks or threads; nothing
 * is written past a tensor. Method: the cases of kernels_cases.h with the kernels of kernels/cuda
 * (kernels/cuda/cpu/lanes.h): the orders of LANES_SEEDS seeds (3; the first 6 are all kinds of
 * order), at LANES_SHAPES of the awkward shapes (2; all: 7), each byte compared. */
#include "tests/cuda/lanes_bed.h"

/* Shapes in the order in which they are taken: the first two meet most edges. */
static const int shapes[NUM_SHAPES] = {2, 4, 0, 1, 3, 5, 6};

static void same_bits(const struct run *got, const struct run *want, uint64_t seed, int which,
                      int shape, enum kernel_dtype dtype)
{
    for (int i = 0; i < want->num_outputs; i++) {
        const struct buffer *a = &got->buffers[i], *b = &want->buffers[i];
        size_t bytes = kernel_dtype_bytes(b->dtype);
        for (size_t at = 0; at < b->count; at++) {
            if (memcmp((char *)a->data + at * bytes, (char *)b->data + at * bytes, bytes) == 0)
                continue;
            print_error("output %d, element %zu of %zu: %.9g, on the CPU %.9g; seed %d\n", i, at,
                        b->count, (double)value_of(a->data, at, a->dtype),
                        (double)value_of(b->data, at, b->dtype), (int)seed);
            say_case("bits differ", which, shape, dtype);
            fail();
        }
    }
    nothing_written_past(got);
}

static void compare_bits(const struct engine *lanes, const struct engine *cpu, int which, int shape,
                         enum kernel_dtype dtype)
{
    struct run want = run_case(cpu, which, kernel_shapes[shape], dtype, 0);
    for (uint64_t seed = 0; seed < random_rounds("LANES_SEEDS", 3); seed++) {
        lanes_seed(seed);
        struct run got = run_case(lanes, which, kernel_shapes[shape], dtype, 0);
        same_bits(&got, &want, seed, which, shape, dtype);
        free_run(&got);
    }
    free_run(&want);
}

static void test_kernels_cuda__without_tensor_cores_bits_are_those_of_the_cpu(void **state)
{
    (void)state;
    struct engine lanes = new_lanes_engine();
    struct engine cpu = new_engine(KERNEL_BACKEND_BEST, "sse2", 1);
    int num_shapes = (int)random_rounds("LANES_SHAPES", 2);
    for (int i = 0; i < num_shapes * NUM_CASES * 2; i++) {
        int which = i / 2 % NUM_CASES, shape = shapes[i / 2 / NUM_CASES % NUM_SHAPES];
        if (!kernel_cases[which].fused)
            compare_bits(&lanes, &cpu, which, shape, i % 2 ? KERNEL_BF16 : KERNEL_F32);
    }
    free_engine(&lanes);
    free_engine(&cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_cuda__without_tensor_cores_bits_are_those_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
