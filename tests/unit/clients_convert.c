/* clients_convert.c - element types of ckpt-cli.
 *
 * Goal: an export rounds to nearest, ties to even, exactly once, and never turns a number into a
 * NaN or back. Method: every bf16 and every half is widened and narrowed again; every pair of
 * neighbours of the narrow formats is tried at the midpoint and one double beside it; floats go
 * against the hardware. */
#include "clients/cli/cli.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static double widen(uint16_t bits, enum dtype dtype)
{
    return convert_to_double(&bits, dtype, 0);
}

static uint16_t narrow(double value, enum dtype dtype)
{
    uint16_t out = 0;
    convert_elements(&out, dtype, &value, DTYPE_F64, 1);
    return out;
}

static void check_every_pattern(enum dtype dtype, uint16_t infinity)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        double value = widen((uint16_t)bits, dtype);
        bool is_nan = (bits & 0x7fffu) > infinity;
        assert_int_equal(isnan(value), is_nan);
        uint16_t back = narrow(value, dtype);
        if (is_nan)
            assert_true((back & 0x7fffu) > infinity && (back & 0x8000u) == (bits & 0x8000u));
        else
            assert_int_equal(back, bits);
    }
}

static void test_convert__every_bf16_and_half_survives_the_way_through_double(void **state)
{
    (void)state;
    check_every_pattern(DTYPE_BF16, 0x7f80);
    check_every_pattern(DTYPE_F16, 0x7c00);
}

/* Between two neighbours: below the middle down, above it up, on it to the even one. */
static void check_every_midpoint(enum dtype dtype, uint16_t infinity)
{
    for (uint16_t low = 0; low + 1 < infinity; low++) {
        double middle = (widen(low, dtype) + widen(low + 1, dtype)) / 2; /* exact in double */
        uint16_t even = low % 2 == 0 ? low : (uint16_t)(low + 1);
        assert_int_equal(narrow(middle, dtype), even);
        assert_int_equal(narrow(nextafter(middle, 0), dtype), low);
        assert_int_equal(narrow(nextafter(middle, INFINITY), dtype), low + 1);
        assert_int_equal(narrow(-middle, dtype), even | 0x8000);
    }
}

static void test_convert__ties_go_to_even_and_all_else_to_the_nearest(void **state)
{
    (void)state;
    check_every_midpoint(DTYPE_BF16, 0x7f80);
    check_every_midpoint(DTYPE_F16, 0x7c00);
}

static void test_convert__what_is_too_large_becomes_infinite(void **state)
{
    (void)state;
    assert_int_equal(narrow(65519.99, DTYPE_F16), 0x7bff); /* the largest half is 65504 */
    assert_int_equal(narrow(65520, DTYPE_F16), 0x7c00);
    assert_int_equal(narrow(-1e300, DTYPE_F16), 0xfc00);
    assert_int_equal(narrow(1e300, DTYPE_BF16), 0x7f80);
    assert_int_equal(narrow(INFINITY, DTYPE_BF16), 0x7f80);
    assert_int_equal(narrow(1e-300, DTYPE_F16), 0);
    assert_int_equal(narrow(-1e-300, DTYPE_BF16), 0x8000);
    assert_int_equal(narrow(0x1p-1074, DTYPE_F16), 0);
}

static void test_convert__double_to_float_equals_the_hardware(void **state)
{
    uint64_t bits = 88172645463325252ull;
    (void)state;
    for (int i = 0; i < 2000000; i++) {
        double value;
        float ours, theirs;
        bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
        uint64_t near = (bits & ~(0x7ffull << 52)) | (860 + bits % 300)
                                                         << 52; /* near float's range */
        memcpy(&value, &near, sizeof value);
        convert_elements(&ours, DTYPE_F32, &value, DTYPE_F64, 1);
        theirs = (float)value;
        assert_memory_equal(&ours, &theirs, sizeof ours);
    }
}

static void test_convert__the_fast_way_from_float_to_bf16_is_the_same(void **state)
{
    uint32_t bits = 1;
    (void)state;
    for (int i = 0; i < 4000000; i++) {
        bits = i < 65536 ? (uint32_t)i << 16 | 0x8000u : bits * 1664525u + 1013904223u;
        uint16_t fast;
        float value;
        memcpy(&value, &bits, sizeof value);
        convert_elements(&fast, DTYPE_BF16, &value, DTYPE_F32, 1);
        assert_int_equal(fast, narrow(convert_to_double(&bits, DTYPE_F32, 0), DTYPE_BF16));
    }
}

static void test_convert__integers_become_doubles_with_their_sign(void **state)
{
    const signed char i8 = -7;
    const int32_t i32 = -2000000000;
    const int64_t i64 = -5000000000;
    const unsigned char u8 = 250;
    (void)state;
    assert_true(convert_to_double(&i8, DTYPE_I8, 0) == -7);
    assert_true(convert_to_double(&i32, DTYPE_I32, 0) == -2e9);
    assert_true(convert_to_double(&i64, DTYPE_I64, 0) == -5e9);
    assert_true(convert_to_double(&u8, DTYPE_U8, 0) == 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert__every_bf16_and_half_survives_the_way_through_double),
        cmocka_unit_test(test_convert__ties_go_to_even_and_all_else_to_the_nearest),
        cmocka_unit_test(test_convert__what_is_too_large_becomes_infinite),
        cmocka_unit_test(test_convert__double_to_float_equals_the_hardware),
        cmocka_unit_test(test_convert__the_fast_way_from_float_to_bf16_is_the_same),
        cmocka_unit_test(test_convert__integers_become_doubles_with_their_sign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
