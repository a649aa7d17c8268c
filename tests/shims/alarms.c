/* alarms.c - a library with its own handler for a signal of the whole process, as profilers and
 * timers have: it comes 2,000 times a second, to any thread.
 *
 *     LD_PRELOAD=build/shims/alarms.so ALARMS_FILE=file trainer ...
 *
 * At the end the file holds how many came. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define EVERY_US 500

static volatile sig_atomic_t count;

static void come(int number)
{
    (void)number;
    count++;
}

static void tell(void)
{
    FILE *file = fopen(getenv("ALARMS_FILE"), "w");
    if (!file || fprintf(file, "%d\n", (int)count) < 0 || fclose(file) != 0)
        abort(); /* or the test would test nothing */
}

__attribute__((constructor)) static void start(void)
{
    struct sigaction action = {.sa_handler = come, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, EVERY_US}, {0, EVERY_US}};
    if (!getenv("ALARMS_FILE") || sigaction(SIGALRM, &action, NULL) != 0 ||
        setitimer(ITIMER_REAL, &every, NULL) != 0 || atexit(tell) != 0)
        abort();
}
