/* float8.cu - rounds to a float8 format with one power of two as scale (kernels.h).
 *
 * Blocks find the largest |x| of their parts; then each block finds the largest of these and rounds
 * its part. Nothing is added, so the order does not matter, and the bits are the CPU's. An operand
 * of a product becomes codes instead, by rows and transposed in one pass: tensor cores need float8
 * with k contiguous. */
#include "kernels/cuda/largest.h"
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"

#define THREADS 256
#define NOT_A_NUMBER 0x7fc00000u

struct float8_args {
    struct kernel_round_float8 a;
    uint32_t *largest;     /* [blocks] bits of |x| */
    const uint32_t *known; /* of the whole tensor, if known */
    uint32_t blocks;
    int bits, lowest, highest; /* as in cpu/run.c */
    uint32_t pitch, pitch_transposed;
    size_t scale_at;
};

template <bool BF16> KERNEL(THREADS, 4) void float8_largest(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    const unsigned N = wide<BF16>;
    size_t stride = (size_t)s.blocks * THREADS * N;
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N;
    uint32_t mine = 0;
    for (; i + 3 * stride + N <= s.a.count; i += 4 * stride) { /* four loads under way */
        float x[4][N];
#pragma unroll
        for (unsigned k = 0; k < 4; k++)
            load<BF16>(x[k], s.a.x, i + k * stride);
#pragma unroll
        for (unsigned j = 0; j < 4 * N; j++)
            mine = more(mine, bits_of(x[j / N][j % N]) & 0x7fffffff);
    }
    for (; i < s.a.count; i += stride) {
        float x[N];
        load_part<BF16>(x, s.a.x, i, s.a.count);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            mine = more(mine, bits_of(x[j]) & 0x7fffffff);
    }
    mine = largest_of_block<THREADS>(mine, warps);
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
/* 2^k, or 2^-k: the factor for a tensor with this largest |x|. */
DEVICE float power_for(uint32_t largest, const struct float8_args &s, int sign)
{
    if (largest >= 0x7f800000)
        return float_of(NOT_A_NUMBER);
    return float_of((uint32_t)(127 + sign * scale_of(largest, s.highest)) << 23);
}
DEVICE uint32_t largest_of_all(const struct float8_args &s, uint32_t *warps)
{
    uint32_t largest = 0;
    if (s.known != NULL)
        return *s.known;
    for (uint32_t b = threadIdx.x; b < s.blocks; b += THREADS)
        largest = more(largest, s.largest[b]);
    return largest_of_block<THREADS>(largest, warps);
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

KERNEL(THREADS, 4) void float8_most(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    uint32_t largest = largest_of_all(s, warps);
    if (threadIdx.x == 0)
        *(uint32_t *)s.a.out = largest;
}

/* ---- Operands of products: codes by rows and transposed ---- */

#define TILE 128           /* rows and columns of a block */
#define TILE_PITCH 33      /* words of a row, four codes each */
#define GROUP 8            /* columns that a thread reads at once */
#define ROWS_OF_COLUMN 16u /* transposed, a thread writes this many rows of four columns */
static_assert(TILE / 4 * (TILE / ROWS_OF_COLUMN) == THREADS, "a thread for each part of a tile");

/* The code of a number, rounded to the format. */
DEVICE uint32_t code_of(float number, const struct float8_args &s)
{
    float x = round_to(number, s);
    uint32_t bits = bits_of(x), sign = bits >> 31 << 7, size = bits & 0x7fffffff;
    float smallest = float_of(size) * float_of((uint32_t)(127 + s.bits - s.lowest) << 23);
    if (x != x)
        return 0x7f;
    if (size < (uint32_t)(127 + s.lowest) << 23)
        return sign | (uint32_t)smallest;
    uint32_t exponent = (size >> 23) - (uint32_t)(126 + s.lowest);
    return sign | exponent << s.bits | (size & 0x7fffff) >> (23 - s.bits);
}
/* Four codes, the first in the lowest byte. */
DEVICE uint32_t codes_of(const float *x, const struct float8_args &s)
{
    uint32_t pairs[2];
#pragma unroll
    for (unsigned j = 0; j < 2; j++)
        if (!pair_of_float8(&pairs[j], x[2 * j], x[2 * j + 1], s.bits == 2))
            pairs[j] = code_of(x[2 * j], s) | code_of(x[2 * j + 1], s) << 8;
    return pairs[0] | pairs[1] << 16;
}

/* Columns [column, + GROUP) of a row; 0 outside. ALIGNED: rows begin at multiples of 16 bytes. */
template <bool ALIGNED>
DEVICE void load_group(float (&x)[GROUP], const struct float8_args &s, uint32_t rows, uint32_t row,
                       uint32_t column)
{
    uint32_t width = s.a.width;
    size_t at = (size_t)row * width + column;
    if (ALIGNED && row < rows && column < width) {
        load<true>(x, s.a.x, at);
        return;
    }
#pragma unroll
    for (unsigned j = 0; j < GROUP; j++)
        x[j] = !ALIGNED && row < rows && column + j < width ? load_one<true>(s.a.x, at + j) : 0;
}

/* Words of four rows and four columns: out[c] has column c's codes of the four rows. */
DEVICE void transpose_codes(uint32_t (&out)[4], const uint32_t (&in)[4])
{
#pragma unroll
    for (unsigned c = 0; c < 4; c++)
        out[c] = (in[0] >> 8 * c & 0xff) | (in[1] >> 8 * c & 0xff) << 8 |
                 (in[2] >> 8 * c & 0xff) << 16 | (in[3] >> 8 * c & 0xff) << 24;
}

/* The tile's columns as rows of `out`: a thread has ROWS_OF_COLUMN codes of four columns. */
DEVICE void store_transposed(uint8_t *out, const uint32_t *tile, const struct float8_args &s,
                             uint32_t first_row, uint32_t first_column)
{
    uint32_t row = threadIdx.x % (TILE / ROWS_OF_COLUMN) * ROWS_OF_COLUMN;
    uint32_t word = threadIdx.x / (TILE / ROWS_OF_COLUMN), column = first_column + 4 * word;
    struct quad codes[4];
#pragma unroll
    for (unsigned r = 0; r < ROWS_OF_COLUMN; r += 4) {
        uint32_t in[4], turned[4];
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            in[j] = tile[(row + r + j) * TILE_PITCH + word];
        transpose_codes(turned, in);
#pragma unroll
        for (unsigned c = 0; c < 4; c++)
            codes[c].word[r / 4] = turned[c];
    }
    if (first_row + row >= s.pitch_transposed)
        return;
#pragma unroll
    for (unsigned c = 0; c < 4; c++)
        if (column + c < s.a.width)
            *(struct quad *)(out + (size_t)(column + c) * s.pitch_transposed + first_row + row) =
                codes[c];
}

/* The same for codes. */
template <bool ALIGNED>
DEVICE void load_codes(uint32_t (&words)[2], const struct float8_args &s, uint32_t rows,
                       uint32_t row, uint32_t column)
{
    size_t at = (size_t)row * s.a.width + column;
    const uint8_t *codes = (const uint8_t *)s.a.x + at;
    words[0] = words[1] = 0;
    if (ALIGNED && row < rows && column < s.a.width) {
        uint64_t both = *(const uint64_t *)codes;
        words[0] = (uint32_t)both;
        words[1] = (uint32_t)(both >> 32);
    }
#pragma unroll
    for (unsigned j = 0; j < GROUP && !ALIGNED; j++)
        if (row < rows && column + j < s.a.width)
            words[j / 4] |= (uint32_t)codes[j] << j % 4 * 8;
}

/* CODED: x has codes. */
template <bool ALIGNED, bool CODED> KERNEL(THREADS, 3) void float8_pack(struct float8_args s)
{
    SHARED(uint32_t[THREADS / WARP], warps);
    SHARED(uint32_t[TILE * TILE_PITCH], tile);
    uint32_t rows = (uint32_t)(s.a.count / s.a.width);
    uint32_t largest = largest_of_all(s, warps);
    uint32_t first_row = blockIdx.y * TILE, first_column = blockIdx.x * TILE;
    uint8_t *out = (uint8_t *)s.a.out;
    float up = power_for(largest, s, 1);
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < TILE * TILE / GROUP; i += THREADS) {
        unsigned r = i / (TILE / GROUP), c = i % (TILE / GROUP) * GROUP;
        uint32_t row = first_row + r, column = first_column + c, words[2];
        if (CODED) {
            load_codes<ALIGNED>(words, s, rows, row, column);
        } else {
            float x[GROUP];
            load_group<ALIGNED>(x, s, rows, row, column);
#pragma unroll
            for (unsigned j = 0; j < GROUP; j++)
                x[j] *= up;
            words[0] = codes_of(x, s);
            words[1] = codes_of(x + 4, s);
        }
        tile[r * TILE_PITCH + c / 4] = words[0];
        tile[r * TILE_PITCH + c / 4 + 1] = words[1];
        if (row < rows && column < s.pitch)
            *(uint64_t *)(out + (size_t)row * s.pitch + column) = words[0] | (uint64_t)words[1]
                                                                                 << 32;
    }
    BARRIER();
    store_transposed(out + (size_t)rows * s.pitch, tile, s, first_row, first_column);
    if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0)
        *(float *)(out + s.scale_at) = power_for(largest, s, -1);
}

/* ---- Codes of a part, and their numbers ---- */

#define CODES 4 /* per thread */

template <bool BF16> KERNEL(THREADS, 4) void float8_encode(struct float8_args s)
{
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * CODES;
    uint32_t largest = *s.known, *head = (uint32_t *)s.a.out;
    uint8_t *out = (uint8_t *)s.a.out + KERNEL_CODES_AT;
    float up = power_for(largest, s, 1), x[CODES];
    if (i < KERNEL_CODES_AT)
        head[i / CODES] = i == 0 ? largest : 0;
    if (i >= s.a.count)
        return;
#pragma unroll
    for (unsigned j = 0; j < CODES; j++)
        x[j] = i + j < s.a.count ? load_one<BF16>(s.a.x, i + j) * up : 0;
    uint32_t codes = largest < 0x7f800000 ? codes_of(x, s) : 0x7f7f7f7f;
    if (i + CODES <= s.a.count) {
        *(uint32_t *)(out + i) = codes;
        return;
    }
    for (unsigned j = 0; i + j < s.a.count; j++)
        out[i + j] = (uint8_t)(codes >> 8 * j);
}

/* The number of a code of e4m3. */
DEVICE float number_of(uint32_t code)
{
    uint32_t size = code & 0x7f;
    float number = size < 8 ? (float)size * 0x1p-9f : float_of((size << 20) + (120u << 23));
    return code & 0x80 ? -number : number;
}
KERNEL(THREADS, 4) void float8_numbers(struct float8_args s)
{
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < s.a.count)
        ((float *)s.a.out)[i] = number_of(((const uint8_t *)s.a.x)[i]) * power_for(*s.known, s, -1);
}

/* ---- Operations ---- */

template <bool BF16> static int launch_largest(const struct cuda_call *call, struct float8_args &s)
{
    unsigned blocks = blocks_for(s.a.count, (size_t)THREADS * wide<BF16>);
    s.blocks = blocks < SCRATCH_FLOAT8_BLOCKS ? blocks : SCRATCH_FLOAT8_BLOCKS;
    return LAUNCH(call->stream, s.blocks, THREADS, 0, float8_largest<BF16>, s);
}

template <bool CODED> static int launch_pack(const struct cuda_call *call, struct float8_args &s)
{
    size_t rows = s.a.count / s.a.width;
    s.pitch = (uint32_t)kernel_float8_pitch(s.a.width);
    s.pitch_transposed = (uint32_t)kernel_float8_pitch(rows);
    s.scale_at = kernel_float8_scale_at(rows, s.a.width);
    dim3 grid(blocks_for(s.pitch, TILE), blocks_for(s.pitch_transposed, TILE));
    return s.a.width % GROUP == 0
               ? LAUNCH(call->stream, grid, THREADS, 0, (float8_pack<true, CODED>), s)
               : LAUNCH(call->stream, grid, THREADS, 0, (float8_pack<false, CODED>), s);
}

template <bool BF16> static int round_as(const struct cuda_call *call, struct float8_args &s)
{
    int error = s.known == NULL ? launch_largest<BF16>(call, s) : 0;
    if (error != 0)
        return error;
    if (BF16 && s.a.width > 0)
        return launch_pack<false>(call, s);
    unsigned blocks = blocks_for(s.a.count, (size_t)THREADS * wide<BF16>);
    return LAUNCH(call->stream, blocks, THREADS, 0, float8_round<BF16>, s);
}

static struct float8_args args_for(const struct cuda_call *call, enum kernel_float8 format,
                                   void *out, const void *x, size_t count)
{
    struct float8_args s = {};
    bool is_e4m3 = format == KERNEL_E4M3;
    s.a.out = out;
    s.a.x = x;
    s.a.count = count;
    s.largest = (uint32_t *)call->scratch;
    s.bits = is_e4m3 ? 3 : 2;
    s.lowest = is_e4m3 ? -6 : -14;
    s.highest = is_e4m3 ? 8 : 15;
    return s;
}

extern "C" int cuda_round_float8(const struct cuda_call *call, const void *args)
{
    const struct kernel_round_float8 *a = (const struct kernel_round_float8 *)args;
    struct float8_args s = args_for(call, a->format, a->out, a->x, a->count);
    s.a.width = a->width;
    s.known = a->largest;
    return a->dtype == KERNEL_BF16 ? round_as<true>(call, s) : round_as<false>(call, s);
}

extern "C" int cuda_float8_largest(const struct cuda_call *call, const void *args)
{
    const struct kernel_float8_largest *a = (const struct kernel_float8_largest *)args;
    struct float8_args s = args_for(call, KERNEL_E4M3, a->out, a->x, a->count);
    int error =
        a->dtype == KERNEL_BF16 ? launch_largest<true>(call, s) : launch_largest<false>(call, s);
    return error != 0 ? error : LAUNCH(call->stream, 1, THREADS, 0, float8_most, s);
}

extern "C" int cuda_float8_encode(const struct cuda_call *call, const void *args)
{
    const struct kernel_float8_encode *a = (const struct kernel_float8_encode *)args;
    struct float8_args s = args_for(call, KERNEL_E4M3, a->out, a->x, a->count);
    s.known = a->largest;
    unsigned blocks = blocks_for(s.a.count, (size_t)THREADS * CODES);
    return a->dtype == KERNEL_BF16
               ? LAUNCH(call->stream, blocks, THREADS, 0, float8_encode<true>, s)
               : LAUNCH(call->stream, blocks, THREADS, 0, float8_encode<false>, s);
}

extern "C" int cuda_float8_decode(const struct cuda_call *call, const void *args)
{
    const struct kernel_float8_decode *a = (const struct kernel_float8_decode *)args;
    const char *codes = (const char *)a->coded + KERNEL_CODES_AT;
    struct float8_args s = args_for(call, KERNEL_E4M3, a->out, codes, a->count);
    s.known = (const uint32_t *)a->coded;
    s.a.width = a->width;
    if (a->dtype == KERNEL_BF16)
        return launch_pack<true>(call, s);
    return LAUNCH(call->stream, blocks_for(s.a.count, (size_t)THREADS), THREADS, 0, float8_numbers,
                  s);
}
