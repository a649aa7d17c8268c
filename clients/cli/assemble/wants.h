/* wants.h - which blocks of which shards a block of an output needs: what assembly.c reads. */
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
    uint32_t span; /* a read fills the output block that it was wanted for, and so many behind it */
    struct wanted *list; /* free() */
    uint32_t count, room;
    uint64_t base, number; /* of the file's first block and of that at hand, among all files */
};

/* What `block` needs comes behind the list, but for what a block of the span before it has wanted:
 * that read fills this one, too. Blocks come in their order. ERR_MEMORY, and what a shard's header
 * gives. */
int wants_add(struct wants *wants, const struct output_block *block);

#endif
