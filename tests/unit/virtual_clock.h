/* virtual_clock.h - virtual time for the timed waits of many threads, independent of the machine's
 * load.
 *
 * The time stands still while any thread of the process can run. When all of them sleep, it moves
 * to the first moment that a sleeper of clock_until() waits for. So computation takes no virtual
 * time, however slow the machine, and timed waits take exactly their length. Threads wait for each
 * other by the program's own means.
 *
 * All threads sleep when two successive scans of /proc/self/task find every thread asleep and no
 * context switch between them. At some moment between the scans all slept. */
#ifndef HOLDFAST_TESTS_VIRTUAL_CLOCK_H
#define HOLDFAST_TESTS_VIRTUAL_CLOCK_H

#include "proto/base/report.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CLOCK_LOOK_NS 20000

struct clock_sleeper {
    struct clock_sleeper *next;
    double until;
};

static struct {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t moved;
    double now; /* seconds */
    struct clock_sleeper *sleepers;
    bool is_over;
    pthread_t thread;
} virtual_clock = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static inline double clock_now(void)
{
    pthread_mutex_lock(&virtual_clock.lock);
    double now = virtual_clock.now;
    pthread_mutex_unlock(&virtual_clock.lock);
    return now;
}

static inline void clock_until(double until)
{
    struct clock_sleeper me = {.until = until}, **link = &virtual_clock.sleepers;
    pthread_mutex_lock(&virtual_clock.lock);
    me.next = virtual_clock.sleepers;
    virtual_clock.sleepers = &me;
    while (virtual_clock.now < until)
        pthread_cond_wait(&virtual_clock.moved, &virtual_clock.lock);
    while (*link != &me)
        link = &(*link)->next;
    *link = me.next;
    pthread_mutex_unlock(&virtual_clock.lock);
}

/* The thread's id and how often it went to sleep; 0: it does not sleep, or has exited. */
static inline uint64_t clock_look_at(const char *tid)
{
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return 0;
    text[got] = '\0';
    const char *state = strstr(text, "\nState:"),
               *times = strstr(text, "\nvoluntary_ctxt_switches:");
    CHECK(state != NULL && times != NULL);
    if (strchr("SZX", state[strspn(state + 7, " \t") + 7]) == NULL)
        return 0;
    return strtoull(tid, NULL, 10) * 1000003 + strtoull(strchr(times, ':') + 1, NULL, 10);
}

/* The sum over all other threads; 0: some thread does not sleep. */
static inline uint64_t clock_look(void)
{
    uint64_t sum = 1;
    char me[24];
    snprintf(me, sizeof(me), "%d", (int)gettid());
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    for (struct dirent *entry; sum != 0 && (entry = readdir(tasks)) != NULL;) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, me) == 0)
            continue;
        uint64_t one = clock_look_at(entry->d_name);
        sum = one != 0 ? sum + one : 0;
    }
    closedir(tasks);
    return sum;
}

/* True while sleepers whose time has come have not woken yet. Otherwise finds the first moment that
 * one waits for. */
static inline bool clock_next(double *next)
{
    *next = -1;
    for (const struct clock_sleeper *s = virtual_clock.sleepers; s != NULL; s = s->next) {
        if (s->until <= virtual_clock.now)
            return false;
        *next = *next < 0 || s->until < *next ? s->until : *next;
    }
    return *next >= 0;
}

static inline void *clock_run(void *unused)
{
    (void)unused;
    for (bool is_over = false; !is_over;) {
        double next;
        uint64_t seen = clock_look();
        bool all_sleep = seen != 0 && clock_look() == seen;
        pthread_mutex_lock(&virtual_clock.lock);
        is_over = virtual_clock.is_over;
        if (all_sleep && clock_next(&next)) {
            virtual_clock.now = next;
            pthread_cond_broadcast(&virtual_clock.moved);
        }
        pthread_mutex_unlock(&virtual_clock.lock);
        nanosleep(&(struct timespec){.tv_nsec = CLOCK_LOOK_NS}, NULL);
    }
    return NULL;
}

/* Call start before the first thread that asks for the time, and stop after the last. */
static inline void clock_start(void)
{
    virtual_clock.is_over = false;
    CHECK(pthread_create(&virtual_clock.thread, NULL, clock_run, NULL) == 0);
}

static inline void clock_stop(void)
{
    pthread_mutex_lock(&virtual_clock.lock);
    virtual_clock.is_over = true;
    pthread_mutex_unlock(&virtual_clock.lock);
    pthread_join(virtual_clock.thread, NULL);
}

#endif
