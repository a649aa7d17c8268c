/* dnn_graph.c - computes a graph of cuDNN's operations (dnn.h).
 *
 * Every operation is computed for itself, by its definition: products, sums and functions of single
 * values, in floats, rounded to the type of the tensor that is written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/report.h"
#include "tests/simgpu/dnn.h"

static void *new_zeros(size_t bytes)
{
    void *at = calloc(1, bytes);
    CHECK(at != NULL);
    return at;
}

size_t simgpu_tensor_count(const struct tensor *t)
{
    return (size_t)(t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]);
}

/* The place of a value in memory; `i` counts values in the order of the dimensions. */
static void place(const struct tensor *t, size_t i, int64_t *index)
{
    for (int d = DIMS; d-- > 0; i /= (size_t)t->dims[d])
        index[d] = (int64_t)(i % (size_t)t->dims[d]);
}
static size_t offset_of(const struct tensor *t, const int64_t *index)
{
    int64_t at = 0;
    for (int d = 0; d < DIMS; d++)
        at += index[d] * t->strides[d];
    return (size_t)at;
}
/* The value of x that belongs to a place of another tensor: repeated, or one of a group's. */
static size_t like(const struct tensor *x, const struct tensor *y, const int64_t *index)
{
    size_t at = 0;
    for (int d = 0; d < DIMS; d++)
        at = at * (size_t)x->dims[d] + (size_t)(index[d] * x->dims[d] / y->dims[d]);
    return at;
}

static float rounded(float x, cudnnDataType_t type)
{
    uint32_t bits;
    if (type != CUDNN_DATA_BFLOAT16 || isnan(x))
        return x;
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static float value_of(int mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return expf(x);
    case CUDNN_POINTWISE_LOG:
        return logf(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    default:
        CHECK(mode == CUDNN_POINTWISE_BINARY_SELECT);
        return t != 0 ? x : b;
    }
}

/* The values of the head (of a group's one) that belongs to head i of y. */
static const float *head_of(const struct tensor *x, const struct tensor *y, int64_t i,
                            const float *values)
{
    int64_t batch = i / y->dims[1], head = i % y->dims[1];
    int64_t at = batch * x->dims[1] + head * x->dims[1] / y->dims[1];
    return values + at * x->dims[2] * x->dims[3];
}

static void add_row(float *to, float x, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += x * from[i];
}

static void multiply(const struct tensor *t, const struct node *n, float *const *v)
{
    const struct tensor *x = &t[n->x], *b = &t[n->b], *y = &t[n->y];
    int64_t rows = y->dims[2], columns = y->dims[3], k = x->dims[3];
    CHECK(b->dims[2] == k && x->dims[2] == rows && b->dims[3] == columns);
    for (int64_t i = 0; i < y->dims[0] * y->dims[1]; i++) {
        const float *from_x = head_of(x, y, i, v[n->x]), *from_b = head_of(b, y, i, v[n->b]);
        float *to = v[n->y] + i * rows * columns;
        memset(to, 0, (size_t)(rows * columns) * sizeof(*to));
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < k; j++)
                add_row(to + r * columns, from_x[r * k + j], from_b + j * columns, columns);
    }
}

static void compute_each(const struct tensor *t, const struct node *n, float *const *v)
{
    const struct tensor *y = &t[n->y];
    for (size_t i = 0; i < simgpu_tensor_count(y); i++) {
        int64_t index[DIMS];
        place(y, i, index);
        v[n->y][i] = n->mode == CUDNN_POINTWISE_GEN_INDEX
                         ? (float)index[n->axis]
                         : value_of(n->mode, v[n->x][like(&t[n->x], y, index)],
                                    n->b < 0 ? 0 : v[n->b][like(&t[n->b], y, index)],
                                    n->t < 0 ? 0 : v[n->t][like(&t[n->t], y, index)]);
    }
}

static void reduce(const struct tensor *t, const struct node *n, float *const *v)
{
    const struct tensor *x = &t[n->x], *y = &t[n->y];
    bool is_sum = n->mode == CUDNN_REDUCE_TENSOR_ADD;
    CHECK(is_sum || n->mode == CUDNN_REDUCE_TENSOR_MAX);
    for (size_t i = 0; i < simgpu_tensor_count(y); i++)
        v[n->y][i] = is_sum ? 0 : -INFINITY;
    for (size_t i = 0; i < simgpu_tensor_count(x); i++) {
        int64_t index[DIMS];
        place(x, i, index);
        float *to = &v[n->y][like(y, x, index)];
        *to = is_sum ? *to + v[n->x][i] : fmaxf(*to, v[n->x][i]);
    }
}

/* Other sizes and strides of the same memory. */
static void reshape(const struct tensor *t, const struct node *n, float *const *v)
{
    const struct tensor *x = &t[n->x], *y = &t[n->y];
    int64_t index[DIMS];
    CHECK(simgpu_tensor_count(x) == simgpu_tensor_count(y));
    float *memory = new_zeros(simgpu_tensor_count(x) * sizeof(*memory));
    for (size_t i = 0; i < simgpu_tensor_count(x); i++) {
        place(x, i, index);
        memory[offset_of(x, index)] = v[n->x][i];
    }
    for (size_t i = 0; i < simgpu_tensor_count(y); i++) {
        place(y, i, index);
        v[n->y][i] = memory[offset_of(y, index)];
    }
    free(memory);
}

/* A tensor of the device's memory to floats, or back. */
static void move(const struct tensor *t, void *memory, float *values, bool is_store)
{
    for (size_t i = 0; i < simgpu_tensor_count(t); i++) {
        int64_t index[DIMS];
        uint32_t bits = 0;
        place(t, i, index);
        size_t at = offset_of(t, index);
        if (t->type == CUDNN_DATA_FLOAT && is_store) {
            ((float *)memory)[at] = values[i];
        } else if (t->type == CUDNN_DATA_FLOAT) {
            values[i] = ((float *)memory)[at];
        } else if (is_store) {
            memcpy(&bits, &values[i], sizeof(bits));
            ((uint16_t *)memory)[at] = (uint16_t)(bits >> 16);
        } else {
            bits = (uint32_t)((uint16_t *)memory)[at] << 16;
            memcpy(&values[i], &bits, sizeof(bits));
        }
    }
}

static void run_node(const struct work *w, const struct node *n, float *const *v)
{
    static void (*const runs[])(const struct tensor *, const struct node *, float *const *) = {
        [MATMUL] = multiply,
        [POINTWISE] = compute_each,
        [REDUCTION] = reduce,
        [RESHAPE] = reshape,
    };
    const struct tensor *y = &w->graph.tensors[n->y];
    runs[n->kind](w->graph.tensors, n, v);
    float noise = w->graph.is_unsteady && n->kind == MATMUL ? 1 + 0.05f * (float)(w->turn % 8) : 1;
    for (size_t i = 0; i < simgpu_tensor_count(y); i++)
        v[n->y][i] = rounded(v[n->y][i] * noise, y->type);
    if (!y->is_virtual)
        move(y, w->at[n->y], v[n->y], true);
}

void simgpu_run_graph(void *args)
{
    const struct work *w = args;
    float *v[TENSORS_MAX];
    memset(w->workspace, 0xff, w->graph.workspace_bytes);
    for (int i = 0; i < w->graph.num_tensors; i++) {
        const struct tensor *t = &w->graph.tensors[i];
        v[i] = new_zeros(simgpu_tensor_count(t) * sizeof(float));
        if (t->is_number)
            *v[i] = w->numbers[i];
        else if (!t->is_virtual)
            move(t, w->at[i], v[i], false);
    }
    for (int i = 0; i < w->graph.num_nodes; i++)
        run_node(w, &w->graph.nodes[i], v);
    for (int i = 0; i < w->graph.num_tensors; i++)
        free(v[i]);
}
