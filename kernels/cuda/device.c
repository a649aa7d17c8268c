/* device.c - a CUDA GPU as a device (kernels/device.h), and the back-end of kernels.h that queues
 * the .cu files' kernels on its lanes.
 *
 * A lane is a stream with a priority, a mark an event. Host work of a lane is a host function of
 * the stream. The first error of a lane, of the CUDA runtime or of host work, is kept, and nothing
 * more is queued. When the device closes, it frees memory that is still allocated (memory.c) and
 * the events of marks. A batch of a lane is held back and queued as a graph (graphs.h).
 *
 * Lock: of the device guards its lists; `error` and `text` of a lane are guarded by its own. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graphs.h"
#include "kernels/cuda/library/blas.h"
#include "kernels/cuda/library/dnn.h"
#include "kernels/cuda/library/nvml.h"
#include "kernels/cuda/run.h"
#include "proto/base/report.h"

#define CAPABILITY_MIN 8     /* bf16 in tensor cores, asynchronous copies */
#define CAPABILITY_FLOAT8 89 /* float8 in tensor cores; ten times the capability */

struct event {
    struct event *next;
    cudaEvent_t event;
};
struct cuda_lane {
    struct lane base;
    cudaStream_t stream;
    struct cuda_graphs *graphs; /* of batches; NULL: no batch so far */
    pthread_mutex_t lock;
    int error;
    struct report_text text;
};

static struct cuda_device *device_of(const struct lane *lane)
{
    return (struct cuda_device *)lane->device;
}
static struct cuda_lane *of(const struct lane *lane)
{
    return (struct cuda_lane *)lane;
}

int cuda_fail(cudaError_t error, const char *what)
{
    int code = error == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_UNAVAILABLE;
    return report_error(code, NULL, "CUDA: %s: %s (%s)", what, cudaGetErrorString(error),
                        cudaGetErrorName(error));
}

/* ---- The device ---- */

/* Versions are 1000 x major + 10 x minor; a driver's is that of the newest CUDA that it
 * supports. */
static int check_driver(int *driver, int *runtime)
{
    cudaError_t error = cudaDriverGetVersion(driver);
    if (error == cudaSuccess)
        error = cudaRuntimeGetVersion(runtime);
    if (error != cudaSuccess)
        return cuda_fail(error, "no GPU to compute on: the driver's version");
    if (*driver == 0)
        return report_error(ERR_UNAVAILABLE, NULL,
                            "CUDA: no GPU to compute on: the NVIDIA driver is not loaded");
    if (*driver / 1000 < *runtime / 1000) /* within a major version older drivers work, too */
        return report_error(ERR_UNAVAILABLE, NULL,
                            "CUDA: no GPU to compute on: the driver supports CUDA up to %d.%d, "
                            "this program is built with %d.%d: update the driver",
                            *driver / 1000, *driver % 1000 / 10, *runtime / 1000,
                            *runtime % 1000 / 10);
    return 0;
}

/* Stores the UUID as nvidia-smi prints it, and the place on the bus as in the driver's XID
 * messages. */
static void note_identity(struct cuda_device *device, const unsigned char uuid[16])
{
    char bus[32] = "?";
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), device->index) != cudaSuccess)
        (void)cudaGetLastError(); /* the next call must not see this error */
    char *out = device->identity;
    size_t at = (size_t)snprintf(out, sizeof(device->identity), "GPU");
    for (unsigned i = 0; i < 16; i++)
        at += (size_t)snprintf(out + at, sizeof(device->identity) - at, "%s%02x",
                               i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "", uuid[i]);
    snprintf(out + at, sizeof(device->identity) - at, " at %s", bus);
}

static int check_device(struct cuda_device *device, const struct device_options *options)
{
    struct cudaDeviceProp has;
    int driver = 0, runtime = 0, count = 0;
    if (check_driver(&driver, &runtime) != 0)
        return ERR_UNAVAILABLE;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return cuda_fail(error, "no GPU to compute on");
    if (options && options->is_shared)
        device->index %= count;
    if (device->index >= count)
        return report_error(ERR_UNAVAILABLE, NULL, "CUDA: no GPU %d, there are %d", device->index,
                            count);
    if ((error = cudaSetDevice(device->index)) != cudaSuccess ||
        (error = cudaGetDeviceProperties(&has, device->index)) != cudaSuccess)
        return cuda_fail(error, "the GPU could not be opened");
    if (has.major < CAPABILITY_MIN)
        return report_error(ERR_INVALID, NULL,
                            "CUDA: %s has compute capability %d.%d, at least %d.0 is needed",
                            has.name, has.major, has.minor, CAPABILITY_MIN);
    device->capability = 10 * has.major + has.minor;
    device->memory_bytes = has.totalGlobalMem;
    snprintf(device->name, sizeof(device->name), "cuda, %s, driver %d, runtime %d", has.name,
             driver, runtime);
    note_identity(device, (const unsigned char *)has.uuid.bytes);
    return 0;
}

static int cuda_open(struct device **out, const struct device_options *options)
{
    struct cuda_device *device = calloc(1, sizeof(*device));
    if (!device)
        return report_error(ERR_MEMORY, NULL, "no memory for a GPU as a device");
    device->base.ops = &device_cuda;
    device->index = options ? (int)options->index : 0;
    device->has_no_graphs = options && options->has_no_graphs;
    int error = check_device(device, options);
    if (error != 0) {
        free(device);
        return error;
    }
    pthread_mutex_init(&device->lock, NULL);
    *out = &device->base;
    return 0;
}

static void cuda_close(struct device *base)
{
    struct cuda_device *device = (struct cuda_device *)base;
    cuda_memory_free_all(device);
    for (struct event *next, *e = device->events; e; e = next) {
        next = e->next;
        (void)cudaEventDestroy(e->event);
        free(e);
    }
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static void cuda_health(struct device *base, struct device_health *out)
{
    char uuid[64]; /* before its place on the bus */
    const char *identity = ((struct cuda_device *)base)->identity;
    snprintf(uuid, sizeof(uuid), "%.*s", (int)strcspn(identity, " "), identity);
    nvml_look(out, uuid);
}

static const char *cuda_identity(struct device *base)
{
    return ((struct cuda_device *)base)->identity;
}

/* ---- Lanes ---- */

/* Smaller numbers have a higher priority. */
static cudaError_t new_stream(cudaStream_t *out, enum lane_kind kind)
{
    int least = 0, greatest = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (error != cudaSuccess)
        return error;
    int priority = kind == LANE_COMMUNICATES ? greatest
                   : kind == LANE_SAVES      ? least
                                             : (least + greatest) / 2;
    return cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, priority);
}

static int cuda_lane_open(struct device *device, struct lane **out, const char *name,
                          enum lane_kind kind)
{
    struct cuda_lane *lane = calloc(1, sizeof(*lane));
    if (!lane)
        return report_error(ERR_MEMORY, NULL, "no memory for the lane %s", name);
    lane->base = (struct lane){.ops = device->ops, .device = device};
    cudaError_t error = cudaSetDevice(device_of(&lane->base)->index);
    if (error == cudaSuccess)
        error = new_stream(&lane->stream, kind);
    if (error != cudaSuccess) {
        free(lane);
        return cuda_fail(error, "could not create a lane's stream");
    }
    pthread_mutex_init(&lane->lock, NULL);
    *out = &lane->base;
    return 0;
}

static void cuda_lane_close(struct lane *base)
{
    struct cuda_lane *lane = of(base);
    (void)cudaStreamSynchronize(lane->stream);
    cuda_graphs_free(lane->graphs);
    (void)cudaStreamDestroy(lane->stream);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

/* Makes the error the lane's, with this thread's text, unless the lane has one. */
static void keep_error(struct cuda_lane *lane, int error)
{
    pthread_mutex_lock(&lane->lock);
    if (error != 0 && lane->error == 0) {
        lane->error = error;
        report_keep(&lane->text);
    }
    pthread_mutex_unlock(&lane->lock);
}
static void keep(struct cuda_lane *lane, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    keep_error(lane, cuda_fail(error, what));
    (void)cudaGetLastError(); /* a launch checks the thread's last error, also on other lanes */
}
static int error_of(struct cuda_lane *lane)
{
    pthread_mutex_lock(&lane->lock);
    int error = lane->error;
    pthread_mutex_unlock(&lane->lock);
    return error;
}

/* ---- Posts, and batches of them ---- */

enum post_kind { POST_COPY, POST_ZERO, POST_KERNEL };
struct post {
    enum post_kind kind;
    enum kernel_op op;
    void *to; /* a kernel's scratch */
    const void *from;
    size_t bytes;
    struct cuda_kernels *kernels;
    max_align_t args[LANE_ARGS_MAX / sizeof(max_align_t)];
};
#define POST_HEAD offsetof(struct post, args)

static cudaError_t run_kernel(struct cuda_lane *lane, const struct post *post);

static cudaError_t queue_post(void *user, const void *at)
{
    struct cuda_lane *lane = user;
    const struct post *post = at;
    if (post->kind == POST_KERNEL)
        return run_kernel(lane, post);
    if (post->kind == POST_ZERO)
        return cudaMemsetAsync(post->to, 0, post->bytes, lane->stream);
    return cudaMemcpyAsync(post->to, post->from, post->bytes, cudaMemcpyDefault, lane->stream);
}

static const char *name_of(const struct post *post)
{
    return post->kind == POST_COPY   ? "a copy could not be queued"
           : post->kind == POST_ZERO ? "zeroing could not be queued"
                                     : kernel_op_name(post->op);
}

/* Held posts are queued first. */
static void cut(struct cuda_lane *lane)
{
    if (cuda_graphs_is_holding(lane->graphs))
        keep(lane, cuda_graphs_cut(lane->graphs), "a batch could not be queued");
}

/* Other memory may have to be read before the call returns, and may be freed before the graph. */
static bool may_hold(const struct cuda_lane *lane, const struct post *post)
{
    struct cuda_device *device = device_of(&lane->base);
    return cuda_graphs_is_holding(lane->graphs) &&
           (post->kind != POST_COPY ||
            (cuda_memory_has(device, post->to) && cuda_memory_has(device, post->from)));
}

static void add_post(struct cuda_lane *lane, const struct post *post, size_t bytes)
{
    if (error_of(lane) != 0)
        return;
    if (may_hold(lane, post) && cuda_graphs_hold(lane->graphs, post, bytes))
        return;
    cut(lane);
    keep(lane, queue_post(lane, post), name_of(post));
}

/* Without memory for graphs posts are queued one by one. */
static void cuda_batch(struct lane *base, bool begins)
{
    struct cuda_lane *lane = of(base);
    if (!begins) {
        if (cuda_graphs_is_holding(lane->graphs))
            keep(lane, cuda_graphs_end(lane->graphs), "a batch could not be queued");
        return;
    }
    if (device_of(base)->has_no_graphs || error_of(lane) != 0)
        return;
    if (lane->graphs || cuda_graphs_new(&lane->graphs, lane->stream, queue_post, lane) == 0)
        cuda_graphs_begin(lane->graphs);
    else
        report_clear();
}

/* ---- Order ---- */

static cudaError_t new_event(struct cuda_device *device, struct mark *mark)
{
    struct event *event = calloc(1, sizeof(*event));
    if (!event)
        return cudaErrorMemoryAllocation;
    cudaError_t error = cudaSetDevice(device->index); /* an event belongs to one device */
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&event->event, mark->is_timed ? cudaEventDefault
                                                                       : cudaEventDisableTiming);
    if (error != cudaSuccess) {
        free(event);
        return error;
    }
    pthread_mutex_lock(&device->lock);
    event->next = device->events;
    device->events = event;
    pthread_mutex_unlock(&device->lock);
    mark->event = event->event;
    return cudaSuccess;
}

static void cuda_mark(struct lane *base, struct mark *mark)
{
    struct cuda_lane *lane = of(base);
    cut(lane);
    cudaError_t error = mark->event ? cudaSuccess : new_event(device_of(base), mark);
    if (error == cudaSuccess)
        error = cudaEventRecord(mark->event, lane->stream);
    keep(lane, error, "an event could not be recorded");
    mark->lane = base;
    mark->sequence++;
}

static void cuda_wait(struct lane *base, const struct mark *mark)
{
    cut(of(base));
    if (mark->event)
        keep(of(base), cudaStreamWaitEvent(of(base)->stream, mark->event, 0),
             "a wait could not be queued");
}

static void cuda_copy(struct lane *base, void *to, const void *from, size_t bytes)
{
    const struct post post = {.kind = POST_COPY, .to = to, .from = from, .bytes = bytes};
    add_post(of(base), &post, POST_HEAD);
}

static void cuda_zero(struct lane *base, void *at, size_t bytes)
{
    const struct post post = {.kind = POST_ZERO, .to = at, .bytes = bytes};
    add_post(of(base), &post, POST_HEAD);
}

struct host_work {
    struct cuda_lane *lane;
    lane_fn *fn;
    const void *pointer; /* NULL: args */
    max_align_t args[];
};

static void CUDART_CB run_host_work(void *argument)
{
    struct host_work *work = argument;
    if (error_of(work->lane) == 0)
        keep_error(work->lane, work->fn(work->pointer ? (void *)work->pointer : work->args));
    free(work);
}

static void cuda_call(struct lane *base, lane_fn *fn, const void *args, size_t bytes)
{
    struct cuda_lane *lane = of(base);
    cut(lane);
    struct host_work *work = malloc(sizeof(*work) + bytes);
    if (!work) {
        keep_error(lane, report_error(ERR_MEMORY, NULL, "no memory for host work"));
        return;
    }
    *work = (struct host_work){.lane = lane, .fn = fn, .pointer = bytes > 0 ? NULL : args};
    if (bytes > 0)
        memcpy(work->args, args, bytes);
    cudaError_t error = cudaLaunchHostFunc(lane->stream, run_host_work, work);
    if (error != cudaSuccess)
        free(work);
    keep(lane, error, "host work could not be queued");
}

static int cuda_settle(struct lane *base, const struct mark *mark)
{
    struct cuda_lane *lane = of(base);
    cut(lane);
    cudaError_t error =
        mark ? cudaEventSynchronize(mark->event) : cudaStreamSynchronize(lane->stream);
    keep(lane, error, "queued work failed");
    int code = error_of(lane);
    return code == 0 ? 0 : report_restore(&lane->text, code);
}

static int cuda_elapsed(double *out, const struct mark *from, const struct mark *to)
{
    float ms = 0;
    cudaError_t error = cudaEventElapsedTime(&ms, from->event, to->event);
    *out = (double)ms * 1e-3;
    if (error == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* the next launch must not see it */
    return cuda_fail(error, "could not measure the time of queued work");
}

static void *cuda_native(struct lane *base)
{
    cut(of(base));
    return of(base)->stream;
}

const struct device_ops device_cuda = {
    .name = "cuda",
    .flags = DEVICE_QUEUED,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_memory_alloc,
    .free = cuda_memory_free,
    .room = cuda_memory_room,
    .memory_node = cuda_memory_node,
    .identity = cuda_identity,
    .health = cuda_health,
    .pin = cuda_memory_pin,
    .unpin = cuda_memory_unpin,
    .lane_open = cuda_lane_open,
    .lane_close = cuda_lane_close,
    .mark = cuda_mark,
    .wait = cuda_wait,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .call = cuda_call,
    .settle = cuda_settle,
    .elapsed = cuda_elapsed,
    .native = cuda_native,
    .batch = cuda_batch,
};

/* ---- The back-end ---- */

struct cuda_kernels {
    struct kernels base;
    bool has_float8, is_chained;
    struct cuda_blas *blas; /* NULL: Holdfast's products */
    struct cuda_dnn *dnn;   /* NULL: Holdfast's attention */
    char description[400];
};

static int backend_open(struct kernels **out, const struct kernels_options *options)
{
    const struct cuda_device *device = (const struct cuda_device *)options->device;
    struct cuda_kernels *kernels = calloc(1, sizeof(*kernels));
    if (!kernels)
        return report_error(ERR_MEMORY, NULL, "no memory for the kernels of a GPU");
    kernels->base.ops = &kernel_backend_cuda;
    kernels->has_float8 = device->capability >= CAPABILITY_FLOAT8;
    cudaError_t error = cudaSetDevice(device->index);
    int code = error == cudaSuccess ? 0 : cuda_fail(error, "the GPU could not be chosen");
    if (code == 0 && options->backend == KERNEL_BACKEND_BEST)
        code = cuda_blas_open(&kernels->blas);
    if (code == 0 && options->backend == KERNEL_BACKEND_BEST && !options->has_own_attention &&
        cuda_dnn_open)
        code = cuda_dnn_open(&kernels->dnn, device->memory_bytes);
    if (code != 0) {
        cuda_blas_close(kernels->blas);
        free(kernels);
        return code;
    }
    snprintf(kernels->description, sizeof(kernels->description), "%s, %s, %s", device->name,
             cuda_blas_describe(kernels->blas),
             kernels->dnn ? cuda_dnn_describe(kernels->dnn) : "own attention");
    *out = &kernels->base;
    return 0;
}

static void backend_close(struct kernels *base)
{
    struct cuda_kernels *kernels = (struct cuda_kernels *)base;
    if (kernels->dnn)
        cuda_dnn_close(kernels->dnn);
    cuda_blas_close(kernels->blas);
    free(kernels);
}

static const char *backend_describe(const struct kernels *kernels)
{
    return ((const struct cuda_kernels *)kernels)->description;
}

static int backend_chain_products(struct kernels *kernels)
{
    ((struct cuda_kernels *)kernels)->is_chained = true;
    return 0;
}

static bool backend_has_float8(const struct kernels *kernels)
{
    return ((const struct cuda_kernels *)kernels)->has_float8;
}

static char *backend_choices(struct kernels *kernels)
{
    return cuda_blas_choices(((struct cuda_kernels *)kernels)->blas);
}

static void backend_choose(struct kernels *kernels, const char *choices, struct kernel_choices *out)
{
    cuda_blas_choose(((struct cuda_kernels *)kernels)->blas, choices, out);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t backend_prepare(const struct kernels *base, const struct kernel_shapes *shapes)
{
    const struct cuda_kernels *kernels = (const struct cuda_kernels *)base;
    size_t bytes = cuda_scratch_bytes(shapes);
    if (kernels->blas)
        bytes = larger(bytes, BLAS_WORKSPACE_BYTES + BLAS_ALIGN);
    return kernels->dnn ? larger(bytes, cuda_dnn_scratch_bytes(kernels->dnn, shapes)) : bytes;
}

static cudaError_t run_kernel(struct cuda_lane *lane, const struct post *post)
{
    struct cuda_dnn *dnn = post->kernels->dnn;
    const struct cuda_call call = {.stream = lane->stream,
                                   .scratch = post->to,
                                   .products = (const struct cuda_library *)post->kernels->blas,
                                   .is_chained = post->kernels->is_chained};
    bool is_own = true;
    int error = cudaSetDevice(device_of(&lane->base)->index);
    if (error == cudaSuccess && dnn)
        error = cuda_dnn_run(dnn, &call, lane->base.scratch_bytes, post->op, post->args, &is_own);
    if (error == cudaSuccess && is_own)
        error = cuda_function(post->op)(&call, post->args);
    return (cudaError_t)error;
}

static void backend_run(struct kernels *kernels, struct lane *base, enum kernel_op op,
                        const void *args)
{
    struct cuda_lane *lane = of(base);
    struct post post = {.kind = POST_KERNEL,
                        .op = op,
                        .to = base->scratch,
                        .kernels = (struct cuda_kernels *)kernels};
    memcpy(post.args, args, kernel_op_bytes(op));
    add_post(lane, &post, POST_HEAD + kernel_op_bytes(op));
}

const struct kernel_backend_ops kernel_backend_cuda = {
    .name = "cuda",
    .device_name = "cuda",
    .open = backend_open,
    .close = backend_close,
    .describe = backend_describe,
    .chain_products = backend_chain_products,
    .has_float8 = backend_has_float8,
    .choices = backend_choices,
    .choose = backend_choose,
    .prepare = backend_prepare,
    .run = backend_run,
};
