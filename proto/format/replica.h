/* replica.h - the digest by which ranks that hold the same part of a tensor are compared.
 *
 * Which bytes: all of a slice of up to REPLICA_WHOLE_BYTES, in REPLICA_BLOCKS blocks; of a larger
 * one that many blocks of REPLICA_SAMPLE_BYTES, one from each sixteenth of it. Step and name of the
 * tensor choose them, so all ranks choose the same, and each save others.
 *
 * The arithmetic, on two cores of a virtual machine: out of memory a core hashed 256 KiB in 16 us,
 * and 16 pages here and there in 14 to 17 us; a save took 0.7 ns a byte. So a slice of 2.4 MB or
 * more, of which most of a large model consists, costs 1 % of its save or less, and a smaller one
 * at most 9 %: of 256 MiB in 1, 16, 64, 2048 slices a rank hashed for 0.02, 0.3, 1.1, 16 ms, and
 * the save took 150 to 190 ms.
 *
 * A difference in all of a slice, as of ranks that train apart, is found at once. Of one block
 * among n each save finds it with probability 16/n.
 *
 * The digest: XXH3-128 of each block; then XXH3-128 of these hashes, one after the other. Beside it
 * go the low 16 bits of each block's hash, the marks, which tell the first block that differs. */
#ifndef HOLDFAST_PROTO_FORMAT_REPLICA_H
#define HOLDFAST_PROTO_FORMAT_REPLICA_H

#include "proto/base/checksum.h"

#include <stdbool.h>
#include <stdint.h>

#define REPLICA_BLOCKS 16u
#define REPLICA_WHOLE_BYTES 262144u
#define REPLICA_SAMPLE_BYTES 4096u
#define REPLICA_BLOCK_BYTES (REPLICA_WHOLE_BYTES / REPLICA_BLOCKS) /* at most */
#define REPLICA_SLICES_MAX 65536u /* of a rank; those behind them are not compared */

struct replica_digest {
    struct checksum_128 sum;            /* 0, 0: none was made */
    uint64_t marks[REPLICA_BLOCKS / 4]; /* four in each, the first in the lowest bits */
};
#define REPLICA_WORDS 6u /* that it has, on the wire too */
_Static_assert(sizeof(struct replica_digest) == REPLICA_WORDS * sizeof(uint64_t), "the wire's");

uint64_t replica_seed(const char *name, uint64_t step);

/* Block `index` of those that are compared of `bytes`; of 0 bytes: there is none. */
struct replica_block {
    uint64_t first, bytes;
};
struct replica_block replica_block(uint64_t bytes, uint64_t seed, uint32_t index);

void replica_digest(struct replica_digest *out, const void *data, uint64_t bytes, uint64_t seed);
/* The same of the hashes of the blocks, checksum_128() each. */
void replica_digest_of(struct replica_digest *out, const struct checksum_128 *hashes,
                       uint32_t count);
/* Do they differ? *out_block: the first that does; REPLICA_BLOCKS: the marks do not tell. */
bool replica_differs(uint32_t *out_block, const struct replica_digest *a,
                     const struct replica_digest *b);

#endif
