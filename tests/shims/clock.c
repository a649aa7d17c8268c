/* clock.c - a wall clock that jumps, for an unmodified program.
 *
 *     LD_PRELOAD=build/shims/clock.so CLOCK_FILE=offset ckptd ...
 *
 * The file holds 8 bytes, the seconds to add (host byte order); writing them moves the clock of
 * every program with this shim, at once. Only CLOCK_REALTIME and its derived functions change: the
 * monotonic clocks and the times of files stay those of the system, as when an operator sets the
 * clock. With CLOCK_PASSES=1 CLOCK_MONOTONIC changes, too: time passes. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;
static int passes;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("CLOCK_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd >= 0 ? mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map == MAP_FAILED)
        abort(); /* or the test would test nothing */
    close(fd);
    offset = map;
    passes = getenv("CLOCK_PASSES") != NULL;
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int result = (int)syscall(SYS_clock_gettime, clock, out);
    bool moves = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
                 (passes && clock == CLOCK_MONOTONIC);
    if (result == 0 && offset && moves)
        out->tv_sec += *offset;
    return result;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}
