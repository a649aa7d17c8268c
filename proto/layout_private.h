/* layout_private.h - what the files layout*.c share. Private to them. */
#ifndef HOLDFAST_LAYOUT_PRIVATE_H
#define HOLDFAST_LAYOUT_PRIVATE_H

#include "proto/layout.h"

/* Moves `at` to the next coordinate of `box` over its first `dims` dimensions; false after the
 * last. */
bool layout_next_coordinate(uint64_t *at, const struct box *box, uint32_t dims);
void layout_index_free(struct layout_index *index); /* NULL is nothing */

#endif
