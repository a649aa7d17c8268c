/* buffers.h - private to ckptd/tiers/: the buffers that parts of shards go by. A far tier has its
 * own; all peers share some, whose number does not follow that of the peers. On the service thread.
 *
 * A fleet that finds none free waits in a queue, first come first served: whoever gives a buffer
 * back looks at those that wait, before it takes another itself. */
#ifndef HOLDFAST_CKPTD_TIERS_BUFFERS_H
#define HOLDFAST_CKPTD_TIERS_BUFFERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Embedded in a fleet. */
struct buffers_waiter {
    struct buffers_waiter *next;
    bool is_waiting;
    void (*wake)(struct buffers_waiter *waiter);
};

struct buffers;
/* Memory is resident from the first use on. ERR_MEMORY. */
int buffers_open(struct buffers **out, uint32_t count, size_t bytes);
/* NULL: none is free, and `waiter` is called when one is. */
void *buffers_take(struct buffers *buffers, struct buffers_waiter *waiter);
void buffers_give(struct buffers *buffers, void *data);
/* Those that wait, while one is free. */
void buffers_wake_waiters(struct buffers *buffers);
void buffers_close(struct buffers *buffers); /* those that were taken, too. NULL is allowed */

#endif
