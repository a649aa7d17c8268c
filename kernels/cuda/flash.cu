/* flash.cu - attention of bf16 by tensor cores, heads of 64 or 128 values (Dao 2023,
 * "FlashAttention-2").
 *
 * A block of 4 warps owns 64 queries of a head, forward and for dq, or 64 keys for dkey and dvalue;
 * a warp has 16 of them. The passing rows are in two stages of shared memory: asynchronous copies
 * fill one while the other is multiplied. Rows are padded by 16 bytes, so that the eight rows of a
 * matrix are in different banks. Scores and their gradients stay in registers: the sums of one
 * product are the operand of the next one, rounded to bf16.
 *
 * No two blocks add to the same value, and each adds in the order of keys, or of heads and queries:
 * the result has the same bits every time, and needs no memory that grows with the square of the
 * sequence. The cost: the backward computes the scores twice. Keys before a tile's first document,
 * and queries after a tile's last one, are skipped.
 *
 * Scores are kept in powers of two: e^(s - m) is 2^(s log2 e - m log2 e). Scratch: a float for each
 * query and head, the sum of dout out. */
#include "kernels/cuda/attention.h"

#define WARPS 4
#define THREADS (WARPS * WARP)
#define ROWS 64 /* owned by a block */
#define KEYS 64 /* of a stage */
#define CHUNK 8 /* values of a copy */
#define LOG2_E 0x1.715476p+0f
#define LN_2 0x1.62e430p-1f
#define NEVER 0xffffffff /* first visible key of a row past the end */

/* Length of a row in shared memory. */
template <unsigned D> constexpr unsigned width = D + CHUNK;
/* Queries of a stage: as many as the registers allow beside the gradients of keys and values. */
template <unsigned D> constexpr unsigned queries_of = D == 128 ? 32 : 64;

/* Rows of one head of [B,.,heads,D]. */
struct rows {
    uint16_t *at;
    uint32_t stride, count;
};
DEVICE struct rows rows_of(const void *x, uint32_t b, uint32_t count, uint32_t heads, uint32_t head,
                           uint32_t head_dim)
{
    struct rows r = {};
    r.stride = heads * head_dim;
    r.count = count;
    r.at = (uint16_t *)x + (size_t)b * count * r.stride + (size_t)head * head_dim;
    return r;
}

/* Begins to copy N rows from the first on; zeros after the end. */
template <unsigned D, unsigned N>
DEVICE void copy_rows(uint16_t *to, const struct rows &from, uint32_t first)
{
    const unsigned per_row = D / CHUNK;
#pragma unroll
    for (unsigned i = threadIdx.x; i < N * per_row; i += THREADS) {
        uint32_t row = first + i / per_row, at = i % per_row * CHUNK;
        bool is_read = row < from.count;
        copy_async(to + i / per_row * width<D> + at,
                   from.at + (is_read ? (size_t)row * from.stride + at : 0), is_read);
    }
}

/* ---- Products of a warp: 16 rows ---- */

/* sums[16,N] += a[16,D] x[N,D]^T; `row` is the first of a's. */
template <unsigned D, unsigned N>
DEVICE void multiply_rows(float (&sums)[N / 8][4], const uint16_t *a, unsigned row,
                          const uint16_t *x)
{
    unsigned lane = threadIdx.x % WARP, matrix = lane / 8, in = lane % 8;
#pragma unroll
    for (unsigned d = 0; d < D; d += 16) {
        uint32_t left[4], right[4];
        load_matrices(left, a + (row + matrix % 2 * 8 + in) * width<D> + d + matrix / 2 * 8);
#pragma unroll
        for (unsigned j = 0; j < N / 16; j++) {
            load_matrices(right,
                          x + (16 * j + matrix / 2 * 8 + in) * width<D> + d + matrix % 2 * 8);
            multiply_matrices(sums[2 * j], left, right[0], right[1]);
            multiply_matrices(sums[2 * j + 1], left, right[2], right[3]);
        }
    }
}
/* out[16,D] += p[16,N] x[N,D], p as the sums of another product. */
template <unsigned D, unsigned N>
DEVICE void multiply_sums(float (&out)[D / 8][4], const float (&p)[N / 8][4], const uint16_t *x)
{
    unsigned lane = threadIdx.x % WARP, matrix = lane / 8, in = lane % 8;
#pragma unroll
    for (unsigned i = 0; i < N / 16; i++) {
        const float *first = p[2 * i], *second = p[2 * i + 1];
        uint32_t right[4],
            left[4] = {pair_of_bf16(first[0], first[1]), pair_of_bf16(first[2], first[3]),
                       pair_of_bf16(second[0], second[1]), pair_of_bf16(second[2], second[3])};
#pragma unroll
        for (unsigned j = 0; j < D / 16; j++) {
            load_matrices_transposed(right, x + (16 * i + matrix % 2 * 8 + in) * width<D> + 16 * j +
                                                matrix / 2 * 8);
            multiply_matrices(out[2 * j], left, right[0], right[1]);
            multiply_matrices(out[2 * j + 1], left, right[2], right[3]);
        }
    }
}

/* The place of value i of the sums' tile n: row and column within a warp's product. */
DEVICE unsigned row_of(unsigned i)
{
    return threadIdx.x % WARP / 4 + i / 2 * 8;
}
DEVICE unsigned column_of(unsigned n, unsigned i)
{
    return n * 8 + threadIdx.x % WARP % 4 * 2 + i % 2;
}

/* 2^x for x <= 0 or slightly above, relative error 3e-6: the series of e^(x ln 2) on [-1/2,
 * 1/2]. */
DEVICE float power_of_two(float x)
{
    const uint32_t magic_bits = 0x4b400000;
    const float magic = 0x1.8p23f;
    float bounded = larger(-126.0f, x), shifted = bounded + magic, r = bounded - (shifted - magic);
    float p = fused(1.333356e-3f, r, 9.618129e-3f);
    p = fused(p, r, 5.550411e-2f);
    p = fused(p, r, 2.402265e-1f);
    p = fused(p, r, 6.931472e-1f);
    p = fused(p, r, 1.0f);
    return p * float_of((bits_of(shifted) + (127 - magic_bits)) << 23);
}

/* values[16,D] of a warp, times the scale of each of a lane's two rows, to rows from `first` on. */
template <unsigned D>
DEVICE void store_rows(const struct rows &to, uint32_t first, const float (&values)[D / 8][4],
                       float scale, float scale_below)
{
#pragma unroll
    for (unsigned i = 0; i < D / 8 * 2; i++) {
        const float *pair = values[i / 2] + i % 2 * 2;
        uint32_t row = first + row_of(i % 2 * 2);
        float by = i % 2 ? scale_below : scale;
        if (row < to.count)
            *(uint32_t *)(to.at + (size_t)row * to.stride + column_of(i / 2, 0)) =
                pair_of_bf16(pair[0] * by, pair[1] * by);
    }
}

/* ---- Owned queries, passing keys: forward and dq ---- */

/* The queries of a block: rows from `first` on, and a lane's two rows with their positions. */
struct queries {
    uint32_t b, head, kv_head, first, warp_row;
    uint32_t row[2], position[2], start[2]; /* start: the first visible key */
    uint32_t keys_begin, keys_end, all_see; /* all_see: keys from it on are visible to all */
};
/* The longest rows first, since their blocks end last. */
template <class A> DEVICE struct queries own_queries(const A &a)
{
    struct queries q = {};
    q.b = blockIdx.z;
    q.head = blockIdx.y;
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.first = (gridDim.x - 1 - blockIdx.x) * ROWS;
    q.warp_row = threadIdx.x / WARP * 16;
    for (unsigned i = 0; i < 2; i++) {
        q.row[i] = q.first + q.warp_row + row_of(i * 2);
        q.position[i] = a.first + q.row[i];
        q.start[i] = q.row[i] < a.queries ? start_of(a, q.b, q.row[i]) : NEVER;
    }
    uint32_t end = smaller(q.first + ROWS, a.queries);
    q.keys_begin = start_of(a, q.b, q.first) / KEYS * KEYS;
    q.keys_end = a.first + end;
    q.all_see = start_of(a, q.b, end - 1);
    return q;
}
/* True if a key of this tile is hidden from a query of the block. */
DEVICE bool hides(const struct queries &q, uint32_t tile, uint32_t first_position)
{
    return tile + KEYS > first_position + 1 || tile < q.all_see;
}
DEVICE bool sees(const struct queries &q, unsigned half, uint32_t key)
{
    return key <= q.position[half] && key >= q.start[half];
}

template <unsigned D> struct stage {
    uint16_t keys[KEYS * width<D>], values[KEYS * width<D>];
};
template <unsigned D>
DEVICE void copy_stage(struct stage<D> *s, const struct rows &keys, const struct rows &values,
                       uint32_t first)
{
    copy_rows<D, KEYS>(s->keys, keys, first);
    copy_rows<D, KEYS>(s->values, values, first);
    copy_commit();
}

/* For a lane's two rows: the running maximum, and the lane's part of the sum of 2^(score - max). */
struct softmax {
    float max[2], sum[2];
};
/* Turns scores into probabilities; scales out when the maximum grows. */
template <unsigned D>
DEVICE void softmax_tile(struct softmax &s, float (&scores)[KEYS / 8][4], float (&out)[D / 8][4],
                         const struct queries &q, uint32_t tile, bool is_masked, float scale)
{
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        float max = s.max[half], sum = 0;
#pragma unroll
        for (unsigned i = 0; i < KEYS / 8 * 2; i++) {
            float *score = &scores[i / 2][half * 2 + i % 2];
            *score = *score * scale;
            if (!is_masked || sees(q, half, tile + column_of(i / 2, i % 2)))
                max = larger(*score, max);
        }
        max = larger(max, warp_xor(max, 1));
        max = larger(max, warp_xor(max, 2));
        float shrink = power_of_two(s.max[half] - max);
#pragma unroll
        for (unsigned i = 0; i < KEYS / 8 * 2; i++) {
            float *score = &scores[i / 2][half * 2 + i % 2];
            float p = power_of_two(*score - max);
            *score = !is_masked || sees(q, half, tile + column_of(i / 2, i % 2)) ? p : 0;
            sum = sum + *score;
        }
        s.max[half] = max;
        s.sum[half] = s.sum[half] * shrink + sum;
#pragma unroll
        for (unsigned i = 0; i < D / 8 * 2; i++)
            out[i / 2][half * 2 + i % 2] = out[i / 2][half * 2 + i % 2] * shrink;
    }
}

template <unsigned D>
DEVICE void end_softmax(const struct softmax &s, const float (&out)[D / 8][4],
                        const struct kernel_attention &a, const struct queries &q)
{
    float sum[2];
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
        sum[half] = s.sum[half] + warp_xor(s.sum[half], 1);
        sum[half] = sum[half] + warp_xor(sum[half], 2);
        if (q.row[half] < a.queries && threadIdx.x % 4 == 0)
            a.lse[((size_t)q.b * a.heads + q.head) * a.queries + q.row[half]] =
                s.max[half] * LN_2 + logarithm(sum[half]);
    }
    store_rows<D>(rows_of(a.out, q.b, a.queries, a.heads, q.head, D), q.first + q.warp_row, out,
                  1.0f / sum[0], 1.0f / sum[1]);
}

template <unsigned D> KERNEL(THREADS, 2) void flash(struct kernel_attention a)
{
    DYNAMIC_SHARED(uint16_t, own);
    struct stage<D> *stages = (struct stage<D> *)(own + ROWS * width<D>);
    const struct queries q = own_queries(a);
    const struct rows keys = rows_of(a.key, q.b, a.seq, a.kv_heads, q.kv_head, D);
    const struct rows values = rows_of(a.value, q.b, a.seq, a.kv_heads, q.kv_head, D);
    struct softmax s = {{HIDDEN_MAX, HIDDEN_MAX}, {0, 0}};
    float out[D / 8][4] = {}, scale = scale_of(D) * LOG2_E;
    copy_rows<D, ROWS>(own, rows_of(a.q, q.b, a.queries, a.heads, q.head, D), q.first);
    copy_stage<D>(stages, keys, values, q.keys_begin);
    for (uint32_t tile = q.keys_begin, turn = 0; tile < q.keys_end; tile += KEYS, turn ^= 1) {
        float scores[KEYS / 8][4] = {};
        copy_wait<0>();
        BARRIER(); /* copies of other threads are complete, and no thread reads the other stage */
        if (tile + KEYS < q.keys_end)
            copy_stage<D>(stages + (turn ^ 1), keys, values, tile + KEYS);
        multiply_rows<D, KEYS>(scores, own, q.warp_row, stages[turn].keys);
        softmax_tile<D>(s, scores, out, q, tile, hides(q, tile, a.first + q.first), scale);
        multiply_sums<D, KEYS>(out, scores, stages[turn].values);
    }
    end_softmax<D>(s, out, a, q);
}

/* ---- Backward ---- */

struct backward {
    struct kernel_attention_backward a;
    float *delta; /* [B,H,Q], sum over d of dout out */
};

template <unsigned D> KERNEL(THREADS, 1) void flash_delta(struct backward c)
{
    const struct kernel_attention_backward &a = c.a;
    unsigned lane = threadIdx.x % WARP;
    uint32_t head = blockIdx.y, b = blockIdx.z, row = blockIdx.x * WARPS + threadIdx.x / WARP;
    const struct rows dout = rows_of(a.dout, b, a.queries, a.heads, head, D);
    const struct rows out = rows_of(a.out, b, a.queries, a.heads, head, D);
    float sum = 0;
    if (row < a.queries) {
#pragma unroll
        for (unsigned i = 0; i < D / WARP; i++) {
            size_t at = (size_t)row * dout.stride + lane + i * WARP;
            sum = sum + from_bf16(dout.at[at]) * from_bf16(out.at[at]);
        }
    }
#pragma unroll
    for (unsigned mask = WARP / 2; mask > 0; mask /= 2)
        sum = sum + warp_xor(sum, mask);
    if (row < a.queries && lane == 0)
        c.delta[((size_t)b * a.heads + head) * a.queries + row] = sum;
}

/* The gradient of a score from that of its probability; both in place. */
DEVICE void score_gradient(float &p, float &dp, float score, float lse, float delta, bool is_seen)
{
    p = is_seen ? power_of_two(score - lse) : 0;
    dp = is_seen ? p * (dp - delta) : 0;
}

template <unsigned D> KERNEL(THREADS, 2) void flash_dq(struct backward c)
{
    DYNAMIC_SHARED(uint16_t, own_q);
    const struct kernel_attention_backward &a = c.a;
    uint16_t *own_dout = own_q + ROWS * width<D>;
    struct stage<D> *stages = (struct stage<D> *)(own_dout + ROWS * width<D>);
    const struct queries q = own_queries(a);
    const struct rows keys = rows_of(a.key, q.b, a.seq, a.kv_heads, q.kv_head, D);
    const struct rows values = rows_of(a.value, q.b, a.seq, a.kv_heads, q.kv_head, D);
    float dq[D / 8][4] = {}, lse[2] = {}, delta[2] = {}, scale = scale_of(D) * LOG2_E;
    for (unsigned half = 0; half < 2; half++) {
        size_t at = ((size_t)q.b * a.heads + q.head) * a.queries + q.row[half];
        lse[half] = q.row[half] < a.queries ? a.lse[at] * LOG2_E : 0;
        delta[half] = q.row[half] < a.queries ? c.delta[at] : 0;
    }
    copy_rows<D, ROWS>(own_q, rows_of(a.q, q.b, a.queries, a.heads, q.head, D), q.first);
    copy_rows<D, ROWS>(own_dout, rows_of(a.dout, q.b, a.queries, a.heads, q.head, D), q.first);
    copy_stage<D>(stages, keys, values, q.keys_begin);
    for (uint32_t tile = q.keys_begin, turn = 0; tile < q.keys_end; tile += KEYS, turn ^= 1) {
        float p[KEYS / 8][4] = {}, dp[KEYS / 8][4] = {};
        bool is_masked = hides(q, tile, a.first + q.first);
        copy_wait<0>();
        BARRIER(); /* as in flash */
        if (tile + KEYS < q.keys_end)
            copy_stage<D>(stages + (turn ^ 1), keys, values, tile + KEYS);
        multiply_rows<D, KEYS>(p, own_q, q.warp_row, stages[turn].keys);
        multiply_rows<D, KEYS>(dp, own_dout, q.warp_row, stages[turn].values);
#pragma unroll
        for (unsigned i = 0; i < KEYS / 8 * 4; i++) {
            unsigned n = i / 4, at = i % 4;
            score_gradient(p[n][at], dp[n][at], p[n][at] * scale, lse[at / 2], delta[at / 2],
                           !is_masked || sees(q, at / 2, tile + column_of(n, at)));
        }
        multiply_sums<D, KEYS>(dq, dp, stages[turn].keys);
    }
    store_rows<D>(rows_of(a.dq, q.b, a.queries, a.heads, q.head, D), q.first + q.warp_row, dq,
                  scale_of(D), scale_of(D));
}

/* ---- Owned keys, passing queries: dkey and dvalue ---- */

template <unsigned D> struct passing {
    uint16_t q[queries_of<D> * width<D>], dout[queries_of<D> * width<D>];
    float lse[queries_of<D>], delta[queries_of<D>];
    uint32_t start[queries_of<D>];
};
/* Tiles of queries that see keys of a block, head after head of the group. */
struct tiles {
    uint32_t first, count; /* of a head */
};
template <unsigned D>
DEVICE struct tiles tiles_of(const struct kernel_attention_backward &a, uint32_t b, uint32_t key,
                             uint32_t end)
{
    const unsigned each = queries_of<D>;
    struct tiles t = {};
    uint32_t first = key > a.first ? key - a.first : 0, low = first, high = a.queries;
    while (low < high) { /* the first row whose document begins after the keys */
        uint32_t middle = (low + high) / 2;
        if (start_of(a, b, middle) < end)
            low = middle + 1;
        else
            high = middle;
    }
    t.first = first / each;
    t.count = low > first ? (low + each - 1) / each - t.first : 0;
    return t;
}

template <unsigned D>
DEVICE void copy_queries(struct passing<D> *s, const struct backward &c, const struct tiles &t,
                         uint32_t turn)
{
    const unsigned each = queries_of<D>;
    const struct kernel_attention_backward &a = c.a;
    uint32_t b = blockIdx.z, head = blockIdx.y * (a.heads / a.kv_heads) + turn / t.count;
    uint32_t first = (t.first + turn % t.count) * each, row = first + threadIdx.x;
    copy_rows<D, each>(s->q, rows_of(a.q, b, a.queries, a.heads, head, D), first);
    copy_rows<D, each>(s->dout, rows_of(a.dout, b, a.queries, a.heads, head, D), first);
    copy_commit();
    if (threadIdx.x < each) {
        size_t at = ((size_t)b * a.heads + head) * a.queries + row;
        bool is_row = row < a.queries;
        s->lse[threadIdx.x] = is_row ? a.lse[at] * LOG2_E : 0;
        s->delta[threadIdx.x] = is_row ? c.delta[at] : 0;
        s->start[threadIdx.x] = is_row ? start_of(a, b, row) : NEVER;
    }
}

/* Adds the gradients of a warp's 16 keys from the queries of a stage, at positions from `position`
 * on. */
template <unsigned D>
DEVICE void add_queries(float (&dkey)[D / 8][4], float (&dvalue)[D / 8][4], const uint16_t *keys,
                        const uint16_t *values, const struct passing<D> &s, uint32_t key,
                        uint32_t position)
{
    const unsigned each = queries_of<D>;
    unsigned row = threadIdx.x / WARP * 16;
    float p[each / 8][4] = {}, dp[each / 8][4] = {}, scale = scale_of(D) * LOG2_E;
    multiply_rows<D, each>(p, keys, row, s.q);
    multiply_rows<D, each>(dp, values, row, s.dout);
#pragma unroll
    for (unsigned i = 0; i < each / 8 * 4; i++) {
        unsigned n = i / 4, at = i % 4, column = column_of(n, at);
        uint32_t own = key + row + row_of(at);
        score_gradient(p[n][at], dp[n][at], p[n][at] * scale, s.lse[column], s.delta[column],
                       own <= position + column && own >= s.start[column]);
    }
    multiply_sums<D, each>(dvalue, p, s.dout);
    multiply_sums<D, each>(dkey, dp, s.q);
}

/* As bf16, or as a part of a sum. */
template <unsigned D>
DEVICE void store_gradient(void *x, const struct kernel_attention_backward &a, uint32_t first,
                           const float (&values)[D / 8][4], float scale)
{
    if (!a.is_partial) {
        store_rows<D>(rows_of(x, blockIdx.z, a.seq, a.kv_heads, blockIdx.y, D), first, values,
                      scale, scale);
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < D / 8 * 4; i++) {
        uint32_t row = first + row_of(i % 4);
        if (row >= a.seq)
            continue;
        float *sum = (float *)x + key_at(a, blockIdx.z, row, blockIdx.y) + column_of(i / 4, i % 4);
        *sum = (a.accumulate ? *sum : 0) + values[i / 4][i % 4] * scale;
    }
}

template <unsigned D> KERNEL(THREADS, 2) void flash_dkv(struct backward c)
{
    DYNAMIC_SHARED(uint16_t, own_keys);
    const struct kernel_attention_backward &a = c.a;
    uint16_t *own_values = own_keys + ROWS * width<D>;
    struct passing<D> *stages = (struct passing<D> *)(own_values + ROWS * width<D>);
    uint32_t b = blockIdx.z, kv_head = blockIdx.y, key = blockIdx.x * ROWS;
    uint32_t end = smaller(key + ROWS, a.seq), row = key + threadIdx.x / WARP * 16;
    const struct tiles t = tiles_of<D>(a, b, key, end);
    float dkey[D / 8][4] = {}, dvalue[D / 8][4] = {};
    copy_rows<D, ROWS>(own_keys, rows_of(a.key, b, a.seq, a.kv_heads, kv_head, D), key);
    copy_rows<D, ROWS>(own_values, rows_of(a.value, b, a.seq, a.kv_heads, kv_head, D), key);
    copy_commit();
    uint32_t turns = t.count * (a.heads / a.kv_heads);
    if (turns > 0)
        copy_queries<D>(stages, c, t, 0);
    for (uint32_t i = 0; i < turns; i++) {
        copy_wait<0>();
        BARRIER(); /* as in flash */
        if (i + 1 < turns)
            copy_queries<D>(stages + (i + 1) % 2, c, t, i + 1);
        add_queries<D>(dkey, dvalue, own_keys, own_values, stages[i % 2], key,
                       a.first + (t.first + i % t.count) * queries_of<D>);
    }
    copy_wait<0>(); /* copies of keys that no query sees */
    store_gradient<D>(a.dkey, a, row, dkey, scale_of(D));
    store_gradient<D>(a.dvalue, a, row, dvalue, 1.0f);
}

/* ---- Launches ---- */

bool cuda_flash_fits(enum kernel_dtype dtype, uint32_t head_dim)
{
    return dtype == KERNEL_BF16 && (head_dim == 64 || head_dim == 128);
}

template <unsigned D>
static int forward(const struct cuda_call *call, const struct kernel_attention &a)
{
    dim3 grid(blocks_for(a.queries, ROWS), a.heads, a.batch);
    size_t shared = sizeof(uint16_t) * ROWS * width<D> + 2 * sizeof(struct stage<D>);
    return LAUNCH(call->stream, grid, THREADS, shared, flash<D>, a);
}
int cuda_flash(const struct cuda_call *call, const struct kernel_attention *args)
{
    const struct kernel_attention a = with_queries(*args);
    return a.head_dim == 64 ? forward<64>(call, a) : forward<128>(call, a);
}

template <unsigned D> static int backward(const struct cuda_call *call, const struct backward &c)
{
    const struct kernel_attention_backward &a = c.a;
    size_t own = 2 * sizeof(uint16_t) * ROWS * width<D>;
    dim3 rows(blocks_for(a.queries, WARPS), a.heads, a.batch);
    dim3 queries(blocks_for(a.queries, ROWS), a.heads, a.batch);
    dim3 keys(blocks_for(a.seq, ROWS), a.kv_heads, a.batch);
    int error = LAUNCH(call->stream, rows, THREADS, 0, flash_delta<D>, c);
    if (error == 0)
        error = LAUNCH(call->stream, queries, THREADS, own + 2 * sizeof(struct stage<D>),
                       flash_dq<D>, c);
    if (error == 0)
        error = LAUNCH(call->stream, keys, THREADS, own + 2 * sizeof(struct passing<D>),
                       flash_dkv<D>, c);
    return error;
}
int cuda_flash_backward(const struct cuda_call *call, const struct kernel_attention_backward *args)
{
    const struct backward c = {with_queries(*args), (float *)call->scratch};
    return c.a.head_dim == 64 ? backward<64>(call, c) : backward<128>(call, c);
}
