/* elementwise.c - operations on single elements, and sums of rows in order: embedding, RoPE,
 * SwiGLU, add, fold, convert, float8, AdamW, and the sums of squares of rows.
 *
 * Elementwise code needs no order: IEEE arithmetic without contraction gives the same bits at every
 * vector width. The embedding's gradient is cut by columns, so each table element is summed by one
 * thread in row order. */
#include <math.h>

#include "kernels/cpu/isa/isa.h"

/* ---- Embedding ---- */

ITEM(ISA_NAME(embedding))
{
    const struct kernel_embedding *a = args;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    size_t bytes = a->dim * kernel_dtype_bytes(a->dtype);
    for (size_t n = rows.begin; n < rows.end; n++)
        memcpy((char *)a->out + n * bytes, (const char *)a->table + (size_t)a->tokens[n] * bytes,
               bytes);
}

INLINE void add_row(float *sum, const void *x, size_t at, size_t width, bool bf16)
{
    for (size_t c = 0; c < width; c += WIDTH) {
        size_t count = part_of(c, width);
        lanes y = load_part(sum, c, count, false) + load_part(x, at + c, count, bf16);
        store_part(sum, c, y, count, false);
    }
}

/* A token's rows are neighbours in `sorted`: their sum is made first, then added to the table. */
static void fold_rows(const struct embedding_backward_args *all, struct range columns)
{
    const struct kernel_embedding_backward *a = &all->a;
    size_t width = columns.end - columns.begin;
    for (size_t i = 0; i < a->rows;) {
        float sum[COLUMN_ITEM] = {0};
        uint64_t token = all->sorted[i] >> 32;
        for (; i < a->rows && all->sorted[i] >> 32 == token; i++) {
            size_t at = (uint32_t)all->sorted[i] * (size_t)a->dim + columns.begin;
            BY_TYPE(a->dtype, add_row, sum, a->dout, at, width);
        }
        float *to = a->dtable + token * a->dim + columns.begin;
        if (a->seen && a->seen[token] == 0)
            memset(to, 0, width * sizeof(float));
        add_row(to, sum, 0, width, false);
    }
}

ITEM(ISA_NAME(embedding_backward))
{
    const struct embedding_backward_args *all = args;
    const struct kernel_embedding_backward *a = &all->a;
    struct range columns = item_range(item, COLUMN_ITEM, a->dim);
    size_t width = columns.end - columns.begin;
    if (a->is_folded || a->seen) {
        fold_rows(all, columns);
        return;
    }
    for (size_t v = 0; v < a->vocab; v++)
        memset(a->dtable + v * a->dim + columns.begin, 0, width * sizeof(float));
    for (size_t n = 0; n < a->rows; n++) {
        float *sum = a->dtable + (size_t)a->tokens[n] * a->dim + columns.begin;
        BY_TYPE(a->dtype, add_row, sum, a->dout, n * a->dim + columns.begin, width);
    }
}

/* ---- Rotary embedding: (x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos) ---- */

#if WIDTH == 16
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define EACH_TWICE 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7
#elif WIDTH == 8
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6
#define EACH_TWICE 0, 0, 1, 1, 2, 2, 3, 3
#else
#define SWAPPED 1, 0, 3, 2
#define EACH_TWICE 0, 0, 1, 1
#endif

/* One position: the turns of WIDTH / 2 pairs are computed once and applied to every head. */
INLINE void rope_row(const struct kernel_rope *a, size_t n, bool bf16)
{
    static const float signs[LANES] = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
    const lanes sign = load(signs, 0, false);
    size_t width = a->head_dim, turn = rope_position(a, n) * (width / 2),
           row = n * a->heads * width;
    for (size_t d = 0; d < width; d += WIDTH) {
        size_t count = part_of(d, width);
        lanes cosines = load_part(a->cos, turn + d / 2, count / 2, false);
        lanes sines = load_part(a->sin, turn + d / 2, count / 2, false);
        cosines = __builtin_shufflevector(cosines, cosines, EACH_TWICE);
        sines = __builtin_shufflevector(sines, sines, EACH_TWICE);
        sines *= a->inverse ? -sign : sign;
        for (size_t h = 0; h < a->heads; h++) {
            lanes x = load_part(a->x, row + h * width + d, count, bf16);
            lanes y = x * cosines + __builtin_shufflevector(x, x, SWAPPED) * sines;
            store_part(a->x, row + h * width + d, y, count, bf16);
        }
    }
}

ITEM(ISA_NAME(rope))
{
    const struct kernel_rope *a = args;
    struct range rows = item_range(item, ROPE_ROWS, (size_t)a->batch * a->seq);
    for (size_t n = rows.begin; n < rows.end; n++)
        BY_TYPE(a->dtype, rope_row, a, n);
}

/* ---- SwiGLU: silu(gate) up, silu(x) = x / (1 + e^-x) ---- */

INLINE void swiglu_range(const struct kernel_swiglu *a, struct range range, bool bf16)
{
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes gate = load_part(a->gate, i, count, bf16);
        lanes silu = gate * logistic(gate);
        store_part(a->out, i, silu * load_part(a->up, i, count, bf16), count, bf16);
    }
}

ITEM(ISA_NAME(swiglu))
{
    const struct kernel_swiglu *a = args;
    BY_TYPE(a->dtype, swiglu_range, a, item_range(item, FLAT_ITEM, a->count));
}

INLINE void swiglu_range_backward(const struct kernel_swiglu_backward *a, struct range range,
                                  bool bf16)
{
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes gate = load_part(a->gate, i, count, bf16), up = load_part(a->up, i, count, bf16);
        lanes dout = load_part(a->dout, i, count, bf16);
        lanes sigmoid = logistic(gate);
        lanes slope = sigmoid * (1.0f + gate * (1.0f - sigmoid));
        store_part(a->dup, i, dout * (gate * sigmoid), count, bf16);
        store_part(a->dgate, i, dout * up * slope, count, bf16);
    }
}

ITEM(ISA_NAME(swiglu_backward))
{
    const struct kernel_swiglu_backward *a = args;
    BY_TYPE(a->dtype, swiglu_range_backward, a, item_range(item, FLAT_ITEM, a->count));
}

/* ---- Add, fold, convert ---- */

INLINE void add_range(void *y, const void *x, struct range range, bool bf16)
{
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes sum = load_part(y, i, count, bf16) + load_part(x, i, count, bf16);
        store_part(y, i, sum, count, bf16);
    }
}

ITEM(ISA_NAME(box))
{
    const struct box_args *a = args;
    struct range rows = item_range(item, a->item_rows, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++)
        memcpy(a->to + n * a->to_stride, a->from + n * a->from_stride, a->row_bytes);
}

ITEM(ISA_NAME(add))
{
    const struct kernel_add *a = args;
    struct range all = item_range(item, FLAT_ITEM, a->count), part = all;
    for (; part.begin < all.end; part.begin = part.end) {
        size_t row = a->seen ? part.begin / a->width : 0;
        size_t end = a->seen ? (row + 1) * a->width : all.end;
        part.end = end < all.end ? end : all.end;
        if (!a->seen || a->seen[row] != 0)
            BY_TYPE(a->dtype, add_range, a->y, a->x, part);
    }
}

INLINE void fold_range(void *y, const float *x, struct range range, bool bf16, bool is_first)
{
    const lanes zero = {0};
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes sum = is_first ? zero : load_part(y, i, count, bf16);
        store_part(y, i, sum + load_part(x, i, count, false), count, bf16);
    }
}

/* Leaf after leaf, so that an item's sums stay in the cache. */
ITEM(ISA_NAME(fold))
{
    const struct kernel_fold *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t n = 0; n <= a->more; n++) {
        const float *leaf = a->leaf + n * a->stride;
        bool is_first = a->is_first && n == 0;
        if (a->dtype == KERNEL_BF16)
            fold_range(a->acc, leaf, range, true, is_first);
        else if (is_first)
            fold_range(a->acc, leaf, range, false, true);
        else
            fold_range(a->acc, leaf, range, false, false);
    }
}

/* As bf16. */
INLINE void narrow_range(void *y, const float *x, struct range range)
{
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        store_part(y, i, load_part(x, i, count, false), count, true);
    }
}

ITEM(ISA_NAME(convert))
{
    const struct kernel_convert *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    if (a->out_dtype == KERNEL_F32) {
        memcpy((float *)a->out + range.begin, a->in + range.begin,
               (range.end - range.begin) * sizeof(float));
        return;
    }
    narrow_range(a->out, a->in, range);
}

/* ---- Float8 ---- */

/* Bits of |x| as integers: a NaN is larger than infinity, and infinity than other values. */
INLINE uint32_t largest_of(const void *x, struct range range, bool bf16)
{
    lanes_u32 most = {0};
    uint32_t out = 0;
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        lanes_u32 bits = (lanes_u32)load_part(x, i, part_of(i, range.end), bf16) & 0x7fffffff;
        lanes_u32 more = (lanes_u32)(bits > most);
        most = (more & bits) | (~more & most);
    }
    for (size_t l = 0; l < WIDTH; l++)
        out = most[l] > out ? most[l] : out;
    return out;
}

ITEM(ISA_NAME(largest))
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    uint32_t *most = &a->largest[worker->index * FLOAT8_WORKER];
    uint32_t mine = BY_TYPE(a->dtype, largest_of, a->x, range);
    *most = mine > *most ? mine : *most;
}

INLINE struct kernel_extent extent_of(const void *x, struct range range, bool bf16)
{
    lanes_u32 most = {0}, least = most - 1, bad = {0};
    struct kernel_extent all = EXTENT_NONE;
    size_t whole = range.begin + (range.end - range.begin) / WIDTH * WIDTH;
    for (size_t i = range.begin; i < whole; i += WIDTH) {
        lanes_u32 bits = (lanes_u32)load_part(x, i, WIDTH, bf16) & 0x7fffffff;
        lanes_u32 more = (lanes_u32)(bits > most), less = (lanes_u32)(bits < least);
        most = (more & bits) | (~more & most);
        least = (less & bits) | (~less & least);
        bad -= (lanes_u32)(bits >= 0x7f800000);
    }
    for (size_t l = 0; l < WIDTH && whole > range.begin; l++)
        extent_merge(&all, &(struct kernel_extent){most[l], least[l], bad[l]});
    lanes_u32 rest = (lanes_u32)load_part(x, whole, range.end - whole, bf16) & 0x7fffffff;
    for (size_t l = 0; l < range.end - whole; l++)
        extent_add(&all, rest[l]);
    return all;
}

ITEM(ISA_NAME(extremes))
{
    const struct extremes_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->a.count);
    struct kernel_extent mine = BY_TYPE(a->a.dtype, extent_of, a->a.x, range);
    extent_merge(&a->partial[worker->index].of, &mine);
}

/* Rounds to steps of q: adding 1.5 2^23 q, whose last bit has the value q, and subtracting it
 * again. */
INLINE lanes to_format(const struct float8_args *a, lanes scaled)
{
    const uint32_t lowest = (uint32_t)(a->lowest + 127) << 23;
    const uint32_t shift = (uint32_t)(23 - a->bits) << 23;
    lanes_u32 exponent = (lanes_u32)scaled & 0x7f800000;
    lanes_u32 is_low = (lanes_u32)(exponent < lowest);
    exponent = (is_low & lowest) | (~is_low & exponent);
    lanes magic = (lanes)((exponent + shift) | 0x400000);
    return scaled + magic - magic;
}

/* 2^scale, or 2^-scale. */
INLINE lanes power_of(const struct float8_args *a, int sign)
{
    return broadcast(a->scale == FLOAT8_NAN ? NAN : ldexpf(1, sign * a->scale));
}

INLINE void float8_range(const struct float8_args *a, struct range range, bool bf16)
{
    lanes up = power_of(a, 1), down = power_of(a, -1);
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes x = load_part(a->x, i, count, bf16) * up;
        store_part(a->out, i, to_format(a, x) * down, count, bf16);
    }
}

ITEM(ISA_NAME(round_float8))
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    BY_TYPE(a->dtype, float8_range, a, range);
}

/* Only for e4m3. The code is the upper bits of a float whose exponent counts from 2^-7; below 2^-6
 * it is the number in steps of 2^-9. */
typedef uint8_t codes __attribute__((vector_size(WIDTH)));
#define CODE_BITS 20u
#define CODE_EXPONENT (120u << 23)
#define CODE_STEPS 0x1.8p14f /* when added, its last bit has the value 2^-9 */

INLINE void encode_range(const struct float8_args *a, struct range range, bool bf16)
{
    lanes up = power_of(a, 1);
    uint8_t *out = a->out;
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes_u32 bits = (lanes_u32)to_format(a, load_part(a->x, i, count, bf16) * up);
        lanes_u32 size = bits & 0x7fffffff;
        lanes_u32 is_low = (lanes_u32)(size < (121u << 23));
        lanes_u32 low = (lanes_u32)((lanes)size + CODE_STEPS) & 7;
        lanes_u32 code = (is_low & low) | (~is_low & ((size - CODE_EXPONENT) >> CODE_BITS));
        codes narrow_code = __builtin_convertvector(code | (bits >> 31 << 7), codes);
        memcpy(out + i, &narrow_code, count);
    }
}

ITEM(ISA_NAME(float8_encode))
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    if (a->scale == FLOAT8_NAN)
        memset((uint8_t *)a->out + range.begin, 0x7f, range.end - range.begin);
    else
        BY_TYPE(a->dtype, encode_range, a, range);
}

INLINE void decode_range(const struct float8_args *a, struct range range, bool bf16)
{
    lanes down = power_of(a, -1);
    const uint8_t *in = a->x;
    for (size_t i = range.begin; i < range.end; i += WIDTH) {
        size_t count = part_of(i, range.end);
        codes narrow_code = {0};
        memcpy(&narrow_code, in + i, count);
        lanes_u32 code = __builtin_convertvector(narrow_code, lanes_u32), size = code & 0x7f;
        lanes_u32 is_low = (lanes_u32)(size < 8);
        lanes_u32 low = (lanes_u32)(__builtin_convertvector(size, lanes) * 0x1p-9f);
        lanes_u32 bits = (is_low & low) | (~is_low & ((size << CODE_BITS) + CODE_EXPONENT));
        store_part(a->out, i, (lanes)(bits | (code >> 7 << 31)) * down, count, bf16);
    }
}

ITEM(ISA_NAME(float8_decode))
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    BY_TYPE(a->dtype, decode_range, a, range);
}

/* ---- Optimizer ---- */

/* has_l2 and bf16 (of the gradients) are known at compile time. Without l2 a gradient of -0 stays
 * -0. */
INLINE void adamw_range(const struct kernel_adamw_piece *a, struct range range, bool has_l2,
                        bool bf16)
{
    const struct kernel_adamw_numbers o = *a->numbers;
    float *restrict param = a->param, *restrict exp_avg = a->exp_avg;
    float *restrict exp_avg_sq = a->exp_avg_sq;
    const float *restrict grad = a->grad;
    const uint16_t *restrict narrow_grad = a->grad;
    for (size_t i = range.begin; i < range.end; i++) {
        float g = (bf16 ? widen_one(narrow_grad[i]) : grad[i]) * o.grad_scale;
        if (has_l2)
            g += o.l2 * param[i];
        float m = exp_avg[i], v = exp_avg_sq[i];
        m = o.keep1 * m + o.rest1 * (g - (o.is_mean ? m : 0));
        v = o.keep2 * v + o.rest2 * (g * g - (o.is_mean ? v : 0));
        float update = (m / o.bias1) / (sqrtf(v / o.bias2) + o.eps) + o.weight_decay * param[i];
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = param[i] - o.lr * update;
    }
    if (a->copy != NULL)
        narrow_range(a->copy, a->param, range);
}

/* Stores floats as bf16, rounded up if the noise carries. */
INLINE void store_stochastic(uint16_t *p, size_t i, lanes x, lanes_u32 noise, size_t count)
{
    lanes_u32 bits = (lanes_u32)x;
    lanes_u32 is_finite = (lanes_u32)((bits & 0x7f800000) != 0x7f800000);
    lanes_u32 rounded = (bits + noise) & 0xffff0000; /* a bf16 value: narrow() keeps it */
    store_part(p, i, (lanes)((is_finite & rounded) | (~is_finite & bits)), count, true);
}

INLINE lanes_u32 mix(lanes_u32 x)
{
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15) * 0x735a2d97u;
    return x ^ x >> 15;
}

INLINE lanes square_root(lanes x)
{
    for (unsigned l = 0; l < WIDTH; l++)
        x[l] = sqrtf(x[l]);
    return x;
}

/* Moments of bf16: a part of one row; `column` is that of element i in the tensor. */
INLINE void adamw_row(const struct kernel_adamw_piece *a, struct range range, uint32_t row,
                      uint32_t column, bool bf16)
{
    const struct kernel_adamw_numbers o = *a->numbers;
    const uint32_t row_noise = noise_mix(row ^ o.noise[0] ^ a->noise[0]);
    column += o.noise[1] ^ a->noise[1];
    lanes_u32 steps;
    for (uint32_t l = 0; l < WIDTH; l++)
        steps[l] = l;
    for (size_t i = range.begin; i < range.end; i += WIDTH, column += WIDTH) {
        size_t count = part_of(i, range.end);
        lanes param = load_part(a->param, i, count, false);
        lanes g = load_part(a->grad, i, count, bf16) * o.grad_scale;
        if (o.l2 != 0)
            g += o.l2 * param;
        lanes m = load_part(a->exp_avg, i, count, true);
        lanes v = load_part(a->exp_avg_sq, i, count, true);
        m = o.keep1 * m + o.rest1 * (g - (o.is_mean ? m : (lanes){0}));
        v = o.keep2 * v + o.rest2 * (g * g - (o.is_mean ? v : (lanes){0}));
        lanes update = (m / o.bias1) / (square_root(v / o.bias2) + o.eps) + o.weight_decay * param;
        lanes_u32 noise = mix(row_noise ^ (steps + column));
        store_stochastic(a->exp_avg, i, m, noise & 0xffff, count);
        store_stochastic(a->exp_avg_sq, i, v, noise >> 16, count);
        store_part(a->param, i, param - o.lr * update, count, false);
    }
    if (a->copy != NULL)
        narrow_range(a->copy, a->param, range);
}

INLINE void adamw_rows(const struct kernel_adamw_piece *a, struct range range, bool bf16)
{
    while (range.begin < range.end) {
        size_t row = range.begin / a->columns, column = range.begin % a->columns;
        size_t rest = a->columns - column, left = range.end - range.begin;
        size_t end = range.begin + (rest < left ? rest : left);
        adamw_row(a, (struct range){range.begin, end}, a->first_row + (uint32_t)row,
                  a->first_column + (uint32_t)column, bf16);
        range.begin = end;
    }
}

ITEM(ISA_NAME(adamw))
{
    struct range range;
    const struct kernel_adamw *all = args;
    const struct kernel_adamw_piece *a = adamw_piece(all, item, &range);
    if (all->moments == KERNEL_BF16)
        BY_TYPE(all->gradients, adamw_rows, a, range);
    else if (all->gradients == KERNEL_BF16)
        adamw_range(a, range, a->numbers->l2 != 0, true);
    else if (a->numbers->l2 != 0)
        adamw_range(a, range, true, false);
    else
        adamw_range(a, range, false, false);
}

/* Sixteen lanes of double: two registers for each register of floats. */
typedef double doubles __attribute__((vector_size(4 * WIDTH)));
typedef float doubles_as_float __attribute__((vector_size(2 * WIDTH)));
#define DOUBLES (WIDTH / 2)

INLINE void add_squares(doubles *sum, const float *x)
{
#pragma GCC unroll 8
    for (size_t part = 0; part < LANES / DOUBLES; part++) {
        doubles_as_float narrow_x;
        memcpy(&narrow_x, x + part * DOUBLES, sizeof(narrow_x));
        doubles wide = __builtin_convertvector(narrow_x, doubles);
        sum[part] += wide * wide;
    }
}

/* Sixteen values from element i on, as float. */
INLINE void widen_sixteen(float *out, const uint16_t *x, size_t i, size_t count)
{
    for (size_t l = 0; l < count; l++)
        out[l] = widen_one(x[i + l]);
}

/* The last elements are padded with zeros to sixteen; the lanes are added pairwise. */
INLINE double row_squares(const void *x, size_t first, size_t width, bool bf16)
{
    doubles sum[LANES / DOUBLES] = {0};
    double s[LANES];
    float rest[LANES] = {0};
    size_t whole = width / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        float wide[LANES];
        if (bf16)
            widen_sixteen(wide, x, first + i, LANES);
        add_squares(sum, bf16 ? wide : (const float *)x + first + i);
    }
    if (bf16)
        widen_sixteen(rest, x, first + whole, width - whole);
    else
        memcpy(rest, (const float *)x + first + whole, (width - whole) * sizeof(float));
    add_squares(sum, rest);
    memcpy(s, sum, sizeof(s));
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            s[l] += s[l + half];
    return s[0];
}

ITEM(ISA_NAME(squares))
{
    const struct squares_args *a = args;
    struct range rows = item_range(item, SQUARES_ROWS, a->a.rows);
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t first;
        const struct kernel_squares_piece *piece = squares_piece(&a->a, n, &first);
        double sum = BY_TYPE(a->a.dtype, row_squares, piece->x, first, piece->width);
        exact_add(&a->partial[worker->index], sum);
    }
}

/* Consecutive elements of the tensor: the compiler vectorises the keys. */
INLINE struct digest_sums add_elements(const void *x, size_t at, size_t count, uint64_t first,
                                       bool bf16)
{
    struct digest_sums sums = {{0}};
    uint64_t a = (first + 1) * DIGEST_STEP;
    for (size_t i = at; i < at + count; i++, a += DIGEST_STEP)
        digest_element(&sums, bf16 ? ((const uint16_t *)x)[i] : ((const uint32_t *)x)[i], a);
    return sums;
}

ITEM(ISA_NAME(digest))
{
    const struct digest_args *all = args;
    const struct kernel_digest *a = &all->a;
    struct range range = item_range(item, FLAT_ITEM, a->rows * a->width);
    for (size_t i = range.begin, n; i < range.end; i += n) {
        uint64_t row = i / a->width, column = i % a->width;
        uint64_t first = a->first + row * a->stride + column;
        n = a->width - column < range.end - i ? a->width - column : range.end - i;
        struct digest_sums sums = BY_TYPE(a->dtype, add_elements, a->x, i, n, first);
        all->partial[worker->index].of[0] += sums.of[0];
        all->partial[worker->index].of[1] += sums.of[1];
    }
}

/* ---- The table of this level ---- */

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define X(slot) .slot = ISA_NAME(slot),
const struct kernel_ops ISA_NAME(kernel_ops) = {
    .name = STRING(ISA), .strip_rows = TILE_ROWS, KERNEL_SLOTS(X, X)};
#undef X
