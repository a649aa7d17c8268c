/* dnn_graph.h - attention as a graph of cuDNN's operations, forward and backward.
 *
 * A table of tensors and one of operations each (dnn_graph.c); cuDNN finds the engine that computes
 * all of it at once. A tensor's number is its unique id of the library: pointers are bound to it.
 */
#ifndef HOLDFAST_CUDA_DNN_GRAPH_H
#define HOLDFAST_CUDA_DNN_GRAPH_H

#include <cudnn.h>
#include <stdbool.h>
#include <stdint.h>

#define DNN_CALLS(X)            \
    X(Create)                   \
    X(Destroy)                  \
    X(GetVersion)               \
    X(GetLastErrorString)       \
    X(SetStream)                \
    X(BackendCreateDescriptor)  \
    X(BackendDestroyDescriptor) \
    X(BackendSetAttribute)      \
    X(BackendGetAttribute)      \
    X(BackendFinalize)          \
    X(BackendExecute)

struct dnn_calls {
#define X(name) __typeof__(cudnn##name) *name;
    DNN_CALLS(X)
#undef X
};

/* The properties that decide a graph. */
struct dnn_key {
    uint32_t batch, seq, heads, kv_heads, head_dim, is_backward;
};

enum dnn_tensor {
    /* bound to memory of the device */
    DNN_Q = 1,
    DNN_KEY,
    DNN_VALUE,
    DNN_OUT,
    DNN_LSE,
    DNN_DOUT,
    DNN_DQ,
    DNN_DKEY,
    DNN_DVALUE,
    DNN_DELTA, /* [B,H,T], sum of dout out: scratch */
    /* numbers of the host */
    DNN_SCALE,
    DNN_HIDDEN,
    DNN_ONE,
    /* within the graph */
    DNN_SCORES,
    DNN_SCALED,
    DNN_ROW,
    DNN_COLUMN,
    DNN_IS_SEEN,
    DNN_SEEN,
    DNN_LARGEST,
    DNN_SHIFTED,
    DNN_POWERS,
    DNN_SUM,
    DNN_LOGARITHM,
    DNN_PROBABILITY,
    DNN_PRODUCTS,
    DNN_PRODUCT_SUM,
    DNN_PROBABILITY_TURNED,
    DNN_DVALUE_HEADS,
    DNN_DPROBABILITY,
    DNN_CENTERED,
    DNN_WEIGHTED,
    DNN_DSCORES,
    DNN_DSCORES_TURNED,
    DNN_DKEY_HEADS,
    DNN_KEY_UPRIGHT,
    DNN_NUM_TENSORS
};
#define DNN_FIRST_NUMBER DNN_SCALE
#define DNN_FIRST_VIRTUAL DNN_SCORES

#define DNN_DESCRIPTORS_MAX 96
struct dnn_graph {
    cudnnBackendDescriptor_t all[DNN_DESCRIPTORS_MAX]; /* in the order of creation */
    uint32_t num;
    cudnnBackendDescriptor_t graph; /* the last of them */
};

/* `handle` is NULL without a device. A graph that failed is freed as well. */
cudnnStatus_t dnn_graph_new(struct dnn_graph *out, const struct dnn_calls *calls,
                            cudnnHandle_t handle, const struct dnn_key *key);
void dnn_graph_free(struct dnn_graph *graph, const struct dnn_calls *calls);
/* True if this tensor is in the graph and bound to memory. */
bool dnn_graph_binds(const struct dnn_key *key, enum dnn_tensor tensor);

/* A descriptor with attributes: the first status other than success is kept. */
struct dnn_maker {
    const struct dnn_calls *calls;
    cudnnBackendDescriptor_t at;
    cudnnStatus_t status;
};
void dnn_begin(struct dnn_maker *m, cudnnBackendDescriptorType_t type);
void dnn_set(struct dnn_maker *m, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, int64_t count, const void *values);
/* NULL after a failure. */
cudnnBackendDescriptor_t dnn_end(struct dnn_maker *m);

#endif
