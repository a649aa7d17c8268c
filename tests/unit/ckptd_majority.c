/* ckptd_majority.c - publication of an attempt's number on most of the nodes.
 *
 * Goal: one peer is asked first, which is the same for two starts of a run. Then all others at
 * once, and ckptd waits for no peer that does not answer. Method: the real loop and crew, and for
 * each of five peers a store in memory whose publications wait until the test releases them. */
#include "ckptd/core/config.h"
#include "ckptd/core/service.h"
#include "ckptd/tiers/majority.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/engine/backend.h"
#include "tests/unit/quorum_all.h"
#include "tests/unit/suite.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PEERS = 5, FIRST = 1 /* in the settings: p1 is the first by name */, LIMIT_MS = 20000 };

#define KEY "run/attempts/0001"
#define NONCE "0123456789abcdef0123456789abcdef"
#define TEXT "{\"nonce\":\"" NONCE "\"}"

struct bed {
    struct config config;
    struct service service;
    struct storage_ops ops;
    struct quorum quorum;
    struct majority_waiter waiter;
    struct timer timer;
    int64_t until_ms;
    bool (*advance)(void);
    int phase;
    bool is_answered, is_first_alone, was_waited_for;
    /* The fields below are guarded by it. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t under_way, calls, first; /* first: the peer that was asked first */
    uint32_t let_go;                  /* bits of peers whose publications continue */
    uint32_t unreachable;             /* likewise: these fail */
};

static struct bed bed;

static uint32_t index_of(const struct storage *storage)
{
    uint32_t i = 0;
    while (bed.service.tiers[TIER_PEER + i].storage != storage)
        i++;
    return i;
}

static int publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    uint32_t peer = index_of(storage);
    pthread_mutex_lock(&bed.mutex);
    if (bed.calls++ == 0)
        bed.first = peer;
    bed.under_way++;
    while (!(bed.let_go >> peer & 1u))
        pthread_cond_wait(&bed.changed, &bed.mutex);
    bed.under_way--;
    bool is_unreachable = bed.unreachable >> peer & 1u;
    pthread_mutex_unlock(&bed.mutex);
    if (is_unreachable)
        return report_error(ERR_UNAVAILABLE, NULL, "gone");
    return storage_memory.publish(storage, key, data, bytes);
}

static int set_up(void **state)
{
    (void)state;
    memset(&bed, 0, sizeof bed);
    pthread_mutex_init(&bed.mutex, NULL);
    pthread_cond_init(&bed.changed, NULL);
    bed.ops = storage_memory;
    bed.ops.publish = publish;
    bed.service.config = &bed.config;
    assert_int_equal(
        members_parse(&bed.config.members, "n1", "p4@d=h:1,p1@d=h:1,p5@d=h:1,p2@d=h:1,p3@d=h:1"),
        0);
    assert_int_equal(loop_open(&bed.service.loop, 1, 0), 0);
    assert_int_equal(crew_open(&bed.service.peer_crew, bed.service.loop, PEERS + 1, 0), 0);
    for (uint32_t i = 0; i < PEERS; i++) {
        struct tier *tier = &bed.service.tiers[TIER_PEER + i];
        struct storage *storage = NULL;
        assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
        ((struct storage_base *)storage)->ops = &bed.ops;
        tier->storage = storage;
        tier->crew = bed.service.peer_crew;
        crew_lane(tier->crew, &tier->lane, 2);
    }
    bed.quorum = quorum_of_all(PEERS + 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    crew_close(bed.service.peer_crew);
    majority_close(&bed.service);
    loop_close(bed.service.loop);
    for (uint32_t i = 0; i < PEERS; i++) {
        ((struct storage_base *)bed.service.tiers[TIER_PEER + i].storage)->ops = &storage_memory;
        storage_close(bed.service.tiers[TIER_PEER + i].storage);
    }
    return 0;
}

static void let_go(uint32_t peers)
{
    pthread_mutex_lock(&bed.mutex);
    bed.let_go |= peers;
    pthread_cond_broadcast(&bed.changed);
    pthread_mutex_unlock(&bed.mutex);
}

static uint32_t num_under_way(void)
{
    pthread_mutex_lock(&bed.mutex);
    uint32_t num = bed.under_way;
    pthread_mutex_unlock(&bed.mutex);
    return num;
}

static void go_on(struct majority_waiter *waiter)
{
    (void)waiter;
    bed.is_answered = true;
}

/* Checks every 2 ms whether the expected result is there, and ends the loop then. */
static void look(struct timer *timer)
{
    if (bed.advance() || clock_ms() > bed.until_ms)
        loop_stop(bed.service.loop);
    else
        loop_timer(bed.service.loop, timer, 2);
}

/* False: it has not come in time. */
static bool run(bool (*advance)(void))
{
    bed.advance = advance;
    bed.until_ms = clock_ms() + LIMIT_MS;
    bed.timer.run = look;
    bed.waiter.go_on = go_on;
    majority_publish(&bed.service, &bed.quorum, KEY, TEXT, NONCE, &bed.waiter);
    loop_timer(bed.service.loop, &bed.timer, 2);
    loop_run(bed.service.loop);
    return clock_ms() <= bed.until_ms;
}

static bool is_settled(void)
{
    return bed.is_answered && !bed.service.publishings;
}

/* The first; after its answer the others, which continue when all are under way. */
static bool advance_all(void)
{
    uint32_t under_way = num_under_way();
    if (bed.phase == 0 && under_way > 0) {
        bed.phase = 1;
        bed.is_first_alone = under_way == 1 && bed.first == FIRST;
        let_go(1u << FIRST);
    } else if (bed.phase == 1 && under_way == PEERS - 1) {
        bed.phase = 2;
        let_go(~0u);
    }
    return bed.phase == 2 && is_settled();
}

TEST_BETWEEN(test_majority__one_peer_is_asked_first_and_then_all_others_at_once, set_up, tear_down)
{
    assert_true(run(advance_all));
    assert_true(bed.is_first_alone);
    assert_int_equal(bed.waiter.fault.code, 0);
    assert_int_equal(bed.calls, PEERS);
}

/* Two of the others never answer; with this node and the first two more are most of six. */
static bool advance_held(void)
{
    let_go(1u << FIRST | 1u << 0 | 1u << 3);
    if (bed.is_answered && bed.phase == 0) {
        bed.phase = 1;
        bed.was_waited_for = num_under_way() == 0;
        let_go(~0u);
    }
    return bed.phase == 1 && is_settled();
}

TEST_BETWEEN(test_majority__a_peer_that_does_not_answer_is_not_waited_for, set_up, tear_down)
{
    assert_true(run(advance_held));
    assert_int_equal(bed.waiter.fault.code, 0);
    assert_false(bed.was_waited_for);
}

static bool advance_freely(void)
{
    let_go(~0u);
    return is_settled();
}

TEST_BETWEEN(test_majority__whom_another_start_has_taken_the_first_peer_from_asks_nobody_else,
             set_up, tear_down)
{
    struct storage *first = bed.service.tiers[TIER_PEER + FIRST].storage;
    assert_int_equal(storage_memory.publish(first, KEY, "another", 7), 0);
    assert_true(run(advance_freely));
    assert_int_equal(bed.waiter.fault.code, ERR_EXISTS);
    assert_int_equal(bed.calls, 1);
}

TEST_BETWEEN(test_majority__half_of_the_nodes_are_too_few, set_up, tear_down)
{
    bed.unreachable = 1u << 0 | 1u << 2 | 1u << 4;
    assert_true(run(advance_freely));
    assert_int_equal(bed.waiter.fault.code, ERR_UNAVAILABLE);
    assert_non_null(strstr(bed.waiter.fault.message, "3 of 6 nodes"));
    assert_int_equal(bed.calls, PEERS);
}

TEST_BETWEEN(test_majority__a_first_peer_that_is_away_is_passed_over, set_up, tear_down)
{
    snprintf(bed.service.tiers[TIER_PEER + FIRST].offline, 8, "gone");
    bed.unreachable = 1u << FIRST;
    assert_true(run(advance_freely));
    assert_int_equal(bed.waiter.fault.code, 0);
    assert_int_equal(bed.first, 3); /* p2 */
}

SUITE(NULL, NULL)
