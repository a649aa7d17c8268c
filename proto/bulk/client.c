/* client.c - see bulk.h. The calls make jobs, which workers.c executes, and wait for them. */
#include "proto/bulk/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECTIONS 4u
#define GET_JOB_BYTES (4u << 20)
#define LEAVE_MS 1000

static void init_locks(struct bulk *bulk)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&bulk->mutex, NULL);
    pthread_cond_init(&bulk->work, &attributes);
    pthread_cond_init(&bulk->done, &attributes);
    pthread_condattr_destroy(&attributes);
}

int bulk_open(struct bulk **out, const struct bulk_options *options)
{
    struct bulk *bulk = calloc(1, sizeof *bulk);
    uint32_t count = options->num_connections != 0 ? options->num_connections : CONNECTIONS;
    if (!bulk)
        return report_error(ERR_MEMORY, NULL, "no memory for the bulk plane");
    init_locks(bulk);
    bulk->last = &bulk->first;
    bulk->renew = options->renew;
    bulk->user = options->user;
    memcpy(bulk->ticket, options->ticket, sizeof bulk->ticket);
    int error = address_parse(&bulk->address, options->address);
    if (error == 0 && bulk->address.kind != ADDRESS_TLS)
        error = report_error(ERR_INVALID, "give host:port", "the bulk plane of %s has no socket",
                             options->address);
    if (error == 0 && options->directory) {
        snprintf(bulk->directory, sizeof bulk->directory, "%s", options->directory);
        error = tls_keys_open_client(&bulk->keys, bulk->directory, BULK_PROTOCOL);
    }
    if (error == 0)
        error =
            bulk_start_workers(bulk, count < BULK_CONNECTIONS_MAX ? count : BULK_CONNECTIONS_MAX);
    if (error == 0)
        *out = bulk;
    else
        bulk_close(bulk);
    return error;
}

/* Ends the jobs of a group; with the mutex, which is released while it waits. */
static void end_group(struct bulk *bulk, struct group *group, int error)
{
    if (group->error == 0) {
        group->error = error;
        report_keep(&bulk->text);
    }
    bulk_sweep(bulk);
    for (uint32_t i = 0; i < BULK_CONNECTIONS_MAX; i++) {
        struct worker *worker = &bulk->workers[i];
        bool has_any = false;
        for (const struct job *job = worker->first; job; job = job->next)
            has_any |= job->group == group;
        if (has_any && worker->stream)
            tls_stream_cut(worker->stream);
    }
    while (group->left > 0)
        pthread_cond_wait(&bulk->done, &bulk->mutex);
}

void bulk_close(struct bulk *bulk)
{
    struct report_text text; /* the caller's error, because of which it closes */
    if (!bulk)
        return;
    report_keep(&text);
    pthread_mutex_lock(&bulk->mutex);
    bulk->is_closing = true;
    if (bulk->puts.error == 0)
        bulk->puts.error = report_error(ERR_ABORTED, NULL, "the bulk plane was closed");
    for (uint32_t i = 0; i < BULK_CONNECTIONS_MAX; i++)
        if (bulk->workers[i].stream)
            tls_stream_cut(bulk->workers[i].stream);
    pthread_cond_broadcast(&bulk->work);
    pthread_cond_broadcast(&bulk->done);
    pthread_mutex_unlock(&bulk->mutex);
    for (uint32_t i = 0; i < BULK_CONNECTIONS_MAX; i++)
        if (bulk->workers[i].has_thread)
            pthread_join(bulk->workers[i].thread, NULL);
    bulk_sweep(bulk);
    tls_keys_close(bulk->keys);
    pthread_cond_destroy(&bulk->work);
    pthread_cond_destroy(&bulk->done);
    pthread_mutex_destroy(&bulk->mutex);
    free(bulk);
    report_restore(&text, 0);
}

/* Waits for the group, at most until `until_ms`; with the mutex. */
static int wait_group(struct bulk *bulk, struct group *group, int64_t until_ms)
{
    struct timespec until = at_ms(until_ms);
    while (group->left > 0) {
        if (clock_ms() >= until_ms)
            end_group(bulk, group, report_error(ERR_TIMEOUT, NULL, "the bulk plane took too long"));
        else
            pthread_cond_timedwait(&bulk->done, &bulk->mutex, &until);
    }
    return group->error != 0 ? report_restore(&bulk->text, group->error) : 0;
}

/* A run of bytes, to read or write. */
struct run {
    struct bulk_request request; /* for the whole run */
    unsigned char *to;           /* GET */
    const unsigned char *from;   /* PUT */
    uint64_t bytes_each;         /* of a job */
};

static uint64_t num_jobs(const struct run *run)
{
    return run->request.bytes / run->bytes_each + (run->request.bytes % run->bytes_each != 0);
}

/* Cuts it into jobs; with the mutex. Returns the place after them. */
static struct job *push_run(struct bulk *bulk, struct job *jobs, struct group *group,
                            const struct run *run)
{
    uint64_t bytes = run->request.bytes, each = run->bytes_each;
    for (uint64_t at = 0; at < bytes; at += each, jobs++) {
        *jobs = (struct job){.group = group,
                             .request = run->request,
                             .to = run->to ? run->to + at : NULL,
                             .from = run->from ? run->from + at : NULL};
        jobs->request.offset += at;
        jobs->request.bytes = bytes - at < each ? bytes - at : each;
        bulk_push_job(bulk, jobs);
    }
    return jobs;
}

/* Moves all runs, or fails. */
static int move_runs(struct bulk *bulk, const struct run *runs, uint32_t count, uint32_t timeout_ms)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += num_jobs(&runs[i]);
    struct job *jobs = calloc(total + 1, sizeof *jobs), *next = jobs;
    struct group group = {.left = (uint32_t)total};
    if (!jobs)
        return report_error(ERR_MEMORY, NULL, "no memory to move %u runs of bytes", count);
    pthread_mutex_lock(&bulk->mutex);
    for (uint32_t i = 0; i < count; i++)
        next = push_run(bulk, next, &group, &runs[i]);
    int error = wait_group(bulk, &group, clock_ms() + timeout_ms);
    pthread_mutex_unlock(&bulk->mutex);
    free(jobs);
    return error;
}

int bulk_get_all(struct bulk *bulk, const struct bulk_get *gets, uint32_t count,
                 uint32_t timeout_ms)
{
    struct run *runs = calloc((size_t)count + 1, sizeof *runs);
    if (!runs)
        return report_error(ERR_MEMORY, NULL, "no memory to get %u runs of bytes", count);
    for (uint32_t i = 0; i < count; i++)
        runs[i] = (struct run){.request = {.magic = BULK_MAGIC,
                                           .verb = BULK_GET,
                                           .part = gets[i].part,
                                           .generation = gets[i].generation,
                                           .offset = gets[i].offset,
                                           .bytes = gets[i].bytes,
                                           .save = gets[i].save},
                               .to = gets[i].to,
                               .bytes_each = GET_JOB_BYTES};
    int error = move_runs(bulk, runs, count, timeout_ms);
    free(runs);
    return error;
}

int bulk_get(struct bulk *bulk, const struct bulk_get *get, uint32_t timeout_ms)
{
    return bulk_get_all(bulk, get, 1, timeout_ms);
}

int bulk_write(struct bulk *bulk, uint64_t handle, uint64_t offset, const void *from,
               uint64_t bytes, uint32_t timeout_ms)
{
    const struct run run = {.request = {.magic = BULK_MAGIC,
                                        .verb = BULK_PUT,
                                        .offset = offset,
                                        .bytes = bytes,
                                        .save = handle},
                            .from = from,
                            .bytes_each = BULK_BLOCK_BYTES};
    return move_runs(bulk, &run, 1, timeout_ms);
}

static int queue_put(struct bulk *bulk, const struct bulk_put *put)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job)
        return report_error(ERR_MEMORY, NULL, "no memory for a block");
    job->group = &bulk->puts;
    job->from = put->from;
    job->request = (struct bulk_request){.magic = BULK_MAGIC,
                                         .verb = put->bytes > 0 ? BULK_PUT : BULK_END,
                                         .part = put->segment,
                                         .generation = put->generation,
                                         .offset = put->offset,
                                         .bytes = put->bytes,
                                         .save = put->save,
                                         .image_byte = put->image_byte,
                                         .image = put->image,
                                         .number = put->number};
    bulk->puts.left++;
    bulk->puts_under_way++;
    bulk_push_job(bulk, job);
    return 0;
}

int bulk_put(struct bulk *bulk, const struct bulk_put *put)
{
    pthread_mutex_lock(&bulk->mutex);
    uint32_t most = put->bytes > 0 ? BULK_QUEUE_MAX : 1; /* the end comes after all blocks */
    while (bulk->puts_under_way >= most && bulk->puts.error == 0)
        pthread_cond_wait(&bulk->done, &bulk->mutex);
    int error = bulk->puts.error != 0 ? report_restore(&bulk->text, bulk->puts.error)
                                      : queue_put(bulk, put);
    pthread_mutex_unlock(&bulk->mutex);
    return error;
}

int bulk_flush(struct bulk *bulk)
{
    pthread_mutex_lock(&bulk->mutex);
    while (bulk->puts.left > 0)
        pthread_cond_wait(&bulk->done, &bulk->mutex);
    int error = bulk->puts.error != 0 ? report_restore(&bulk->text, bulk->puts.error) : 0;
    bulk->puts.error = 0;
    pthread_mutex_unlock(&bulk->mutex);
    return error;
}

void bulk_drop(struct bulk *bulk)
{
    struct report_text text;
    report_keep(&text);
    pthread_mutex_lock(&bulk->mutex);
    if (bulk->puts.left > 0)
        end_group(bulk, &bulk->puts, report_error(ERR_ABORTED, NULL, "the save was given up"));
    bulk->puts.error = 0;
    pthread_mutex_unlock(&bulk->mutex);
    report_restore(&text, 0);
}

int bulk_window(struct bulk *bulk, struct arena_window *out, uint32_t changes, uint32_t wait_ms)
{
    struct group group = {.left = 1};
    struct bulk_answer answer = {.error = 0};
    struct job job = {.group = &group,
                      .request = {.magic = BULK_MAGIC,
                                  .verb = BULK_WINDOW,
                                  .bytes = wait_ms < BULK_WINDOW_MS ? wait_ms : BULK_WINDOW_MS,
                                  .number = changes},
                      .answer = &answer};
    pthread_mutex_lock(&bulk->mutex);
    bulk_push_job(bulk, &job);
    int error = wait_group(bulk, &group, clock_ms() + wait_ms + 4 * BULK_STALL_MS);
    pthread_mutex_unlock(&bulk->mutex);
    *out = (struct arena_window){answer.window_save, answer.window_end, answer.window_changes};
    return error;
}

void bulk_leave(struct bulk *bulk)
{
    struct group group = {.left = 1};
    struct job job = {.group = &group, .request = {.magic = BULK_MAGIC, .verb = BULK_LEAVE}};
    struct report_text text;
    report_keep(&text);
    pthread_mutex_lock(&bulk->mutex);
    if (bulk->lost == 0) {
        bulk_push_job(bulk, &job);
        wait_group(bulk, &group, clock_ms() + LEAVE_MS);
    }
    pthread_mutex_unlock(&bulk->mutex);
    report_restore(&text, 0);
}

void bulk_count(struct bulk *bulk, struct bulk_counts *out)
{
    pthread_mutex_lock(&bulk->mutex);
    *out = bulk->counts;
    pthread_mutex_unlock(&bulk->mutex);
}

int bulk_check(struct bulk *bulk)
{
    pthread_mutex_lock(&bulk->mutex);
    int error = bulk->lost != 0 ? report_restore(&bulk->text, bulk->lost) : 0;
    pthread_mutex_unlock(&bulk->mutex);
    return error;
}
