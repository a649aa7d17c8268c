/* ckptd_transfer_any.c - the machine that brings a checkpoint into another tier, in any order; and
 * which checkpoint is next.
 *
 * Goal: the invariants transfer.T1 to T6 of transfer.c under any order of events. Method: a seeded
 * scheduler plays the far tier against the machines of two stores, which may have taken the same
 * attempt's number apart from each other: requests fail before or after their effect, are not
 * answered, or have their effect late, when others have come in between; what is read back may be
 * older than what was written; answers come twice or for a transfer that is over; a process crashes
 * at any point and begins again. After every event the tier is checked: whose manifest is there had
 * every shard there, and the number; nobody was told of a checkpoint that is not there; what may
 * still have its effect was not given up. In the end the faults stop and every transfer must be
 * over, of two stores one with its checkpoint there. Replay one world with SEED=<seed>; WORLDS=<n>.
 */
#include "ckptd/machines/pick.h"
#include "ckptd/machines/transfer.h"
#include "proto/base/report.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORES 2
#define SHARDS_MAX 4u
#define LATE_MAX 8u
#define EVENTS 400
#define RETRY_MS 100
#define NOBODY (-1)

/* A request whose effect is still to come. */
struct late {
    bool is_claim; /* else a manifest */
    int store;
};

/* What the tier holds. */
struct remote_store {
    int number, manifest; /* whose */
    bool shard[STORES][SHARDS_MAX];
    bool names[STORES];
    struct late late[LATE_MAX];
    uint32_t num_late;
};

struct store {
    struct transfer machine;
    struct transfer_action due;
    uint32_t shards;
    bool is_told, is_over; /* since its last start */
    bool was_told;         /* ever */
    bool has_sent;         /* a manifest, since its last start */
    bool source_is_bad;
    int64_t longest_ms;
};

struct world {
    struct remote_store far;
    struct store stores[STORES];
    uint32_t faults; /* per thousand */
};

static bool fault(const struct world *world)
{
    return next_random(1000) < world->faults;
}

/* ---- the far tier ---- */

static int *place_of(struct remote_store *far, bool is_claim)
{
    return is_claim ? &far->number : &far->manifest;
}

/* Exclusively: the first has the name. */
static void take_effect(struct world *world, const struct late *late)
{
    int *place = place_of(&world->far, late->is_claim);
    if (*place == NOBODY)
        *place = late->store;
    if (*place != late->store || late->is_claim)
        return;
    const struct store *store = &world->stores[late->store];
    assert_int_equal(world->far.number, late->store); /* transfer.T4 */
    assert_true(world->far.names[late->store]);       /* transfer.T1 */
    for (uint32_t i = 0; i < store->shards; i++)
        assert_true(world->far.shard[late->store][i]);
}

static enum publication read_back(const struct world *world, bool is_claim, int store)
{
    int found = is_claim ? world->far.number : world->far.manifest;
    if (found == NOBODY)
        return PUBLICATION_ABSENT;
    return found == store ? PUBLICATION_DURABLE : PUBLICATION_TAKEN;
}

/* As tier_publish(): what it cannot know is UNKNOWN, also when it reads nothing back. */
static enum publication publish(struct world *world, bool is_claim, int store)
{
    const struct late late = {is_claim, store};
    if (fault(world) && next_random(2) == 0)
        return PUBLICATION_ABSENT; /* refused */
    if (fault(world) && world->far.num_late < LATE_MAX) {
        world->far.late[world->far.num_late++] = late;
        return PUBLICATION_UNKNOWN;
    }
    take_effect(world, &late);
    if (fault(world))
        return PUBLICATION_UNKNOWN; /* the answer was lost */
    return read_back(world, is_claim, store);
}

static void one_late_effect(struct world *world)
{
    if (world->far.num_late == 0)
        return;
    uint32_t which = (uint32_t)next_random(world->far.num_late);
    const struct late late = world->far.late[which];
    world->far.late[which] = world->far.late[--world->far.num_late];
    take_effect(world, &late);
}

/* ---- a store ---- */

static struct transfer_action copy(struct world *world, int number, uint32_t shard)
{
    struct store *store = &world->stores[number];
    if (store->source_is_bad && shard + 1 == store->shards)
        return transfer_copied(&store->machine, shard, ERR_CORRUPT, true);
    bool is_there = !fault(world) || next_random(2) == 0;
    if (is_there)
        world->far.shard[number][shard] = true;
    return transfer_copied(&store->machine, shard, is_there && !fault(world) ? 0 : ERR_IO, false);
}

static struct transfer_action settle(struct world *world, int number)
{
    enum publication found = fault(world) ? PUBLICATION_UNKNOWN : read_back(world, false, number);
    if (found == PUBLICATION_DURABLE && fault(world))
        found = PUBLICATION_ABSENT; /* what is read lags */
    return transfer_settled(&world->stores[number].machine, found);
}

static void check_told(const struct world *world, int number)
{
    assert_int_equal(world->far.manifest, number); /* transfer.T2 */
}

/* transfer.T3, transfer.T5: over for good means that it can never be there, unless somebody reads
 * on. */
static void check_over(const struct world *world, int number, int error)
{
    const struct store *store = &world->stores[number];
    if (error == ERR_CORRUPT) {
        assert_true(store->source_is_bad && !store->has_sent);
        return;
    }
    assert_int_equal(error, ERR_EXISTS);
    int other = 1 - number;
    assert_true(world->far.number == other || world->far.manifest == other);
    assert_int_not_equal(world->far.manifest, number);
}

static void perform(struct world *world, int number)
{
    struct store *store = &world->stores[number];
    const struct transfer_action due = store->due;
    struct transfer *machine = &store->machine;
    store->due = (struct transfer_action){.kind = TRANSFER_NOTHING};
    switch (due.kind) {
    case TRANSFER_CLAIM:
        store->due = transfer_claimed(machine, publish(world, true, number));
        break;
    case TRANSFER_COPY:
        store->due = copy(world, number, due.shard);
        break;
    case TRANSFER_NAMES:
        world->far.names[number] = true;
        store->due = transfer_named(machine, fault(world) ? ERR_IO : 0);
        break;
    case TRANSFER_PUBLISH:
        store->has_sent = true;
        store->due = transfer_published(machine, publish(world, false, number));
        break;
    case TRANSFER_SETTLE:
        store->due = settle(world, number);
        break;
    case TRANSFER_REST:
        assert_in_range(due.ms, RETRY_MS, RETRY_MS << TRANSFER_DOUBLINGS); /* transfer.T6 */
        store->longest_ms = due.ms > store->longest_ms ? due.ms : store->longest_ms;
        store->due = transfer_rested(machine);
        break;
    case TRANSFER_HELD:
        check_told(world, number);
        store->is_told = store->was_told = true;
        break;
    case TRANSFER_OVER:
        check_over(world, number, due.error);
        store->is_over = true;
        break;
    case TRANSFER_NOTHING:
        break;
    }
}

/* Calls that come late or twice change nothing and ask for nothing. */
static void stray(struct store *store)
{
    if (store->due.kind == TRANSFER_NOTHING || store->due.kind == TRANSFER_REST)
        return;
    struct transfer before = store->machine;
    if (store->due.kind != TRANSFER_COPY)
        assert_int_equal(transfer_copied(&store->machine, 0, 0, false).kind, TRANSFER_NOTHING);
    if (store->due.kind != TRANSFER_PUBLISH)
        assert_int_equal(transfer_published(&store->machine, PUBLICATION_DURABLE).kind,
                         TRANSFER_NOTHING);
    if (store->due.kind != TRANSFER_SETTLE)
        assert_int_equal(transfer_settled(&store->machine, PUBLICATION_DURABLE).kind,
                         TRANSFER_NOTHING);
    assert_int_equal(transfer_rested(&store->machine).kind, TRANSFER_NOTHING);
    assert_memory_equal(&before, &store->machine, sizeof before);
}

static void begin(struct store *store)
{
    transfer_forget(&store->machine);
    store->is_told = store->is_over = store->has_sent = false;
    store->due = transfer_begin(&store->machine, store->shards, RETRY_MS);
    assert_int_equal(transfer_begin(&store->machine, 1, RETRY_MS).kind, TRANSFER_NOTHING);
}

static void one_event(struct world *world)
{
    int number = (int)next_random(STORES);
    struct store *store = &world->stores[number];
    switch (next_random(8)) {
    case 0:
        one_late_effect(world);
        break;
    case 1:
        stray(store);
        break;
    case 2:
        if (fault(world)) /* it crashed, and was started again */
            begin(store);
        break;
    default:
        perform(world, number);
    }
}

static void play(uint32_t shards, uint32_t faults, bool second_is_bad)
{
    struct world world = {.far = {.number = NOBODY, .manifest = NOBODY}, .faults = faults};
    for (int i = 0; i < STORES; i++) {
        world.stores[i].shards = shards;
        begin(&world.stores[i]);
    }
    world.stores[1].source_is_bad = second_is_bad;
    for (int i = 0; i < EVENTS; i++)
        one_event(&world);
    world.faults = 0;
    while (world.far.num_late > 0)
        one_late_effect(&world);
    for (int i = 0; i < EVENTS; i++)
        perform(&world, i % STORES);
    for (int i = 0; i < STORES; i++)
        assert_true(world.stores[i].is_told || world.stores[i].is_over); /* transfer.T6 */
    int winner = world.far.number;
    assert_true(world.stores[winner].is_told ||
                (world.stores[winner].source_is_bad && world.far.manifest == NOBODY));
    assert_false(world.stores[1 - winner].was_told); /* two never hold one number */
}

TEST(test_transfer__any_order_keeps_the_invariants)
{
    uint64_t worlds = random_rounds("WORLDS", 20000);
    for (uint64_t i = 0; i < worlds; i++)
        play(1 + (uint32_t)next_random(SHARDS_MAX), (uint32_t)next_random(600),
             next_random(4) == 0);
}

TEST(test_transfer__pauses_double_up_to_a_bound_and_begin_anew)
{
    struct transfer transfer = {0};
    transfer_begin(&transfer, 1, RETRY_MS);
    for (unsigned i = 0; i < 10; i++) {
        struct transfer_action action = transfer_claimed(&transfer, PUBLICATION_UNKNOWN);
        assert_int_equal(action.kind, TRANSFER_REST);
        assert_int_equal(action.ms, RETRY_MS << (i < TRANSFER_DOUBLINGS ? i : TRANSFER_DOUBLINGS));
        assert_int_equal(transfer_rested(&transfer).kind, TRANSFER_CLAIM);
    }
    assert_int_equal(transfer_claimed(&transfer, PUBLICATION_DURABLE).kind, TRANSFER_COPY);
    assert_int_equal(transfer_copied(&transfer, 0, ERR_SPACE, false).ms, RETRY_MS);
}

/* ---- pick ---- */

static int64_t next_of(enum pick_what what, struct pick_item *items, uint32_t count, uint32_t *left)
{
    const struct pick_rule rule = {what, 10};
    pick_mark(&rule, items, count);
    return pick_next(items, count, left);
}

TEST(test_pick__the_newest_goes_first_but_behind_what_is_waited_for)
{
    struct pick_item items[] = {{.step = 31, .is_kept = true, .is_far = true},
                                {.step = 30, .is_kept = true, .is_local = true},
                                {.step = 25, .is_kept = true, .is_local = true},
                                {.step = 20, .is_kept = true, .is_local = true},
                                {.step = 10, .is_kept = true, .is_local = true, .is_far = true}};
    uint32_t left;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 1);
    assert_int_equal(left, 3);
    items[2].is_wanted = true;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 2);
    items[2].is_far = true;
    items[1].is_given_up = true;
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), 3);
    assert_int_equal(left, 1);
    items[3].is_local = false; /* removed, or damaged */
    assert_int_equal(next_of(PICK_ALL, items, 5, &left), -1);
    assert_int_equal(left, 0);
}

TEST(test_pick__the_rules_say_which_go_and_who_waits_overrules_them)
{
    struct pick_item items[] = {{.step = 35, .is_kept = true, .is_local = true},
                                {.step = 30, .is_kept = true, .is_local = true},
                                {.step = 25, .is_kept = true, .is_local = true}};
    uint32_t left;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), 0);
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), 1);
    items[1].is_kept = false; /* it would be removed there again */
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), -1);
    items[1].is_kept = items[0].is_far = items[1].is_far = true;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), -1);
    assert_int_equal(next_of(PICK_EVERY, items, 3, &left), -1);
    items[2].is_kept = false;
    items[2].is_wanted = true;
    assert_int_equal(next_of(PICK_LAST, items, 3, &left), 2);
}

/* The tier was started again: all is proven or sent once more, behind a new claim. */
TEST(test_transfer__shards_that_were_lost_are_sent_again_before_the_manifest)
{
    struct transfer transfer = {0};
    transfer_begin(&transfer, 2, RETRY_MS);
    transfer_claimed(&transfer, PUBLICATION_DURABLE);
    transfer_copied(&transfer, 0, 0, false);
    assert_int_equal(transfer_copied(&transfer, 1, 0, false).kind, TRANSFER_NAMES);
    assert_int_equal(transfer_named(&transfer, 0).kind, TRANSFER_PUBLISH);
    assert_int_equal(transfer_published(&transfer, PUBLICATION_LOST).kind, TRANSFER_REST);
    assert_int_equal(transfer_rested(&transfer).kind, TRANSFER_CLAIM);
    struct transfer_action action = transfer_claimed(&transfer, PUBLICATION_DURABLE);
    assert_int_equal(action.kind, TRANSFER_COPY);
    assert_int_equal(action.shard, 0);
}

int main(void)
{
    seed_random();
    return suite_run(NULL, NULL);
}
