/* order.h - the order of samples: pure functions of integers, so the place in the data is a few
 * integers for any number of ranks. README.md in this folder defines the order for other programs.
 *
 * A source has `count` samples. Its draw number i belongs to epoch i / count, and within an epoch
 * every sample comes once, in an order keyed by (seed, epoch).
 *
 * Several sources are interleaved by integer weights: after n draws a source has had a number of
 * them that differs from n * weight / total by less than the number of sources. */
#ifndef HOLDFAST_TRAINER_ORDER_H
#define HOLDFAST_TRAINER_ORDER_H

#include "trainer/data/random.h"

#include <stdbool.h>
#include <stdint.h>

#define ORDER_STREAM "data/order"

struct order {
    struct random_key key;
    uint64_t count;
    uint32_t half_bits; /* of the Feistel network */
};

/* Returns false if there are too many samples (2^62). */
bool order_init(struct order *out, uint64_t seed, uint64_t count);
/* The sample of draw `index`. */
uint64_t order_permute(const struct order *order, uint64_t index);

/* out_draws[i]: the number of the first n draws that are of source i. At least one weight is above
 * 0. */
void order_draws(uint64_t *out_draws, const uint64_t *weights, uint32_t num, uint64_t n);
/* The source of draw n (from 0), and the number of the draw among that source's. */
uint32_t order_source(const uint64_t *weights, uint32_t num, uint64_t n, uint64_t *out_index);

#endif
