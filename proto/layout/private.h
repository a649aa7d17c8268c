/* private.h - shared by the files of this folder. Private to them. */
#ifndef HOLDFAST_PROTO_LAYOUT_PRIVATE_H
#define HOLDFAST_PROTO_LAYOUT_PRIVATE_H

#include "proto/base/report.h"
#include "proto/layout/layout.h"

#include <stdlib.h>

/* Moves `at` to the next coordinate of `box` over its first `dims` dimensions; false after the
 * last. */
bool layout_next_coordinate(uint64_t *at, const struct box *box, uint32_t dims);
void layout_index_free(struct layout_index *index); /* NULL is allowed */

/* A rank's slice of a tensor. */
struct layout_member {
    const struct box *box;
    uint32_t rank;
    uint32_t replica; /* number of lower ranks with the same box */
};

/* Sorts them by box, then rank, and numbers the replicas. Returns the number of replicas that every
 * box has. */
uint32_t layout_sort_members(struct layout_member *members, uint32_t count, uint32_t dims);
/* Makes the layout of a tensor from its sorted slices, written from `replica`, or split among all
 * with LAYOUT_ALL. ERR_MISMATCH: they form no grid. */
#define LAYOUT_ALL UINT32_MAX
int layout_of_class(struct layout *out, const struct tensor_meta *meta,
                    const struct layout_member *members, uint32_t num_members, uint32_t replica);

static inline int layout_fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to plan the save");
}

static inline void *layout_alloc(uint64_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

#endif
