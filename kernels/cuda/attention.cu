/* attention.cu - causal grouped-query attention for any type and head width, in the order of the
 * CPU. bf16 with heads of 64 or 128 values goes to the tensor cores (flash.cu).
 *
 * Each sum is the chain of cpu/isa/attention.c, with fused multiplications and additions: over the
 * elements of a head for scores, over keys in order for out and dq, with the running maximum and
 * sum renewed every 64 keys; over queries for dkey and dvalue, in the order in which the CPU's
 * tiles have them (positions for 64 lanes, head after head). So the bits are those of its avx2
 * level.
 *
 * A block is one warp. Forward and dq: a thread owns a query and loops over keys. dkey and dvalue:
 * a thread owns a key and loops over queries. Owned rows are in shared memory, transposed, so that
 * the threads of a warp use different banks. All threads read the passing rows at once. */
#include "kernels/cuda/attention.h"

#define THREADS WARP
#define KEYS 64       /* keys between two updates of the maximum */
#define TILE_LANES 64 /* queries of a tile of the CPU */

/* Rows of one head of [B,.,heads,D]. */
struct rows {
    size_t at; /* of row 0 */
    size_t stride;
    uint32_t count, head_dim;
};
template <class A> DEVICE struct rows queries_of(const A &a, uint32_t b, uint32_t head)
{
    return {((size_t)b * a.queries * a.heads + head) * a.head_dim, (size_t)a.heads * a.head_dim,
            a.queries, a.head_dim};
}
template <class A> DEVICE struct rows keys_of(const A &a, uint32_t b, uint32_t head)
{
    return {key_at(a, b, 0, head), (size_t)a.kv_heads * a.head_dim, a.seq, a.head_dim};
}

/* out[d][thread] of rows first + thread, times scale; zeros past the end. */
template <bool BF16>
DEVICE void load_owned(float *out, const void *x, const struct rows &r, uint32_t first, float scale)
{
    for (uint32_t i = threadIdx.x; i < THREADS * r.head_dim; i += THREADS) {
        uint32_t row = i / r.head_dim, d = i % r.head_dim;
        float value =
            first + row < r.count ? load_one<BF16>(x, r.at + (first + row) * r.stride + d) : 0;
        out[d * THREADS + row] = value * scale;
    }
}
/* out[row][d] of `count` rows. */
template <bool BF16>
DEVICE void load_passing(float *out, const void *x, const struct rows &r, uint32_t first,
                         uint32_t count, float scale)
{
    for (uint32_t i = threadIdx.x; i < count * r.head_dim; i += THREADS) {
        size_t row = r.at + (first + i / r.head_dim) * r.stride;
        out[i] = load_one<BF16>(x, row + i % r.head_dim) * scale;
    }
}
template <bool BF16>
DEVICE void store_owned(void *x, const float *from, const struct rows &r, uint32_t row, float scale)
{
    for (uint32_t d = 0; row < r.count && d < r.head_dim; d++)
        store_one<BF16>(x, r.at + row * r.stride + d, from[d * THREADS + threadIdx.x] * scale);
}

/* One chain over d: the product of a passing row and the row that the thread owns. */
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
    uint32_t b, head, kv_head, first, row, t, start; /* first: row of the block; t: position */
    uint32_t end;                                    /* after the last key of the block */
};
template <class A> DEVICE struct query own_query(const A &a)
{
    struct query q = {};
    q.b = blockIdx.z;
    q.head = blockIdx.y;
    q.kv_head = q.head / (a.heads / a.kv_heads);
    q.first = blockIdx.x * THREADS;
    q.row = q.first + threadIdx.x;
    q.t = a.first + q.row;
    q.start = q.row < a.queries ? start_of(a, q.b, q.row) : a.seq;
    q.end = a.first + smaller(q.first + THREADS, a.queries);
    return q;
}
DEVICE bool sees(const struct query &q, uint32_t key)
{
    return key <= q.t && key >= q.start;
}

/* The running maximum, the sum of e^(score - max), and the factor e^(old max - new max). */
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
    const struct rows queries = queries_of(a, q.b, q.head), keys = keys_of(a, q.b, q.kv_head);
    struct softmax s = {a.starts != NULL ? HIDDEN_MAX : -HUGE_VALF, 0, 0};
    load_owned<BF16>(own_q, a.q, queries, q.first, scale_of(a.head_dim));
    for (uint32_t d = 0; d < a.head_dim; d++)
        out[d * THREADS + threadIdx.x] = 0;
    for (uint32_t j = start_of(a, q.b, q.first) / KEYS * KEYS; j < q.end; j += KEYS) {
        uint32_t count = smaller(KEYS, q.end - j);
        BARRIER();
        load_passing<BF16>(rows, a.key, keys, j, count, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count; i++)
            scores[i * THREADS + threadIdx.x] = dot(rows + i * a.head_dim, own_q, a.head_dim);
        softmax_keys(s, scores, q, j, count);
        for (uint32_t d = 0; d < a.head_dim; d++)
            out[d * THREADS + threadIdx.x] = out[d * THREADS + threadIdx.x] * s.shrink;
        BARRIER();
        load_passing<BF16>(rows, a.value, keys, j, count, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count; i++)
            add_row(out, rows + i * a.head_dim, scores[i * THREADS + threadIdx.x], a.head_dim);
    }
    store_owned<BF16>(a.out, out, queries, q.row, 1.0f / s.sum);
    if (q.row < a.queries)
        a.lse[((size_t)q.b * a.heads + q.head) * a.queries + q.row] = s.max + logarithm(s.sum);
}

/* ---- Backward ---- */

/* delta = sum over d of dout out, of a query. */
template <bool BF16>
DEVICE float delta_of(const struct kernel_attention_backward &a, uint32_t b, uint32_t query,
                      uint32_t head)
{
    float sum = 0;
    const struct rows queries = queries_of(a, b, head);
    size_t row = queries.at + query * queries.stride;
    for (uint32_t d = 0; d < a.head_dim; d++)
        sum = sum + load_one<BF16>(a.dout, row + d) * load_one<BF16>(a.out, row + d);
    return sum;
}
DEVICE float lse_of(const struct kernel_attention_backward &a, uint32_t b, uint32_t query,
                    uint32_t head)
{
    return a.lse[((size_t)b * a.heads + head) * a.queries + query];
}

template <bool BF16> KERNEL(THREADS, 1) void attention_dq(struct kernel_attention_backward a)
{
    DYNAMIC_SHARED(float, own_q);
    uint32_t width = a.head_dim, area = THREADS * width;
    float *own_dout = own_q + area, *dq = own_dout + area, *keys = dq + area, *values = keys + area;
    const struct query q = own_query(a);
    const struct rows queries = queries_of(a, q.b, q.head), kv = keys_of(a, q.b, q.kv_head);
    load_owned<BF16>(own_q, a.q, queries, q.first, scale_of(width));
    load_owned<BF16>(own_dout, a.dout, queries, q.first, 1.0f);
    for (uint32_t d = 0; d < width; d++)
        dq[d * THREADS + threadIdx.x] = 0;
    float delta = q.row < a.queries ? delta_of<BF16>(a, q.b, q.row, q.head) : 0;
    float lse = q.row < a.queries ? lse_of(a, q.b, q.row, q.head) : 0;
    for (uint32_t j = start_of(a, q.b, q.first); j < q.end; j += THREADS) {
        uint32_t count = smaller(THREADS, q.end - j);
        BARRIER();
        load_passing<BF16>(keys, a.key, kv, j, count, 1.0f);
        load_passing<BF16>(values, a.value, kv, j, count, 1.0f);
        BARRIER();
        for (uint32_t i = 0; i < count && j + i <= q.t; i++) {
            if (!sees(q, j + i))
                continue;
            float p = exponential<true>(dot(keys + i * width, own_q, width) - lse);
            float ds = p * (dot(values + i * width, own_dout, width) - delta);
            add_row(dq, keys + i * width, ds, width);
        }
    }
    store_owned<BF16>(a.dq, dq, queries, q.row, scale_of(width));
}

/* Passing queries, with the values of each. */
struct passing {
    float *q, *dout, *lse, *delta;
    uint32_t first, count; /* rows */
};

template <bool BF16>
DEVICE void load_queries(const struct passing &p, const struct kernel_attention_backward &a,
                         uint32_t b, uint32_t head)
{
    const struct rows queries = queries_of(a, b, head);
    BARRIER();
    load_passing<BF16>(p.q, a.q, queries, p.first, p.count, scale_of(a.head_dim));
    load_passing<BF16>(p.dout, a.dout, queries, p.first, p.count, 1.0f);
    if (threadIdx.x < p.count) {
        p.lse[threadIdx.x] = lse_of(a, b, p.first + threadIdx.x, head);
        p.delta[threadIdx.x] = delta_of<BF16>(a, b, p.first + threadIdx.x, head);
    }
    BARRIER();
}

/* The key that a thread owns, with its gradients. */
struct owned {
    float *key, *value, *dkey, *dvalue;
    uint32_t b, j;
};
DEVICE void add_queries(const struct owned &o, const struct passing &p,
                        const struct kernel_attention_backward &a)
{
    uint32_t width = a.head_dim;
    for (uint32_t i = 0; i < p.count; i++) {
        uint32_t row = p.first + i;
        if (o.j > a.first + row || o.j < start_of(a, o.b, row))
            continue;
        const float *q = p.q + i * width, *dout = p.dout + i * width;
        float probability = exponential<true>(dot(q, o.key, width) - p.lse[i]);
        float ds = probability * (dot(dout, o.value, width) - p.delta[i]);
        add_row(o.dvalue, dout, probability, width);
        add_row(o.dkey, q, ds, width);
    }
}

/* The initial sums: those of an earlier range of queries, or zeros. */
DEVICE void begin_sums(const struct owned &o, const struct kernel_attention_backward &a,
                       const struct rows &keys, uint32_t first)
{
    if (a.accumulate) {
        load_owned<false>(o.dkey, a.dkey, keys, first, 1.0f);
        load_owned<false>(o.dvalue, a.dvalue, keys, first, 1.0f);
        return;
    }
    for (uint32_t d = 0; d < a.head_dim; d++)
        o.dkey[d * THREADS + threadIdx.x] = o.dvalue[d * THREADS + threadIdx.x] = 0;
}

/* Adds all heads that share the keys, tile after tile of the CPU. SUMS: of bf16. */
template <bool BF16, bool SUMS>
KERNEL(THREADS, 1)
void attention_dkv(struct kernel_attention_backward a)
{
    DYNAMIC_SHARED(float, all);
    uint32_t width = a.head_dim, area = THREADS * width, first = blockIdx.x * THREADS;
    uint32_t b = blockIdx.z, kv_head = blockIdx.y, group = a.heads / a.kv_heads;
    struct owned o = {all, all + area, all + 2 * area, all + 3 * area, b, first + threadIdx.x};
    struct passing p = {
        all + 4 * area, all + 5 * area, all + 6 * area, all + 6 * area + THREADS, 0, 0};
    const struct rows keys = keys_of(a, b, kv_head);
    load_owned<BF16>(o.key, a.key, keys, first, 1.0f);
    load_owned<BF16>(o.value, a.value, keys, first, 1.0f);
    begin_sums(o, a, keys, first);
    uint32_t positions = group >= TILE_LANES ? 1 : TILE_LANES / group;
    uint32_t row = first > a.first ? first - a.first : 0; /* no earlier query sees these keys */
    for (uint32_t tile = row / positions * positions; tile < a.queries; tile += positions) {
        uint32_t end = smaller(tile + positions, a.queries),
                 chunks = (end - tile + THREADS - 1) / THREADS;
        for (uint32_t i = 0; i < group * chunks; i++) {
            p.first = tile + i % chunks * THREADS;
            p.count = smaller(THREADS, end - p.first);
            load_queries<BF16>(p, a, b, kv_head * group + i / chunks);
            add_queries(o, p, a);
        }
    }
    BARRIER();
    store_owned<SUMS>(a.dkey, o.dkey, keys, o.j, 1.0f);
    store_owned<SUMS>(a.dvalue, o.dvalue, keys, o.j, 1.0f);
}

/* ---- Launches ---- */

extern "C" int cuda_attention(const struct cuda_call *call, const void *args)
{
    const struct kernel_attention a = with_queries(*(const struct kernel_attention *)args);
    if (cuda_flash_fits(a.dtype, a.head_dim))
        return cuda_flash(call, &a);
    dim3 grid(blocks_for(a.queries, THREADS), a.heads, a.batch);
    size_t shared = sizeof(float) * ((2 * THREADS + KEYS) * a.head_dim + THREADS * KEYS);
    return a.dtype == KERNEL_BF16
               ? LAUNCH(call->stream, grid, THREADS, shared, attention<true>, a)
               : LAUNCH(call->stream, grid, THREADS, shared, attention<false>, a);
}

template <bool BF16, bool SUMS>
static int backward(const struct cuda_call *call, const struct kernel_attention_backward &a)
{
    size_t row = sizeof(float) * THREADS * a.head_dim;
    dim3 queries(blocks_for(a.queries, THREADS), a.heads, a.batch);
    dim3 keys(blocks_for(a.seq, THREADS), a.kv_heads, a.batch);
    int error = LAUNCH(call->stream, queries, THREADS, 5 * row, attention_dq<BF16>, a);
    return error != 0 ? error
                      : LAUNCH(call->stream, keys, THREADS, 6 * row + 2 * THREADS * sizeof(float),
                               (attention_dkv<BF16, SUMS>), a);
}

extern "C" int cuda_attention_backward(const struct cuda_call *call, const void *args)
{
    const struct kernel_attention_backward a =
        with_queries(*(const struct kernel_attention_backward *)args);
    if (cuda_flash_fits(a.dtype, a.head_dim))
        return cuda_flash_backward(call, &a);
    if (a.dtype == KERNEL_F32)
        return backward<false, false>(call, a);
    return a.is_partial ? backward<true, false>(call, a) : backward<true, true>(call, a);
}
