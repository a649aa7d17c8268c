/* slow_read.c - a disk whose every read of a tokens file takes its time.
 *
 *     LD_PRELOAD=build/shims/slow_read.so READ_MS=20 trainer ...
 *
 * pread() of a file whose name ends in "tokens" sleeps READ_MS milliseconds first. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long delay_ms;

__attribute__((constructor)) static void read_delay(void)
{
    const char *text = getenv("READ_MS");
    delay_ms = text ? strtol(text, NULL, 10) : 0;
    if (delay_ms <= 0)
        abort(); /* or the test would test nothing */
}

static bool is_tokens(int fd)
{
    char link[40], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= 6 && memcmp(path + length - 6, "tokens", 6) == 0;
}

ssize_t pread(int fd, void *out, size_t bytes, off_t at)
{
    if (is_tokens(fd))
        nanosleep(&(struct timespec){delay_ms / 1000, delay_ms % 1000 * 1000000}, NULL);
    return syscall(SYS_pread64, fd, out, bytes, at);
}

ssize_t __pread_chk(int fd, void *out, size_t bytes, off_t at, size_t room);
ssize_t __pread_chk(int fd, void *out, size_t bytes, off_t at, size_t room)
{
    if (bytes > room)
        abort();
    return pread(fd, out, bytes, at);
}
