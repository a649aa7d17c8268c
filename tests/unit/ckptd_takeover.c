/* ckptd_takeover.c - when a start may take a run from the one that has it
 * (ckptd/machines/takeover.h).
 */
#include "ckptd/machines/takeover.h"
#include "tests/unit/suite.h"

TEST(test_takeover__each_rule)
{
    static const struct {
        struct takeover_facts facts;
        enum takeover answer;
    } cases[] = {
        {{.limit_ms = 100, .opened_ms_ago = 1}, TAKEOVER_NOW}, /* no start has it */
        {{.limit_ms = 100, .num_alive = 1}, TAKEOVER_WAIT},
        {{.limit_ms = 100, .num_alive = 1, .waited_ms = 99}, TAKEOVER_WAIT},
        {{.limit_ms = 100, .num_alive = 1, .waited_ms = 100}, TAKEOVER_REFUSED},
        {{.limit_ms = 100, .num_alive = 0, .waited_ms = 50}, TAKEOVER_NOW}, /* they died */
        {{.limit_ms = 100, .num_alive = 1, .is_same_launcher = true}, TAKEOVER_NOW},
        {{.limit_ms = 100, .num_alive = 1, .is_forced = true}, TAKEOVER_NOW},
        {{.limit_ms = 0, .num_alive = 1}, TAKEOVER_NOW},
        {{.limit_ms = 100, .is_opening = true}, TAKEOVER_WAIT},
        {{.limit_ms = 100, .is_gathering = true, .opened_ms_ago = 99}, TAKEOVER_WAIT},
        {{.limit_ms = 100, .is_gathering = true, .opened_ms_ago = 100}, TAKEOVER_NOW},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(takeover_decide(&cases[i].facts), cases[i].answer);
}

SUITE(NULL, NULL)
