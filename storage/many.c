/* many.c - one look at each of many objects, several at once.
 *
 * A look is a request or two, which a bucket and a cold disk answer late: the looks mostly wait.
 * Threads take them in ascending order, as many as the back-end answers side by side
 * (num_at_once); of a tier that is near, a thread more for LOOKS_PER_THREAD looks. What a look
 * fails with is what it would fail with one after the other: those before the failed one are all
 * finished, and of several failures the first in the order counts. */
#include "storage/engine/engine.h"

#define THREADS_MAX 255u     /* beside the caller's own; a bucket has at most 256 connections */
#define LOOKS_PER_THREAD 64u /* of a tier that is near, fewer are not worth a thread */

struct many {
    int (*look)(void *user, size_t index);
    void *user;
    atomic_size_t next;    /* the look that begins next */
    atomic_size_t end;     /* none from here on begins */
    pthread_mutex_t mutex; /* guards the lowering of `end`, and what follows */
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

static void *look_at_some(void *argument)
{
    struct many *many = argument;
    size_t index;
    while ((index = atomic_fetch_add(&many->next, 1)) < atomic_load(&many->end)) {
        int error = many->look(many->user, index);
        if (error != 0)
            fail(many, index, error);
    }
    return NULL;
}

static size_t threads_for(const struct storage *storage, size_t count)
{
    const struct storage_base *base = (const struct storage_base *)storage;
    size_t worth = count / (base->ops->flags & STORAGE_REMOTE ? 1 : LOOKS_PER_THREAD);
    size_t most = base->num_at_once < worth ? base->num_at_once : worth;
    most = most > 0 ? most - 1 : 0; /* the caller's is one */
    return most < THREADS_MAX ? most : THREADS_MAX;
}

int storage_for_many(struct storage *storage, size_t count, int (*look)(void *user, size_t index),
                     void *user)
{
    struct many many = {.look = look, .user = user, .end = count};
    pthread_t threads[THREADS_MAX];
    size_t wanted = threads_for(storage, count), started = 0;
    pthread_mutex_init(&many.mutex, NULL);
    while (started < wanted &&
           engine_thread_start(&threads[started], "hf-many", look_at_some, &many) == 0)
        started++;
    look_at_some(&many);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    pthread_mutex_destroy(&many.mutex);
    return many.error == 0 ? 0 : report_restore(&many.text, many.error);
}
