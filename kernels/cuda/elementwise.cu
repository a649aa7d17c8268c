/* elementwise.cu - operations on single elements: embedding, rectangles, RoPE, SwiGLU, add, fold,
 * convert, AdamW. Formulas and bits are those of cpu/isa/elementwise.c.
 *
 * A thread moves 16 bytes of the narrowest tensor at a time; the last thread of a tensor moves
 * single values. All are limited by memory: nothing is read or written twice. */
#include "kernels/cuda/largest.h"
#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"

#define THREADS 256

/* This thread's first element, if each thread handles N. */
template <unsigned N> DEVICE size_t first_element(void)
{
    return ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
}

/* ---- Embedding: rows in units of 16 bytes, or of 2 if a row is no multiple ---- */

template <class UNIT> KERNEL(THREADS, 4) void embedding(struct kernel_embedding a)
{
    size_t units = a.dim * (a.dtype == KERNEL_BF16 ? 2u : 4u) / sizeof(UNIT);
    size_t i = first_element<1>(), n = i / units;
    if (n < a.rows)
        ((UNIT *)a.out)[i] = ((const UNIT *)a.table)[(size_t)a.tokens[n] * units + i % units];
}

extern "C" int cuda_embedding(const struct cuda_call *call, const void *args)
{
    const struct kernel_embedding &a = *(const struct kernel_embedding *)args;
    size_t row = a.dim * kernel_dtype_bytes(a.dtype);
    if (row % sizeof(struct quad) == 0)
        return LAUNCH(call->stream, blocks_for(a.rows * (row / sizeof(struct quad)), THREADS),
                      THREADS, 0, embedding<struct quad>, a);
    return LAUNCH(call->stream, blocks_for(a.rows * (row / 2), THREADS), THREADS, 0,
                  embedding<uint16_t>, a);
}

/* ---- Rectangles to dense rows and back, in the widest units that fit both sides ---- */

struct box_args {
    void *to;
    const void *from;
    size_t rows, columns, to_stride, from_stride; /* of units */
};

template <class UNIT> KERNEL(THREADS, 4) void box(struct box_args a)
{
    size_t i = first_element<1>(), row = i / a.columns, column = i % a.columns;
    if (row < a.rows)
        ((UNIT *)a.to)[row * a.to_stride + column] =
            ((const UNIT *)a.from)[row * a.from_stride + column];
}

template <class UNIT>
static int copy_as(const struct cuda_call *call, struct box_args a, size_t element)
{
    size_t per_unit = sizeof(UNIT) / element;
    a.columns /= per_unit;
    a.to_stride /= per_unit;
    a.from_stride /= per_unit;
    return LAUNCH(call->stream, blocks_for(a.rows * a.columns, THREADS), THREADS, 0, box<UNIT>, a);
}

/* `at`: elements from the beginning of the wide side. */
static int copy_box(const struct cuda_call *call, const struct box_args &a, size_t at,
                    enum kernel_dtype dtype)
{
    size_t element = kernel_dtype_bytes(dtype), quads = sizeof(struct quad) / element;
    if (a.rows == 0 || a.columns == 0)
        return 0;
    if (a.columns % quads == 0 && a.to_stride % quads == 0 && a.from_stride % quads == 0 &&
        at % quads == 0)
        return copy_as<struct quad>(call, a, element);
    return element == 4 ? copy_as<uint32_t>(call, a, element) : copy_as<uint16_t>(call, a, element);
}

extern "C" int cuda_pack(const struct cuda_call *call, const void *args)
{
    const struct kernel_pack &a = *(const struct kernel_pack *)args;
    size_t at = a.first_row * a.width + a.first_column;
    const char *from = (const char *)a.full + at * kernel_dtype_bytes(a.dtype);
    return copy_box(call, {a.packed, from, a.rows, a.columns, a.columns, a.width}, at, a.dtype);
}

extern "C" int cuda_unpack(const struct cuda_call *call, const void *args)
{
    const struct kernel_unpack &a = *(const struct kernel_unpack *)args;
    size_t at = a.first_row * a.width + a.first_column;
    char *to = (char *)a.full + at * kernel_dtype_bytes(a.dtype);
    return copy_box(call, {to, a.packed, a.rows, a.columns, a.width, a.columns}, at, a.dtype);
}

/* ---- Rotary embedding: (x0, x1) -> (x0 cos - x1 sin, x0 sin + x1 cos) ---- */

template <bool BF16, unsigned N> KERNEL(THREADS, 4) void rope(struct kernel_rope a)
{
    size_t i = first_element<N>(), row = (size_t)a.heads * a.head_dim, n = i / row;
    if (n >= (size_t)a.batch * a.seq)
        return;
    unsigned half = a.head_dim / 2, d = (unsigned)(i % row % a.head_dim);
    size_t position = a.first + n % a.seq - (a.starts != NULL ? (size_t)a.starts[n] : 0);
    float x[N], y[N], cosines[N / 2], sines[N / 2], sign = a.inverse ? -1.0f : 1.0f;
    load<BF16>(x, a.x, i);
    load<false>(cosines, a.cos, position * half + d / 2);
    load<false>(sines, a.sin, position * half + d / 2);
#pragma unroll
    for (unsigned j = 0; j < N; j += 2) {
        y[j] = x[j] * cosines[j / 2] + x[j + 1] * (sines[j / 2] * -sign);
        y[j + 1] = x[j + 1] * cosines[j / 2] + x[j] * (sines[j / 2] * sign);
    }
    store<BF16>(a.x, i, y);
}

template <bool BF16, unsigned N>
static int rope_as(const struct cuda_call *call, const struct kernel_rope &a)
{
    size_t count = (size_t)a.batch * a.seq * a.heads * a.head_dim;
    return LAUNCH(call->stream, blocks_for(count, (size_t)THREADS * N), THREADS, 0, (rope<BF16, N>),
                  a);
}

extern "C" int cuda_rope(const struct cuda_call *call, const void *args)
{
    const struct kernel_rope &a = *(const struct kernel_rope *)args;
    if (a.head_dim % 8 != 0)
        return a.dtype == KERNEL_BF16 ? rope_as<true, 2>(call, a) : rope_as<false, 2>(call, a);
    return a.dtype == KERNEL_BF16 ? rope_as<true, 8>(call, a) : rope_as<false, 8>(call, a);
}

/* ---- SwiGLU: silu(gate) up, silu(x) = x / (1 + e^-x) ---- */

/* After the end all values are 0, and nothing is stored. */
template <bool BF16> KERNEL(THREADS, 4) void swiglu(struct kernel_swiglu a)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    const unsigned N = wide<BF16>;
    size_t i = first_element<N>();
    float gate[N], up[N], out[N];
    load_part<BF16>(gate, a.gate, i, a.count);
    load_part<BF16>(up, a.up, i, a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        out[j] = gate[j] * logistic(gate[j]) * up[j];
    store_part<BF16>(a.out, i, a.count, out);
    note_largest<THREADS>(a.largest, largest_of<BF16>(out), warps);
}

template <bool BF16> KERNEL(THREADS, 4) void swiglu_backward(struct kernel_swiglu_backward a)
{
    SHARED(uint32_t[THREADS / WARP], of_dgate);
    SHARED(uint32_t[THREADS / WARP], of_dup);
    const unsigned N = wide<BF16>;
    size_t i = first_element<N>();
    float gate[N], up[N], dout[N], dgate[N], dup[N];
    load_part<BF16>(gate, a.gate, i, a.count);
    load_part<BF16>(up, a.up, i, a.count);
    load_part<BF16>(dout, a.dout, i, a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        float sigmoid = logistic(gate[j]);
        float slope = sigmoid * (1.0f + gate[j] * (1.0f - sigmoid));
        dup[j] = dout[j] * (gate[j] * sigmoid);
        dgate[j] = dout[j] * up[j] * slope;
    }
    store_part<BF16>(a.dup, i, a.count, dup);
    store_part<BF16>(a.dgate, i, a.count, dgate);
    note_largest<THREADS>(a.largest_dgate, largest_of<BF16>(dgate), of_dgate);
    note_largest<THREADS>(a.largest_dup, largest_of<BF16>(dup), of_dup);
}

/* ---- Add, fold, convert ---- */

template <bool BF16> KERNEL(THREADS, 4) void add(struct kernel_add a)
{
    const unsigned N = wide<BF16>;
    size_t i = first_element<N>();
    if (i >= a.count)
        return;
    float y[N], x[N];
    load_part<BF16>(y, a.y, i, a.count);
    load_part<BF16>(x, a.x, i, a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        y[j] = y[j] + x[j];
    store_part<BF16>(a.y, i, a.count, y);
}

/* Adds seen rows only; a block handles a part of all rows. */
template <bool BF16, unsigned N> KERNEL(THREADS, 4) void add_seen(struct kernel_add a)
{
    for (size_t row = blockIdx.x; row < a.count / a.width; row += gridDim.x) {
        if (a.seen[row] == 0)
            continue;
        for (size_t c = threadIdx.x * N; c < a.width; c += THREADS * N) {
            float y[N], x[N];
            load<BF16>(y, a.y, row * a.width + c);
            load<BF16>(x, a.x, row * a.width + c);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                y[j] = y[j] + x[j];
            store<BF16>(a.y, row * a.width + c, y);
        }
    }
}

/* A sum is read and written once, for any number of leaves. */
template <bool BF16> KERNEL(THREADS, 4) void fold(struct kernel_fold a)
{
    const unsigned N = wide<BF16>;
    size_t i = first_element<N>();
    if (i >= a.count)
        return;
    float sum[N] = {}, x[N];
    if (!a.is_first)
        load_part<BF16>(sum, a.acc, i, a.count);
    for (uint32_t n = 0; n <= a.more; n++) {
        load_part<false>(x, a.leaf + n * a.stride, i, a.count);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            sum[j] = rounded<BF16>(sum[j] + x[j]);
    }
    store_part<BF16>(a.acc, i, a.count, sum);
}

template <bool BF16> KERNEL(THREADS, 4) void convert(struct kernel_convert a)
{
    const unsigned N = wide<BF16>;
    size_t i = first_element<N>();
    if (i >= a.count)
        return;
    float x[N];
    load_part<false>(x, a.in, i, a.count);
    store_part<BF16>(a.out, i, a.count, x);
}

/* ---- Optimizer ---- */

DEVICE void adamw_step(const struct kernel_adamw_numbers &o, float grad, float &param, float &m,
                       float &v)
{
    float g = grad * o.grad_scale;
    if (o.l2 != 0.0f) /* otherwise a gradient of -0 stays -0 */
        g = g + o.l2 * param;
    m = o.keep1 * m + o.rest1 * (g - (o.is_mean ? m : 0.0f));
    v = o.keep2 * v + o.rest2 * (g * g - (o.is_mean ? v : 0.0f));
    float update = m / o.bias1 / (square_root(v / o.bias2) + o.eps) + o.weight_decay * param;
    param = param - o.lr * update;
}

DEVICE uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15) * 0x735a2d97u;
    return x ^ x >> 15;
}

/* Rounds a float to bf16, up if the noise carries. */
DEVICE float rounded_up_or_down(float x, uint32_t noise)
{
    uint32_t bits = bits_of(x);
    return (bits & 0x7f800000) == 0x7f800000 ? x : float_of((bits + noise) & 0xffff0000);
}

/* Rounds N moments from element i on. */
template <unsigned N>
DEVICE void round_moments(const struct kernel_adamw_piece &a, const uint32_t *noise, size_t i,
                          float (&m)[N], float (&v)[N])
{
    uint32_t row = a.first_row + (uint32_t)(i / a.columns), column = (uint32_t)(i % a.columns);
    uint32_t key0 = noise[0] ^ a.noise[0], key1 = noise[1] ^ a.noise[1];
    uint32_t row_noise = mix(row ^ key0);
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        uint32_t z = mix(row_noise ^ (a.first_column + column + key1));
        m[j] = rounded_up_or_down(m[j], z & 0xffff);
        v[j] = rounded_up_or_down(v[j], z >> 16);
        if (++column == a.columns) {
            column = 0;
            row_noise = mix(++row ^ key0);
        }
    }
}

/* N values as bf16, four in one store. */
template <unsigned N> DEVICE void store_copy(void *p, size_t i, size_t count, const float (&x)[N])
{
    if (i + N > count || N % 4 != 0) {
        store_part<true>(p, i, count, x);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < N; j += 4) {
        uint64_t low = to_bf16(x[j]) | (uint32_t)to_bf16(x[j + 1]) << 16;
        uint64_t high = to_bf16(x[j + 2]) | (uint32_t)to_bf16(x[j + 3]) << 16;
        *(uint64_t *)((uint16_t *)p + i + j) = low | high << 32;
    }
}

/* Number of blocks per item. */
template <bool BF16> constexpr unsigned item_blocks = KERNEL_ADAMW_ITEM / (THREADS * wide<BF16>);

/* The ends of pieces are arguments, as fast as constants: the search reads no memory. It is
 * unrolled, because an array of arguments with an index of run time is copied to local memory. Each
 * field of the piece is read at its use, because all of them do not fit into the registers. NARROW:
 * of the gradients. The registers for 8 elements leave no room for a fourth block. */
template <bool BF16, bool NARROW> KERNEL(THREADS, BF16 ? 3 : 4) void adamw(struct kernel_adamw all)
{
    const unsigned N = wide<BF16>;
    uint32_t item = blockIdx.x / item_blocks<BF16>, before = 0, at = 0;
#pragma unroll
    for (unsigned i = 0; i < KERNEL_ADAMW_PIECES; i++)
        if (i + 1 < all.num && item >= all.end[i]) {
            before = all.end[i];
            at = i + 1;
        }
    const struct kernel_adamw_piece &a = all.pieces[at];
    size_t block = (size_t)(item - before) * item_blocks<BF16> + blockIdx.x % item_blocks<BF16>;
    size_t i = (block * THREADS + threadIdx.x) * N;
    if (i >= a.count)
        return;
    const struct kernel_adamw_numbers o = *a.numbers;
    float param[N], m[N], v[N], grad[N];
    load_part<false>(param, a.param, i, a.count);
    load_part<BF16>(m, a.exp_avg, i, a.count);
    load_part<BF16>(v, a.exp_avg_sq, i, a.count);
    load_part<NARROW>(grad, a.grad, i, a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        adamw_step(o, grad[j], param[j], m[j], v[j]);
    if (BF16)
        round_moments(a, o.noise, i, m, v);
    store_part<BF16>(a.exp_avg, i, a.count, m);
    store_part<BF16>(a.exp_avg_sq, i, a.count, v);
    store_part<false>(a.param, i, a.count, param);
    if (a.copy != NULL)
        store_copy(a.copy, i, a.count, param);
}

/* ---- Launches of operations with a count ---- */

template <bool BF16, auto kernel, class A> static int flat(const struct cuda_call *call, const A &a)
{
    return LAUNCH(call->stream, blocks_for(a.count, (size_t)THREADS * wide<BF16>), THREADS, 0,
                  kernel, a);
}

extern "C" int cuda_swiglu(const struct cuda_call *call, const void *args)
{
    const struct kernel_swiglu &a = *(const struct kernel_swiglu *)args;
    return a.dtype == KERNEL_BF16 ? flat<true, swiglu<true>>(call, a)
                                  : flat<false, swiglu<false>>(call, a);
}

extern "C" int cuda_swiglu_backward(const struct cuda_call *call, const void *args)
{
    const struct kernel_swiglu_backward &a = *(const struct kernel_swiglu_backward *)args;
    return a.dtype == KERNEL_BF16 ? flat<true, swiglu_backward<true>>(call, a)
                                  : flat<false, swiglu_backward<false>>(call, a);
}

#define SEEN_BLOCKS 2048u

template <bool BF16, unsigned N>
static int rows_seen(const struct cuda_call *call, const struct kernel_add &a)
{
    size_t rows = a.count / a.width;
    return LAUNCH(call->stream, rows < SEEN_BLOCKS ? (unsigned)rows : SEEN_BLOCKS, THREADS, 0,
                  (add_seen<BF16, N>), a);
}

extern "C" int cuda_add(const struct cuda_call *call, const void *args)
{
    const struct kernel_add &a = *(const struct kernel_add *)args;
    bool is_wide = a.seen && a.width % wide<true> == 0;
    if (a.seen && a.dtype == KERNEL_BF16)
        return is_wide ? rows_seen<true, wide<true>>(call, a) : rows_seen<true, 1>(call, a);
    if (a.seen)
        return is_wide ? rows_seen<false, wide<false>>(call, a) : rows_seen<false, 1>(call, a);
    return a.dtype == KERNEL_BF16 ? flat<true, add<true>>(call, a)
                                  : flat<false, add<false>>(call, a);
}

extern "C" int cuda_fold(const struct cuda_call *call, const void *args)
{
    const struct kernel_fold &a = *(const struct kernel_fold *)args;
    return a.dtype == KERNEL_BF16 ? flat<true, fold<true>>(call, a)
                                  : flat<false, fold<false>>(call, a);
}

extern "C" int cuda_convert(const struct cuda_call *call, const void *args)
{
    const struct kernel_convert &a = *(const struct kernel_convert *)args;
    return a.out_dtype == KERNEL_BF16 ? flat<true, convert<true>>(call, a)
                                      : flat<false, convert<false>>(call, a);
}

template <bool BF16, bool NARROW>
static int update(const struct cuda_call *call, const struct kernel_adamw &a)
{
    uint32_t blocks = a.end[a.num - 1] * item_blocks<BF16>;
    return blocks == 0 ? 0 : LAUNCH(call->stream, blocks, THREADS, 0, (adamw<BF16, NARROW>), a);
}

extern "C" int cuda_adamw(const struct cuda_call *call, const void *args)
{
    const struct kernel_adamw &a = *(const struct kernel_adamw *)args;
    if (a.gradients == KERNEL_BF16)
        return a.moments == KERNEL_BF16 ? update<true, true>(call, a)
                                        : update<false, true>(call, a);
    return a.moments == KERNEL_BF16 ? update<true, false>(call, a) : update<false, false>(call, a);
}
