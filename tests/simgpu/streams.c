/* streams.c - streams as queues, and the scheduler that takes from them (simgpu.h).
 *
 * The first operation of a stream may run when no other of the stream does, and, a wait, when its
 * event's record was reached. A host's wait always ends: it names a record that was queued before
 * it. Only a host function that runs on another thread, or work that depends on another thread's
 * call, takes real waiting. Host functions run without the lock. */
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/simgpu/private.h"

static _Thread_local bool is_in_host_function;

bool simgpu_is_stream(const struct CUstream_st *stream)
{
    for (const struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        if (s == stream)
            return true;
    return false;
}

struct op *simgpu_new_op(enum op_kind kind, const struct simgpu_work *work, const void *args,
                         size_t bytes)
{
    struct op *op = calloc(1, sizeof(*op) + bytes);
    CHECK(op != NULL);
    op->kind = kind;
    op->bytes = bytes;
    if (work != NULL)
        op->work = *work;
    if (bytes > 0)
        memcpy(op->args, args, bytes);
    return op;
}

/* ---- Running ---- */

static bool may_run(const struct CUstream_st *stream)
{
    struct op *op = stream->first;
    if (op == NULL || stream->is_busy)
        return false;
    if (op->kind == OP_WAIT)
        return op->event->done >= op->point;
    return op->work.is_ready == NULL || op->work.is_ready(op->args);
}

void simgpu_drop_event(struct CUevent_st *event)
{
    if (event == NULL || --event->num_users > 0 || !event->is_destroyed)
        return;
    struct CUevent_st **link = &simgpu.events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    free(event);
}

static void run_host_function(const struct op *op)
{
    simgpu_unlock();
    is_in_host_function = true;
    op->work.run(op->user);
    is_in_host_function = false;
    pthread_mutex_lock(&simgpu.lock);
}

/* Memory of devices is accessible only here. */
static void run_work(const struct CUstream_st *stream, struct op *op)
{
    uint32_t devices = op->work.devices != 0 ? op->work.devices : 1u << stream->device;
    simgpu_open_memory(devices);
    op->work.run(op->args);
}

static void run_first(struct CUstream_st *stream)
{
    struct op *op = stream->first;
    stream->is_busy = true;
    if (op->kind == OP_HOST)
        run_host_function(op);
    else if (op->kind == OP_WORK && simgpu.lost[stream->device] == cudaSuccess)
        run_work(stream, op);
    else if (op->kind == OP_RECORD && op->event->done < op->point) {
        op->event->done = op->point;
        op->event->reached_ns = clock_ns();
    }
    stream->is_busy = false;
    stream->first = op->next;
    if (stream->first == NULL)
        stream->last = NULL;
    stream->done++;
    simgpu_drop_event(op->event);
    free(op);
    pthread_cond_broadcast(&simgpu.changed);
}

/* ---- Choosing ---- */

static struct CUstream_st *stream_of_record(const struct op *wait)
{
    for (struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        for (const struct op *op = s->first; op != NULL; op = op->next)
            if (op->kind == OP_RECORD && op->event == wait->event && op->point >= wait->point)
                return s;
    return NULL;
}

/* The stream that `stream` needs to progress: itself, or the one it waits for. NULL: another
 * thread. */
static struct CUstream_st *needed(struct CUstream_st *stream)
{
    while (stream != NULL && !may_run(stream)) {
        struct op *op = stream->first;
        if (op == NULL || stream->is_busy)
            return NULL;
        if (op->kind == OP_WAIT)
            stream = stream_of_record(op);
        else
            stream = op->work.blocker != NULL ? op->work.blocker(op->args) : NULL;
    }
    return stream;
}

/* A runnable operation of a device's streams; host functions run when their stream is waited
 * for. */
static struct CUstream_st *any_of(int device)
{
    struct CUstream_st *chosen = NULL;
    uint64_t seen = 0;
    for (struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        if (s->device == device && may_run(s) && s->first->kind != OP_HOST &&
            simgpu_draw() % ++seen == 0)
            chosen = s;
    return chosen;
}

bool simgpu_run_any(int device)
{
    struct CUstream_st *stream = any_of(device);
    if (stream != NULL)
        run_first(stream);
    return stream != NULL;
}

static bool is_at_random(void)
{
    return simgpu.seed % 3 == 2;
}

/* Runs one operation for a wait on `stream`; or waits for another thread's. */
static void get_on(struct CUstream_st *stream)
{
    struct CUstream_st *next = is_at_random() ? any_of(stream->device) : NULL;
    if (next == NULL)
        next = needed(stream);
    if (next == NULL) {
        simgpu_wait();
        return;
    }
    run_first(next);
}

void simgpu_post(struct CUstream_st *stream, struct op *op)
{
    if (stream->capture != NULL) {
        simgpu_capture(stream, op);
        return;
    }
    if (op->event != NULL)
        op->event->num_users++;
    if (stream->last != NULL)
        stream->last->next = op;
    else
        stream->first = op;
    stream->last = op;
    stream->posted++;
    pthread_cond_broadcast(&simgpu.changed);
    bool is_early = simgpu.seed % 3 == 1;
    uint64_t turns = is_early ? UINT64_MAX : is_at_random() ? simgpu_draw() % 3 : 0;
    struct CUstream_st *next = turns > 0 ? any_of(stream->device) : NULL;
    for (; turns > 0 && next != NULL; turns--, next = any_of(stream->device))
        run_first(next);
}

void simgpu_finish(struct CUstream_st *stream, uint64_t posted)
{
    while (stream->done < posted)
        get_on(stream);
}

bool simgpu_try(struct CUstream_st *stream)
{
    struct CUstream_st *next = stream->done < stream->posted ? needed(stream) : NULL;
    if (next != NULL)
        run_first(next);
    return stream->done == stream->posted;
}

bool simgpu_try_event(struct CUevent_st *event)
{
    const struct op last = {.kind = OP_WAIT, .event = event, .point = event->recorded};
    struct CUstream_st *stream = event->done < event->recorded ? stream_of_record(&last) : NULL;
    if (stream != NULL)
        (void)simgpu_try(stream);
    return event->done == event->recorded;
}

void simgpu_finish_event(struct CUevent_st *event, uint64_t point)
{
    const struct op wait = {.kind = OP_WAIT, .event = event, .point = point};
    while (event->done < point) {
        struct CUstream_st *stream = stream_of_record(&wait);
        if (stream != NULL)
            get_on(stream);
        else
            simgpu_wait();
    }
}

void simgpu_finish_device(int device)
{
    for (struct CUstream_st *s = simgpu.streams; s != NULL; s = s->next)
        if (s->device == device)
            simgpu_finish(s, s->posted);
}

int simgpu_queue(void *at, const struct simgpu_work *work, const void *args, size_t bytes)
{
    struct CUstream_st *stream = at;
    pthread_mutex_lock(&simgpu.lock);
    cudaError_t error = !simgpu_is_stream(stream)       ? cudaErrorInvalidResourceHandle
                        : simgpu_spoils_capture(stream) ? cudaErrorStreamCaptureUnsupported
                                                        : cudaSuccess;
    if (error == cudaSuccess)
        simgpu_post(stream, simgpu_new_op(OP_WORK, work, args, bytes));
    simgpu_unlock();
    return error;
}

/* ---- How calls begin and end ---- */

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;

int simgpu_device(void)
{
    return current_device;
}

/* Versions are returned without a driver; other calls need one of the runtime's major version. */
static bool is_too_old(const char *call)
{
    return simgpu.driver / 1000 < CUDART_VERSION / 1000 &&
           strcmp(call, "cudaDriverGetVersion") != 0 && strcmp(call, "cudaRuntimeGetVersion") != 0;
}

/* Takes the lock; every call ends with simgpu_leave, which releases it. */
cudaError_t simgpu_enter(const char *call)
{
    pthread_mutex_lock(&simgpu.lock);
    simgpu_first_call();
    if (is_in_host_function)
        return cudaErrorNotPermitted;
    if (is_too_old(call))
        return cudaErrorInsufficientDriver;
    if (simgpu.lost[current_device] != cudaSuccess)
        return simgpu.lost[current_device];
    if (simgpu_is_unsafe(call))
        return cudaErrorStreamCaptureUnsupported;
    if (!simgpu_fails_locked(call))
        return cudaSuccess;
    return strcmp(call, "cudaMalloc") == 0 || strcmp(call, "cudaHostAlloc") == 0
               ? cudaErrorMemoryAllocation
               : cudaErrorUnknown;
}

cudaError_t simgpu_leave(cudaError_t error)
{
    if (error == cudaSuccess)
        error = simgpu.lost[current_device];
    if (error != cudaSuccess)
        last_error = error;
    simgpu_unlock();
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (device < 0 || device >= simgpu.num_devices))
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess)
        current_device = device;
    return simgpu_leave(error);
}

cudaError_t cudaGetDevice(int *out)
{
    cudaError_t error = simgpu_enter(__func__);
    *out = current_device;
    return simgpu_leave(error);
}
