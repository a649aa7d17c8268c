/* ckptd_manifest_fanout.c - which node sends the manifest of a save to which.
 *
 * Goal: fanout.S1 to S4 of machines/manifest_fanout.c, and every node gets it, in any order of
 * arrival, also when answers are lost and when named nodes are gone. Method: nodes in an order of
 * the seed; the test counts the copies that each one gives. */
#include "ckptd/machines/manifest_fanout.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <string.h>

#define NODES 2048u
#define GONE 16u /* one node in so many, or one answer, is lost */

struct world {
    struct fanout spread;
    bool has[NODES], is_gone[NODES], has_lost[NODES], has_missed[NODES];
    uint32_t given[NODES], by_coordinator, rounds;
    uint64_t random;
};

/* Handles one answer at a node; true: it has the manifest. */
static bool ask(struct world *world, uint32_t node, bool loses)
{
    uint32_t from = UINT32_MAX;
    switch (fanout_ask(&world->spread, &from, node, world->has_missed[node])) {
    case FANOUT_HERE:
        world->by_coordinator++;
        break;
    case FANOUT_FROM:
        assert_true(from < NODES && from != node && world->has[from]); /* fanout.S3 */
        assert_false(world->has_missed[node]);                         /* fanout.S4 */
        world->given[from] += !world->has_lost[node];
        assert_true(world->given[from] <= FANOUT_EACH); /* fanout.S1 */
        world->has_missed[node] = world->is_gone[from];
        break;
    case FANOUT_WAIT:
        assert_false(world->has_lost[node]); /* fanout.S2 */
        return false;
    }
    if (!loses || splitmix64(&world->random) % GONE != 0)
        return !world->has_missed[node] || from == UINT32_MAX;
    world->has_missed[node] = false; /* it does not know that it was named */
    world->has_lost[node] = true;
    return false;
}

static void run(struct world *world, uint64_t seed, bool loses)
{
    uint32_t left = NODES;
    *world = (struct world){.random = seed};
    for (uint32_t i = 0; loses && i < NODES; i++)
        world->is_gone[i] = splitmix64(&world->random) % GONE == 0; /* gives nothing */
    for (world->rounds = 0; left > 0; world->rounds++) {
        uint32_t first = (uint32_t)splitmix64(&world->random) % NODES;
        assert_true(world->rounds < 64);
        for (uint32_t i = 0; i < NODES; i++) {
            uint32_t node = (first + i * 1031) % NODES;
            if (world->has[node]) {
                fanout_has(&world->spread, node);
            } else if (ask(world, node, loses)) {
                world->has[node] = true; /* it reports that in the next round */
                left--;
            }
        }
    }
}

TEST(test_spread__each_node_gives_it_to_few_and_all_get_it)
{
    static struct world world;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        run(&world, seed, false);
        assert_int_equal(world.by_coordinator, FANOUT_EACH);
        assert_true(world.rounds <= 12);
    }
}

TEST(test_spread__nobody_waits_for_a_lost_answer_or_for_a_node_that_is_gone)
{
    static struct world world;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint32_t missed = 0, lost = 0;
        run(&world, seed, true);
        for (uint32_t i = 0; i < NODES; i++) {
            missed += world.has_missed[i];
            lost += world.has_lost[i];
        }
        assert_true(missed > 0 && lost > 0);
        assert_true(world.by_coordinator <= 2 * (FANOUT_EACH + missed));
    }
}

TEST(test_spread__nobody_is_named_who_has_not_said_it)
{
    struct fanout spread = {0};
    uint32_t from = 0;
    for (uint32_t node = 0; node < FANOUT_EACH; node++)
        assert_int_equal(fanout_ask(&spread, &from, node, false), FANOUT_HERE);
    assert_int_equal(fanout_ask(&spread, &from, 100, false), FANOUT_WAIT);
    assert_int_equal(fanout_ask(&spread, &from, 100, false), FANOUT_WAIT); /* it got nothing */
    assert_int_equal(fanout_ask(&spread, &from, 5, false),
                     FANOUT_HERE); /* fanout.S2: all were lost */
    fanout_has(&spread, 3);
    fanout_has(&spread, 3);
    for (uint32_t node = 100; node < 100 + FANOUT_EACH; node++) {
        assert_int_equal(fanout_ask(&spread, &from, node, false), FANOUT_FROM);
        assert_int_equal(from, 3);
    }
    assert_int_equal(fanout_ask(&spread, &from, 200, false), FANOUT_WAIT);
    assert_int_equal(fanout_ask(&spread, &from, 100, false), FANOUT_FROM);
    assert_int_equal(fanout_ask(&spread, &from, 100, true), FANOUT_HERE); /* fanout.S4 */
}

SUITE(NULL, NULL)
