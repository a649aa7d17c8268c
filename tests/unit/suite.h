/* suite.h - the tests of a file: TEST names each one once, and they run in the file's order.
 *
 *     TEST(test_ring__a_full_ring_takes_no_more)
 *     {
 *         ...
 *     }
 *
 *     SUITE(NULL, NULL)
 *
 * `state` is cmocka's: the setup of the group, or of the test, sets it. A file that may be skipped
 * has its own main(), which returns 77 or suite_run(). */
#ifndef HOLDFAST_TESTS_SUITE_H
#define HOLDFAST_TESTS_SUITE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SUITE_TESTS_MAX 64

static struct CMUnitTest suite_tests[SUITE_TESTS_MAX];
static size_t suite_num;

static inline void suite_add(struct CMUnitTest test)
{
    if (suite_num < SUITE_TESTS_MAX) /* suite_run() refuses more */
        suite_tests[suite_num] = test;
    suite_num++;
}

#define TEST_BETWEEN(name, setup, teardown)                                                   \
    static void name(void **state);                                                           \
    __attribute__((constructor)) static void suite_add_##name(void)                           \
    {                                                                                         \
        suite_add((struct CMUnitTest)cmocka_unit_test_setup_teardown(name, setup, teardown)); \
    }                                                                                         \
    static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

/* A test whose setup leaves its parameter, a pointer, in `state`. */
#define TEST_WITH(parameter, name, setup, teardown)                                \
    static void name(parameter);                                                   \
    static void with_##name(void **state)                                          \
    {                                                                              \
        name(*state);                                                              \
    }                                                                              \
    __attribute__((constructor)) static void suite_add_##name(void)                \
    {                                                                              \
        suite_add((struct CMUnitTest){#name, with_##name, setup, teardown, NULL}); \
    }                                                                              \
    static void name(parameter)

static inline int suite_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    if (suite_num > SUITE_TESTS_MAX)
        return 1;
    return _cmocka_run_group_tests("tests", suite_tests, suite_num, setup, teardown);
}

#define SUITE(setup, teardown)             \
    int main(void)                         \
    {                                      \
        return suite_run(setup, teardown); \
    }

#endif
