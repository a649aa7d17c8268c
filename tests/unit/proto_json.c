/* proto_json - numbers as they are written.
 *
 * Goal: a number is written with the fewest digits that read back as the same bits. Method: texts
 * of objects that hold numbers in every kind of place. */
#include "proto/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void written(const char *text, const char *want)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    char *got = json_dumps(value, JSON_COMPACT | json_shortest(value));
    assert_string_equal(got, want);
    free(got);
    json_decref(value);
}

static void test_json__a_number_has_the_digits_that_it_needs(void **state)
{
    (void)state;
    written("{\"eps\":1e-06,\"theta\":500000.0}", "{\"eps\":1e-6,\"theta\":500000.0}");
    written("[[0.1,{\"lr\":8e-4}],7]", "[[0.1,{\"lr\":0.0008}],7]");
    written("{\"a\":[1,{\"loss\":1.0000000000000002}]}",
            "{\"a\":[1,{\"loss\":1.0000000000000002}]}");
    written("[0.30000000000000004]", "[0.30000000000000004]");
}

static void test_json__every_number_reads_back_the_same(void **state)
{
    (void)state;
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        double number = (double)(bits >> 11) / (double)(1u << (i % 31));
        json_t *value = json_pack("[f]", number);
        char *text = json_dumps(value, json_shortest(value));
        json_t *back = json_loads(text, 0, NULL);
        assert_true(json_real_value(json_array_get(back, 0)) == number);
        json_decref(back);
        json_decref(value);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json__a_number_has_the_digits_that_it_needs),
        cmocka_unit_test(test_json__every_number_reads_back_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
