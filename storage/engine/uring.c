/* uring.c - the io_uring engine: one thread that owns one ring.
 *
 * Any thread pushes requests onto a stack with one compare-and-swap. The ring thread takes the
 * whole stack and reverses it to first-in first-out order. A thread that pushes onto the empty
 * stack writes an eventfd, unless so many requests are on the device that the next completion wakes
 * the ring thread soon. A read of that eventfd is always in the ring, so the ring thread sleeps in
 * one place only: io_uring_submit_and_wait. At most `depth` requests are on the device; the others
 * wait in a list that is linked through the requests.
 *
 * Buffers registered with the kernel save it the pinning of pages per request. Registration may be
 * refused (RLIMIT_MEMLOCK): the limit is raised as far as the process may, else requests run
 * unregistered. Places may be registered before there is memory for them. Then the engine checks
 * first whether the limit allows all of them, so that a part of them does not use up the limit.
 *
 * Blocks are submitted to the kernel one by one, because it merges adjacent blocks of one call.
 * Four blocks of 1 MiB became one request of a virtio disk, which then had 8 instead of 32 under
 * way, and wrote a sixth slower.
 *
 * The completion queue cannot overflow: it has twice as many places as there are entries, and
 * entries are the depth and the eventfd's read. */
#include "proto/base/clock.h"
#include "storage/engine/engine.h"
#include "storage/engine/ring.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define URING_BUFFERS_MAX 16384u          /* the kernel's own limit */
#define URING_BUFFER_BYTES_MAX (1u << 30) /* likewise, of one buffer */
/* This many requests keep the device busy while new ones wait for a completion. */
#define URING_BUSY 8u
/* A request of at least this size justifies a system call for it alone. */
#define URING_BLOCK_BYTES (256u << 10)

struct uring_engine {
    struct engine base;
    struct io_uring ring;
    pthread_t thread;
    int event_fd;
    uint32_t depth;
    char text[128];
    _Atomic(struct storage_request *) submitted; /* newest first */
    atomic_uint in_flight;                       /* changed only by the ring thread */
    atomic_bool stop;
    struct iovec *buffers; /* valid once `registered` is set */
    uint32_t num_buffers;
    atomic_bool registered, told_refusal;
    /* Used by the ring thread only. */
    struct storage_request *waiting;
    struct storage_request **waiting_tail;
    bool wake_armed;
    uint64_t wake_value; /* the target of the eventfd's read; its address marks that completion */
};

static void wake_ring(struct uring_engine *engine)
{
    uint64_t one = 1;
    ssize_t written;
    do
        written = write(engine->event_fd, &one, sizeof(one));
    while (written < 0 && errno == EINTR);
    CHECK(written == sizeof(one));
}

static void arm_wake(struct uring_engine *engine)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    CHECK(sqe != NULL);
    io_uring_prep_read(sqe, engine->event_fd, &engine->wake_value, sizeof(engine->wake_value), 0);
    io_uring_sqe_set_data(sqe, &engine->wake_value);
    engine->wake_armed = true;
}

/* Appends the submitted requests to the waiting list, oldest first. */
static void queue_submitted(struct uring_engine *engine)
{
    struct storage_request *request = atomic_exchange(&engine->submitted, NULL);
    struct storage_request *oldest = NULL;
    struct storage_request **tail = engine->waiting_tail;
    while (request != NULL) {
        struct storage_request *older = request->next;
        if (oldest == NULL)
            tail = &request->next;
        request->next = oldest;
        oldest = request;
        request = older;
    }
    *engine->waiting_tail = oldest;
    engine->waiting_tail = tail;
}

static bool is_fixed(struct uring_engine *engine, const struct storage_request *request)
{
    if (request->buffer < 0 || !atomic_load_explicit(&engine->registered, memory_order_acquire))
        return false;
    CHECK((uint32_t)request->buffer < engine->num_buffers);
    const struct iovec *buffer = &engine->buffers[request->buffer];
    if (buffer->iov_base == NULL)
        return false; /* its memory came later, and the kernel did not register it */
    const char *start = buffer->iov_base, *data = request->data;
    CHECK(data >= start && data + request->bytes <= start + buffer->iov_len);
    return true;
}

/* The kernel may be out of memory for requests: those that it did not accept stay in the submission
 * queue for the next call. False: they do. */
static bool was_submitted(int result)
{
    CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY ||
          result == -ENOMEM);
    return result >= 0 || result == -EINTR;
}

/* Puts the rest of a request into the ring. */
static void prepare(struct uring_engine *engine, struct storage_request *request)
{
    if (request->bytes >= URING_BLOCK_BYTES && io_uring_sq_ready(&engine->ring) > 0)
        was_submitted(io_uring_submit(&engine->ring));
    struct io_uring_sqe *sqe = io_uring_get_sqe(&engine->ring);
    CHECK(sqe != NULL);
    int fd = engine_file_of(request)->fd;
    char *data = (char *)request->data + request->bytes_done;
    uint32_t bytes = request->bytes - request->bytes_done;
    uint64_t offset = request->offset + request->bytes_done;
    if (request->op == STORAGE_SYNC)
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    else if (is_fixed(engine, request) && request->op == STORAGE_READ)
        io_uring_prep_read_fixed(sqe, fd, data, bytes, offset, request->buffer);
    else if (is_fixed(engine, request))
        io_uring_prep_write_fixed(sqe, fd, data, bytes, offset, request->buffer);
    else if (request->op == STORAGE_READ)
        io_uring_prep_read(sqe, fd, data, bytes, offset);
    else
        io_uring_prep_write(sqe, fd, data, bytes, offset);
    io_uring_sqe_set_data(sqe, request);
}

static void start_waiting(struct uring_engine *engine)
{
    while (engine->waiting != NULL && atomic_load(&engine->in_flight) < engine->depth) {
        struct storage_request *request = engine->waiting;
        engine->waiting = request->next;
        if (engine->waiting == NULL)
            engine->waiting_tail = &engine->waiting;
        if (!engine_accept(request)) {
            storage_done(request);
            continue;
        }
        atomic_fetch_add(&engine->in_flight, 1);
        prepare(engine, request);
    }
}

static void complete(struct uring_engine *engine, struct storage_request *request, int result)
{
    bool ended = true;
    if (result < 0)
        ended = !engine_try_again(request, -result);
    else if (request->op != STORAGE_SYNC)
        ended = engine_advance(request, (uint32_t)result);
    if (!ended) {
        prepare(engine, request);
        return;
    }
    atomic_fetch_sub(&engine->in_flight, 1);
    storage_done(request);
}

/* Waits a little before the kernel is asked again, when it is short of memory. */
static void pause_for_memory(void)
{
    clock_sleep_ms(1);
}

static void reap(struct uring_engine *engine)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&engine->ring, &cqe) == 0) {
        void *data = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&engine->ring, cqe);
        if (data == &engine->wake_value) {
            CHECK(result == sizeof(uint64_t) || result == -EINTR || result == -EAGAIN ||
                  result == -ENOMEM || result == -ECANCELED);
            engine->wake_armed = false;
            if (result == -ENOMEM || result == -ECANCELED)
                pause_for_memory();
        } else {
            complete(engine, data, result);
        }
    }
}

/* Submits and sleeps until a completion. */
static void submit_and_wait(struct uring_engine *engine)
{
    if (!was_submitted(io_uring_submit_and_wait(&engine->ring, 1)))
        pause_for_memory();
}

/* Callbacks of refused requests may submit without a wake-up: repeats until none is left. */
static void start_submitted(struct uring_engine *engine)
{
    do {
        queue_submitted(engine);
        start_waiting(engine);
    } while (atomic_load_explicit(&engine->submitted, memory_order_relaxed) != NULL);
}

static void *run_ring(void *argument)
{
    struct uring_engine *engine = argument;
    for (;;) {
        bool stop = atomic_load_explicit(&engine->stop, memory_order_acquire);
        start_submitted(engine);
        bool idle = atomic_load(&engine->in_flight) == 0 && engine->waiting == NULL;
        if (stop && !engine->wake_armed && idle)
            return NULL;
        if (!engine->wake_armed && !stop)
            arm_wake(engine);
        submit_and_wait(engine);
        reap(engine);
    }
}

static int uring_open(struct engine **out, const struct storage_options *options)
{
    uint32_t depth = options->queue_depth ? options->queue_depth : ENGINE_DEPTH_DEFAULT;
    if (depth > ENGINE_DEPTH_MAX)
        return report_error(ERR_INVALID, NULL, "a queue depth of %u is over the limit of %u", depth,
                            ENGINE_DEPTH_MAX);
    int error;
    struct uring_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the io_uring engine");
    engine->base.ops = &engine_uring;
    engine->depth = depth;
    engine->waiting_tail = &engine->waiting;
    engine->event_fd = eventfd(0, EFD_CLOEXEC);
    if (engine->event_fd < 0) {
        error = report_errno(ERR_BUSY, "could not make an eventfd", NULL);
        goto free_engine;
    }
    int result = ring_open(&engine->ring, depth + 1);
    if (result < 0) {
        errno = -result;
        error = report_errno(storage_code_of_errno(-result), "the system refused io_uring",
                             "io_uring_setup");
        goto close_event;
    }
    snprintf(engine->text, sizeof(engine->text), "io_uring, depth %u", depth);
    error = engine_thread_start(&engine->thread, "hf-uring", run_ring, engine);
    if (error != 0)
        goto exit_ring;
    *out = &engine->base;
    return 0;
exit_ring:
    io_uring_queue_exit(&engine->ring);
close_event:
    close(engine->event_fd);
free_engine:
    free(engine);
    return error;
}

static void uring_close(struct engine *base)
{
    struct uring_engine *engine = (struct uring_engine *)base;
    atomic_store_explicit(&engine->stop, true, memory_order_release);
    wake_ring(engine);
    pthread_join(engine->thread, NULL);
    io_uring_queue_exit(&engine->ring);
    close(engine->event_fd);
    free(engine->buffers);
    free(engine);
}

/* 0 or a negative errno. */
static int try_register(struct uring_engine *engine, uint64_t later_bytes)
{
    if (later_bytes > 0 && !ring_may_lock(later_bytes))
        return -ENOMEM;
    return io_uring_register_buffers(&engine->ring, engine->buffers, engine->num_buffers);
}

static int uring_register_buffers(struct engine *base, const struct iovec *buffers, uint32_t count)
{
    struct uring_engine *engine = (struct uring_engine *)base;
    CHECK(engine->buffers == NULL); /* may be called once */
    if (count > URING_BUFFERS_MAX)
        return report_error(ERR_INVALID, NULL, "%u buffers are over the limit of %u", count,
                            URING_BUFFERS_MAX);
    for (uint32_t i = 0; i < count; i++)
        if (buffers[i].iov_len > URING_BUFFER_BYTES_MAX)
            return report_error(ERR_INVALID, "use more and smaller buffers",
                                "buffer %u of %zu bytes is over the limit of 1 GiB", i,
                                buffers[i].iov_len);
    engine->buffers = calloc(count, sizeof(*buffers));
    if (engine->buffers == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the table of buffers");
    uint64_t later_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        /* For the kernel an empty place has length 0. */
        if (buffers[i].iov_base != NULL)
            engine->buffers[i] = buffers[i];
        else
            later_bytes += buffers[i].iov_len;
    }
    engine->num_buffers = count;
    int result = try_register(engine, later_bytes);
    if (result == -ENOMEM && ring_raise_memlock())
        result = try_register(engine, later_bytes);
    if (result == 0) {
        atomic_store_explicit(&engine->registered, true, memory_order_release);
        snprintf(engine->text, sizeof(engine->text), "io_uring, depth %u, %u fixed buffers",
                 engine->depth, count);
        return 0;
    }
    /* EFAULT: a kernel before 5.13 does not support empty places. */
    if (result != -ENOMEM && result != -EPERM && result != -EOPNOTSUPP &&
        !(result == -EFAULT && later_bytes > 0)) {
        errno = -result;
        return report_errno(ERR_INVALID, "could not register the buffers", NULL);
    }
    snprintf(engine->text, sizeof(engine->text), "io_uring, depth %u, unregistered buffers (%s)",
             engine->depth, strerror(-result));
    return 0;
}

/* The kernel keeps registered memory pinned, even after it is unmapped. So the place is emptied
 * before the memory is released. The kernel accepts the call from any thread; the ring thread sees
 * the new address with the first request on it. */
static void uring_replace_buffer(struct engine *base, uint32_t index, const struct iovec *buffer)
{
    struct uring_engine *engine = (struct uring_engine *)base;
    const struct iovec none = {NULL, 0};
    CHECK(index < engine->num_buffers);
    engine->buffers[index] = none;
    if (!atomic_load_explicit(&engine->registered, memory_order_acquire))
        return;
    int result = io_uring_register_buffers_update_tag(&engine->ring, index, buffer ? buffer : &none,
                                                      NULL, 1);
    if (result == 1 && buffer != NULL)
        engine->buffers[index] = *buffer;
    if (result < 0 && buffer != NULL && !atomic_exchange(&engine->told_refusal, true))
        log_warn("storage", "memory is used unregistered, at more CPU time: %s", strerror(-result));
}

static void uring_submit(struct engine *base, struct storage_request *request)
{
    struct uring_engine *engine = (struct uring_engine *)base;
    struct storage_request *head = atomic_load_explicit(&engine->submitted, memory_order_relaxed);
    do
        request->next = head;
    while (!atomic_compare_exchange_weak(&engine->submitted, &head, request));
    /* The ring thread checks the stack after each completion has lowered in_flight, before it
     * sleeps. So a thread that sees many in flight here need not wake it. Callbacks that submit run
     * on that thread. */
    if (head == NULL && atomic_load(&engine->in_flight) < URING_BUSY &&
        !pthread_equal(pthread_self(), engine->thread))
        wake_ring(engine);
}

static const char *uring_describe(struct engine *base)
{
    return ((struct uring_engine *)base)->text;
}

const struct engine_ops engine_uring = {
    .open = uring_open,
    .close = uring_close,
    .register_buffers = uring_register_buffers,
    .replace_buffer = uring_replace_buffer,
    .submit = uring_submit,
    .describe = uring_describe,
};
