/* slow_sync.c - a disk on which names are slow to become durable.
 *
 *     LD_PRELOAD=build/shims/slow_sync.so SYNC_MS=200 ckptd ...
 *
 * fsync() sleeps SYNC_MS milliseconds first; data (fdatasync, io_uring) take their usual time. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long delay_ms;

__attribute__((constructor)) static void read_delay(void)
{
    const char *text = getenv("SYNC_MS");
    delay_ms = text ? strtol(text, NULL, 10) : 0;
    if (delay_ms <= 0)
        abort(); /* or the test would test nothing */
}

int fsync(int fd)
{
    nanosleep(&(struct timespec){delay_ms / 1000, delay_ms % 1000 * 1000000}, NULL);
    return (int)syscall(SYS_fsync, fd);
}
