/* loss.c - cross entropy of logits against targets, with the gradient written over the logits.
 *
 * Per row: the maximum, the sum of e^(x - max) in 16 lanes, then scale (softmax - onehot). The loss
 * log(sum) + max - x[target] is formed in double and rounded once. The exponentials are computed
 * once and kept in
 * place of the logits in float; in bf16 there is no room for them, so they are computed twice. A
 * NaN or infinity among the logits makes the loss NaN. */
#include "kernels/cpu/isa/isa.h"

INLINE float value_at(const void *p, size_t i, bool bf16)
{
    return load_part(p, i, 1, bf16)[0];
}

/* Logits from v on; past the end of the row minus infinity, so that their exponential is 0. */
INLINE lanes logits_at(const struct loss_args *a, size_t row, size_t v, bool bf16)
{
    static const float index[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    size_t left = part_of(v, a->vocab);
    if (left == WIDTH)
        return load(a->logits, row + v, bf16);
    return where_less(load(index, 0, false), broadcast((float)left),
                      load_part(a->logits, row + v, left, bf16), broadcast(-__builtin_inff()));
}

INLINE void loss_row(const struct loss_args *a, size_t n, bool bf16)
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
    float x = value_at(a->logits, row + (size_t)target, bf16);
    for (size_t v = 0; v < vocab; v += WIDTH) {
        size_t count = part_of(v, vocab);
        lanes e = exponential(logits_at(a, row, v, bf16) - max);
        sum_add(&total, v, e);
        if (!bf16)
            store_part(a->logits, row + v, e, count, bf16);
    }
    float sum = sum_value(&total), inverse = 1.0f / sum;
    a->losses[n] = (float)(logarithm((double)sum) + ((double)max - (double)x));
    lanes hit = (exponential(broadcast(x) - max) * inverse - 1.0f) * a->scale;
    for (size_t v = 0; v < vocab; v += WIDTH) {
        size_t count = part_of(v, vocab);
        lanes e = load_part(a->logits, row + v, count, bf16);
        if (bf16)
            e = exponential(e - max);
        store_part(a->logits, row + v, e * inverse * a->scale, count, bf16);
    }
    store_part(a->logits, row + (size_t)target, hit, 1, bf16);
}

void ISA_NAME(loss)(const void *args, uint32_t item, const struct worker *worker)
{
    (void)worker;
    const struct loss_args *a = args;
    struct range rows = item_range(item, LOSS_ROWS, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++) {
        if (a->dtype == KERNEL_BF16)
            loss_row(a, n, true);
        else
            loss_row(a, n, false);
    }
}
