/* power_walk.h - the states of power_bed.h one after the other: after every recorded change it
 * visits several states of the unsynced changes: all lost, all kept, one lost, one kept, one torn.
 * It also visits every subset of up to SUBSET_MAX changes, and random ones; or only all lost and
 * all kept. */
#ifndef HOLDFAST_TESTS_POWER_WALK_H
#define HOLDFAST_TESTS_POWER_WALK_H

#include "tests/unit/power_bed.h"
#include "tests/unit/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SUBSET_MAX 12u      /* up to so many unsynced changes: all subsets; more: random ones */
#define RANDOM_STATES 6u    /* after each call */
#define SEEN_MAX (1u << 22) /* states, by their hash */

struct walk {
    /* Visits a state that was not seen before; the first one after a change comes first. */
    void (*visit)(struct walk *walk, const struct power_state *state, bool is_first);
    unsigned (*count_told)(unsigned num_changes); /* the number of promises at that time */
    void *user;
    unsigned count, visited, stride; /* states; every stride-th is visited */
    bool is_short; /* of the states after a change: those with all lost, and all kept */
    bool is_first;
    unsigned num_pending, pending[POWER_CHANGES_MAX];
    uint64_t *seen; /* SEEN_MAX hashes, 0: free */
};

/* Equal: the same parts of the same log, after the same promises. */
static inline uint64_t hash_state(const struct walk *walk, const struct power_state *state)
{
    uint64_t hash = 1 + walk->count_told(state->num_changes);
    for (unsigned i = 0; i < state->num_changes; i++)
        if (state->fates[i] != POWER_LOST && power->changes[i].kind != POWER_SYNC) {
            hash ^= (uint64_t)i << 2 | state->fates[i];
            splitmix64(&hash);
            hash = splitmix64(&hash);
        }
    return hash | 1;
}

static inline bool is_new(struct walk *walk, const struct power_state *state)
{
    uint64_t hash = hash_state(walk, state);
    size_t at = hash % SEEN_MAX;
    assert_true(walk->count < SEEN_MAX / 2);
    for (; walk->seen[at] != 0; at = (at + 1) % SEEN_MAX)
        if (walk->seen[at] == hash)
            return false;
    walk->seen[at] = hash;
    return true;
}

static inline void offer(struct walk *walk, const struct power_state *state)
{
    if (!is_new(walk, state))
        return;
    walk->count++;
    walk->visit(walk, state, walk->is_first);
    walk->is_first = false;
}

static inline void set_pending(const struct walk *walk, struct power_state *state,
                               enum power_fate fate)
{
    for (unsigned i = 0; i < walk->num_pending; i++)
        state->fates[walk->pending[i]] = (unsigned char)fate;
}

/* One change has another fate than all others. */
static inline void offer_one(struct walk *walk, struct power_state *state, unsigned at,
                             enum power_fate fate, enum power_fate others)
{
    set_pending(walk, state, others);
    state->fates[at] = (unsigned char)fate;
    offer(walk, state);
}

static inline void offer_subsets(struct walk *walk, struct power_state *state)
{
    for (unsigned set = 0; set < 1u << walk->num_pending; set++) {
        for (unsigned i = 0; i < walk->num_pending; i++)
            state->fates[walk->pending[i]] = set >> i & 1 ? POWER_KEPT : POWER_LOST;
        offer(walk, state);
    }
}

static inline void draw_pending(const struct walk *walk, struct power_state *state)
{
    for (unsigned i = 0; i < walk->num_pending; i++) {
        unsigned at = walk->pending[i];
        unsigned fates = power_can_tear(&power->changes[at]) ? 4 : 2;
        state->fates[at] = (unsigned char)next_random(fates);
    }
}

/* The power is lost before the change of that number. */
static inline void begin_state(struct walk *walk, struct power_state *state, unsigned num_changes)
{
    state->num_changes = num_changes;
    walk->num_pending = 0;
    for (unsigned i = 0; i < num_changes; i++)
        if (power_is_durable(&power->changes[i], num_changes))
            state->fates[i] = POWER_KEPT;
        else
            walk->pending[walk->num_pending++] = i;
}

static inline void walk_states_at(struct walk *walk, struct power_state *state,
                                  unsigned num_changes)
{
    begin_state(walk, state, num_changes);
    walk->is_first = true;
    set_pending(walk, state, POWER_LOST);
    offer(walk, state);
    set_pending(walk, state, POWER_KEPT);
    offer(walk, state);
    if (walk->is_short)
        return;
    for (unsigned i = 0; i < walk->num_pending; i++) {
        unsigned at = walk->pending[i];
        offer_one(walk, state, at, POWER_LOST, POWER_KEPT);
        offer_one(walk, state, at, POWER_KEPT, POWER_LOST);
        if (power_can_tear(&power->changes[at])) {
            offer_one(walk, state, at, POWER_FIRST_PART, POWER_KEPT);
            offer_one(walk, state, at, POWER_LAST_PART, POWER_KEPT);
        }
    }
    if (walk->num_pending <= SUBSET_MAX)
        offer_subsets(walk, state);
    for (unsigned i = 0; i < RANDOM_STATES; i++) {
        draw_pending(walk, state);
        offer(walk, state);
    }
}

/* In the same order each time: `seed` seeds the random choices. */
static inline void walk_states(struct walk *walk, uint64_t seed)
{
    struct power_state state; /* a visit may walk another log */
    walk->count = walk->visited = 0;
    walk->seen = calloc(SEEN_MAX, sizeof *walk->seen);
    assert_non_null(walk->seen);
    random_state = seed;
    for (unsigned i = power->num_placed; i <= power->num_changes; i++)
        walk_states_at(walk, &state, i);
    free(walk->seen);
}

/* For a walk during which no further promises are made. */
static inline unsigned promises_nothing(unsigned num_changes)
{
    (void)num_changes;
    return 0;
}

static inline void count_only(struct walk *walk, const struct power_state *state, bool is_first)
{
    (void)walk, (void)state, (void)is_first;
}

#endif
