/* replica.c - selects the compared blocks of a slice, and computes their digest; see replica.h. */
#include "proto/format/replica.h"

#include <string.h>

uint64_t replica_seed(const char *name, uint64_t step)
{
    return checksum_seeded(name, strlen(name), step);
}

struct replica_block replica_block(uint64_t bytes, uint64_t seed, uint32_t index)
{
    uint64_t size = bytes <= REPLICA_WHOLE_BYTES ? REPLICA_BLOCK_BYTES : REPLICA_SAMPLE_BYTES;
    uint64_t count = bytes / size + (bytes % size != 0);
    uint64_t block = index;
    if (index >= REPLICA_BLOCKS || index >= count)
        return (struct replica_block){0, 0};
    if (count > REPLICA_BLOCKS) {
        uint64_t from = (uint64_t)((unsigned __int128)count * index / REPLICA_BLOCKS);
        uint64_t to = (uint64_t)((unsigned __int128)count * (index + 1) / REPLICA_BLOCKS);
        block = from + checksum_seeded(&index, sizeof(index), seed) % (to - from);
    }
    uint64_t first = block * size, left = bytes - first;
    return (struct replica_block){first, left < size ? left : size};
}

void replica_digest_of(struct replica_digest *out, const struct checksum_128 *hashes,
                       uint32_t count)
{
    memset(out, 0, sizeof(*out));
    if (count > 0)
        out->sum = checksum_128(hashes, count * sizeof(*hashes));
    for (uint32_t i = 0; i < count; i++)
        out->marks[i / 4] |= (hashes[i].low & 0xffff) << 16 * (i % 4);
}

void replica_digest(struct replica_digest *out, const void *data, uint64_t bytes, uint64_t seed)
{
    struct checksum_128 hashes[REPLICA_BLOCKS];
    uint32_t count = 0;
    struct replica_block block = replica_block(bytes, seed, 0);
    while (block.bytes > 0) {
        hashes[count++] = checksum_128((const uint8_t *)data + block.first, block.bytes);
        block = replica_block(bytes, seed, count);
    }
    replica_digest_of(out, hashes, count);
}

static uint16_t mark_of(const struct replica_digest *digest, uint32_t block)
{
    return (uint16_t)(digest->marks[block / 4] >> 16 * (block % 4));
}

bool replica_differs(uint32_t *out_block, const struct replica_digest *a,
                     const struct replica_digest *b)
{
    uint32_t block = 0;
    while (block < REPLICA_BLOCKS && mark_of(a, block) == mark_of(b, block))
        block++;
    *out_block = block;
    return a->sum.low != b->sum.low || a->sum.high != b->sum.high;
}
