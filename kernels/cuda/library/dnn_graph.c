/* dnn_graph.c - see dnn_graph.h.
 *
 * The library recognizes attention by the shape of the graph, so this is the graph that NVIDIA's
 * front end makes. Sizes are [B,H,T,D]; strides give the layout in memory, [B,T,H,D]. Keys and
 * values are transposed if a product needs it. Several heads of queries share one of keys: their
 * gradients are summed at the end.
 *
 *     forward    p = softmax(scale q k^T, masked after the diagonal), out = p v
 *     backward   p = e^(scale q k^T - lse), delta = sum of dout out
 *                dv = p^T dout, ds = scale p (dout v^T - delta), dk = ds^T q, dq = ds k
 *
 * dq is a product without a separate sum, so the library keeps ds in memory and adds in one order
 * (dnn.h). */
#include "kernels/cuda/library/dnn_graph.h"

#include <string.h>

#define TENSOR_ALIGN 16
#define NUM_DIMS 4

/* ---- Descriptors ---- */

void dnn_begin(struct dnn_maker *m, cudnnBackendDescriptorType_t type)
{
    m->at = NULL;
    if (m->status == CUDNN_STATUS_SUCCESS)
        m->status = m->calls->BackendCreateDescriptor(type, &m->at);
}

void dnn_set(struct dnn_maker *m, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (m->status == CUDNN_STATUS_SUCCESS)
        m->status = m->calls->BackendSetAttribute(m->at, name, type, count, values);
}

cudnnBackendDescriptor_t dnn_end(struct dnn_maker *m)
{
    if (m->status == CUDNN_STATUS_SUCCESS)
        m->status = m->calls->BackendFinalize(m->at);
    if (m->status == CUDNN_STATUS_SUCCESS)
        return m->at;
    if (m->at)
        m->calls->BackendDestroyDescriptor(m->at);
    return NULL;
}

/* ---- Tensors ---- */

enum shape { QUERIES, KEYS, KEYS_TURNED, HEADS, SQUARE, SQUARE_TURNED, ROWS, ONE };
struct tensor {
    enum dnn_tensor id;
    enum shape shape;
    cudnnDataType_t type;
};
#define BF16 CUDNN_DATA_BFLOAT16
#define FLOAT CUDNN_DATA_FLOAT

static const struct tensor forward_tensors[] = {
    {DNN_Q, QUERIES, BF16},
    {DNN_KEY, KEYS_TURNED, BF16},
    {DNN_VALUE, KEYS, BF16},
    {DNN_OUT, QUERIES, BF16},
    {DNN_LSE, ROWS, FLOAT},
    {DNN_SCALE, ONE, FLOAT},
    {DNN_HIDDEN, ONE, FLOAT},
    {DNN_SCORES, SQUARE, FLOAT},
    {DNN_SCALED, SQUARE, FLOAT},
    {DNN_ROW, SQUARE, CUDNN_DATA_INT32},
    {DNN_COLUMN, SQUARE, CUDNN_DATA_INT32},
    {DNN_IS_SEEN, SQUARE, CUDNN_DATA_BOOLEAN},
    {DNN_SEEN, SQUARE, FLOAT},
    {DNN_LARGEST, ROWS, FLOAT},
    {DNN_SHIFTED, SQUARE, FLOAT},
    {DNN_POWERS, SQUARE, FLOAT},
    {DNN_SUM, ROWS, FLOAT},
    {DNN_LOGARITHM, ROWS, FLOAT},
    {DNN_PROBABILITY, SQUARE, BF16},
};

static const struct tensor backward_tensors[] = {
    {DNN_Q, QUERIES, BF16},
    {DNN_KEY, KEYS_TURNED, BF16},
    {DNN_VALUE, KEYS_TURNED, BF16},
    {DNN_OUT, QUERIES, BF16},
    {DNN_LSE, ROWS, FLOAT},
    {DNN_DOUT, QUERIES, BF16},
    {DNN_DQ, QUERIES, BF16},
    {DNN_DKEY, KEYS, BF16},
    {DNN_DVALUE, KEYS, BF16},
    {DNN_DELTA, ROWS, FLOAT},
    {DNN_SCALE, ONE, FLOAT},
    {DNN_HIDDEN, ONE, FLOAT},
    {DNN_ONE, ONE, FLOAT},
    {DNN_PRODUCTS, QUERIES, FLOAT},
    {DNN_PRODUCT_SUM, ROWS, FLOAT},
    {DNN_SCORES, SQUARE, FLOAT},
    {DNN_SCALED, SQUARE, FLOAT},
    {DNN_SHIFTED, SQUARE, FLOAT},
    {DNN_ROW, SQUARE, CUDNN_DATA_INT32},
    {DNN_COLUMN, SQUARE, CUDNN_DATA_INT32},
    {DNN_IS_SEEN, SQUARE, CUDNN_DATA_BOOLEAN},
    {DNN_SEEN, SQUARE, FLOAT},
    {DNN_PROBABILITY, SQUARE, FLOAT},
    {DNN_PROBABILITY_TURNED, SQUARE_TURNED, BF16},
    {DNN_DVALUE_HEADS, HEADS, BF16},
    {DNN_DPROBABILITY, SQUARE, FLOAT},
    {DNN_CENTERED, SQUARE, FLOAT},
    {DNN_WEIGHTED, SQUARE, FLOAT},
    {DNN_DSCORES, SQUARE, FLOAT},
    {DNN_DSCORES_TURNED, SQUARE_TURNED, BF16},
    {DNN_DKEY_HEADS, HEADS, BF16},
    {DNN_KEY_UPRIGHT, KEYS, BF16},
};

static void measure(enum shape shape, const struct dnn_key *k, int64_t *dims, int64_t *strides)
{
    int64_t b = k->batch, t = k->seq, h = k->heads, kv = k->kv_heads, d = k->head_dim;
    const int64_t all[][2][NUM_DIMS] = {
        [QUERIES] = {{b, h, t, d}, {t * h * d, d, h * d, 1}},
        [KEYS] = {{b, kv, t, d}, {t * kv * d, d, kv * d, 1}},
        [KEYS_TURNED] = {{b, kv, d, t}, {t * kv * d, d, 1, kv * d}},
        [HEADS] = {{b, h, t, d}, {h * t * d, t * d, d, 1}},
        [SQUARE] = {{b, h, t, t}, {h * t * t, t * t, t, 1}},
        [SQUARE_TURNED] = {{b, h, t, t}, {h * t * t, t * t, 1, t}},
        [ROWS] = {{b, h, t, 1}, {h * t, t, 1, 1}},
        [ONE] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
    };
    memcpy(dims, all[shape][0], sizeof(all[shape][0]));
    memcpy(strides, all[shape][1], sizeof(all[shape][1]));
}

static cudnnBackendDescriptor_t make_tensor(struct dnn_maker *m, const struct tensor *t,
                                            const struct dnn_key *key)
{
    int64_t dims[NUM_DIMS], strides[NUM_DIMS], align = TENSOR_ALIGN, id = t->id;
    bool is_virtual = t->id >= DNN_FIRST_VIRTUAL;
    bool is_number = t->id >= DNN_FIRST_NUMBER && !is_virtual;
    measure(t->shape, key, dims, strides);
    dnn_begin(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    dnn_set(m, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t->type);
    dnn_set(m, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, NUM_DIMS, dims);
    dnn_set(m, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, NUM_DIMS, strides);
    dnn_set(m, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    dnn_set(m, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    dnn_set(m, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    dnn_set(m, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_number);
    return dnn_end(m);
}

/* ---- Operations ---- */

enum kind { MATMUL, POINTWISE, INDEX, REDUCTION, RESHAPE };
struct node {
    enum kind kind;
    int mode; /* cudnnPointwiseMode_t, cudnnReduceTensorOp_t; the axis of an index */
    enum dnn_tensor x, b, y, t; /* 0: none */
};

static const struct node forward_nodes[] = {
    {MATMUL, 0, DNN_Q, DNN_KEY, DNN_SCORES, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_SCORES, DNN_SCALE, DNN_SCALED, 0},
    {INDEX, 2, DNN_SCALED, 0, DNN_ROW, 0},
    {INDEX, 3, DNN_SCALED, 0, DNN_COLUMN, 0},
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, DNN_ROW, DNN_COLUMN, DNN_IS_SEEN, 0},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, DNN_SCALED, DNN_HIDDEN, DNN_SEEN, DNN_IS_SEEN},
    {REDUCTION, CUDNN_REDUCE_TENSOR_MAX, DNN_SEEN, 0, DNN_LARGEST, 0},
    {POINTWISE, CUDNN_POINTWISE_SUB, DNN_SEEN, DNN_LARGEST, DNN_SHIFTED, 0},
    {POINTWISE, CUDNN_POINTWISE_EXP, DNN_SHIFTED, 0, DNN_POWERS, 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, DNN_POWERS, 0, DNN_SUM, 0},
    {POINTWISE, CUDNN_POINTWISE_LOG, DNN_SUM, 0, DNN_LOGARITHM, 0},
    {POINTWISE, CUDNN_POINTWISE_ADD, DNN_LARGEST, DNN_LOGARITHM, DNN_LSE, 0},
    {POINTWISE, CUDNN_POINTWISE_DIV, DNN_POWERS, DNN_SUM, DNN_PROBABILITY, 0},
    {MATMUL, 0, DNN_PROBABILITY, DNN_VALUE, DNN_OUT, 0},
};

static const struct node backward_nodes[] = {
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_DOUT, DNN_OUT, DNN_PRODUCTS, 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, DNN_PRODUCTS, 0, DNN_PRODUCT_SUM, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_PRODUCT_SUM, DNN_ONE, DNN_DELTA, 0},
    {MATMUL, 0, DNN_Q, DNN_KEY, DNN_SCORES, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_SCORES, DNN_SCALE, DNN_SCALED, 0},
    {POINTWISE, CUDNN_POINTWISE_SUB, DNN_SCALED, DNN_LSE, DNN_SHIFTED, 0},
    {INDEX, 2, DNN_SHIFTED, 0, DNN_ROW, 0},
    {INDEX, 3, DNN_SHIFTED, 0, DNN_COLUMN, 0},
    {POINTWISE, CUDNN_POINTWISE_CMP_GE, DNN_ROW, DNN_COLUMN, DNN_IS_SEEN, 0},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, DNN_SHIFTED, DNN_HIDDEN, DNN_SEEN, DNN_IS_SEEN},
    {POINTWISE, CUDNN_POINTWISE_EXP, DNN_SEEN, 0, DNN_PROBABILITY, 0},
    {RESHAPE, 0, DNN_PROBABILITY, 0, DNN_PROBABILITY_TURNED, 0},
    {MATMUL, 0, DNN_PROBABILITY_TURNED, DNN_DOUT, DNN_DVALUE_HEADS, 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, DNN_DVALUE_HEADS, 0, DNN_DVALUE, 0},
    {MATMUL, 0, DNN_DOUT, DNN_VALUE, DNN_DPROBABILITY, 0},
    {POINTWISE, CUDNN_POINTWISE_SUB, DNN_DPROBABILITY, DNN_DELTA, DNN_CENTERED, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_CENTERED, DNN_PROBABILITY, DNN_WEIGHTED, 0},
    {POINTWISE, CUDNN_POINTWISE_MUL, DNN_WEIGHTED, DNN_SCALE, DNN_DSCORES, 0},
    {RESHAPE, 0, DNN_DSCORES, 0, DNN_DSCORES_TURNED, 0},
    {MATMUL, 0, DNN_DSCORES_TURNED, DNN_Q, DNN_DKEY_HEADS, 0},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD, DNN_DKEY_HEADS, 0, DNN_DKEY, 0},
    {RESHAPE, 0, DNN_KEY, 0, DNN_KEY_UPRIGHT, 0},
    {MATMUL, 0, DNN_DSCORES, DNN_KEY_UPRIGHT, DNN_DQ, 0},
};

static const struct {
    cudnnBackendDescriptorType_t of, operation;
    cudnnBackendAttributeName_t precision, mode, descriptor, x, b, y, t;
} kinds[] = {
    [MATMUL] = {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                CUDNN_ATTR_MATMUL_COMP_TYPE, 0, CUDNN_ATTR_OPERATION_MATMUL_DESC,
                CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
                CUDNN_ATTR_OPERATION_MATMUL_CDESC, 0},
    [POINTWISE] = {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                   CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_ATTR_POINTWISE_MODE,
                   CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                   CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                   CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
    [REDUCTION] = {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                   CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_ATTR_REDUCTION_OPERATOR,
                   CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 0,
                   CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 0},
    [RESHAPE] = {0, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 0, 0, 0,
                 CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 0, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 0},
};

struct build {
    struct dnn_maker m;
    struct dnn_graph *into;
    cudnnBackendDescriptor_t tensors[DNN_NUM_TENSORS];
};

static cudnnBackendDescriptor_t keep(struct build *b, cudnnBackendDescriptor_t made)
{
    if (made)
        b->into->all[b->into->num++] = made;
    return made;
}

/* The descriptor of an operation: its mode, and the precision of its computation. */
static cudnnBackendDescriptor_t make_mode(struct dnn_maker *m, const struct node *node)
{
    enum kind kind = node->kind == INDEX ? POINTWISE : node->kind;
    int mode = node->kind == INDEX ? CUDNN_POINTWISE_GEN_INDEX : node->mode;
    int64_t axis = node->mode;
    cudnnDataType_t precision = node->kind == INDEX              ? CUDNN_DATA_INT32
                                : mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN
                                                                 : CUDNN_DATA_FLOAT;
    dnn_begin(m, kinds[kind].of);
    if (kind == POINTWISE)
        dnn_set(m, kinds[kind].mode, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    if (kind == REDUCTION)
        dnn_set(m, kinds[kind].mode, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    dnn_set(m, kinds[kind].precision, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (node->kind == INDEX)
        dnn_set(m, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    return dnn_end(m);
}

static void set_tensor(struct build *b, cudnnBackendAttributeName_t name, enum dnn_tensor tensor)
{
    if (tensor != 0)
        dnn_set(&b->m, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &b->tensors[tensor]);
}

static cudnnBackendDescriptor_t make_node(struct build *b, const struct node *node)
{
    enum kind kind = node->kind == INDEX ? POINTWISE : node->kind;
    cudnnBackendDescriptor_t mode = NULL;
    if (kind != RESHAPE)
        mode = keep(b, make_mode(&b->m, node));
    dnn_begin(&b->m, kinds[kind].operation);
    if (mode)
        dnn_set(&b->m, kinds[kind].descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &mode);
    set_tensor(b, kinds[kind].x, node->x);
    set_tensor(b, kinds[kind].b, node->b);
    set_tensor(b, kinds[kind].t, node->t);
    set_tensor(b, kinds[kind].y, node->y);
    return keep(b, dnn_end(&b->m));
}

/* ---- Graphs ---- */

#define NODES_MAX (sizeof(backward_nodes) / sizeof(backward_nodes[0]))
static const struct table {
    const struct tensor *tensors;
    const struct node *nodes;
    size_t num_tensors, num_nodes;
} tables[] = {
    {forward_tensors, forward_nodes, sizeof(forward_tensors) / sizeof(forward_tensors[0]),
     sizeof(forward_nodes) / sizeof(forward_nodes[0])},
    {backward_tensors, backward_nodes, sizeof(backward_tensors) / sizeof(backward_tensors[0]),
     NODES_MAX},
};
_Static_assert(sizeof(backward_tensors) / sizeof(backward_tensors[0]) + 2 * NODES_MAX + 1 <=
                   DNN_DESCRIPTORS_MAX,
               "the larger graph fits");

bool dnn_graph_binds(const struct dnn_key *key, enum dnn_tensor tensor)
{
    const struct table *table = &tables[key->is_backward];
    for (size_t i = 0; i < table->num_tensors; i++)
        if (table->tensors[i].id == tensor)
            return tensor < DNN_FIRST_VIRTUAL;
    return false;
}

cudnnStatus_t dnn_graph_new(struct dnn_graph *out, const struct dnn_calls *calls,
                            cudnnHandle_t handle, const struct dnn_key *key)
{
    const struct table *table = &tables[key->is_backward];
    cudnnBackendDescriptor_t nodes[NODES_MAX];
    int64_t num_nodes = 0;
    struct build b = {.m = {.calls = calls, .status = CUDNN_STATUS_SUCCESS}, .into = out};
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < table->num_tensors; i++)
        b.tensors[table->tensors[i].id] = keep(&b, make_tensor(&b.m, &table->tensors[i], key));
    if (key->heads == key->kv_heads) { /* nothing to sum */
        b.tensors[DNN_DVALUE_HEADS] = b.tensors[DNN_DVALUE];
        b.tensors[DNN_DKEY_HEADS] = b.tensors[DNN_DKEY];
    }
    for (size_t i = 0; i < table->num_nodes; i++)
        if (b.tensors[table->nodes[i].x] != b.tensors[table->nodes[i].y])
            nodes[num_nodes++] = make_node(&b, &table->nodes[i]);
    dnn_begin(&b.m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    dnn_set(&b.m, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, num_nodes, nodes);
    if (handle)
        dnn_set(&b.m, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    out->graph = keep(&b, dnn_end(&b.m));
    if (b.m.status != CUDNN_STATUS_SUCCESS)
        dnn_graph_free(out, calls);
    return b.m.status;
}

void dnn_graph_free(struct dnn_graph *graph, const struct dnn_calls *calls)
{
    while (graph->num > 0)
        calls->BackendDestroyDescriptor(graph->all[--graph->num]);
    graph->graph = NULL;
}
