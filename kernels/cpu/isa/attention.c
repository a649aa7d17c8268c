/* attention.c - causal grouped-query attention, forward and backward, in tiles that stay in the
 * cache.
 *
 * The lanes are queries: about 64 of them, some positions of all heads that share a key head.
 * Scores are transposed, [key][query], so maximum, sum and scaling of a softmax are plain vector
 * operations without sums across lanes. A key's element is broadcast to all queries.
 * tests/bench/kernels_products.c compares the speed with library calls per head, which matters for
 * narrow heads.
 *
 * Forward: blocks of ATTENTION_KEYS keys up to the last query's position (scores above the diagonal
 * are not computed), running maximum and sum per query, out rescaled when the maximum moves.
 * Backward: per key head, tiles of queries in order; probabilities again from lse, p = e^(s
 * - lse), ds = p (dout v - dout out); dq per tile, dkey and dvalue summed in float over the tiles
 * in order.
 *
 * All values inside are float, for every type of the tensors. D is padded to 16 with zeros.
 * Letters: L queries of a tile, W = D rounded up to 16, j keys. */
#include <math.h>

#include "kernels/cpu/isa/isa.h"

#define HIDDEN_MAX -1e30f /* below every score */

/* Query l = head * positions + p of a tile is head (g * group + head) at position first + p.
 * Queries past the end of the sequence, and up to a multiple of 16, are padding: zeros, never
 * stored. */
struct queries {
    const struct attention_args *a;
    size_t b, g, group;
    size_t positions, row, first,
        count; /* positions of a tile; row and position of its first query; number of queries */
    size_t num_lanes, width;
    float *limit; /* [L] last visible key of a query */
    float *rows;  /* [L,W] */
};

static struct queries queries_of(const struct attention_args *a, size_t b, size_t g, size_t tile)
{
    struct queries q = {.a = a, .b = b, .g = g, .group = a->heads / a->kv_heads};
    q.positions = attention_positions(a);
    q.row = tile * q.positions;
    q.first = a->first + q.row;
    q.count = a->queries - q.row < q.positions ? a->queries - q.row : q.positions;
    q.num_lanes = round_up(q.positions * q.group, LANES);
    q.width = round_up(a->head_dim, LANES);
    return q;
}

static size_t query_at(const struct queries *q, size_t head, size_t p)
{
    const struct attention_args *a = q->a;
    return ((q->b * a->queries + q->row + p) * a->heads + q->g * q->group + head) * a->head_dim;
}

static size_t key_at(const struct queries *q, size_t j)
{
    const struct attention_args *a = q->a;
    return ((q->b * a->seq + j) * a->kv_heads + q->g) * a->head_dim;
}

static void set_limits(const struct queries *q)
{
    for (size_t l = 0; l < q->num_lanes; l++) {
        size_t p = l % q->positions;
        q->limit[l] = (float)(q->first + (p < q->count ? p : q->count - 1));
    }
}

/* ---- Tensors to tiles and back ---- */

/* rows[L,W] = x * scale, zeros in the padding */
INLINE void read_rows_as(const struct queries *q, float *rows, const void *x, float scale,
                         bool bf16)
{
    size_t dim = q->a->head_dim;
    if (q->count * q->group < q->num_lanes || dim < q->width)
        memset(rows, 0, q->num_lanes * q->width * sizeof(float));
    for (size_t head = 0; head < q->group; head++) {
        for (size_t p = 0; p < q->count; p++) {
            size_t from = query_at(q, head, p), to = (head * q->positions + p) * q->width;
            for (size_t d = 0; d < dim; d += WIDTH) {
                size_t count = part_of(d, dim);
                store(rows, to + d, load_part(x, from + d, count, bf16) * scale, false);
            }
        }
    }
}

static void read_rows(const struct queries *q, float *rows, const void *x, float scale)
{
    BY_TYPE(q->a->dtype, read_rows_as, q, rows, x, scale);
}

INLINE void write_rows_as(const struct queries *q, void *x, const float *rows, bool bf16)
{
    size_t dim = q->a->head_dim;
    for (size_t head = 0; head < q->group; head++) {
        for (size_t p = 0; p < q->count; p++) {
            size_t to = query_at(q, head, p), from = (head * q->positions + p) * q->width;
            for (size_t d = 0; d < dim; d += WIDTH) {
                size_t count = part_of(d, dim);
                store_part(x, to + d, load(rows, from + d, false), count, bf16);
            }
        }
    }
}

static void write_rows(const struct queries *q, void *x, const float *rows)
{
    BY_TYPE(q->a->dtype, write_rows_as, q, x, rows);
}

#if WIDTH == 16
#define ROUNDS 4
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif WIDTH == 8
#define ROUNDS 3
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ROUNDS 2
#define LOW_HALVES 0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#endif

/* WIDTH rows of WIDTH: log2(WIDTH) rounds of interleaving row i with row i + WIDTH / 2. */
INLINE void transpose_square(float *out, size_t out_row, const float *in, size_t in_row)
{
    lanes x[WIDTH], y[WIDTH];
#pragma GCC unroll 16
    for (size_t i = 0; i < WIDTH; i++)
        x[i] = load(in, i * in_row, false);
#pragma GCC unroll 4
    for (int round = 0; round < ROUNDS; round++) {
#pragma GCC unroll 8
        for (size_t i = 0; i < WIDTH / 2; i++) {
            y[2 * i] = __builtin_shufflevector(x[i], x[i + WIDTH / 2], LOW_HALVES);
            y[2 * i + 1] = __builtin_shufflevector(x[i], x[i + WIDTH / 2], HIGH_HALVES);
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < WIDTH; i++)
            x[i] = y[i];
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < WIDTH; i++)
        store(out, i * out_row, x[i], false);
}

/* out[columns,rows] = in[rows,columns]; both multiples of 16 */
static void transpose(float *out, const float *in, size_t rows, size_t columns)
{
    for (size_t r = 0; r < rows; r += WIDTH)
        for (size_t c = 0; c < columns; c += WIDTH)
            transpose_square(out + c * rows + r, rows, in + r * columns + c, columns);
}

/* A block of keys or values as floats: the tensor itself, or a copy in `buffer`. */
struct keys {
    const float *at;
    size_t row;
};
static struct keys read_keys(const struct queries *q, float *buffer, const void *x, size_t j,
                             size_t count)
{
    size_t dim = q->a->head_dim;
    if (q->a->dtype == KERNEL_F32)
        return (struct keys){(const float *)x + key_at(q, j), q->a->kv_heads * dim};
    for (size_t i = 0; i < count; i++) {
        for (size_t d = 0; d < dim; d += WIDTH) {
            size_t part = part_of(d, dim);
            store(buffer, i * q->width + d, load_part(x, key_at(q, j + i) + d, part, true), false);
        }
    }
    return (struct keys){buffer, q->width};
}

/* ---- Products; [j,L] = keys x[W,L]; y[W,L] += keys^T s[j,L] ---- */

static void keys_by_queries(const struct queries *q, float *out, struct keys keys, size_t count,
                            const float *x)
{
    size_t lanes = q->num_lanes;
    ISA_NAME(block_product)
    (&(struct block){.c = out,
                     .a = keys.at,
                     .b = x,
                     .c_row = lanes,
                     .a_row = keys.row,
                     .a_column = 1,
                     .b_row = lanes,
                     .m = count,
                     .n = lanes,
                     .k = q->a->head_dim});
}

static void add_keys_times(const struct queries *q, float *y, struct keys keys, size_t count,
                           const float *s)
{
    size_t lanes = q->num_lanes;
    ISA_NAME(block_product)
    (&(struct block){.c = y,
                     .a = keys.at,
                     .b = s,
                     .c_row = lanes,
                     .a_row = 1,
                     .a_column = keys.row,
                     .b_row = lanes,
                     .m = q->a->head_dim,
                     .n = lanes,
                     .k = count,
                     .accumulate = true});
}

/* y[j,W] += s[j,L] rows[L,W] */
static void add_times_rows(const struct queries *q, float *y, const float *s, size_t count,
                           const float *rows)
{
    size_t lanes = q->num_lanes;
    ISA_NAME(block_product)
    (&(struct block){.c = y,
                     .a = s,
                     .b = rows,
                     .c_row = q->width,
                     .a_row = lanes,
                     .a_column = 1,
                     .b_row = q->width,
                     .m = count,
                     .n = q->width,
                     .k = lanes,
                     .accumulate = true});
}

/* Sets the scores of keys before a query's document to minus infinity. */
static void mask_documents(const struct queries *q, float *scores, size_t j, size_t count)
{
    const struct attention_args *a = q->a;
    for (size_t l = 0; l < q->num_lanes; l++) {
        size_t p = l % q->positions;
        size_t start = attention_start(a, q->b, q->first + (p < q->count ? p : q->count - 1));
        for (size_t i = 0; i < count && j + i < start; i++)
            scores[i * q->num_lanes + l] = -__builtin_inff();
    }
}

/* The block of the first visible key of the tile's first query; no query sees earlier keys. */
static size_t first_block(const struct queries *q)
{
    return attention_start(q->a, q->b, q->first) / ATTENTION_KEYS * ATTENTION_KEYS;
}

/* Sets the scores of keys that a query does not see to minus infinity. */
static void mask(const struct queries *q, float *scores, size_t j, size_t count)
{
    for (size_t l = 0; l < q->num_lanes; l += WIDTH) {
        lanes limit = load(q->limit, l, false);
        for (size_t i = 0; i < count; i++) {
            if (j + i <= q->first)
                continue;
            size_t at = i * q->num_lanes + l;
            lanes hidden = broadcast(-__builtin_inff());
            lanes score = load(scores, at, false);
            store(scores, at, where_less(limit, broadcast((float)(j + i)), hidden, score), false);
        }
    }
    if (q->a->starts != NULL)
        mask_documents(q, scores, j, count);
}

/* ---- Forward ---- */

struct softmax {
    float *max, *sum; /* [L] */
    float *out;       /* [W,L] sum of p v, not yet divided by sum */
};

/* scores[j,L] become e^(score - max); max, sum and out follow. */
static void softmax_block(const struct queries *q, struct softmax *s, float *scores, size_t count)
{
    size_t row = q->num_lanes;
    for (size_t l = 0; l < row; l += WIDTH) {
        lanes before = load(s->max, l, false), max = before;
        for (size_t i = 0; i < count; i++)
            max = larger(load(scores, i * row + l, false), max);
        lanes shrink = exponential(before - max, true);
        lanes sum = load(s->sum, l, false) * shrink;
        for (size_t i = 0; i < count; i++) {
            lanes p = exponential(load(scores, i * row + l, false) - max, true);
            sum += p;
            store(scores, i * row + l, p, false);
        }
        for (size_t d = 0; d < q->a->head_dim; d++)
            store(s->out, d * row + l, load(s->out, d * row + l, false) * shrink, false);
        store(s->max, l, max, false);
        store(s->sum, l, sum, false);
    }
}

/* Natural logarithm of x >= 1, absolute error 2e-7; NaN for infinity and NaN. The series of
 * 2 atanh((m - 1) / (m + 1)), with m in [sqrt(1/2), sqrt(2)). */
INLINE lanes logarithm(lanes x)
{
    const uint32_t half_root = 0x3f3504f3; /* sqrt(1/2) */
    lanes_u32 exponent = ((lanes_u32)x - half_root) >> 23;
    lanes m = (lanes)((lanes_u32)x - (exponent << 23));
    lanes f = (m - 1.0f) / (m + 1.0f), square = f * f;
    lanes p = square * (1.0f / 9) + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    p = p * square * f + f;
    lanes whole = __builtin_convertvector((lanes_i32)exponent, lanes);
    return whole * 0x1.62e430p-1f + 2.0f * p + (x - x);
}

static void write_out(const struct queries *q, const struct softmax *s)
{
    const struct attention_args *a = q->a;
    size_t row = q->num_lanes;
    for (size_t l = 0; l < row; l += WIDTH) {
        lanes inverse = 1.0f / load(s->sum, l, false);
        for (size_t d = 0; d < a->head_dim; d++)
            store(s->out, d * row + l, load(s->out, d * row + l, false) * inverse, false);
        lanes lse = load(s->max, l, false) + logarithm(load(s->sum, l, false));
        store(s->max, l, lse, false);
    }
    transpose(q->rows, s->out, q->width, row);
    write_rows(q, a->out, q->rows);
    for (size_t head = 0; head < q->group; head++) {
        size_t to = (q->b * a->heads + q->g * q->group + head) * a->queries + q->row;
        memcpy(a->lse + to, s->max + head * q->positions, q->count * sizeof(float));
    }
}

ITEM(ISA_NAME(attention))
{
    const struct attention_args *a = args;
    size_t tiles = divide_up(a->queries, attention_positions(a)), pair = item / tiles;
    struct queries q = queries_of(a, pair / a->kv_heads, pair % a->kv_heads, item % tiles);
    size_t area = q.num_lanes * q.width;
    float *x = worker->scratch;
    struct softmax s = {.out = x + 2 * area, .max = x + 3 * area};
    s.sum = s.max + q.num_lanes;
    q.rows = x + area;
    q.limit = s.sum + q.num_lanes;
    float *scores = q.limit + q.num_lanes, *keys = scores + ATTENTION_KEYS * q.num_lanes;

    read_rows(&q, q.rows, a->q, 1.0f / sqrtf((float)a->head_dim));
    transpose(x, q.rows, q.num_lanes, q.width);
    set_limits(&q);
    memset(s.out, 0, area * sizeof(float));
    for (size_t l = 0; l < q.num_lanes; l++) {
        /* Finite if a whole block may be hidden: infinity minus infinity is NaN. */
        s.max[l] = a->starts != NULL ? HIDDEN_MAX : -__builtin_inff();
        s.sum[l] = 0;
    }
    size_t end = q.first + q.count;
    for (size_t j = first_block(&q); j < end; j += ATTENTION_KEYS) {
        size_t count = end - j < ATTENTION_KEYS ? end - j : ATTENTION_KEYS;
        keys_by_queries(&q, scores, read_keys(&q, keys, a->key, j, count), count, x);
        mask(&q, scores, j, count);
        softmax_block(&q, &s, scores, count);
        add_keys_times(&q, s.out, read_keys(&q, keys, a->value, j, count), count, scores);
    }
    write_out(&q, &s);
}

/* ---- Backward ---- */

struct gradients {
    float *q, *dout, *dq;           /* [W,L] */
    float *q_rows, *dout_rows;      /* [L,W]; q scaled */
    float *lse, *delta;             /* [L] */
    float *scores, *dscores;        /* [j,L] */
    float *key_block, *value_block; /* [j,W] */
    float *dkey, *dvalue;           /* [T,W] of this key head */
};

static void gradients_place(struct gradients *out, struct queries *q, float *x)
{
    size_t area = q->num_lanes * q->width, block = ATTENTION_KEYS * q->width;
    size_t scores = ATTENTION_KEYS * q->num_lanes, lanes = q->num_lanes;
    out->q = x;
    out->dout = x + area;
    out->dq = x + 2 * area;
    out->q_rows = x + 3 * area;
    out->dout_rows = x + 4 * area;
    q->rows = x + 5 * area;
    out->scores = x + 6 * area;
    out->dscores = out->scores + scores;
    out->key_block = out->dscores + scores;
    out->value_block = out->key_block + block;
    out->lse = out->value_block + block;
    out->delta = out->lse + lanes;
    q->limit = out->delta + lanes;
    out->dkey = q->limit + lanes;
    out->dvalue = out->dkey + round_up(q->a->seq, ATTENTION_KEYS) * q->width;
}

/* Reads the tile's queries: q and dout, in both layouts, lse, and delta = sum over d of dout
 * out. */
static void read_queries(const struct queries *q, const struct gradients *g)
{
    const struct attention_args *a = q->a;
    size_t row = q->num_lanes;
    read_rows(q, g->q_rows, a->q, 1.0f / sqrtf((float)a->head_dim));
    transpose(g->q, g->q_rows, row, q->width);
    read_rows(q, g->dout_rows, a->dout, 1.0f);
    transpose(g->dout, g->dout_rows, row, q->width);
    read_rows(q, q->rows, a->out_in, 1.0f);
    transpose(g->dq, q->rows, row, q->width); /* holds out until dq is needed */
    for (size_t l = 0; l < row; l += WIDTH) {
        lanes sum = {0};
        for (size_t d = 0; d < a->head_dim; d++)
            sum += load(g->dout, d * row + l, false) * load(g->dq, d * row + l, false);
        store(g->delta, l, sum, false);
    }
    for (size_t l = 0; l < row; l++)
        g->lse[l] = __builtin_inff(); /* padding: no probability */
    for (size_t head = 0; head < q->group; head++) {
        size_t from = (q->b * a->heads + q->g * q->group + head) * a->queries + q->row;
        memcpy(g->lse + head * q->positions, a->lse_in + from, q->count * sizeof(float));
    }
    memset(g->dq, 0, row * q->width * sizeof(float));
}

/* scores become p, dscores (dout v on entry) become ds. */
static void probabilities(const struct queries *q, const struct gradients *g, size_t count)
{
    size_t row = q->num_lanes;
    for (size_t l = 0; l < row; l += WIDTH) {
        lanes lse = load(g->lse, l, false), delta = load(g->delta, l, false);
        for (size_t i = 0; i < count; i++) {
            lanes p = exponential(load(g->scores, i * row + l, false) - lse, true);
            lanes ds = p * (load(g->dscores, i * row + l, false) - delta);
            store(g->scores, i * row + l, p, false);
            store(g->dscores, i * row + l, ds, false);
        }
    }
}

static void backward_tile(const struct queries *q, const struct gradients *g)
{
    const struct attention_args *a = q->a;
    size_t row = q->num_lanes, end = q->first + q->count;
    set_limits(q);
    read_queries(q, g);
    for (size_t j = first_block(q); j < end; j += ATTENTION_KEYS) {
        size_t count = end - j < ATTENTION_KEYS ? end - j : ATTENTION_KEYS;
        struct keys key = read_keys(q, g->key_block, a->key, j, count);
        struct keys value = read_keys(q, g->value_block, a->value, j, count);
        keys_by_queries(q, g->scores, key, count, g->q);
        mask(q, g->scores, j, count);
        keys_by_queries(q, g->dscores, value, count, g->dout);
        probabilities(q, g, count);
        add_times_rows(q, g->dvalue + j * q->width, g->scores, count, g->dout_rows);
        add_times_rows(q, g->dkey + j * q->width, g->dscores, count, g->q_rows);
        add_keys_times(q, g->dq, key, count, g->dscores);
    }
    float scale = 1.0f / sqrtf((float)a->head_dim);
    for (size_t i = 0; i < row * q->width; i += WIDTH)
        store(g->dq, i, load(g->dq, i, false) * scale, false);
    transpose(q->rows, g->dq, q->width, row);
    write_rows(q, a->dq, q->rows);
}

/* Reads the sums of an earlier range of queries; zeros if there are none. */
static void read_sums(const struct queries *q, float *sums, const void *x)
{
    size_t dim = q->a->head_dim;
    memset(sums, 0, q->a->seq * q->width * sizeof(float));
    for (size_t j = 0; q->a->accumulate && j < q->a->seq; j++)
        memcpy(sums + j * q->width, (const float *)x + key_at(q, j), dim * sizeof(float));
}

static void write_keys(const struct queries *q, void *x, const float *sums)
{
    size_t dim = q->a->head_dim;
    bool bf16 = q->a->sums == KERNEL_BF16;
    for (size_t j = 0; j < q->a->seq; j++) {
        for (size_t d = 0; d < dim; d += WIDTH) {
            size_t count = part_of(d, dim);
            store_part(x, key_at(q, j) + d, load(sums, j * q->width + d, false), count, bf16);
        }
    }
}

ITEM(ISA_NAME(attention_backward))
{
    const struct attention_args *a = args;
    size_t b = item / a->kv_heads, head = item % a->kv_heads;
    struct queries q = queries_of(a, b, head, 0);
    struct gradients g;
    gradients_place(&g, &q, worker->scratch);
    read_sums(&q, g.dkey, a->dkey);
    read_sums(&q, g.dvalue, a->dvalue);
    size_t tiles = divide_up(a->queries, q.positions);
    for (size_t tile = 0; tile < tiles; tile++) {
        q = queries_of(a, b, head, tile);
        gradients_place(&g, &q, worker->scratch);
        backward_tile(&q, &g);
    }
    write_keys(&q, a->dkey, g.dkey);
    write_keys(&q, a->dvalue, g.dvalue);
}
