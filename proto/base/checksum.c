/* checksum.c - block checksums, SHA-256 and the layout-free digest (formulas in checksum.h).
 *
 * XXH3 comes from libxxhash, on x86 through its run-time dispatch (AVX-512, AVX2, SSE2).
 * The digest is written once with GCC/Clang vectors of eight 64-bit lanes and compiled for three
 * ISA levels; the best one is chosen at run time. Sums mod 2^64 make the result independent of the
 * level, of alignment and of how the calls cut the tensor. */
#include "proto/base/checksum.h"

#include "proto/base/report.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY /* a hash in pieces has its state on the stack */
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are little-endian");

#define GOLDEN 0x9e3779b97f4a7c15ull
#define MIX_0 0xff51afd7ed558ccdull
#define MIX_1 0xc4ceb9fe1a85ec53ull

/* ---- hashes ---- */

uint64_t checksum_shard_identity(const char *nonce, uint32_t shard, uint32_t shards)
{
    char text[128];
    int length = snprintf(text, sizeof(text), "%s/%" PRIu32 "/%" PRIu32, nonce, shard, shards);
    CHECK(length > 0 && (size_t)length < sizeof(text));
    return checksum_bytes(text, (size_t)length);
}

static uint64_t block_seed(uint64_t identity, uint64_t block_index)
{
    return identity + (block_index + 1) * GOLDEN;
}

uint64_t checksum_block(const void *data, size_t bytes, uint64_t identity, uint64_t block_index)
{
    return checksum_seeded(data, bytes, block_seed(identity, block_index));
}

uint64_t checksum_block_beside(const void *data, size_t bytes, uint64_t identity,
                               uint64_t block_index, checksum_piece_fn *piece, void *user)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    CHECK(XXH3_64bits_reset_withSeed(&state, block_seed(identity, block_index)) == XXH_OK);
    for (size_t at = 0; at < bytes; at += CHECKSUM_PIECE_BYTES) {
        size_t now = bytes - at < CHECKSUM_PIECE_BYTES ? bytes - at : CHECKSUM_PIECE_BYTES;
        piece(user, at, now);
        CHECK(XXH3_64bits_update(&state, (const uint8_t *)data + at, now) == XXH_OK);
    }
    return XXH3_64bits_digest(&state);
}

uint64_t checksum_bytes(const void *data, size_t bytes)
{
    return XXH3_64bits(data, bytes);
}

struct checksum_128 checksum_128(const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (struct checksum_128){hash.low64, hash.high64};
}

struct checksum_stream *checksum_stream_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    CHECK(state == NULL || XXH3_64bits_reset(state) == XXH_OK);
    return (struct checksum_stream *)state;
}

void checksum_stream_add(struct checksum_stream *stream, const void *data, size_t bytes)
{
    CHECK(XXH3_64bits_update((XXH3_state_t *)stream, data, bytes) == XXH_OK);
}

uint64_t checksum_stream_value(const struct checksum_stream *stream)
{
    return XXH3_64bits_digest((const XXH3_state_t *)stream);
}

void checksum_stream_end(struct checksum_stream *stream)
{
    XXH3_freeState((XXH3_state_t *)stream);
}

bool checksum_parse(uint64_t *out, const char *digits)
{
    static const char values[] = "0123456789abcdef";
    *out = 0;
    for (int i = 0; i < CHECKSUM_DIGITS; i++) {
        const char *digit = memchr(values, digits[i], sizeof(values) - 1);
        if (!digit)
            return false;
        *out = *out << 4 | (uint64_t)(digit - values);
    }
    return true;
}

uint64_t checksum_seeded(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

int checksum_sha256_hex(char out[CHECKSUM_SHA256_HEX], const void *data, size_t bytes)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    out[0] = '\0';
    if (EVP_Digest(data, bytes, hash, &length, EVP_sha256(), NULL) != 1)
        return report_error(ERR_MEMORY, NULL, "no memory for a SHA-256, or an OpenSSL without it");
    for (unsigned int i = 0; i < length; i++)
        snprintf(out + 2 * i, 3, "%02x", hash[i]);
    return 0;
}

/* ---- digest ---- */

#define LANES 8
#define TURN (8 * LANES) /* elements per turn of a loop, for each width */
#define LINE 64          /* bytes of a cache line */
/* The loop prefetches this many bytes ahead, also across page ends, where the processor's own
 * prefetcher stops. Of 1, 2, 4 and 8 KiB, 2 were best: 0.109 -> 0.102 CPU seconds per GB. */
#define AHEAD 2048
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

static void add_scalar(struct digest *digest, const uint8_t *data, uint64_t count, uint32_t bytes,
                       uint64_t first)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = 0;
        memcpy(&value, data + i * bytes, bytes);
        uint64_t a = (first + i + 1) * GOLDEN;
        uint64_t b = (a ^ (a >> 32)) * MIX_0;
        uint64_t key = b ^ (b >> 32);
        digest->sum[0] += value * key;
        uint64_t c = key * MIX_1;
        digest->sum[1] += value * (c ^ (c >> 32));
    }
}

/* Group `g` of a turn: one element of each lane. The lanes of a vector hold 8 / width elements
 * each. A shift and a mask select one element per lane as a group; this is cheaper than widening
 * eight neighbours. `index` holds (i + 1) * GOLDEN of the first element of each lane of the
 * turn. */
#define ADD_GROUP(g, width, data, index, sum_0, sum_1)                                         \
    do {                                                                                       \
        enum { EACH = 8 / (width), PART = (g) % EACH, SKIP = (g) / EACH, BITS = 8 * (width) }; \
        lanes raw_, index_ = (index) + (uint64_t)(SKIP * LANES * EACH + PART) * GOLDEN;        \
        memcpy(&raw_, (data) + SKIP * sizeof(raw_), sizeof(raw_));                             \
        raw_ >>= PART * BITS;                                                                  \
        lanes value_ = PART == EACH - 1 ? raw_ : raw_ & ((1ull << BITS) - 1);                  \
        lanes b_ = (index_ ^ (index_ >> 32)) * MIX_0;                                          \
        lanes key_ = b_ ^ (b_ >> 32);                                                          \
        lanes c_ = key_ * MIX_1;                                                               \
        (sum_0) += value_ * key_;                                                              \
        (sum_1) += value_ * (c_ ^ (c_ >> 32));                                                 \
    } while (0)

/* The loop for one element width, with eight groups per turn and two accumulators per key. Returns
 * the number of elements done, a multiple of TURN; the caller adds the rest with add_scalar(). */
#define DEFINE_LOOP(name, width, target)                                                    \
    target static uint64_t name(struct digest *digest, const uint8_t *data, uint64_t count, \
                                uint64_t first)                                             \
    {                                                                                       \
        lanes index = {0, 1, 2, 3, 4, 5, 6, 7};                                             \
        index = (index * (8 / (width)) + first + 1) * GOLDEN;                               \
        lanes even_0 = {0}, even_1 = {0}, odd_0 = {0}, odd_1 = {0};                         \
        uint64_t done = 0;                                                                  \
        for (; done + TURN <= count; done += TURN) {                                        \
            const uint8_t *from = data + done * (width);                                    \
            for (uint32_t line = 0; line < TURN * (width); line += LINE)                    \
                __builtin_prefetch(from + AHEAD + line);                                    \
            ADD_GROUP(0, width, from, index, even_0, even_1);                               \
            ADD_GROUP(1, width, from, index, odd_0, odd_1);                                 \
            ADD_GROUP(2, width, from, index, even_0, even_1);                               \
            ADD_GROUP(3, width, from, index, odd_0, odd_1);                                 \
            ADD_GROUP(4, width, from, index, even_0, even_1);                               \
            ADD_GROUP(5, width, from, index, odd_0, odd_1);                                 \
            ADD_GROUP(6, width, from, index, even_0, even_1);                               \
            ADD_GROUP(7, width, from, index, odd_0, odd_1);                                 \
            index += TURN * GOLDEN;                                                         \
        }                                                                                   \
        even_0 += odd_0;                                                                    \
        even_1 += odd_1;                                                                    \
        for (int lane = 0; lane < LANES; lane++) {                                          \
            digest->sum[0] += even_0[lane];                                                 \
            digest->sum[1] += even_1[lane];                                                 \
        }                                                                                   \
        return done;                                                                        \
    }

#define DEFINE_LEVEL(level, target)          \
    DEFINE_LOOP(loop_u8_##level, 1, target)  \
    DEFINE_LOOP(loop_u16_##level, 2, target) \
    DEFINE_LOOP(loop_u32_##level, 4, target)

typedef uint64_t (*loop_fn)(struct digest *, const uint8_t *, uint64_t, uint64_t);

DEFINE_LEVEL(base, )
#if defined(__x86_64__)
DEFINE_LEVEL(avx2, __attribute__((target("avx2"))))
DEFINE_LEVEL(avx512, __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl"))))
#endif

static loop_fn pick_loop(uint32_t element_bytes)
{
    static const loop_fn base[] = {loop_u8_base, loop_u16_base, loop_u32_base};
    uint32_t width = element_bytes / 2; /* 1, 2, 4 -> 0, 1, 2 */
#if defined(__x86_64__)
    static const loop_fn avx2[] = {loop_u8_avx2, loop_u16_avx2, loop_u32_avx2};
    static const loop_fn avx512[] = {loop_u8_avx512, loop_u16_avx512, loop_u32_avx512};
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return avx512[width];
    if (__builtin_cpu_supports("avx2"))
        return avx2[width];
#endif
    return base[width];
}

void digest_add(struct digest *digest, const void *data, uint64_t count, uint32_t element_bytes,
                uint64_t first)
{
    CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
    if (element_bytes == 8) {
        element_bytes = 4;
        count *= 2;
        first *= 2;
    }
    const uint8_t *bytes = data;
    uint64_t done = pick_loop(element_bytes)(digest, bytes, count, first);
    add_scalar(digest, bytes + done * element_bytes, count - done, element_bytes, first + done);
}

void digest_merge(struct digest *digest, const struct digest *other)
{
    digest->sum[0] += other->sum[0];
    digest->sum[1] += other->sum[1];
}
