/* system.h - what this machine allows `local`: io_uring and registered memory. */
#ifndef HOLDFAST_STORAGE_ENGINE_SYSTEM_H
#define HOLDFAST_STORAGE_ENGINE_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

/* From now on no thread of this process can make an io_uring (seccomp(2)); existing ones continue.
 * Child processes inherit that and gain no privileges. ERR_DENIED: the kernel has no filters. */
int storage_forbid_rings(void);
/* The conditions for `local` on this machine: 0, or the errno with which io_uring is refused; and
 * whether so many bytes of buffers may be registered (RLIMIT_MEMLOCK, as far as it may be
 * raised). */
int storage_try_ring(void);
bool storage_may_lock(uint64_t bytes);

#endif
