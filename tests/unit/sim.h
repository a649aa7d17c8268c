/* sim.h - shared by simulated worlds: random choices from a seed, faults, a trace, the first broken
 * invariant; and the tests that run many worlds.
 *
 *     struct world { struct sim sim; ... };
 *     static struct world world;
 *     static void run(uint64_t seed);    // empties `world`, sim_begin(), events, checks
 *
 *     sim_run_many(&world.sim, run, totals, num_totals);
 *
 * SIM_SEED=<seed> replays one world, and SIM_TRACE=1 prints its events; SIM_WORLDS=<n> sets how
 * many. */
#ifndef HOLDFAST_TESTS_SIM_H
#define HOLDFAST_TESTS_SIM_H

#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define SIM_WORLDS_USUAL 10000

struct sim {
    uint64_t random, trace, events;
    uint32_t faults; /* per thousand random choices */
    bool is_said;
    const char *broken; /* the first invariant that did not hold */
};

/* Summed over the worlds. */
struct sim_total {
    const char *what;
    const uint64_t *count; /* of the world that has just run */
    bool is_frequent;      /* more than one per world; otherwise a world covers too little */
};

static inline uint32_t below(struct sim *sim, uint32_t limit)
{
    return (uint32_t)(splitmix64(&sim->random) % limit);
}

static inline bool fault(struct sim *sim)
{
    return below(sim, 1000) < sim->faults;
}

static inline void require(struct sim *sim, bool holds, const char *what)
{
    if (!holds && !sim->broken)
        sim->broken = what;
}

/* An event: the same seed gives the same trace. */
static inline void note(struct sim *sim, const char *what, uint64_t a, uint64_t b)
{
    sim->events++;
    for (const char *c = what; *c; c++)
        sim->trace = (sim->trace ^ (uint8_t)*c) * 0x100000001b3ull;
    sim->trace = ((sim->trace ^ a) * 0x100000001b3ull ^ b) * 0x100000001b3ull;
    if (sim->is_said)
        printf("# %llu %s %llu %llu\n", (unsigned long long)sim->events, what,
               (unsigned long long)a, (unsigned long long)b);
}

/* Swarm: faults are none, few or many. */
static inline void sim_begin(struct sim *sim, uint64_t seed, uint32_t few)
{
    *sim = (struct sim){.random = seed, .is_said = getenv("SIM_TRACE") != NULL};
    sim->faults = below(sim, 4) * few;
}

static inline double sim_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* `sim`: that of the world which `run` fills. */
static inline void sim_run_many(const struct sim *sim, void (*run)(uint64_t seed),
                                const struct sim_total *totals, uint32_t num_totals)
{
    const char *one = getenv("SIM_SEED");
    uint64_t count = one ? 1 : random_rounds("SIM_WORLDS", SIM_WORLDS_USUAL), sums[16] = {0};
    double begun = sim_seconds();
    for (uint64_t i = 0; i < count; i++) {
        uint64_t seed = one ? strtoull(one, NULL, 10) : 1 + i;
        run(seed);
        if (sim->broken)
            fail_msg("SIM_SEED=%llu breaks %s", (unsigned long long)seed, sim->broken);
        for (uint32_t t = 0; t < num_totals; t++)
            sums[t] += *totals[t].count;
    }
    print_message("# %llu schedules, %.2g an hour", (unsigned long long)count,
                  (double)count * 3600 / (sim_seconds() - begun));
    for (uint32_t t = 0; t < num_totals; t++)
        print_message("%s %llu %s", t ? "," : ":", (unsigned long long)sums[t], totals[t].what);
    print_message("\n");
    for (uint32_t t = 0; !one && t < num_totals; t++)
        assert_true(sums[t] > (totals[t].is_frequent ? count : 0));
}

static inline void sim_check_traces(const struct sim *sim, void (*run)(uint64_t seed))
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        run(seed);
        const struct sim first = *sim;
        run(seed);
        assert_true(first.trace == sim->trace && first.events == sim->events);
        run(seed + 1);
        assert_true(first.trace != sim->trace);
    }
}

#endif
