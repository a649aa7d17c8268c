/* loss.cu - cross entropy of logits against targets, with the gradient written over the logits.
 *
 * A block owns a row, which may be any part of the batch: a head that is computed in chunks of rows
 * calls this for each. The formulas and the order of the sum (sixteen lanes) are those of
 * cpu/isa/loss.c, and so are the bits. All threads compute e^(x - max) for a piece of the row into
 * shared memory; sixteen threads of the first warp add the piece while the others compute the next
 * one. The gradient computes e^(x - max) again, which costs less than storing it. The row is read
 * three times, the last two from the second-level cache. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"

#define THREADS 256
#define WARPS (THREADS / WARP)
#define PIECE 2048 /* values of a row in shared memory, twice; a multiple of SUM_LANES */

/* Natural logarithm, see cpu/isa/loss.c. */
DEVICE double logarithm(double x)
{
    uint64_t bits;
    if (!(x > 0) || x > 0x1.fffffffffffffp+1023)
        return x == 0 ? -HUGE_VAL : x;
    memcpy(&bits, &x, sizeof(bits));
    int64_t exponent = (int64_t)((bits - 0x3fe6a09e667f3bcd) >> 52);
    exponent = exponent >= 2048 ? exponent - 4096 : exponent;
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, sizeof(m));
    double f = (m - 1) / (m + 1), square = f * f, sum = 0;
    for (int i = 23; i > 0; i -= 2)
        sum = sum * square + 1.0 / i;
    return (double)exponent * 0x1.62e42fefa39efp-1 + 2 * f * sum;
}

/* The largest of the block's x; every thread gets it. */
DEVICE float block_largest(float x, float *of_warp)
{
#pragma unroll
    for (unsigned mask = WARP / 2; mask > 0; mask /= 2)
        x = larger(warp_xor(x, mask), x);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = x;
    BARRIER();
    for (unsigned w = 0; w < WARPS; w++)
        x = larger(of_warp[w], x);
    return x;
}

template <bool BF16, unsigned N>
DEVICE float row_largest(const struct kernel_cross_entropy &a, size_t row, float *of_warp)
{
    float most = -HUGE_VALF, x[N];
    for (uint32_t v = threadIdx.x * N; v < a.vocab; v += THREADS * N) {
        load<BF16>(x, a.logits, row + v);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            most = larger(x[j], most);
    }
    return block_largest(most, of_warp);
}

/* The sum of e^(x - max) over the row; the result is in thread 0. */
template <bool BF16, unsigned N>
DEVICE float row_sum(const struct kernel_cross_entropy &a, size_t row, float max, float *pieces)
{
    float sum = 0, x[N];
    unsigned turn = 0;
    for (uint32_t first = 0; first < a.vocab; first += PIECE, turn ^= 1) {
        uint32_t count = a.vocab - first < PIECE ? a.vocab - first : PIECE;
        float *piece = pieces + turn * PIECE;
        for (uint32_t v = threadIdx.x * N; v < count; v += THREADS * N) {
            load<BF16>(x, a.logits, row + first + v);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                piece[v + j] = exponential<false>(x[j] - max);
        }
        BARRIER();
        if (threadIdx.x < SUM_LANES) {
#pragma unroll 8
            for (uint32_t v = threadIdx.x; v < count; v += SUM_LANES)
                sum = sum + piece[v];
        }
    }
    return sum_tree(sum);
}

template <bool BF16, unsigned N>
DEVICE void write_gradient(const struct kernel_cross_entropy &a, size_t row, int32_t target,
                           float max, float inverse)
{
    float scale = *a.scale, x[N];
    for (uint32_t v = threadIdx.x * N; v < a.vocab; v += THREADS * N) {
        load<BF16>(x, a.logits, row + v);
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            float p = exponential<false>(x[j] - max) * inverse;
            x[j] = (v + j == (uint32_t)target ? p - 1.0f : p) * scale;
        }
        store<BF16>(a.logits, row + v, x);
    }
}

template <bool BF16, unsigned N>
DEVICE void write_zeros(const struct kernel_cross_entropy &a, size_t row)
{
    const float zeros[N] = {};
    for (uint32_t v = threadIdx.x * N; v < a.vocab; v += THREADS * N)
        store<BF16>(a.logits, row + v, zeros);
}

template <bool BF16, unsigned N>
KERNEL(THREADS, 4)
void cross_entropy(struct kernel_cross_entropy a)
{
    SHARED(float[2 * PIECE], pieces);
    SHARED(float[WARPS], of_warp);
    SHARED(float, inverse);
    size_t row = (size_t)blockIdx.x * a.vocab;
    int32_t target = a.targets[blockIdx.x];
    if (target < 0) {
        write_zeros<BF16, N>(a, row);
        if (threadIdx.x == 0)
            a.losses[blockIdx.x] = 0;
        return;
    }
    float max = row_largest<BF16, N>(a, row, of_warp);
    float sum = row_sum<BF16, N>(a, row, max, pieces);
    if (threadIdx.x == 0) {
        float x = load_one<BF16>(a.logits, row + (size_t)target);
        a.losses[blockIdx.x] = (float)(logarithm((double)sum) + ((double)max - (double)x));
        inverse = 1.0f / sum;
    }
    BARRIER();
    write_gradient<BF16, N>(a, row, target, max, inverse);
}

template <bool BF16, unsigned N>
static int launch(const struct cuda_call *call, const struct kernel_cross_entropy &a)
{
    return LAUNCH(call->stream, a.rows, THREADS, 0, (cross_entropy<BF16, N>), a);
}

extern "C" int cuda_cross_entropy(const struct cuda_call *call, const void *args)
{
    const struct kernel_cross_entropy &a = *(const struct kernel_cross_entropy *)args;
    if (a.dtype == KERNEL_BF16)
        return a.vocab % 8 == 0 ? launch<true, 8>(call, a) : launch<true, 1>(call, a);
    return a.vocab % 4 == 0 ? launch<false, 4>(call, a) : launch<false, 1>(call, a);
}
