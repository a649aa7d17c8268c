/* bodies.h - the primitives of the .cu files, each with two bodies: one for the GPU, one for the
 * lanes of a CPU.
 *
 * nvcc compiles a .cu file for the GPU. The host's C++ compiler compiles the same file (-x c++) for
 * tests/cuda/lanes.h (-include), which runs a block's threads as fibers and finds faults between
 * them. Only this header differs between the two; the files do not depend on it.
 *
 * The subset: one-dimensional blocks of whole warps, grids of up to three dimensions; barriers of a
 * block; collectives of full warps; no clusters, no grid synchronization, no atomics but the
 * maximum, which is the same in any order. A kernel takes one struct by value. All shared memory is
 * declared with SHARED or DYNAMIC_SHARED. Multiplication and addition stay apart (-fmad=false,
 * -ffp-contract=off): a fused one is written fused(). So code without tensor cores computes the
 * same bits under both. */
#ifndef HOLDFAST_CUDA_BODIES_H
#define HOLDFAST_CUDA_BODIES_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WARP 32

/* 16 bytes, moved by one instruction. */
struct alignas(16) quad {
    uint32_t word[4];
};

/* SHARED(float[2][64], x): an array, too. */
template <class T> using same_type = T;

#ifdef __CUDACC__

#include <cuda_runtime.h>

#define DEVICE static __device__ __forceinline__
/* KERNEL(threads of a block, blocks that have to fit a multiprocessor) */
#define KERNEL(threads, blocks) static __global__ __launch_bounds__(threads, blocks)
#define SHARED(type, name) __shared__ same_type<type> name
#define DYNAMIC_SHARED(type, name)                      \
    extern __shared__ struct quad dynamic_shared_all[]; \
    type *const name = (type *)dynamic_shared_all
#define BARRIER() __syncthreads()
#define WARP_SYNC() __syncwarp()

/* The compiler does not know this of a pointer that was read from memory. */
#define IN_GLOBAL_MEMORY(x) __builtin_assume(__isGlobal(x))

/* One load. If a struct is read in place, the compiler loads each word that it needs. */
DEVICE struct quad load_quad(const void *from)
{
    const uint4 words = *(const uint4 *)from;
    return {{words.x, words.y, words.z, words.w}};
}
DEVICE float warp_down(float x, unsigned by)
{
    return __shfl_down_sync(0xffffffff, x, by);
}
DEVICE double warp_down(double x, unsigned by)
{
    return __shfl_down_sync(0xffffffff, x, by);
}
DEVICE float warp_xor(float x, unsigned mask)
{
    return __shfl_xor_sync(0xffffffff, x, mask);
}
DEVICE uint32_t warp_xor_bits(uint32_t x, unsigned mask)
{
    return __shfl_xor_sync(0xffffffff, x, mask);
}
DEVICE float warp_from(float x, unsigned lane)
{
    return __shfl_sync(0xffffffff, x, lane);
}
DEVICE uint32_t warp_ballot(bool x)
{
    return __ballot_sync(0xffffffff, x);
}
/* Atomically raises *to to x. */
DEVICE void raise_to(uint32_t *to, uint32_t x)
{
    atomicMax(to, x);
}
DEVICE float fused(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
DEVICE float square_root(float x)
{
    return __fsqrt_rn(x);
}
DEVICE unsigned first_bit(uint32_t x) /* x != 0 */
{
    return (unsigned)__ffs((int)x) - 1;
}
/* Two values as bf16, to nearest even, the first in the lower half; NaNs become one NaN. */
DEVICE uint32_t pair_of_bf16(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Asynchronous copies of 16 bytes from global to shared memory, both aligned to them; zeros if
 * `is_read` is false. Committed copies form a group; copy_wait<G> waits until at most the last G
 * groups are left. Copies of other threads are complete after a barrier. */
DEVICE void copy_async(void *to, const void *from, bool is_read)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    int bytes = is_read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes)
                 : "memory");
}
DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <unsigned groups> DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/* Four matrices of 8 x 8 values of two bytes from shared memory as fragments: lane l gives the
 * address of row l % 8 of matrix l / 8 and gets of each matrix row l / 4, values 2 (l % 4) and the
 * next; transposed: of the transposed matrix. */
DEVICE void load_matrices(uint32_t (&out)[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}
DEVICE void load_matrices_transposed(uint32_t (&out)[4], const void *row)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}
/* c[16,8] += a[16,16] b[16,8] of bf16 into float, as fragments of a warp (tests/cuda/lanes.c has
 * the place of each value). */
DEVICE void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* The same of float8: c[16,8] += a[16,32] b[32,8], four codes in a word, a e4m3 or e5m2, b e4m3.
 * Below compute capability 8.9 there is no such product: device.c reports this before. */
template <bool IS_E5M2>
DEVICE void multiply_float8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 890
#define FLOAT8_PRODUCT(format)                                                             \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." format ".e4m3.f32 {%0, %1, %2, " \
                 "%3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                      \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (IS_E5M2)
        FLOAT8_PRODUCT("e5m2");
    else
        FLOAT8_PRODUCT("e4m3");
#undef FLOAT8_PRODUCT
#else
    (void)c, (void)a, (void)b0, (void)b1;
    __trap();
#endif
}

/* Two values as codes of float8, to nearest even, the first in the lower half. Returns false if the
 * GPU has no instruction for it. No value exceeds the format's largest. */
DEVICE bool pair_of_float8(uint32_t *out, float low, float high, bool is_e5m2)
{
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    if (is_e5m2)
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    *out = pair;
    return true;
#else
    (void)out, (void)low, (void)high, (void)is_e5m2;
    return false;
#endif
}

/* LAUNCH(stream, grid, threads, bytes of dynamic shared memory, kernel, args): the CUDA error.
 * The larger shared memory of a kernel is requested each time: this needs no call to the device. */
template <auto kernel, class A>
static int cuda_launch(void *stream, dim3 grid, unsigned threads, size_t shared, const A &args)
{
    cudaError_t error = cudaSuccess;
    if (shared > 48u << 10)
        error = cudaFuncSetAttribute((const void *)kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (error != cudaSuccess)
        return (int)error;
    kernel<<<grid, threads, shared, (cudaStream_t)stream>>>(args);
    return (int)cudaGetLastError();
}

#else

#define DEVICE static inline __attribute__((always_inline))
#define KERNEL(threads, blocks) static
#define SHARED(type, name) same_type<type> &name = *(same_type<type> *)lanes_shared(sizeof(type))
#define DYNAMIC_SHARED(type, name) type *const name = (type *)lanes_shared_dynamic()
#define BARRIER() lanes_barrier(__FILE__, __LINE__)
#define threadIdx (lanes_here->thread)
#define blockIdx (lanes_here->block)
#define blockDim (lanes_here->block_dim)
#define gridDim (lanes_here->grid_dim)

#define HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
template <class T>
DEVICE T lanes_word(enum lanes_collective kind, T x, unsigned number, const char *file, int line)
{
    T out;
    lanes_collect(kind, &out, sizeof(out), &x, sizeof(x), number, file, line);
    return out;
}
DEVICE void WARP_SYNC(HERE)
{
    lanes_collect(LANES_SYNC, NULL, 0, NULL, 0, 0, file, line);
}
DEVICE float warp_down(float x, unsigned by, HERE)
{
    return lanes_word(LANES_DOWN, x, by, file, line);
}
DEVICE double warp_down(double x, unsigned by, HERE)
{
    return lanes_word(LANES_DOWN, x, by, file, line);
}
DEVICE float warp_xor(float x, unsigned mask, HERE)
{
    return lanes_word(LANES_XOR, x, mask, file, line);
}
DEVICE uint32_t warp_xor_bits(uint32_t x, unsigned mask, HERE)
{
    return lanes_word(LANES_XOR, x, mask, file, line);
}
DEVICE float warp_from(float x, unsigned lane, HERE)
{
    return lanes_word(LANES_FROM, x, lane, file, line);
}
DEVICE uint32_t warp_ballot(bool x, HERE)
{
    return lanes_word(LANES_BALLOT, (uint32_t)x, 0, file, line);
}
DEVICE void raise_to(uint32_t *to, uint32_t x)
{
    uint32_t there = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (there < x &&
           !__atomic_compare_exchange_n(to, &there, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}
DEVICE float fused(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
DEVICE float square_root(float x)
{
    return __builtin_sqrtf(x);
}
DEVICE unsigned first_bit(uint32_t x)
{
    return (unsigned)__builtin_ctz(x);
}
DEVICE uint32_t half_of_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
DEVICE uint32_t pair_of_bf16(float low, float high)
{
    return half_of_bf16(high) << 16 | half_of_bf16(low);
}

#define IN_GLOBAL_MEMORY(x) ((void)(x))

DEVICE struct quad load_quad(const void *from)
{
    return *(const struct quad *)from;
}
DEVICE void copy_now(void *to, const void *from)
{
    const struct quad zeros = {};
    *(struct quad *)to = from != NULL ? *(const struct quad *)from : zeros;
}
DEVICE void copy_async(void *to, const void *from, bool is_read)
{
    if (lanes_copy_add(to, is_read ? from : NULL))
        copy_now(to, is_read ? from : NULL);
}
DEVICE void copy_commit(void)
{
    lanes_copy_commit();
}
template <unsigned groups> DEVICE void copy_wait(void)
{
    void *to;
    const void *from;
    while (lanes_copy_next(groups, &to, &from))
        copy_now(to, from);
}

DEVICE void load_matrices(uint32_t (&out)[4], const void *row, HERE)
{
    const struct quad in = *(const struct quad *)row;
    lanes_collect(LANES_MATRIX, out, sizeof(out), &in, sizeof(in), 0, file, line);
}
DEVICE void load_matrices_transposed(uint32_t (&out)[4], const void *row, HERE)
{
    const struct quad in = *(const struct quad *)row;
    lanes_collect(LANES_MATRIX_T, out, sizeof(out), &in, sizeof(in), 0, file, line);
}
DEVICE void multiply_matrices(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, HERE)
{
    uint32_t in[10] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(in + 6, c, sizeof(c));
    lanes_collect(LANES_MMA, c, sizeof(c), in, sizeof(in), 0, file, line);
}

template <bool IS_E5M2>
DEVICE void multiply_float8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, HERE)
{
    uint32_t in[10] = {a[0], a[1], a[2], a[3], b0, b1};
    memcpy(in + 6, c, sizeof(c));
    lanes_collect(LANES_MMA_FLOAT8, c, sizeof(c), in, sizeof(in), IS_E5M2, file, line);
}
DEVICE bool pair_of_float8(uint32_t *, float, float, bool)
{
    return false;
}

struct dim3 {
    unsigned x, y, z;
    dim3(size_t x_, size_t y_ = 1, size_t z_ = 1)
        : x((unsigned)x_), y((unsigned)y_), z((unsigned)z_)
    {
    }
};
template <auto kernel, class A> static void lanes_call(const void *args)
{
    kernel(*(const A *)args);
}
template <auto kernel, class A>
static int cuda_launch(void *stream, dim3 grid, unsigned threads, size_t shared, const A &args)
{
    struct lanes_launch launch = {};
    launch.name = __PRETTY_FUNCTION__;
    launch.kernel = lanes_call<kernel, A>;
    launch.args = &args;
    launch.args_bytes = sizeof(args);
    launch.shared_bytes = shared;
    launch.grid = {grid.x, grid.y, grid.z};
    launch.threads = threads;
    return lanes_queue(stream, &launch);
}
#endif

/* The number of blocks for `count` items, `each` to a block. */
static inline unsigned blocks_for(size_t count, size_t each)
{
    return (unsigned)((count + each - 1) / each);
}

#define LAUNCH(stream, grid, threads, shared, kernel, args) \
    cuda_launch<(kernel)>(stream, grid, threads, shared, args)

#endif
