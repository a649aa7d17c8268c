/* kill_at.c - a program that is killed at the n-th step of a removal.
 *
 *     LD_PRELOAD=build/shims/kill_at.so KILL_FILE=file ckptd ...
 *
 * The file holds two numbers of 8 bytes (host byte order), the step of SIGKILL (0: none) and the
 * number of the order, followed by room for the name of that step, which is not performed. A
 * removal begins where a thread makes a tombstone; from there on each of its calls that change or
 * sync names is a step. Calls of other threads, and removals that began before the order, do not
 * count. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct order {
    _Atomic int64_t left, number;
    char last[240];
};
static struct order *order;
static _Thread_local int64_t removes; /* since the order of this number */

__attribute__((constructor)) static void map_order(void)
{
    const char *path = getenv("KILL_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map =
        fd >= 0 ? mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED)
        abort(); /* or the test would test nothing */
    close(fd);
    order = map;
}

static void take_step(const char *call, int fd, const char *name)
{
    char link[40], path[PATH_MAX];
    if (atomic_load(&order->left) <= 0)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    int64_t number = atomic_load(&order->number);
    if (strcmp(call, "fsync") == 0 && strstr(path, "/tombstones/.holdfast.tmp") != NULL)
        removes = number;
    if (removes != number || atomic_fetch_sub(&order->left, 1) != 1)
        return;
    snprintf(order->last, sizeof order->last, "%s %.150s %.60s", call, path, name);
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

int unlinkat(int folder, const char *name, int flags)
{
    take_step("unlinkat", folder, name);
    return (int)syscall(SYS_unlinkat, folder, name, flags);
}

int renameat2(int from, const char *old, int to, const char *name, unsigned flags)
{
    take_step("renameat2", to, name);
    return (int)syscall(SYS_renameat2, from, old, to, name, flags);
}

int fsync(int fd)
{
    take_step("fsync", fd, "");
    return (int)syscall(SYS_fsync, fd);
}
