/* runtime.c - devices, streams, events, host functions and launches of the CUDA runtime
 * (simgpu.h); memory and copies are in memory.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/cuda/lanes.h"
#include "tests/simgpu/private.h"

/* ---- Devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = simgpu_enter(__func__);
    *count = error == cudaSuccess ? simgpu.num_devices : 0;
    return simgpu_leave(error == cudaSuccess && *count == 0 ? cudaErrorNoDevice : error);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (device < 0 || device >= simgpu.num_devices))
        error = cudaErrorInvalidDevice;
    if (error == cudaSuccess) {
        *out = (struct cudaDeviceProp){.major = simgpu.capability / 10,
                                       .minor = simgpu.capability % 10,
                                       .warpSize = LANES_WARP,
                                       .multiProcessorCount = 132,
                                       .totalGlobalMem = simgpu.memory_bytes,
                                       .sharedMemPerBlockOptin = LANES_SHARED_MAX};
        snprintf(out->name, sizeof(out->name), "simulated GPU");
        for (int i = 0; i < 16; i++)
            out->uuid.bytes[i] = (char)(16 * i + device);
    }
    return simgpu_leave(error);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (device < 0 || device >= simgpu.num_devices))
        error = cudaErrorInvalidDevice;
    bool is_node = attribute == cudaDevAttrHostNumaId;
    if (error == cudaSuccess && !is_node && attribute != cudaDevAttrHostRegisterReadOnlySupported)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        *value = is_node ? simgpu.node : simgpu.registers_read_only;
    return simgpu_leave(error);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    cudaError_t error = simgpu_enter(__func__);
    *version = simgpu.driver;
    return simgpu_leave(error);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    cudaError_t error = simgpu_enter(__func__);
    *version = CUDART_VERSION;
    return simgpu_leave(error);
}

static bool is_device(int device)
{
    return device >= 0 && device < simgpu.num_devices;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (bytes < 13 || !is_device(device)))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess)
        snprintf(out, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return simgpu_leave(error);
}

cudaError_t cudaDeviceGetByPCIBusId(int *out, const char *bus)
{
    unsigned device = 0;
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess &&
        (sscanf(bus, "0000:%02x:00.0", &device) != 1 || !is_device((int)device)))
        error = cudaErrorInvalidValue;
    *out = (int)device;
    return simgpu_leave(error);
}

cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int peer)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (!is_device(device) || !is_device(peer)))
        error = cudaErrorInvalidDevice;
    *out = !simgpu.has_no_peers && device != peer;
    return simgpu_leave(error);
}

#define ERRORS(X)                                                           \
    X(cudaSuccess, "no error")                                              \
    X(cudaErrorInvalidValue, "invalid argument")                            \
    X(cudaErrorMemoryAllocation, "out of memory")                           \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient")   \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")              \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                     \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")            \
    X(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy") \
    X(cudaErrorNotPermitted, "operation not permitted")                     \
    X(cudaErrorHostMemoryAlreadyRegistered, "already mapped")               \
    X(cudaErrorHostMemoryNotRegistered, "not registered")                   \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                 \
    X(cudaErrorStreamCaptureUnsupported, "not permitted while capturing")   \
    X(cudaErrorStreamCaptureInvalidated, "the capture is void")             \
    X(cudaErrorStreamCaptureWrongThread, "another thread's capture")        \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error)
{
#define X(code, text)  \
    if (error == code) \
        return #code;
    ERRORS(X)
#undef X
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
#define X(code, text)  \
    if (error == code) \
        return text;
    ERRORS(X)
#undef X
    return "unrecognized error code";
}

/* ---- Streams ---- */

/* As GPUs have it: smaller numbers go first. Here no stream waits for another's priority. */
#define LEAST 0
#define GREATEST (-5)

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess) {
        *least = LEAST;
        *greatest = GREATEST;
    }
    return simgpu_leave(error);
}

static void count_stream(const struct CUstream_st *stream, uint64_t by)
{
    simgpu.counts.streams += by;
    simgpu.counts.first_streams += stream->priority == GREATEST ? by : 0;
    simgpu.counts.last_streams += stream->priority == LEAST ? by : 0;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && flags != cudaStreamNonBlocking)
        error = cudaErrorInvalidValue; /* the others are ordered by the stream of no name */
    if (error == cudaSuccess && (priority > LEAST || priority < GREATEST))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        struct CUstream_st *stream = calloc(1, sizeof(*stream));
        CHECK(stream != NULL);
        stream->device = simgpu_device();
        stream->priority = priority;
        stream->next = simgpu.streams;
        simgpu.streams = *out = stream;
        count_stream(stream, 1);
    }
    return simgpu_leave(error);
}

/* CUDA keeps the stream until its work is done; here the call waits for that. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    if (!simgpu_is_stream(stream))
        return simgpu_leave(cudaErrorInvalidResourceHandle);
    simgpu_finish(stream, stream->posted);
    struct CUstream_st **link = &simgpu.streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    count_stream(stream, (uint64_t)-1);
    free(stream);
    return simgpu_leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && simgpu_spoils_capture(stream))
        error = cudaErrorStreamCaptureUnsupported;
    if (error == cudaSuccess)
        simgpu_finish(stream, stream->posted);
    return simgpu_leave(error);
}

/* Repeated queries let the stream progress, as time does. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && simgpu_spoils_capture(stream))
        error = cudaErrorStreamCaptureUnsupported;
    if (error == cudaSuccess && !simgpu_try(stream))
        error = cudaErrorNotReady;
    return simgpu_leave(error);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && simgpu_spoils_capture(stream))
        error = cudaErrorStreamCaptureUnsupported; /* CUDA accepts it; no caller here uses it */
    if (error == cudaSuccess) {
        struct op *op = simgpu_new_op(OP_HOST, &(struct simgpu_work){.run = fn}, NULL, 0);
        op->user = user;
        simgpu_post(stream, op);
    }
    return simgpu_leave(error);
}

/* ---- Events ---- */

static bool is_event(const struct CUevent_st *event)
{
    for (const struct CUevent_st *e = simgpu.events; e != NULL; e = e->next)
        if (e == event)
            return !e->is_destroyed;
    return false;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && flags != cudaEventDisableTiming && flags != cudaEventDefault)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        struct CUevent_st *event = calloc(1, sizeof(*event));
        CHECK(event != NULL);
        event->num_users = 1; /* its owner */
        event->is_timed = flags == cudaEventDefault;
        event->device = simgpu_device();
        event->next = simgpu.events;
        simgpu.events = *out = event;
        simgpu.counts.events++;
    }
    return simgpu_leave(error);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t error = simgpu_enter(__func__);
    if (!is_event(event))
        return simgpu_leave(cudaErrorInvalidResourceHandle);
    event->is_destroyed = true;
    simgpu.counts.events--;
    simgpu_drop_event(event);
    return simgpu_leave(error);
}

static cudaError_t post_event(cudaStream_t stream, cudaEvent_t event, enum op_kind kind)
{
    struct op *op;
    if (!simgpu_is_stream(stream) || !is_event(event))
        return cudaErrorInvalidResourceHandle;
    if (kind == OP_RECORD && event->device != stream->device)
        return cudaErrorInvalidResourceHandle;
    if (simgpu_spoils_capture(stream))
        return cudaErrorStreamCaptureUnsupported; /* as host functions */
    if (kind == OP_RECORD)
        event->recorded++;
    if (event->recorded == 0) /* a wait for an event that was never recorded returns at once */
        return cudaSuccess;
    op = simgpu_new_op(kind, NULL, NULL, 0);
    op->event = event;
    op->point = event->recorded;
    simgpu_post(stream, op);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    return simgpu_leave(error != cudaSuccess ? error : post_event(stream, event, OP_RECORD));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && flags != 0)
        error = cudaErrorInvalidValue;
    return simgpu_leave(error != cudaSuccess ? error : post_event(stream, event, OP_WAIT));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !is_event(event))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess && !simgpu_try_event(event))
        error = cudaErrorNotReady;
    return simgpu_leave(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !is_event(event))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess)
        simgpu_finish_event(event, event->recorded);
    return simgpu_leave(error);
}

/* By the host's clock, at which operations run here. CUDA's resolution is about half a
 * microsecond. */
cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess &&
        (!is_event(from) || !is_event(to) || !from->is_timed || !to->is_timed ||
         from->recorded == 0 || to->recorded == 0 || from->device != to->device))
        error = cudaErrorInvalidResourceHandle;
    else if (error == cudaSuccess && (from->done < from->recorded || to->done < to->recorded))
        error = cudaErrorNotReady;
    if (error == cudaSuccess)
        *out = (float)((double)(int64_t)(to->reached_ns - from->reached_ns) * 1e-6);
    return simgpu_leave(error);
}

/* ---- Kernels ---- */

struct launch {
    struct lanes_launch head;
    int device;
    max_align_t args[];
};

static void run_launch(void *args)
{
    struct launch *launch = args;
    simgpu.counts.kernels++;
    if (simgpu_fails_locked("kernel")) {
        simgpu.lost[launch->device] = cudaErrorLaunchFailure;
        return;
    }
    launch->head.args = launch->args;
    lanes_launch(&launch->head);
}

/* The launches of the .cu files call this in place of the lanes (lanes.h). */
int lanes_queue(void *stream_at, const struct lanes_launch *head)
{
    cudaError_t error = simgpu_enter("cudaLaunchKernel");
    cudaStream_t stream = stream_at;
    if (error == cudaSuccess && (!simgpu_is_stream(stream) || stream->device != simgpu_device()))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        struct launch *launch = malloc(sizeof(*launch) + head->args_bytes);
        CHECK(launch != NULL);
        *launch = (struct launch){.head = *head, .device = stream->device};
        memcpy(launch->args, head->args, head->args_bytes);
        simgpu_post(stream, simgpu_new_op(OP_WORK, &(struct simgpu_work){.run = run_launch}, launch,
                                          sizeof(*launch) + head->args_bytes));
        free(launch);
    }
    (void)simgpu_leave(error);
    return cudaGetLastError(); /* as the launch of the other body (bodies.h) */
}
