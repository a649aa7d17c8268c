/* isa.h - vectors, for the files that the Makefile compiles once per ISA level
 * (-DISA=sse2|avx2|avx512).
 *
 * Code here is written with the compiler's vector types, WIDTH floats in one register of the level,
 * and few intrinsics. The order of sums does not depend on WIDTH: a sum runs in 16 lanes, element i
 * in lane i mod 16, held in PARTS registers, then through one fixed tree (sum_value).
 * Multiplication and addition stay apart (-ffp-contract=off). So the same source gives the same
 * bits on every level. Only products and attention fuse, if the level can.
 *
 * A row whose length is no multiple of WIDTH ends in a partial vector padded with zeros, so the
 * same code runs on it. `bf16` arguments are constants at every call (BY_TYPE), so each type gets
 * its own loop. */
#ifndef HOLDFAST_KERNELS_ISA_H
#define HOLDFAST_KERNELS_ISA_H

#include <immintrin.h>

#include "kernels/cpu/items.h"

#define ISA_JOIN_(name, isa) name##_##isa
#define ISA_JOIN(name, isa) ISA_JOIN_(name, isa)
/* The name of a function that other files of the same level call. */
#define ISA_NAME(name) ISA_JOIN(name, ISA)
#define INLINE static inline __attribute__((always_inline))
/* Calls an INLINE function whose last argument is `bf16`. */
#define BY_TYPE(dtype, function, ...) \
    ((dtype) == KERNEL_BF16 ? function(__VA_ARGS__, true) : function(__VA_ARGS__, false))

#if defined(__AVX512F__)
#define WIDTH 16
#define NATIVE(op) _mm512_##op
typedef __m512 native;
#elif defined(__AVX2__)
#define WIDTH 8
#define NATIVE(op) _mm256_##op
typedef __m256 native;
#else
#define WIDTH 4
#define NATIVE(op) _mm_##op
typedef __m128 native;
#endif
#define PARTS (LANES / WIDTH)
#define TILE_ROWS (WIDTH == 16 ? 8 : 6) /* of a strip of Holdfast's products */

typedef float lanes __attribute__((vector_size(4 * WIDTH)));
typedef int32_t lanes_i32 __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * WIDTH)));
typedef uint16_t lanes_u16 __attribute__((vector_size(2 * WIDTH)));

/* The number of a vector's values before the end. */
INLINE size_t part_of(size_t i, size_t end)
{
    return end - i < WIDTH ? end - i : WIDTH;
}

/* ---- Loads and stores of WIDTH values, or of the first `count` ---- */

INLINE lanes broadcast(float x)
{
    return x - (lanes){0};
}

/* (Written out because the compiler does not find the instruction.) */
INLINE lanes widen(lanes_u16 x)
{
#if defined(__AVX512F__)
    return (lanes)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#elif defined(__AVX2__)
    return (lanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16);
#else
    return (lanes)(__builtin_convertvector(x, lanes_u32) << 16);
#endif
}

/* The same of one value. */
INLINE float widen_one(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

/* Round to nearest even; a NaN stays one. */
INLINE lanes_u16 narrow(lanes x)
{
    lanes_u32 bits = (lanes_u32)x;
    lanes_u32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((native)x, (native)x, _CMP_UNORD_Q);
    lanes_u32 quiet = (bits >> 16) | 0x40;
    rounded = (lanes_u32)_mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)quiet);
    return (lanes_u16)_mm512_cvtepi32_epi16((__m512i)rounded);
#else
    lanes_u32 nan = (lanes_u32)(x != x);
    rounded = (nan & ((bits >> 16) | 0x40)) | (~nan & rounded);
    return __builtin_convertvector(rounded, lanes_u16);
#endif
}

INLINE lanes load(const void *p, size_t i, bool bf16)
{
    lanes_u16 narrow_x;
    lanes x;
    if (bf16) {
        memcpy(&narrow_x, (const uint16_t *)p + i, sizeof(narrow_x));
        return widen(narrow_x);
    }
    memcpy(&x, (const float *)p + i, sizeof(x));
    return x;
}

/* The variables of a partial vector are in memory. They are separate from those of a whole vector,
 * which stay in registers. */
INLINE lanes load_part(const void *p, size_t i, size_t count, bool bf16)
{
    if (count == WIDTH)
        return load(p, i, bf16);
    lanes_u16 narrow_x = {0};
    lanes x = {0};
    if (bf16) {
        memcpy(&narrow_x, (const uint16_t *)p + i, count * sizeof(uint16_t));
        return widen(narrow_x);
    }
    memcpy(&x, (const float *)p + i, count * sizeof(float));
    return x;
}

INLINE void store(void *p, size_t i, lanes x, bool bf16)
{
    lanes_u16 narrow_x = bf16 ? narrow(x) : (lanes_u16){0};
    if (bf16)
        memcpy((uint16_t *)p + i, &narrow_x, sizeof(narrow_x));
    else
        memcpy((float *)p + i, &x, sizeof(x));
}

INLINE void store_part(void *p, size_t i, lanes x, size_t count, bool bf16)
{
    if (count == WIDTH) {
        store(p, i, x, bf16);
        return;
    }
    lanes part = x;
    lanes_u16 narrow_part = bf16 ? narrow(x) : (lanes_u16){0};
    if (bf16)
        memcpy((uint16_t *)p + i, &narrow_part, count * sizeof(uint16_t));
    else
        memcpy((float *)p + i, &part, count * sizeof(float));
}

/* The value of x after a store and a load. */
INLINE lanes rounded_to(lanes x, bool bf16)
{
    return bf16 ? widen(narrow(x)) : x;
}

/* ---- Arithmetic ---- */

/* a > b ? a : b, and a < b ? a : b; so b when one is a NaN */
INLINE lanes larger(lanes a, lanes b)
{
    return (lanes)NATIVE(max_ps)((native)a, (native)b);
}
INLINE lanes smaller(lanes a, lanes b)
{
    return (lanes)NATIVE(min_ps)((native)a, (native)b);
}

/* a < b ? yes : no */
INLINE lanes where_less(lanes a, lanes b, lanes yes, lanes no)
{
#if defined(__AVX512F__)
    __mmask16 mask = _mm512_cmp_ps_mask((native)a, (native)b, _CMP_LT_OQ);
    return (lanes)_mm512_mask_blend_ps(mask, (native)no, (native)yes);
#else
    lanes_u32 mask = (lanes_u32)(a < b);
    return (lanes)((mask & (lanes_u32)yes) | (~mask & (lanes_u32)no));
#endif
}

/* Sixteen lanes. `i` is the index of the first element of x. */
struct sum {
    lanes part[PARTS];
};
INLINE void sum_add(struct sum *sum, size_t i, lanes x)
{
    sum->part[i / WIDTH % PARTS] += x;
}

/* (((0+8)+(4+12)) + ((2+10)+(6+14))) + the same of the odd lanes */
INLINE float sum_value(const struct sum *sum)
{
    float s[LANES];
    memcpy(s, sum->part, sizeof(s));
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] += s[i + width];
    return s[0];
}

INLINE float largest(lanes x)
{
    float s[WIDTH];
    memcpy(s, &x, sizeof(s));
    for (int width = WIDTH / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] = s[i] > s[i + width] ? s[i] : s[i + width];
    return s[0];
}

/* a b + c; with `fused`, rounded once where the level has the instruction (not sse2) */
INLINE lanes multiply_add(lanes a, lanes b, lanes c, bool fused)
{
#if defined(__FMA__)
    if (fused)
        return (lanes)NATIVE(fmadd_ps)((native)a, (native)b, (native)c);
#endif
    (void)fused;
    return a * b + c;
}

/* e^x for x <= 0, or slightly above 0 by rounding: error at most 2 units in the last place down to
 * -87.3, 0 from -88 on, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a
 * minimax fit of (e^r - 1 - r) / r^2, relative error 3e-9. The number of instructions matters most
 * here: the processor's window holds only some iterations of a loop around this chain. */
INLINE lanes exponential(lanes x, bool fused)
{
    const uint32_t magic_bits = 0x4b400000;
    const lanes magic = broadcast(0x1.8p23f); /* adding it rounds to an integer in the low bits */
    lanes bounded = larger(broadcast(-88.0f), x);
    lanes shifted = multiply_add(bounded, broadcast(0x1.715476p+0f), magic, fused);
    lanes n = shifted - magic;
    lanes r = multiply_add(n, broadcast(-0x1.62e4p-1f), bounded, fused); /* exact: few bits */
    r = multiply_add(n, broadcast(-0x1.7f7d1cp-20f), r, fused);
    lanes p = multiply_add(r, broadcast(0x1.6a4154p-10f), broadcast(0x1.1239c6p-7f), fused);
    p = multiply_add(p, r, broadcast(0x1.5558bcp-5f), fused);
    p = multiply_add(p, r, broadcast(0x1.555492p-3f), fused);
    p = multiply_add(p, r, broadcast(0x1.fffffcp-2f), fused);
    p = multiply_add(p, r * r, r, fused) + 1.0f;
    lanes_u32 power = ((lanes_u32)shifted + (127 - magic_bits)) << 23; /* of 2^n; 0 for n = -127 */
    return p * (lanes)power;
}

/* 1 / (1 + e^-x) */
INLINE lanes logistic(lanes x)
{
    lanes e = exponential((lanes)((lanes_u32)x | 0x80000000), false);
    return where_less(x, broadcast(0.0f), e, broadcast(1.0f)) / (e + 1.0f);
}

/* ---- Products of floats (product.c) ---- */

/* c[m,n] (+)= a b, b[k,n] dense rows of b_row, n a multiple of 16; a[i,l] = a[i a_row + l
 * a_column]. Each element of c is one chain of additions in the order of k. */
struct block {
    float *c;
    const float *a, *b;
    size_t c_row, a_row, a_column, b_row, m, n, k;
    bool accumulate;
};
void ISA_NAME(block_product)(const struct block *block);

/* ---- The slots of items.h ---- */

#define X(slot) item_fn ISA_NAME(slot);
KERNEL_SLOTS(X, X)
#undef X

#endif
