/* sample.h - chooses the trials of a matrix, such as each operation failing in each way.
 *
 * A matrix is walked in order. One trial in N is made, from a random start on, which covers every
 * stretch of it. A prime N also covers every row and column. `make test` makes the same ones each
 * time (SEED=1). SAMPLE=N makes another share, SAMPLE=1 every trial, as does TORTURE=1. */
#ifndef HOLDFAST_TESTS_SAMPLE_H
#define HOLDFAST_TESTS_SAMPLE_H

#include "tests/unit/random.h"

#include <stdbool.h>

struct sample {
    uint64_t one_in, next; /* trials; the number of the next one, from a random start */
};

static inline uint64_t sample_one_in(uint64_t usual)
{
    uint64_t one_in = getenv("TORTURE") != NULL ? 1 : random_rounds("SAMPLE", usual);
    return one_in > 0 ? one_in : 1;
}

/* After seed_random(). */
static inline struct sample sample_begin(uint64_t usual)
{
    uint64_t one_in = sample_one_in(usual);
    printf("# one in %" PRIu64 " of the trials: SAMPLE=1 makes all\n", one_in);
    return (struct sample){one_in, next_random(one_in)};
}

/* True when the next trial is made. */
static inline bool sample_takes(struct sample *sample)
{
    return sample->next++ % sample->one_in == 0;
}

#endif
