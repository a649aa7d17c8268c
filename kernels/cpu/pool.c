/* pool.c - a small thread pool for operations that are already cut into items.
 *
 * A run publishes a job and works on it at once; threads join it as they wake and take items from a
 * shared counter. When no item is left, the caller closes the job and waits only for threads that
 * have joined. A thread that wakes late (the machine is often oversubscribed) finds the job closed
 * and delays no one.
 *
 * Waiting is a short spin (SPIN_ROUNDS, a few microseconds: the next operation of a step usually
 * follows at once), then a condition variable.
 *
 * Lock: `lock` guards job, open, joined, sleepers, stop. `sequence` is written under it and read
 * outside by spinning threads as a hint only. `next` hands out items. Not here: nesting.
 *
 * A pool serves one caller at a time (`taken`); another caller meanwhile runs its items alone. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/cpu/items.h"
#include "proto/base/report.h"
#include "proto/base/stacks.h"

#define SPIN_ROUNDS 300

struct job {
    item_fn *fn;
    const void *args;
    char *scratch;
    size_t scratch_stride;
    uint32_t items;
};

struct thread {
    pthread_t id;
    struct pool *pool;
    uint32_t index;
};

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t posted, left;
    struct job job;
    atomic_flag taken;
    bool open, stop;
    uint32_t joined, sleepers;
    atomic_uint sequence; /* counts jobs posted */
    atomic_uint running;  /* copy of joined, for the caller's spin */
    atomic_uint next;
    uint32_t num_threads, num_started;
    struct thread threads[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void work(struct pool *pool, const struct job *job, uint32_t index)
{
    struct worker worker = {index, job->scratch + index * job->scratch_stride};
    for (;;) {
        uint32_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
        if (item >= job->items)
            return;
        job->fn(job->args, item, &worker);
    }
}

/* Called with the lock held; returns with it held and a job joined, or false to stop. */
static bool join_next(struct pool *pool, unsigned *seen)
{
    while (!pool->stop && !(pool->open && *seen != atomic_load(&pool->sequence))) {
        unsigned now = atomic_load(&pool->sequence);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool->sequence) == now; i++)
            relax();
        pthread_mutex_lock(&pool->lock);
        if (pool->stop || atomic_load(&pool->sequence) != now)
            continue;
        pool->sleepers++;
        pthread_cond_wait(&pool->posted, &pool->lock);
        pool->sleepers--;
    }
    if (pool->stop)
        return false;
    *seen = atomic_load(&pool->sequence);
    pool->joined++;
    atomic_store(&pool->running, pool->joined);
    return true;
}

static void *thread_main(void *argument)
{
    struct thread *thread = argument;
    struct pool *pool = thread->pool;
    unsigned seen = 0;
    pthread_setname_np(pthread_self(), "pool");
    stacks_join(-1);
    pthread_mutex_lock(&pool->lock);
    while (join_next(pool, &seen)) {
        struct job job = pool->job;
        pthread_mutex_unlock(&pool->lock);
        work(pool, &job, thread->index);
        pthread_mutex_lock(&pool->lock);
        pool->joined--;
        atomic_store(&pool->running, pool->joined);
        if (pool->joined == 0 && !pool->open)
            pthread_cond_signal(&pool->left);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void run_together(struct pool *pool, const struct job *job)
{
    pthread_mutex_lock(&pool->lock);
    pool->job = *job;
    pool->open = true;
    atomic_store(&pool->next, 0);
    atomic_fetch_add(&pool->sequence, 1);
    if (pool->sleepers > 0)
        pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->lock);

    work(pool, job, 0);

    for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool->running) > 0; i++)
        relax();
    pthread_mutex_lock(&pool->lock);
    pool->open = false;
    while (pool->joined > 0)
        pthread_cond_wait(&pool->left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(struct pool *pool, item_fn *fn, const void *args, uint32_t items, void *scratch,
              size_t scratch_stride)
{
    if (pool->num_started > 0 && items > 1 && !atomic_flag_test_and_set(&pool->taken)) {
        run_together(pool, &(struct job){fn, args, scratch, scratch_stride, items});
        atomic_flag_clear(&pool->taken);
        return;
    }
    struct worker worker = {0, scratch};
    for (uint32_t i = 0; i < items; i++)
        fn(args, i, &worker);
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->num_threads;
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    atomic_fetch_add(&pool->sequence, 1);
    pthread_cond_broadcast(&pool->posted);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->num_started; i++)
        pthread_join(pool->threads[i].id, NULL);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->posted);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* ERR_MEMORY; ERR_BUSY when the system gives no more threads. */
int pool_new(struct pool **out, uint32_t num_threads)
{
    *out = NULL;
    struct pool *pool = calloc(1, sizeof(*pool) + num_threads * sizeof(struct thread));
    if (!pool)
        return ERR_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->posted, NULL);
    pthread_cond_init(&pool->left, NULL);
    pool->num_threads = num_threads;
    atomic_flag_clear(&pool->taken);
    for (uint32_t i = 0; i + 1 < num_threads; i++) {
        pool->threads[i] = (struct thread){.pool = pool, .index = i + 1};
        if (pthread_create(&pool->threads[i].id, NULL, thread_main, &pool->threads[i]) != 0) {
            pool_free(pool);
            return ERR_BUSY;
        }
        pool->num_started++;
    }
    *out = pool;
    return 0;
}
