/* kernels_adamw.h - cases of the optimizer: a part of kernels_cases.h, whose bed they use. */
#ifndef HOLDFAST_TESTS_KERNELS_ADAMW_H
#define HOLDFAST_TESTS_KERNELS_ADAMW_H

/* Pieces of tensors that lie apart: short ones, an empty one, and between them [N,C]. */
#define ADAMW_SHORT 37u
#define ADAMW_APART 64u
static inline void adamw_pieces(struct kernel_adamw_piece *out,
                                const struct kernel_adamw_piece *all, struct kernel_adamw *args,
                                size_t count)
{
    size_t counts[] = {ADAMW_SHORT, 0, count, ADAMW_SHORT}, at = 0;
    size_t width = kernel_dtype_bytes(args->moments);
    for (unsigned i = 0; i < 4; i++) {
        out[i] = *all;
        out[i].param += at;
        out[i].exp_avg = (char *)all->exp_avg + at * width;
        out[i].exp_avg_sq = (char *)all->exp_avg_sq + at * width;
        out[i].grad = (const char *)all->grad + at * kernel_dtype_bytes(args->gradients);
        out[i].copy = all->copy ? (uint16_t *)all->copy + at : NULL;
        out[i].count = counts[i];
        out[i].numbers += i % 2;
        out[i].first_row += i;
        kernel_adamw_add(args, counts[i]);
        at += (counts[i] + ADAMW_APART) / ADAMW_APART * ADAMW_APART;
    }
    args->pieces = out;
}
static inline void adamw_with(KERNELS, float l2, enum kernel_dtype moments,
                              enum kernel_dtype gradients, bool has_copy)
{
    size_t count = ROWS * s->dim, all = count + 5 * ADAMW_APART;
    float *param = random_buffer(run, all, KERNEL_F32);
    void *exp_avg = random_buffer(run, all, moments);
    void *exp_avg_sq = random_buffer(run, all, moments);
    void *copy = has_copy ? new_buffer(run, all, KERNEL_BF16) : NULL;
    run->num_outputs = has_copy ? 4 : 3;
    if (has_copy)
        memset(copy, 0,
               all * kernel_dtype_bytes(KERNEL_BF16)); /* of the memory between the pieces, too */
    for (size_t i = 0; i < all; i++) /* of the size of a square; bf16: 0.5 in its exponent */
        if (moments == KERNEL_F32)
            ((float *)exp_avg_sq)[i] = fabsf(((float *)exp_avg_sq)[i]) + 0.1f;
        else
            ((uint16_t *)exp_avg_sq)[i] = (uint16_t)(0x3f00 | (((uint16_t *)exp_avg_sq)[i] & 0x7f));
    const void *grad = random_buffer(run, all, gradients);
    struct kernel_adamw_numbers *numbers =
        new_buffer(run, 2 * sizeof(*numbers) / sizeof(float), KERNEL_F32);
    numbers[0] = numbers[1] = (struct kernel_adamw_numbers){.lr = 1e-2f,
                                                            .eps = 1e-8f,
                                                            .weight_decay = 0.1f,
                                                            .grad_scale = 0.5f,
                                                            .keep1 = 0.9f,
                                                            .rest1 = 0.1f,
                                                            .keep2 = 0.95f,
                                                            .rest2 = 0.05f,
                                                            .bias1 = 0.19f,
                                                            .bias2 = 0.0975f,
                                                            .l2 = l2,
                                                            .noise = {0x12345678, 0x9abcdef0}};
    numbers[1].weight_decay = 0;
    numbers[1].keep1 = numbers[1].keep2 = 1;
    numbers[1].is_mean = 1;
    struct kernel_adamw_piece *pieces =
        new_buffer(run, 4 * sizeof(*pieces) / sizeof(float), KERNEL_F32);
    struct kernel_adamw args = {.moments = moments, .gradients = gradients};
    adamw_pieces(pieces,
                 &(struct kernel_adamw_piece){.param = param,
                                              .exp_avg = exp_avg,
                                              .exp_avg_sq = exp_avg_sq,
                                              .grad = grad,
                                              .numbers = numbers,
                                              .copy = copy,
                                              .first_row = 7,
                                              .first_column = 5,
                                              .columns = s->dim - 1, /* no multiple of a vector */
                                              .noise = {3, 0xfffffff0}},
                 &args, count);
    kernel_adamw(k, lane, &args);
}
CASE(adamw, adamw_with, 0, KERNEL_F32, KERNEL_F32, true)
CASE(adam, adamw_with, 0.3f, KERNEL_F32, KERNEL_F32, false)
CASE(adamw_bf16, adamw_with, 0.3f, KERNEL_BF16, KERNEL_F32, true)
CASE(adamw_gradients_bf16, adamw_with, 0.3f, KERNEL_F32, KERNEL_BF16, false)
CASE(adamw_all_bf16, adamw_with, 0, KERNEL_BF16, KERNEL_BF16, true)

#endif
