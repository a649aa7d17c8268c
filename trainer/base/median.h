/* median.h - the middle of what was measured. */
#ifndef HOLDFAST_TRAINER_BASE_MEDIAN_H
#define HOLDFAST_TRAINER_BASE_MEDIAN_H

#include <stdint.h>
#include <stdlib.h>

/* For qsort: the least first. */
static inline int median_order(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Sorts the values; of an even number the mean of the two in the middle. num > 0. */
static inline double median_of(double *values, uint32_t num)
{
    qsort(values, num, sizeof(*values), median_order);
    return (values[num / 2] + values[(num - 1) / 2]) / 2;
}

#endif
