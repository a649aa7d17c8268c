/* ckptd_memory.c - each allocation of a daemon's life fails, once and for ever.
 *
 * Goal: out of memory is an answer, never an end: whatever allocation of start, load, save, pin,
 * prune or recovery fails, an acknowledged checkpoint stays whole, nothing leaks (under
 * AddressSanitizer), and the next start finds a store on which all works. Method: the story of
 * ckptd_story.h. The linker sends the allocations of this tree through the functions below
 * (--wrap); those of jansson come by proto/json.c. A place is the chain of callers of an
 * allocation; a first telling finds all places, then each fails where it is first met, once, and in
 * another telling all allocations from there on fail. What gRPC and protobuf-c allocate is theirs.
 *
 * In make test every fourth place fails for ever, which ones changes: SEED= repeats, TORTURE=1
 * takes all. time limit: 300 s */
#include "tests/unit/ckptd_story.h"
#include "tests/unit/random.h"

#include <execinfo.h>

#define PLACES_MAX 2000u
#define CALLERS 5 /* of an allocation that tell a place from another */
#define EVERY 4   /* places: one of them fails for ever */

/* ---- places, and the plan ---- */

static struct {
    pthread_mutex_t lock;
    bool is_armed, for_ever, has_failed;
    uint64_t place; /* that fails; 0: none */
    uint64_t seen[PLACES_MAX];
    uint32_t num_seen;
} plan = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t place_of_caller(void)
{
    void *callers[CALLERS + 3];
    int count = backtrace(callers, CALLERS + 3);
    uint64_t place = 1469598103934665603ull;
    for (int i = 3; i < count; i++) /* without this file's own frames */
        place = (place ^ (uint64_t)(uintptr_t)callers[i]) * 1099511628211ull;
    return place | 1;
}

static void note_place(uint64_t place)
{
    for (uint32_t i = 0; i < plan.num_seen; i++)
        if (plan.seen[i] == place)
            return;
    assert_true(plan.num_seen < PLACES_MAX);
    plan.seen[plan.num_seen++] = place;
}

static __attribute__((noinline)) bool fails(void)
{
    if (!__atomic_load_n(&plan.is_armed, __ATOMIC_ACQUIRE))
        return false;
    uint64_t place = place_of_caller();
    pthread_mutex_lock(&plan.lock);
    bool now = false;
    if (plan.place == 0)
        note_place(place);
    else
        now = plan.has_failed ? plan.for_ever : place == plan.place;
    plan.has_failed = plan.has_failed || now;
    pthread_mutex_unlock(&plan.lock);
    return now;
}

#define WRAP(type, name, parameters, arguments, failure)      \
    type __real_##name parameters;                            \
    type __wrap_##name parameters;                            \
    type __wrap_##name parameters                             \
    {                                                         \
        return fails() ? (failure) : __real_##name arguments; \
    }

WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), NULL)
WRAP(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes), NULL)
WRAP(int, posix_memalign, (void **out, size_t alignment, size_t bytes), (out, alignment, bytes),
     ENOMEM)
WRAP(char *, strdup, (const char *text), (text), NULL)
WRAP(char *, strndup, (const char *text, size_t bytes), (text, bytes), NULL)
WRAP(FILE *, open_memstream, (char **out, size_t *bytes), (out, bytes), NULL)

/* ---- tellings ---- */

static void tell(struct bed *bed, uint64_t place, bool for_ever)
{
    char plain[160];
    struct told told;
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    shell("cp -r '%s/store' '%s'", bed->root, plain);
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    plan.place = place;
    plan.for_ever = for_ever;
    plan.has_failed = false;
    __atomic_store_n(&plan.is_armed, true, __ATOMIC_RELEASE);
    live_through(bed, &told);
    __atomic_store_n(&plan.is_armed, false, __ATOMIC_RELEASE);
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
    uint32_t count = plan.num_seen;
    for (uint32_t i = 0; i < count; i++) {
        print_message("# place %u of %u\n", i + 1, count);
        tell(bed, plan.seen[i], false);
        if (is_torture || i % EVERY == start) {
            tell(bed, plan.seen[i], true);
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
    void *callers[1];
    backtrace(callers, 1); /* its own allocations are made now */
    log_setup("ckptd_memory", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
