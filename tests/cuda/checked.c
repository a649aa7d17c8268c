/* checked.c - the kernels on lanes of a CPU for a sanitizer: a separate program, in which only the
 * kernels and the lanes' caller are instrumented. It is built twice, as racecheck (ThreadSanitizer)
 * and as memcheck (AddressSanitizer, UndefinedBehaviorSanitizer); tests/unit/check_kernels_cuda.c
 * runs both.
 *
 *   racecheck cases [NAME]    every case of kernels_cases.h, or one, at small shapes
 *   racecheck fault NAME      a kernel of faulty.cu
 *
 * LANES_SEEDS=1: the orders of so many seeds. A report ends the process with the sanitizer's
 * status.
 */
#include "tests/cuda/faulty.h"
#include "tests/cuda/lanes_bed.h"

/* Of kernels_cases.h: odd sizes in one block, several blocks of everything, and heads that
 * attention by tensor cores takes. */
static const struct kernel_shapes small[] = {
    {1, 7, 5, 3, 3, 1, 6, 11, KERNEL_F32},
    {2, 35, 48, 40, 4, 2, 16, 72, KERNEL_F32},
    {1, 70, 8, 8, 2, 1, 64, 8, KERNEL_F32},
    {1, 70, 8, 8, 1, 1, 128, 8, KERNEL_F32},
};
#define NUM_SMALL (int)(sizeof(small) / sizeof(small[0]))

static const struct {
    const char *name;
    void (*launch)(float *values);
} faults[] = {
#define X(name) {#name, faulty_##name},
    FAULTS(X)
#undef X
};

static int run_fault(const char *name)
{
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        float *values = strcmp(name, faults[i].name) == 0 ? calloc(64, sizeof(*values)) : NULL;
        if (values) {
            faults[i].launch(values);
            free(values);
            return 0;
        }
    }
    return 2;
}

static int run_cases(const char *name)
{
    struct engine lanes = new_cuda_engine();
    int num_run = 0;
    for (uint64_t seed = 0; seed < random_rounds("LANES_SEEDS", 1); seed++) {
        for (int i = 0; i < NUM_CASES * NUM_SMALL * 2; i++) {
            int which = i / 2 / NUM_SMALL;
            if (name && strcmp(name, kernel_cases[which].name) != 0)
                continue;
            set_order(seed);
            struct run run = run_case(&lanes, which, small[i / 2 % NUM_SMALL], i % 2, 0);
            free_run(&run);
            num_run++;
        }
    }
    free_engine(&lanes);
    printf("%d runs\n", num_run);
    return num_run > 0 ? 0 : 2;
}

int main(int count, char **words)
{
    if (count == 3 && strcmp(words[1], "fault") == 0)
        return run_fault(words[2]);
    if (count >= 2 && strcmp(words[1], "cases") == 0)
        return run_cases(words[2]);
    return 2;
}
