/* service.c - whether ckptd accepts work: open, draining, or with its store offline. */
#include "ckptd/core/service.h"
#include "ckptd/core/loop.h"
#include "proto/base/report.h"
#include "proto/wire/rpc.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

void service_random(void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t count = getrandom((uint8_t *)out + done, bytes - done, 0);
        CHECK(count > 0 || errno == EINTR);
        done += count > 0 ? (size_t)count : 0;
    }
}

bool service_seconds_left(int64_t *out, const struct service *service)
{
    if (service->network)
        *out = rpc_server_tls_end_s(service->rpc) - time(NULL);
    return service->network != NULL;
}

int service_check_open(const struct service *service)
{
    if (!service->draining)
        return 0;
    return report_error(ERR_UNAVAILABLE, "wait for the next ckptd", "ckptd is shutting down");
}

int service_check_last_saves(const struct service *service)
{
    return service->takes_last_saves ? 0 : service_check_open(service);
}

int service_check_online(const struct service *service)
{
    if (!service->offline[0])
        return 0;
    return report_error(ERR_IO,
                        service->is_away ? "mount it again, or move it back"
                                         : "replace the disk, then restart ckptd",
                        "the store is offline: %s", service->offline);
}

static void go_offline(struct service *service, const char *why, bool is_away)
{
    if (service->offline[0] && (is_away || !service->is_away))
        return;
    service->is_away = is_away;
    snprintf(service->offline, sizeof service->offline, "%s", why);
    log_error("storage", "the store is offline, saves are refused: %s", why);
    service_check_health(service);
}

void service_go_offline(struct service *service, const char *why)
{
    go_offline(service, why, false);
}

void service_go_away(struct service *service, const char *why)
{
    go_offline(service, why, true);
}

void service_come_back(struct service *service)
{
    if (!service->is_away)
        return;
    service->is_away = false;
    service->offline[0] = '\0';
    log_info("storage", "the store is back where it was, and saves go on");
    service_check_health(service);
    service_retry_saves(service);
}

void service_drain(struct service *service)
{
    if (!atomic_exchange(&service->drain_asked, true)) /* there is only one event */
        loop_post(service->loop, &service->drain_event);
}

bool service_is_ending(const struct service *service)
{
    return atomic_load(&service->drain_asked);
}

/* Not at once: saves in work can finish in the memory that they have. */
void service_give_up(struct service *service, const struct fault *fault)
{
    service->fault = *fault;
    fault_raise(fault);
    log_error("ckptd", "%s", report_line());
    service_drain(service);
}

void service_check_health(struct service *service)
{
    if (service->loop)
        loop_timer(service->loop, &service->health_timer, 0);
}

/* By timers: the caller may be in the middle of a change. */
void service_retry_saves(struct service *service)
{
    if (!service->retry_saves.armed)
        loop_timer(service->loop, &service->retry_saves, 0);
}

void service_retry_waiting(struct service *service)
{
    if (!service->retry_loads.armed)
        loop_timer(service->loop, &service->retry_loads, 0);
    service_retry_saves(service);
}
