/* replicas.h - which slices several ranks hold, and where their copies differ; see replicas.c. */
#ifndef HOLDFAST_CKPTD_ATTEMPT_REPLICAS_H
#define HOLDFAST_CKPTD_ATTEMPT_REPLICAS_H

#include "proto/format/replica.h"
#include "proto/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A slice of a rank that others hold, too. */
struct replica_slice {
    uint32_t slice;  /* index into the rank's */
    uint32_t tensor; /* of the table, */
    uint32_t cell;   /* of its layout */
};

/* What a rank holds, and of which slices others do. */
struct replica_rank {
    const struct slice *slices;
    const struct replica_slice *replicas;
    uint32_t num_replicas;
    const struct replica_digest *digests; /* of these; NULL: it has told none */
};

/* Finds those of each rank: num[rank] of them in out[rank], to be freed. `table` is what
 * LAYOUT_ONE_REPLICA made of `slices`. ERR_MEMORY. */
int replicas_find(struct replica_slice **out, uint32_t *num, const struct layout_table *table,
                  const struct slice *const *slices, const uint32_t *counts, uint32_t num_ranks);

/* For another node: *out, to be freed, has a bit for each cell of the table, set where several
 * ranks hold it; NULL: they hold none. ERR_MEMORY. */
int replicas_mark(uint8_t **out, size_t *out_bytes, const struct layout_table *table,
                  struct replica_slice *const *replicas, const uint32_t *num, uint32_t num_ranks);
struct replica_marks {
    const uint8_t *bits;
    size_t bytes;
};
/* On that node: finds those of one rank whose cells are marked. *out, to be freed; ERR_MEMORY. */
int replicas_find_marked(struct replica_slice **out, uint32_t *num,
                         const struct layout_table *table, const struct slice *slices,
                         uint32_t count, const struct replica_marks *marks);

#define REPLICAS_LISTED_MAX 16u /* slices that are listed; the others are counted */
#define REPLICAS_RANKS_MAX 8u   /* ranks that are listed of a slice; the others are counted */

/* A slice of which not all ranks hold what the checkpoint has. */
struct replica_difference {
    uint32_t tensor, cell;
    uint32_t kept;                                 /* the rank whose copy the checkpoint has */
    uint32_t num_ranks, ranks[REPLICAS_RANKS_MAX]; /* that hold others, ascending */
    uint32_t block;             /* the first that differs, of those that were compared; */
    struct replica_block where; /* its bytes in the slice; of 0 bytes: that is not known */
};
struct replicas_found {
    uint32_t num_differ; /* slices */
    uint32_t num_listed;
    struct replica_difference list[REPLICAS_LISTED_MAX]; /* in the order of the table */
};

/* Compares the digests of the save of `step`: those of each slice with those of the rank that wrote
 * it. What a rank has not told is not compared. ERR_MEMORY. */
int replicas_differ(struct replicas_found *out, const struct layout_table *table,
                    const struct replica_rank *ranks, uint32_t num_ranks, uint64_t step);

#define REPLICAS_TEXT_BYTES 480u
/* The first of them in words; "": there is none. */
const char *replicas_text(char out[REPLICAS_TEXT_BYTES], const struct replicas_found *found,
                          const struct layout_table *table);
/* `mesh`, a JSON object or NULL, with one more member, REPLICAS_MEMBER, that has them. To be freed.
 * ERR_MEMORY. */
#define REPLICAS_MEMBER "replicas_differ" /* clients/cli/inspect/show.c */
int replicas_add(char **out, const char *mesh, const struct replicas_found *found,
                 const struct layout_table *table);

#endif
