/* workers.c - a fixed set of threads that carry out requests.
 *
 * One first-in first-out list under one mutex; each thread takes a request, performs it without any
 * lock, then calls done() under a second mutex, so callbacks never run side by side. The list is
 * linked through the requests: it has no limit of its own, the callers' number of requests bounds
 * it. */
#include "storage/engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct workers {
    void (*perform)(struct storage_request *request);
    pthread_mutex_t mutex; /* guards head, tail, stop */
    pthread_cond_t wake;
    struct storage_request *head;
    struct storage_request **tail;
    bool stop;
    pthread_mutex_t done_mutex; /* held while a callback runs */
    uint32_t num_threads;
    pthread_t threads[];
};

/* The oldest request, waited for; NULL when there is none left and none will come. */
static struct storage_request *take_request(struct workers *workers)
{
    pthread_mutex_lock(&workers->mutex);
    while (workers->head == NULL && !workers->stop)
        pthread_cond_wait(&workers->wake, &workers->mutex);
    struct storage_request *request = workers->head;
    if (request != NULL) {
        workers->head = request->next;
        if (workers->head == NULL)
            workers->tail = &workers->head;
    }
    pthread_mutex_unlock(&workers->mutex);
    return request;
}

static void *run_worker(void *argument)
{
    struct workers *workers = argument;
    struct storage_request *request;
    while ((request = take_request(workers)) != NULL) {
        workers->perform(request);
        pthread_mutex_lock(&workers->done_mutex);
        request->done(request);
        pthread_mutex_unlock(&workers->done_mutex);
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

int workers_open(struct workers **out, uint32_t num_threads, const char *thread_name,
                 void (*perform)(struct storage_request *request))
{
    CHECK(num_threads > 0 && num_threads <= ENGINE_THREADS_MAX);
    struct workers *workers = calloc(1, sizeof(*workers) + num_threads * sizeof(pthread_t));
    if (workers == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the worker threads");
    workers->perform = perform;
    workers->tail = &workers->head;
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_mutex_init(&workers->done_mutex, NULL);
    pthread_cond_init(&workers->wake, NULL);
    int error = 0;
    while (workers->num_threads < num_threads && error == 0) {
        error = engine_thread_start(&workers->threads[workers->num_threads], thread_name,
                                    run_worker, workers);
        workers->num_threads += error == 0;
    }
    if (error != 0)
        workers_close(workers);
    else
        *out = workers;
    return error;
}

void workers_submit(struct workers *workers, struct storage_request *request)
{
    request->next = NULL;
    pthread_mutex_lock(&workers->mutex);
    *workers->tail = request;
    workers->tail = &request->next;
    pthread_cond_signal(&workers->wake);
    pthread_mutex_unlock(&workers->mutex);
}

void workers_close(struct workers *workers)
{
    if (workers == NULL)
        return;
    pthread_mutex_lock(&workers->mutex);
    workers->stop = true;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->mutex);
    for (uint32_t i = 0; i < workers->num_threads; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->done_mutex);
    pthread_mutex_destroy(&workers->mutex);
    free(workers);
}
