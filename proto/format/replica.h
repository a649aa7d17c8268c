/* replica.h - the digest that compares ranks which hold the same part of a tensor.
 *
 * A slice of up to REPLICA_WHOLE_BYTES is hashed completely, in REPLICA_BLOCKS blocks. Of a larger
 * one that many blocks of REPLICA_SAMPLE_BYTES are hashed, one from each sixteenth of it. Step and
 * name of the tensor select them, so all ranks select the same ones, and each save selects others.
 *
 * The cost, on two cores of a virtual machine: a core hashed 256 KiB from memory in 16 us, and 16
 * scattered pages in 14 to 17 us; a save took 0.7 ns a byte. So a slice of 2.4 MB or more, as most
 * slices of a large model, costs at most 1 % of its save, and a smaller one at most 9 %. For 256
 * MiB in 1, 16, 64, 2048 slices a rank hashed for 0.02, 0.3, 1.1, 16 ms, and the save took 150 to
 * 190 ms.
 *
 * A difference in the whole slice, as when ranks diverge, is found by the first save. A difference
 * in one block of n is found by each save with probability 16/n.
 *
 * The digest: XXH3-128 of each block; then XXH3-128 of these hashes, one after the other. The low
 * 16 bits of each block's hash (the marks) are sent with it; they show the first block that
 * differs. */
#ifndef HOLDFAST_PROTO_FORMAT_REPLICA_H
#define HOLDFAST_PROTO_FORMAT_REPLICA_H

#include "proto/base/checksum.h"

#include <stdbool.h>
#include <stdint.h>

#define REPLICA_BLOCKS 16u
#define REPLICA_WHOLE_BYTES 262144u
#define REPLICA_SAMPLE_BYTES 4096u
#define REPLICA_BLOCK_BYTES (REPLICA_WHOLE_BYTES / REPLICA_BLOCKS) /* at most */
#define REPLICA_SLICES_MAX 65536u /* of a rank; further ones are not compared */

struct replica_digest {
    struct checksum_128 sum;            /* 0, 0: no digest */
    uint64_t marks[REPLICA_BLOCKS / 4]; /* four in each, the first in the lowest bits */
};
#define REPLICA_WORDS 6u /* words of a digest, on the wire too */
_Static_assert(sizeof(struct replica_digest) == REPLICA_WORDS * sizeof(uint64_t), "the wire's");

uint64_t replica_seed(const char *name, uint64_t step);

/* Compared block `index` of a slice of `bytes`; of 0 bytes: there is none. */
struct replica_block {
    uint64_t first, bytes;
};
struct replica_block replica_block(uint64_t bytes, uint64_t seed, uint32_t index);

void replica_digest(struct replica_digest *out, const void *data, uint64_t bytes, uint64_t seed);
/* The digest from the blocks' hashes, each by checksum_128(). */
void replica_digest_of(struct replica_digest *out, const struct checksum_128 *hashes,
                       uint32_t count);
/* Do they differ? *out_block: the first differing block; REPLICA_BLOCKS: the marks do not show
 * it. */
bool replica_differs(uint32_t *out_block, const struct replica_digest *a,
                     const struct replica_digest *b);

#endif
