/* reference.c - every operation in plain C.
 *
 * Tests compare the other back-ends with it. It is also a back-end (KERNEL_BACKEND_REFERENCE) for
 * sanitizers and for doubtful results. It computes one value at a time, with sums in double,
 * rounded to the type of the result at the end; no blocking, no vectors, the C library's exp and
 * log. Items are those of all back-ends (cpu/items.h), so it runs on the same pool. */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/items.h"

/* ---- Values ---- */

static float from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof(out));
    return out;
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float get_value(const void *x, size_t i, enum kernel_dtype dtype)
{
    return dtype == KERNEL_F32 ? ((const float *)x)[i] : from_bf16(((const uint16_t *)x)[i]);
}

static void put_value(void *x, size_t i, double value, enum kernel_dtype dtype)
{
    if (dtype == KERNEL_F32)
        ((float *)x)[i] = (float)value;
    else
        ((uint16_t *)x)[i] = to_bf16((float)value);
}

/* ---- Embedding ---- */

static ITEM(embedding)
{
    const struct kernel_embedding *a = args;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    size_t bytes = a->dim * kernel_dtype_bytes(a->dtype);
    for (size_t n = rows.begin; n < rows.end; n++)
        memcpy((char *)a->out + n * bytes, (const char *)a->table + (size_t)a->tokens[n] * bytes,
               bytes);
}

static bool is_first_of_token(const struct kernel_embedding_backward *a, size_t n)
{
    for (size_t before = 0; before < n; before++)
        if (a->tokens[before] == a->tokens[n])
            return false;
    return true;
}

/* Column c of the leaf's row for the token of row n; 0 if an earlier row has the token, too. */
static float embedding_leaf(const struct kernel_embedding_backward *a, size_t n, size_t c)
{
    float sum = 0;
    if (!is_first_of_token(a, n))
        return 0;
    for (size_t m = n; m < a->rows; m++)
        if (a->tokens[m] == a->tokens[n])
            sum += get_value(a->dout, m * a->dim + c, a->dtype);
    return sum;
}

static ITEM(embedding_backward)
{
    const struct kernel_embedding_backward *a = &((const struct embedding_backward_args *)args)->a;
    struct range columns = item_range(item, COLUMN_ITEM, a->dim);
    bool is_folded = a->is_folded || a->seen;
    for (size_t c = columns.begin; c < columns.end; c++) {
        for (size_t v = 0; v < a->vocab && !is_folded; v++)
            a->dtable[v * a->dim + c] = 0;
        for (size_t n = 0; n < a->rows; n++) {
            float *sum = &a->dtable[(size_t)a->tokens[n] * a->dim + c];
            if (a->seen && a->seen[a->tokens[n]] == 0 && is_first_of_token(a, n))
                *sum = 0;
            *sum +=
                is_folded ? embedding_leaf(a, n, c) : get_value(a->dout, n * a->dim + c, a->dtype);
        }
    }
}

/* ---- RMSNorm: out = x rstd weight, rstd = 1 / sqrt(mean(x^2) + eps) ---- */

static ITEM(norm)
{
    const struct kernel_rmsnorm *a = args;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t row = n * a->dim;
        double sum = 0;
        for (size_t c = 0; c < a->dim; c++) {
            if (a->residual)
                put_value(a->x, row + c,
                          get_value(a->x, row + c, a->dtype) +
                              get_value(a->residual, row + c, a->dtype),
                          a->dtype);
            double x = get_value(a->x, row + c, a->dtype);
            sum += x * x;
        }
        double rstd = 1 / sqrt(sum / a->dim + a->eps);
        a->rstd[n] = (float)rstd;
        for (size_t c = 0; c < a->dim; c++)
            put_value(a->out, row + c,
                      get_value(a->x, row + c, a->dtype) * rstd * get_value(a->weight, c, a->dtype),
                      a->dtype);
    }
}

/* With u = dout weight and h = x rstd: dx += rstd (u - h mean(u h)), dweight = sum over rows of
 * dout h. */
static ITEM(norm_backward)
{
    const struct norm_backward_args *all = args;
    const struct kernel_rmsnorm_backward *a = &all->a;
    struct range rows = item_range(item, NORM_ROWS, a->rows);
    float *partial = all->partial + (size_t)item * a->dim;
    memset(partial, 0, a->dim * sizeof(float));
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t row = n * a->dim;
        double rstd = a->rstd[n], dot = 0;
        for (size_t c = 0; c < a->dim; c++)
            dot += (double)get_value(a->dout, row + c, a->dtype) *
                   get_value(a->weight, c, a->dtype) * get_value(a->x, row + c, a->dtype) * rstd;
        for (size_t c = 0; c < a->dim; c++) {
            double d = get_value(a->dout, row + c, a->dtype);
            double h = get_value(a->x, row + c, a->dtype) * rstd;
            double gradient = rstd * (d * get_value(a->weight, c, a->dtype) - h * dot / a->dim);
            put_value(a->dx, row + c, get_value(a->dx, row + c, a->dtype) + gradient, a->dtype);
            partial[c] += (float)(d * h);
        }
    }
}

static ITEM(norm_dweight)
{
    const struct norm_backward_args *all = args;
    const struct kernel_rmsnorm_backward *a = &all->a;
    struct range columns = item_range(item, COLUMN_ITEM, a->dim);
    for (size_t c = columns.begin; c < columns.end; c++) {
        float sum = 0;
        for (size_t s = 0; s < divide_up(a->rows, NORM_ROWS); s++)
            sum += all->partial[s * a->dim + c];
        a->dweight[c] = sum;
    }
}

/* ---- Products ---- */

static ITEM(product)
{
    /* A copy: the fields are not read again for every element. */
    const struct product_args own = *(const struct product_args *)args, *p = &own;
    struct range rows = item_range(item, p->item_rows, p->m);
    for (size_t m = rows.begin; m < rows.end; m++) {
        for (size_t n = 0; n < p->n; n++) {
            double sum = p->accumulate ? get_value(p->c, m * p->n + n, p->out) : 0;
            for (size_t k = 0; k < p->k; k++)
                sum += (double)get_value(p->a, m * p->a_row + k * p->a_column, p->in) *
                       get_value(p->b, k * p->b_row + n * p->b_column, p->in);
            if (p->is_folded)
                sum = (float)sum + get_value(p->c, m * p->n + n, p->out);
            put_value(p->c, m * p->n + n, sum, p->out);
        }
    }
}

/* ---- Rotary embedding ---- */

static ITEM(rope)
{
    const struct kernel_rope *a = args;
    struct range rows = item_range(item, ROPE_ROWS, (size_t)a->batch * a->seq);
    size_t half = a->head_dim / 2;
    for (size_t n = rows.begin; n < rows.end; n++) {
        const float *cosines = a->cos + rope_position(a, n) * half;
        const float *sines = a->sin + rope_position(a, n) * half;
        for (size_t i = 0; i < a->heads * half; i++) {
            size_t at = n * a->heads * a->head_dim + 2 * i;
            double c = cosines[i % half], s = a->inverse ? -sines[i % half] : sines[i % half];
            double x0 = get_value(a->x, at, a->dtype), x1 = get_value(a->x, at + 1, a->dtype);
            put_value(a->x, at, x0 * c - x1 * s, a->dtype);
            put_value(a->x, at + 1, x0 * s + x1 * c, a->dtype);
        }
    }
}

/* ---- Attention ---- */

/* The place of head h of sequence b at position t, in [B,Q,H,D] and in [B,T,K,D]. */
static size_t query_at(const struct attention_args *a, size_t b, size_t t, size_t h)
{
    return ((b * a->queries + t - a->first) * a->heads + h) * a->head_dim;
}
static size_t key_at(const struct attention_args *a, size_t b, size_t t, size_t g)
{
    return ((b * a->seq + t) * a->kv_heads + g) * a->head_dim;
}
static size_t lse_at(const struct attention_args *a, size_t b, size_t t, size_t h)
{
    return (b * a->heads + h) * a->queries + t - a->first;
}

static double dot(const struct attention_args *a, const void *x, size_t x_at, const void *y,
                  size_t y_at)
{
    double sum = 0;
    for (size_t d = 0; d < a->head_dim; d++)
        sum += (double)get_value(x, x_at + d, a->dtype) * get_value(y, y_at + d, a->dtype);
    return sum;
}

/* The scaled scores of one query with its visible keys. */
static void score(const struct attention_args *a, double *scores, size_t b, size_t t, size_t h)
{
    size_t g = h / (a->heads / a->kv_heads);
    for (size_t j = attention_start(a, b, t); j <= t; j++)
        scores[j] =
            dot(a, a->q, query_at(a, b, t, h), a->key, key_at(a, b, j, g)) / sqrt(a->head_dim);
}

/* One query: out = sum over keys j <= t of softmax(q k_j / sqrt(D)) v_j. */
static void attend(const struct attention_args *a, size_t b, size_t t, size_t h, double *p)
{
    size_t g = h / (a->heads / a->kv_heads), q = query_at(a, b, t, h);
    size_t start = attention_start(a, b, t);
    double max = -INFINITY, sum = 0;
    score(a, p, b, t, h);
    for (size_t j = start; j <= t; j++)
        max = p[j] > max ? p[j] : max;
    for (size_t j = start; j <= t; j++)
        sum += p[j] = exp(p[j] - max);
    a->lse[lse_at(a, b, t, h)] = (float)(max + log(sum));
    for (size_t d = 0; d < a->head_dim; d++) {
        double out = 0;
        for (size_t j = start; j <= t; j++)
            out += p[j] / sum * get_value(a->value, key_at(a, b, j, g) + d, a->dtype);
        put_value(a->out, q + d, out, a->dtype);
    }
}

static ITEM(attention)
{
    const struct attention_args *a = args;
    uint32_t positions = attention_positions(a), tiles = (uint32_t)divide_up(a->queries, positions);
    struct range times = item_range(item % tiles, positions, a->queries);
    size_t g = item / tiles % a->kv_heads, b = item / tiles / a->kv_heads;
    size_t group = a->heads / a->kv_heads;
    for (size_t t = times.begin; t < times.end; t++)
        for (size_t h = g * group; h < (g + 1) * group; h++)
            attend(a, b, a->first + t, h, worker->scratch);
}

/* One query's share: p = exp(score - lse), ds = p (dout v_j - dout out); dq, dkey and dvalue
 * follow. dkey and dvalue are sums of one key head, [T,D]; p has room for T values. */
static void attend_backward(const struct attention_args *a, size_t b, size_t t, size_t h,
                            float *dkey, float *dvalue, double *p)
{
    size_t g = h / (a->heads / a->kv_heads), q = query_at(a, b, t, h), width = a->head_dim;
    double scale = 1 / sqrt(a->head_dim), delta = dot(a, a->dout, q, a->out_in, q);
    double lse = a->lse_in[lse_at(a, b, t, h)];
    size_t start = attention_start(a, b, t);
    score(a, p, b, t, h);
    for (size_t j = start; j <= t; j++) {
        size_t key = key_at(a, b, j, g);
        p[j] = exp(p[j] - lse);
        for (size_t d = 0; d < width; d++)
            dvalue[j * width + d] += (float)(p[j] * get_value(a->dout, q + d, a->dtype));
        p[j] *= (dot(a, a->dout, q, a->value, key) - delta) * scale; /* ds */
        for (size_t d = 0; d < width; d++)
            dkey[j * width + d] += (float)(p[j] * get_value(a->q, q + d, a->dtype));
    }
    for (size_t d = 0; d < width; d++) {
        double sum = 0;
        for (size_t j = start; j <= t; j++)
            sum += p[j] * get_value(a->key, key_at(a, b, j, g) + d, a->dtype);
        put_value(a->dq, q + d, sum, a->dtype);
    }
}

static ITEM(attention_backward)
{
    const struct attention_args *a = args;
    size_t g = item % a->kv_heads, b = item / a->kv_heads, group = a->heads / a->kv_heads;
    size_t width = a->head_dim;
    double *p = worker->scratch;
    float *dkey = (float *)(p + a->seq), *dvalue = dkey + a->seq * width;
    memset(dkey, 0, 2 * a->seq * width * sizeof(float));
    for (size_t i = 0; a->accumulate && i < a->seq * width; i++) {
        dkey[i] = get_value(a->dkey, key_at(a, b, i / width, g) + i % width, a->sums);
        dvalue[i] = get_value(a->dvalue, key_at(a, b, i / width, g) + i % width, a->sums);
    }
    for (size_t t = a->first; t < a->first + a->queries; t++)
        for (size_t h = g * group; h < (g + 1) * group; h++)
            attend_backward(a, b, t, h, dkey, dvalue, p);
    for (size_t i = 0; i < a->seq * width; i++) {
        put_value(a->dkey, key_at(a, b, i / width, g) + i % width, dkey[i], a->sums);
        put_value(a->dvalue, key_at(a, b, i / width, g) + i % width, dvalue[i], a->sums);
    }
}

/* ---- SwiGLU: silu(gate) up ---- */

static ITEM(swiglu)
{
    const struct kernel_swiglu *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++) {
        double gate = get_value(a->gate, i, a->dtype);
        put_value(a->out, i, gate / (1 + exp(-gate)) * get_value(a->up, i, a->dtype), a->dtype);
    }
}

static ITEM(swiglu_backward)
{
    const struct kernel_swiglu_backward *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++) {
        double gate = get_value(a->gate, i, a->dtype), up = get_value(a->up, i, a->dtype);
        double dout = get_value(a->dout, i, a->dtype), sigmoid = 1 / (1 + exp(-gate));
        put_value(a->dup, i, dout * gate * sigmoid, a->dtype);
        put_value(a->dgate, i, dout * up * sigmoid * (1 + gate * (1 - sigmoid)), a->dtype);
    }
}

/* ---- Cross entropy ---- */

static void loss_row(const struct kernel_cross_entropy *a, size_t n)
{
    size_t row = n * a->vocab;
    int32_t target = a->targets[n];
    a->losses[n] = 0;
    if (target < 0) {
        for (size_t v = 0; v < a->vocab; v++)
            put_value(a->logits, row + v, 0, a->dtype);
        return;
    }
    double max = -INFINITY, sum = 0;
    for (size_t v = 0; v < a->vocab; v++)
        max = get_value(a->logits, row + v, a->dtype) > max
                  ? get_value(a->logits, row + v, a->dtype)
                  : max;
    for (size_t v = 0; v < a->vocab; v++)
        sum += exp(get_value(a->logits, row + v, a->dtype) - max);
    a->losses[n] = (float)(log(sum) + max - get_value(a->logits, row + (size_t)target, a->dtype));
    for (size_t v = 0; v < a->vocab; v++) {
        double p = exp(get_value(a->logits, row + v, a->dtype) - max) / sum;
        put_value(a->logits, row + v, *a->scale * (p - (v == (size_t)target)), a->dtype);
    }
}

static ITEM(loss)
{
    const struct kernel_cross_entropy *a = args;
    struct range rows = item_range(item, LOSS_ROWS, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++)
        loss_row(a, n);
}

/* ---- Elementwise operations, and the optimizer ---- */

static ITEM(box)
{
    const struct box_args *a = args;
    struct range rows = item_range(item, a->item_rows, a->rows);
    for (size_t n = rows.begin; n < rows.end; n++)
        for (size_t i = 0; i < a->row_bytes; i++)
            a->to[n * a->to_stride + i] = a->from[n * a->from_stride + i];
}

static ITEM(add)
{
    const struct kernel_add *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++)
        if (!a->seen || a->seen[i / a->width] != 0)
            put_value(a->y, i, get_value(a->y, i, a->dtype) + get_value(a->x, i, a->dtype),
                      a->dtype);
}

static ITEM(fold)
{
    const struct kernel_fold *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++) {
        put_value(a->acc, i, (a->is_first ? 0.0f : get_value(a->acc, i, a->dtype)) + a->leaf[i],
                  a->dtype);
        for (size_t n = 1; n <= a->more; n++)
            put_value(a->acc, i, get_value(a->acc, i, a->dtype) + a->leaf[n * a->stride + i],
                      a->dtype);
    }
}

static ITEM(convert)
{
    const struct kernel_convert *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++)
        put_value(a->out, i, a->in[i], a->out_dtype);
}

static ITEM(largest)
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    uint32_t *most = &a->largest[worker->index * FLOAT8_WORKER];
    for (size_t i = range.begin; i < range.end; i++) {
        float x = fabsf(get_value(a->x, i, a->dtype));
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        *most = bits > *most ? bits : *most;
    }
}

/* Element i times the scale, rounded to the format. */
static double to_float8(const struct float8_args *a, size_t i)
{
    double x = ldexp(get_value(a->x, i, a->dtype), a->scale);
    int exponent = x == 0 || ilogb(x) < a->lowest ? a->lowest : ilogb(x);
    double step = ldexp(1, exponent - a->bits);
    return a->scale == FLOAT8_NAN ? NAN : rint(x / step) * step;
}

static ITEM(round_float8)
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++)
        put_value(a->out, i, ldexp(to_float8(a, i), -a->scale), a->dtype);
}

/* For e4m3: eight codes for each power of two from 2^-6 on, eight below. */
static ITEM(float8_encode)
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++) {
        double x = to_float8(a, i), size = fabs(x);
        int exponent = size < 0x1p-6 ? -6 : ilogb(size);
        int code = isnan(x) ? 0x7f : (exponent + 6) * 8 + (int)ldexp(size, 3 - exponent);
        ((uint8_t *)a->out)[i] = (uint8_t)(code | (signbit(x) ? 0x80 : 0));
    }
}

static ITEM(float8_decode)
{
    const struct float8_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->count);
    for (size_t i = range.begin; i < range.end; i++) {
        int code = ((const uint8_t *)a->x)[i], size = code & 0x7f;
        int exponent = size < 8 ? -6 : size / 8 - 7, steps = size < 8 ? size : 8 + size % 8;
        double x = a->scale == FLOAT8_NAN ? NAN : ldexp(steps, exponent - 3);
        put_value(a->out, i, ldexp(code & 0x80 ? -x : x, -a->scale), a->dtype);
    }
}

static ITEM(extremes)
{
    const struct extremes_args *a = args;
    struct range range = item_range(item, FLAT_ITEM, a->a.count);
    for (size_t i = range.begin; i < range.end; i++) {
        float x = fabsf(get_value(a->a.x, i, a->a.dtype));
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        extent_add(&a->partial[worker->index].of, bits);
    }
}

static ITEM(squares)
{
    const struct squares_args *a = args;
    struct range rows = item_range(item, SQUARES_ROWS, a->a.rows);
    for (size_t n = rows.begin; n < rows.end; n++) {
        size_t first;
        const struct kernel_squares_piece *piece = squares_piece(&a->a, n, &first);
        double sum = 0;
        for (size_t i = first; i < first + piece->width; i++) {
            double x = get_value(piece->x, i, a->a.dtype);
            sum += x * x;
        }
        exact_add(&a->partial[worker->index], sum);
    }
}

static ITEM(digest)
{
    const struct digest_args *all = args;
    const struct kernel_digest *a = &all->a;
    struct range range = item_range(item, FLAT_ITEM, a->rows * a->width);
    for (size_t i = range.begin; i < range.end; i++) {
        uint64_t index = a->first + i / a->width * a->stride + i % a->width;
        uint32_t bits =
            a->dtype == KERNEL_BF16 ? ((const uint16_t *)a->x)[i] : ((const uint32_t *)a->x)[i];
        digest_element(&all->partial[worker->index], bits, (index + 1) * DIGEST_STEP);
    }
}

/* The noise that rounds m and v of element i. */
static uint32_t noise_of(const struct kernel_adamw_piece *a, size_t i)
{
    const uint32_t *noise = a->numbers->noise;
    uint32_t row = a->first_row + (uint32_t)(i / a->columns);
    uint32_t column = a->first_column + (uint32_t)(i % a->columns);
    uint32_t key[2] = {noise[0] ^ a->noise[0], noise[1] ^ a->noise[1]};
    return noise_mix(noise_mix(row ^ key[0]) ^ (column + key[1]));
}

static void put_stochastic(void *x, size_t i, float value, uint32_t noise)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    ((uint16_t *)x)[i] = isfinite(value) ? (uint16_t)((bits + noise) >> 16) : to_bf16(value);
}

static ITEM(adamw)
{
    const struct kernel_adamw *all = args;
    const enum kernel_dtype moments = all->moments;
    struct range range;
    const struct kernel_adamw_piece *a = adamw_piece(args, item, &range);
    const struct kernel_adamw_numbers *o = a->numbers;
    for (size_t i = range.begin; i < range.end; i++) {
        float g = get_value(a->grad, i, all->gradients) * o->grad_scale;
        if (o->l2 != 0)
            g += o->l2 * a->param[i];
        float m = get_value(a->exp_avg, i, moments), v = get_value(a->exp_avg_sq, i, moments);
        m = o->is_mean ? m + o->rest1 * (g - m) : o->keep1 * m + o->rest1 * g;
        v = o->is_mean ? v + o->rest2 * (g * g - v) : o->keep2 * v + o->rest2 * g * g;
        double update = m / o->bias1 / (sqrt(v / o->bias2) + o->eps);
        a->param[i] = (float)(a->param[i] - o->lr * (update + o->weight_decay * a->param[i]));
        if (a->copy != NULL)
            put_value(a->copy, i, a->param[i], KERNEL_BF16);
        if (moments == KERNEL_F32) {
            put_value(a->exp_avg, i, m, KERNEL_F32);
            put_value(a->exp_avg_sq, i, v, KERNEL_F32);
        } else {
            uint32_t noise = noise_of(a, i);
            put_stochastic(a->exp_avg, i, m, noise & 0xffff);
            put_stochastic(a->exp_avg_sq, i, v, noise >> 16);
        }
    }
}

#define X(slot) .slot = slot,
#define NONE(slot)
const struct kernel_ops kernel_ops_reference = {.name = "reference", KERNEL_SLOTS(X, NONE)};
#undef NONE
#undef X
