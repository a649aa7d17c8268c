/* float8.cu - rounding to what a float8 format can hold under one power of two (kernels.h).
 *
 * Blocks find the largest |x| of their parts; then each block finds the largest of those again and
 * rounds its own. Nothing is added, so the order is of no matter, and the bits are the CPU's. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/values.h"

#define THREADS 256
#define NOT_A_NUMBER 0x7fc00000u

struct float8_args {
    struct kernel_round_float8 a;
    uint32_t *largest; /* [blocks] bits of |x| */
    uint32_t blocks;
    int bits, lowest, highest; /* as in cpu/run.c */
};

DEVICE uint32_t more(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The largest of all threads, in all of them. */
DEVICE uint32_t largest_of_block(uint32_t mine, uint32_t *warps)
{
#pragma unroll
    for (unsigned mask = WARP / 2; mask > 0; mask /= 2)
        mine = more(mine, warp_xor_bits(mine, mask));
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = mine;
    BARRIER();
#pragma unroll
    for (unsigned w = 0; w < THREADS / WARP; w++)
        mine = more(mine, warps[w]);
    return mine;
}

template <bool BF16> KERNEL(THREADS, 4) void float8_largest(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    const unsigned N = wide<BF16>;
    size_t stride = (size_t)s.blocks * THREADS * N;
    uint32_t mine = 0;
    float x[N];
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N; i < s.a.count; i += stride) {
        load_part<BF16>(x, s.a.x, i, s.a.count);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            mine = more(mine, bits_of(x[j]) & 0x7fffffff);
    }
    mine = largest_of_block(mine, warps);
    if (threadIdx.x == 0)
        s.largest[blockIdx.x] = mine;
}

/* The power of two as a float's exponent: float8_scale of cpu/run.c. */
DEVICE int scale_of(uint32_t largest, int highest)
{
    int scale = highest - ((int)(largest >> 23) - 127) - ((largest & 0x7fffff) > 0x600000 ? 1 : 0);
    if (scale > KERNEL_FLOAT8_SCALE_MAX)
        return KERNEL_FLOAT8_SCALE_MAX;
    return scale < -KERNEL_FLOAT8_SCALE_MAX ? -KERNEL_FLOAT8_SCALE_MAX : scale;
}

template <bool BF16> KERNEL(THREADS, 4) void float8_round(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    const unsigned N = wide<BF16>;
    uint32_t largest = 0;
    for (uint32_t b = threadIdx.x; b < s.blocks; b += THREADS)
        largest = more(largest, s.largest[b]);
    largest = largest_of_block(largest, warps);
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= s.a.count)
        return;
    bool is_nan = largest >= 0x7f800000;
    int scale = scale_of(largest, s.highest);
    float up = float_of(is_nan ? NOT_A_NUMBER : (uint32_t)(127 + scale) << 23);
    float down = float_of(is_nan ? NOT_A_NUMBER : (uint32_t)(127 - scale) << 23);
    float x[N];
    load_part<BF16>(x, s.a.x, i, s.a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++) {
        float scaled = x[j] * up;
        uint32_t exponent = more(bits_of(scaled) & 0x7f800000, (uint32_t)(s.lowest + 127) << 23);
        float magic = float_of((exponent + ((uint32_t)(23 - s.bits) << 23)) | 0x400000);
        float rounded_x = scaled + magic;
        x[j] = (rounded_x - magic) * down;
    }
    store_part<BF16>(s.a.out, i, s.a.count, x);
}

template <bool BF16> static int round_as(const struct cuda_call *call, struct float8_args &s)
{
    unsigned blocks = blocks_for(s.a.count, (size_t)THREADS * wide<BF16>);
    s.blocks = blocks < SCRATCH_FLOAT8_BLOCKS ? blocks : SCRATCH_FLOAT8_BLOCKS;
    int error = LAUNCH(call->stream, s.blocks, THREADS, 0, float8_largest<BF16>, s);
    return error != 0 ? error : LAUNCH(call->stream, blocks, THREADS, 0, float8_round<BF16>, s);
}

extern "C" int cuda_round_float8(const struct cuda_call *call, const void *args)
{
    struct float8_args s = {};
    s.a = *(const struct kernel_round_float8 *)args;
    s.largest = (uint32_t *)call->scratch;
    bool is_e4m3 = s.a.format == KERNEL_E4M3;
    s.bits = is_e4m3 ? 3 : 2;
    s.lowest = is_e4m3 ? -6 : -14;
    s.highest = is_e4m3 ? 8 : 15;
    return s.a.dtype == KERNEL_BF16 ? round_as<true>(call, s) : round_as<false>(call, s);
}
