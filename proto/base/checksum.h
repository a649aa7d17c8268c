/* checksum.h - checksums that verify stored bytes.
 *
 * Blocks of a shard: XXH3-64 with a seed made of the shard's identity and the block's index, which
 * detects a swapped block and a block of another checkpoint:
 *     seed = identity + (block_index + 1) * 0x9e3779b97f4a7c15
 * Manifests: SHA-256 (OpenSSL).
 *
 * Tensors: a digest that does not depend on how the tensor is cut. It is two sums, mod 2^64, of
 * value_bits * key_k(global element index). value_bits are the element's bits, zero-extended. The
 * keys are a 64-bit mix of the index i (golden ratio and the constants of MurmurHash3's finalizer):
 *     a = (i + 1) * 0x9e3779b97f4a7c15
 *     b = (a ^ (a >> 32)) * 0xff51afd7ed558ccd        key_0 = b ^ (b >> 32)
 *     c = key_0 * 0xc4ceb9fe1a85ec53                  key_1 = c ^ (c >> 32)
 * An element of 8 bytes counts as two elements of 4 bytes (low word first) at 2i and 2i + 1. With
 * values of at most 32 bits the upper half of the key contributes, so no change of a single element
 * is lost in the top bits. The digest misses one wrong element with probability 2^-64 at most over
 * the choice of index. */
#ifndef HOLDFAST_PROTO_BASE_CHECKSUM_H
#define HOLDFAST_PROTO_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_BLOCK_BYTES (1u << 20)
#define CHECKSUM_SHA256_HEX 65 /* 64 digits and the terminator */
#define CHECKSUM_DIGITS 16     /* of a u64 in a text: "%016" PRIx64 */

/* Identity of a shard: XXH3-64 of "<nonce>/<shard index>/<shards>". */
uint64_t checksum_shard_identity(const char *nonce, uint32_t shard, uint32_t shards);
uint64_t checksum_block(const void *data, size_t bytes, uint64_t identity, uint64_t block_index);
/* The checksum of a block that another reader processes too. The function calls `piece` just before
 * it hashes each piece, in order, so both find the piece in the cache. Pieces are of
 * CHECKSUM_PIECE_BYTES, the last one may be shorter. Digest and checksum of a GB took 0.127 CPU
 * seconds with pieces of 32 KiB, 0.130 with 128 KiB, 0.161 with 512 KiB and more, where both read
 * from memory (2 MiB of second-level cache). */
#define CHECKSUM_PIECE_BYTES (128u << 10)
typedef void checksum_piece_fn(void *user, size_t at, size_t bytes);
uint64_t checksum_block_beside(const void *data, size_t bytes, uint64_t identity,
                               uint64_t block_index, checksum_piece_fn *piece, void *user);
uint64_t checksum_bytes(const void *data, size_t bytes); /* plain XXH3-64 */
struct checksum_128 {
    uint64_t low, high;
};
struct checksum_128 checksum_128(const void *data, size_t bytes); /* plain XXH3-128 */
/* The same for bytes that come in pieces. begin: NULL when there is no memory; end frees the
 * state. */
struct checksum_stream;
struct checksum_stream *checksum_stream_begin(void);
void checksum_stream_add(struct checksum_stream *stream, const void *data, size_t bytes);
uint64_t checksum_stream_value(const struct checksum_stream *stream);
void checksum_stream_end(struct checksum_stream *stream);
/* Parses a u64 of CHECKSUM_DIGITS digits, without a terminator. False: one is no digit, and *out is
 * undefined. */
bool checksum_parse(uint64_t *out, const char *digits);
/* XXH3-64 with a seed: a client that does not know the seed cannot choose data that collide in a
 * hash table. */
uint64_t checksum_seeded(const void *data, size_t bytes, uint64_t seed);
/* ERR_MEMORY: OpenSSL failed; `out` is "". */
int checksum_sha256_hex(char out[CHECKSUM_SHA256_HEX], const void *data, size_t bytes);

struct digest {
    uint64_t sum[2];
};
/* Adds `count` consecutive elements of `element_bytes` (1, 2, 4 or 8) starting at global element
 * index `first`. `data` need not be aligned. Order and grouping of calls do not change the result.
 */
void digest_add(struct digest *digest, const void *data, uint64_t count, uint32_t element_bytes,
                uint64_t first);
void digest_merge(struct digest *digest, const struct digest *other);

#endif
