/* signals.c - the trainer's signal thread (see signals.h). */
#include "trainer/run/signals.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"
#include "trainer/comm/flight.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

static _Atomic int64_t asked_ns; /* CLOCK_MONOTONIC */

struct watch {
    sigset_t waited_for, others;
    volatile sig_atomic_t *stop;
};

static void end_at_once(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}

static void *take_signals(void *user)
{
    const struct watch *watch = user;
    static const struct timespec beat = {.tv_nsec = FLIGHT_BEAT_MS * 1000000};
    int number, interrupts = 0;
    pthread_sigmask(SIG_UNBLOCK, &watch->others, NULL);
    flight_beat_all(); /* a gap may begin at once */
    for (;;) {
        number = sigtimedwait(&watch->waited_for, NULL, &beat);
        flight_beat_all();
        if (number < 0) /* no signal, or a handler of a library ran */
            continue;
        if (number == SIGQUIT || number == SIGUSR2) {
            if (number == SIGUSR2)
                flight_dump_all("asked by a signal");
            stacks_dump_all("asked by a signal");
            continue;
        }
        if (*watch->stop == 0)
            asked_ns = (int64_t)(1e9 * clock_seconds());
        *watch->stop = 1;
        if (number == SIGINT && ++interrupts > 1)
            end_at_once(number);
    }
    return NULL;
}

double signals_asked_at(void)
{
    return 1e-9 * (double)asked_ns;
}

static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

static void choose(struct watch *out)
{
    static const int ours[] = {SIGTERM, SIGUSR1, SIGUSR2, SIGQUIT, SIGHUP, SIGINT};
    static const int of_threads[] = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,
                                     SIGTRAP, SIGABRT, SIGSYS, SIGPIPE};
    sigemptyset(&out->waited_for);
    sigfillset(&out->others);
    for (size_t i = 0; i < sizeof(of_threads) / sizeof(of_threads[0]); i++)
        sigdelset(&out->others, of_threads[i]);
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if ((ours[i] == SIGHUP || ours[i] == SIGINT) && is_ignored(ours[i]))
            continue;
        sigaddset(&out->waited_for, ours[i]);
        sigdelset(&out->others, ours[i]);
    }
}

int signals_start(volatile sig_atomic_t *out_stop)
{
    static struct watch watch;
    pthread_t thread;
    watch.stop = out_stop;
    choose(&watch);
    stacks_start();
    if (pthread_sigmask(SIG_BLOCK, &watch.others, NULL) != 0 ||
        pthread_sigmask(SIG_BLOCK, &watch.waited_for, NULL) != 0 ||
        pthread_create(&thread, NULL, take_signals, &watch) != 0)
        return report_error(ERR_BUSY, "raise the limit of threads (ulimit -u)",
                            "could not start the thread for signals");
    pthread_setname_np(thread, "signals");
    pthread_detach(thread);
    return 0;
}
