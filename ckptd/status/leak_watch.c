/* leak_watch.c - reads ckptd's own memory use every limits.look_ms.
 *
 * proto/base/leak.h decides whether that is a leak, which raises an alarm (alarms.c), and whether
 * it exceeds limits.exit_private_bytes. Then ckptd shuts down normally: saves in work finish, and
 * ranks continue with the ckptd that its supervisor starts for exit code 75. If a start exceeds
 * the limit already, restarts do not help: that start fails, with exit code 78. */
#include "ckptd/status/leak_watch.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "proto/base/clock.h"
#include "proto/base/process.h"
#include "proto/base/report.h"

#include <stdlib.h>

struct leak_watch {
    struct service *service;
    struct timer timer;
    struct leak leak;
};

static uint64_t own_bytes(void)
{
    struct process_memory memory;
    process_measure(&memory, "");
    return memory.private_memory + memory.swapped;
}

static void give_up(struct service *service, uint64_t bytes)
{
    struct fault fault;
    fault_take(&fault, report_error(ERR_MEMORY, "restart ckptd; trainers then continue to save",
                                    "ckptd takes %llu bytes of memory beside its pool, more than "
                                    "limits.exit_private_bytes = %llu, and ends",
                                    (unsigned long long)bytes,
                                    (unsigned long long)service->config->limit_exit_private_bytes));
    service_give_up(service, &fault);
}

static void check_memory(struct timer *timer)
{
    struct leak_watch *watch = CONTAINER_OF(timer, struct leak_watch, timer);
    struct service *service = watch->service;
    uint64_t bytes = own_bytes();
    if (service->draining)
        return;
    leak_note(&watch->leak, clock_ms(), bytes, (uint64_t)service->config->limit_exit_private_bytes);
    if (leak_is_over(&watch->leak))
        give_up(service, bytes);
    else
        loop_timer(service->loop, timer, service->config->limit_look_ms);
}

int leak_watch_open(struct service *service)
{
    uint64_t most = (uint64_t)service->config->limit_exit_private_bytes, bytes = own_bytes();
    struct leak_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return report_error(ERR_MEMORY, NULL, "no memory to watch memory");
    service->leak_watch = watch;
    watch->service = service;
    watch->timer.run = check_memory;
    if (most > 0 && bytes > most)
        return report_error(ERR_INVALID, "set it to twice that or more",
                            "limits.exit_private_bytes = %llu, and ckptd takes %llu bytes of "
                            "memory beside its pool when it starts",
                            (unsigned long long)most, (unsigned long long)bytes);
    loop_timer(service->loop, &watch->timer, 0);
    return 0;
}

void leak_watch_close(struct service *service)
{
    free(service->leak_watch);
    service->leak_watch = NULL;
}

const struct leak *leak_watch_seen(const struct service *service)
{
    return &service->leak_watch->leak;
}
