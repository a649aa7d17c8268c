/* loop.h - the service thread's loop (loop.c), and the means by which ckptd's threads send it
 * events.
 *
 * The service thread sleeps in loop_run(). RPC threads, workers and the storage's threads only post
 * events, which wake it. Blocking work (files, hashing, zeroing) is a struct job that runs on a
 * worker and ends with an event. Functions are called on the service thread, except where stated
 * otherwise.
 *
 * Events, timers and jobs are embedded in their owners, and queues are chains of them, so a queue
 * cannot be full and posting cannot fail. Sessions, loads, calls and images bound their number;
 * config.c has a limit for each. */
#ifndef HOLDFAST_CKPTD_CORE_LOOP_H
#define HOLDFAST_CKPTD_CORE_LOOP_H

#include "proto/base/lanes.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The struct that embeds the object at `pointer`. */
#define CONTAINER_OF(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct event {
    struct event *next;
    void (*run)(struct event *event); /* on the service thread */
};
struct timer {
    struct timer *next;
    int64_t at_ms;
    bool armed;
    void (*run)(struct timer *timer);
};
struct watch {
    int fd;
    void (*run)(struct watch *watch);
};
/* `work` runs on a worker; then `done` runs on the service thread, unless its run is NULL. */
struct job {
    struct lane_link link;
    void (*work)(struct job *job);
    struct event done;
};

struct loop;
/* The workers run at priority `worker_nice`, 0 to 19. */
int loop_open(struct loop **out, uint32_t num_workers, int worker_nice);
/* Joins the workers; events and jobs that are still queued are dropped. */
void loop_close(struct loop *loop);
void loop_run(struct loop *loop); /* until loop_stop */
void loop_stop(struct loop *loop);
void loop_run_pending(struct loop *loop); /* the events posted so far; call after loop_run() */
void loop_post(struct loop *loop, struct event *event); /* any thread */
/* The same for one of many events of which only the last matters: decrements `under_way`; wakes the
 * service thread only if that becomes 0 or the event is urgent. */
void loop_post_counted(struct loop *loop, struct event *event, atomic_uint *under_way, bool urgent);
void loop_work(struct loop *loop, struct job *job); /* any thread */
/* Jobs of loop_work() that wait for a worker, and those that run. */
void loop_depth(struct loop *loop, uint32_t *out_waiting, uint32_t *out_under_way);
/* Further workers for jobs that may block for long, so that the loop's jobs do not wait. */
struct crew;
int crew_open(struct crew **out, struct loop *loop, uint32_t num_workers, int worker_nice);
/* Call before loop_close(); drops jobs as that does. NULL is allowed. */
void crew_close(struct crew *crew);
void crew_work(struct crew *crew, struct job *job); /* any thread */
/* A queue of one party among several: at most `limit` of its jobs run at once
 * (proto/base/lanes.h). */
void crew_lane(struct crew *crew, struct lane *out, uint32_t limit);
void crew_work_in(struct crew *crew, struct lane *lane, struct job *job); /* any thread */
/* The party does not answer: all parties marked so use at most half of the workers. */
void crew_set_away(struct crew *crew, struct lane *lane, bool is_away);
/* No event is queued, no job is queued or running. Call it only from a timer: events of the current
 * chain do not count. */
bool loop_is_idle(struct loop *loop);
void loop_timer(struct loop *loop, struct timer *timer, int64_t ms);
void loop_timer_cancel(struct loop *loop, struct timer *timer);
/* Runs watch->run while the descriptor is readable or hung up. The callback may unwatch any
 * watch. */
int loop_watch(struct loop *loop, struct watch *watch, int fd);
void loop_unwatch(struct loop *loop, struct watch *watch);

/* An error that crosses from a worker to the service thread. */
struct fault {
    int code; /* 0: none */
    char message[256], detail[256], hint[160];
};
void fault_take(struct fault *out, int code); /* from this thread's last error */
/* Makes it this thread's last error; returns its code. */
int fault_raise(const struct fault *fault);

#endif
