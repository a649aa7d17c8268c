/* norm.c - RMSNorm with the residual addition before it, forward and backward, by rows of items.
 *
 * Forward: x += residual (rounded to its type), rstd = 1 / sqrt(mean(x^2) + eps), out = x rstd
 * weight. Backward, with u = dout weight and h = x rstd: dx += rstd (u - h mean(u h)). The weight's
 * gradient is summed over the rows of an item in order, then (norm_dweight) over the items in
 * order: NORM_ROWS is the canonical segment. */
#include <math.h>

#include "kernels/cpu/isa/isa.h"

INLINE void norm_row(const struct kernel_rmsnorm *a, size_t n, bool bf16)
{
    size_t row = n * a->dim, dim = a->dim;
    struct sum sum = {0};
    for (size_t c = 0; c < dim; c += WIDTH) {
        size_t count = part_of(c, dim);
        lanes x = load_part(a->x, row + c, count, bf16);
        if (a->residual) {
            x = rounded_to(x + load_part(a->residual, row + c, count, bf16), bf16);
            store_part(a->x, row + c, x, count, bf16);
        }
        sum_add(&sum, c, x * x);
    }
    float rstd = 1.0f / sqrtf(sum_value(&sum) / (float)dim + a->eps);
    a->rstd[n] = rstd;
    for (size_t c = 0; c < dim; c += WIDTH) {
        size_t count = part_of(c, dim);
        lanes h = load_part(a->x, row + c, count, bf16) * rstd;
        store_part(a->out, row + c, h * load_part(a->weight, c, count, bf16), count, bf16);
    }
}

ITEM(ISA_NAME(norm))
{
    const struct kernel_rmsnorm *a = args;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++)
        BY_TYPE(a->dtype, norm_row, a, n);
}

INLINE void norm_row_backward(const struct kernel_rmsnorm_backward *a, size_t n, float *partial,
                              bool bf16)
{
    size_t row = n * a->dim, dim = a->dim;
    float rstd = a->rstd[n];
    struct sum sum = {0};
    for (size_t c = 0; c < dim; c += WIDTH) {
        size_t count = part_of(c, dim);
        lanes u = load_part(a->dout, row + c, count, bf16) * load_part(a->weight, c, count, bf16);
        sum_add(&sum, c, u * (load_part(a->x, row + c, count, bf16) * rstd));
    }
    float mean = sum_value(&sum) / (float)dim;
    for (size_t c = 0; c < dim; c += WIDTH) {
        size_t count = part_of(c, dim);
        lanes dout = load_part(a->dout, row + c, count, bf16);
        lanes h = load_part(a->x, row + c, count, bf16) * rstd;
        lanes u = dout * load_part(a->weight, c, count, bf16);
        lanes dx = load_part(a->dx, row + c, count, bf16) + (u - h * mean) * rstd;
        store_part(a->dx, row + c, dx, count, bf16);
        lanes dweight = load_part(partial, c, count, false) + dout * h;
        store_part(partial, c, dweight, count, false);
    }
}

ITEM(ISA_NAME(norm_backward))
{
    const struct norm_backward_args *all = args;
    const struct kernel_rmsnorm_backward *a = &all->a;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    float *partial = all->partial + (size_t)item * a->dim;
    memset(partial, 0, a->dim * sizeof(float));
    for (size_t n = rows.begin; n < rows.end; n++)
        BY_TYPE(a->dtype, norm_row_backward, a, n, partial);
}

ITEM(ISA_NAME(norm_dweight))
{
    const struct norm_backward_args *all = args;
    const struct kernel_rmsnorm_backward *a = &all->a;
    struct range columns = item_range(item, COLUMN_ITEM, a->dim);
    size_t segments = divide_up(a->rows, NORM_ROWS);
    for (size_t c = columns.begin; c < columns.end; c += WIDTH) {
        size_t count = part_of(c, columns.end);
        lanes sum = {0};
        for (size_t s = 0; s < segments; s++)
            sum += load_part(all->partial, s * a->dim + c, count, false);
        store_part(a->dweight, c, sum, count, false);
    }
}
