/* recvmsg.c - in place of the C library's, in ckptd alone: no descriptor comes in through gRPC.
 *
 * When a connection breaks gRPC reads the errors of TCP: recvmsg with MSG_ERRQUEUE and room for
 * control data. A unix socket has no such queue and takes that for a read, so that descriptors
 * which the peer passed would come in, and stay. A file of its own: the linker takes what else
 * there is in a file, too, into every program that calls recvmsg. */
#include "ckptd/door.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>

typedef ssize_t receive(int fd, struct msghdr *message, int flags);
static _Atomic(receive *) real;

void recvmsg_take_over(void)
{
    /* A sanitizer's, or the C library's. */
    atomic_store(&real, (receive *)(uintptr_t)dlsym(RTLD_NEXT, "recvmsg"));
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    if ((flags & MSG_ERRQUEUE) != 0) {
        errno = EAGAIN; /* it is empty */
        return -1;
    }
    if (atomic_load(&real) == NULL)
        recvmsg_take_over();
    return atomic_load(&real)(fd, message, flags);
}
