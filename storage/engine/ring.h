/* ring.h - private to storage/: an io_uring that can do what the engine needs and nothing else. */
#ifndef HOLDFAST_STORAGE_RING_H
#define HOLDFAST_STORAGE_RING_H

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

/* A ring that takes reads, writes and fsyncs, and lets buffers be registered; the kernel answers
 * EACCES to all else (IORING_SETUP_R_DISABLED, io_uring_register(2); Linux 5.10). Raises the limit
 * of locked memory as ring_raise_memlock does when the ring needs it. 0 or a negative errno. */
int ring_open(struct io_uring *out, unsigned entries);

/* Raises the soft limit of locked memory, which rings and registered buffers count against, to the
 * hard one. True when that changed it. */
bool ring_raise_memlock(void);

/* Would that limit let this process have so many bytes registered? What the user's other processes
 * have locked counts against it too, and is not known. */
bool ring_may_lock(uint64_t bytes);

#endif
