/* ckptd_buffers.c - buffers that several fleets share (ckptd/tiers/buffers.c).
 *
 * Goal: no more buffers are taken than exist. A waiter that finds none is called when one is
 * returned, in order of arrival, and none is forgotten. Method: waiters that take several buffers
 * each. */
#include "ckptd/core/loop.h"
#include "ckptd/tiers/buffers.h"
#include "tests/unit/suite.h"

#include <string.h>

enum { COUNT = 3, FLEETS = 5 };

struct fleet {
    struct buffers_waiter waiter;
    struct buffers *buffers;
    void *held[COUNT];
    uint32_t num_held, wants;
    char *order; /* of the waiters that got one */
    char name;
};

static void take(struct fleet *fleet)
{
    while (fleet->wants > 0) {
        void *data = buffers_take(fleet->buffers, &fleet->waiter);
        if (!data)
            return;
        memset(data, fleet->name, 4096);
        fleet->held[fleet->num_held++] = data;
        fleet->wants--;
        strncat(fleet->order, &fleet->name, 1);
    }
}

static void wake(struct buffers_waiter *waiter)
{
    take(CONTAINER_OF(waiter, struct fleet, waiter));
}

static void give(struct fleet *fleet)
{
    buffers_give(fleet->buffers, fleet->held[--fleet->num_held]);
    buffers_wake_waiters(fleet->buffers);
}

TEST(test_buffers__who_found_none_gets_the_next_in_the_order_of_coming)
{
    struct buffers *buffers;
    struct fleet fleets[FLEETS];
    char order[32] = "";
    assert_int_equal(buffers_open(&buffers, COUNT, 4096), 0);
    for (int i = 0; i < FLEETS; i++) {
        fleets[i] = (struct fleet){.waiter.wake = wake,
                                   .buffers = buffers,
                                   .wants = i == 0 ? COUNT : 2,
                                   .order = order,
                                   .name = (char)('a' + i)};
        take(&fleets[i]);
        take(&fleets[i]); /* a waiter that asks twice waits once */
    }
    assert_string_equal(order, "aaa");
    for (int i = 0; i < COUNT; i++)
        give(&fleets[0]);
    assert_string_equal(order, "aaabcd");
    for (int i = 1; i < FLEETS; i++)
        give(&fleets[i]);
    assert_string_equal(order, "aaabcdebcd");
    give(&fleets[1]);
    assert_string_equal(order, "aaabcdebcde");
    buffers_close(buffers);
}

SUITE(NULL, NULL)
