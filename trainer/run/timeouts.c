/* timeouts.c - the limits of a rank's waits for other ranks (see timeouts.h). */
#include "trainer/run/timeouts.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "trainer/config/hooks.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#define DURABLE_SECONDS 600 /* limit for a save to become durable (save/final.c) */

static const char init_key[] = "comm.init_timeout_seconds";
static const char train_key[] = "comm.train_timeout_seconds";
static const char preflight_key[] = "the 100 seconds of a preflight";

static bool is_preflight_shorter(const struct config *config)
{
    return config->preflight && config->comm_init_timeout > PREFLIGHT_SECONDS;
}

static const char *init_limit(const struct config *config)
{
    return is_preflight_shorter(config) ? preflight_key : init_key;
}

int64_t timeouts_init_seconds(const struct config *config)
{
    if (hooks_wait(config))
        return 0;
    return is_preflight_shorter(config) ? PREFLIGHT_SECONDS : config->comm_init_timeout;
}

void timeouts_set(struct flight *flight, const struct config *config, enum timeouts phase)
{
    int64_t train = config->comm_timeout, seconds = 0;
    bool is_init = phase == TIMEOUT_INIT;
    if (is_init)
        seconds = timeouts_init_seconds(config);
    else if (phase == TIMEOUT_TRAIN)
        seconds = train;
    else if (phase == TIMEOUT_SERVER && train > 0)
        seconds = train + config->busy_wait_seconds + config->final_seconds + DURABLE_SECONDS;
    if (hooks_wait(config))
        seconds = 0;
    flight_set_limit(flight, seconds, is_init ? init_limit(config) : train_key);
}

/* ---- MPI's set-up ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_met;
    int64_t seconds;
    const char *setting;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *end_if_late(void *unused)
{
    (void)unused;
    struct timespec until =
        clock_after_ns(CLOCK_MONOTONIC, (uint64_t)meeting.seconds * CLOCK_SECOND_NS);
    int rc = 0;
    pthread_mutex_lock(&meeting.lock);
    while (!meeting.has_met && rc != ETIMEDOUT)
        rc = pthread_cond_clockwait(&meeting.changed, &meeting.lock, CLOCK_MONOTONIC, &until);
    if (!meeting.has_met) {
        log_error("comm",
                  "this rank waited longer than %s for all ranks to start: see which host "
                  "did not start its own",
                  meeting.setting);
        _exit(EXIT_RUN_AGAIN);
    }
    pthread_mutex_unlock(&meeting.lock);
    return NULL;
}

int timeouts_meet(const struct config *config)
{
    pthread_t thread;
    meeting.seconds = timeouts_init_seconds(config);
    meeting.setting = init_limit(config);
    if (meeting.seconds == 0)
        return 0;
    if (pthread_create(&thread, NULL, end_if_late, NULL) != 0)
        return report_error(ERR_BUSY, "raise the limit of threads (ulimit -u)",
                            "could not start a thread that limits MPI's set-up");
    pthread_setname_np(thread, "meet");
    pthread_detach(thread);
    return 0;
}

void timeouts_met(void)
{
    pthread_mutex_lock(&meeting.lock);
    meeting.has_met = true;
    pthread_cond_signal(&meeting.changed);
    pthread_mutex_unlock(&meeting.lock);
}
