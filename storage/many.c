/* many.c - calls a function for each of many indices, several at once.
 *
 * Each call makes a request or two, which a bucket and a cold disk answer late, so the calls mostly
 * wait. Threads run them in ascending order, as many as the back-end answers in parallel
 * (num_at_once); for a near tier one more thread per CALLS_PER_THREAD calls. The result is that of
 * calls in sequence: all calls before a failed one are finished, and of several failures the first
 * in order is returned. */
#include "storage/engine/engine.h"

#define THREADS_MAX 255u     /* beside the caller's; a bucket has at most 256 connections */
#define CALLS_PER_THREAD 64u /* for a near tier, fewer do not justify a thread */

struct many {
    int (*call)(void *user, size_t index);
    void *user;
    atomic_size_t next;    /* the index of the next call */
    atomic_size_t end;     /* no call from this index on begins */
    pthread_mutex_t mutex; /* guards lowering of `end`, and the following */
    int error;
    struct report_text text;
};

static void fail(struct many *many, size_t index, int error)
{
    pthread_mutex_lock(&many->mutex);
    if (index < atomic_load(&many->end)) {
        atomic_store(&many->end, index);
        many->error = error;
        report_keep(&many->text);
    }
    pthread_mutex_unlock(&many->mutex);
}

static void *run_calls(void *argument)
{
    struct many *many = argument;
    size_t index;
    while ((index = atomic_fetch_add(&many->next, 1)) < atomic_load(&many->end)) {
        int error = many->call(many->user, index);
        if (error != 0)
            fail(many, index, error);
    }
    return NULL;
}

static size_t threads_for(const struct storage *storage, size_t count)
{
    const struct storage_base *base = (const struct storage_base *)storage;
    size_t worth = count / (base->ops->flags & STORAGE_REMOTE ? 1 : CALLS_PER_THREAD);
    size_t most = base->num_at_once < worth ? base->num_at_once : worth;
    most = most > 0 ? most - 1 : 0; /* one is the caller's */
    return most < THREADS_MAX ? most : THREADS_MAX;
}

int storage_for_many(struct storage *storage, size_t count, int (*call)(void *user, size_t index),
                     void *user)
{
    struct many many = {.call = call, .user = user, .end = count};
    pthread_t threads[THREADS_MAX];
    size_t wanted = threads_for(storage, count), started = 0;
    pthread_mutex_init(&many.mutex, NULL);
    while (started < wanted &&
           engine_thread_start(&threads[started], "hf-many", run_calls, &many) == 0)
        started++;
    run_calls(&many);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&many.mutex);
    return many.error == 0 ? 0 : report_restore(&many.text, many.error);
}
