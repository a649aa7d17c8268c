/* proto_json - numbers as they are written, and places where two texts differ.
 *
 * Goal: a number is written with the fewest digits that read back as the same bits. Every place in
 * which two values differ is reported once, by its name. Method: texts of objects that hold numbers
 * in every kind of place; pairs of texts, and the line that reports their differences. */
#include "proto/base/json.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void written(const char *text, const char *want)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    char *got = json_dumps(value, JSON_COMPACT | json_shortest(value));
    assert_string_equal(got, want);
    free(got);
    json_decref(value);
}

TEST(test_json__a_number_has_the_digits_that_it_needs)
{
    written("{\"eps\":1e-06,\"theta\":500000.0}", "{\"eps\":1e-6,\"theta\":500000.0}");
    written("[[0.1,{\"lr\":8e-4}],7]", "[[0.1,{\"lr\":0.0008}],7]");
    written("{\"a\":[1,{\"loss\":1.0000000000000002}]}",
            "{\"a\":[1,{\"loss\":1.0000000000000002}]}");
    written("[0.30000000000000004]", "[0.30000000000000004]");
}

TEST(test_json__every_number_reads_back_the_same)
{
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

static int tell(void *user, const char *place, const json_t *a, const json_t *b)
{
    char *left = a != NULL ? json_dumps(a, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    char *right = b != NULL ? json_dumps(b, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    size_t length = strlen(user);
    snprintf((char *)user + length, 1000 - length, "%s:%s|%s ", place, left != NULL ? left : "-",
             right != NULL ? right : "-");
    free(left);
    free(right);
    return 0;
}

static void differing(const char *a, const char *b, const char *want)
{
    char got[1000] = "";
    json_t *left = json_loads(a, 0, NULL), *right = json_loads(b, 0, NULL);
    assert_non_null(left);
    assert_non_null(right);
    assert_int_equal(json_compare(left, right, tell, got), 0);
    assert_string_equal(got, want);
    json_decref(left);
    json_decref(right);
}

TEST(test_json__each_place_that_differs_is_told_by_its_name)
{
    differing("{\"a\":{\"b\":1,\"c\":[1,2]}}", "{\"a\":{\"c\":[1,2],\"b\":1}}", "");
    differing("{\"a\":{\"b\":1,\"c\":[1]},\"d\":0}", "{\"a\":{\"b\":2,\"c\":[2]},\"d\":0}",
              "a.b:1|2 a.c:[1]|[2] ");
    differing("{\"one\":{\"x\":1}}", "{\"two\":{\"y\":{\"z\":\"\"}}}", "one.x:1|- two.y.z:-|\"\" ");
    differing("{\"a\":{\"b\":1}}", "{\"a\":7}", "a:{\"b\":1}|7 ");
}

SUITE(NULL, NULL)
