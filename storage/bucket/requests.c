/* requests.c - reads and writes of big objects: a queue, and a thread for each connection.
 *
 * One first-in first-out list, linked through the requests. A thread takes a piece within one part
 * of the object. So several threads execute one large request at once, and a WRITE of whole parts
 * is sent straight from the caller's memory. Small adjacent READs become one ranged GET into their
 * several buffers, if all threads still have work.
 *
 * While a request is queued or under way, bytes_done counts the bytes that threads have taken, and
 * `retries` their unfinished pieces. */
#include "storage/bucket/bucket.h"

#include <stdlib.h>

#define MERGED_MAX 64u

struct requests {
    struct bucket *bucket;
    pthread_mutex_t mutex; /* guards the list, stop, and the counts of requests above */
    pthread_cond_t wake;
    struct storage_request *head;
    struct storage_request **tail;
    uint32_t num_queued;
    bool stop;
    pthread_mutex_t done_mutex; /* held while a callback runs */
    uint32_t num_threads;
    pthread_t threads[];
};

/* The next work of a thread: a piece of one request, or several whole READs. */
struct work {
    struct storage_request *requests[MERGED_MAX];
    struct iovec data[MERGED_MAX];
    size_t count;
    uint64_t offset;
};

static void pop(struct requests *requests)
{
    struct storage_request *request = requests->head;
    requests->head = request->next;
    if (requests->head == NULL)
        requests->tail = &requests->head;
    requests->num_queued--;
}

static bool is_wanted(struct storage_request *request)
{
    bool has_begun = request->bytes_done > 0 || request->retries > 0;
    return has_begun ? request->error == 0
                     : engine_is_wanted(request) &&
                           (request->op == STORAGE_SYNC || object_accepts(request));
}

static void add_piece(struct work *work, struct storage_request *request, uint32_t bytes)
{
    work->requests[work->count] = request;
    work->data[work->count++] = (struct iovec){(char *)request->data + request->bytes_done, bytes};
    request->bytes_done += bytes;
    request->retries++;
}

/* Adds whole READs after a first one that was taken whole. */
static void merge(struct requests *requests, struct work *work, const struct storage_request *first)
{
    uint64_t end = first->offset + first->bytes;
    uint64_t limit = first->offset + object_part_bytes(first->object);
    uint32_t share = (requests->num_queued + 1) / requests->num_threads;
    while (requests->head != NULL && work->count < share && work->count < MERGED_MAX) {
        struct storage_request *next = requests->head;
        if (next->op != STORAGE_READ || next->object != first->object || next->offset != end ||
            next->bytes_done > 0 || end + next->bytes > limit || !is_wanted(next))
            return;
        end += next->bytes;
        pop(requests);
        add_piece(work, next, next->bytes);
    }
}

/* Takes work from the head of the list, under the mutex. count 0: the request is refused. */
static struct storage_request *claim(struct requests *requests, struct work *work)
{
    struct storage_request *request = requests->head;
    work->count = 0;
    if (!is_wanted(request) || request->op == STORAGE_SYNC) {
        pop(requests);
        work->count = request->error == 0 ? 1 : 0;
        work->requests[0] = request;
        request->bytes_done = request->bytes;
        request->retries += work->count > 0;
        return request;
    }
    uint64_t part = object_part_bytes(request->object);
    work->offset = request->offset + request->bytes_done;
    uint64_t in_part = part - work->offset % part, rest = request->bytes - request->bytes_done;
    bool is_all = request->bytes_done == 0 && rest <= in_part;
    add_piece(work, request, (uint32_t)(rest < in_part ? rest : in_part));
    if (request->bytes_done == request->bytes)
        pop(requests);
    if (is_all && request->op == STORAGE_READ)
        merge(requests, work, request);
    return request;
}

static int carry_out(struct requests *requests, struct work *work)
{
    struct bucket *bucket = requests->bucket;
    struct storage_request *request = work->requests[0];
    switch (request->op) {
    case STORAGE_READ:
        return object_read(bucket, request->object, work->offset, work->data, work->count);
    case STORAGE_WRITE:
        return object_write(bucket, request->object, work->offset, &work->data[0],
                            work->data[0].iov_len == request->bytes ? request->sha256 : NULL);
    case STORAGE_SYNC:
        break;
    }
    return object_sync(bucket, request->object);
}

/* Was it the last piece? Then only the caller of done() still uses the request. */
static bool finish_piece(struct requests *requests, struct storage_request *request, int error,
                         bool was_taken)
{
    pthread_mutex_lock(&requests->mutex);
    if (request->error == 0)
        request->error = error;
    request->retries -= was_taken;
    bool is_last = request->bytes_done == request->bytes && request->retries == 0;
    pthread_mutex_unlock(&requests->mutex);
    return is_last;
}

static void finish(struct requests *requests, struct work *work, struct storage_request *request,
                   int error)
{
    size_t count = work->count > 0 ? work->count : 1;
    for (size_t i = 0; i < count; i++) {
        struct storage_request *one = i == 0 ? request : work->requests[i];
        if (!finish_piece(requests, one, error, work->count > 0))
            continue;
        pthread_mutex_lock(&requests->done_mutex);
        storage_done(one);
        pthread_mutex_unlock(&requests->done_mutex);
    }
}

static void *run_thread(void *argument)
{
    struct requests *requests = argument;
    struct work work;
    for (;;) {
        pthread_mutex_lock(&requests->mutex);
        while (requests->head == NULL && !requests->stop)
            pthread_cond_wait(&requests->wake, &requests->mutex);
        struct storage_request *request = requests->head != NULL ? claim(requests, &work) : NULL;
        pthread_mutex_unlock(&requests->mutex);
        if (request == NULL)
            return NULL;
        int error = work.count > 0 ? carry_out(requests, &work) : 0;
        if (error != 0)
            log_warn("storage", "%s", report_line());
        finish(requests, &work, request, error);
    }
}

int requests_open(struct requests **out, struct bucket *bucket)
{
    uint32_t wanted = (uint32_t)bucket->settings.connections;
    struct requests *requests = calloc(1, sizeof *requests + wanted * sizeof(pthread_t));
    if (requests == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the threads of a bucket");
    requests->bucket = bucket;
    requests->tail = &requests->head;
    pthread_mutex_init(&requests->mutex, NULL);
    pthread_mutex_init(&requests->done_mutex, NULL);
    pthread_cond_init(&requests->wake, NULL);
    int error = 0;
    while (requests->num_threads < wanted && error == 0) {
        error = engine_thread_start(&requests->threads[requests->num_threads], "hf-bucket",
                                    run_thread, requests);
        requests->num_threads += error == 0;
    }
    if (error != 0)
        requests_close(requests);
    else
        *out = requests;
    return error;
}

void bucket_submit(struct storage *storage, struct storage_request *request)
{
    struct requests *requests = bucket_of(storage)->requests;
    request->next = NULL;
    pthread_mutex_lock(&requests->mutex);
    *requests->tail = request;
    requests->tail = &request->next;
    requests->num_queued++;
    pthread_cond_broadcast(&requests->wake); /* several threads share a large one */
    pthread_mutex_unlock(&requests->mutex);
}

void requests_close(struct requests *requests)
{
    if (requests == NULL)
        return;
    pthread_mutex_lock(&requests->mutex);
    requests->stop = true;
    pthread_cond_broadcast(&requests->wake);
    pthread_mutex_unlock(&requests->mutex);
    for (uint32_t i = 0; i < requests->num_threads; i++)
        pthread_join(requests->threads[i], NULL);
    pthread_cond_destroy(&requests->wake);
    pthread_mutex_destroy(&requests->done_mutex);
    pthread_mutex_destroy(&requests->mutex);
    free(requests);
}
