/* ring.h - private to storage/: an io_uring that can do only what the engine needs. */
#ifndef HOLDFAST_STORAGE_RING_H
#define HOLDFAST_STORAGE_RING_H

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

/* Opens a ring that accepts reads, writes and fsyncs, and allows registration of buffers; for all
 * else the kernel returns EACCES (IORING_SETUP_R_DISABLED, io_uring_register(2); Linux 5.10). If
 * the ring needs it, raises the limit of locked memory like ring_raise_memlock(). 0 or a negative
 * errno. */
int ring_open(struct io_uring *out, unsigned entries);

/* Raises the soft limit of locked memory, which rings and registered buffers count against, to the
 * hard one. True when that changed it. */
bool ring_raise_memlock(void);

/* Would that limit let this process register so many bytes? Memory that the user's other processes
 * have locked counts against it, too, and is not known. */
bool ring_may_lock(uint64_t bytes);

#endif
