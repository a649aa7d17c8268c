/* buffers.c - see buffers.h. */
#include "ckptd/tiers/buffers.h"
#include "proto/base/report.h"
#include "storage/storage.h"

#include <stdlib.h>

struct buffers {
    struct buffers_waiter *first, *last;
    uint32_t count, num_free;
    void **all, **free; /* `count` pointers each; the first num_free of `free` are free */
};

int buffers_open(struct buffers **out, uint32_t count, size_t bytes)
{
    struct buffers *buffers = calloc(1, sizeof *buffers);
    bool is_good = buffers && (buffers->all = calloc(2 * (size_t)count, sizeof *buffers->all));
    for (uint32_t i = 0; is_good && i < count; i++) {
        buffers->free = buffers->all + count;
        is_good = posix_memalign(&buffers->all[i], STORAGE_ALIGN, bytes) == 0;
        buffers->free[i] = buffers->all[i];
        buffers->num_free = buffers->count = i + is_good;
    }
    if (is_good) {
        *out = buffers;
        return 0;
    }
    buffers_close(buffers);
    return report_error(ERR_MEMORY, "lower tier.part_bytes or the connections",
                        "no memory for %u parts of %zu bytes", count, bytes);
}

void *buffers_take(struct buffers *buffers, struct buffers_waiter *waiter)
{
    if (buffers->num_free > 0)
        return buffers->free[--buffers->num_free];
    if (waiter->is_waiting)
        return NULL;
    waiter->is_waiting = true;
    waiter->next = NULL;
    if (buffers->first)
        buffers->last->next = waiter;
    else
        buffers->first = waiter;
    buffers->last = waiter;
    return NULL;
}

void buffers_give(struct buffers *buffers, void *data)
{
    CHECK(buffers->num_free < buffers->count);
    buffers->free[buffers->num_free++] = data;
}

void buffers_wake_waiters(struct buffers *buffers)
{
    /* A waiter that gets none queues at the end again. */
    while (buffers->first && buffers->num_free > 0) {
        struct buffers_waiter *waiter = buffers->first;
        buffers->first = waiter->next;
        waiter->is_waiting = false;
        waiter->wake(waiter);
    }
}

void buffers_close(struct buffers *buffers)
{
    if (!buffers)
        return;
    for (uint32_t i = 0; i < buffers->count; i++)
        free(buffers->all[i]);
    free(buffers->all);
    free(buffers);
}
