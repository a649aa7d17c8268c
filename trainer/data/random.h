/* random.h - counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11), indexed by the
 * global element, so a value depends neither on the rank that draws it nor on the order. */
#ifndef HOLDFAST_RANDOM_H
#define HOLDFAST_RANDOM_H

#include <stdint.h>

struct random_key {
    uint32_t key[2];
};
/* Key for a named stream of a seed ("init/layers.0.attention.wq.weight"). */
struct random_key random_key(uint64_t seed, const char *stream);
void random_philox(uint32_t out[4], uint64_t counter_high, uint64_t counter, struct random_key key);
/* Normal deviate number `index` of the stream (Box-Muller in double, rounded to float). */
float random_normal(struct random_key key, uint64_t index);
/* Deviates first .. first + count - 1, as random_normal(); half the work each, since they come in
 * pairs. */
void random_normals(float *out, struct random_key key, uint64_t first, uint64_t count);

#endif
