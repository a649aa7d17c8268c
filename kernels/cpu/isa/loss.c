/* loss.c - cross entropy of logits against targets, with the gradient written over the logits.
 *
 * Per row: the maximum, e^(x - max) into scratch and its sum in 16 lanes, then scale times (softmax
 * - onehot). The loss log(sum) + max - x[target] is formed in double and rounded once. A NaN or
 * infinity among the logits makes the loss NaN. */
#include "kernels/cpu/isa/isa.h"

INLINE float value_at(const void *p, size_t i, bool bf16)
{
    return load_part(p, i, 1, bf16)[0];
}

/* Natural logarithm of a positive finite x, in double; infinity, NaN and 0 pass as such. The series
 * of 2 atanh((m - 1) / (m + 1)), with m in [sqrt(1/2), sqrt(2)). */
static double logarithm(double x)
{
    uint64_t bits;
    if (!(x > 0) || x > 0x1.fffffffffffffp+1023)
        return x == 0 ? -__builtin_inf() : x;
    memcpy(&bits, &x, sizeof(bits));
    int64_t exponent = (int64_t)((bits - 0x3fe6a09e667f3bcd) >> 52);
    exponent = exponent >= 2048 ? exponent - 4096 : exponent;
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, sizeof(m));
    double f = (m - 1) / (m + 1), square = f * f, sum = 0;
    for (int i = 23; i > 0; i -= 2)
        sum = sum * square + 1.0 / i;
    return (double)exponent * 0x1.62e42fefa39efp-1 + 2 * f * sum;
}

/* Logits from v on; minus infinity after the end of the row, so that their exponential is 0. */
INLINE lanes logits_at(const struct kernel_cross_entropy *a, size_t row, size_t v, bool bf16)
{
    static const float index[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    size_t left = part_of(v, a->vocab);
    if (left == WIDTH)
        return load(a->logits, row + v, bf16);
    return where_less(load(index, 0, false), broadcast((float)left),
                      load_part(a->logits, row + v, left, bf16), broadcast(-__builtin_inff()));
}

/* e: room for V floats and a vector */
INLINE void loss_row(const struct kernel_cross_entropy *a, size_t n, float *e, bool bf16)
{
    size_t row = n * a->vocab, vocab = a->vocab;
    int32_t target = a->targets[n];
    REQUIRE(target < (int64_t)vocab);
    if (target < 0) {
        memset((char *)a->logits + row * (bf16 ? 2 : 4), 0, vocab * (bf16 ? 2 : 4));
        a->losses[n] = 0;
        return;
    }
    lanes most = broadcast(-__builtin_inff());
    for (size_t v = 0; v < vocab; v += WIDTH)
        most = larger(logits_at(a, row, v, bf16), most);
    float max = largest(most);
    struct sum total = {0};
    for (size_t v = 0; v < vocab; v += WIDTH) {
        lanes x = exponential(logits_at(a, row, v, bf16) - max, false);
        sum_add(&total, v, x);
        store(e, v, x, false);
    }
    float sum = sum_value(&total), inverse = 1.0f / sum, scale = *a->scale;
    float x = value_at(a->logits, row + (size_t)target, bf16);
    a->losses[n] = (float)(logarithm((double)sum) + ((double)max - (double)x));
    lanes hit = (broadcast(e[target]) * inverse - 1.0f) * scale;
    for (size_t v = 0; v < vocab; v += WIDTH) {
        lanes gradient = load(e, v, false) * inverse * scale;
        store_part(a->logits, row + v, gradient, part_of(v, vocab), bf16);
    }
    store_part(a->logits, row + (size_t)target, hit, 1, bf16);
}

ITEM(ISA_NAME(loss))
{
    const struct kernel_cross_entropy *a = args;
    struct range rows = item_range(item, LOSS_ROWS, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++)
        BY_TYPE(a->dtype, loss_row, a, n, worker->scratch);
}
