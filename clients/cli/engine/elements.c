/* elements.c - element types of tensors, and the conversions between the floating-point ones.
 *
 * Every conversion is rounded once, to nearest with ties to even. NaN stays NaN (quiet, the
 * payload's top bits kept where they fit), infinities stay, overflow becomes infinite, subnormals
 * are exact. Any pair goes through double, which holds all of them exactly. The frequent pairs
 * (float to and from bf16 and half) have special loops with the same results, for AVX-512, AVX2
 * with F16C, or any machine. The best is chosen at run time. */
#include "clients/cli/engine/cli.h"

#include <fnmatch.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static int parse_dtype(bool *out_keep, enum dtype *out, const char *name)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"fp32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {"fp16", DTYPE_F16}};
    *out_keep = strcmp(name, "keep") == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return 0;
        }
    }
    return *out_keep
               ? 0
               : report_error(ERR_INVALID, "keep, fp32, bf16 or fp16", "unknown dtype '%s'", name);
}

/* Parses one "PATTERN=DTYPE" of `length` characters. */
static int parse_exception(struct dtype_rules *out, const char *text, size_t length)
{
    struct dtype_exception *exception = &out->exceptions[out->num_exceptions];
    const char *equals = memchr(text, '=', length);
    char name[8] = "";
    size_t pattern = equals != NULL ? (size_t)(equals - text) : 0;
    size_t rest = length - pattern - (equals != NULL);
    if (pattern == 0 || pattern >= sizeof exception->pattern || rest >= sizeof name)
        return report_error(ERR_INVALID, "such as --except '*norm*=fp32,output.weight=keep'",
                            "--except '%.*s' is not a pattern and a dtype", (int)length, text);
    if (++out->num_exceptions > DTYPE_EXCEPTIONS_MAX)
        return report_error(ERR_INVALID, NULL, "--except takes at most %u patterns",
                            DTYPE_EXCEPTIONS_MAX);
    memcpy(exception->pattern, text, pattern);
    memcpy(name, equals + 1, rest);
    return parse_dtype(&exception->keep, &exception->dtype, name);
}

int pattern_check(const char *option, const char *pattern, const struct layout_table *table)
{
    for (uint32_t i = 0; i < table->num_tensors; i++)
        if (fnmatch(pattern, table->tensors[i].name, 0) == 0)
            return 0;
    return report_error(ERR_INVALID, "`ckpt-cli show` has the names",
                        "%s '%s' matches no tensor of the checkpoint", option, pattern);
}

int dtype_rules_parse(struct dtype_rules *out, const struct cli *cli,
                      const struct layout_table *table)
{
    memset(out, 0, sizeof *out);
    int error = parse_dtype(&out->keep, &out->dtype, cli->dtype);
    for (const char *at = cli->exceptions; *at != '\0' && error == 0;) {
        size_t length = strcspn(at, ",");
        error = parse_exception(out, at, length);
        at += length + (at[length] == ',');
    }
    for (uint32_t i = 0; i < out->num_exceptions && error == 0; i++)
        error = pattern_check("--except", out->exceptions[i].pattern, table);
    return error;
}

enum dtype dtype_rules_apply(const struct dtype_rules *rules, const struct tensor_meta *tensor)
{
    bool keep = rules->keep;
    enum dtype dtype = rules->dtype;
    for (uint32_t i = 0; i < rules->num_exceptions; i++) {
        if (fnmatch(rules->exceptions[i].pattern, tensor->name, 0) != 0)
            continue;
        keep = rules->exceptions[i].keep;
        dtype = rules->exceptions[i].dtype;
        break;
    }
    return keep || !convert_is_float(tensor->dtype) ? tensor->dtype : dtype;
}

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
    /* The hidden bit of a normal number adds one to the exponent field. A carry out of the
     * mantissa, also of a subnormal, increments the exponent. */
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

/* 4 bits of exponent, 3 of mantissa, no infinity: S.1111.111 is NaN (OCP 8-bit Floating Point
 * Specification 1.0). */
static double widen_e4m3(uint8_t bits)
{
    int power = bits >> 3 & 0xf, fraction = bits & 7;
    double out = power == 0 ? fraction * 0x1p-9 : (8 + fraction) * 0x1p-9;
    for (int i = 1; i < power; i++)
        out *= 2;
    if ((bits & 0x7f) == 0x7f)
        out = (double)__builtin_nan("");
    return (bits & 0x80) != 0 ? -out : out;
}

/* Converts a float to a double without arithmetic, because compilers differ in how that quietens a
 * NaN. */
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
    case DTYPE_BOOL:
        return *at;
    case DTYPE_F8_E4M3:
        return widen_e4m3(*at);
    case DTYPE_F8_E5M2: /* the upper half of an F16 */
        return widen_half((uint16_t)(*at << 8));
    case DTYPE_I16:
        memcpy(&two, at, sizeof two);
        return (int16_t)two;
    case DTYPE_U16:
        memcpy(&two, at, sizeof two);
        return two;
    case DTYPE_U32:
        memcpy(&four, at, sizeof four);
        return four;
    case DTYPE_U64:
        memcpy(&eight, at, sizeof eight);
        return (double)(uint64_t)eight;
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

/* ---- the frequent pairs ---- */

typedef void (*convert_fn)(unsigned char *out, const unsigned char *in, uint64_t count);

#define LANES 16
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * LANES)));
typedef uint16_t lanes_u16 __attribute__((vector_size(2 * LANES)));

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

static void widen_from_bf16(unsigned char *out, const unsigned char *in, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t two;
        memcpy(&two, in + 2 * i, sizeof two);
        bool is_nan = (two & 0x7fffu) > 0x7f80u;
        uint32_t bits = (uint32_t)(two | (is_nan ? 0x40u : 0)) << 16;
        memcpy(out + 4 * i, &bits, sizeof bits);
    }
}

/* The two above, LANES at a time. Vector comparisons give all ones for true. */
#define DEFINE_BF16(level, target)                                                          \
    target static void narrow_to_bf16_##level(unsigned char *out, const unsigned char *in,  \
                                              uint64_t count)                               \
    {                                                                                       \
        uint64_t done = 0;                                                                  \
        for (; done + LANES <= count; done += LANES) {                                      \
            lanes_u32 bits;                                                                 \
            memcpy(&bits, in + 4 * done, sizeof bits);                                      \
            lanes_u32 nan = (lanes_u32)((bits & 0x7fffffffu) > 0x7f800000u);                \
            lanes_u32 rounded = bits + 0x7fffu + (bits >> 16 & 1);                          \
            lanes_u32 two = (((bits | 0x400000u) & nan) | (rounded & ~nan)) >> 16;          \
            lanes_u16 narrow_bits = __builtin_convertvector(two, lanes_u16);                \
            memcpy(out + 2 * done, &narrow_bits, sizeof narrow_bits);                       \
        }                                                                                   \
        narrow_to_bf16(out + 2 * done, in + 4 * done, count - done);                        \
    }                                                                                       \
    target static void widen_from_bf16_##level(unsigned char *out, const unsigned char *in, \
                                               uint64_t count)                              \
    {                                                                                       \
        uint64_t done = 0;                                                                  \
        for (; done + LANES <= count; done += LANES) {                                      \
            lanes_u16 two;                                                                  \
            memcpy(&two, in + 2 * done, sizeof two);                                        \
            lanes_u32 bits = __builtin_convertvector(two, lanes_u32) << 16;                 \
            bits |= (lanes_u32)((bits & 0x7fffffffu) > 0x7f800000u) & 0x400000u;            \
            memcpy(out + 4 * done, &bits, sizeof bits);                                     \
        }                                                                                   \
        widen_from_bf16(out + 4 * done, in + 2 * done, count - done);                       \
    }

static void convert_any(unsigned char *out, enum dtype to, const unsigned char *in, enum dtype from,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        store_element(out + i * dtype_bytes(to), to, convert_to_double(in, from, i));
}

#if defined(__x86_64__)
DEFINE_BF16(avx2, __attribute__((target("avx2"))))
DEFINE_BF16(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))

/* F16C rounds to nearest even, also subnormals, and makes NaNs quiet with their top bits. */
__attribute__((target("avx2,f16c"))) static void
narrow_to_half(unsigned char *out, const unsigned char *in, uint64_t count)
{
    uint64_t done = 0;
    for (; done + 8 <= count; done += 8) {
        __m256 wide = _mm256_loadu_ps((const float *)(const void *)(in + 4 * done));
        __m128i half = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(out + 2 * done), half);
    }
    convert_any(out + 2 * done, DTYPE_F16, in + 4 * done, DTYPE_F32, count - done);
}

__attribute__((target("avx2,f16c"))) static void
widen_from_half(unsigned char *out, const unsigned char *in, uint64_t count)
{
    uint64_t done = 0;
    for (; done + 8 <= count; done += 8) {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(in + 2 * done));
        _mm256_storeu_ps((float *)(void *)(out + 4 * done), _mm256_cvtph_ps(half));
    }
    convert_any(out + 4 * done, DTYPE_F32, in + 2 * done, DTYPE_F16, count - done);
}
#endif

/* NULL: no special loop. */
static convert_fn find_loop(enum dtype to, enum dtype from)
{
    bool to_bf16 = to == DTYPE_BF16 && from == DTYPE_F32;
    bool from_bf16 = to == DTYPE_F32 && from == DTYPE_BF16;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && (to_bf16 || from_bf16))
        return to_bf16 ? narrow_to_bf16_avx512 : widen_from_bf16_avx512;
    if (__builtin_cpu_supports("avx2")) {
        if (to_bf16 || from_bf16)
            return to_bf16 ? narrow_to_bf16_avx2 : widen_from_bf16_avx2;
        /* Every processor with AVX2 has F16C. */
        if (to == DTYPE_F16 && from == DTYPE_F32)
            return narrow_to_half;
        if (to == DTYPE_F32 && from == DTYPE_F16)
            return widen_from_half;
    }
#endif
    return to_bf16 ? narrow_to_bf16 : from_bf16 ? widen_from_bf16 : NULL;
}

void convert_elements(void *out, enum dtype to, const void *in, enum dtype from, uint64_t count)
{
    if (to == from) {
        memcpy(out, in, count * dtype_bytes(from));
        return;
    }
    CHECK(convert_is_float(to) && convert_is_float(from));
    convert_fn loop = find_loop(to, from);
    if (loop != NULL)
        loop(out, in, count);
    else
        convert_any(out, to, in, from, count);
}
