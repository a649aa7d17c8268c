/* ckptd_faults.c - each storage operation of a daemon's life fails, once, for ever, or with the
 * power.
 *
 * Goal: whatever fails between a start and an end, with whatever errno, an acknowledged checkpoint
 * stays whole, no torn one is ever listed, pins hold, and the next start finds a store on which all
 * works again. Method: one story is lived through again and again: a start on a store with rubbish
 * of a save, of a prune before and of one after its marker went; a load, two saves, a pin, a prune,
 * a load, the end. In the n-th telling operation n fails (storage's fault back-end, which also
 * splits transfers and lets a failed publish come back), for n = 1, 2, ... until the story has no
 * such operation. The power cut is the same with every later operation failing too, and then
 * storage_fault_crash; the start after it is cut again at an operation of its own.
 *
 * The errno changes from telling to telling: SEED= repeats a run, TORTURE=1 takes all of them at
 * every operation. time limit: 300 s */
#include "tests/unit/ckptd_story.h"
#include "tests/unit/random.h"

/* Tellings differ by a few operations. */
#define UNTOUCHED_ROW 16u
#define OPERATIONS_MAX 2000u
/* An attempt, the directory of tombstones, what was loaded, two manifests, a pin. */
#define PUBLISHES 6u
#define COME_BACKS 8u /* power losses after each publish; in half of them the name is back */

/* Not ENOENT, which is no failure but an answer: a removal that hears it goes on. */
static const unsigned errnos[] = {EIO, ENOSPC, EACCES, EMFILE, ENOMEM, EROFS, EDQUOT, ESTALE};
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

/* One telling. `cut`: the power goes at the operation, and again during the start after it. Returns
 * the operations of what was told; UINT64_MAX when there was no start. */
static uint64_t tell(struct told *told, struct bed *bed, const char *settings, bool cut)
{
    char plain[160], base[160];
    snprintf(base, sizeof base, "%s/store", bed->root);
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    shell("cp -r '%s' '%s'", base, plain);
    uint64_t seed = next_random(1u << 30);
    snprintf(bed->config.store, sizeof bed->config.store, "fault:seed=%llu,short=0.3,%s:local:%s",
             (unsigned long long)seed, settings, plain);
    print_message("# %s\n", bed->config.store);
    live_through(bed, told);
    uint64_t operations =
        bed->service ? storage_fault_operations(bed->service->storage) : UINT64_MAX;
    if (cut || next_random(2) == 0) /* what was unsure may come back long after */
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
    check_store(bed, plain, told);
    shell("rm -rf '%s'", plain);
    return operations;
}

/* All tellings of one kind; `format` has the operation's number and an errno. */
static void tell_all(struct bed *bed, const char *format, bool cut)
{
    bool is_torture = getenv("TORTURE") != NULL;
    uint32_t untouched = 0, operation = 1, tellings = 0;
    seed_random();
    for (; untouched < UNTOUCHED_ROW; operation++) {
        size_t first = next_random(NUM_ERRNOS);
        bool all = true;
        assert_true(operation < OPERATIONS_MAX);
        for (size_t i = 0; i < (is_torture ? NUM_ERRNOS : 1); i++, tellings++) {
            char settings[100];
            struct told told;
            snprintf(settings, sizeof settings, format, operation,
                     errnos[(first + i) % NUM_ERRNOS]);
            all = tell(&told, bed, settings, cut) < operation && all;
        }
        untouched = all ? untouched + 1 : 0;
    }
    print_message("# %u operations in %u tellings\n", operation - UNTOUCHED_ROW, tellings);
    assert_true(operation > 60);
}

static void test_faults__an_operation_that_fails_once_harms_nothing(void **state)
{
    tell_all(*state, "late=0.5,fail_at=%u,errno=%u", false);
}

static void test_faults__operations_that_fail_for_ever_harm_nothing_older(void **state)
{
    tell_all(*state, "late=0.5,fail_from=%u,errno=%u", false);
}

static void test_faults__power_cut_anywhere_and_again_loses_nothing_acknowledged(void **state)
{
    tell_all(*state, "late=1,fail_from=%u,errno=%u", true);
}

/* A manifest whose publish failed at its end may be back after a power loss: then with its shards.
 */
static void test_faults__a_manifest_that_comes_back_has_all_its_shards(void **state)
{
    uint32_t num_first = 0, num_second = 0; /* saves that failed, the second one alone */
    seed_random();
    for (uint32_t publish = 1; publish <= PUBLISHES; publish++)
        for (uint32_t i = 0; i < COME_BACKS; i++) {
            char settings[100];
            struct told told;
            snprintf(settings, sizeof settings, "late=1,only=publish,fail_at=%u", publish);
            tell(&told, *state, settings, true);
            num_first += !told.saved[LAST_STEP - 1];
            num_second += told.saved[LAST_STEP - 1] && !told.saved[LAST_STEP];
        }
    assert_int_equal(num_first, 2 * COME_BACKS); /* without an attempt nothing is saved */
    assert_int_equal(num_second, COME_BACKS);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_with_story, bed_tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_faults__an_operation_that_fails_once_harms_nothing),
        CASE(test_faults__operations_that_fail_for_ever_harm_nothing_older),
        CASE(test_faults__a_manifest_that_comes_back_has_all_its_shards),
        CASE(test_faults__power_cut_anywhere_and_again_loses_nothing_acknowledged),
    };
#undef CASE
    log_setup("ckptd_faults", NULL);
    stories_in_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
