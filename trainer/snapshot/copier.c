/* copier.c - a thread that copies the training state while training continues (see copier.h).
 *
 *     parked ──copier_start──► copying piece 0, 1, ... ──► end ──► over ──copier_wait──► parked
 *                              up to the posted piece
 *
 * One mutex guards the fields of struct copier below it. A slice may be changed when `copied` has
 * reached its last piece. A failed copy marks all pieces as copied, since it reads them no more.
 * The thread copies without the mutex: a piece is changed only after it was copied. The last error
 * is per thread, so a failure's text is passed to the thread that waits.
 *
 * The copy thread runs at idle priority (SCHED_IDLE). At the step's priority it interrupts the
 * step's threads when all cores are busy, and all of them wait for the slowest. When the caller
 * waits for the copy, the thread gets the caller's priority. If the system does not let a thread
 * leave SCHED_IDLE (RLIMIT_NICE of an ordinary user), it runs as SCHED_BATCH, which does not
 * preempt others. Only the opener changes the policy, so there is no race. */
#include "trainer/snapshot/copier.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

enum copier_state { PARKED, COPYING, OVER, CLOSING };

struct copier {
    struct copier_options options;
    pthread_t thread;
    /* Used by the opener only. */
    bool is_started; /* a copy was started and not yet waited for */
    bool is_urgent;  /* the opener waits for it: the thread has the opener's priority */
    int policy;      /* of the thread while the opener does not wait */
    double waited_seconds, started_at;

    pthread_mutex_t mutex; /* guards the fields that follow */
    pthread_cond_t changed;
    enum copier_state state;
    uint32_t copied; /* pieces 0..copied-1 are copied */
    uint32_t posted; /* pieces 0..posted-1 may be copied */
    bool is_hurried; /* the opener waits for the copy: no rate limit */
    int rc;
    double ended_at;
    struct report_text text; /* of a failure */
};

/* ---- the thread ---- */

static void pass_pieces(struct copier *c, uint32_t copied)
{
    pthread_mutex_lock(&c->mutex);
    c->copied = copied;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

static void wait_until_posted(struct copier *c, uint32_t piece)
{
    pthread_mutex_lock(&c->mutex);
    while (c->posted <= piece)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

/* Waits until that moment, or until the opener waits for the copy. */
static void wait_until(struct copier *c, double moment)
{
    time_t whole = (time_t)moment;
    struct timespec until = {whole, (long)((moment - (double)whole) * 1e9)};
    pthread_mutex_lock(&c->mutex);
    while (!c->is_hurried && pthread_cond_timedwait(&c->changed, &c->mutex, &until) == 0)
        ;
    pthread_mutex_unlock(&c->mutex);
}

/* The moment from which the next piece may be copied, if this piece began at `begun`. */
static double due_after(const struct copier *c, uint32_t piece, double begun)
{
    const struct copier_options *o = &c->options;
    if (o->bytes_per_second == 0)
        return begun;
    return begun + (double)o->piece_bytes(o->user, piece) / (double)o->bytes_per_second;
}

static int copy_pieces(struct copier *c)
{
    const struct copier_options *o = &c->options;
    double due = 0;
    int rc = 0;
    for (uint32_t i = 0; i < o->num_pieces && rc == 0; i++) {
        wait_until_posted(c, i);
        if (clock_seconds() < due)
            wait_until(c, due);
        due = due_after(c, i, clock_seconds());
        rc = o->copy(o->user, i);
        pass_pieces(c, rc == 0 ? i + 1 : o->num_pieces);
    }
    return o->end(o->user, rc);
}

/* Waits until there is a copy to make. Returns false if the copier is being closed. */
static bool wait_for_work(struct copier *c)
{
    pthread_mutex_lock(&c->mutex);
    while (c->state != COPYING && c->state != CLOSING)
        pthread_cond_wait(&c->changed, &c->mutex);
    bool has_work = c->state == COPYING;
    pthread_mutex_unlock(&c->mutex);
    return has_work;
}

static void *thread_main(void *user)
{
    struct copier *c = user;
    stacks_join(-1);
    while (wait_for_work(c)) {
        int rc = copy_pieces(c);
        pthread_mutex_lock(&c->mutex);
        c->rc = rc;
        c->ended_at = clock_seconds();
        if (rc != 0)
            report_keep(&c->text);
        c->state = OVER;
        pthread_cond_signal(&c->changed);
        pthread_mutex_unlock(&c->mutex);
    }
    return NULL;
}

/* ---- priority of the thread ---- */

static int set_policy(pthread_t thread, int policy)
{
    return pthread_setschedparam(thread, policy, &(struct sched_param){0});
}

static void *probe_main(void *user)
{
    bool *can_return = user;
    *can_return =
        set_policy(pthread_self(), SCHED_IDLE) == 0 && set_policy(pthread_self(), SCHED_OTHER) == 0;
    return NULL;
}

/* The lowest policy that the thread can leave again. */
static int lowest_policy(void)
{
    pthread_t probe;
    bool can_return = false;
    if (pthread_create(&probe, NULL, probe_main, &can_return) == 0)
        pthread_join(probe, NULL);
    return can_return ? SCHED_IDLE : SCHED_BATCH;
}

static void make_urgent(struct copier *c)
{
    if (!c->is_urgent)
        set_policy(c->thread, SCHED_OTHER);
    c->is_urgent = true;
}

/* Call with the mutex held, before the caller waits. */
static void hurry_locked(struct copier *c)
{
    c->is_hurried = true;
    pthread_cond_signal(&c->changed);
}

/* The thread may hold the mutex and have no time to release it, so it gets the opener's priority
 * first. */
static void lock_as_opener(struct copier *c)
{
    if (pthread_mutex_trylock(&c->mutex) == 0)
        return;
    make_urgent(c);
    pthread_mutex_lock(&c->mutex);
}

static void post_locked(struct copier *c, uint32_t pieces)
{
    c->posted = pieces;
    pthread_cond_signal(&c->changed);
}

/* ---- opening and closing ---- */

int copier_open(struct copier **out, const struct copier_options *options)
{
    struct copier *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the copy thread");
    c->options = *options;
    c->state = PARKED;
    c->policy = lowest_policy();
    pthread_mutex_init(&c->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&c->thread, NULL, thread_main, c) != 0) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->mutex);
        free(c);
        return report_error(ERR_MEMORY, "raise the limit of threads (ulimit -u)",
                            "the copy thread could not be started");
    }
    pthread_setname_np(c->thread, COPIER_THREAD_NAME);
    *out = c;
    return 0;
}

void copier_close(struct copier *c)
{
    if (c == NULL)
        return;
    make_urgent(c);
    pthread_mutex_lock(&c->mutex);
    post_locked(c, c->options.num_pieces);
    hurry_locked(c);
    while (c->state == COPYING)
        pthread_cond_wait(&c->changed, &c->mutex);
    c->state = CLOSING;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

/* ---- a copy ---- */

void copier_start(struct copier *c)
{
    CHECK(!c->is_started);
    c->is_started = true;
    c->started_at = clock_seconds();
    /* On an error the policy stays, and the copy continues. */
    c->is_urgent = set_policy(c->thread, c->policy) != 0;
    pthread_mutex_lock(&c->mutex);
    CHECK(c->state == PARKED);
    c->copied = c->posted = 0;
    c->is_hurried = false;
    c->state = COPYING;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    /* With few cores, waking the thread may already delay the caller. */
    c->waited_seconds = clock_seconds() - c->started_at;
}

bool copier_post(struct copier *c, uint32_t slice)
{
    if (!c->is_started)
        return false;
    CHECK(slice < c->options.num_slices);
    double start = clock_seconds();
    lock_as_opener(c);
    bool is_new = c->state == COPYING && c->posted < c->options.copied_at[slice];
    if (is_new)
        post_locked(c, c->options.copied_at[slice]);
    pthread_mutex_unlock(&c->mutex);
    c->waited_seconds += clock_seconds() - start;
    return is_new;
}

void copier_wait_slice(struct copier *c, uint32_t slice, struct lane *lane)
{
    if (!c->is_started)
        return;
    CHECK(slice < c->options.num_slices);
    uint32_t copied_at = c->options.copied_at[slice];
    lock_as_opener(c);
    CHECK(c->state != COPYING || c->posted >= copied_at);
    bool must_wait = c->state == COPYING && c->copied < copied_at;
    double start = must_wait ? clock_seconds() : 0;
    if (must_wait) {
        make_urgent(c);
        hurry_locked(c);
    }
    while (c->state == COPYING && c->copied < copied_at)
        pthread_cond_wait(&c->changed, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
    if (must_wait)
        c->waited_seconds += clock_seconds() - start;
    if (c->options.hold != NULL)
        c->options.hold(c->options.user, slice, lane);
}

int copier_wait(struct copier *c, struct copier_times *out)
{
    CHECK(c->is_started);
    double start = clock_seconds();
    make_urgent(c);
    pthread_mutex_lock(&c->mutex);
    post_locked(c, c->options.num_pieces);
    hurry_locked(c);
    while (c->state == COPYING)
        pthread_cond_wait(&c->changed, &c->mutex);
    c->state = PARKED;
    int rc = c->rc;
    *out = (struct copier_times){.copy_seconds = c->ended_at - c->started_at,
                                 .waited_seconds = c->waited_seconds + clock_seconds() - start,
                                 .ended_at = c->ended_at};
    pthread_mutex_unlock(&c->mutex);
    c->is_started = false;
    /* The thread is parked: it does not write the text. */
    return rc == 0 ? 0 : report_restore(&c->text, rc);
}
