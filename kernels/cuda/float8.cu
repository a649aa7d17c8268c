/* float8.cu - rounding to what a float8 format can hold under one power of two (kernels.h).
 *
 * Blocks find the largest |x| of their parts; then each block finds the largest of those again and
 * rounds its own. Nothing is added, so the order is of no matter, and the bits are the CPU's. An
 * operand of a product becomes codes instead, by rows and transposed in one pass: tensor cores take
 * float8 with k contiguous alone. */
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
    uint32_t pitch, pitch_transposed;
    size_t scale_at;
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

/* scaled, rounded to a number of the format. */
DEVICE float round_to(float scaled, const struct float8_args &s)
{
    uint32_t exponent = more(bits_of(scaled) & 0x7f800000, (uint32_t)(s.lowest + 127) << 23);
    float magic = float_of((exponent + ((uint32_t)(23 - s.bits) << 23)) | 0x400000);
    float sum = scaled + magic;
    return sum - magic;
}
/* 2^k, or 2^-k: what a tensor with this largest |x| is multiplied by. */
DEVICE float power_for(uint32_t largest, const struct float8_args &s, int sign)
{
    if (largest >= 0x7f800000)
        return float_of(NOT_A_NUMBER);
    return float_of((uint32_t)(127 + sign * scale_of(largest, s.highest)) << 23);
}
DEVICE uint32_t largest_of_all(const struct float8_args &s, uint32_t *warps)
{
    uint32_t largest = 0;
    for (uint32_t b = threadIdx.x; b < s.blocks; b += THREADS)
        largest = more(largest, s.largest[b]);
    return largest_of_block(largest, warps);
}

template <bool BF16> KERNEL(THREADS, 4) void float8_round(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    const unsigned N = wide<BF16>;
    uint32_t largest = largest_of_all(s, warps);
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= s.a.count)
        return;
    float up = power_for(largest, s, 1), down = power_for(largest, s, -1), x[N];
    load_part<BF16>(x, s.a.x, i, s.a.count);
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        x[j] = round_to(x[j] * up, s) * down;
    store_part<BF16>(s.a.out, i, s.a.count, x);
}

/* ---- Operands of products: codes by rows and transposed ---- */

#define TILE 64 /* rows and columns of a block */
#define TILE_PITCH (TILE + 4)

/* The code of a number of the format. */
DEVICE uint8_t code_of(float x, const struct float8_args &s)
{
    uint32_t bits = bits_of(x), sign = bits >> 31 << 7, size = bits & 0x7fffffff;
    float smallest = float_of(size) * float_of((uint32_t)(127 + s.bits - s.lowest) << 23);
    if (x != x)
        return 0x7f;
    if (size < (uint32_t)(127 + s.lowest) << 23)
        return (uint8_t)(sign | (uint32_t)smallest);
    uint32_t exponent = (size >> 23) - (uint32_t)(126 + s.lowest);
    return (uint8_t)(sign | exponent << s.bits | (size & 0x7fffff) >> (23 - s.bits));
}

/* out[row][column] of the tile, `rows` of `pitch` codes in all; four of a row at once. */
DEVICE void store_codes(uint8_t *out, const uint8_t *tile, unsigned row_step, unsigned column_step,
                        uint32_t first_row, uint32_t rows, uint32_t first_column, uint32_t pitch)
{
    for (unsigned i = threadIdx.x; i < TILE * TILE / 4; i += THREADS) {
        unsigned row = i / (TILE / 4), column = i % (TILE / 4) * 4;
        const uint8_t *from = tile + row * row_step + column * column_step;
        if (first_row + row < rows && first_column + column < pitch)
            *(uint32_t *)(out + (size_t)(first_row + row) * pitch + first_column + column) =
                from[0] | (uint32_t)from[column_step] << 8 | (uint32_t)from[2 * column_step] << 16 |
                (uint32_t)from[3 * column_step] << 24;
    }
}

KERNEL(THREADS, 4) void float8_pack(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    SHARED(uint8_t[TILE * TILE_PITCH], tile);
    uint32_t width = s.a.width, rows = (uint32_t)(s.a.count / width), largest;
    uint32_t first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    uint8_t *out = (uint8_t *)s.a.out, *transposed = out + (size_t)rows * s.pitch;
    largest = largest_of_all(s, warps);
    float up = power_for(largest, s, 1);
    for (unsigned i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        uint32_t row = first_row + i / TILE, column = first_column + i % TILE;
        bool is_inside = row < rows && column < width;
        float x = is_inside ? load_one<true>(s.a.x, (size_t)row * width + column) * up : 0;
        tile[i / TILE * TILE_PITCH + i % TILE] = code_of(round_to(x, s), s);
    }
    BARRIER();
    store_codes(out, tile, TILE_PITCH, 1, first_row, rows, first_column, s.pitch);
    store_codes(transposed, tile, 1, TILE_PITCH, first_column, width, first_row,
                s.pitch_transposed);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        *(float *)(out + s.scale_at) = power_for(largest, s, -1);
}

template <bool BF16> static int round_as(const struct cuda_call *call, struct float8_args &s)
{
    unsigned blocks = blocks_for(s.a.count, (size_t)THREADS * wide<BF16>);
    s.blocks = blocks < SCRATCH_FLOAT8_BLOCKS ? blocks : SCRATCH_FLOAT8_BLOCKS;
    int error = LAUNCH(call->stream, s.blocks, THREADS, 0, float8_largest<BF16>, s);
    if (error != 0)
        return error;
    if (!BF16 || s.a.width == 0)
        return LAUNCH(call->stream, blocks, THREADS, 0, float8_round<BF16>, s);
    size_t rows = s.a.count / s.a.width;
    s.pitch = (uint32_t)kernel_float8_pitch(s.a.width);
    s.pitch_transposed = (uint32_t)kernel_float8_pitch(rows);
    s.scale_at = kernel_float8_scale_at(rows, s.a.width);
    dim3 grid(blocks_for(s.pitch, TILE), blocks_for(s.pitch_transposed, TILE));
    return LAUNCH(call->stream, grid, THREADS, 0, float8_pack, s);
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
