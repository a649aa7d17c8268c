/* array.h - growing lists: each growth doubles the room. */
#ifndef HOLDFAST_PROTO_BASE_ARRAY_H
#define HOLDFAST_PROTO_BASE_ARRAY_H

#include "proto/base/report.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARRAY_ROOM_MIN 16u

/* Makes room for one more item after the first `count`. `list` is the address of the pointer to the
 * items, `*room` how many items of `size` bytes fit; both start at 0. ERR_MEMORY: nothing is
 * changed. The caller frees the list. */
static inline int array_reserve(void *list, uint32_t *room, size_t count, size_t size)
{
    if (count < *room)
        return 0;
    uint32_t more = *room != 0 ? 2 * *room : ARRAY_ROOM_MIN;
    void *items, *larger = NULL;
    memcpy(&items, list, sizeof items); /* a pointer of any type */
    if (*room <= UINT32_MAX / 2)
        larger = realloc(items, (size_t)more * size);
    if (larger == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for a list of %u", more);
    memcpy(list, &larger, sizeof larger);
    *room = more;
    return 0;
}

#endif
