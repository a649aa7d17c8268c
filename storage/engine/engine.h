/* engine.h - private to storage/: executes the requests of local objects.
 *
 * Two engines have the same semantics: `engine_uring` (uring.c, one ring) and `engine_pwrite`
 * (pwrite.c, threads). `local` takes the first that opens. Also here: the worker threads of the
 * pwrite engine and the memory back-end (workers.c), and the rule for short transfers.
 *
 * Semantics of both engines:
 *  - any thread may submit; done() runs on an engine thread, one call at a time;
 *  - requests are not ordered among themselves; those over the depth wait, first come first served;
 *  - a short transfer is continued, EINTR and EAGAIN are tried again (ENGINE_RETRIES_MAX times);
 *  - a SYNC is fdatasync, and an error of it is final: it is reported and never tried again;
 *  - nothing is allocated per request. */
#ifndef HOLDFAST_STORAGE_ENGINE_H
#define HOLDFAST_STORAGE_ENGINE_H

#include "storage/engine/backend.h"

#include <errno.h>
#include <pthread.h>

#define ENGINE_DEPTH_DEFAULT 32u
#define ENGINE_DEPTH_MAX 4096u
#define ENGINE_THREADS_DEFAULT 4u
#define ENGINE_THREADS_MAX 256u
#define ENGINE_RETRIES_MAX 100u /* of one transfer without progress; then its errno is reported */

/* The open file of a request: first in every object that an engine serves. */
struct engine_file {
    struct storage_base base;
    int fd;
    bool direct;    /* O_DIRECT is on: transfers continue at aligned offsets only */
    uint64_t bytes; /* reserved size: writes past it are refused */
};

struct engine;

struct engine_ops {
    /* A refusal by the system is an error here; the caller then opens the next engine. */
    int (*open)(struct engine **out, const struct storage_options *options);
    /* Waits for every submitted request. */
    void (*close)(struct engine *engine);
    int (*register_buffers)(struct engine *engine, const struct iovec *buffers, uint32_t count);
    void (*replace_buffer)(struct engine *engine, uint32_t index, const struct iovec *buffer);
    void (*submit)(struct engine *engine, struct storage_request *request);
    /* "io_uring, depth 32, 8 fixed buffers"; borrowed until register_buffers. */
    const char *(*describe)(struct engine *engine);
};

/* Every engine begins with this. */
struct engine {
    const struct engine_ops *ops;
};

extern const struct engine_ops engine_uring;
extern const struct engine_ops engine_pwrite;

/* The error code for an errno: ERR_SPACE, ERR_NOT_FOUND, ERR_EXISTS, ERR_DENIED, ... or ERR_IO. */
int storage_code_of_errno(int number);

/* May `name` be one component of a key? Lists omit other names. */
bool storage_name_is_valid(const char *name, size_t length);

/* Starts a thread with all signals blocked: the program's own threads handle them. `name` has at
 * most 15 characters. ERR_MEMORY. */
int engine_thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument);

/* A fixed set of threads that execute requests: perform() sets the result, then done() runs. */
struct workers;
int workers_open(struct workers **out, uint32_t num_threads, const char *thread_name,
                 void (*perform)(struct storage_request *request));
void workers_submit(struct workers *workers, struct storage_request *request);
void workers_close(struct workers *workers); /* waits for every request; NULL is allowed */
/* Threads that several stores share: their number grows with the stores, up to num_threads_max, and
 * they end when the last store has left. */
struct workers_pool;
struct workers_shared {
    const char *thread_name;
    void (*perform)(struct storage_request *request);
    uint32_t num_threads_max;
    pthread_mutex_t mutex; /* of the following */
    struct workers_pool *pool;
    uint32_t num_stores, num_wanted;
};
/* Joins a store with at most `num_at_once` requests under way; its others wait. */
int workers_join(struct workers **out, struct workers_shared *shared, uint32_t num_at_once);

static inline struct engine_file *engine_file_of(const struct storage_request *request)
{
    return (struct engine_file *)request->object;
}

static inline void engine_set_errno(struct storage_request *request, int number)
{
    request->error = storage_code_of_errno(number);
    request->error_number = number;
}

/* Refuses, with the error set, a transfer that was given up before it began. */
static inline bool engine_is_wanted(struct storage_request *request)
{
    if (request->op == STORAGE_SYNC || !request->given_up || !atomic_load(request->given_up))
        return true;
    request->error = ERR_ABORTED;
    return false;
}

/* Refuses also a write past the object's reserved size. */
static inline bool engine_accept(struct storage_request *request)
{
    if (!engine_is_wanted(request))
        return false;
    const struct engine_file *file = engine_file_of(request);
    if (request->op != STORAGE_WRITE || request->offset + request->bytes <= file->bytes)
        return true;
    request->error = ERR_INVALID;
    request->error_number = EFBIG;
    return false;
}

/* The rule for short transfers: accounts for `moved` bytes and tells whether the request has ended.
 * A read without progress is past the end of the object, a write without progress is an error. With
 * O_DIRECT a ragged piece does not count, because no transfer may start after it. */
static inline bool engine_advance(struct storage_request *request, uint32_t moved)
{
    uint32_t before = request->bytes_done;
    CHECK(moved <= request->bytes - before);
    request->bytes_done = before + moved;
    if (request->bytes_done == request->bytes)
        return true;
    if (engine_file_of(request)->direct)
        request->bytes_done -= request->bytes_done % STORAGE_ALIGN;
    if (request->bytes_done > before) {
        request->retries = 0;
        return false;
    }
    request->error = request->op == STORAGE_READ ? ERR_CORRUPT : ERR_IO;
    request->error_number = request->op == STORAGE_READ ? 0 : EIO;
    return true;
}

/* A transfer ended with errno `number`: true when it must be tried again, else the error is set. */
static inline bool engine_try_again(struct storage_request *request, int number)
{
    bool passing = number == EINTR || number == EAGAIN;
    if (passing && request->op != STORAGE_SYNC && request->retries++ < ENGINE_RETRIES_MAX)
        return true;
    engine_set_errno(request, number);
    return false;
}

#endif
