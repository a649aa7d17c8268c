/* reload.c - reloads the configuration while ckptd serves: `ckpt-cli server reload`, or SIGUSR1.
 *
 * A reload applies the retention rules, here and in the far tier, and the quotas of runs:
 * [retention], tier.keep_* and [run.NAME]. The rules are applied to all runs at once. It names
 * every other key that has changed: that needs a restart. A configuration that is refused changes
 * nothing.
 *
 * A worker reads the file. One at a time: a second Reload meanwhile is ERR_BUSY, a second signal is
 * handled after the first. */
#include "ckptd/front/reload.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/checkpoint.h"
#include "ckptd/core/config.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/policy.h"
#include "ckptd/core/service.h"
#include "ckptd/keep/retain.h"
#include "ckptd/keep/trash.h"
#include "proto/base/report.h"
#include "proto/wire/ckpt.pb-c.h"
#include "proto/wire/rpc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct reload {
    struct service *service;
    struct event event;
    atomic_bool is_asked;
    bool is_busy, must_again;
};

/* A reload in progress. */
struct reloading {
    struct service *service;
    struct rpc_call *call; /* NULL: a signal */
    struct config *config;
    struct fault fault;
    struct job job;
};

static void work_reload(struct job *job)
{
    struct reloading *reloading = CONTAINER_OF(job, struct reloading, job);
    const struct config *before = reloading->service->config;
    bool is_help;
    int error = config_load(reloading->config, before->argc, before->argv, &is_help);
    if (error != 0)
        fault_take(&reloading->fault, error);
}

/* The metric may have changed, and with it which are best. */
static void forget_metrics(struct service *service)
{
    for (struct run *run = service->catalog->runs; run; run = run->next)
        for (struct checkpoint *c = run->checkpoints; c; c = c->next)
            c->metric = (struct checkpoint_metric){.is_known = false};
}

static void take_over(struct reloading *reloading, char *changed)
{
    struct service *service = reloading->service;
    bool is_new = !policy_equal(&service->policies, &reloading->config->policies);
    service->policies = reloading->config->policies;
    if (is_new)
        forget_metrics(service);
    log_info("reload", "the configuration was read again: retention and quotas %s",
             is_new ? "have changed" : "are unchanged");
    if (changed[0])
        log_warn("reload", "these keys have changed, and need a restart of ckptd: %s", changed);
    retain_reloaded(service);
    trash_reloaded(service);
}

static void reloaded(struct event *event)
{
    struct reloading *reloading = CONTAINER_OF(event, struct reloading, job.done);
    struct service *service = reloading->service;
    Holdfast__V1__ReloadReply reply = HOLDFAST__V1__RELOAD_REPLY__INIT;
    char changed[CONFIG_CHANGED_BYTES] = "";
    service->reload->is_busy = false;
    if (reloading->fault.code == 0) {
        config_changed(changed, service->config, reloading->config);
        take_over(reloading, changed);
        reply.needs_restart = changed;
        if (reloading->call)
            rpc_call_reply(reloading->call, &reply.base);
    } else {
        int error = fault_raise(&reloading->fault);
        log_error("reload", "the configuration was not reloaded: %s", report_line());
        if (reloading->call)
            rpc_call_fail(reloading->call, error);
    }
    free(reloading->config);
    free(reloading);
    if (service->reload->must_again)
        reload_call(service, NULL, NULL);
}

void reload_call(struct service *service, struct rpc_call *call,
                 const Holdfast__V1__ReloadRequest *request)
{
    struct reloading *reloading = NULL;
    int error = service_check_open(service);
    (void)request;
    if (error == 0 && service->reload->is_busy)
        error = report_error(ERR_BUSY, "try again", "the configuration is being read");
    if (error == 0) {
        reloading = calloc(1, sizeof *reloading);
        if (reloading)
            reloading->config = calloc(1, sizeof *reloading->config);
        if (!reloading || !reloading->config)
            error = report_error(ERR_MEMORY, NULL, "no memory to read the configuration");
    }
    if (!call)
        service->reload->must_again = error == ERR_BUSY;
    if (error != 0) {
        free(reloading);
        if (call)
            rpc_call_fail(call, error);
        return;
    }
    reloading->service = service;
    reloading->call = call;
    service->reload->is_busy = true;
    reloading->job = (struct job){.work = work_reload, .done.run = reloaded};
    loop_work(service->loop, &reloading->job);
}

static void asked(struct event *event)
{
    struct reload *reload = CONTAINER_OF(event, struct reload, event);
    atomic_store(&reload->is_asked, false);
    reload_call(reload->service, NULL, NULL);
}

void reload_ask(struct service *service)
{
    if (!atomic_exchange(&service->reload->is_asked, true)) /* there is only one event */
        loop_post(service->loop, &service->reload->event);
}

int reload_open(struct service *service)
{
    service->reload = calloc(1, sizeof *service->reload);
    if (!service->reload)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->reload->service = service;
    service->reload->event.run = asked;
    return 0;
}

void reload_close(struct service *service)
{
    free(service->reload);
    service->reload = NULL;
}
