/* replicas.h - finds slices that several ranks hold, and differences of their copies; see
 * replicas.c. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_REPLICAS_H
#define HOLDFAST_CKPTD_ATTEMPT_REPLICAS_H

#include "proto/format/replica.h"
#include "proto/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A slice of a rank that other ranks hold as well. */
struct replica_slice {
    uint32_t slice;  /* index into the rank's slices */
    uint32_t tensor; /* of the table, */
    uint32_t cell;   /* of its layout */
};

/* The slices of a rank, and those that others hold as well. */
struct replica_rank {
    const struct slice *slices;
    const struct replica_slice *replicas;
    uint32_t num_replicas;
    const struct replica_digest *digests; /* of these; NULL: it reported none */
};

/* Finds those of each rank: num[rank] of them in out[rank], which the caller frees. `table` was
 * made of `slices` by LAYOUT_ONE_REPLICA. ERR_MEMORY. */
int replicas_find(struct replica_slice **out, uint32_t *num, const struct layout_table *table,
                  const struct slice *const *slices, const uint32_t *counts, uint32_t num_ranks);

/* For another node: *out, which the caller frees, has a bit for each cell of the table, set if
 * several ranks hold it; NULL: there are none. ERR_MEMORY. */
int replicas_mark(uint8_t **out, size_t *out_bytes, const struct layout_table *table,
                  struct replica_slice *const *replicas, const uint32_t *num, uint32_t num_ranks);
struct replica_marks {
    const uint8_t *bits;
    size_t bytes;
};
/* On that node: finds those of one rank whose cells are marked. The caller frees *out;
 * ERR_MEMORY. */
int replicas_find_marked(struct replica_slice **out, uint32_t *num,
                         const struct layout_table *table, const struct slice *slices,
                         uint32_t count, const struct replica_marks *marks);

#define REPLICAS_LISTED_MAX 16u /* slices that are listed; the others are counted */
#define REPLICAS_RANKS_MAX 8u   /* ranks that are listed of a slice; the others are counted */

/* A slice of which some ranks hold other bytes than the checkpoint. */
struct replica_difference {
    uint32_t tensor, cell;
    uint32_t kept;                                 /* the rank whose copy is in the checkpoint */
    uint32_t num_ranks, ranks[REPLICAS_RANKS_MAX]; /* the ranks with other bytes, ascending */
    uint32_t block;             /* the first differing block of those that were compared; */
    struct replica_block where; /* its bytes in the slice; of 0 bytes: unknown */
};
struct replicas_found {
    uint32_t num_differ; /* slices */
    uint32_t num_listed;
    struct replica_difference list[REPLICAS_LISTED_MAX]; /* in the order of the table */
};

/* Compares the digests of the save of `step`: those of each slice with those of the rank that wrote
 * it. Slices without reported digests are not compared. ERR_MEMORY. */
int replicas_differ(struct replicas_found *out, const struct layout_table *table,
                    const struct replica_rank *ranks, uint32_t num_ranks, uint64_t step);

#define REPLICAS_TEXT_BYTES 480u
/* Text about the first of them; "": there is none. */
const char *replicas_text(char out[REPLICAS_TEXT_BYTES], const struct replicas_found *found,
                          const struct layout_table *table);
/* Adds the member REPLICAS_MEMBER with them to `mesh`, a JSON object or NULL. The caller frees
 * *out. ERR_MEMORY. */
#define REPLICAS_MEMBER "replicas_differ" /* clients/cli/inspect/show.c */
int replicas_add(char **out, const char *mesh, const struct replicas_found *found,
                 const struct layout_table *table);

#endif
