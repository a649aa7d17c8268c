/* digest.cu - the digest of a box of a tensor, and the bits of proto/base/checksum.c.
 *
 * Each element's bits are multiplied by two keys of its index in the whole tensor, and added modulo
 * 2^64, in any order. So threads add the elements that they read, a block adds its threads, and one
 * block adds the blocks. No atomics. */
#include "kernels/cuda/run.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/values.h"

#define THREADS 256
#define BLOCKS SCRATCH_DIGEST_BLOCKS
static_assert(BLOCKS * 2 * sizeof(uint64_t) <= KERNEL_DIGEST_SCRATCH_BYTES, "as kernels.h says");

struct digest_args {
    struct kernel_digest a;
    uint64_t *partial; /* [blocks,2] */
    uint32_t blocks;
};

struct sums {
    uint64_t of[2];
};

DEVICE void add_element(struct sums *sums, uint64_t bits, uint64_t index)
{
    uint64_t a = (index + 1) * 0x9e3779b97f4a7c15u;
    uint64_t b = (a ^ (a >> 32)) * 0xff51afd7ed558ccdu, key = b ^ (b >> 32);
    uint64_t c = key * 0xc4ceb9fe1a85ec53u;
    sums->of[0] += bits * key;
    sums->of[1] += bits * (c ^ (c >> 32));
}

/* 16 bytes from element i on, or one element. */
template <bool BF16, unsigned N>
DEVICE void add_elements(struct sums *sums, const void *x, size_t i, uint64_t index)
{
    if constexpr (N == 1) {
        add_element(sums, BF16 ? ((const uint16_t *)x)[i] : ((const uint32_t *)x)[i], index);
    } else {
        struct quad q = load_quad((const char *)x + i * bytes<BF16>);
#pragma unroll
        for (unsigned j = 0; j < N; j++) {
            uint32_t word = q.word[BF16 ? j / 2 % 4 : j % 4];
            add_element(sums, BF16 ? word >> (j % 2 * 16) & 0xffff : word, index + j);
        }
    }
}

/* All threads of the block call it; the result is in thread 0. */
DEVICE void add_up(struct sums *sums, struct sums *shared)
{
    shared[threadIdx.x] = *sums;
    BARRIER();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            shared[threadIdx.x].of[0] += shared[threadIdx.x + half].of[0];
            shared[threadIdx.x].of[1] += shared[threadIdx.x + half].of[1];
        }
        BARRIER();
    }
    *sums = shared[0];
}

template <bool BF16, unsigned N> KERNEL(THREADS, 4) void digest_part(struct digest_args s)
{
    SHARED(struct sums[THREADS], shared);
    struct sums sums = {};
    size_t count = s.a.rows * s.a.width, step = (size_t)s.blocks * THREADS * N;
    for (size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * N; i < count; i += step) {
        uint64_t row = i < s.a.width ? 0 : i / s.a.width;
        add_elements<BF16, N>(&sums, s.a.x, i, s.a.first + row * s.a.stride + i - row * s.a.width);
    }
    add_up(&sums, shared);
    if (threadIdx.x == 0) {
        s.partial[2 * blockIdx.x] = sums.of[0];
        s.partial[2 * blockIdx.x + 1] = sums.of[1];
    }
}

KERNEL(THREADS, 1) void digest_sum(struct digest_args s)
{
    SHARED(struct sums[THREADS], shared);
    struct sums sums = {};
    for (uint32_t b = threadIdx.x; b < s.blocks; b += THREADS) {
        sums.of[0] += s.partial[2 * b];
        sums.of[1] += s.partial[2 * b + 1];
    }
    add_up(&sums, shared);
    if (threadIdx.x == 0) {
        s.a.sum[0] += sums.of[0];
        s.a.sum[1] += sums.of[1];
    }
}

template <bool BF16> static int parts(const struct cuda_call *call, struct digest_args *s)
{
    constexpr unsigned most = wide<BF16>;
    bool is_wide = s->a.width % most == 0 && (uintptr_t)s->a.x % sizeof(struct quad) == 0;
    size_t count = s->a.rows * s->a.width;
    unsigned blocks = blocks_for(count, THREADS * (is_wide ? most : 1));
    s->blocks = blocks < BLOCKS ? blocks : BLOCKS;
    return is_wide ? LAUNCH(call->stream, s->blocks, THREADS, 0, (digest_part<BF16, most>), *s)
                   : LAUNCH(call->stream, s->blocks, THREADS, 0, (digest_part<BF16, 1>), *s);
}

extern "C" int cuda_digest(const struct cuda_call *call, const void *args)
{
    struct digest_args s = {};
    s.a = *(const struct kernel_digest *)args;
    s.partial = (uint64_t *)call->scratch;
    if (s.a.rows * s.a.width == 0)
        return 0;
    if (s.a.stride == s.a.width) { /* its elements are consecutive in the tensor, too */
        s.a.width *= s.a.rows;
        s.a.rows = 1;
    }
    int error = s.a.dtype == KERNEL_BF16 ? parts<true>(call, &s) : parts<false>(call, &s);
    return error != 0 ? error : LAUNCH(call->stream, 1, THREADS, 0, digest_sum, s);
}
