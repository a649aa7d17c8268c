/* no_ring.h - io_uring as where a seccomp filter denies it, so that every transfer is a system call
 * that a test sees (the linker's --wrap: WRAP_ in mk/tests.mk names io_uring_queue_init). */
#ifndef HOLDFAST_TESTS_NO_RING_H
#define HOLDFAST_TESTS_NO_RING_H

#include <errno.h>

struct io_uring;
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return -EPERM;
}

#endif
