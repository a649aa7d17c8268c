/* leaks.c - a process whose memory grows, for an unmodified program.
 *
 *     LD_PRELOAD=build/shims/leaks.so LEAK_MIB=1024 trainer ...
 *
 * A thread takes and touches a MiB every 20 ms, at most LEAK_MIB of them. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void *take(void *count)
{
    static const struct timespec pause = {.tv_nsec = 20000000};
    static char *volatile taken;
    for (long left = (long)count; left > 0; left--) {
        taken = malloc(1 << 20);
        if (taken != NULL)
            memset(taken, 1, 1 << 20);
        nanosleep(&pause, NULL);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void)
{
    const char *count = getenv("LEAK_MIB");
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals are for the program's threads */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (count != NULL && pthread_create(&thread, NULL, take, (void *)atol(count)) != 0)
        abort(); /* or the test would test nothing */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
