/* proto_stream_copy.c - copies past the cache.
 *
 * Goal: every length at every alignment copies its bytes, and no others. Method: comparison with
 * memcpy, in a buffer with a border of known bytes. */
#include "proto/base/stream_copy.h"
#include "tests/unit/suite.h"

#include <stdlib.h>
#include <string.h>

TEST(test_stream_copy__copies_what_was_asked_for_and_nothing_beside_it)
{
    static uint8_t from[17 * 4096 + 200], to[sizeof(from)], expected[sizeof(from)];
    const uint64_t lengths[] = {0,     1,     63,    64,    4095,  4096,  4097,  4159, 4160,
                                12288, 12289, 32767, 32768, 32769, 32960, 65537, 69632};
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 7 + i / 256 + i / 65536 * 31);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        for (uint32_t place = 0; place < 70; place += 3) {
            uint32_t source = place * 5 % 67;
            memset(to, 0xee, sizeof(to));
            memset(expected, 0xee, sizeof(expected));
            memcpy(expected + place, from + source, lengths[i]);
            stream_copy(to + place, from + source, lengths[i]);
            assert_memory_equal(to, expected, sizeof(to));
        }
}

SUITE(NULL, NULL)
