/* ckptd_tenure.c - which ckptd trains a run, of those that share a far tier
 * (ckptd/machines/tenure.h).
 */
#include "ckptd/machines/tenure.h"
#include "tests/unit/suite.h"

#define FOREIGN(n, a)             \
    {                             \
        .number = n, .attempt = a \
    }
#define OURS(n, a)                                 \
    {                                              \
        .number = n, .attempt = a, .is_ours = true \
    }
#define ENDED(n, a)                                 \
    {                                               \
        .number = n, .attempt = a, .is_ended = true \
    }

TEST(test_tenure__each_rule_of_a_start)
{
    static const struct {
        struct tenure_start start;
        enum tenure_answer answer;
    } cases[] = {
        {{.every_ms = 10}, TENURE_GO}, /* there is none */
        {{.seen = OURS(5, 1), .every_ms = 10}, TENURE_GO},
        {{.seen = ENDED(5, 1), .every_ms = 10}, TENURE_GO},
        {{.seen = FOREIGN(5, 1), .every_ms = 10}, TENURE_WATCH},
        {{.seen = FOREIGN(5, 1), .watched = 5, .watched_ms = 29, .every_ms = 10}, TENURE_WATCH},
        {{.seen = FOREIGN(5, 1), .watched = 5, .watched_ms = 30, .every_ms = 10}, TENURE_GO},
        {{.seen = FOREIGN(6, 1), .watched = 5, .watched_ms = 1, .every_ms = 10}, TENURE_REFUSED},
        {{.seen = FOREIGN(6, 1), .watched = 5, .watched_ms = 99, .every_ms = 10}, TENURE_REFUSED},
        {{.seen = ENDED(6, 1), .watched = 5, .watched_ms = 1, .every_ms = 10}, TENURE_GO},
        {{.seen = FOREIGN(5, 1), .is_forced = true, .every_ms = 10}, TENURE_GO},
        {{.seen = FOREIGN(5, 1), .is_unknown = true, .every_ms = 10}, TENURE_GO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tenure_decide(&cases[i].start), cases[i].answer);
}

TEST(test_tenure__each_rule_of_a_renewal)
{
    static const struct {
        struct tenure_renewal renewal;
        enum tenure_step step;
    } cases[] = {
        {{.attempt = 2, .is_training = true}, TENURE_PUBLISH},
        {{.attempt = 2, .is_training = true, .seen = OURS(7, 2)}, TENURE_PUBLISH},
        {{.attempt = 2, .is_training = true, .seen = OURS(7, 1)}, TENURE_PUBLISH},
        {{.attempt = 2, .is_training = true, .seen = OURS(7, 3)}, TENURE_NOTHING},
        {{.attempt = 2, .is_training = true, .seen = FOREIGN(7, 3)}, TENURE_LOST},
        {{.attempt = 2, .is_training = true, .seen = ENDED(7, 3)}, TENURE_LOST},
        {{.attempt = 2, .is_training = true, .seen = ENDED(7, 1)}, TENURE_PUBLISH},
        {{.attempt = 2, .is_training = true, .seen = FOREIGN(7, 1), .passed = 7}, TENURE_PUBLISH},
        {{.attempt = 2, .is_training = true, .seen = FOREIGN(8, 1), .passed = 7}, TENURE_LOST},
        {{.attempt = 2, .is_training = true, .seen = FOREIGN(8, 1), .passed = 7, .is_forced = true},
         TENURE_PUBLISH},
        {{.attempt = 2, .seen = OURS(7, 2)}, TENURE_END},
        {{.attempt = 2, .seen = OURS(7, 3)}, TENURE_NOTHING}, /* another node's */
        {{.attempt = 2, .seen = FOREIGN(7, 2)}, TENURE_NOTHING},
        {{.attempt = 2, .seen = {7, 2, true, true}}, TENURE_NOTHING},
        {{.attempt = 2}, TENURE_NOTHING},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tenure_renew(&cases[i].renewal), cases[i].step);
}

SUITE(NULL, NULL)
