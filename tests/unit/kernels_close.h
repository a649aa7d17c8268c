/* kernels_close.h - how near an operation's results have to be to those of its plain C twin.
 *
 * The twin sums in double, so the tolerance covers the rounding of the other side: in float 1e-5 of
 * the result itself plus 1e-5 of the root mean square of all results (for sums that cancel). In
 * bf16 one unit in the last place (2^-7) plus 4e-3 of the root mean square (attention's backward
 * starts from an `out` that each side rounded). Inputs have variance 1; 1e-6 is added for results
 * that are zero but for rounding. */
#ifndef HOLDFAST_TESTS_KERNELS_CLOSE_H
#define HOLDFAST_TESTS_KERNELS_CLOSE_H

#include "tests/unit/kernels_cases.h"

static inline double root_mean_square(const struct buffer *b)
{
    double sum = 0;
    for (size_t i = 0; i < b->count; i++)
        sum += pow((double)value_of(b->data, i, b->dtype), 2);
    return sqrt(sum / (double)b->count);
}

/* |got - want| <= relative |want| + absolute, of each element. */
static inline bool within(const struct buffer *got, const struct buffer *want, double relative,
                          double absolute)
{
    for (size_t i = 0; i < want->count; i++) {
        double a = (double)value_of(got->data, i, got->dtype);
        double b = (double)value_of(want->data, i, want->dtype);
        if (!(fabs(a - b) <= relative * fabs(b) + absolute)) {
            print_error("element %zu of %zu: %.9g, expected %.9g\n", i, want->count, a, b);
            return false;
        }
    }
    return true;
}

static inline bool close_enough(const struct buffer *got, const struct buffer *want,
                                enum kernel_dtype dtype)
{
    double of_rms = dtype == KERNEL_F32 ? 1e-5 : 4e-3;
    return within(got, want, dtype == KERNEL_F32 ? 1e-5 : 0x1p-7,
                  of_rms * root_mean_square(want) + 1e-6);
}

#endif
