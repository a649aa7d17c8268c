/* extremes.cu - the extremes of a tensor's values (kernels.h): the largest and the smallest |x|,
 * and the number of values that are not finite.
 *
 * Threads combine the values that they read, a block its threads, and one block all blocks. Maxima,
 * minima and a sum of integers: the same in any order. No atomics. */
#include "kernels/cuda/largest.h"
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"

#define THREADS 256
#define WARPS (THREADS / WARP)

struct extremes_args {
    struct kernel_extremes a;
    struct kernel_extent *partial; /* [blocks] */
    uint32_t blocks;
};

DEVICE struct kernel_extent nothing(void)
{
    struct kernel_extent none = {};
    none.smallest = UINT32_MAX;
    return none;
}

DEVICE void merge(struct kernel_extent *all, const struct kernel_extent &part)
{
    all->largest = more(all->largest, part.largest);
    all->smallest = part.smallest < all->smallest ? part.smallest : all->smallest;
    all->not_finite += part.not_finite;
}

/* All threads of the block call it; the result is in all of them. */
DEVICE void merge_block(struct kernel_extent *mine, struct kernel_extent *warps)
{
#pragma unroll
    for (unsigned mask = WARP / 2; mask > 0; mask /= 2) {
        struct kernel_extent other;
        other.largest = warp_xor_bits(mine->largest, mask);
        other.smallest = warp_xor_bits(mine->smallest, mask);
        other.not_finite = warp_xor_bits(mine->not_finite, mask);
        merge(mine, other);
    }
    if (threadIdx.x % WARP == 0)
        warps[threadIdx.x / WARP] = *mine;
    BARRIER();
    *mine = warps[0];
#pragma unroll
    for (unsigned w = 1; w < WARPS; w++)
        merge(mine, warps[w]);
}

template <bool BF16> KERNEL(THREADS, 4) void extremes_part(struct extremes_args s)
{
    SHARED(struct kernel_extent[WARPS], warps);
    const unsigned N = wide<BF16>;
    size_t stride = (size_t)s.blocks * THREADS * N;
    struct kernel_extent mine = nothing();
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N; i < s.a.count; i += stride) {
        float x[N];
        load_part<BF16>(x, s.a.x, i, s.a.count);
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            uint32_t bits = bits_of(x[j]) & 0x7fffffff;
            struct kernel_extent one = {bits, bits, bits >= 0x7f800000 ? 1u : 0u};
            if (i + j < s.a.count)
                merge(&mine, one);
        }
    }
    merge_block(&mine, warps);
    if (threadIdx.x == 0)
        s.partial[blockIdx.x] = mine;
}

KERNEL(THREADS, 1) void extremes_all(struct extremes_args s)
{
    SHARED(struct kernel_extent[WARPS], warps);
    struct kernel_extent mine = nothing();
    for (uint32_t b = threadIdx.x; b < s.blocks; b += THREADS)
        merge(&mine, s.partial[b]);
    merge_block(&mine, warps);
    if (threadIdx.x == 0)
        *s.a.out = mine;
}

extern "C" int cuda_extremes(const struct cuda_call *call, const void *args)
{
    struct extremes_args s = {};
    s.a = *(const struct kernel_extremes *)args;
    s.partial = (struct kernel_extent *)call->scratch;
    bool is_bf16 = s.a.dtype == KERNEL_BF16;
    unsigned blocks = blocks_for(s.a.count, THREADS * (is_bf16 ? wide<true> : wide<false>));
    s.blocks = blocks < SCRATCH_EXTREMES_BLOCKS ? blocks : SCRATCH_EXTREMES_BLOCKS;
    int error = 0;
    if (s.blocks > 0)
        error = is_bf16 ? LAUNCH(call->stream, s.blocks, THREADS, 0, extremes_part<true>, s)
                        : LAUNCH(call->stream, s.blocks, THREADS, 0, extremes_part<false>, s);
    return error != 0 ? error : LAUNCH(call->stream, 1, THREADS, 0, extremes_all, s);
}
