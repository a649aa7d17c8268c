/* ckptd_memory.c - each allocation of a daemon's life fails, once and for ever.
 *
 * Goal: out of memory is an answer, never an end: whatever allocation of start, load, save, pin,
 * prune or recovery fails, an acknowledged checkpoint stays whole, nothing leaks (under
 * AddressSanitizer), and the next start finds a store on which all works. Method: the story of
 * ckptd_story.h, memory_bed.h between the daemon and the system. A first telling finds all places
 * of allocations, then each fails where it is first met, once, and in another telling all from
 * there on.
 *
 * In make test every fourth place fails for ever, which ones changes: SEED= repeats, TORTURE=1
 * takes all. time limit: 300 s */
#define ALLOCATIONS_ONLY /* the ranks of the story map memory and start threads */
#include "tests/unit/ckptd_story.h"
#include "tests/unit/memory_bed.h"
#include "tests/unit/random.h"

#define EVERY 4 /* places: one of them fails for ever */

static void tell(struct bed *bed, uint64_t place, bool for_ever)
{
    char plain[160];
    struct told told;
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    shell("cp -r '%s/store' '%s'", bed->root, plain);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    memory_arm(place, 0, for_ever);
    live_through(bed, &told);
    memory_disarm();
    bed_stop(bed);
    check_store(bed, plain, &told);
    shell("rm -rf '%s'", plain);
}

static void test_memory__an_allocation_that_fails_is_an_error_and_no_more(void **state)
{
    struct bed *bed = *state;
    bool is_torture = getenv("TORTURE") != NULL;
    uint32_t for_ever = 0;
    seed_random();
    uint64_t start = next_random(EVERY);
    tell(bed, 0, false);
    tell(bed, 0, false); /* what only some orders of events meet */
    uint32_t count = failing.num_seen;
    for (uint32_t i = 0; i < count; i++) {
        print_message("# place %u of %u\n", i + 1, count);
        tell(bed, failing.seen[i].place, false);
        if (is_torture || i % EVERY == start) {
            tell(bed, failing.seen[i].place, true);
            for_ever++;
        }
    }
    print_message("# %u places failed once, %u for ever\n", count, for_ever);
    assert_true(count > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            test_memory__an_allocation_that_fails_is_an_error_and_no_more, open_with_story,
            bed_tear_down),
    };
    memory_begin();
    log_setup("ckptd_memory", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
