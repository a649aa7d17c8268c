/* ckptd_retain.c - prune, pins and retention in the daemon.
 *
 * Goal: rules remove the checkpoints that they name, never one that is pinned, leased or newest;
 * listed checkpoints load. Method: the service and the raw client of ckptd_bed.h. ckptd_faults.c
 * tests prunes that fail. */
#include "storage/store/store.h"
#include "tests/unit/ckptd_loading.h"
#include "tests/unit/suite.h"

#include "proto/format/flaw.h"
#include "proto/format/retain.h"

#define STEPS 6u

static struct peer peers[RANKS];

static Holdfast__V1__PruneRequest keep_last(uint32_t count)
{
    Holdfast__V1__PruneRequest request = HOLDFAST__V1__PRUNE_REQUEST__INIT;
    request.run = RUN;
    request.keep_last = count;
    request.may_remove_most = true;
    return request;
}

static int prune(struct bed *bed, const Holdfast__V1__PruneRequest *request,
                 Holdfast__V1__PruneReply **out)
{
    return call(bed, "Prune", &request->base, &holdfast__v1__prune_reply__descriptor, out);
}

/* Bit s: step s is in the list, whole. Bit 32 + s: it is pinned there. */
static uint64_t listed(struct bed *bed)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    uint64_t steps = 0;
    for (size_t i = 0; i < reply->n_checkpoints; i++) {
        uint64_t step = reply->checkpoints[i]->step;
        assert_true(step < 32);
        if (strcmp(reply->checkpoints[i]->durability, "local") != 0)
            continue; /* its summary could not be read at the start */
        steps |= 1ull << step | (uint64_t)reply->checkpoints[i]->pinned << (32 + step);
    }
    FREE_REPLY(reply);
    return steps;
}

/* Retention works a little later. */
static bool wait_listed(struct bed *bed, uint64_t want)
{
    for (int ms = 0; ms < BED_PATIENCE_MS && listed(bed) != want; ms += 10)
        sleep_ms(10);
    return listed(bed) == want;
}

static void assert_listed_loads(struct bed *bed)
{
    uint64_t steps = listed(bed);
    for (int64_t step = 1; step < 32; step++)
        if (steps >> step & 1)
            assert_int_equal(load_all(bed, step, NULL), 0);
}

/* How many names the directory has, which a shell counts. */
static int count_files(const struct bed *bed, const char *folder)
{
    char command[400];
    int count = -1;
    snprintf(command, sizeof command, "ls '%s/store/" RUN "/%s' 2>/dev/null | wc -l", bed->root,
             folder);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

static int open_at_once(void **state)
{
    struct bed *bed = bed_new();
    *state = bed;
    return bed_start(bed);
}

#define RETAIN_TEST(name) TEST_WITH(struct bed *bed, name, open_at_once, bed_tear_down)

RETAIN_TEST(test_retain__rules_remove_and_holds_keep)
{
    struct loading loading;
    Holdfast__V1__PruneReply *reply;
    bed_save_steps(bed, peers, RANKS, 1, STEPS);
    assert_int_equal(load_open(&loading, bed, 2), 0); /* leased */
    assert_int_equal(bed_pin(bed, 1, false), 0);
    assert_int_equal(bed_pin(bed, 1, false), ERR_EXISTS);
    assert_int_equal(bed_pin(bed, 17, false), ERR_NOT_FOUND);
    Holdfast__V1__PruneRequest request = keep_last(1);
    assert_int_equal(prune(bed, &request, &reply), 0);
    assert_int_equal(reply->n_entries, STEPS);
    const uint32_t want[] = {RETAIN_LAST | RETAIN_GOOD,
                             RETAIN_GOOD,
                             0,
                             0,
                             RETAIN_LEASED,
                             RETAIN_PINNED}; /* newest first */
    for (size_t i = 0; i < STEPS; i++) {
        assert_int_equal(reply->entries[i]->step, STEPS - i);
        assert_int_equal(reply->entries[i]->reasons, want[i]);
        assert_int_equal(reply->entries[i]->removed, want[i] == 0);
    }
    FREE_REPLY(reply);
    assert_true(listed(bed) == (1u << 1 | 1u << 2 | 1u << 5 | 1u << 6 | 1ull << 33));
    assert_int_equal(load_shard(&loading, 0, NULL), 0);
    assert_true(shard_is_right(&loading, 0, 2));
    load_close(&loading);
    assert_int_equal(count_files(bed, "tombstones"), 1); /* the reserve */
    assert_int_equal(count_files(bed, "step-00000003-a0001"), 0);
    /* All of it is on disk too, pins included. */
    bed_stop(bed);
    assert_int_equal(bed_start(bed), 0);
    assert_true(listed(bed) == (1u << 1 | 1u << 2 | 1u << 5 | 1u << 6 | 1ull << 33));
    assert_listed_loads(bed); /* all from the disk: known whole, and the last two of them stay */
    assert_int_equal(bed_pin(bed, 1, true), 0);
    assert_int_equal(bed_pin(bed, 1, true), ERR_NOT_FOUND);
    assert_int_equal(prune(bed, &request, &reply), 0);
    FREE_REPLY(reply);
    assert_true(listed(bed) == (1u << 5 | 1u << 6));
    assert_listed_loads(bed);
    bed_end_thread(bed); /* checkpoints that were committed and removed count for the rate */
    const struct ledger *ledger = &bed->service->ledger;
    assert_int_equal(ledger->num_changes, 1);
    assert_true(ledger->changes[0].bytes < -8 * (int64_t)MIB);
    bed_close_service(bed);
}

/* The two newest directories are removed without ckptd: they do not justify removing others. Nor
 * does one with a truncated shard. */
RETAIN_TEST(test_retain__what_vanished_keeps_nothing_and_leaves_the_list)
{
    Holdfast__V1__PruneReply *reply;
    char command[512];
    bed_save_steps(bed, peers, RANKS, 1, STEPS);
    snprintf(command, sizeof command,
             "cd '%s/store/" RUN "' && rm -r step-00000005-a0001 && mv step-00000006-a0001 .. && "
             "truncate -s 4096 step-00000004-a0001/shard-00002-of-*",
             bed->root);
    assert_int_equal(system(command), 0);
    Holdfast__V1__PruneRequest request = keep_last(2);
    assert_int_equal(prune(bed, &request, &reply), 0);
    const uint32_t want[] = {RETAIN_VANISHED,           RETAIN_VANISHED,
                             RETAIN_UNVERIFIABLE,       RETAIN_LAST | RETAIN_GOOD,
                             RETAIN_LAST | RETAIN_GOOD, 0}; /* newest first */
    for (size_t i = 0; i < STEPS; i++) {
        assert_int_equal(reply->entries[i]->reasons, want[i]);
        assert_string_equal(reply->entries[i]->error, "");
    }
    FREE_REPLY(reply);
    assert_true(listed(bed) == (1u << 2 | 1u << 3));
    assert_listed_loads(bed);
    Holdfast__V1__ListReply *list = bed_list(bed);
    assert_int_equal(list->n_checkpoints, 3);
    assert_string_equal(list->checkpoints[0]->durability, "damaged");
    FREE_REPLY(list);
}

/* A manifest is removed without ckptd: the checkpoint is listed as a start would, and as the tools
 * that read the directory do. */
RETAIN_TEST(test_retain__shards_whose_manifest_vanished_are_set_aside)
{
    Holdfast__V1__PruneReply *reply;
    char command[512];
    bed_save_steps(bed, peers, RANKS, 1, STEPS);
    snprintf(command, sizeof command, "rm '%s/store/" RUN "/step-00000006-a0001/manifest.json'",
             bed->root);
    assert_int_equal(system(command), 0);
    Holdfast__V1__PruneRequest request = keep_last(2);
    assert_int_equal(prune(bed, &request, &reply), 0);
    assert_int_equal(reply->entries[0]->reasons, RETAIN_VANISHED);
    FREE_REPLY(reply);
    assert_true(listed(bed) == (1u << 4 | 1u << 5));
    assert_listed_loads(bed);
    for (int start = 0; start < 2; start++) {
        Holdfast__V1__ListReply *list = bed_list(bed);
        assert_int_equal(list->n_checkpoints, 3);
        assert_int_equal(list->checkpoints[0]->step, 6);
        assert_string_equal(list->checkpoints[0]->durability, FLAW_ASIDE);
        FREE_REPLY(list);
        bed_stop(bed);
        assert_int_equal(bed_start(bed), 0);
    }
}

/* The newer ones were never read back: if all of them are damaged, only these remain. The next
 * ckptd knows that too. */
RETAIN_TEST(test_retain__the_last_two_that_the_scrub_has_read_stay)
{
    Holdfast__V1__PruneReply *reply;
    bed_save_steps(bed, peers, RANKS, 1, 4);
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_start_ms = 0;
    assert_int_equal(bed_start(bed), 0);
    assert_true(wait_number(bed, "scrub", "passes", 1));
    bed_stop(bed);
    bed->config.scrub_start_ms = 3600000;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 5, 8);
    Holdfast__V1__PruneRequest request = keep_last(1);
    assert_int_equal(prune(bed, &request, &reply), 0);
    assert_int_equal(reply->n_entries, 8);
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t step = reply->entries[i]->step;
        bool is_proven = (reply->entries[i]->reasons & RETAIN_PROVEN) != 0;
        assert_int_equal(is_proven, step == 3 || step == 4);
    }
    FREE_REPLY(reply);
    assert_true(listed(bed) == (1u << 3 | 1u << 4 | 1u << 7 | 1u << 8));
    assert_listed_loads(bed);
}

/* As `ckpt-cli verify` does where the files are. */
static void note_verified(struct bed *bed, uint64_t step, uint64_t damages)
{
    Holdfast__V1__ListReply *reply = bed_list(bed);
    struct manifest_summary summary = {.run = RUN, .step = step, .attempt = 1};
    char key[STORAGE_KEY_MAX], text[VERIFIED_BYTES_MAX];
    struct storage *tool;
    for (size_t i = 0; i < reply->n_checkpoints; i++)
        if (reply->checkpoints[i]->step == step)
            snprintf(summary.nonce, sizeof summary.nonce, "%s", reply->checkpoints[i]->nonce);
    FREE_REPLY(reply);
    verified_write(text, &summary, &(struct verified){.percent = 100, .damages = damages},
                   &(struct verified){0});
    assert_int_equal(verified_key(key, sizeof key, &summary), 0);
    assert_int_equal(storage_open(&tool, &storage_local, bed->config.store, NULL), 0);
    int error = storage_remove(tool, key);
    assert_true(error == 0 || error == ERR_NOT_FOUND);
    assert_int_equal(storage_publish(tool, key, text, strlen(text)), 0);
    storage_close(tool);
}

static void expect_plan(struct bed *bed, const uint32_t want[3])
{
    Holdfast__V1__PruneReply *reply;
    Holdfast__V1__PruneRequest request = keep_last(1);
    assert_int_equal(prune(bed, &request, &reply), 0);
    assert_int_equal(reply->n_entries, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(reply->entries[i]->reasons, want[i]);
    FREE_REPLY(reply);
}

/* Whether this ckptd has a scrub, which would read it again, or not. */
RETAIN_TEST(test_retain__what_verify_found_is_known_to_every_plan)
{
    bed_stop(bed);
    bed->config.scrub_rate = 0;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, 3);
    for (uint64_t step = 1; step <= 3; step++)
        note_verified(bed, step, step - 1);
    const uint32_t want[] = {RETAIN_UNVERIFIABLE, RETAIN_UNVERIFIABLE,
                             RETAIN_LAST | RETAIN_GOOD | RETAIN_PROVEN};
    expect_plan(bed, want);
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_start_ms = 3600000;
    assert_int_equal(bed_start(bed), 0);
    expect_plan(bed, want);
    for (uint64_t step = 2; step <= 3; step++)
        note_verified(bed, step, 0); /* the disk had read badly once */
    bed_stop(bed);
    bed->config.scrub_rate = 0;
    assert_int_equal(bed_start(bed), 0);
    expect_plan(bed, (uint32_t[]){RETAIN_LAST | RETAIN_GOOD | RETAIN_PROVEN,
                                  RETAIN_GOOD | RETAIN_PROVEN, 0});
}

/* A tool that may not write has reported damage to ckptd: until the scrub has read it, retention
 * does not count on it. */
RETAIN_TEST(test_retain__what_was_reported_damaged_counts_nowhere_until_it_is_read)
{
    Holdfast__V1__ScrubRequest request = HOLDFAST__V1__SCRUB_REQUEST__INIT;
    Holdfast__V1__ScrubReply *reply;
    bed_stop(bed);
    bed->config.scrub_rate = 1ll << 30;
    bed->config.scrub_start_ms = 3600000;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, 3);
    request.run = RUN;
    request.step = 3;
    request.attempt = 1;
    request.action = HOLDFAST__V1__SCRUB_ACTION__SCRUB_PAUSE;
    assert_int_equal(
        call(bed, "Scrub", &request.base, &holdfast__v1__scrub_reply__descriptor, &reply), 0);
    FREE_REPLY(reply);
    Holdfast__V1__PruneRequest rules = keep_last(1);
    Holdfast__V1__PruneReply *plan;
    assert_int_equal(prune(bed, &rules, &plan), 0);
    assert_true(plan->entries[0]->reasons & RETAIN_UNVERIFIABLE);
    assert_false(plan->entries[0]->reasons & RETAIN_LAST);
    assert_true(plan->entries[1]->reasons & RETAIN_LAST);
    assert_true(plan->entries[2]->reasons & RETAIN_GOOD);
    FREE_REPLY(plan);
}

/* A tombstone that a refused removal could not take back keeps readers out until the next prune. */
RETAIN_TEST(test_retain__a_tombstone_that_stayed_is_taken_back_by_the_next_prune)
{
    Holdfast__V1__PruneReply *reply;
    struct storage *tool;
    struct storage_hold *lease;
    bed_save_steps(bed, peers, RANKS, 1, 3);
    shell("cd '%s/store/" RUN "' && mkdir -p tombstones && : >tombstones/step-00000003-a0001",
          bed->root);
    assert_int_equal(storage_open(&tool, &storage_local, bed->config.store, NULL), 0);
    assert_int_equal(store_lease(tool, &lease, RUN "/step-00000003-a0001", "it reads"),
                     ERR_NOT_FOUND); /* it is being removed, as far as the tool can tell */
    Holdfast__V1__PruneRequest request = keep_last(3);
    request.dry_run = true;
    assert_int_equal(prune(bed, &request, &reply), 0);
    FREE_REPLY(reply);
    assert_int_equal(store_lease(tool, &lease, RUN "/step-00000003-a0001", "it reads"),
                     ERR_NOT_FOUND);
    request.dry_run = false;
    assert_int_equal(prune(bed, &request, &reply), 0);
    FREE_REPLY(reply);
    assert_int_equal(store_lease(tool, &lease, RUN "/step-00000003-a0001", "it reads"), 0);
    storage_release(tool, lease);
    storage_close(tool);
    assert_true(listed(bed) == (1u << 1 | 1u << 2 | 1u << 3));
}

RETAIN_TEST(test_retain__refusals_remove_nothing)
{
    Holdfast__V1__PruneReply *reply;
    bed_save_steps(bed, peers, RANKS, 1, STEPS);
    Holdfast__V1__PruneRequest request = keep_last(0);
    assert_int_equal(prune(bed, &request, &reply), ERR_INVALID); /* no rule */
    request = keep_last(2);
    request.may_remove_most = false;
    assert_int_equal(prune(bed, &request, &reply), ERR_DENIED); /* four of six */
    request.dry_run = true;
    assert_int_equal(prune(bed, &request, &reply), 0);
    for (size_t i = 0; i < STEPS; i++) {
        assert_int_equal(reply->entries[i]->reasons == 0, i >= 2);
        assert_false(reply->entries[i]->removed);
    }
    FREE_REPLY(reply);
    request.run = "nobody";
    assert_int_equal(prune(bed, &request, &reply), ERR_NOT_FOUND);
    assert_true(listed(bed) == 0x7e);
    assert_listed_loads(bed);
}

RETAIN_TEST(test_retain__the_configured_rules_hold_after_every_commit)
{
    bed_stop(bed);
    bed->config.policies.all.local.last = 3;
    bed->config.policies.all.local.every = 4;
    assert_int_equal(bed_start(bed), 0);
    bed_save_steps(bed, peers, RANKS, 1, 10);
    /* The last commit's retention may still be under way. */
    assert_true(wait_listed(bed, 1u << 4 | 1u << 8 | 1u << 9 | 1u << 10));
    assert_listed_loads(bed);
}

/* Saves ten steps with these losses, and waits for the checkpoints that are to stay. */
static void check_best(struct bed *bed, const char *order, uint64_t want)
{
    static const int losses[] = {5, 2, 9, 1, 7, 8, 3, 6, 4, 10}; /* of the steps 1 to 10 */
    char json[80];
    bed_stop(bed);
    bed->config.policies.all.local.best = 2;
    snprintf(bed->config.policies.all.metric, sizeof bed->config.policies.all.metric, "loss");
    snprintf(bed->config.policies.all.order, sizeof bed->config.policies.all.order, "%s", order);
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    for (uint64_t step = 1; step <= 10; step++) {
        snprintf(json, sizeof json, "{\"metrics\":{\"loss\":%d,\"other\":%d}}", losses[step - 1],
                 -losses[step - 1]);
        peers[0].state_json = json;
        assert_true(save_step(peers, RANKS, step));
    }
    peers_close(peers, RANKS);
    assert_true(wait_listed(bed, want | 1u << 9 | 1u << 10)); /* the last two good ones stay */
    assert_listed_loads(bed);
}

RETAIN_TEST(test_retain__the_configured_number_of_best_ones_stays)
{
    check_best(bed, "lowest", 1u << 4 | 1u << 2); /* losses 1 and 2 */
}

RETAIN_TEST(test_retain__the_best_ones_can_be_the_highest)
{
    check_best(bed, "highest", 1u << 10 | 1u << 3); /* losses 10 and 9 */
}

/* Three checkpoints have room, of which the rules would keep two, were the first not pinned. */
static void test_without_room(struct bed *bed, int refusal)
{
    bed->config.policies.all.local.last = 2;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, RANKS);
    assert_true(save_step(peers, RANKS, 1));
    assert_int_equal(bed_pin(bed, 1, false), 0);
    assert_true(save_step(peers, RANKS, 2));
    assert_true(save_step(peers, RANKS, 3));
    uint64_t step = 4;
    assert_int_equal(peer_begin(&peers[0], step), refusal);
    assert_true(listed(bed) == (0xe | 1ull << 33));
    assert_int_equal(bed_pin(bed, 1, true), 0);
    int error = refusal;
    while (step < 31 && error == refusal) {
        sleep_ms(500); /* a refusal makes room for a later request */
        error = peer_begin(&peers[0], ++step);
    }
    assert_int_equal(error, 0);
    assert_int_equal(peer_begin(&peers[1], step), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        peer_finish(&peers[i], step);
    assert_int_equal(wait_save(bed, step, NULL), HOLDFAST__V1__SAVE_STATE__SAVE_COMMITTED);
    assert_true(wait_listed(bed, 1u << 3 | 1u << step));
    peers_close(peers, RANKS);
}

/* Retention only after a commit would never run: on a full disk there is no commit. */
RETAIN_TEST(test_retain__a_save_that_does_not_fit_makes_the_rules_make_room)
{
    bed_stop(bed);
    snprintf(bed->config.store, sizeof bed->config.store, "memory:%u", 20 * MIB);
    test_without_room(bed, ERR_SPACE);
}

RETAIN_TEST(test_retain__a_list_that_is_full_makes_the_rules_make_room)
{
    bed_stop(bed);
    bed->config.limit_checkpoints = 3;
    test_without_room(bed, ERR_BUSY);
}

RETAIN_TEST(test_retain__the_configured_rules_hold_at_once_after_a_start)
{
    bed_save_steps(bed, peers, RANKS, 1, 4);
    bed_stop(bed);
    bed->config.policies.all.local.last = 2;
    assert_int_equal(bed_start(bed), 0);
    assert_true(wait_listed(bed, 0x18));
    assert_listed_loads(bed);
}

/* Prunes to the newest `count`, at once; then these steps are listed. */
static void prune_to(struct bed *bed, uint32_t count, uint64_t want)
{
    Holdfast__V1__PruneRequest request = keep_last(count);
    Holdfast__V1__PruneReply *reply;
    assert_int_equal(prune(bed, &request, &reply), 0);
    FREE_REPLY(reply);
    assert_true(listed(bed) == want);
}

/* Saves four steps, and ends ckptd while the first is being loaded. */
static void stop_under_a_load(struct bed *bed)
{
    struct loading loading;
    bed_save_steps(bed, peers, RANKS, 1, 4);
    assert_int_equal(load_open(&loading, bed, 1), 0);
    bed_stop(bed);
    close(loading.peer.socket);
}

RETAIN_TEST(test_retain__after_a_restart_only_what_was_being_loaded_waits_for_its_reader)
{
    struct loading again;
    stop_under_a_load(bed);
    bed->config.limit_reopen_ms = BED_PATIENCE_MS;
    assert_int_equal(bed_start(bed), 0);
    prune_to(bed, 2, 1u << 1 | 1u << 3 | 1u << 4);
    assert_int_equal(load_open(&again, bed, 1), 0); /* the reader is back */
    bed_stop(bed);
    close(again.peer.socket);
    bed->config.limit_reopen_ms = 50;
    assert_int_equal(bed_start(bed), 0); /* killed again, and no ckptd starts */
    sleep_ms(100);
    prune_to(bed, 2, 1u << 3 | 1u << 4);
}

static int count_lease(void *user, const struct storage_entry *entry)
{
    (void)entry;
    ++*(int *)user;
    return 0;
}

RETAIN_TEST(test_retain__a_load_is_a_lease_that_other_processes_see_until_ckptd_ends)
{
    struct storage *tool;
    struct loading loading;
    int leases = 0;
    bed_save_steps(bed, peers, RANKS, 1, 4);
    assert_int_equal(storage_open(&tool, &storage_local, bed->config.store, NULL), 0);
    assert_int_equal(load_open(&loading, bed, 1), 0);
    assert_int_equal(store_for_leases(tool, RUN, count_lease, &leases), 0);
    assert_int_equal(leases, 1);
    bed_stop(bed);
    leases = 0;
    assert_int_equal(store_for_leases(tool, RUN, count_lease, &leases), 0);
    assert_int_equal(leases, 0);
    assert_int_equal(store_for_left_leases(tool, RUN, "ckptd", count_lease, &leases), 0);
    assert_int_equal(leases, 1);
    close(loading.peer.socket);
    storage_close(tool);
}

SUITE(NULL, NULL)
