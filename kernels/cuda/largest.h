/* largest.h - the largest |x| of a tensor, as the bits of a float, for float8 scales. Bits of
 * numbers >= 0 have the order of the numbers; NaNs are above all.
 *
 * Device code, included by the .cu files. */
#ifndef HOLDFAST_CUDA_LARGEST_H
#define HOLDFAST_CUDA_LARGEST_H

#include "kernels/cuda/values.h"

DEVICE uint32_t more(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Of values as they are stored. */
template <bool BF16, unsigned N> DEVICE uint32_t largest_of(const float (&x)[N])
{
    uint32_t most = 0;
#pragma unroll
    for (unsigned j = 0; j < N; j++)
        most = more(most, bits_of(rounded<BF16>(x[j])) & 0x7fffffff);
    return most;
}

/* The largest of all threads; all threads get it. */
template <unsigned THREADS> DEVICE uint32_t largest_of_block(uint32_t mine, uint32_t *warps)
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

/* All threads of a block call it; `warps` has a number for each warp. */
template <unsigned THREADS> DEVICE void note_largest(uint32_t *to, uint32_t mine, uint32_t *warps)
{
    if (to == NULL)
        return;
    mine = largest_of_block<THREADS>(mine, warps);
    if (threadIdx.x == 0)
        raise_to(to, mine);
}

#endif
