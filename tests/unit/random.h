/* random.h - reproducible random numbers of a test: splitmix64. The seed is SEED of the
 * environment, or the clock's; it is printed. tests/run sets SEED=1 unless the caller does. */
#ifndef HOLDFAST_TESTS_RANDOM_H
#define HOLDFAST_TESTS_RANDOM_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t random_state;

static inline uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline uint64_t next_random(uint64_t below)
{
    return splitmix64(&random_state) % below;
}

/* How often a random test repeats: the number of that name in the environment, or `usual`. */
static inline uint64_t random_rounds(const char *name, uint64_t usual)
{
    const char *given = getenv(name);
    return given != NULL ? strtoull(given, NULL, 10) : usual;
}

static inline void seed_random(void)
{
    const char *given = getenv("SEED");
    random_state = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    printf("# SEED=%" PRIu64 "\n", random_state);
}

#endif
