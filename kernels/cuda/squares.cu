/* squares.cu - the exact sum of the squares of rows (kernels.h, cpu/exact.c).
 *
 * A row's squares are added in double in sixteen lanes, as on the CPU: a block reads a row piece by
 * piece into shared memory, sixteen of its threads add. What crosses rows is exact: a double is cut
 * into digits of 32 bits that are added as integers, thread l those of limb l, in any order. So the
 * sum's bits are those of the CPU, and no atomics are needed. Rows are taken some at a time, so
 * that the scratch does not grow with the tensor. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/values.h"

#define THREADS 128
#define PIECE 1024 /* values of a row in shared memory, twice; a multiple of SUM_LANES */
#define LIMB_THREADS 96
#define LIMB_INFINITY (KERNEL_EXACT_LIMBS - 2)
#define LIMB_NAN (KERNEL_EXACT_LIMBS - 1)
static_assert(LIMB_THREADS >= KERNEL_EXACT_LIMBS && LIMB_THREADS % WARP == 0, "a thread a limb");

struct squares_args {
    struct kernel_sum_squares a;
    uint64_t first; /* of the rows that this launch takes */
    uint32_t rows;
    double *values;   /* [rows] */
    int64_t *partial; /* [blocks,KERNEL_EXACT_LIMBS] */
    uint32_t blocks;
};

template <unsigned N> KERNEL(THREADS, 8) void row_squares(struct squares_args s)
{
    SHARED(float[2][PIECE], pieces);
    size_t row = (s.first + blockIdx.x) * s.a.width;
    double sum = 0;
    unsigned turn = 0;
    for (uint64_t first = 0; first < s.a.width; first += PIECE, turn ^= 1) {
        uint32_t count = (uint32_t)(s.a.width - first < PIECE ? s.a.width - first : PIECE);
        float *piece = pieces[turn], x[N];
        for (uint32_t c = threadIdx.x * N; c < count; c += THREADS * N) {
            load<false>(x, s.a.x, row + first + c);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                piece[c + j] = x[j];
        }
        BARRIER();
        if (threadIdx.x < SUM_LANES) {
#pragma unroll 8
            for (uint32_t c = threadIdx.x; c < count; c += SUM_LANES) {
                double wide_x = (double)piece[c];
                sum = sum + wide_x * wide_x;
            }
        }
    }
    sum = sum_tree(sum);
    if (threadIdx.x == 0)
        s.values[blockIdx.x] = sum;
}

/* What a value adds to a limb: exact_add of cpu/exact.c. Values are squares: not negative. */
DEVICE int64_t limb_of(double value, unsigned limb)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ff;
    uint64_t mantissa = bits & (((uint64_t)1 << 52) - 1);
    if (exponent == 0x7ff)
        return limb == (mantissa != 0 ? LIMB_NAN : LIMB_INFINITY);
    if (exponent > 0)
        mantissa |= (uint64_t)1 << 52;
    unsigned shift = exponent > 0 ? exponent - 1 : 0, digit = shift / 32, up = shift % 32;
    uint64_t low = mantissa << up, high = mantissa >> 1 >> (63 - up);
    if (limb == digit)
        return (int64_t)(uint32_t)low;
    if (limb == digit + 1)
        return (int64_t)(low >> 32);
    return limb == digit + 2 ? (int64_t)high : 0;
}

KERNEL(LIMB_THREADS, 4) void add_values(struct squares_args s)
{
    int64_t sum = 0;
    if (threadIdx.x >= KERNEL_EXACT_LIMBS)
        return;
#pragma unroll 4
    for (uint32_t i = blockIdx.x; i < s.rows; i += s.blocks)
        sum += limb_of(s.values[i], threadIdx.x);
    s.partial[blockIdx.x * KERNEL_EXACT_LIMBS + threadIdx.x] = sum;
}

KERNEL(LIMB_THREADS, 4) void add_limbs(struct squares_args s)
{
    int64_t sum = 0;
    if (threadIdx.x >= KERNEL_EXACT_LIMBS)
        return;
    for (uint32_t b = 0; b < s.blocks; b++)
        sum += s.partial[b * KERNEL_EXACT_LIMBS + threadIdx.x];
    s.a.sum->limb[threadIdx.x] += sum;
}

extern "C" int cuda_sum_squares(const struct cuda_call *call, const void *args)
{
    struct squares_args s = {};
    s.a = *(const struct kernel_sum_squares *)args;
    s.values = (double *)call->scratch;
    s.partial = (int64_t *)(s.values + SCRATCH_SQUARES_ROWS);
    int error = 0;
    for (; error == 0 && s.first < s.a.rows; s.first += s.rows) {
        uint64_t left = s.a.rows - s.first;
        s.rows = (uint32_t)(left < SCRATCH_SQUARES_ROWS ? left : SCRATCH_SQUARES_ROWS);
        s.blocks = s.rows < SCRATCH_SQUARES_BLOCKS ? s.rows : SCRATCH_SQUARES_BLOCKS;
        error = s.a.width % 4 == 0 ? LAUNCH(call->stream, s.rows, THREADS, 0, row_squares<4>, s)
                                   : LAUNCH(call->stream, s.rows, THREADS, 0, row_squares<1>, s);
        if (error == 0)
            error = LAUNCH(call->stream, s.blocks, LIMB_THREADS, 0, add_values, s);
        if (error == 0)
            error = LAUNCH(call->stream, 1, LIMB_THREADS, 0, add_limbs, s);
    }
    return error;
}
