/* wants.h - the blocks of shards that an output block needs, for assembly.c. */
#ifndef HOLDFAST_CLIENTS_WANTS_H
#define HOLDFAST_CLIENTS_WANTS_H

#include "clients/cli/engine/scan.h"

struct wanted {
    uint32_t side, shard;
    uint64_t block;
};

struct wants {
    struct checkpoint *sides;
    uint32_t num_sides;
    uint32_t span;       /* a read fills its output block, and at most so many after it */
    struct wanted *list; /* free() */
    uint32_t count, room;
    uint64_t base, number; /* of the file's first block and of the present one, among all files */
};

/* Appends the blocks that `block` needs, in their order. Skips those that a block of the span
 * before has added: that read fills this one, too. ERR_MEMORY, and errors of a shard's header. */
int wants_add(struct wants *wants, const struct output_block *block);

#endif
