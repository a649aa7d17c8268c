/* main.c - the program: arguments, signals, exit code.
 *
 * The service runs on its own thread; this one waits for signals. SIGTERM, SIGINT and SIGHUP drain:
 * ckptd refuses new work, finishes running saves, and the last ones of connected ranks, within
 * limits.drain_ms, and exits with code 0. SIGUSR1 reloads the configuration. A service that cannot
 * continue, because its pool cannot be filled, shuts down in the same way, with the code of its
 * error. A disk that does not answer cannot delay the shutdown: after OVERTIME_MS more the process
 * exits as if it had been killed, for which every state on disk is designed (commit.c). Nor can a
 * bucket (tier_hurry()).
 *
 * A supervisor that set NOTIFY_SOCKET (sd_notify(3)) is told when calls are answered, and when the
 * shutdown begins. */
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/front/check.h"
#include "ckptd/front/reload.h"
#include "ckptd/front/server.h"
#include "proto/base/array.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "storage/engine/system.h"
#include "storage/storage.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define OVERTIME_MS 10000

static atomic_bool has_ended; /* set by the service thread, which then sends SIGUSR2 */
static int ended_with;        /* its error at that time; it has been logged */

static void *run_service(void *argument)
{
    ended_with = service_run(argument);
    atomic_store(&has_ended, true);
    kill(getpid(), SIGUSR2); /* wakes main(), also when the loop ended by itself */
    return NULL;
}

/* One datagram; "@name" is an abstract socket. An error is ignored: the supervisor only misses the
 * news. */
static void notify(const char *state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t length = path ? strlen(path) : 0;
    if (length < 2 || length >= sizeof address.sun_path)
        return;
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&address,
                         bytes) < 0)
        log_warn("ckptd", "could not notify %s of %s: %s", path, state, strerror(errno));
    if (fd >= 0)
        close(fd);
}

static int exit_code_of(int error)
{
    return err_retry(error) ? EXIT_RUN_AGAIN : EXIT_DO_NOT_RETRY;
}

static int fail(int error)
{
    log_error("ckptd", "%s", report_line());
    return exit_code_of(error);
}

/* Signals of an orderly shutdown. Leaves SIGHUP out if it is ignored (nohup): sigwait receives even
 * ignored signals. */
static void fill_signals(sigset_t *signals)
{
    struct sigaction before;
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGUSR1); /* reload the configuration */
    sigaddset(signals, SIGUSR2); /* sent by ckptd itself */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaddset(signals, SIGHUP);
}

/* Waits for the thread, at most `ms`, even if the wall clock jumps or others send SIGUSR2. */
static bool join_within(pthread_t thread, int64_t ms)
{
    int64_t deadline = clock_ms() + ms;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    while (!atomic_load(&has_ended)) {
        int64_t left = deadline - clock_ms();
        if (left <= 0)
            return false;
        sigtimedwait(&signals, NULL,
                     &(struct timespec){.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000});
    }
    return pthread_join(thread, NULL) == 0;
}

/* Returns the exit code. */
static int serve(struct service *service, const struct config *config, const sigset_t *signals)
{
    pthread_t thread;
    siginfo_t who = {0};
    const struct timespec interval = {.tv_sec = 1}; /* for a service that gives up */
    int number = 0;
    if (pthread_create(&thread, NULL, run_service, service) != 0)
        return fail(report_error(ERR_MEMORY, NULL, "could not start the service thread"));
    do { /* any process may send SIGUSR2 */
        number = sigtimedwait(signals, &who, &interval);
        if (number == SIGUSR1)
            reload_ask(service);
    } while ((number < 0 || number == SIGUSR1 || number == SIGUSR2) && !atomic_load(&has_ended) &&
             !service_is_ending(service));
    bool is_told = number == SIGTERM || number == SIGINT || number == SIGHUP;
    notify("STOPPING=1");
    if (is_told) {
        log_info("ckptd", "stop signal from user %u, process %d", (unsigned)who.si_uid,
                 (int)who.si_pid);
        service_drain(service);
    }
    if (!join_within(thread, config->limit_drain_ms + OVERTIME_MS)) {
        log_error("ckptd", "the disk does not respond; ckptd exits without waiting for it");
        _exit(EXIT_RUN_AGAIN);
    }
    if (ended_with != 0)
        return exit_code_of(ended_with);
    return is_told ? EXIT_DONE : EXIT_RUN_AGAIN;
}

int main(int argc, char **argv)
{
    static struct config config;
    struct service *service = NULL;
    bool help = false;
    sigset_t signals;
    if (report_print_version("ckptd", argc, argv))
        return EXIT_DONE;
    log_setup("ckptd", NULL);
    int error = config_load(&config, argc, argv, &help);
    if (error != 0)
        return fail(error);
    if (help) {
        config_print_help();
        return EXIT_DONE;
    }
    log_setup("ckptd", config.log);
    if (config.check)
        return check_all(&config) ? EXIT_DONE : EXIT_DO_NOT_RETRY;
    if (config.make_store) {
        error = service_make_store(&config);
        if (error == 0)
            log_info("ckptd", "%s is a store", config.store);
        return error == 0 ? EXIT_DONE : fail(error);
    }
    /* Before any thread starts: all inherit the mask, so only sigwait receives these. */
    fill_signals(&signals);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed peer, a file over the limit: the call returns the error */
    signal(SIGXFSZ, SIG_IGN);
    error = service_open(&service, &config);
    if (error != 0)
        return fail(error);
    if (storage_forbid_rings() != 0) /* its storage is open */
        log_warn("ckptd", "could not forbid further io_uring rings: %s", report_line());
    notify("READY=1");
    int code = serve(service, &config, &signals);
    service_close(service);
    log_info("ckptd", "ended");
    return code;
}
