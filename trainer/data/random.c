/* random.c - Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products and a key that walks by
 * the golden ratio and sqrt(3) - 1, as published by Salmon et al., "Parallel random numbers: as
 * easy as 1, 2, 3" (SC'11). The unit test compares it with the known answers of the authors'
 * Random123.
 *
 * A stream is named: its key is a hash of (seed, name). Element i of a stream is a pure function of
 * (key, i), so ranks draw their slices of a tensor independently. Thread safe: no state. */
#include "trainer/data/random.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <math.h>
#include <string.h>

#define STREAM_BYTES_MAX 256 /* a longer stream name is a programming error */
#define PHILOX_ROUNDS 10
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

struct random_key random_key(uint64_t seed, const char *stream)
{
    unsigned char bytes[8 + STREAM_BYTES_MAX];
    size_t length = strlen(stream);
    CHECK(length <= STREAM_BYTES_MAX);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(seed >> (8 * i));
    memcpy(bytes + 8, stream, length);
    uint64_t hash = checksum_bytes(bytes, 8 + length);
    return (struct random_key){{(uint32_t)hash, (uint32_t)(hash >> 32)}};
}

void random_philox(uint32_t out[4], uint64_t counter_high, uint64_t counter, struct random_key key)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)counter_high, c3 = (uint32_t)(counter_high >> 32);
    uint32_t k0 = key.key[0], k1 = key.key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The 53 high bits of two words as a number of (0, 1]: never 0, so its logarithm is finite. */
static double unit_open(uint32_t high, uint32_t low)
{
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;
    return ((double)bits + 0.5) * 0x1p-53;
}

/* One block of four words makes a pair of deviates: the even index takes the cosine. */
struct polar {
    double radius, angle;
};

static struct polar draw_pair(struct random_key key, uint64_t pair)
{
    uint32_t words[4];
    random_philox(words, 0, pair, key);
    return (struct polar){sqrt(-2.0 * log(unit_open(words[0], words[1]))),
                          6.283185307179586476925 * unit_open(words[2], words[3])};
}

float random_normal(struct random_key key, uint64_t index)
{
    struct polar p = draw_pair(key, index / 2);
    return (float)(p.radius * (index % 2 == 0 ? cos(p.angle) : sin(p.angle)));
}

void random_normals(float *out, struct random_key key, uint64_t first, uint64_t count)
{
    uint64_t i = 0;
    if (first % 2 == 1 && count > 0)
        out[i++] = random_normal(key, first);
    for (; i + 2 <= count; i += 2) {
        struct polar p = draw_pair(key, (first + i) / 2);
        out[i] = (float)(p.radius * cos(p.angle));
        out[i + 1] = (float)(p.radius * sin(p.angle));
    }
    if (i < count)
        out[i] = random_normal(key, first + i);
}
