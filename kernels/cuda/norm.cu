/* norm.cu - RMSNorm with the residual addition before it, forward and backward.
 *
 * Formulas and order of sums are those of cpu/isa/norm.c, and so are the bits: the sum over a row
 * runs in sixteen lanes, the weight's gradient over 32 rows in order, then over these segments.
 *
 * A block owns a row. All its threads read the row, 16 bytes at a time, and write the summands to
 * shared memory. Sixteen threads of the first warp add them, each its lane, one element after the
 * other. All threads finish the row from shared memory. The chain takes less time than the loads of
 * the row, while other blocks of the multiprocessor read. Memory: forward reads x and residual once
 * and writes x and out once. */
#include "kernels/cuda/largest.h"
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/values.h"

#define THREADS 128
#define SEGMENT SCRATCH_NORM_SEGMENT

/* The sum of row[0, dim) in sixteen lanes, of squares or of values; the result is in thread 0. */
template <bool SQUARES> DEVICE float sum_row(const float *row, uint32_t dim)
{
    float sum = 0;
    if (threadIdx.x < SUM_LANES) {
#pragma unroll 8
        for (uint32_t c = threadIdx.x; c < dim; c += SUM_LANES)
            sum = sum + (SQUARES ? row[c] * row[c] : row[c]);
    }
    return sum_tree(sum);
}

template <bool BF16, unsigned N> KERNEL(THREADS, 8) void rmsnorm(struct kernel_rmsnorm a)
{
    DYNAMIC_SHARED(float, row);
    SHARED(float, rstd_shared);
    SHARED(uint32_t[THREADS / WARP], warps);
    uint32_t largest = 0;
    size_t at = (size_t)blockIdx.x * a.dim;
    for (uint32_t c = threadIdx.x * N; c < a.dim; c += THREADS * N) {
        float x[N], added[N];
        load<BF16>(x, a.x, at + c);
        if (a.residual) {
            load<BF16>(added, a.residual, at + c);
#pragma unroll
            for (unsigned j = 0; j < N; j++)
                x[j] = rounded<BF16>(x[j] + added[j]);
            store<BF16>(a.x, at + c, x);
        }
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            row[c + j] = x[j];
    }
    BARRIER();
    if (threadIdx.x < WARP) {
        float sum = sum_row<true>(row, a.dim);
        float rstd = 1.0f / square_root(sum / (float)a.dim + a.eps);
        if (threadIdx.x == 0)
            rstd_shared = a.rstd[blockIdx.x] = rstd;
    }
    BARRIER();
    float rstd = rstd_shared;
    for (uint32_t c = threadIdx.x * N; c < a.dim; c += THREADS * N) {
        float weight[N], out[N];
        load<BF16>(weight, a.weight, c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            out[j] = row[c + j] * rstd * weight[j];
        store<BF16>(a.out, at + c, out);
        largest = more(largest, largest_of<BF16>(out));
    }
    note_largest<THREADS>(a.largest, largest, warps);
}

/* dx += rstd (u - h mean(u h)), with u = dout weight and h = x rstd. */
template <bool BF16, unsigned N>
KERNEL(THREADS, 8)
void rmsnorm_dx(struct kernel_rmsnorm_backward a)
{
    DYNAMIC_SHARED(float, row);
    SHARED(float, mean_shared);
    size_t at = (size_t)blockIdx.x * a.dim;
    float rstd = a.rstd[blockIdx.x], x[N], dout[N], weight[N], dx[N];
    for (uint32_t c = threadIdx.x * N; c < a.dim; c += THREADS * N) {
        load<BF16>(x, a.x, at + c);
        load<BF16>(dout, a.dout, at + c);
        load<BF16>(weight, a.weight, c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            row[c + j] = dout[j] * weight[j] * (x[j] * rstd);
    }
    BARRIER();
    if (threadIdx.x < WARP) {
        float sum = sum_row<false>(row, a.dim);
        if (threadIdx.x == 0)
            mean_shared = sum / (float)a.dim;
    }
    BARRIER();
    float mean = mean_shared;
    for (uint32_t c = threadIdx.x * N; c < a.dim; c += THREADS * N) {
        load<BF16>(x, a.x, at + c);
        load<BF16>(dout, a.dout, at + c);
        load<BF16>(weight, a.weight, c);
        load<BF16>(dx, a.dx, at + c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            dx[j] = dx[j] + (dout[j] * weight[j] - x[j] * rstd * mean) * rstd;
        store<BF16>(a.dx, at + c, dx);
    }
}

struct partial_args {
    struct kernel_rmsnorm_backward a;
    float *partial; /* [segments,C] */
};

/* The weight's gradient of one segment of rows: a thread adds its columns, row after row. */
template <bool BF16, unsigned N> KERNEL(THREADS, 8) void rmsnorm_partial(struct partial_args p)
{
    const struct kernel_rmsnorm_backward &a = p.a;
    uint32_t c = (blockIdx.x * THREADS + threadIdx.x) * N, first = blockIdx.y * SEGMENT;
    uint32_t end = first + SEGMENT < a.rows ? first + SEGMENT : a.rows;
    if (c >= a.dim)
        return;
    float sum[N] = {}, x[N], dout[N];
#pragma unroll 4
    for (uint32_t n = first; n < end; n++) {
        float rstd = a.rstd[n];
        load<BF16>(x, a.x, (size_t)n * a.dim + c);
        load<BF16>(dout, a.dout, (size_t)n * a.dim + c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            sum[j] = sum[j] + dout[j] * (x[j] * rstd);
    }
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        p.partial[(size_t)blockIdx.y * a.dim + c + j] = sum[j];
}

/* The segments in order. */
KERNEL(THREADS, 8) void rmsnorm_dweight(struct partial_args p)
{
    const struct kernel_rmsnorm_backward &a = p.a;
    uint32_t c = blockIdx.x * THREADS + threadIdx.x, segments = (a.rows + SEGMENT - 1) / SEGMENT;
    if (c >= a.dim)
        return;
    float sum = 0;
#pragma unroll 32
    for (uint32_t s = 0; s < segments; s++)
        sum = sum + p.partial[(size_t)s * a.dim + c];
    a.dweight[c] = sum;
}

/* ---- Launches ---- */

template <bool BF16, unsigned N>
static int forward(const struct cuda_call *call, const struct kernel_rmsnorm &a)
{
    return LAUNCH(call->stream, a.rows, THREADS, a.dim * sizeof(float), (rmsnorm<BF16, N>), a);
}

extern "C" int cuda_rmsnorm(const struct cuda_call *call, const void *args)
{
    const struct kernel_rmsnorm &a = *(const struct kernel_rmsnorm *)args;
    if (a.dtype == KERNEL_BF16)
        return a.dim % 8 == 0 ? forward<true, 8>(call, a) : forward<true, 1>(call, a);
    return a.dim % 4 == 0 ? forward<false, 4>(call, a) : forward<false, 1>(call, a);
}

template <bool BF16, unsigned N>
static int backward(const struct cuda_call *call, const struct kernel_rmsnorm_backward &a)
{
    const struct partial_args p = {a, (float *)call->scratch};
    dim3 grid(blocks_for(a.dim, THREADS * N), blocks_for(a.rows, SEGMENT));
    int error =
        LAUNCH(call->stream, a.rows, THREADS, a.dim * sizeof(float), (rmsnorm_dx<BF16, N>), a);
    if (error == 0)
        error = LAUNCH(call->stream, grid, THREADS, 0, (rmsnorm_partial<BF16, N>), p);
    if (error == 0)
        error = LAUNCH(call->stream, blocks_for(a.dim, THREADS), THREADS, 0, rmsnorm_dweight, p);
    return error;
}

extern "C" int cuda_rmsnorm_backward(const struct cuda_call *call, const void *args)
{
    const struct kernel_rmsnorm_backward &a = *(const struct kernel_rmsnorm_backward *)args;
    if (a.dtype == KERNEL_BF16)
        return a.dim % 8 == 0 ? backward<true, 8>(call, a) : backward<true, 1>(call, a);
    return a.dim % 4 == 0 ? backward<false, 4>(call, a) : backward<false, 1>(call, a);
}
