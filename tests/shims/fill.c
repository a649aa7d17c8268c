/* fill.c - a host that has no memory for a segment of ckptd's pool.
 *
 *     LD_PRELOAD=build/shims/fill.so FILL_SEGMENT=4 ckptd ...
 *
 * The fourth segment, in the order in which ckptd takes their memory, finds none (ENOSPC). */
#include "tests/shims/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int64_t number;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    const char *unlucky = getenv("FILL_SEGMENT"); /* or the test would test nothing */
    if (mode != 0 || !is_segment(fd) || atomic_fetch_add(&number, 1) + 1 != atol(unlucky))
        return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    errno = ENOSPC;
    return -1;
}
