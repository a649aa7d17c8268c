/* bench.h - shared by the measuring programs: a clock, and samples as JSON lines on stdout.
 *
 * A program is driven by tests/bench/run over stdin, one command per line, and answers each with
 * one line of JSON. So ours and the reference alternate, whichever program runs the reference,
 * while the program keeps its memory and its sessions. The driver computes the statistics. */
#ifndef HOLDFAST_TESTS_BENCH_H
#define HOLDFAST_TESTS_BENCH_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double bench_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline double bench_seconds(void)
{
    return bench_clock(CLOCK_MONOTONIC);
}

/* Ends the program with the reason: a measurement that failed must not look like one. */
#define BENCH_TRY(call, reason)                                       \
    do {                                                              \
        if ((call) != 0) {                                            \
            fprintf(stderr, "bench: %s failed: %s\n", #call, reason); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

/* Zeros. */
static inline void *bench_allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    BENCH_TRY(memory == NULL, "out of memory");
    return memory;
}

#endif
