/* loop.c - the service thread's loop: events from other threads, timers, descriptors, and workers
 * for blocking jobs.
 *
 * Two queues with a mutex each: events for the service thread, jobs for a crew of workers. The loop
 * has its own crew. Jobs for a tier that may not answer have another one, and all peers share one,
 * with a lane for each (proto/base/lanes.h). Posting links an embedded struct, so it neither
 * allocates nor fails. Data written before a post is visible to the receiver. It has no limits
 * itself; see loop.h. It takes one ready descriptor at a time, so a callback may remove any other
 * watch and leaves no stale event.
 *
 * Order: events run in the order in which they were posted; after each descriptor the whole chain
 * runs. Limits: none of its own; see loop.h. */
#include "ckptd/core/loop.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define WORKERS_MAX 64u

/* Threads that take jobs from lanes: its own lane, and those of several parties. */
struct crew {
    struct loop *loop; /* gets the events of finished jobs */
    pthread_mutex_t job_mutex;
    pthread_cond_t job_posted;
    struct lanes lanes;
    struct lane own;
    bool ending;
    pthread_t workers[WORKERS_MAX];
    uint32_t num_workers;
    int worker_nice;
};

struct loop {
    int epoll_fd, wake_fd;
    struct watch wake_watch;
    bool stopping;
    struct timer *timers; /* soonest first; service thread only */

    pthread_mutex_t event_mutex;
    struct event *first_event, *last_event;
    bool woken; /* a thread has written wake_fd for this chain */
    struct crew *crew;
};

/* ---- events ---- */

void loop_post_counted(struct loop *loop, struct event *event, atomic_uint *under_way, bool urgent)
{
    uint64_t one = 1;
    CHECK(event->run);
    event->next = NULL;
    pthread_mutex_lock(&loop->event_mutex);
    if (loop->first_event)
        loop->last_event->next = event;
    else
        loop->first_event = event;
    loop->last_event = event;
    /* Under the lock: all other events must be in the chain before the last one wakes the
     * thread. */
    if (under_way && atomic_fetch_sub(under_way, 1) == 1)
        urgent = true;
    bool wake = urgent && !loop->woken;
    loop->woken |= urgent;
    pthread_mutex_unlock(&loop->event_mutex);
    /* Once per chain; the counter cannot overflow. */
    if (wake && write(loop->wake_fd, &one, sizeof one) < 0)
        log_error("loop", "could not wake the service thread: %s", strerror(errno));
}

void loop_post(struct loop *loop, struct event *event)
{
    loop_post_counted(loop, event, NULL, true);
}

static void run_wake(struct watch *watch)
{
    uint64_t count;
    if (read(watch->fd, &count, sizeof count) < 0 && errno != EAGAIN)
        log_error("loop", "could not read the wake-up counter: %s", strerror(errno));
}

static void run_events(struct loop *loop)
{
    pthread_mutex_lock(&loop->event_mutex);
    struct event *event = loop->first_event;
    loop->first_event = loop->last_event = NULL;
    loop->woken = false;
    pthread_mutex_unlock(&loop->event_mutex);
    while (event) {
        struct event *next = event->next;
        event->run(event);
        event = next;
    }
}

/* ---- timers ---- */

void loop_timer_cancel(struct loop *loop, struct timer *timer)
{
    if (!timer->armed)
        return;
    struct timer **at = &loop->timers;
    while (*at != timer)
        at = &(*at)->next;
    *at = timer->next;
    timer->armed = false;
}

void loop_timer(struct loop *loop, struct timer *timer, int64_t ms)
{
    loop_timer_cancel(loop, timer);
    timer->at_ms = clock_ms() + ms;
    timer->armed = true;
    struct timer **at = &loop->timers;
    while (*at && (*at)->at_ms <= timer->at_ms)
        at = &(*at)->next;
    timer->next = *at;
    *at = timer;
}

/* Runs the timers that are due; returns the milliseconds until the next, or -1. */
static int run_timers(struct loop *loop)
{
    while (loop->timers) {
        int64_t left = loop->timers->at_ms - clock_ms();
        if (left > 0)
            return left < 1000000 ? (int)left : 1000000;
        struct timer *timer = loop->timers;
        loop->timers = timer->next;
        timer->armed = false;
        timer->run(timer);
    }
    return -1;
}

/* ---- descriptors ---- */

int loop_watch(struct loop *loop, struct watch *watch, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = watch};
    watch->fd = fd;
    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return report_errno(ERR_IO, "could not watch a descriptor", "epoll_ctl");
    return 0;
}

void loop_unwatch(struct loop *loop, struct watch *watch)
{
    if (watch->fd >= 0)
        epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    watch->fd = -1;
}

void loop_run(struct loop *loop)
{
    while (!loop->stopping) {
        int wait_ms = run_timers(loop);
        if (loop->stopping)
            break;
        struct epoll_event event;
        int count = epoll_wait(loop->epoll_fd, &event, 1, wait_ms);
        if (count < 0 && errno != EINTR) {
            log_error("loop", "epoll_wait failed: %s", strerror(errno));
            return;
        }
        if (count == 1) {
            struct watch *watch = event.data.ptr;
            watch->run(watch);
        }
        run_events(loop);
    }
}

void loop_run_pending(struct loop *loop)
{
    run_events(loop);
}

void loop_stop(struct loop *loop)
{
    loop->stopping = true;
}

/* ---- workers ---- */

void crew_lane(struct crew *crew, struct lane *out, uint32_t limit)
{
    lane_init(out, &crew->lanes, limit);
}

void crew_work_in(struct crew *crew, struct lane *lane, struct job *job)
{
    pthread_mutex_lock(&crew->job_mutex);
    lane_put(lane, &job->link);
    pthread_cond_signal(&crew->job_posted);
    pthread_mutex_unlock(&crew->job_mutex);
}

void crew_set_away(struct crew *crew, struct lane *lane, bool is_away)
{
    pthread_mutex_lock(&crew->job_mutex);
    lane_set_away(lane, is_away);
    pthread_cond_broadcast(&crew->job_posted);
    pthread_mutex_unlock(&crew->job_mutex);
}

void crew_work(struct crew *crew, struct job *job)
{
    crew_work_in(crew, &crew->own, job);
}

void loop_work(struct loop *loop, struct job *job)
{
    crew_work(loop->crew, job);
}

void loop_depth(struct loop *loop, uint32_t *out_waiting, uint32_t *out_under_way)
{
    pthread_mutex_lock(&loop->crew->job_mutex);
    *out_waiting = loop->crew->own.waiting;
    *out_under_way = loop->crew->own.under_way;
    pthread_mutex_unlock(&loop->crew->job_mutex);
}

/* Waits for a job; NULL: the crew is closing. */
static struct job *take_job(struct crew *crew, struct lane **out_lane)
{
    struct lane_link *link = NULL;
    pthread_mutex_lock(&crew->job_mutex);
    while (!crew->ending && !(link = lanes_take(&crew->lanes, out_lane)))
        pthread_cond_wait(&crew->job_posted, &crew->job_mutex);
    pthread_mutex_unlock(&crew->job_mutex);
    return link ? CONTAINER_OF(link, struct job, link) : NULL;
}

static void *run_worker(void *argument)
{
    struct crew *crew = argument;
    struct lane *lane;
    struct job *job;
    /* Linux keeps the priority per thread; 0 means this one. Raising it again needs a privilege, so
     * it stays; a ckptd that was started with a lower priority keeps that. */
    if (crew->worker_nice > getpriority(PRIO_PROCESS, 0) &&
        setpriority(PRIO_PROCESS, 0, crew->worker_nice) != 0)
        log_warn("loop", "could not lower the priority of a worker: %s", strerror(errno));
    while ((job = take_job(crew, &lane))) {
        /* The job may free its struct: reads `done` first. */
        bool has_done = job->done.run;
        job->work(job);
        if (has_done)
            loop_post(crew->loop, &job->done);
        pthread_mutex_lock(&crew->job_mutex);
        lane_done(lane);
        pthread_mutex_unlock(&crew->job_mutex);
    }
    return NULL;
}

int crew_open(struct crew **out, struct loop *loop, uint32_t num_workers, int worker_nice)
{
    CHECK(num_workers >= 1 && num_workers <= WORKERS_MAX);
    struct crew *crew = calloc(1, sizeof *crew);
    if (!crew)
        return report_error(ERR_MEMORY, NULL, "no memory for workers");
    crew->loop = loop;
    crew->worker_nice = worker_nice;
    pthread_mutex_init(&crew->job_mutex, NULL);
    pthread_cond_init(&crew->job_posted, NULL);
    lanes_init(&crew->lanes, (num_workers + 1) / 2);
    crew_lane(crew, &crew->own, num_workers);
    for (uint32_t i = 0; i < num_workers; i++) {
        int number = pthread_create(&crew->workers[i], NULL, run_worker, crew);
        if (number == 0) {
            crew->num_workers++;
            continue;
        }
        crew_close(crew);
        return report_error(ERR_MEMORY, "raise the limit of processes, or lower threads.workers",
                            "could not start worker %u: %s", i, strerror(number));
    }
    *out = crew;
    return 0;
}

void crew_close(struct crew *crew)
{
    if (!crew)
        return;
    pthread_mutex_lock(&crew->job_mutex);
    crew->ending = true;
    pthread_cond_broadcast(&crew->job_posted);
    pthread_mutex_unlock(&crew->job_mutex);
    for (uint32_t i = 0; i < crew->num_workers; i++)
        pthread_join(crew->workers[i], NULL);
    pthread_cond_destroy(&crew->job_posted);
    pthread_mutex_destroy(&crew->job_mutex);
    free(crew);
}

/* ---- as a whole ---- */

bool loop_is_idle(struct loop *loop)
{
    pthread_mutex_lock(&loop->crew->job_mutex);
    bool idle = lane_is_idle(&loop->crew->own);
    pthread_mutex_unlock(&loop->crew->job_mutex);
    pthread_mutex_lock(&loop->event_mutex);
    idle = idle && !loop->first_event;
    pthread_mutex_unlock(&loop->event_mutex);
    return idle;
}

int loop_open(struct loop **out, uint32_t num_workers, int worker_nice)
{
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop)
        return report_error(ERR_MEMORY, NULL, "no memory for the service loop");
    pthread_mutex_init(&loop->event_mutex, NULL);
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->wake_watch.run = run_wake;
    int error = 0;
    if (loop->epoll_fd < 0 || loop->wake_fd < 0)
        error = report_errno(ERR_MEMORY, "could not make the service loop", "epoll, eventfd");
    if (error == 0)
        error = loop_watch(loop, &loop->wake_watch, loop->wake_fd);
    if (error == 0)
        error = crew_open(&loop->crew, loop, num_workers, worker_nice);
    if (error != 0) {
        loop_close(loop);
        return error;
    }
    *out = loop;
    return 0;
}

void loop_close(struct loop *loop)
{
    if (!loop)
        return;
    crew_close(loop->crew);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    if (loop->wake_fd >= 0)
        close(loop->wake_fd);
    pthread_mutex_destroy(&loop->event_mutex);
    free(loop);
}

/* ---- faults ---- */

void fault_take(struct fault *out, int code)
{
    CHECK(code < 0);
    out->code = code;
    snprintf(out->message, sizeof out->message, "%s",
             *report_message() ? report_message() : err_text(code));
    snprintf(out->detail, sizeof out->detail, "%s", report_detail());
    snprintf(out->hint, sizeof out->hint, "%s", report_hint());
}

int fault_raise(const struct fault *fault)
{
    if (fault->code == 0)
        return 0;
    return report_set(fault->code, fault->message, fault->detail, fault->hint);
}
