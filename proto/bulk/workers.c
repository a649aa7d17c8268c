/* workers.c - the threads that send and receive over the bulk plane; see private.h.
 *
 * A queue of jobs, and one worker per connection. A worker sends the next job while its connection
 * may have more under way (the answers come in order), else it reads the answer to its oldest.
 * After a failure of the connection its jobs go back to the front of the queue, marked. For a block
 * that may have arrived the worker sends HAVE before it sends the block again. A run of bytes is
 * requested from its first missing block on.
 *
 * A job belongs to a group: one bulk_get or bulk_write, or the puts of a save. The first error of a
 * group ends its other jobs. */
#include "proto/base/checksum.h"
#include "proto/bulk/private.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GETS_AHEAD 2u    /* of a connection, so that the next answer is under way */
#define AGAIN_MS_MIN 20u /* between two tries to connect; doubles */
#define AGAIN_MS_MAX 500u
#define POLL_MS 500    /* how often an idle connection is checked */
#define DAMAGED_MAX 3u /* a block damaged this often is an error */

/* ---- jobs; with the mutex ---- */

void bulk_push_job(struct bulk *bulk, struct job *job)
{
    if (!bulk->first)
        bulk->progress_ms = clock_ms();
    job->next = NULL;
    *bulk->last = job;
    bulk->last = &job->next;
    pthread_cond_signal(&bulk->work);
}

static struct job *pop_job(struct bulk *bulk)
{
    struct job *job = bulk->first;
    bulk->first = job->next;
    if (!bulk->first)
        bulk->last = &bulk->first;
    return job;
}

/* Ends a job, with this thread's last error if there is one. */
static void end_job(struct bulk *bulk, struct job *job, int error)
{
    struct group *group = job->group;
    if (error != 0 && group->error == 0) {
        group->error = error;
        report_keep(&bulk->text);
    }
    group->left--;
    if (group == &bulk->puts) {
        bulk->puts_under_way--;
        free(job);
    }
    pthread_cond_broadcast(&bulk->done);
}

/* Jobs of a failed group do not begin. */
void bulk_sweep(struct bulk *bulk)
{
    struct job *first = bulk->first;
    bulk->first = NULL;
    bulk->last = &bulk->first;
    while (first) {
        struct job *job = first;
        first = job->next;
        if (job->group->error != 0)
            end_job(bulk, job, job->group->error);
        else {
            job->next = NULL;
            *bulk->last = job;
            bulk->last = &job->next;
        }
    }
}

/* Fails everything under way, with this thread's last error. */
static void fail_all(struct bulk *bulk, int error)
{
    bulk->lost = error;
    report_keep(&bulk->text);
    while (bulk->first)
        end_job(bulk, pop_job(bulk), error);
}

/* Returns jobs sent over a lost connection to the front of the queue. */
static void requeue_jobs(struct worker *worker)
{
    struct bulk *bulk = worker->bulk;
    if (!worker->first)
        return;
    for (struct job *job = worker->first; job; job = job->next) {
        job->is_again = job->was_again = true;
        bulk->counts.bytes_again += job->request.bytes - job->done;
    }
    *worker->last = bulk->first;
    if (!bulk->first)
        bulk->last = worker->last;
    bulk->first = worker->first;
    worker->first = NULL;
    worker->last = &worker->first;
    worker->count = 0;
    bulk_sweep(bulk);
    pthread_cond_broadcast(&bulk->work);
}

/* ---- connecting ---- */

/* Reads an error that the peer sent, with its text. */
static int read_error(struct tls_stream *stream, const struct bulk_answer *answer)
{
    char text[BULK_TEXT_MAX + 1] = "";
    ERR_TRY(tls_stream_read(stream, text, answer->bytes, BULK_STALL_MS));
    report_make_printable(text);
    return report_set(answer->error, text, "", "");
}

static int say_hello(struct worker *worker, const uint8_t *ticket)
{
    bool is_tls = worker->bulk->keys != NULL;
    struct bulk_hello hello = {.magic = BULK_MAGIC, .wants = is_tls ? BULK_UNHASHED : 0};
    struct bulk_answer answer;
    const struct bulk_request none = {.verb = BULK_HAVE};
    memcpy(hello.ticket, ticket, sizeof hello.ticket);
    ERR_TRY(tls_stream_write(worker->stream, &hello, sizeof hello, BULK_STALL_MS));
    ERR_TRY(tls_stream_read(worker->stream, &answer, sizeof answer, BULK_STALL_MS));
    ERR_TRY(bulk_check_answer(&answer, &none, 0));
    worker->is_unhashed = is_tls && (answer.grants & BULK_UNHASHED) != 0;
    return answer.error == 0 ? 0 : read_error(worker->stream, &answer);
}

/* The ticket was refused. 0: there is a newer one now. Call it without the mutex. */
static int renew_ticket(struct bulk *bulk, uint32_t refused)
{
    uint8_t ticket[BULK_TICKET_BYTES];
    struct report_text text;
    int error = ERR_DENIED;
    report_keep(&text);
    pthread_mutex_lock(&bulk->mutex);
    while (bulk->is_renewing)
        pthread_cond_wait(&bulk->done, &bulk->mutex);
    bool is_old = bulk->ticket_number != refused;
    bulk->is_renewing = !is_old;
    pthread_mutex_unlock(&bulk->mutex);
    if (is_old)
        return 0;
    if (bulk->renew)
        error = bulk->renew(bulk->user, ticket);
    pthread_mutex_lock(&bulk->mutex);
    bulk->is_renewing = false;
    if (error == 0) {
        memcpy(bulk->ticket, ticket, sizeof ticket);
        bulk->ticket_number++;
    }
    pthread_cond_broadcast(&bulk->done);
    pthread_mutex_unlock(&bulk->mutex);
    return error != 0 && !bulk->renew ? report_restore(&text, error) : error;
}

static int open_connection(struct worker *worker)
{
    struct bulk *bulk = worker->bulk;
    uint8_t ticket[BULK_TICKET_BYTES];
    struct tls_stream *stream;
    int fd = -1;
    ERR_TRY(address_connect(&fd, &bulk->address));
    ERR_TRY(tls_stream_open(&stream, bulk->keys, fd, bulk->keys ? bulk->address.host : NULL,
                            BULK_STALL_MS, NULL));
    pthread_mutex_lock(&bulk->mutex);
    worker->stream = stream;
    memcpy(ticket, bulk->ticket, sizeof ticket);
    uint32_t number = bulk->ticket_number;
    pthread_mutex_unlock(&bulk->mutex);
    int error = say_hello(worker, ticket);
    if (error == ERR_DENIED && renew_ticket(bulk, number) == 0)
        error =
            report_error(ERR_UNAVAILABLE, NULL, "a ticket of the bulk plane was no longer good");
    return error;
}

static void close_connection(struct worker *worker)
{
    struct bulk *bulk = worker->bulk;
    pthread_mutex_lock(&bulk->mutex);
    struct tls_stream *stream = worker->stream;
    bulk->counts.num_cuts += stream != NULL && worker->first != NULL;
    worker->stream = NULL;
    requeue_jobs(worker);
    pthread_mutex_unlock(&bulk->mutex);
    tls_stream_close(stream);
}

/* The connection failed, or could not be made. Temporary errors are retried. */
static void connection_failed(struct worker *worker, int error)
{
    struct bulk *bulk = worker->bulk;
    struct report_text text;
    bool passes = error == ERR_UNAVAILABLE || error == ERR_TIMEOUT || error == ERR_BUSY ||
                  error == ERR_CORRUPT;
    report_keep(&text);
    close_connection(worker);
    int64_t now = clock_ms();
    pthread_mutex_lock(&bulk->mutex);
    if (worker->failing_since_ms == 0)
        worker->failing_since_ms = now;
    bool is_lost =
        now - worker->failing_since_ms >= BULK_STALL_MS && now - bulk->progress_ms >= BULK_STALL_MS;
    if (!passes || is_lost)
        fail_all(bulk, report_restore(&text, passes ? ERR_UNAVAILABLE : error));
    worker->pause_ms = worker->pause_ms == 0 ? AGAIN_MS_MIN : 2 * worker->pause_ms;
    worker->pause_ms = worker->pause_ms < AGAIN_MS_MAX ? worker->pause_ms : AGAIN_MS_MAX;
    struct timespec until = at_ms(now + worker->pause_ms);
    while (!bulk->is_closing && clock_ms() < now + worker->pause_ms)
        if (pthread_cond_timedwait(&bulk->done, &bulk->mutex, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&bulk->mutex);
}

/* ---- sending ---- */

static int send_request(struct worker *worker, const struct bulk_request *request,
                        struct bulk_answer *answer)
{
    ERR_TRY(tls_stream_write(worker->stream, request, sizeof *request, BULK_STALL_MS));
    ERR_TRY(tls_stream_read(worker->stream, answer, sizeof *answer, BULK_STALL_MS));
    return bulk_check_answer(answer, request, 0);
}

/* Has a block that was sent before arrived? */
static int has_arrived(bool *out, struct worker *worker, const struct job *job)
{
    struct bulk_request request = job->request;
    struct bulk_answer answer;
    request.verb = BULK_HAVE;
    request.bytes = 0;
    ERR_TRY(send_request(worker, &request, &answer));
    *out = answer.error == 0 && answer.bytes == 1;
    return answer.error == 0 ? 0 : read_error(worker->stream, &answer);
}

static int send_job(struct worker *worker, struct job *job)
{
    struct bulk_request request = job->request;
    if (request.verb == BULK_GET) {
        request.offset += job->done;
        request.bytes -= job->done;
    }
    if (request.verb == BULK_PUT)
        request.hash = checksum_bytes(job->from, request.bytes);
    ERR_TRY(tls_stream_write(worker->stream, &request, sizeof request, BULK_STALL_MS));
    if (request.verb != BULK_PUT)
        return 0;
    return tls_stream_write(worker->stream, job->from, request.bytes, BULK_STALL_MS);
}

/* ---- answers ---- */

/* Receives the blocks of a run of bytes; job->done advances with each verified one. */
static int receive_blocks(struct worker *worker, struct job *job, struct bulk_answer *answer)
{
    struct bulk_request asked = job->request;
    asked.offset += job->done;
    asked.bytes -= job->done;
    for (uint64_t end = job->request.offset + job->request.bytes;;) {
        uint64_t at = job->request.offset + job->done;
        ERR_TRY(tls_stream_read(worker->stream, answer, sizeof *answer, BULK_STALL_MS));
        ERR_TRY(bulk_check_answer(answer, &asked, at));
        if (answer->error != 0)
            return 0;
        unsigned char *to = job->to + job->done;
        ERR_TRY(tls_stream_read(worker->stream, to, answer->bytes, BULK_STALL_MS));
        if (!worker->is_unhashed && checksum_bytes(to, answer->bytes) != answer->hash) {
            job->num_damaged++;
            return report_error(ERR_CORRUPT, NULL, "a block came damaged over the bulk plane");
        }
        job->done += answer->bytes;
        if (at + answer->bytes == end)
            return 0;
    }
}

static int read_answer(struct worker *worker, struct job *job, struct bulk_answer *answer)
{
    if (job->request.verb == BULK_GET)
        return receive_blocks(worker, job, answer);
    ERR_TRY(
        tls_stream_read(worker->stream, answer, sizeof *answer, BULK_STALL_MS + BULK_WINDOW_MS));
    return bulk_check_answer(answer, &job->request, 0);
}

static void count_done(struct bulk *bulk, const struct job *job)
{
    if (job->request.verb == BULK_GET)
        bulk->counts.bytes_got += job->request.bytes;
    if (job->request.verb == BULK_PUT)
        bulk->counts.bytes_put += job->request.bytes;
}

/* Ends the worker's oldest job: `error` is the peer's, 0, or for a damaged block. */
static void finish_oldest(struct worker *worker, int error)
{
    struct bulk *bulk = worker->bulk;
    pthread_mutex_lock(&bulk->mutex);
    struct job *job = worker->first;
    worker->first = job->next;
    if (!worker->first)
        worker->last = &worker->first;
    worker->count--;
    worker->failing_since_ms = 0;
    worker->pause_ms = 0;
    bulk->counts.rtt_seconds = tls_stream_rtt_seconds(worker->stream);
    bulk->progress_ms = clock_ms();
    bulk->lost = 0;
    if (error == ERR_CORRUPT && job->request.verb == BULK_PUT && ++job->num_damaged < DAMAGED_MAX) {
        bulk->counts.bytes_again += job->request.bytes;
        bulk_push_job(bulk, job);
    } else {
        if (error == 0)
            count_done(bulk, job);
        end_job(bulk, job, error);
    }
    pthread_mutex_unlock(&bulk->mutex);
}

/* An error is one of the connection. */
static int receive_oldest(struct worker *worker)
{
    struct job *job = worker->first;
    struct bulk_answer answer;
    int error = read_answer(worker, job, &answer);
    if (error == ERR_CORRUPT && job->num_damaged >= DAMAGED_MAX) {
        finish_oldest(worker,
                      error); /* and the connection ends: the rest of the run is under way */
        return error;
    }
    if (error != 0)
        return error;
    if (answer.error != 0) {
        error = read_error(worker->stream, &answer);
        if (error != answer.error)
            return error;
        /* The previous connection had delivered it, after the answer to HAVE. */
        if (error == ERR_EXISTS && job->was_again)
            error = 0;
    } else if (job->answer)
        *job->answer = answer;
    finish_oldest(worker, error);
    return 0;
}

/* ---- workers ---- */

/* If both sides write blocks at once each may wait for the other for ever. */
static bool may_send(const struct worker *worker, const struct job *job)
{
    if (!worker->first)
        return true;
    uint32_t verb = worker->first->request.verb;
    return job->request.verb == verb && !job->is_again &&
           worker->count < (verb == BULK_GET   ? GETS_AHEAD
                            : verb == BULK_PUT ? BULK_AHEAD
                                               : 1);
}

/* The peer sends nothing unrequested: readable data means the end. */
static bool has_ended(struct worker *worker)
{
    return worker->stream && tls_stream_wait(worker->stream, 0) == 0;
}

enum next { SEND, RECEIVE, RECONNECT, LEAVE };

static enum next next_step(struct worker *worker, struct job **out)
{
    struct bulk *bulk = worker->bulk;
    enum next next = LEAVE;
    pthread_mutex_lock(&bulk->mutex);
    while (!bulk->is_closing) {
        if (bulk->first && may_send(worker, bulk->first)) {
            *out = pop_job(bulk);
            (*out)->next = NULL;
            *worker->last = *out; /* the worker owns it from here on */
            worker->last = &(*out)->next;
            worker->count++;
            next = SEND;
            break;
        }
        next = worker->first ? RECEIVE : has_ended(worker) ? RECONNECT : LEAVE;
        if (next != LEAVE)
            break;
        struct timespec until = at_ms(clock_ms() + POLL_MS);
        pthread_cond_timedwait(&bulk->work, &bulk->mutex, &until);
    }
    if (bulk->is_closing)
        next = LEAVE;
    pthread_mutex_unlock(&bulk->mutex);
    return next;
}

static int do_step(struct worker *worker, enum next next, struct job *job)
{
    bool is_there = false;
    if (!worker->stream)
        ERR_TRY(open_connection(worker));
    if (next == RECEIVE)
        return receive_oldest(worker);
    if (next == RECONNECT)
        return report_error(ERR_UNAVAILABLE, NULL, "a connection of the bulk plane ended");
    if (job->is_again && (job->request.verb == BULK_PUT || job->request.verb == BULK_END))
        ERR_TRY(has_arrived(&is_there, worker, job));
    if (!is_there)
        return send_job(worker, job);
    finish_oldest(worker, 0); /* it is the only one: may_send() */
    return 0;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct job *job = NULL;
    enum next next;
    while ((next = next_step(worker, &job)) != LEAVE) {
        int error = do_step(worker, next, job);
        if (error == 0)
            continue;
        connection_failed(worker, error);
        if (next != RECONNECT)
            continue;
        if (open_connection(worker) == 0)
            /* Nothing failed: nothing was requested. */
            worker->failing_since_ms = worker->pause_ms = 0;
        else
            close_connection(worker); /* the next job reports it */
    }
    close_connection(worker);
    return NULL;
}

int bulk_start_workers(struct bulk *bulk, uint32_t count)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (uint32_t i = 0; i < count; i++) {
        struct worker *worker = &bulk->workers[i];
        worker->bulk = bulk;
        worker->last = &worker->first;
        worker->has_thread = pthread_create(&worker->thread, NULL, work, worker) == 0;
        bulk->num_workers += worker->has_thread;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (bulk->num_workers > 0)
        return 0; /* fewer are slower */
    return report_error(ERR_MEMORY, NULL, "no memory for the threads of the bulk plane");
}
