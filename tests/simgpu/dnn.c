/* dnn.c - the part of cuDNN's graph interface that is used, on simulated GPUs (simgpu.h).
 *
 * dnn_graph.c computes a graph; tests/cuda/plans.c checks whether NVIDIA's library has an engine
 * for it.
 *
 * The heuristics name two engines for each graph. The first is not deterministic, according to its
 * notes. Refused are: attributes of finished descriptors, tensors that are read before they are
 * written or never written, a tensor without a pointer, pointers at no multiple of 16 or to memory
 * that the device does not know. The workspace is overwritten with NaN. */
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/simgpu/dnn.h"
#include "tests/simgpu/private.h"

#define NUM_ENGINES 2
#define FORWARD_WORKSPACE 256

/* ---- Descriptors ---- */

struct attribute {
    struct attribute *next;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    size_t bytes;
    max_align_t values[];
};
struct descriptor {
    cudnnBackendDescriptorType_t type;
    struct attribute *attributes;
    bool is_final;
    struct graph graph; /* of a graph, an engine's configuration, an engine, a plan */
};
struct cudnnContext {
    cudaStream_t stream;
};

static void *new_zeros(size_t bytes)
{
    void *at = calloc(1, bytes);
    CHECK(at != NULL);
    return at;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    default:
        return sizeof(int);
    }
}

static const struct attribute *find(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = d->attributes;
    while (a != NULL && a->name != name)
        a = a->next;
    return a;
}

/* The attribute's values, where it has so many bytes: false. */
static bool read(const struct descriptor *d, cudnnBackendAttributeName_t name, void *out,
                 size_t bytes)
{
    const struct attribute *a = find(d, name);
    if (a == NULL || a->bytes != bytes)
        return false;
    memcpy(out, a->values, bytes);
    return true;
}

static struct descriptor *part(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    struct descriptor *found = NULL;
    return read(d, name, &found, sizeof(found)) && found->is_final ? found : NULL;
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

void cudnnGetLastErrorString(char *message, size_t bytes)
{
    if (bytes > 0)
        message[0] = 0;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    cudaError_t error = simgpu_enter(__func__);
    *out = error == cudaSuccess ? new_zeros(sizeof(**out)) : NULL;
    (void)simgpu_leave(error);
    return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_INITIALIZED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    return simgpu_fails(__func__) ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    if (simgpu_fails(__func__))
        return CUDNN_STATUS_ALLOC_FAILED;
    struct descriptor *d = new_zeros(sizeof(*d));
    d->type = type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t at)
{
    struct descriptor *d = at;
    for (struct attribute *next, *a = d->attributes; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t at,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    struct descriptor *d = at;
    size_t bytes = (size_t)count * size_of(type);
    if (simgpu_fails(__func__) || d->is_final || count < 1 || find(d, name) != NULL)
        return CUDNN_STATUS_BAD_PARAM;
    struct attribute *a = new_zeros(sizeof(*a) + bytes);
    *a = (struct attribute){d->attributes, name, type, count, bytes};
    memcpy(a->values, values, bytes);
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- A graph ---- */

/* -1: no such tensor, or it is not finished. */
static int tensor_of(struct graph *g, const struct descriptor *d)
{
    struct tensor t = {0};
    if (d == NULL || !read(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, &t.id, sizeof(t.id)) ||
        !read(d, CUDNN_ATTR_TENSOR_DIMENSIONS, t.dims, sizeof(t.dims)) ||
        !read(d, CUDNN_ATTR_TENSOR_STRIDES, t.strides, sizeof(t.strides)) ||
        !read(d, CUDNN_ATTR_TENSOR_DATA_TYPE, &t.type, sizeof(t.type)) ||
        !read(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, &t.is_virtual, sizeof(bool)) ||
        !read(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, &t.is_number, sizeof(bool)))
        return -1;
    for (int i = 0; i < g->num_tensors; i++)
        if (g->tensors[i].id == t.id)
            return memcmp(&g->tensors[i], &t, sizeof(t)) == 0 ? i : -1;
    CHECK(g->num_tensors < TENSORS_MAX);
    g->tensors[g->num_tensors] = t;
    return g->num_tensors++;
}

static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t descriptor, mode, x, b, t, y;
} kinds[] = {
    [MATMUL] = {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, 0,
                CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 0,
                CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    [POINTWISE] = {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE,
                   CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                   CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    [REDUCTION] = {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_REDUCTION_OPERATOR,
                   CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0, 0,
                   CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
    [RESHAPE] = {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 0, 0,
                 CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, 0, CUDNN_ATTR_OPERATION_RESHAPE_YDESC},
};

static bool node_of(struct graph *g, const struct descriptor *d)
{
    struct node n = {.kind = MATMUL};
    int64_t axis = 0;
    while (n.kind < RESHAPE && kinds[n.kind].type != d->type)
        n.kind++;
    if (kinds[n.kind].type != d->type)
        return false;
    if (n.kind != RESHAPE) {
        const struct descriptor *does = part(d, kinds[n.kind].descriptor);
        if (does == NULL ||
            (n.kind != MATMUL && !read(does, kinds[n.kind].mode, &n.mode, sizeof(n.mode))))
            return false;
        if (n.kind == POINTWISE && read(does, CUDNN_ATTR_POINTWISE_AXIS, &axis, sizeof(axis)))
            n.axis = (int)axis;
    }
    n.x = tensor_of(g, part(d, kinds[n.kind].x));
    n.b = tensor_of(g, part(d, kinds[n.kind].b));
    n.t = tensor_of(g, part(d, kinds[n.kind].t));
    n.y = tensor_of(g, part(d, kinds[n.kind].y));
    CHECK(g->num_nodes < NODES_MAX);
    g->nodes[g->num_nodes++] = n;
    return n.x >= 0 && n.y >= 0 && (n.kind != MATMUL || n.b >= 0);
}

/* A computed tensor is written once, and read after that. */
static bool is_ordered(const struct graph *g)
{
    bool is_written[TENSORS_MAX] = {false};
    for (int i = 0; i < g->num_nodes; i++) {
        const int reads[] = {g->nodes[i].x, g->nodes[i].b, g->nodes[i].t};
        for (int j = 0; j < 3; j++)
            if (reads[j] >= 0 && g->tensors[reads[j]].is_virtual && !is_written[reads[j]])
                return false;
        if (is_written[g->nodes[i].y] || g->tensors[g->nodes[i].y].is_number)
            return false;
        is_written[g->nodes[i].y] = true;
    }
    return true;
}

/* As the library's: a square of the sequence for each head where there are gradients. */
static size_t workspace_of(const struct graph *g)
{
    size_t most = 0;
    int products = 0;
    for (int i = 0; i < g->num_nodes; i++) {
        const int64_t *d = g->tensors[g->nodes[i].y].dims;
        size_t bytes = 2 * (size_t)(d[0] * d[1] * d[2] * d[3]);
        products += g->nodes[i].kind == MATMUL;
        most = bytes > most ? bytes : most;
    }
    return products > 2 ? most : FORWARD_WORKSPACE;
}

static bool finish_graph(struct descriptor *d)
{
    const struct attribute *nodes = find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (nodes == NULL || find(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) == NULL)
        return false;
    for (int64_t i = 0; i < nodes->count; i++) {
        const struct descriptor *node = ((struct descriptor *const *)nodes->values)[i];
        if (!node->is_final || !node_of(&d->graph, node))
            return false;
    }
    d->graph.workspace_bytes = workspace_of(&d->graph);
    return is_ordered(&d->graph);
}

/* ---- Plans ---- */

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t at)
{
    struct descriptor *d = at;
    const struct descriptor *choice = NULL;
    bool is_right = !d->is_final && !simgpu_fails(__func__);
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
        is_right = is_right && finish_graph(d);
    if (d->type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
        is_right = is_right && part(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) != NULL;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        choice = part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        is_right = is_right && choice != NULL && find(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != NULL;
    }
    if (!is_right)
        return CUDNN_STATUS_BAD_PARAM;
    if (choice != NULL)
        d->graph = choice->graph;
    d->is_final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* The library fills descriptors that the caller has made. */
static int64_t name_engines(const struct descriptor *heuristics, int64_t room,
                            struct descriptor **out)
{
    const struct descriptor *graph = part(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    int64_t num = room < NUM_ENGINES ? room : NUM_ENGINES;
    for (int64_t i = 0; i < num; i++) {
        CHECK(out[i]->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && !out[i]->is_final);
        out[i]->graph = graph->graph;
        out[i]->graph.is_unsteady = i == 0;
        out[i]->is_final = true;
    }
    return num;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t at,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t *count, void *values)
{
    const struct descriptor *d = at;
    (void)type;
    if (simgpu_fails(__func__) || !d->is_final)
        return CUDNN_STATUS_BAD_PARAM;
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        *count = name_engines(d, room, values);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        struct descriptor *engine = *(struct descriptor **)values;
        engine->graph = d->graph;
        engine->is_final = true;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
        cudnnBackendNumericalNote_t notes[] = {CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                               CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
        *count = d->graph.is_unsteady ? 2 : 1;
        memcpy(values, notes, (size_t)*count * sizeof(notes[0]));
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        memcpy(values, &(int64_t){(int64_t)d->graph.workspace_bytes}, sizeof(int64_t));
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_BAD_PARAM;
    }
}

/* ---- Execution ---- */

static bool can_be_touched(const void *at, size_t bytes)
{
    const struct region *region = simgpu_region(at);
    return region != NULL && (uintptr_t)at % 16 == 0 &&
           (const char *)at + bytes <= region->at + region->bytes;
}

/* With the lock. */
static bool bind(struct work *w, const struct descriptor *pack)
{
    const struct attribute *ids = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *at = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    if (ids == NULL || at == NULL || ids->count != at->count ||
        !read(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &w->workspace, sizeof(w->workspace)) ||
        !can_be_touched(w->workspace, w->graph.workspace_bytes))
        return false;
    for (int i = 0; i < w->graph.num_tensors; i++) {
        const struct tensor *t = &w->graph.tensors[i];
        for (int64_t j = 0; j < ids->count; j++)
            if (((const int64_t *)ids->values)[j] == t->id)
                w->at[i] = ((void *const *)at->values)[j];
        if (t->is_number && w->at[i] != NULL)
            memcpy(&w->numbers[i], w->at[i], sizeof(float));
        size_t bytes = simgpu_tensor_count(t) * (t->type == CUDNN_DATA_BFLOAT16 ? 2 : 4);
        if (!t->is_virtual && (t->is_number ? w->at[i] == NULL : !can_be_touched(w->at[i], bytes)))
            return false;
    }
    return true;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack)
{
    const struct descriptor *p = plan, *with = pack;
    struct work *w = new_zeros(sizeof(*w));
    cudaError_t error = simgpu_enter(__func__);
    w->graph = p->graph;
    w->turn = simgpu.counts.attentions;
    bool is_right = error == cudaSuccess && p->is_final && with->is_final &&
                    simgpu_is_stream(handle->stream) && bind(w, with);
    if (is_right) {
        simgpu.counts.attentions++;
        simgpu_post(
            handle->stream,
            simgpu_new_op(OP_WORK, &(struct simgpu_work){.run = simgpu_run_graph}, w, sizeof(*w)));
    }
    (void)simgpu_leave(error);
    free(w);
    return error != cudaSuccess ? CUDNN_STATUS_EXECUTION_FAILED
           : is_right           ? CUDNN_STATUS_SUCCESS
                                : CUDNN_STATUS_BAD_PARAM;
}
