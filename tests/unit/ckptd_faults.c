/* ckptd_faults.c - each storage operation of a daemon's life fails, once, for ever, or with the
 * power.
 *
 * Goal: for any failure between start and shutdown, with any errno, an acknowledged checkpoint
 * stays whole. No torn one is listed, pins and leases hold, and everything works again after the
 * next start. No run leaks a descriptor. Method: three stories (ckptd_stories.h) are run again and
 * again. In the n-th run operation n fails (storage's fault back-end, which also splits transfers
 * and lets a failed publish come back), for n = 1, 2, ... until the story has no such operation.
 * The power cut is the same with every later operation failing too, and then storage_fault_crash;
 * the start after it is cut again at another operation.
 *
 * In make test one operation in ONE_IN fails once, for ever and with the power, with an errno that
 * changes, and every call of storage.h with some errnos, once and for ever, at an operation that
 * changes: SEED= repeats a run, SAMPLE=1 takes every operation and every errno of every call
 * (sample.h), TORTURE=1 all errnos at every operation. */
#include "tests/fault/storage_fault.h"
#include "tests/unit/ckptd_stories.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

/* Tellings differ by a few operations. */
#define UNTOUCHED_ROW 8u
#define ONE_IN 7u /* a prime: sample.h */
#define OPERATIONS_MAX 2000u
#define TRIES_MAX 20  /* to meet a call by its number */
#define COME_BACKS 8u /* power losses after each publish; in half of them the name is back */

/* Not ENOENT, which is no failure but an answer: a removal that gets it continues. */
static const unsigned errnos[] = {EIO,   ENOSPC, EACCES, EMFILE, ENOMEM,
                                  EROFS, EDQUOT, ESTALE, EFBIG,  ETIMEDOUT};
#define NUM_ERRNOS (sizeof errnos / sizeof errnos[0])

/* Ends the daemon as if the machine had lost its power. */
static void cut_power(struct bed *bed)
{
    if (!bed->service)
        return;
    bed_end_thread(bed);
    assert_int_equal(storage_fault_crash(bed->service->storage), 0);
    bed_close_service(bed);
}

/* ---- tellings ---- */

static unsigned least_open; /* descriptors, after any telling so far; 0: there was none */

static void expect_closed(void)
{
    unsigned least = least_open == 0 ? count_descriptors() : least_open;
    if (!are_closed(&least))
        fail_msg("%u descriptors in place of %u", count_descriptors(), least);
    least_open = least;
}

/* One run. `cut`: the power is lost at the operation, and again during the start after it. Returns
 * the number of operations; UINT64_MAX when the start failed. */
static uint64_t tell(const struct story *story, struct peer_status *told, struct bed *bed,
                     const char *settings, bool cut)
{
    char plain[160];
    struct tool_lease tool;
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    story->place(bed, plain);
    if (story->leased_step != 0)
        tool_lease_take(&tool, plain, story->leased_step);
    uint64_t seed = next_random(1u << 30);
    snprintf(bed->config.store, sizeof bed->config.store, "fault:seed=%llu,%s:local:%s",
             (unsigned long long)seed, settings, plain);
    print_message("# %s: %s\n", story->name, bed->config.store);
    live_story(story, bed, plain, told);
    uint64_t operations =
        bed->service ? storage_fault_operations(bed->service->storage) : UINT64_MAX;
    if (cut || next_random(2) == 0) /* an operation of unknown outcome may take effect long after */
        cut_power(bed);
    else
        bed_stop(bed);
    if (cut) {
        snprintf(bed->config.store, sizeof bed->config.store,
                 "fault:seed=%llu,late=1,fail_from=%llu:local:%s", (unsigned long long)seed + 1,
                 1 + (unsigned long long)next_random(40), plain);
        print_message("# and the start after it: %s\n", bed->config.store);
        if (bed_start(bed) == 0)
            cut_power(bed);
    }
    if (story->leased_step != 0) {
        check_leased(plain, story->leased_step);
        tool_lease_end(&tool);
    }
    story->check(bed, plain, told);
    shell("rm -rf '%s'", plain);
    expect_closed();
    return operations;
}

/* All tellings of one kind; `format` has the operation's number and an errno. */
static void tell_all_of(const struct story *story, struct bed *bed, const char *format, bool cut)
{
    bool is_torture = getenv("TORTURE") != NULL;
    uint32_t one_in = (uint32_t)sample_one_in(ONE_IN), untouched = 0, tellings = 0;
    uint32_t operation = 1 + (uint32_t)next_random(one_in);
    for (; untouched < UNTOUCHED_ROW; operation += one_in) {
        size_t first = next_random(NUM_ERRNOS);
        bool all = true;
        assert_true(operation < OPERATIONS_MAX);
        for (size_t i = 0; i < (is_torture ? NUM_ERRNOS : 1); i++, tellings++) {
            char settings[100];
            struct peer_status told;
            snprintf(settings, sizeof settings, format, operation,
                     errnos[(first + i) % NUM_ERRNOS]);
            all = tell(story, &told, bed, settings, cut) < operation && all;
        }
        untouched = all ? untouched + one_in : 0;
    }
    print_message("# %s: %u operations in %u tellings\n", story->name,
                  operation - one_in - untouched, tellings);
    assert_true(operation > story->operations_least);
}

static void tell_all(struct bed *bed, const char *format, bool cut)
{
    seed_random();
    for (size_t i = 0; i < NUM_STORIES; i++)
        tell_all_of(&stories[i], bed, format, cut);
}

TEST_BETWEEN(test_faults__an_operation_that_fails_once_harms_nothing, open_with_stories,
             close_with_made)
{
    tell_all(*state, "late=0.5,fail_at=%u,errno=%u", false);
}

TEST_BETWEEN(test_faults__operations_that_fail_for_ever_harm_nothing_older, open_with_stories,
             close_with_made)
{
    tell_all(*state, "late=0.5,fail_from=%u,errno=%u", false);
}

TEST_BETWEEN(test_faults__power_cut_anywhere_and_again_loses_nothing_acknowledged,
             open_with_stories, close_with_made)
{
    tell_all(*state, "late=1,fail_from=%u,errno=%u", true);
}

/* The first story that makes calls of this name, and how many. */
static const struct story *find_story(struct bed *bed, const char *name, uint64_t *out_calls)
{
    for (size_t i = 0; i < NUM_STORIES; i++) {
        char settings[100];
        struct peer_status told;
        snprintf(settings, sizeof settings, "only=%s", name);
        *out_calls = tell(&stories[i], &told, bed, settings, false);
        if (*out_calls > 0)
            return &stories[i];
    }
    fail_msg("no story has a %s", name);
    return NULL;
}

static void fail_call(const struct story *story, struct bed *bed, const char *name, uint64_t calls,
                      const char *how, unsigned number)
{
    bool is_met = false;
    for (int i = 0; i < TRIES_MAX && !is_met; i++) { /* tellings differ by a few operations */
        char settings[100];
        struct peer_status told;
        uint64_t at = 1 + next_random(calls);
        snprintf(settings, sizeof settings, "late=0.5,only=%s,%s=%" PRIu64 ",errno=%u", name, how,
                 at, number);
        is_met = tell(story, &told, bed, settings, false) >= at;
    }
    assert_true(is_met);
}

TEST_BETWEEN(test_faults__each_call_with_each_errno_harms_nothing, open_with_stories,
             close_with_made)
{
    static const char *const names[] = {
        "register", "lock",  "space", "create",     "open", "read",        "write", "sync",
        "publish",  "fetch", "list",  "sync_names", "hold", "find_holder", "sweep", "remove"};
    static const char *const ways[] = {"fail_at", "fail_from"};
    seed_random();
    struct sample sample = sample_begin(ONE_IN);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        uint64_t calls;
        const struct story *story = find_story(*state, names[i], &calls);
        for (size_t trial = 0; trial < 2 * NUM_ERRNOS; trial++)
            if (sample_takes(&sample))
                fail_call(story, *state, names[i], calls, ways[trial % 2], errnos[trial / 2]);
    }
}

/* A manifest whose publish failed at its end may be back after a power loss: then with its shards.
 */
TEST_BETWEEN(test_faults__a_manifest_that_comes_back_has_all_its_shards, open_with_stories,
             close_with_made)
{
    /* In the order of the story; but the result of a load is published beside later operations. */
    static const struct {
        const char *key;
        bool fails_first, fails_second; /* saves; without an attempt or a mark nothing is saved */
    } publishes[] = {{"/verified.json", false, false},
                     {"/attempts/", true, true},
                     {"step-00000006-a0002/unfinished", true, false},
                     {"step-00000006-a0002/manifest.json", true, true},
                     {"step-00000007-a0002/unfinished", false, true},
                     {"step-00000007-a0002/manifest.json", false, true},
                     {"/pins/", false, false},
                     {"/tombstones/", false, false}};
    uint32_t come_backs = 1 + (COME_BACKS - 1) / (uint32_t)sample_one_in(ONE_IN);
    seed_random();
    for (size_t k = 0; k < sizeof publishes / sizeof publishes[0]; k++)
        for (uint32_t i = 0; i < come_backs; i++) {
            char settings[100];
            struct peer_status told;
            snprintf(settings, sizeof settings, "late=1,only=publish,fail_at=1,key=%s",
                     publishes[k].key);
            assert_true(tell(&stories[0], &told, *state, settings, true) > 0);
            assert_int_equal(!told.saved[LAST_STEP - 1], publishes[k].fails_first);
            assert_int_equal(!told.saved[LAST_STEP], publishes[k].fails_second);
        }
}

int main(void)
{
    log_setup("ckptd_faults", NULL);
    tell_in_memory();
    return suite_run(NULL, NULL);
}
