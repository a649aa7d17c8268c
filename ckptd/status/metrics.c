/* metrics.c - the file of metrics.file: the numbers of Status in Prometheus' text format.
 *
 * Every metrics.every_ms the status is made on the service thread, and a worker writes the text
 * (metrics_text.c). The file is replaced as a whole, so readers never see a part; node_exporter's
 * textfile collector serves it, and its mtime shows its age. ckptd removes it at shutdown.
 *
 * It is for a ckptd without a network (deploy/ckptd.service.in); status/http_server.c has the same
 * text on a port. */
#include "ckptd/status/metrics.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/status/metrics_text.h"
#include "ckptd/status/status.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"

#include <jansson.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct metrics {
    struct service *service;
    struct timer timer;
    struct job job;
    char *status; /* JSON; owned by the worker during its job */
    char temporary[300];
    bool has_failed; /* logged once, until it succeeds again */
};

static bool replace_file(const struct metrics *metrics, const json_t *status)
{
    FILE *out = fopen(metrics->temporary, "we");
    if (!out)
        return false;
    metrics_text_write(out, status);
    bool whole = fchmod(fileno(out), 0644) == 0 && !ferror(out);
    whole = fclose(out) == 0 && whole;
    if (whole && rename(metrics->temporary, metrics->service->config->metrics_file) == 0)
        return true;
    int number = errno;
    unlink(metrics->temporary);
    errno = number;
    return false;
}

static void work_write(struct job *job)
{
    struct metrics *metrics = CONTAINER_OF(job, struct metrics, job);
    json_t *status = json_loads(metrics->status, 0, NULL);
    bool went_well = status && replace_file(metrics, status);
    if (!went_well && !metrics->has_failed)
        log_warn("metrics", "could not write %s: %s", metrics->service->config->metrics_file,
                 strerror(errno));
    metrics->has_failed = !went_well;
    json_decref(status);
}

static void written(struct event *event)
{
    struct metrics *metrics = CONTAINER_OF(event, struct metrics, job.done);
    free(metrics->status);
    metrics->status = NULL;
    loop_timer(metrics->service->loop, &metrics->timer, metrics->service->config->metrics_every_ms);
}

static void write_now(struct timer *timer)
{
    struct metrics *metrics = CONTAINER_OF(timer, struct metrics, timer);
    if (metrics->service->draining)
        return;
    metrics->status = service_status(metrics->service, false, 0);
    if (!metrics->status) {
        loop_timer(metrics->service->loop, timer, metrics->service->config->metrics_every_ms);
        return;
    }
    metrics->job = (struct job){.work = work_write, .done.run = written};
    loop_work(metrics->service->loop, &metrics->job);
}

int metrics_open(struct service *service)
{
    if (service->config->metrics_file[0] == '\0')
        return 0;
    struct metrics *metrics = calloc(1, sizeof *metrics);
    if (!metrics)
        return report_error(ERR_MEMORY, NULL, "no memory for the metrics");
    metrics->service = service;
    metrics->timer.run = write_now;
    snprintf(metrics->temporary, sizeof metrics->temporary, "%s.new",
             service->config->metrics_file);
    service->metrics = metrics;
    loop_timer(service->loop, &metrics->timer, 0);
    return 0;
}

void metrics_close(struct service *service)
{
    if (!service->metrics)
        return;
    unlink(service->config->metrics_file); /* its numbers are outdated */
    free(service->metrics->status);
    free(service->metrics);
    service->metrics = NULL;
}
