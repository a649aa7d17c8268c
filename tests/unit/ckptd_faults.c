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
 * every operation. time limit: 240 s */
#define ROWS 64u
#define COLUMNS 256u /* 64 KiB in all: what matters here is the number of operations */
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/random.h"

#define UNTOUCHED_ROW \
    16u /* an operation may fail without a consequence, like a removal of rubbish */
#define OPERATIONS_MAX 2000u
#define FIRST_STEPS 5u  /* of the store that every story begins with; 3 is half removed */
#define PINNED_STEP 2u  /* before it begins */
#define LAST_STEP 7u    /* that the story saves */
#define AFTER_STEP 100u /* saved by the check */

/* Not ENOENT, which is no failure but an answer: a removal that hears it goes on. */
static const unsigned errnos[] = {EIO, ENOSPC, EACCES, EMFILE, ENOMEM, EROFS, EDQUOT};
#define NUM_ERRNOS (sizeof errnos / sizeof errnos[0])

static struct peer peers[RANKS];

/* ---- the store that a story begins with ---- */

static void shell(const char *format, ...)
{
    char command[1500];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    assert_int_equal(system(command), 0);
}

static int prune(struct bed *bed, uint32_t keep_last)
{
    Holdfast__V1__PruneRequest request = HOLDFAST__V1__PRUNE_REQUEST__INIT;
    Holdfast__V1__PruneReply *reply;
    request.run = RUN;
    request.keep_last = keep_last;
    request.may_remove_most = true;
    int error = call(bed, "Prune", &request.base, &holdfast__v1__prune_reply__descriptor, &reply);
    if (error != 0)
        return error;
    for (size_t i = 0; i < reply->n_entries; i++)
        if (reply->entries[i]->error[0] != '\0')
            error = ERR_IO;
    FREE_REPLY(reply);
    return error;
}

static int open_with_story(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    bed->started_ago_ms = bed->config.limit_lease_ms; /* no reader of one before it is left */
    bed->config.limit_drain_ms = 1000;
    bed->config.pool_bytes = 8 * MIB;
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    for (uint64_t step = 1; step <= FIRST_STEPS; step++)
        assert_true(save_step(peers, RANKS, step));
    peers_close(peers, RANKS);
    assert_int_equal(bed_pin(bed, PINNED_STEP, false), 0);
    bed_stop(bed);
    shell("cd '%s/store/" RUN "' && mkdir tombstones && : >tombstones/step-00000001-a0001 &&"
          " : >tombstones/step-00000003-a0001 && rm step-00000003-a0001/manifest.json &&"
          " cp -r step-00000003-a0001 step-00000009-a0001",
          bed->root);
    return 0;
}

/* ---- the story ---- */

/* What an observer outside was told. */
struct told {
    bool saved[LAST_STEP + 1];
    bool pinned, was_pruned; /* asked for; whatever the answer */
    bool went_well;
};

static void live_through(struct bed *bed, struct told *told)
{
    memset(told, 0, sizeof *told);
    if (bed_start(bed) != 0)
        return;
    told->went_well = load_all(bed, -1, NULL) == 0;
    if (open_attempt(bed, RANKS) == 0 && peers_open(peers, bed, RANKS) == 0) {
        for (uint64_t step = LAST_STEP - 1; step <= LAST_STEP; step++) {
            told->saved[step] = save_step(peers, RANKS, step);
            told->went_well = told->went_well && told->saved[step];
        }
        peers_close(peers, RANKS);
    } else {
        told->went_well = false;
    }
    if (told->saved[LAST_STEP - 1])
        told->pinned = bed_pin(bed, LAST_STEP - 1, false) == 0;
    told->was_pruned = true;
    told->went_well = prune(bed, 2) == 0 && told->pinned && told->went_well;
    told->went_well = load_all(bed, -1, NULL) == 0 && told->went_well;
}

/* Ends the daemon as if the machine had lost its power. */
static void cut_power(struct bed *bed)
{
    if (!bed->service)
        return;
    rpc_client_close(bed->rpc);
    service_drain(bed->service);
    pthread_join(bed->thread, NULL);
    assert_int_equal(storage_fault_crash(bed->service->storage), 0);
    service_close(bed->service);
    bed->service = NULL;
}

/* ---- afterwards ---- */

/* Bit s: step s is listed. Nothing listed may be damaged, all of it loads to the bit. */
static uint64_t list_and_load(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t steps = 0;
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        uint64_t step = reply->checkpoints[i]->step;
        assert_string_equal(reply->checkpoints[i]->durability, "local");
        steps |= 1ull << (step < 63 ? step : 63);
        assert_int_equal(load_all(bed, (int64_t)step, NULL), 0);
    }
    FREE_REPLY(reply);
    return steps;
}

static void check_store(struct bed *bed, const char *plain, const struct told *told)
{
    snprintf(bed->config.store, sizeof bed->config.store, "%s", plain);
    assert_int_equal(bed_start(bed), 0);
    uint64_t steps = list_and_load(bed);
    assert_false(steps >> 3 & 1 || steps >> 9 & 1); /* they had lost their manifests */
    assert_true(steps >> PINNED_STEP & 1);
    assert_true(!told->pinned || steps >> (LAST_STEP - 1) & 1);
    if (told->saved[LAST_STEP])
        assert_true(steps >> LAST_STEP & 1);
    if (told->saved[LAST_STEP - 1])
        assert_true(steps >> (LAST_STEP - 1) & 1);
    if (!told->was_pruned || !told->saved[LAST_STEP])
        assert_true(steps >> FIRST_STEPS & 1); /* one of the last two good ones */
    if (!told->was_pruned)
        assert_true(steps >> 4 & 1 && steps >> 1 & 1);
    /* It saves and prunes again, and what was begun comes to its end. */
    assert_int_equal(open_attempt(bed, RANKS), 0);
    assert_int_equal(peers_open(peers, bed, RANKS), 0);
    assert_true(save_step(peers, RANKS, AFTER_STEP));
    peers_close(peers, RANKS);
    assert_int_equal(prune(bed, 1), 0);
    steps = list_and_load(bed);
    assert_true(steps >> 63 & 1 && steps >> PINNED_STEP & 1 && !(steps >> 1 & 1));
    bed_stop(bed);
    shell("cd '%s/" RUN "' && test -z \"$(ls tombstones)\" && for d in step-*; do"
          " test -e $d/manifest.json || exit 1; done",
          plain);
}

/* ---- tellings ---- */

/* One telling; true when nothing of it went wrong. `cut`: the power goes at the operation, and
 * again during the start after it. */
static bool tell(struct bed *bed, const char *settings, bool cut)
{
    char plain[160], base[160];
    struct told told;
    snprintf(base, sizeof base, "%s/store", bed->root);
    snprintf(plain, sizeof plain, "%s/told", bed->root);
    shell("cp -r '%s' '%s'", base, plain);
    uint64_t seed = next_random(1u << 30);
    snprintf(bed->config.store, sizeof bed->config.store, "fault:seed=%llu,short=0.3,%s:local:%s",
             (unsigned long long)seed, settings, plain);
    print_message("# %s\n", bed->config.store);
    live_through(bed, &told);
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
    check_store(bed, plain, &told);
    shell("rm -rf '%s'", plain);
    return told.went_well;
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
            snprintf(settings, sizeof settings, format, operation,
                     errnos[(first + i) % NUM_ERRNOS]);
            all = tell(bed, settings, cut) && all;
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

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_with_story, bed_tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_faults__an_operation_that_fails_once_harms_nothing),
        CASE(test_faults__operations_that_fail_for_ever_harm_nothing_older),
        CASE(test_faults__power_cut_anywhere_and_again_loses_nothing_acknowledged),
    };
#undef CASE
    log_setup("ckptd_faults", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
