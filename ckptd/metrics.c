/* metrics.c - the numbers of Status as a file in Prometheus' text format.
 *
 * Every metrics.every_ms the status is made on the service thread, and a worker writes each number
 * of it as a gauge, its place in the status being its name: disk.bytes_left becomes
 * holdfast_disk_bytes_left, a truth is 0 or 1, a list counts its members, and what is not known
 * (null) has no line. A run's own numbers have its name as a label, holdfast_run_damaged{run="a"};
 * so have those of its copies, holdfast_replication_lag_seconds{run="a"}, and those of another
 * node, holdfast_node_lost{node="n2"}, with what it told of itself,
 * holdfast_node_told_disk_bytes_left{node="n2"}. The file is replaced whole, so who reads it never
 * sees a part; node_exporter's textfile collector serves it, and its mtime tells how fresh it is.
 * It goes when ckptd ends.
 *
 * A file and not a port: ckptd runs without a network (deploy/ckptd.service.in). */
#include "ckptd/metrics.h"
#include "ckptd/loop.h"
#include "ckptd/service.h"
#include "ckptd/status.h"
#include "proto/report.h"
#include "proto/toml.h"

#include <jansson.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME_BYTES_MAX 128u
#define DEPTH_MAX 4

/* Numbers of each member of a list in Status, with its name as a label. */
static const struct {
    const char *prefix, *label, *name; /* name: the field that has it */
    const char *keys[28];              /* "a.b": of the object `a` in it */
} lists[] = {
    {"run",
     "run",
     "run",
     {"checkpoints", "damaged", "bytes", "newest_step", "newest_attempt", "newest_age_seconds",
      "failures_in_row", "ranks", "silent_seconds"}},
    {"replication",
     "run",
     "run",
     {"newest_step", "replicated_step", "checkpoints_behind", "bytes_behind", "lag_seconds"}},
    {"node",
     "node",
     "name",
     {"lost",
      "silent_seconds",
      "checkpoints",
      "waiting",
      "waiting_bytes",
      "bytes_sent",
      "bytes_before_commit",
      "bytes_per_second",
      "errors",
      "links.control.rtt_seconds",
      "links.bulk.rtt_seconds",
      "links.bulk.bytes_per_second_in",
      "links.bulk.bytes_per_second_out",
      "told.seconds_ago",
      "told.disk.bytes_total",
      "told.disk.bytes_free",
      "told.disk.bytes_left",
      "told.pool.bytes",
      "told.pool.segments",
      "told.pool.segments_used",
      "told.saves",
      "told.alarms",
      "told.behind.bytes",
      "told.behind.lag_seconds"}},
};

struct metrics {
    struct service *service;
    struct timer timer;
    struct job job;
    char *status; /* JSON; the worker's while it has the job */
    char temporary[300];
    bool has_failed; /* said once, until it goes well again */
};

/* Names are ours: lower-case letters, digits and underscores. */
static void write_value(FILE *out, const char *name, const json_t *value, int depth)
{
    char inner[NAME_BYTES_MAX];
    const char *key;
    json_t *member;
    if (json_is_object(value) && depth < DEPTH_MAX) {
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            snprintf(inner, sizeof inner, "%s_%s", name, key);
            write_value(out, inner, member, depth + 1);
        }
    } else if (json_is_integer(value)) {
        fprintf(out, "# TYPE %s gauge\n%s %lld\n", name, name,
                (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        fprintf(out, "# TYPE %s gauge\n%s %.17g\n", name, name, json_real_value(value));
    } else if (json_is_boolean(value)) {
        fprintf(out, "# TYPE %s gauge\n%s %d\n", name, name, json_is_true(value));
    } else if (json_is_array(value)) {
        fprintf(out, "# TYPE %s gauge\n%s %zu\n", name, name, json_array_size(value));
    }
}

/* What is there by a path "a.b"; `name`, the path as a name: "a_b". */
static const json_t *follow(char name[NAME_BYTES_MAX], const json_t *item, const char *path)
{
    char *at = name, *dot;
    snprintf(name, NAME_BYTES_MAX, "%s", path);
    while ((dot = strchr(at, '.')) != NULL) {
        *dot = '\0';
        item = json_object_get(item, at);
        *dot = '_';
        at = dot + 1;
    }
    return json_object_get(item, at);
}

static double number_of(const json_t *value)
{
    return json_is_array(value)  ? (double)json_array_size(value)
           : json_is_true(value) ? 1.0
                                 : json_number_value(value);
}

/* A gauge with a line per member. Names of runs and nodes need no escape (run_name_valid). */
static void write_labelled(FILE *out, const json_t *list, size_t at, const char *path)
{
    char name[NAME_BYTES_MAX];
    size_t index;
    json_t *item;
    follow(name, NULL, path);
    fprintf(out, "# TYPE holdfast_%s_%s gauge\n", lists[at].prefix, name);
    json_array_foreach(list, index, item)
    {
        const json_t *value = follow(name, item, path);
        if (json_is_number(value) || json_is_boolean(value) || json_is_array(value))
            fprintf(out, "holdfast_%s_%s{%s=\"%s\"} %.17g\n", lists[at].prefix, name,
                    lists[at].label, json_string_value(json_object_get(item, lists[at].name)),
                    number_of(value));
    }
}

/* Text that says whether the store takes saves is worth a number too. */
static void write_all(FILE *out, const json_t *status)
{
    const char *offline = json_string_value(json_object_get(status, "offline"));
    write_value(out, "holdfast", status, 0);
    fprintf(out, "# TYPE holdfast_offline gauge\nholdfast_offline %d\n",
            offline && offline[0] != '\0');
    const json_t *nodes = json_object_get(status, "nodes");
    const json_t *of[] = {json_object_get(status, "runs"), json_object_get(nodes, "runs"),
                          json_object_get(nodes, "peers")};
    for (size_t at = 0; at < sizeof lists / sizeof lists[0]; at++)
        for (size_t i = 0; lists[at].keys[i]; i++)
            write_labelled(out, of[at], at, lists[at].keys[i]);
    fprintf(out, "# TYPE holdfast_info gauge\nholdfast_info{version=\"%s\"} 1\n",
            json_string_value(json_object_get(status, "version")));
}

static bool replace_file(const struct metrics *metrics, const json_t *status)
{
    FILE *out = fopen(metrics->temporary, "we");
    if (!out)
        return false;
    write_all(out, status);
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
    metrics->status = service_status(metrics->service, false);
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
    unlink(service->config->metrics_file); /* its numbers are nobody's any more */
    free(service->metrics->status);
    free(service->metrics);
    service->metrics = NULL;
}
