/* clients_elements.c - element types of ckpt-cli.
 *
 * Goal: an export rounds to nearest, ties to even, exactly once, and never turns a number into a
 * NaN or back. Method: every bf16 and every half is widened and narrowed again; every pair of
 * neighbours of the narrow formats is tried at the midpoint and one double beside it; floats go
 * against the hardware; the loops for many elements against single ones. */
#include "clients/cli/engine/cli.h"
#include "tests/unit/suite.h"

#include <math.h>
#include <string.h>

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

TEST(test_convert__every_bf16_and_half_survives_the_way_through_double)
{
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

TEST(test_convert__ties_go_to_even_and_all_else_to_the_nearest)
{
    check_every_midpoint(DTYPE_BF16, 0x7f80);
    check_every_midpoint(DTYPE_F16, 0x7c00);
}

TEST(test_convert__what_is_too_large_becomes_infinite)
{
    assert_int_equal(narrow(65519.99, DTYPE_F16), 0x7bff); /* the largest half is 65504 */
    assert_int_equal(narrow(65520, DTYPE_F16), 0x7c00);
    assert_int_equal(narrow(-1e300, DTYPE_F16), 0xfc00);
    assert_int_equal(narrow(1e300, DTYPE_BF16), 0x7f80);
    assert_int_equal(narrow(INFINITY, DTYPE_BF16), 0x7f80);
    assert_int_equal(narrow(1e-300, DTYPE_F16), 0);
    assert_int_equal(narrow(-1e-300, DTYPE_BF16), 0x8000);
    assert_int_equal(narrow(0x1p-1074, DTYPE_F16), 0);
}

TEST(test_convert__double_to_float_equals_the_hardware)
{
    uint64_t bits = 88172645463325252ull;
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

/* Many elements at once against one by one through double, which the tests above prove; from any
 * address, and with every number of elements left over by a loop of whole vectors. */
static void check_many(enum dtype to, enum dtype from)
{
    enum { MOST = 4096 };
    static unsigned char in[8 * MOST + 8], out[8 * MOST + 8];
    uint32_t size_in = dtype_bytes(from), size_out = dtype_bytes(to), bits = 1;
    for (uint32_t round = 0; round < 400; round++) {
        uint32_t count = round < 70 ? round : MOST, shift = round % 5;
        for (uint32_t i = 0; i < count; i++) {
            bits = bits * 1664525u + 1013904223u;
            /* Ties, NaNs, infinities and subnormals come often enough by themselves in 16 bits. */
            uint32_t value = round % 3 == 0   ? (bits & 0xffff0000u) | 0x8000u
                             : round % 3 == 1 ? (bits & 0x807fe000u) | (bits % 60 + 90) << 23
                                              : bits;
            value = size_in == 2 ? bits >> 16 : value;
            memcpy(in + shift + i * size_in, &value, size_in);
        }
        convert_elements(out + shift, to, in + shift, from, count);
        for (uint32_t i = 0; i < count; i++) {
            double value = convert_to_double(in + shift, from, i);
            uint32_t got = 0, want = 0;
            memcpy(&got, out + shift + i * size_out, size_out);
            convert_elements(&want, to, &value, DTYPE_F64, 1);
            assert_int_equal(got, want);
        }
    }
}

TEST(test_convert__many_at_once_have_the_bits_of_one_by_one)
{
    check_many(DTYPE_BF16, DTYPE_F32);
    check_many(DTYPE_F16, DTYPE_F32);
    check_many(DTYPE_F32, DTYPE_BF16);
    check_many(DTYPE_F32, DTYPE_F16);
    check_many(DTYPE_BF16, DTYPE_F16);
    check_many(DTYPE_F16, DTYPE_BF16);
}

TEST(test_convert__integers_become_doubles_with_their_sign)
{
    const signed char i8 = -7;
    const int32_t i32 = -2000000000;
    const int64_t i64 = -5000000000;
    const unsigned char u8 = 250;
    assert_true(convert_to_double(&i8, DTYPE_I8, 0) == -7);
    assert_true(convert_to_double(&i32, DTYPE_I32, 0) == -2e9);
    assert_true(convert_to_double(&i64, DTYPE_I64, 0) == -5e9);
    assert_true(convert_to_double(&u8, DTYPE_U8, 0) == 250);
    const int16_t i16 = -30000;
    const uint16_t u16 = 60000;
    const uint32_t u32 = 4000000000u;
    const uint64_t u64 = 1ull << 63;
    const unsigned char yes = 1;
    assert_true(convert_to_double(&i16, DTYPE_I16, 0) == -30000);
    assert_true(convert_to_double(&u16, DTYPE_U16, 0) == 60000);
    assert_true(convert_to_double(&u32, DTYPE_U32, 0) == 4e9);
    assert_true(convert_to_double(&u64, DTYPE_U64, 0) == 0x1p63);
    assert_true(convert_to_double(&yes, DTYPE_BOOL, 0) == 1);
}

/* The limits of both formats as OCP's specification of them gives them (its table 1). */
TEST(test_convert__floats_of_8_bits_have_the_values_of_their_specification)
{
    const unsigned char e4m3[] = {0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0xfe, 0x7f};
    const double e4m3_is[] = {0, 0x1p-9, 0.875 * 0x1p-6, 0x1p-6, 1, 448, -448, 0};
    for (uint64_t i = 0; i + 1 < sizeof e4m3; i++)
        assert_true(convert_to_double(e4m3, DTYPE_F8_E4M3, i) == e4m3_is[i]);
    assert_true(isnan(convert_to_double(e4m3, DTYPE_F8_E4M3, sizeof e4m3 - 1)));
    const unsigned char e5m2[] = {0x00, 0x01, 0x04, 0x3c, 0x7b, 0xfc, 0x7d};
    const double e5m2_is[] = {0, 0x1p-16, 0x1p-14, 1, 57344, -INFINITY, 0};
    for (uint64_t i = 0; i + 1 < sizeof e5m2; i++)
        assert_true(convert_to_double(e5m2, DTYPE_F8_E5M2, i) == e5m2_is[i]);
    assert_true(isnan(convert_to_double(e5m2, DTYPE_F8_E5M2, sizeof e5m2 - 1)));
}

SUITE(NULL, NULL)
