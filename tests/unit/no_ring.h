/* no_ring.h - io_uring denied as by a seccomp filter, so that every transfer is a system call that
 * a test can wrap (the linker's --wrap: WRAP_ in mk/tests.mk names io_uring_queue_init). */
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
