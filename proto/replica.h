/* replica.h - the digest by which ranks that hold the same part of a tensor are compared.
 *
 * Which bytes: all of a slice of up to REPLICA_BLOCKS blocks of REPLICA_BLOCK_BYTES (256 KiB); of a
 * larger one that many blocks, one from each sixteenth of it. Step and name of the tensor choose
 * them, so all ranks choose the same, and each save others.
 *
 * The arithmetic: a core hashed such 16 blocks out of memory in 43 us (6 GB/s; two cores of a
 * virtual machine), and a save took 0.9 ns a byte. So a slice of 4.8 MB or more, of which most of a
 * large model consists, costs 1 % of its save or less, and a smaller one at most 7 %: of 256 MiB in
 * 1, 16, 64, 2048 slices a rank hashed for 0.05, 0.7, 2.7, 16 ms, and the save took 230 ms.
 *
 * A difference in all of a slice, as of ranks that train apart, is found at once. Of one block
 * among n each save finds it with probability 16/n.
 *
 * The digest: XXH3-128 of each block; then XXH3-128 of these hashes, one after the other. Beside it
 * go the low 16 bits of each block's hash, the marks, which tell the first block that differs. */
#ifndef HOLDFAST_REPLICA_H
#define HOLDFAST_REPLICA_H

#include "proto/checksum.h"

#include <stdbool.h>
#include <stdint.h>

#define REPLICA_BLOCK_BYTES 16384u
#define REPLICA_BLOCKS 16u
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
