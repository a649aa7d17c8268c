/* attention.cu - causal grouped-query attention for any type and head width, in the order of the
 * CPU. bf16 with heads of 64 or 128 values goes to the tensor cores (flash.cu).
 *
 * Each sum is the chain of cpu/isa/attention.c, with fused multiplications and additions: over the
 * elements of a head for scores, over keys in order for out and dq, with the running maximum and
 * sum renewed every 64 keys; over queries for dkey and dvalue, in the order in which the CPU's
 * tiles have them (positions for 64 lanes, head after head). So the bits are those of its avx2
 * level.
 *
 * A block is one warp. Forward and dq: a thread owns a query, keys pass by. dkey and dvalue: a
 * thread owns a key, queries pass by. What a thread owns lies in shared memory, transposed, so that
 * the threads of a warp meet different banks; what passes by is read by all at once. */
#include "kernels/cuda/attention.h"

#define THREADS WARP
#define KEYS 64       /* keys between two looks at the maximum */
#define TILE_LANES 64 /* queries of a tile of the CPU */

/* out[d][thread] of rows first + thread of [B,T,heads,D], times scale; zeros past the end. */
template <bool BF16, class A>
DEVICE void load_owned(float *out, const void *x, const A &a, uint32_t heads, uint32_t b,
                       uint32_t first, uint32_t head, float scale)
{
    for (uint32_t i = threadIdx.x; i < THREADS * a.head_dim; i += THREADS) {
        uint32_t row = i / a.head_dim, d = i % a.head_dim, t = first + row;
        float value = t < a.seq ? load_one<BF16>(x, row_at(a, heads, b, t, head) + d) : 0;
        out[d * THREADS + row] = value * scale;
    }
}
/* out[row][d] of `count` rows. */
template <bool BF16, class A>
DEVICE void load_passing(float *out, const void *x, const A &a, uint32_t heads, uint32_t b,
                         uint32_t first, uint32_t count, uint32_t head, float scale)
{
    for (uint32_t i = threadIdx.x; i < count * a.head_dim; i += THREADS) {
        uint32_t t = first + i / a.head_dim;
        out[i] = load_one<BF16>(x, row_at(a, heads, b, t, head) + i % a.head_dim) * scale;
    }
}
template <bool BF16, class A>
DEVICE void store_owned(void *x, const float *from, const A &a, uint32_t heads, uint32_t b,
                        uint32_t t, uint32_t head, float scale)
{
    for (uint32_t d = 0; t < a.seq && d < a.head_dim; d++)
        store_one<BF16>(x, row_at(a, heads, b, t, head) + d,
                        from[d * THREADS + threadIdx.x] * scale);
}

/* One chain over d: a row that passes by with the one that the thread owns. */
DEVICE float dot(const float *passing, const float *owned, uint32_t head_dim)
{
    float sum = 0;
    for (uint32_t d = 0; d < head_dim; d++)
        sum = fused(passing[d], owned[d * THREADS + threadIdx.x], sum);
    return sum;
}
/* owned[d] += row[d] x */
DEVICE void add_row(float *owned, const float *row, float x, uint32_t head_dim)
{
    for (uint32_t d = 0; d < head_dim; d++)
        owned[d * THREADS + threadIdx.x] = fused(row[d], x, owned[d * THREADS + threadIdx.x]);
}

/* ---- Forward ---- */

struct query {
    uint32_t b, head, kv_head, first, t, start;
};
template <class A> DEVICE struct query own_query(const A &a)
{
    struct query q = {};
    q.b = blockIdx.z;
    q.head = blockIdx.y;
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.first = blockIdx.x * THREADS;
    q.t = q.first + threadIdx.x;
    q.start = q.t < a.seq ? start_of(a, q.b, q.t) : a.seq;
    return q;
}
DEVICE bool sees(const struct query &q, uint32_t key)
{
    return key <= q.t && key >= q.start;
}

/* The running maximum, the sum of e^(score - max), and what e^ of the maximum's growth is. */
struct softmax {
    float max, sum, shrink;
};
DEVICE void softmax_keys(struct softmax &s, float *scores, const struct query &q, uint32_t first,
                         uint32_t count)
{
    float before = s.max;
    for (uint32_t i = 0; i < count; i++)
        if (sees(q, first + i))
            s.max = larger(scores[i * THREADS + threadIdx.x], s.max);
    s.shrink = exponential<true>(before - s.max);
    s.sum = s.sum * s.shrink;
    for (uint32_t i = 0; i < count; i++) {
        float *score = scores + i * THREADS + threadIdx.x;
        *score = sees(q, first + i) ? exponential<true>(*score - s.max) : 0;
        s.sum = s.sum + *score;
    }
}

template <bool BF16> KERNEL(THREADS, 1) void attention(struct kernel_attention a)
{
    DYNAMIC_SHARED(float, own_q);
    float *out = own_q + THREADS * a.head_dim, *rows = out + THREADS * a.head_dim;
    float *scores = rows + KEYS * a.head_dim;
    const struct query q = own_query(a);
    struct softmax s = {a.starts != NULL ? HIDDEN_MAX : -HUGE_VALF, 0, 0};
    load_owned<BF16>(own_q, a.q, a, a.heads, q.b, q.first, q.head, scale_of(a.head_dim));
    for (uint32_t d = 0; d < a.head_dim; d++)
        out[d * THREADS + threadIdx.x] = 0;
    uint32_t end = smaller(q.first + THREADS, a.seq);
    for (uint32_t j = start_of(a, q.b, q.first) / KEYS * KEYS; j < end; j += KEYS) {
        uint32_t count = smaller(KEYS, end - j);
        BARRIER();
        load_passing<BF16>(rows, a.key, a, a.kv_heads, q.b, j, count, q.kv_head, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count; i++)
            scores[i * THREADS + threadIdx.x] = dot(rows + i * a.head_dim, own_q, a.head_dim);
        softmax_keys(s, scores, q, j, count);
        for (uint32_t d = 0; d < a.head_dim; d++)
            out[d * THREADS + threadIdx.x] = out[d * THREADS + threadIdx.x] * s.shrink;
        BARRIER();
        load_passing<BF16>(rows, a.value, a, a.kv_heads, q.b, j, count, q.kv_head, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count; i++)
            add_row(out, rows + i * a.head_dim, scores[i * THREADS + threadIdx.x], a.head_dim);
    }
    store_owned<BF16>(a.out, out, a, a.heads, q.b, q.t, q.head, 1.0f / s.sum);
    if (q.t < a.seq)
        a.lse[((size_t)q.b * a.heads + q.head) * a.seq + q.t] = s.max + logarithm(s.sum);
}

/* ---- Backward ---- */

/* delta = sum over d of dout out, of a query. */
template <bool BF16>
DEVICE float delta_of(const struct kernel_attention_backward &a, uint32_t b, uint32_t t,
                      uint32_t head)
{
    float sum = 0;
    size_t row = row_at(a, a.heads, b, t, head);
    for (uint32_t d = 0; d < a.head_dim; d++)
        sum = sum + load_one<BF16>(a.dout, row + d) * load_one<BF16>(a.out, row + d);
    return sum;
}
DEVICE float lse_of(const struct kernel_attention_backward &a, uint32_t b, uint32_t t,
                    uint32_t head)
{
    return a.lse[((size_t)b * a.heads + head) * a.seq + t];
}

template <bool BF16> KERNEL(THREADS, 1) void attention_dq(struct kernel_attention_backward a)
{
    DYNAMIC_SHARED(float, own_q);
    uint32_t width = a.head_dim, area = THREADS * width;
    float *own_dout = own_q + area, *dq = own_dout + area, *keys = dq + area, *values = keys + area;
    const struct query q = own_query(a);
    load_owned<BF16>(own_q, a.q, a, a.heads, q.b, q.first, q.head, scale_of(width));
    load_owned<BF16>(own_dout, a.dout, a, a.heads, q.b, q.first, q.head, 1.0f);
    for (uint32_t d = 0; d < width; d++)
        dq[d * THREADS + threadIdx.x] = 0;
    float delta = q.t < a.seq ? delta_of<BF16>(a, q.b, q.t, q.head) : 0;
    float lse = q.t < a.seq ? lse_of(a, q.b, q.t, q.head) : 0;
    uint32_t end = smaller(q.first + THREADS, a.seq);
    for (uint32_t j = start_of(a, q.b, q.first); j < end; j += THREADS) {
        uint32_t count = smaller(THREADS, end - j);
        BARRIER();
        load_passing<BF16>(keys, a.key, a, a.kv_heads, q.b, j, count, q.kv_head, 1.0f);
        load_passing<BF16>(values, a.value, a, a.kv_heads, q.b, j, count, q.kv_head, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count && j + i <= q.t; i++) {
            if (!sees(q, j + i))
                continue;
            float p = exponential<true>(dot(keys + i * width, own_q, width) - lse);
            float ds = p * (dot(values + i * width, own_dout, width) - delta);
            add_row(dq, keys + i * width, ds, width);
        }
    }
    store_owned<BF16>(a.dq, dq, a, a.heads, q.b, q.t, q.head, scale_of(width));
}

/* Queries that pass by, and what is known of each. */
struct passing {
    float *q, *dout, *lse, *delta;
    uint32_t first, count;
};

template <bool BF16>
DEVICE void load_queries(const struct passing &p, const struct kernel_attention_backward &a,
                         uint32_t b, uint32_t head)
{
    BARRIER();
    load_passing<BF16>(p.q, a.q, a, a.heads, b, p.first, p.count, head, scale_of(a.head_dim));
    load_passing<BF16>(p.dout, a.dout, a, a.heads, b, p.first, p.count, head, 1.0f);
    if (threadIdx.x < p.count) {
        p.lse[threadIdx.x] = lse_of(a, b, p.first + threadIdx.x, head);
        p.delta[threadIdx.x] = delta_of<BF16>(a, b, p.first + threadIdx.x, head);
    }
    BARRIER();
}

/* What a thread owns of a key. */
struct owned {
    float *key, *value, *dkey, *dvalue;
    uint32_t b, j;
};
DEVICE void add_queries(const struct owned &o, const struct passing &p,
                        const struct kernel_attention_backward &a)
{
    uint32_t width = a.head_dim;
    for (uint32_t i = 0; i < p.count; i++) {
        uint32_t t = p.first + i;
        if (o.j > t || o.j < start_of(a, o.b, t))
            continue;
        const float *q = p.q + i * width, *dout = p.dout + i * width;
        float probability = exponential<true>(dot(q, o.key, width) - p.lse[i]);
        float ds = probability * (dot(dout, o.value, width) - p.delta[i]);
        add_row(o.dvalue, dout, probability, width);
        add_row(o.dkey, q, ds, width);
    }
}

/* All heads that share the keys add to them, tile after tile of the CPU. */
template <bool BF16> KERNEL(THREADS, 1) void attention_dkv(struct kernel_attention_backward a)
{
    DYNAMIC_SHARED(float, all);
    uint32_t width = a.head_dim, area = THREADS * width, first = blockIdx.x * THREADS;
    uint32_t b = blockIdx.z, kv_head = blockIdx.y, group = a.heads / a.kv_heads;
    struct owned o = {all, all + area, all + 2 * area, all + 3 * area, b, first + threadIdx.x};
    struct passing p = {
        all + 4 * area, all + 5 * area, all + 6 * area, all + 6 * area + THREADS, 0, 0};
    load_owned<BF16>(o.key, a.key, a, a.kv_heads, b, first, kv_head, 1.0f);
    load_owned<BF16>(o.value, a.value, a, a.kv_heads, b, first, kv_head, 1.0f);
    for (uint32_t d = 0; d < width; d++)
        o.dkey[d * THREADS + threadIdx.x] = o.dvalue[d * THREADS + threadIdx.x] = 0;
    uint32_t positions = group >= TILE_LANES ? 1 : TILE_LANES / group;
    for (uint32_t tile = first / positions * positions; tile < a.seq; tile += positions) {
        uint32_t end = smaller(tile + positions, a.seq),
                 chunks = (end - tile + THREADS - 1) / THREADS;
        for (uint32_t i = 0; i < group * chunks; i++) {
            p.first = tile + i % chunks * THREADS;
            p.count = smaller(THREADS, end - p.first);
            load_queries<BF16>(p, a, b, kv_head * group + i / chunks);
            add_queries(o, p, a);
        }
    }
    store_owned<BF16>(a.dkey, o.dkey, a, a.kv_heads, b, o.j, kv_head, 1.0f);
    store_owned<BF16>(a.dvalue, o.dvalue, a, a.kv_heads, b, o.j, kv_head, 1.0f);
}

/* ---- Launches ---- */

#define NOT_SUPPORTED 801 /* cudaErrorNotSupported */

/* A range of queries, which context parallel asks for, has no kernel yet. */
template <class A> static bool is_whole(const A &a)
{
    return a.first == 0 && (a.queries == 0 || a.queries == a.seq);
}

extern "C" int cuda_attention(const struct cuda_call *call, const void *args)
{
    const struct kernel_attention &a = *(const struct kernel_attention *)args;
    if (cuda_flash_fits(a.dtype, a.head_dim))
        return cuda_flash(call, &a);
    if (!is_whole(a))
        return NOT_SUPPORTED;
    dim3 grid(blocks_for(a.seq, THREADS), a.heads, a.batch);
    size_t shared = sizeof(float) * ((2 * THREADS + KEYS) * a.head_dim + THREADS * KEYS);
    return a.dtype == KERNEL_BF16
               ? LAUNCH(call->stream, grid, THREADS, shared, attention<true>, a)
               : LAUNCH(call->stream, grid, THREADS, shared, attention<false>, a);
}

template <bool BF16>
static int backward(const struct cuda_call *call, const struct kernel_attention_backward &a)
{
    size_t row = sizeof(float) * THREADS * a.head_dim;
    dim3 queries(blocks_for(a.seq, THREADS), a.heads, a.batch);
    dim3 keys(blocks_for(a.seq, THREADS), a.kv_heads, a.batch);
    int error = LAUNCH(call->stream, queries, THREADS, 5 * row, attention_dq<BF16>, a);
    return error != 0 ? error
                      : LAUNCH(call->stream, keys, THREADS, 6 * row + 2 * THREADS * sizeof(float),
                               attention_dkv<BF16>, a);
}

extern "C" int cuda_attention_backward(const struct cuda_call *call, const void *args)
{
    const struct kernel_attention_backward &a = *(const struct kernel_attention_backward *)args;
    if (cuda_flash_fits(a.dtype, a.head_dim))
        return cuda_flash_backward(call, &a);
    if (!is_whole(a) || a.is_partial)
        return NOT_SUPPORTED;
    return a.dtype == KERNEL_BF16 ? backward<true>(call, a) : backward<false>(call, a);
}
