/* graphs.c - captures, and launches of captured graphs (simgpu.h).
 *
 * A captured stream keeps the queued operations with their arguments, and runs nothing. A launch
 * queues copies of them: they read and write by the pointers of the capture, even if that memory
 * was freed. Refused while capturing: the calls that CUDA refuses, events, and host functions. Not
 * checked: whether a graph is destroyed while it runs. */
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/simgpu/private.h"

void simgpu_capture(struct CUstream_st *stream, struct op *op)
{
    *stream->capture->last = op;
    stream->capture->last = &op->next;
}

bool simgpu_spoils_capture(struct CUstream_st *stream)
{
    if (stream->capture == NULL)
        return false;
    stream->capture->is_void = true;
    return true;
}

bool simgpu_is_unsafe(const char *call)
{
    static const char *const calls[] = {"cudaMalloc",   "cudaFree",         "cudaHostAlloc",
                                        "cudaFreeHost", "cudaHostRegister", "cudaHostUnregister"};
    bool is_listed = false, is_unsafe = false;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        is_listed |= strcmp(call, calls[i]) == 0;
    for (struct CUstream_st *s = simgpu.streams; s != NULL && is_listed; s = s->next)
        if (s->capture != NULL && pthread_equal(s->capture->thread, pthread_self()))
            is_unsafe = simgpu_spoils_capture(s);
    return is_unsafe;
}

static void free_graph(struct CUgraph_st *graph)
{
    for (struct op *next, *op = graph->first; op != NULL; op = next) {
        next = op->next;
        free(op);
    }
    free(graph);
}

static struct CUgraph_st *new_graph(void)
{
    struct CUgraph_st *graph = calloc(1, sizeof(*graph));
    CHECK(graph != NULL);
    graph->last = &graph->first;
    graph->thread = pthread_self();
    return graph;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && !simgpu_is_stream(stream))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess &&
        (stream->capture != NULL || mode != cudaStreamCaptureModeThreadLocal))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        simgpu.counts.captures++;
        stream->capture = new_graph();
    }
    return simgpu_leave(error);
}

/* Ends the capture with any answer, except for a thread that it does not belong to. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    cudaError_t error = simgpu_enter(__func__);
    struct CUgraph_st *graph = simgpu_is_stream(stream) ? stream->capture : NULL;
    *out = NULL;
    if (graph == NULL)
        return simgpu_leave(error != cudaSuccess ? error : cudaErrorInvalidValue);
    if (!pthread_equal(graph->thread, pthread_self()))
        return simgpu_leave(cudaErrorStreamCaptureWrongThread);
    stream->capture = NULL;
    if (error == cudaSuccess && graph->is_void)
        error = cudaErrorStreamCaptureInvalidated;
    if (error == cudaSuccess)
        *out = graph;
    else
        free_graph(graph);
    return simgpu_leave(error);
}

static void copy_ops(struct CUgraph_st *to, const struct CUgraph_st *from)
{
    for (const struct op *op = from->first; op != NULL; op = op->next) {
        struct op *copy = simgpu_new_op(op->kind, &op->work, op->args, op->bytes);
        *to->last = copy;
        to->last = &copy->next;
    }
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (graph == NULL || flags != 0))
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess) {
        struct CUgraph_st *exec = new_graph();
        copy_ops(exec, graph);
        simgpu.counts.graphs++;
        *out = (cudaGraphExec_t)exec;
    }
    return simgpu_leave(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cudaError_t error = simgpu_enter(__func__);
    free_graph(graph);
    return simgpu_leave(error);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cudaError_t error = simgpu_enter(__func__);
    free_graph((struct CUgraph_st *)exec);
    simgpu.counts.graphs--;
    return simgpu_leave(error);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t error = simgpu_enter(__func__);
    if (error == cudaSuccess && (!simgpu_is_stream(stream) || stream->capture != NULL))
        error = cudaErrorInvalidResourceHandle;
    if (error == cudaSuccess) {
        simgpu.counts.graph_launches++;
        for (const struct op *op = ((struct CUgraph_st *)exec)->first; op != NULL; op = op->next)
            simgpu_post(stream, simgpu_new_op(op->kind, &op->work, op->args, op->bytes));
    }
    return simgpu_leave(error);
}
