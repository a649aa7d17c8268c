/* table.cu - the gradient of the embedding's table, without atomics.
 *
 * A block owns a row n of the batch and some columns. If an earlier row has the same token, that
 * row's block adds for both, and this one ends. Otherwise it scans the later rows, as many at a
 * time as it has threads. It adds the rows of its token in order, each thread its columns in
 * registers: the order and bits of cpu/isa/elementwise.c. The table was filled with zeros before,
 * or is a sum to which the rows of a leaf are added. With `seen`, rows not yet seen get their first
 * leaf, and rows without tokens do not change. Comparisons take rows^2 / threads steps, for 8192
 * rows some tens of thousands of cycles per block: little compared with writing the whole table. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"

#define THREADS 128
#define WARPS (THREADS / WARP)

KERNEL(THREADS, 8) void zero_table(struct kernel_embedding_backward a)
{
    size_t count = (size_t)a.vocab * a.dim;
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * wide<false>;
    const float zeros[wide<false>] = {};
    if (i < count)
        store_part<false>(a.dtable, i, count, zeros);
}

/* Bits of the THREADS rows from `first` on that have the token. All threads call it. */
DEVICE void find_rows(uint32_t *bits, const int32_t *tokens, uint32_t first, uint32_t begin,
                      uint32_t end, int32_t token)
{
    uint32_t n = first + threadIdx.x;
    uint32_t found = warp_ballot(n >= begin && n < end && tokens[n] == token);
    if (threadIdx.x % WARP == 0)
        bits[threadIdx.x / WARP] = found;
    BARRIER();
}

/* Adds the rows of a set of WARP, row `first` the lowest bit, in their order. */
template <bool BF16, unsigned N>
DEVICE void add_rows(float (&sum)[N], const struct kernel_embedding_backward &a, uint32_t first,
                     uint32_t rows, uint32_t c)
{
    float x[N];
    for (; rows != 0; rows &= rows - 1) {
        load<BF16>(x, a.dout, (size_t)(first + first_bit(rows)) * a.dim + c);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            sum[j] = sum[j] + x[j];
    }
}

template <bool BF16, unsigned N>
KERNEL(THREADS, 8)
void embedding_dtable(struct kernel_embedding_backward a)
{
    SHARED(uint32_t[2][WARPS], bits);
    uint32_t row = blockIdx.x, c = (blockIdx.y * THREADS + threadIdx.x) * N, turn = 0;
    int32_t token = a.tokens[row];
    for (uint32_t first = 0; first < row; first += THREADS, turn ^= 1) {
        uint32_t any = 0;
        find_rows(bits[turn], a.tokens, first, 0, row, token);
        for (unsigned w = 0; w < WARPS; w++)
            any |= bits[turn][w];
        if (any != 0)
            return;
    }
    float sum[N] = {};
    for (uint32_t first = row; first < a.rows; first += THREADS, turn ^= 1) {
        find_rows(bits[turn], a.tokens, first, row, a.rows, token);
        for (unsigned w = 0; w < WARPS && c < a.dim; w++)
            add_rows<BF16>(sum, a, first + w * WARP, bits[turn][w], c);
    }
    if (c >= a.dim)
        return;
    size_t at = (size_t)token * a.dim + c;
    if (a.seen ? a.seen[token] != 0 : a.is_folded) {
        float there[N];
        load<false>(there, a.dtable, at);
#pragma unroll
        for (unsigned j = 0; j < N; j++)
            sum[j] = there[j] + sum[j];
    }
    store<false>(a.dtable, at, sum);
}

/* Launched after the kernels that read `seen`. */
KERNEL(THREADS, 8) void mark_seen(struct kernel_embedding_backward a)
{
    uint32_t row = blockIdx.x * THREADS + threadIdx.x;
    if (row < a.rows)
        raise_to(&a.seen[a.tokens[row]], 1); /* rows of one token write at the same time */
}

template <bool BF16, unsigned N>
static int backward(const struct cuda_call *call, const struct kernel_embedding_backward &a)
{
    size_t count = (size_t)a.vocab * a.dim;
    int error = a.is_folded || a.seen
                    ? 0
                    : LAUNCH(call->stream, blocks_for(count, THREADS * wide<false>), THREADS, 0,
                             zero_table, a);
    dim3 grid(a.rows, blocks_for(a.dim, THREADS * N));
    if (error == 0)
        error = LAUNCH(call->stream, grid, THREADS, 0, (embedding_dtable<BF16, N>), a);
    return error != 0 || !a.seen
               ? error
               : LAUNCH(call->stream, blocks_for(a.rows, THREADS), THREADS, 0, mark_seen, a);
}

extern "C" int cuda_embedding_backward(const struct cuda_call *call, const void *args)
{
    const struct kernel_embedding_backward &a = *(const struct kernel_embedding_backward *)args;
    if (a.dtype == KERNEL_BF16)
        return a.dim % 8 == 0 ? backward<true, 8>(call, a) : backward<true, 1>(call, a);
    return a.dim % 4 == 0 ? backward<false, 4>(call, a) : backward<false, 1>(call, a);
}
