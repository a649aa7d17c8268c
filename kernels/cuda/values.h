/* values.h - numbers of the CPU's back-end (cpu/isa/isa.h), bit for bit: bf16 to and from float,
 * e^x, the logistic function, the tree over the sixteen lanes of a sum.
 *
 * Device code, included by the .cu files. */
#ifndef HOLDFAST_CUDA_VALUES_H
#define HOLDFAST_CUDA_VALUES_H

#include "kernels/cuda/bodies.h"

#define SUM_LANES 16 /* of every sum: element i is added in lane i mod 16, in the order of i */

DEVICE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}
DEVICE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

DEVICE float from_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}
/* To nearest even; a NaN stays one, with its sign. (The GPU's own conversion has one NaN.) */
DEVICE uint16_t to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The value of x after a store and a load. */
template <bool BF16> DEVICE float rounded(float x)
{
    return BF16 ? from_bf16(to_bf16(x)) : x;
}

/* The 16 bytes that one instruction moves, in values. */
template <bool BF16> constexpr unsigned wide = BF16 ? 8 : 4;
template <bool BF16> constexpr unsigned bytes = BF16 ? 2 : 4;

/* 16 bytes as values, and back. */
template <bool BF16> DEVICE void unpack(float *x, const struct quad &q)
{
#pragma unroll
    for (unsigned j = 0; j < wide<BF16>; j++)
        x[j] = BF16 ? from_bf16((uint16_t)(q.word[j / 2 % 4] >> (j % 2 * 16)))
                    : float_of(q.word[j % 4]);
}
template <bool BF16> DEVICE struct quad pack(const float *x)
{
    struct quad q = {};
#pragma unroll
    for (unsigned j = 0; j < wide<BF16>; j++) {
        if (BF16)
            q.word[j / 2 % 4] |= (uint32_t)to_bf16(x[j]) << (j % 2 * 16);
        else
            q.word[j % 4] = bits_of(x[j]);
    }
    return q;
}

template <bool BF16> DEVICE float load_one(const void *p, size_t i)
{
    return BF16 ? from_bf16(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}
template <bool BF16> DEVICE void store_one(void *p, size_t i, float x)
{
    if (BF16)
        ((uint16_t *)p)[i] = to_bf16(x);
    else
        ((float *)p)[i] = x;
}

/* N values from element i on: multiples of 16 bytes with that alignment, or else one by one. */
template <bool BF16, unsigned N> DEVICE void load(float (&x)[N], const void *p, size_t i)
{
    if constexpr (N % wide<BF16> == 0) {
#pragma unroll
        for (unsigned j = 0; j < N; j += wide<BF16>)
            unpack<BF16>(x + j, load_quad((const char *)p + (i + j) * bytes<BF16>));
    } else {
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            x[j] = load_one<BF16>(p, i + j);
    }
}
template <bool BF16, unsigned N> DEVICE void store(void *p, size_t i, const float (&x)[N])
{
    if constexpr (N % wide<BF16> == 0) {
#pragma unroll
        for (unsigned j = 0; j < N; j += wide<BF16>)
            *(struct quad *)((char *)p + (i + j) * bytes<BF16>) = pack<BF16>(x + j);
    } else {
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            store_one<BF16>(p, i + j, x[j]);
    }
}

/* The same for the last values of `count`: after the end they are 0, and are not stored. */
template <bool BF16, unsigned N>
DEVICE void load_part(float (&x)[N], const void *p, size_t i, size_t count)
{
    if (i + N <= count) {
        load<BF16>(x, p, i);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        x[j] = i + j < count ? load_one<BF16>(p, i + j) : 0;
}
template <bool BF16, unsigned N>
DEVICE void store_part(void *p, size_t i, size_t count, const float (&x)[N])
{
    if (i + N <= count) {
        store<BF16>(p, i, x);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        if (i + j < count)
            store_one<BF16>(p, i + j, x[j]);
    }
}

/* The value of a sum whose lane l is x of the warp's lane l; the result is in lane 0. */
template <class T> DEVICE T sum_tree(T x)
{
#pragma unroll
    for (unsigned width = SUM_LANES / 2; width > 0; width /= 2)
        x = x + warp_down(x, width);
    return x;
}

/* a > b ? a : b, so b when one is a NaN. */
DEVICE float larger(float a, float b)
{
    return a > b ? a : b;
}

/* a b + c, rounded once or twice. */
template <bool FUSED> DEVICE float multiply_add(float a, float b, float c)
{
    return FUSED ? fused(a, b, c) : a * b + c;
}

/* e^x for x <= 0, see cpu/isa/isa.h. */
template <bool FUSED> DEVICE float exponential(float x)
{
    const uint32_t magic_bits = 0x4b400000;
    const float magic = 0x1.8p23f;
    float bounded = larger(-88.0f, x);
    float shifted = multiply_add<FUSED>(bounded, 0x1.715476p+0f, magic);
    float n = shifted - magic;
    float r = multiply_add<FUSED>(n, -0x1.62e4p-1f, bounded);
    r = multiply_add<FUSED>(n, -0x1.7f7d1cp-20f, r);
    float p = multiply_add<FUSED>(r, 0x1.6a4154p-10f, 0x1.1239c6p-7f);
    p = multiply_add<FUSED>(p, r, 0x1.5558bcp-5f);
    p = multiply_add<FUSED>(p, r, 0x1.555492p-3f);
    p = multiply_add<FUSED>(p, r, 0x1.fffffcp-2f);
    p = multiply_add<FUSED>(p, r * r, r) + 1.0f;
    return p * float_of((bits_of(shifted) + (127 - magic_bits)) << 23);
}

/* 1 / (1 + e^-x) */
DEVICE float logistic(float x)
{
    float e = exponential<false>(float_of(bits_of(x) | 0x80000000));
    return (x < 0.0f ? e : 1.0f) / (e + 1.0f);
}

#endif
