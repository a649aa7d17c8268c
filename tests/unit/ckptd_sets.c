/* ckptd_sets.c - the nodes of which most must hold an attempt, while the settings change.
 *
 * Goal: the invariants sets.S1 to S3 of ckptd/machines/sets.c. Method: cases in which a mistake is
 * likely; then worlds of six nodes with real stores in memory. Several nodes start the run, each
 * with different settings that change meanwhile. They read the nodes that answer and publish at one
 * after the other, interleaved in any order, and may die anywhere. A start gets a higher number
 * than all that were answered when it began, and counts the nodes of the newest of them.
 * SIM_SEED=<n> replays a world, SIM_WORLDS=<n> so many. */
#include "ckptd/core/sets_file.h"
#include "ckptd/machines/sets.h"
#include "proto/base/report.h"
#include "storage/storage.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES 6u
#define STARTS 3u
#define WORLDS 150
#define TURNS 150

static struct members peers_of(uint32_t own, uint32_t mask)
{
    struct members members = {0};
    for (uint32_t i = 0; i < NODES; i++)
        if (i != own && mask >> i & 1)
            snprintf(members.peers[members.count++].name, MEMBER_NAME_MAX, "n%u", i);
    return members;
}

static void name_of(char out[MEMBER_NAME_MAX], uint32_t node)
{
    snprintf(out, MEMBER_NAME_MAX, "n%u", node);
}

/* ---- cases ---- */

TEST(test_sets__a_change_of_nodes_needs_most_of_both)
{
    struct sets last, next;
    const struct sets none = {0};
    struct members before = peers_of(0, 7), after = peers_of(0, 1 + 8 + 16);
    assert_int_equal(sets_next(&last, &none, &before, "n0"), 0);
    assert_string_equal(last.names[0], "n0,n1,n2");
    assert_int_equal(sets_next(&next, &last, &after, "n0"), 0);
    assert_int_equal(next.count, 2);
    struct quorum quorum = sets_quorum(&next, &after, "n0");
    assert_int_equal(quorum_heard(&quorum, 1, PUBLICATION_DURABLE), QUORUM_ASKS); /* n3: 2 of 3 */
    assert_int_equal(quorum_heard(&quorum, 2, PUBLICATION_DURABLE), QUORUM_TOO_FEW);
    sets_free(&next);
    assert_int_equal(sets_next(&next, &last, &before, "n0"), 0);
    assert_int_equal(next.count, 1);
    quorum = sets_quorum(&next, &before, "n0");
    assert_int_equal(quorum_heard(&quorum, 1, PUBLICATION_DURABLE), QUORUM_HELD);
    sets_free(&next);
    sets_free(&last);
}

TEST(test_sets__nodes_of_before_count_until_the_change_is_held)
{
    struct sets last, next, later, more;
    const struct sets none = {0};
    struct members before = peers_of(0, 7), after = peers_of(0, 1 + 2 + 8);
    assert_int_equal(sets_next(&last, &none, &before, "n0"), 0);
    assert_int_equal(sets_next(&next, &last, &after, "n0"), 0);
    assert_int_equal(sets_next(&later, &next, &after, "n0"), 0);
    assert_int_equal(later.count, 2);
    next.is_held = true;
    assert_int_equal(sets_next(&more, &next, &after, "n0"), 0);
    assert_int_equal(more.count, 1);
    sets_free(&last);
    sets_free(&next);
    sets_free(&later);
    sets_free(&more);
}

TEST(test_sets__too_many_changes_are_refused)
{
    struct sets last = {0}, next;
    uint32_t masks[] = {3, 5, 9, 17, 33};
    for (uint32_t i = 0; i < 5; i++) {
        struct members members = peers_of(0, masks[i]);
        assert_int_equal(sets_next(&next, &last, &members, "n0"), i < 4 ? 0 : ERR_BUSY);
        sets_free(&last);
        last = next;
    }
    sets_free(&last);
}

static int take_number(struct storage *storage, unsigned number, const char *nodes)
{
    char key[40], text[300];
    struct sets sets;
    snprintf(key, sizeof key, "r/attempts/%04u", number);
    int length = snprintf(text, sizeof text,
                          "{\"format\":\"holdfast-attempt\",\"attempt\":%u,"
                          "\"nonce\":\"%032u\",\"nodes\":[%s]}\n",
                          number, number, nodes);
    int error = sets_file_take(&sets, storage, key, text, (size_t)length);
    sets_free(&sets);
    return error;
}

TEST(test_sets__a_number_that_leaves_out_the_nodes_of_before_is_refused)
{
    struct storage *storage = NULL;
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    assert_int_equal(take_number(storage, 1, "\"n0,n1,n2\""), 0);
    assert_int_equal(take_number(storage, 2, "\"n3,n4,n5\""), ERR_STALE);
    assert_int_equal(take_number(storage, 2, "\"n3,n4,n5\",\"n0,n1,n2\""), 0);
    storage_close(storage);
}

/* ---- worlds ---- */

struct start {
    bool is_on;
    uint32_t node, turn;
    struct members members;
    uint64_t number, after; /* after: the highest that was answered when it began */
    char text[600];
    struct sets sets;
    struct quorum quorum;
};

struct world {
    struct storage *stores[NODES];
    uint32_t settings[NODES]; /* bits of the nodes they name */
    struct start starts[STARTS];
    uint64_t answered; /* the highest number */
    struct {
        uint64_t number;
        char names[NODES * 3 + 1];
    } answers[TURNS];
    uint32_t num_answered, num_changed;
    uint64_t nonces;
};

static uint32_t peer_at(const struct start *start, uint32_t index)
{
    return (uint32_t)atoi(start->members.peers[index].name + 1);
}

/* Like majority_refresh_peers() of ckptd: false when too few answer. */
static bool look(struct world *world, struct start *start, uint32_t answering)
{
    char own[MEMBER_NAME_MAX];
    struct sets known = {0}, found;
    struct node_set looked = {.words = {1}};
    name_of(own, start->node);
    assert_int_equal(sets_file_find(&known, world->stores[start->node], "r"), 0);
    for (uint32_t i = 0; i < start->members.count; i++) {
        uint32_t peer = peer_at(start, i);
        if (!(answering >> peer & 1))
            continue;
        node_set_add(&looked, (uint32_t)i + 1);
        assert_int_equal(sets_file_find(&found, world->stores[peer], "r"), 0);
        sets_merge(&known, &found);
    }
    int error = sets_next(&start->sets, &known, &start->members, own);
    start->number = known.attempt + 1;
    sets_free(&known);
    if (error != 0)
        return false;
    start->quorum = sets_quorum(&start->sets, &start->members, own);
    struct quorum seen = start->quorum;
    seen.holders = looked;
    if (!quorum_lacks(&seen))
        return true;
    sets_free(&start->sets);
    return false;
}

static void begin(struct world *world, struct start *start, uint64_t *random)
{
    uint32_t node = (uint32_t)(splitmix64(random) % NODES);
    uint32_t answering = (uint32_t)splitmix64(random) | (uint32_t)splitmix64(random);
    *start = (struct start){
        .node = node, .after = world->answered, .members = peers_of(node, world->settings[node])};
    if (!look(world, start, answering))
        return;
    char list[400] = "";
    for (uint32_t i = 0; i < start->sets.count; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s\"%s\"", i > 0 ? "," : "",
                 start->sets.names[i]);
    snprintf(start->text, sizeof start->text,
             "{\"format\":\"holdfast-attempt\",\"attempt\":%llu,\"nonce\":\"%032llx\","
             "\"nodes\":[%s]}\n",
             (unsigned long long)start->number, (unsigned long long)++world->nonces, list);
    start->is_on = true;
}

static void tell(struct world *world, const struct start *start, const char *key,
                 uint32_t answering)
{
    char held[96], nonce[33];
    snprintf(held, sizeof held, "%s" SETS_HELD, key);
    snprintf(nonce, sizeof nonce, "%.32s", strstr(start->text, "nonce") + 8);
    for (uint32_t i = 0; i < start->members.count; i++)
        if (answering >> peer_at(start, i) & 1)
            (void)sets_file_hold(world->stores[peer_at(start, i)], held, nonce, 32);
}

/* sets.S2. */
static void check_answer(const struct world *world, const struct start *start)
{
    bool counts = start->after == 0;
    for (uint32_t i = 0; i < world->num_answered; i++)
        for (uint32_t k = 0; k < start->sets.count && world->answers[i].number >= start->after; k++)
            counts |= strcmp(world->answers[i].names, start->sets.names[k]) == 0;
    assert_true(start->number > start->after);
    assert_true(counts);
}

static void answer(struct world *world, struct start *start, const char *key, uint32_t answering)
{
    struct sets sets;
    start->is_on = false;
    if (sets_file_take_last(&sets, world->stores[start->node], key, start->text) == 0) {
        check_answer(world, start);
        if (start->number > world->answered)
            world->answered = start->number;
        world->answers[world->num_answered].number = start->number;
        snprintf(world->answers[world->num_answered++].names, sizeof world->answers[0].names, "%s",
                 start->sets.names[0]);
        world->num_changed += sets.count > 1;
        if (sets.count > 1)
            tell(world, start, key, answering);
    }
    sets_free(&sets);
}

/* One publication. */
static void advance(struct world *world, struct start *start, uint64_t *random)
{
    char key[64];
    struct sets sets = {0};
    uint32_t answering = (uint32_t)splitmix64(random) | (uint32_t)splitmix64(random);
    enum publication outcome = PUBLICATION_UNKNOWN;
    snprintf(key, sizeof key, "r/attempts/%04llu", (unsigned long long)start->number);
    enum quorum_state state = quorum_lacks(&start->quorum) ? QUORUM_ASKS : QUORUM_HELD;
    if (state == QUORUM_ASKS && start->turn == start->members.count)
        state = QUORUM_TOO_FEW;
    if (state == QUORUM_ASKS) {
        uint32_t peer = peer_at(start, start->turn++);
        if (answering >> peer & 1) {
            int error =
                sets_file_take(&sets, world->stores[peer], key, start->text, strlen(start->text));
            outcome = error == 0            ? PUBLICATION_DURABLE
                      : error == ERR_EXISTS ? PUBLICATION_TAKEN
                                            : PUBLICATION_LOST;
        }
        sets_free(&sets);
        state = quorum_heard(&start->quorum, start->turn, outcome);
        if (state == QUORUM_ASKS || state == QUORUM_HELD)
            return;
    }
    if (state == QUORUM_HELD)
        answer(world, start, key, answering);
    start->is_on = false;
    sets_free(&start->sets);
}

/* A node gets other settings: one more, one less, or all others. */
static void change(struct world *world, uint64_t *random)
{
    uint32_t node = (uint32_t)(splitmix64(random) % NODES);
    uint32_t mask = world->settings[node] ^ 1u << splitmix64(random) % NODES;
    /* A start that knows nothing of the run needs a majority of the first nodes: see sets.c. */
    struct sets known;
    assert_int_equal(sets_file_find(&known, world->stores[node], "r"), 0);
    if (splitmix64(random) % 3 == 0)
        mask = (uint32_t)splitmix64(random) % (1u << NODES);
    if (known.count > 0)
        world->settings[node] = mask | 1u << node;
    sets_free(&known);
}

static uint32_t run_world(uint64_t seed, uint32_t *out_changed)
{
    uint64_t random = seed;
    struct world world = {0};
    for (uint32_t i = 0; i < NODES; i++) {
        assert_int_equal(storage_open(&world.stores[i], &storage_memory, "", NULL), 0);
        world.settings[i] = 7u | 1u << i;
    }
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        struct start *start = &world.starts[splitmix64(&random) % STARTS];
        if (splitmix64(&random) % 16 == 0)
            change(&world, &random);
        if (start->is_on && splitmix64(&random) % 32 == 0) { /* its ckptd dies */
            start->is_on = false;
            sets_free(&start->sets);
        } else if (start->is_on) {
            advance(&world, start, &random);
        } else {
            begin(&world, start, &random);
        }
    }
    for (uint32_t i = 0; i < STARTS; i++)
        sets_free(&world.starts[i].sets);
    for (uint32_t i = 0; i < NODES; i++)
        storage_close(world.stores[i]);
    *out_changed += world.num_changed;
    return world.num_answered;
}

TEST(test_sets__numbers_that_are_answered_grow_whatever_the_settings_say)
{
    const char *one = getenv("SIM_SEED");
    uint32_t answered = 0, changed = 0, worlds = (uint32_t)random_rounds("SIM_WORLDS", WORLDS);
    if (one) {
        run_world(strtoull(one, NULL, 10), &changed);
        return;
    }
    for (uint64_t seed = 1; seed <= worlds; seed++)
        answered += run_world(seed, &changed);
    print_message("%u worlds: %u starts answered, %u with other nodes than before\n", worlds,
                  answered, changed);
    assert_true(answered > 3 * worlds && changed > worlds / 2);
}

SUITE(NULL, NULL)
