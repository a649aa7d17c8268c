/* exact.c - sums of doubles without rounding, so that the result does not depend on their order or
 * split.
 *
 * A fixed-point number as wide as the whole range of double (Kulisch). Digit i has the weight 2^(32
 * i - 1074) and is an int64 limb. A limb cannot overflow before 2^31 values were added, here or
 * limb by limb across ranks. Only kernel_exact_value propagates carries. A value changes at most
 * three digits. Values are not negative. The last two limbs count infinities and NaNs, which digits
 * cannot represent: the result shows them for any other values. */
#include <math.h>

#include "kernels/cpu/items.h"

#define DIGITS 67 /* (1074 + 1024) / 32, and one for carries out of the largest double */
#define LIMB_INFINITY (KERNEL_EXACT_LIMBS - 2)
#define LIMB_NAN (KERNEL_EXACT_LIMBS - 1)
#define DIGITS_ALL LIMB_INFINITY
_Static_assert(DIGITS < DIGITS_ALL, "room for carries above the largest double");

void exact_add(struct kernel_exact_sum *sum, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ff;
    uint64_t mantissa = bits & (((uint64_t)1 << 52) - 1);
    if (exponent == 0x7ff) {
        sum->limb[mantissa ? LIMB_NAN : LIMB_INFINITY]++;
        return;
    }
    REQUIRE(bits >> 63 == 0 || mantissa + exponent == 0);
    if (exponent > 0)
        mantissa |= (uint64_t)1 << 52;
    unsigned shift = exponent > 0 ? exponent - 1 : 0; /* of bit 0, in units of 2^-1074 */
    unsigned digit = shift / 32;
    unsigned __int128 wide = (unsigned __int128)mantissa << (shift % 32);
    for (int i = 0; i < 3; i++)
        sum->limb[digit + (unsigned)i] += (int64_t)(uint32_t)(wide >> (32 * i));
}

void exact_merge(struct kernel_exact_sum *sum, const struct kernel_exact_sum *other)
{
    for (int i = 0; i < KERNEL_EXACT_LIMBS; i++)
        sum->limb[i] += other->limb[i];
}

/* Rounds once, to nearest even. */
double kernel_exact_value(const struct kernel_exact_sum *sum)
{
    if (sum->limb[LIMB_NAN] != 0)
        return (double)NAN;
    if (sum->limb[LIMB_INFINITY] != 0)
        return (double)INFINITY;
    uint32_t digit[DIGITS_ALL];
    int64_t carry = 0;
    int top = -1;
    for (int i = 0; i < DIGITS_ALL; i++) {
        int64_t total = sum->limb[i] + carry;
        digit[i] = (uint32_t)total;
        carry = total >> 32;
        if (digit[i] != 0)
            top = i;
    }
    if (carry != 0) /* 2^1166 and more: such sums do not occur */
        return (double)INFINITY;
    if (top < 0)
        return 0;
    /* The top 64 bits, then one sticky bit for everything below, then one conversion. */
    unsigned __int128 wide = 0;
    for (int i = 0; i < 4; i++)
        wide = wide << 32 | (top - i >= 0 ? digit[top - i] : 0);
    int drop = 64 - __builtin_clz(digit[top]);
    uint64_t head = (uint64_t)(wide >> drop);
    bool rest = (wide & (((unsigned __int128)1 << drop) - 1)) != 0;
    for (int i = 0; i < top - 3; i++)
        rest = rest || digit[i] != 0;
    return ldexp((double)(head | rest), 32 * (top - 3) + drop - 1074);
}
