/* workers.c - a fixed set of threads that execute requests, for one store or for several.
 *
 * Each store has a lane of requests (proto/base/lanes.h), first in first out, under one mutex. A
 * thread takes a request, performs it without any lock, then calls done() under a second mutex, so
 * callbacks never run in parallel. The lanes are linked through the requests: they have no limit,
 * the callers' number of requests bounds them. */
#include "storage/engine/engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct workers_pool {
    void (*perform)(struct storage_request *request);
    const char *thread_name;
    pthread_mutex_t mutex; /* guards lanes, stop */
    pthread_cond_t wake, ended;
    struct lanes lanes;
    bool stop;
    pthread_mutex_t done_mutex; /* held while a callback runs */
    uint32_t num_threads;
    pthread_t threads[ENGINE_THREADS_MAX];
};

/* Of one store. */
struct workers {
    struct workers_pool *pool;
    struct workers_shared *shared; /* NULL: only this store uses the pool */
    struct lane lane;
    uint32_t num_at_once;
};

/* Waits for the oldest request of the lane whose turn it is; NULL when there is none left and none
 * will come. */
static struct storage_request *await_request(struct workers_pool *pool, struct lane **out_lane)
{
    struct lane_link *link;
    pthread_mutex_lock(&pool->mutex);
    while ((link = lanes_take(&pool->lanes, out_lane)) == NULL && !pool->stop)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    return link == NULL
               ? NULL
               : (struct storage_request *)(void *)((char *)link -
                                                    offsetof(struct storage_request, link));
}

static void *run_worker(void *argument)
{
    struct workers_pool *pool = argument;
    struct storage_request *request;
    struct lane *lane;
    while ((request = await_request(pool, &lane)) != NULL) {
        pool->perform(request);
        pthread_mutex_lock(&pool->done_mutex);
        storage_done(request);
        pthread_mutex_unlock(&pool->done_mutex);
        pthread_mutex_lock(&pool->mutex);
        lane_done(lane);
        pthread_cond_broadcast(&pool->ended);
        pthread_mutex_unlock(&pool->mutex);
    }
    return NULL;
}

int engine_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int number = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number != 0)
        return report_error(ERR_MEMORY, "free memory, or raise the limit of processes",
                            "could not start a storage thread: %s: %s", name, strerror(number));
    pthread_setname_np(*out, name);
    return 0;
}

static void close_pool(struct workers_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->num_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->ended);
    pthread_mutex_destroy(&pool->done_mutex);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

static struct workers_pool *new_pool(const char *thread_name,
                                     void (*perform)(struct storage_request *request))
{
    struct workers_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->perform = perform;
    pool->thread_name = thread_name;
    lanes_init(&pool->lanes, ENGINE_THREADS_MAX); /* no lane is ever away */
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_mutex_init(&pool->done_mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->ended, NULL);
    return pool;
}

static int start_threads(struct workers_pool *pool, uint32_t num_threads)
{
    int error = 0;
    while (pool->num_threads < num_threads && error == 0) {
        error = engine_thread_start(&pool->threads[pool->num_threads], pool->thread_name,
                                    run_worker, pool);
        pool->num_threads += error == 0;
    }
    return error;
}

static int report_no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "could not allocate the worker threads");
}

int workers_open(struct workers **out, uint32_t num_threads, const char *thread_name,
                 void (*perform)(struct storage_request *request))
{
    CHECK(num_threads > 0 && num_threads <= ENGINE_THREADS_MAX);
    struct workers *workers = calloc(1, sizeof *workers);
    struct workers_pool *pool = workers != NULL ? new_pool(thread_name, perform) : NULL;
    if (pool == NULL) {
        free(workers);
        return report_no_memory();
    }
    *workers = (struct workers){.pool = pool, .num_at_once = num_threads};
    lane_init(&workers->lane, &pool->lanes, num_threads);
    int error = start_threads(pool, num_threads);
    if (error != 0)
        workers_close(workers);
    else
        *out = workers;
    return error;
}

/* Call it with the mutex of `shared`. */
static int join_pool(struct workers *workers, struct workers_shared *shared)
{
    uint32_t wanted = shared->num_wanted + workers->num_at_once;
    if (shared->pool == NULL)
        shared->pool = new_pool(shared->thread_name, shared->perform);
    if (shared->pool == NULL)
        return report_no_memory();
    workers->pool = shared->pool;
    lane_init(&workers->lane, &shared->pool->lanes, workers->num_at_once);
    shared->num_stores++;
    shared->num_wanted = wanted;
    return start_threads(shared->pool,
                         wanted < shared->num_threads_max ? wanted : shared->num_threads_max);
}

int workers_join(struct workers **out, struct workers_shared *shared, uint32_t num_at_once)
{
    CHECK(num_at_once > 0 && shared->num_threads_max <= ENGINE_THREADS_MAX);
    struct workers *workers = calloc(1, sizeof *workers);
    if (workers == NULL)
        return report_no_memory();
    *workers = (struct workers){.shared = shared, .num_at_once = num_at_once};
    pthread_mutex_lock(&shared->mutex);
    int error = join_pool(workers, shared);
    pthread_mutex_unlock(&shared->mutex);
    if (error != 0)
        workers_close(workers);
    else
        *out = workers;
    return error;
}

void workers_submit(struct workers *workers, struct storage_request *request)
{
    struct workers_pool *pool = workers->pool;
    pthread_mutex_lock(&pool->mutex);
    lane_put(&workers->lane, &request->link);
    pthread_cond_signal(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void leave_pool(struct workers *workers)
{
    struct workers_shared *shared = workers->shared;
    struct workers_pool *pool = workers->pool;
    pthread_mutex_lock(&pool->mutex);
    while (!lane_is_idle(&workers->lane))
        pthread_cond_wait(&pool->ended, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_lock(&shared->mutex);
    shared->num_wanted -= workers->num_at_once;
    if (--shared->num_stores == 0) {
        close_pool(pool);
        shared->pool = NULL;
    }
    pthread_mutex_unlock(&shared->mutex);
}

void workers_close(struct workers *workers)
{
    if (workers == NULL)
        return;
    if (workers->shared == NULL)
        close_pool(workers->pool);
    else if (workers->pool != NULL)
        leave_pool(workers);
    free(workers);
}
