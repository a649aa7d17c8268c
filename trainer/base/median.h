/* median.h - the median of measurements, and their spread around it. */
#ifndef HOLDFAST_TRAINER_BASE_MEDIAN_H
#define HOLDFAST_TRAINER_BASE_MEDIAN_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* For qsort: the least first. */
static inline int median_order(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Sorts the values; for an even number returns the mean of the two in the middle. num > 0. */
static inline double median_of(double *values, uint32_t num)
{
    qsort(values, num, sizeof(*values), median_order);
    return (values[num / 2] + values[(num - 1) / 2]) / 2;
}

#define MEDIAN_NORMAL 1.4826 /* standard deviation / median distance, if normal */

struct spread {
    double median, deviation;
};

/* A deviation is the median distance from the median, scaled as for a normal distribution, and at
 * least `least_part` of the median. Reorders the values. num > 0. */
static inline struct spread spread_of(double *values, uint32_t num, double least_part)
{
    double median = median_of(values, num);
    for (uint32_t i = 0; i < num; i++)
        values[i] = fabs(values[i] - median);
    return (struct spread){median,
                           fmax(MEDIAN_NORMAL * median_of(values, num), least_part * fabs(median))};
}

#endif
