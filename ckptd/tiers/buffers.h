/* buffers.h - private to ckptd/tiers/: the buffers for parts of shards. A far tier has its own; all
 * peers share one pool, whose size does not depend on the number of peers. On the service thread.
 *
 * A copy queue that finds no free buffer waits, first come first served. Whoever returns a buffer
 * wakes the waiters before it takes another one itself. */
#ifndef HOLDFAST_CKPTD_TIERS_BUFFERS_H
#define HOLDFAST_CKPTD_TIERS_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in a copy queue. */
struct buffers_waiter {
    struct buffers_waiter *next;
    bool is_waiting;
    void (*wake)(struct buffers_waiter *waiter);
};

struct buffers;
/* Memory becomes resident at its first use. ERR_MEMORY. */
int buffers_open(struct buffers **out, uint32_t count, size_t bytes);
/* NULL: none is free; `waiter` is called when one is. */
void *buffers_take(struct buffers *buffers, struct buffers_waiter *waiter);
void buffers_give(struct buffers *buffers, void *data);
/* Calls the waiters while a buffer is free. */
void buffers_wake_waiters(struct buffers *buffers);
void buffers_close(struct buffers *buffers); /* frees buffers in use as well; NULL is allowed */

#endif
