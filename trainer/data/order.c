/* order.c - the keyed permutation of an epoch and the interleaving of sources (see order.h).
 *
 * The permutation of 0..count-1 needs no memory: a Feistel network on the smallest even number of
 * bits that holds count, whose round function is Philox keyed with (seed, epoch); results of count
 * or more are put through again until one is below (cycle walking: at most four times on average).
 * A Feistel network is a bijection for any round function, and walking the cycles of a bijection of
 * a larger set gives a bijection of the smaller.
 *
 * Interleaving: let T(last) = n and T(i - 1) = floor(T(i) * C(i - 1) / C(i)), where C(i) is the sum
 * of the weights 0..i. Source i has had T(i) - T(i - 1) of n draws. When n grows by one, each T
 * grows by one or stays, so exactly one source gets the draw. */
#include "trainer/data/order.h"

#include "proto/base/report.h"

#define FEISTEL_ROUNDS 6

bool order_init(struct order *out, uint64_t seed, uint64_t count)
{
    uint32_t half_bits = 0;
    while (half_bits < 31 && UINT64_C(1) << (2 * half_bits) < count)
        half_bits++;
    *out = (struct order){random_key(seed, ORDER_STREAM), count, half_bits};
    return count <= UINT64_C(1) << (2 * half_bits);
}

static uint64_t feistel(const struct order *order, uint64_t epoch, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << order->half_bits) - 1;
    uint64_t left = value >> order->half_bits, right = value & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t words[4];
        random_philox(words, epoch, right << 8 | round, order->key);
        uint64_t next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return left << order->half_bits | right;
}

uint64_t order_permute(const struct order *order, uint64_t index)
{
    uint64_t epoch = index / order->count, value = index % order->count;
    do {
        value = feistel(order, epoch, value);
    } while (value >= order->count);
    return value;
}

static uint64_t sum_of(const uint64_t *weights, uint32_t num)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < num; i++)
        sum += weights[i];
    return sum;
}

void order_draws(uint64_t *out_draws, const uint64_t *weights, uint32_t num, uint64_t n)
{
    uint64_t sum = sum_of(weights, num);
    CHECK(sum > 0);
    for (uint32_t i = num; i-- > 0;) {
        uint64_t before = sum - weights[i];
        uint64_t left = sum == 0 ? 0 : (uint64_t)((unsigned __int128)n * before / sum);
        out_draws[i] = n - left;
        n = left;
        sum = before;
    }
}

uint32_t order_source(const uint64_t *weights, uint32_t num, uint64_t n, uint64_t *out_index)
{
    uint64_t sum = sum_of(weights, num), next = n + 1;
    CHECK(sum > 0);
    for (uint32_t i = num; i-- > 0;) {
        uint64_t before = sum - weights[i];
        uint64_t left = sum == 0 ? 0 : (uint64_t)((unsigned __int128)n * before / sum);
        uint64_t next_left = sum == 0 ? 0 : (uint64_t)((unsigned __int128)next * before / sum);
        if (left == next_left) { /* no earlier source gets it */
            *out_index = n - left;
            return i;
        }
        n = left;
        next = next_left;
        sum = before;
    }
    CHECK(false);
}
