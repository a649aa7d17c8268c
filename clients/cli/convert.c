/* convert.c - element types of tensors, and the conversions between the floating-point ones.
 *
 * Every conversion goes through double, which holds all of them exactly, and is rounded once, to
 * nearest with ties to even. NaN stays NaN (quiet, the payload's top bits kept where they fit),
 * infinities stay, what is too large becomes infinite, subnormals are exact. */
#include "clients/cli/cli.h"

#include <string.h>

bool convert_is_float(enum dtype dtype)
{
    return dtype == DTYPE_F64 || dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

/* The bits of a double as a narrower binary format with `exponent` and `mantissa` bits. */
static uint32_t narrow(uint64_t bits, int exponent, int mantissa)
{
    const int bias = (1 << (exponent - 1)) - 1, top = (1 << exponent) - 1;
    uint32_t sign = (uint32_t)(bits >> 63) << (exponent + mantissa);
    int power = (int)((bits >> 52) & 0x7ff);
    uint64_t fraction = bits & 0xfffffffffffffull;
    if (power == 0x7ff) {
        uint32_t payload = (uint32_t)(fraction >> (52 - mantissa));
        uint32_t quiet = fraction != 0 ? 1u << (mantissa - 1) : 0;
        return sign | (uint32_t)top << mantissa | payload | quiet;
    }
    if (power == 0)
        return sign; /* a subnormal double is far below half of any narrower subnormal */
    fraction |= 1ull << 52;
    int target = power - 1023 + bias;
    int shift = 52 - mantissa;
    if (target < 1) { /* subnormal in the narrow format */
        shift += 1 - target;
        target = 0;
        if (shift > 54)
            return sign;
    }
    uint64_t kept = fraction >> shift;
    uint64_t rest = fraction & ((1ull << shift) - 1), half = 1ull << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1) != 0);
    /* The hidden bit of a normal number adds one to the exponent field; a carry out of the
     * mantissa, also of a subnormal, moves into the exponent by itself. */
    uint64_t value = target == 0 ? kept : kept + ((uint64_t)(target - 1) << mantissa);
    if (value >= (uint64_t)top << mantissa)
        value = (uint64_t)top << mantissa;
    return sign | (uint32_t)value;
}

static double widen_half(uint16_t bits)
{
    int power = bits >> 10 & 0x1f;
    uint64_t fraction = bits & 0x3ff, sign = (uint64_t)(bits >> 15) << 63, wide;
    double out;
    if (power == 0) { /* zero or subnormal: fraction * 2^-24, exact */
        out = (double)fraction * 0x1p-24;
        return sign != 0 ? -out : out;
    }
    wide = sign | (uint64_t)(power == 0x1f ? 0x7ff : power - 15 + 1023) << 52 | fraction << 42;
    memcpy(&out, &wide, sizeof out);
    return out;
}

/* A float as a double without the arithmetic that could quieten a NaN differently by compiler. */
static double widen_float(uint32_t bits)
{
    double out;
    if ((bits & 0x7f800000u) == 0x7f800000u) {
        uint64_t wide = (uint64_t)(bits >> 31) << 63 | 0x7ff0000000000000ull |
                        (uint64_t)(bits & 0x7fffffu) << 29;
        memcpy(&out, &wide, sizeof out);
        return out;
    }
    float narrow_value;
    memcpy(&narrow_value, &bits, sizeof narrow_value);
    return (double)narrow_value;
}

double convert_to_double(const void *in, enum dtype from, uint64_t index)
{
    const unsigned char *at = (const unsigned char *)in + index * dtype_bytes(from);
    uint16_t two;
    uint32_t four;
    int64_t eight;
    double wide;
    switch (from) {
    case DTYPE_U8:
        return *at;
    case DTYPE_I8:
        return (signed char)*at;
    case DTYPE_BF16:
        memcpy(&two, at, sizeof two);
        return widen_float((uint32_t)two << 16);
    case DTYPE_F16:
        memcpy(&two, at, sizeof two);
        return widen_half(two);
    case DTYPE_I32:
        memcpy(&four, at, sizeof four);
        return (int32_t)four;
    case DTYPE_F32:
        memcpy(&four, at, sizeof four);
        return widen_float(four);
    case DTYPE_I64:
        memcpy(&eight, at, sizeof eight);
        return (double)eight;
    case DTYPE_F64:
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    CHECK(!"a dtype of layout.h");
    return 0;
}

static void store_element(unsigned char *at, enum dtype to, double value)
{
    uint64_t bits;
    uint32_t four;
    memcpy(&bits, &value, sizeof bits);
    if (to == DTYPE_F64) {
        memcpy(at, &bits, sizeof bits);
    } else if (to == DTYPE_F32) {
        four = narrow(bits, 8, 23);
        memcpy(at, &four, sizeof four);
    } else {
        uint16_t two = (uint16_t)(to == DTYPE_BF16 ? narrow(bits, 8, 7) : narrow(bits, 5, 10));
        memcpy(at, &two, sizeof two);
    }
}

/* The most frequent conversion, without the detour through double: the same bits, many times
 * faster. */
static void narrow_to_bf16(unsigned char *out, const unsigned char *in, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, in + 4 * i, sizeof bits);
        bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
        uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
        uint16_t two = (uint16_t)(is_nan ? bits >> 16 | 0x40u : rounded >> 16);
        memcpy(out + 2 * i, &two, sizeof two);
    }
}

void convert_elements(void *out, enum dtype to, const void *in, enum dtype from, uint64_t count)
{
    if (to == from) {
        memcpy(out, in, count * dtype_bytes(from));
        return;
    }
    CHECK(convert_is_float(to) && convert_is_float(from));
    if (to == DTYPE_BF16 && from == DTYPE_F32) {
        narrow_to_bf16(out, in, count);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        store_element((unsigned char *)out + i * dtype_bytes(to), to,
                      convert_to_double(in, from, i));
}
