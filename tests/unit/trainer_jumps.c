/* trainer_jumps.c - samples that a run skips.
 *
 * Goal: reading continues after them wherever it reaches them, also after several. The list
 * survives a checkpoint; other text is refused. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/data/jumps.h"

#include <string.h>

TEST(test_jumps__reading_goes_on_behind_all_of_them)
{
    /* The second skip begins right after the first; the sample skipped first comes later. */
    const struct jumps jumps = {.num = 3, .of = {{42, 6}, {12, 6}, {48, 6}}};
    static const uint64_t cases[][2] = {{0, 0},   {11, 11}, {12, 18}, {17, 18}, {18, 18},
                                        {41, 41}, {42, 54}, {47, 54}, {48, 54}, {54, 54}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(jumps_pass(&jumps, cases[i][0]), cases[i][1]);
    json_t *json = jumps_json(&jumps);
    struct jumps read;
    memset(&read, 0xff, sizeof(read));
    assert_int_equal(jumps_read(&read, json), 0);
    json_decref(json);
    assert_memory_equal(&read, &jumps, sizeof(jumps));
}

TEST(test_jumps__what_is_no_list_is_refused)
{
    static const char *const texts[] = {"[[3]]",
                                        "[3, 4]",
                                        "[[-1, 2]]",
                                        "[[1, 0]]",
                                        "{\"first\": 3}",
                                        "[[1, \"2\"]]",
                                        "[[1, 9223372036854775807]]"};
    struct jumps jumps;
    assert_int_equal(jumps_read(&jumps, NULL), 0);
    assert_int_equal(jumps.num, 0);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *json = json_loads(texts[i], 0, NULL);
        assert_non_null(json);
        assert_int_equal(jumps_read(&jumps, json), ERR_CORRUPT);
        json_decref(json);
        assert_int_equal(jumps.num, 0);
    }
}

SUITE(NULL, NULL)
