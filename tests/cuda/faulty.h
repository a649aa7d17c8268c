/* faulty.h - kernels that are wrong on purpose (faulty.cu), for the tests of the lanes. */
#ifndef HOLDFAST_TESTS_FAULTY_H
#define HOLDFAST_TESTS_FAULTY_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name): launches a kernel with that fault on values[64]. */
#define FAULTS(X)                        \
    X(none)                              \
    X(no_barrier)                        \
    X(barrier_in_a_branch)               \
    X(barriers_at_two_lines)             \
    X(shuffle_in_half_a_warp)            \
    X(shuffle_as_a_barrier)              \
    X(copy_read_before_the_wait)         \
    X(copy_over_what_is_read)            \
    X(copy_never_waited_for)             \
    X(shared_memory_read_unwritten)      \
    X(more_shared_memory_than_a_gpu_has) \
    X(blocks_write_the_same_value)       \
    X(result_of_the_order_of_blocks)     \
    X(read_past_the_end)
#define X(name) void faulty_##name(float *values);
FAULTS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
