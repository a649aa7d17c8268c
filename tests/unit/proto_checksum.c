/* proto_checksum.c - hashes and the layout-free digest.
 *
 * Goal: the stored formulas never change, and the digest depends on the values and their global
 * places alone.
 * Method: golden values that an independent implementation (Python integers, xxhash, hashlib)
 * computed from the formulas in checksum.h; then a plain loop written from the same text, at random
 * lengths, alignments and cuts. The seed is printed; SEED= repeats a run.
 * The source is included whole, because the loops of the ISA levels that this CPU would not choose
 * are static. */
#include "proto/base/checksum.c"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONCE "0123456789abcdef0123456789abcdef"
#define GOLDEN_BYTES 1000

static int print_seed(void **state)
{
    (void)state;
    seed_random();
    return 0;
}

static void fill_golden(uint8_t out[GOLDEN_BYTES])
{
    for (uint32_t i = 0; i < GOLDEN_BYTES; i++)
        out[i] = (uint8_t)(i * i * 31 + i * 7 + 3);
}

/* checksum.h read literally. */
static void add_plain(struct digest *digest, const uint8_t *data, uint64_t count, uint32_t width,
                      uint64_t first)
{
    uint64_t words_per_element = width == 8 ? 2 : 1;
    uint32_t word_bytes = width == 8 ? 4 : width;
    for (uint64_t n = 0; n < count * words_per_element; n++) {
        uint64_t value = 0;
        for (uint32_t b = 0; b < word_bytes; b++)
            value |= (uint64_t)data[n * word_bytes + b] << (8 * b);
        uint64_t i = first * words_per_element + n;
        uint64_t a = (i + 1) * 0x9e3779b97f4a7c15ull;
        uint64_t b = (a ^ (a >> 32)) * 0xff51afd7ed558ccdull;
        uint64_t key_0 = b ^ (b >> 32);
        uint64_t c = key_0 * 0xc4ceb9fe1a85ec53ull;
        digest->sum[0] += value * key_0;
        digest->sum[1] += value * (c ^ (c >> 32));
    }
}

TEST(test_checksum__golden_hashes_are_kept)
{
    uint8_t data[GOLDEN_BYTES];
    char hex[CHECKSUM_SHA256_HEX];
    fill_golden(data);
    uint64_t identity = checksum_shard_identity(NONCE, 2, 8);
    assert_true(identity == 0x2153b2b9a5c45fcfull);
    assert_true(checksum_bytes(data, sizeof(data)) == 0x33702c5eecf0c0aeull);
    assert_true(checksum_block(data, sizeof(data), identity, 0) == 0xbf215564bd8b6bdaull);
    assert_true(checksum_block(data, sizeof(data), identity, 1) == 0x015263de2ac0e160ull);
    assert_true(checksum_block(data, sizeof(data), identity, 77) == 0x8bf25977a7e16c5full);
    checksum_sha256_hex(hex, data, sizeof(data));
    assert_string_equal(hex, "77be3b51125e0c914d26a856aae2ecc64dc1e6034786d76822556c50b1cbc929");
    checksum_sha256_hex(hex, "", 0);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

struct seen {
    const uint8_t *data;
    size_t end; /* of the pieces so far */
    uint32_t pieces;
    struct digest digest;
};

static void see_piece(void *user, size_t at, size_t bytes)
{
    struct seen *seen = user;
    assert_true(at == seen->end && at == seen->pieces * (size_t)CHECKSUM_PIECE_BYTES);
    assert_true(bytes > 0 && bytes <= CHECKSUM_PIECE_BYTES);
    digest_add(&seen->digest, seen->data + at, bytes, 1, at);
    seen->end += bytes;
    seen->pieces++;
}

TEST(test_checksum__pieces_give_the_hash_of_the_block)
{
    static uint8_t block[CHECKSUM_BLOCK_BYTES];
    const size_t piece = CHECKSUM_PIECE_BYTES;
    const size_t sizes[] = {1,
                            16,
                            17,
                            240,
                            241,
                            4096,
                            piece - 1,
                            piece + 1,
                            piece,
                            3 * piece,
                            2 * piece + 240,
                            sizeof(block) - 8,
                            sizeof(block)};
    for (size_t i = 0; i < sizeof(block); i++)
        block[i] = (uint8_t)next_random(256);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct seen seen = {.data = block};
        struct digest whole = {{0, 0}};
        uint64_t identity = next_random(UINT64_MAX), index = next_random(1u << 20);
        uint64_t hash = checksum_block_beside(block, sizes[i], identity, index, see_piece, &seen);
        assert_true(hash == checksum_block(block, sizes[i], identity, index));
        assert_true(seen.end == sizes[i]);
        digest_add(&whole, block, sizes[i], 1, 0);
        assert_memory_equal(&seen.digest, &whole, sizeof(whole));
    }
}

TEST(test_digest__golden_values_are_kept)
{
    static const struct {
        uint32_t width;
        uint64_t first, sum[2];
    } golden[] = {
        {1, 0, {0x788a11e3f5e87f52ull, 0x0c56e1a2d4cd986cull}},
        {1, 0x200000005, {0x03f589ebc0ccc8e5ull, 0x8173cf84596371a5ull}},
        {2, 0, {0xd4066f3100d467d4ull, 0x99819dfad2261f4dull}},
        {2, 0x200000005, {0xc18acadf725fa294ull, 0x852b982ab3f6da45ull}},
        {4, 0, {0x2dc0b0a84b8cd8fbull, 0x48528f17796a4372ull}},
        {4, 0x200000005, {0x4449d6369a4eb108ull, 0xcefba35d3bee8eecull}},
        {8, 0, {0x2dc0b0a84b8cd8fbull, 0x48528f17796a4372ull}},
        {8, 0x200000005, {0x5dd04504b2757dd1ull, 0x8f204ee7352e7b1eull}},
    };
    uint8_t data[GOLDEN_BYTES];
    fill_golden(data);
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct digest digest = {{0, 0}};
        digest_add(&digest, data, sizeof(data) / golden[i].width, golden[i].width, golden[i].first);
        assert_true(digest.sum[0] == golden[i].sum[0]);
        assert_true(digest.sum[1] == golden[i].sum[1]);
    }
}

TEST(test_digest__fast_loops_equal_the_plain_formula)
{
    static uint8_t data[8 * 700 + 64];
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)next_random(256);
    for (uint32_t round = 0; round < 2000; round++) {
        uint32_t width = 1u << next_random(4);
        uint64_t count = next_random(round % 2 ? 700 : 80);
        uint64_t first = next_random(1ull << (1 + next_random(54)));
        uint64_t misalign = next_random(64);
        struct digest fast = {{round, round}}, plain = {{round, round}};
        digest_add(&fast, data + misalign, count, width, first);
        add_plain(&plain, data + misalign, count, width, first);
        assert_memory_equal(&fast, &plain, sizeof(fast));
    }
}

TEST(test_digest__every_isa_level_gives_the_same_sums)
{
    static uint8_t data[4 * 1000];
    static const loop_fn base[] = {loop_u8_base, loop_u16_base, loop_u32_base};
    const loop_fn *levels[3] = {base};
    uint32_t num_levels = 1;
#if defined(__x86_64__)
    static const loop_fn avx2[] = {loop_u8_avx2, loop_u16_avx2, loop_u32_avx2};
    static const loop_fn avx512[] = {loop_u8_avx512, loop_u16_avx512, loop_u32_avx512};
    if (__builtin_cpu_supports("avx2"))
        levels[num_levels++] = avx2;
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        levels[num_levels++] = avx512;
#endif
    print_message("# %u levels\n", num_levels);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)next_random(256);
    for (uint32_t level = 0; level < num_levels; level++) {
        for (uint32_t width = 1; width <= 4; width *= 2) {
            struct digest fast = {{0, 0}}, plain = {{0, 0}};
            uint64_t done = levels[level][width / 2](&fast, data + 3, 900, 12345);
            assert_int_equal(done, 896);
            add_plain(&plain, data + 3, done, width, 12345);
            assert_memory_equal(&fast, &plain, sizeof(fast));
        }
    }
}

SUITE(print_seed, NULL)
