/* dnn.h - a graph of cuDNN's operations on the simulated GPU: dnn.c takes it from the caller, and
 * dnn_graph.c computes it. */
#ifndef HOLDFAST_TESTS_SIMGPU_DNN_H
#define HOLDFAST_TESTS_SIMGPU_DNN_H

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIMS 4
#define TENSORS_MAX 64
#define NODES_MAX 32

struct tensor {
    int64_t id, dims[DIMS], strides[DIMS];
    cudnnDataType_t type;
    bool is_virtual, is_number;
};
enum node_kind { MATMUL, POINTWISE, REDUCTION, RESHAPE };
struct node {
    enum node_kind kind;
    int mode, axis;
    int x, b, t, y; /* of the graph's tensors; -1: none */
};
struct graph {
    struct tensor tensors[TENSORS_MAX];
    struct node nodes[NODES_MAX];
    int num_tensors, num_nodes;
    size_t workspace_bytes;
    bool is_unsteady; /* the engine that does not repeat its bits */
};
/* A graph that runs: pointers and numbers belong to its tensors. */
struct work {
    struct graph graph;
    void *at[TENSORS_MAX];
    float numbers[TENSORS_MAX];
    void *workspace;
    uint64_t turn;
};

size_t simgpu_tensor_count(const struct tensor *t);
void simgpu_run_graph(void *work);

#endif
