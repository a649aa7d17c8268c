/* outcomes.c - the results of saves: the reasons of the newest failures, and numbers for Status.
 *
 * The reason of a failed save is kept in a ring of the newest FAILURES_MAX for WaitSave; for an
 * older one the answer is SAVE_UNKNOWN. */
#include "ckptd/save/outcomes.h"
#include "ckptd/core/service.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int outcomes_open(struct service *service)
{
    service->outcomes = calloc(1, sizeof *service->outcomes);
    return service->outcomes ? 0 : report_error(ERR_MEMORY, NULL, "no memory for the service");
}

void outcomes_close(struct service *service)
{
    free(service->outcomes);
    service->outcomes = NULL;
}

/* A save that is refused for the same reason as the former one is not logged again: health has
 * their number. */
static bool is_repeat(const struct run *run, int code)
{
    return run->health.failures > 0 && run->health.code == code &&
           (code == ERR_SPACE || code == ERR_BUSY);
}

static void note_failure(struct run *run, int code, const char *reason)
{
    bool is_store = code != 0 && code != ERR_ABORTED;
    run->health.failures++;
    if (is_store || !run->health.is_store)
        snprintf(run->health.reason, sizeof run->health.reason, "%s", reason);
    report_make_printable(run->health.reason); /* it may have been cut */
    run->health.is_store |= is_store;
    run->health.code = code;
    service_check_health(run->service);
}

/* Keeps the failure for WaitSave. */
static void remember_failure(struct run *run, uint64_t step, uint64_t attempt, const char *reason)
{
    struct outcomes *outcomes = run->service->outcomes;
    struct failure *failure = &outcomes->failures[outcomes->num_failures++ % FAILURES_MAX];
    snprintf(failure->run, sizeof failure->run, "%s", run->name);
    snprintf(failure->reason, sizeof failure->reason, "%s", reason);
    failure->step = step;
    failure->attempt = attempt;
}

void outcomes_made_way(struct run *run, uint64_t step, uint64_t attempt, const char *reason)
{
    remember_failure(run, step, attempt, reason);
    log_info("commit", "run %s, step %llu, attempt %llu is not committed: %s", run->name,
             (unsigned long long)step, (unsigned long long)attempt, reason);
}

void outcomes_failed(struct run *run, uint64_t step, uint64_t attempt, int code, const char *reason)
{
    remember_failure(run, step, attempt, reason);
    run->service->outcomes->failed++;
    log_print(is_repeat(run, code) ? LOG_DEBUG : LOG_WARN, "commit",
              "run %s, step %llu, attempt %llu failed: %s", run->name, (unsigned long long)step,
              (unsigned long long)attempt, reason);
    note_failure(run, code, reason);
}

const struct failure *outcomes_find(const struct service *service, const char *run, uint64_t step,
                                    uint64_t attempt)
{
    const struct outcomes *outcomes = service->outcomes;
    uint32_t count = outcomes->num_failures < FAILURES_MAX ? outcomes->num_failures : FAILURES_MAX;
    for (uint32_t i = 1; i <= count; i++) {
        const struct failure *failure =
            &outcomes->failures[(outcomes->num_failures - i) % FAILURES_MAX];
        if (failure->step == step && failure->attempt == attempt && strcmp(failure->run, run) == 0)
            return failure;
    }
    return NULL;
}

void outcomes_refused(struct run *run, uint64_t step, uint64_t attempt, int error)
{
    if (outcomes_find(run->service, run->name, step, attempt))
        return;
    run->service->outcomes->refused++;
    outcomes_failed(run, step, attempt, error, report_line());
}

void outcomes_failed_at_client(struct run *run, uint64_t step, uint64_t attempt, const char *reason)
{
    struct run_health *health = &run->health;
    if (health->told == step + 1)
        return;
    health->told = step + 1;
    health->at_client++;
    snprintf(health->client_reason, sizeof health->client_reason, "%s", reason);
    report_make_printable(health->client_reason);
    if (outcomes_find(run->service, run->name, step, attempt))
        service_check_health(run->service);
    else
        outcomes_failed(run, step, attempt, ERR_ABORTED, health->client_reason);
}

/* A longer interval than before counts at once. A shorter one at most halves it: after one save on
 * demand the next regular one does not seem late. */
static void note_interval(struct commit_pace *pace, uint64_t attempt)
{
    int64_t now = clock_ms(), gap_ms = now - pace->last_ms, least_ms = pace->interval_ms / 2;
    if (pace->attempt == attempt)
        pace->interval_ms = gap_ms > least_ms ? gap_ms : least_ms;
    pace->attempt = attempt;
    pace->last_ms = now;
}

void outcomes_committed(struct run *run, uint64_t attempt)
{
    run->health = (struct run_health){0};
    note_interval(&run->pace, attempt);
    service_check_health(run->service);
}
