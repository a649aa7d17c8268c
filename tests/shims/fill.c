/* fill.c - a host that has the memory of ckptd's pool late, or not at all.
 *
 *     LD_PRELOAD=build/shims/fill.so FILL_FILE=file ckptd ...
 *
 * The file holds two numbers of 8 bytes (host byte order): the how many-th segment of the pool, in
 * the order in which ckptd takes their memory, finds none, and whether it waits for it for ever
 * (1) or hears ENOSPC (0). */
#include "tests/shims/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int64_t unlucky, waits;
static _Atomic int64_t number;

__attribute__((constructor)) static void read_order(void)
{
    int64_t order[2];
    const char *path = getenv("FILL_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0 || read(fd, order, sizeof order) != sizeof order)
        abort(); /* or the test would test nothing */
    close(fd);
    unlucky = order[0];
    waits = order[1];
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    bool is_unlucky = mode == 0 && is_segment(fd) && atomic_fetch_add(&number, 1) + 1 == unlucky;
    while (is_unlucky && waits)
        pause();
    if (!is_unlucky)
        return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    errno = ENOSPC;
    return -1;
}
