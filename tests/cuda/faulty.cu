/* faulty.cu - one fault each, against which the lanes of a CPU are tested; and the same without.
 *
 * All work on values[64], with a block of 64 threads, two warps. */
#include "tests/cuda/faulty.h"

#include "kernels/cuda/bodies.h"

#define THREADS 64

struct faulty_args {
    float *values;
};

/* Reverses the order of the values. */
template <bool HAS_BARRIER> KERNEL(THREADS, 1) void reverse(struct faulty_args a)
{
    SHARED(float[THREADS], all);
    all[threadIdx.x] = a.values[threadIdx.x];
    if (HAS_BARRIER)
        BARRIER();
    a.values[threadIdx.x] = all[THREADS - 1 - threadIdx.x];
}

KERNEL(THREADS, 1) void barrier_in_a_branch(struct faulty_args a)
{
    if (a.values[threadIdx.x] >= 0 && threadIdx.x < WARP)
        BARRIER();
}

KERNEL(THREADS, 1) void barriers_at_two_lines(struct faulty_args a)
{
    if (a.values[threadIdx.x] >= 0 && threadIdx.x < WARP)
        BARRIER();
    else
        BARRIER();
}

KERNEL(THREADS, 1) void shuffle_in_half_a_warp(struct faulty_args a)
{
    float x = a.values[threadIdx.x];
    if (threadIdx.x % WARP < WARP / 2)
        x = warp_xor(x, 1);
    a.values[threadIdx.x] = x;
}

/* A shuffle exchanges values; it orders no memory. */
KERNEL(THREADS, 1) void shuffle_as_a_barrier(struct faulty_args a)
{
    SHARED(float[THREADS], all);
    all[threadIdx.x] = a.values[threadIdx.x];
    float x = warp_xor(1.0f, 1);
    a.values[threadIdx.x] = all[threadIdx.x ^ 1] * x;
}

template <bool HAS_WAIT> KERNEL(THREADS, 1) void copy_sixteen(struct faulty_args a)
{
    SHARED(struct quad[THREADS / 4], all);
    if (threadIdx.x < THREADS / 4) {
        copy_async(&all[threadIdx.x], a.values + 4 * threadIdx.x, true);
        copy_commit();
        if (HAS_WAIT)
            copy_wait<0>();
    }
    BARRIER();
    float x = ((const float *)all)[THREADS - 1 - threadIdx.x];
    BARRIER();
    copy_wait<0>();
    a.values[threadIdx.x] = x;
}

/* The second copy may arrive while other threads still read the first one's bytes. */
KERNEL(THREADS, 1) void copy_over_what_is_read(struct faulty_args a)
{
    SHARED(struct quad[THREADS / 4], all);
    float sum = 0;
    for (int half = 0; half < 2; half++) {
        if (threadIdx.x < THREADS / 4) {
            copy_async(&all[threadIdx.x], a.values + 4 * ((threadIdx.x + 8 * half) % 16), true);
            copy_commit();
            copy_wait<0>();
        }
        BARRIER();
        sum = sum + ((const float *)all)[(threadIdx.x + WARP) % THREADS];
    }
    BARRIER();
    a.values[threadIdx.x] = sum;
}

KERNEL(THREADS, 1) void copy_never_waited_for(struct faulty_args a)
{
    SHARED(struct quad[THREADS], all);
    copy_async(&all[threadIdx.x], a.values + 4 * (threadIdx.x % 16), true);
    copy_commit();
}

KERNEL(THREADS, 1) void shared_memory_read_unwritten(struct faulty_args a)
{
    SHARED(float[THREADS], all);
    if (threadIdx.x != 5)
        all[threadIdx.x] = a.values[threadIdx.x];
    BARRIER();
    a.values[threadIdx.x] = all[THREADS - 1 - threadIdx.x];
}

KERNEL(THREADS, 1) void more_shared_memory(struct faulty_args a)
{
    SHARED(float[16384], all);
    all[threadIdx.x] = a.values[threadIdx.x];
}

KERNEL(THREADS, 1) void blocks_write_the_same_value(struct faulty_args a)
{
    a.values[threadIdx.x / 2] = 1.0f;
}

KERNEL(THREADS, 1) void result_of_the_order_of_blocks(struct faulty_args a)
{
    if (threadIdx.x == 0)
        a.values[0] = a.values[0] * 0.5f + (float)blockIdx.x;
}

KERNEL(THREADS, 1) void read_past_the_end(struct faulty_args a)
{
    a.values[threadIdx.x] = a.values[threadIdx.x + 1];
}

template <auto kernel> static void launch(float *values, unsigned blocks)
{
    const struct faulty_args args = {values};
    (void)LAUNCH(NULL, blocks, THREADS, 0, kernel, args);
}
extern "C" void faulty_none(float *values)
{
    launch<reverse<true>>(values, 1);
    launch<copy_sixteen<true>>(values, 1);
}
extern "C" void faulty_no_barrier(float *values)
{
    launch<reverse<false>>(values, 1);
}
extern "C" void faulty_copy_read_before_the_wait(float *values)
{
    launch<copy_sixteen<false>>(values, 1);
}
extern "C" void faulty_more_shared_memory_than_a_gpu_has(float *values)
{
    launch<more_shared_memory>(values, 1);
}
#define LAUNCHED(name, blocks)                   \
    extern "C" void faulty_##name(float *values) \
    {                                            \
        launch<name>(values, blocks);            \
    }
LAUNCHED(barrier_in_a_branch, 1)
LAUNCHED(barriers_at_two_lines, 1)
LAUNCHED(shuffle_in_half_a_warp, 1)
LAUNCHED(shuffle_as_a_barrier, 1)
LAUNCHED(copy_over_what_is_read, 1)
LAUNCHED(copy_never_waited_for, 1)
LAUNCHED(shared_memory_read_unwritten, 1)
LAUNCHED(blocks_write_the_same_value, 2)
LAUNCHED(result_of_the_order_of_blocks, 4)
LAUNCHED(read_past_the_end, 1)
