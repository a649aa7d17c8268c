/* kernels_cases.h - every operation of kernels.h as a case: it makes its inputs from a seed, runs,
 * and hands over its outputs. The unit tests compare these outputs between back-ends, ISA levels
 * and thread counts. */
#ifndef HOLDFAST_TESTS_KERNELS_CASES_H
#define HOLDFAST_TESTS_KERNELS_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "proto/model/model_shape.h"
#include "tests/unit/lane_bed.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

/* Under AddressSanitizer the memory after a buffer is not accessible. */
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define NO_MEMORY(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define MEMORY_AGAIN(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
#define NO_MEMORY(at, bytes) ((void)(at), (void)(bytes))
#define MEMORY_AGAIN(at, bytes) ((void)(at), (void)(bytes))
#endif

/* ---- Buffers ---- */

#define BUFFERS_MAX 40
struct buffer {
    void *memory, *data;
    size_t bytes, count; /* of the memory, in the data */
    enum kernel_dtype dtype;
};
/* The allocations of a case; the first num_outputs are its outputs. */
struct run {
    struct buffer buffers[BUFFERS_MAX];
    int num_buffers, num_outputs;
    uint64_t seed;
    size_t misalignment;   /* multiple of 64 added to page-aligned addresses */
    struct device *device; /* whose memory it takes */
};

static inline void *new_buffer(struct run *run, size_t count, enum kernel_dtype dtype)
{
    assert_true(run->num_buffers < BUFFERS_MAX);
    struct buffer *b = &run->buffers[run->num_buffers++];
    b->bytes = (count * kernel_dtype_bytes(dtype) + run->misalignment + 8191) / 4096 * 4096 + 4096;
    assert_int_equal(device_alloc(run->device, &b->memory, b->bytes, PINNED), 0);
    memset(b->memory, 0xff, b->bytes); /* NaN in both types: elements that are not written show */
    b->data = (char *)(((uintptr_t)b->memory + 4095) / 4096 * 4096) + run->misalignment;
    b->count = count;
    b->dtype = dtype;
    char *end = (char *)b->data + count * kernel_dtype_bytes(dtype);
    NO_MEMORY(end, (size_t)((char *)b->memory + b->bytes - end));
    return b->data;
}

static inline void free_run(struct run *run)
{
    for (int i = 0; i < run->num_buffers; i++) {
        MEMORY_AGAIN(run->buffers[i].memory, run->buffers[i].bytes);
        device_free(run->device, run->buffers[i].memory);
    }
    run->num_buffers = 0;
}

static inline uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float value_of(const void *data, size_t i, enum kernel_dtype dtype)
{
    if (dtype == KERNEL_F32)
        return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Uniform in [-1.7, 1.7]: variance about 1. */
static inline float random_value(uint64_t *seed)
{
    return ((float)(splitmix64(seed) >> 40) / (float)(1 << 23) - 1) * 1.7f;
}

static inline void *random_buffer(struct run *run, size_t count, enum kernel_dtype dtype)
{
    void *data = new_buffer(run, count, dtype);
    for (size_t i = 0; i < count; i++) {
        float value = random_value(&run->seed);
        if (dtype == KERNEL_F32)
            ((float *)data)[i] = value;
        else
            ((uint16_t *)data)[i] = bf16_of(value);
    }
    return data;
}

/* Ids below `limit`, and one -1 in eight when `holes`. Kept as floats' worth of bytes. */
static inline int32_t *random_ids(struct run *run, size_t count, uint32_t limit, bool holes)
{
    int32_t *ids = new_buffer(run, count, KERNEL_F32);
    for (size_t i = 0; i < count; i++)
        ids[i] = holes && splitmix64(&run->seed) % 8 == 0
                     ? -1
                     : (int32_t)(splitmix64(&run->seed) % limit);
    return ids;
}

/* ---- Cases: outputs are allocated first ---- */

#define KERNELS struct kernels *k, struct lane *lane, const struct kernel_shapes *s, struct run *run
/* One of several variants of a function; its further arguments follow these four. */
#define CASE(name, function, ...)               \
    static inline void case_##name(KERNELS)     \
    {                                           \
        function(k, lane, s, run, __VA_ARGS__); \
    }
#define ROWS ((size_t)s->batch * s->seq)
#define QUERIES (ROWS * s->heads * s->head_dim)
#define KEYS (ROWS * s->kv_heads * s->head_dim)

static inline void case_embedding(KERNELS)
{
    void *out = new_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    const void *table = random_buffer(run, (size_t)s->vocab * s->dim, s->dtype);
    const int32_t *tokens = random_ids(run, ROWS, s->vocab, false);
    POST(k, lane, embedding, .out = out, .tokens = tokens, .table = table, .rows = (uint32_t)ROWS,
         .dim = s->dim, .dtype = s->dtype);
}
static inline void embedding_backward(KERNELS, bool is_folded)
{
    size_t count = (size_t)s->vocab * s->dim;
    float *dtable =
        is_folded ? random_buffer(run, count, KERNEL_F32) : new_buffer(run, count, KERNEL_F32);
    run->num_outputs = 1;
    const int32_t *tokens = random_ids(run, ROWS, s->vocab, false);
    const void *dout = random_buffer(run, ROWS * s->dim, s->dtype);
    POST(k, lane, embedding_backward, .dtable = dtable, .tokens = tokens, .dout = dout,
         .rows = (uint32_t)ROWS, .dim = s->dim, .vocab = s->vocab, .dtype = s->dtype,
         .is_folded = is_folded);
}
/* Words that are 0 or 1. */
static inline uint32_t *random_seen(struct run *run, size_t count)
{
    return (uint32_t *)random_ids(run, count, 2, false);
}
/* Rows that were not seen, and are not of this leaf, stay unchanged. */
static inline void case_embedding_seen(KERNELS)
{
    float *dtable = random_buffer(run, (size_t)s->vocab * s->dim, KERNEL_F32);
    uint32_t *seen = random_seen(run, s->vocab);
    run->num_outputs = 2;
    const int32_t *tokens = random_ids(run, ROWS, s->vocab, false);
    const void *dout = random_buffer(run, ROWS * s->dim, s->dtype);
    POST(k, lane, embedding_backward, .dtable = dtable, .tokens = tokens, .dout = dout,
         .seen = seen, .rows = (uint32_t)ROWS, .dim = s->dim, .vocab = s->vocab, .dtype = s->dtype);
}
CASE(embedding_backward, embedding_backward, false)
CASE(embedding_folded, embedding_backward, true)
/* A largest value, as the bits of a float, that an operation raises. */
static inline uint32_t *new_largest(struct run *run, float value)
{
    float *largest = new_buffer(run, 1, KERNEL_F32);
    *largest = value;
    return (uint32_t *)largest;
}
static inline void norm_with(KERNELS, bool residual)
{
    void *out = new_buffer(run, ROWS * s->dim, s->dtype);
    float *rstd = new_buffer(run, ROWS, KERNEL_F32);
    void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    uint32_t *largest = new_largest(run, residual ? 1e20f : 0); /* larger than all */
    run->num_outputs = 4;
    const void *added = residual ? random_buffer(run, ROWS * s->dim, s->dtype) : NULL;
    const void *weight = random_buffer(run, s->dim, s->dtype);
    POST(k, lane, rmsnorm, .out = out, .rstd = rstd, .x = x, .residual = added, .weight = weight,
         .largest = largest, .rows = (uint32_t)ROWS, .dim = s->dim, .eps = 1e-5f,
         .dtype = s->dtype);
}
CASE(norm, norm_with, false)
CASE(norm_residual, norm_with, true)
static inline void case_norm_backward(KERNELS)
{
    void *dx = random_buffer(run, ROWS * s->dim, s->dtype);
    float *dweight = new_buffer(run, s->dim, KERNEL_F32);
    run->num_outputs = 2;
    const void *dout = random_buffer(run, ROWS * s->dim, s->dtype);
    const void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    float *rstd = random_buffer(run, ROWS, KERNEL_F32);
    for (size_t n = 0; n < ROWS; n++)
        rstd[n] = 1 + fabsf(rstd[n]);
    const void *weight = random_buffer(run, s->dim, s->dtype);
    POST(k, lane, rmsnorm_backward, .dx = dx, .dweight = dweight, .dout = dout, .x = x,
         .rstd = rstd, .weight = weight, .rows = (uint32_t)ROWS, .dim = s->dim, .dtype = s->dtype);
}
static inline void case_linear(KERNELS)
{
    void *out = new_buffer(run, ROWS * s->hidden, s->dtype);
    run->num_outputs = 1;
    const void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    const void *w = random_buffer(run, (size_t)s->hidden * s->dim, s->dtype);
    POST(k, lane, linear, .out = out, .x = x, .w = w, .rows = (uint32_t)ROWS, .in = s->dim,
         .out_dim = s->hidden, .dtype = s->dtype);
}
static inline void linear_backward_input(KERNELS, bool accumulate)
{
    void *dx = random_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    const void *dout = random_buffer(run, ROWS * s->hidden, s->dtype);
    const void *w = random_buffer(run, (size_t)s->hidden * s->dim, s->dtype);
    POST(k, lane, linear_backward_input, .dx = dx, .dout = dout, .w = w, .rows = (uint32_t)ROWS,
         .in = s->dim, .out_dim = s->hidden, .accumulate = accumulate, .dtype = s->dtype);
}
CASE(linear_dx, linear_backward_input, false)
CASE(linear_dx_added, linear_backward_input, true)
enum { WRITTEN, ADDED, FOLDED };
static inline void linear_backward_weight(KERNELS, int how)
{
    size_t count = (size_t)s->hidden * s->dim;
    float *dw =
        how != WRITTEN ? random_buffer(run, count, KERNEL_F32) : new_buffer(run, count, KERNEL_F32);
    run->num_outputs = 1;
    const void *dout = random_buffer(run, ROWS * s->hidden, s->dtype);
    const void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    POST(k, lane, linear_backward_weight, .dw = dw, .dout = dout, .x = x, .rows = (uint32_t)ROWS,
         .in = s->dim, .out_dim = s->hidden, .dtype = s->dtype, .accumulate = how == ADDED,
         .is_folded = how == FOLDED);
}
CASE(linear_dw, linear_backward_weight, WRITTEN)
CASE(linear_dw_added, linear_backward_weight, ADDED)
CASE(linear_dw_folded, linear_backward_weight, FOLDED)

/* Three at once, one of another size, so that all have partial tiles or none. */
static inline void linears(KERNELS, bool is_backward, bool is_folded)
{
    const uint32_t out_dim[] = {s->hidden + 8, s->hidden, s->hidden}, n = (uint32_t)ROWS;
    struct kernel_linears f = {.rows = n, .in = s->dim, .dtype = s->dtype};
    struct kernel_linears_backward_weight b = {.rows = n, .in = s->dim, .dtype = s->dtype};
    run->num_outputs = (int)(f.num = b.num = 3);
    for (uint32_t i = 0; i < 3; i++) {
        size_t count = out_dim[i] * (is_backward ? s->dim : ROWS);
        f.out_dim[i] = b.out_dim[i] = out_dim[i];
        f.out[i] = b.dw[i] = is_folded
                                 ? random_buffer(run, count, KERNEL_F32)
                                 : new_buffer(run, count, is_backward ? KERNEL_F32 : s->dtype);
    }
    b.is_folded = is_folded;
    f.x = b.x = random_buffer(run, ROWS * s->dim, s->dtype);
    size_t width = is_backward ? ROWS : s->dim; /* of gradients or weights */
    for (uint32_t i = 0; i < 3; i++)
        f.w[i] = b.dout[i] = random_buffer(run, out_dim[i] * width, s->dtype);
    if (is_backward)
        kernel_linears_backward_weight(k, lane, &b);
    else
        kernel_linears(k, lane, &f);
}
CASE(linears, linears, false, false)
CASE(linears_dw, linears, true, false)
CASE(linears_dw_folded, linears, true, true)

#include "tests/unit/kernels_float8.h"

static inline void rope_table(float *cosines, float *sines, uint32_t seq, uint32_t head_dim)
{
    struct model_shape shape = {.head_dim = head_dim, .rope_theta = 10000};
    double frequencies[MODEL_HEAD_DIM_MAX / 2];
    model_shape_frequencies(frequencies, &shape);
    kernel_rope_table(cosines, sines, seq, head_dim, frequencies);
}
/* Documents of 1 to 9 positions; the last one may fill the rest of a long sequence. */
static inline const int32_t *document_starts(KERNELS)
{
    int32_t *starts = new_buffer(run, ROWS, KERNEL_F32);
    (void)k;
    (void)lane;
    for (uint32_t n = 0; n < ROWS; n++) {
        uint32_t t = n % s->seq;
        bool begins = t == 0 || (t < 90 && (n * 2654435761u) >> 28 < 4);
        starts[n] = begins ? (int32_t)t : starts[n - 1];
    }
    return starts;
}
static inline void rope_with(KERNELS, bool inverse, bool has_documents)
{
    void *x = random_buffer(run, QUERIES, s->dtype);
    run->num_outputs = 1;
    float *cosines = new_buffer(run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    float *sines = new_buffer(run, (size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    rope_table(cosines, sines, s->seq, s->head_dim);
    POST(k, lane, rope, .x = x, .cos = cosines, .sin = sines,
         .starts = has_documents ? document_starts(k, lane, s, run) : NULL, .batch = s->batch,
         .seq = s->seq, .heads = s->heads, .head_dim = s->head_dim, .inverse = inverse,
         .dtype = s->dtype);
}
CASE(rope, rope_with, false, false)
CASE(rope_inverse, rope_with, true, false)
CASE(rope_documents, rope_with, false, true)
static inline void attention_with(KERNELS, bool has_documents)
{
    void *out = new_buffer(run, QUERIES, s->dtype);
    float *lse = new_buffer(run, ROWS * s->heads, KERNEL_F32);
    run->num_outputs = 2;
    const void *q = random_buffer(run, QUERIES, s->dtype);
    const void *key = random_buffer(run, KEYS, s->dtype);
    const void *value = random_buffer(run, KEYS, s->dtype);
    const int32_t *starts = has_documents ? document_starts(k, lane, s, run) : NULL;
    POST(k, lane, attention, .out = out, .lse = lse, .q = q, .key = key, .value = value,
         .starts = starts, .batch = s->batch, .seq = s->seq, .heads = s->heads,
         .kv_heads = s->kv_heads, .head_dim = s->head_dim, .dtype = s->dtype);
}
CASE(attention, attention_with, false)
CASE(attention_documents, attention_with, true)
static inline void attention_backward_with(KERNELS, bool has_documents)
{
    void *dq = new_buffer(run, QUERIES, s->dtype);
    void *dkey = new_buffer(run, KEYS, s->dtype), *dvalue = new_buffer(run, KEYS, s->dtype);
    run->num_outputs = 3;
    const void *q = random_buffer(run, QUERIES, s->dtype);
    const void *key = random_buffer(run, KEYS, s->dtype);
    const void *value = random_buffer(run, KEYS, s->dtype);
    const void *dout = random_buffer(run, QUERIES, s->dtype);
    void *out = new_buffer(run, QUERIES, s->dtype);
    float *lse = new_buffer(run, ROWS * s->heads, KERNEL_F32);
    const int32_t *starts = has_documents ? document_starts(k, lane, s, run) : NULL;
    POST(k, lane, attention, .out = out, .lse = lse, .q = q, .key = key, .value = value,
         .starts = starts, .batch = s->batch, .seq = s->seq, .heads = s->heads,
         .kv_heads = s->kv_heads, .head_dim = s->head_dim, .dtype = s->dtype);
    POST(k, lane, attention_backward, .dq = dq, .dkey = dkey, .dvalue = dvalue, .dout = dout,
         .out = out, .lse = lse, .q = q, .key = key, .value = value, .starts = starts,
         .batch = s->batch, .seq = s->seq, .heads = s->heads, .kv_heads = s->kv_heads,
         .head_dim = s->head_dim, .dtype = s->dtype);
}
CASE(attention_backward, attention_backward_with, false)
CASE(attention_backward_documents, attention_backward_with, true)
static inline void case_swiglu(KERNELS)
{
    void *out = new_buffer(run, ROWS * s->hidden, s->dtype);
    uint32_t *largest = new_largest(run, 0);
    run->num_outputs = 2;
    const void *gate = random_buffer(run, ROWS * s->hidden, s->dtype);
    const void *up = random_buffer(run, ROWS * s->hidden, s->dtype);
    POST(k, lane, swiglu, .out = out, .gate = gate, .up = up, .largest = largest,
         .count = ROWS * s->hidden, .dtype = s->dtype);
}
static inline void case_swiglu_backward(KERNELS)
{
    void *dgate = new_buffer(run, ROWS * s->hidden, s->dtype);
    void *dup = new_buffer(run, ROWS * s->hidden, s->dtype);
    uint32_t *of_dgate = new_largest(run, 0), *of_dup = new_largest(run, 0);
    run->num_outputs = 4;
    const void *dout = random_buffer(run, ROWS * s->hidden, s->dtype);
    const void *gate = random_buffer(run, ROWS * s->hidden, s->dtype);
    const void *up = random_buffer(run, ROWS * s->hidden, s->dtype);
    POST(k, lane, swiglu_backward, .dgate = dgate, .dup = dup, .dout = dout, .gate = gate, .up = up,
         .largest_dgate = of_dgate, .largest_dup = of_dup, .count = ROWS * s->hidden,
         .dtype = s->dtype);
}
static inline void case_cross_entropy(KERNELS)
{
    float *losses = new_buffer(run, ROWS, KERNEL_F32);
    void *logits = random_buffer(run, ROWS * s->vocab, s->dtype);
    run->num_outputs = 2;
    const int32_t *targets = random_ids(run, ROWS, s->vocab, true);
    float *scale = new_buffer(run, 1, KERNEL_F32);
    *scale = 0.125f;
    POST(k, lane, cross_entropy, .losses = losses, .logits = logits, .targets = targets,
         .rows = (uint32_t)ROWS, .vocab = s->vocab, .scale = scale, .dtype = s->dtype);
}
static inline void case_pack(KERNELS)
{
    void *packed = new_buffer(run, (ROWS + 1) / 2 * ((s->dim + 2) / 3), s->dtype);
    run->num_outputs = 1;
    POST(k, lane, pack, .packed = packed, .full = random_buffer(run, ROWS * s->dim, s->dtype),
         .first_row = ROWS / 2, .rows = (ROWS + 1) / 2, .first_column = s->dim / 3,
         .columns = (s->dim + 2) / 3, .width = s->dim, .dtype = s->dtype);
}
static inline void case_unpack(KERNELS)
{
    void *full = random_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    POST(k, lane, unpack, .full = full, .packed = random_buffer(run, ROWS * s->dim, s->dtype),
         .first_row = ROWS / 2, .rows = (ROWS + 1) / 2, .first_column = s->dim / 3,
         .columns = (s->dim + 2) / 3, .width = s->dim, .dtype = s->dtype);
}
static inline void case_add(KERNELS)
{
    void *y = random_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    POST(k, lane, add, .y = y, .x = random_buffer(run, ROWS * s->dim, s->dtype),
         .count = ROWS * s->dim, .dtype = s->dtype);
}
static inline void case_add_seen(KERNELS)
{
    void *y = random_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    const void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    POST(k, lane, add, .y = y, .x = x, .seen = random_seen(run, ROWS), .count = ROWS * s->dim,
         .width = s->dim, .dtype = s->dtype);
}
/* The contents of a new sum are not read: they are NaN. Some terms are -0, which 0 + x is not. */
static inline void fold_to(KERNELS, enum kernel_dtype sums, bool is_first, uint32_t more)
{
    size_t count = ROWS * s->dim, stride = (count + 15) / 16 * 16;
    void *sum = is_first ? new_buffer(run, count, sums) : random_buffer(run, count, sums);
    run->num_outputs = 1;
    float *leaf = random_buffer(run, more * stride + count, KERNEL_F32);
    for (size_t i = 0; i < more * stride + count && is_first; i += 3)
        leaf[i] = -0.0f;
    POST(k, lane, fold, .acc = sum, .leaf = leaf, .count = count, .stride = stride, .more = more,
         .dtype = sums, .is_first = is_first);
}
CASE(fold, fold_to, KERNEL_F32, false, 0)
CASE(fold_first, fold_to, KERNEL_F32, true, 0)
CASE(fold_many, fold_to, KERNEL_F32, false, 3)
CASE(fold_bf16, fold_to, KERNEL_BF16, false, 0)
CASE(fold_first_bf16, fold_to, KERNEL_BF16, true, 2)
static inline void case_convert(KERNELS)
{
    void *out = new_buffer(run, ROWS * s->dim, s->dtype);
    run->num_outputs = 1;
    POST(k, lane, convert, .out = out, .out_dtype = s->dtype,
         .in = random_buffer(run, ROWS * s->dim, KERNEL_F32), .count = ROWS * s->dim);
}
static inline void sum_squares_of(KERNELS, enum kernel_dtype dtype)
{
    float *value = new_buffer(run, 1, KERNEL_F32);
    run->num_outputs = 1;
    struct kernel_exact_sum *sum = new_buffer(run, sizeof(*sum) / sizeof(float), KERNEL_F32);
    memset(sum, 0, sizeof(*sum));
    /* Of several tensors: the last is narrow, the second empty. */
    struct kernel_squares_piece pieces[] = {
        {random_buffer(run, ROWS * s->dim, dtype), s->dim, ROWS},
        {NULL, 7, ROWS},
        {random_buffer(run, 3 * s->dim, dtype), 3 * s->dim, ROWS + 1},
        {random_buffer(run, 3 * 5, dtype), 5, ROWS + 4}};
    void *list = new_buffer(run, sizeof(pieces) / (sizeof(float)), KERNEL_F32);
    memcpy(list, pieces, sizeof(pieces));
    POST(k, lane, sum_squares, .sum = sum, .pieces = list, .rows = ROWS + 4, .num = 4,
         .dtype = dtype);
    assert_int_equal(lane_settle(lane), 0);
    *value = (float)kernel_exact_value(sum);
}
CASE(sum_squares, sum_squares_of, KERNEL_F32)
CASE(sum_squares_bf16, sum_squares_of, KERNEL_BF16)
/* With an infinity and a NaN of either sign, or all finite: bits in halves, and the count. */
static inline void extremes_of(KERNELS, bool is_finite)
{
    size_t count = ROWS * s->dim, element = kernel_dtype_bytes(s->dtype);
    float *pieces = new_buffer(run, 5, KERNEL_F32);
    run->num_outputs = 1;
    struct kernel_extent *out = new_buffer(run, sizeof(*out) / sizeof(float), KERNEL_F32);
    char *x = random_buffer(run, count, s->dtype);
    uint32_t broken[] = {0xff800000, 0x7fc00000, 0xffc00000};
    for (size_t i = 0; i < 3 && !is_finite && 2 * i < count; i++) /* the upper half is the bf16 */
        memcpy(x + (count - 1 - 2 * i) * element, (char *)&broken[i] + sizeof(broken[i]) - element,
               element);
    POST(k, lane, extremes, .out = out, .x = x, .count = count, .dtype = s->dtype);
    assert_int_equal(lane_settle(lane), 0);
    const uint32_t numbers[] = {out->largest >> 16, out->largest & 0xffff, out->smallest >> 16,
                                out->smallest & 0xffff, out->not_finite};
    for (size_t i = 0; i < 5; i++)
        pieces[i] = (float)numbers[i];
}
CASE(extremes, extremes_of, true)
CASE(extremes_broken, extremes_of, false)
/* Of rows that lie on end in the tensor, and of a box of a wider one: as pieces of 16 bits. */
static inline void case_digest(KERNELS)
{
    float *pieces = new_buffer(run, 16, KERNEL_F32);
    run->num_outputs = 1;
    uint64_t *sum = new_buffer(run, 8, KERNEL_F32);
    memset(sum, 0, 4 * sizeof(*sum));
    const void *x = random_buffer(run, ROWS * s->dim, s->dtype);
    for (uint64_t cut = 0; cut < 2; cut++)
        POST(k, lane, digest, .sum = sum + 2 * cut, .x = x, .rows = ROWS, .width = s->dim,
             .first = 5 + (cut << 40), .stride = s->dim + 3 * cut, .dtype = s->dtype);
    assert_int_equal(lane_settle(lane), 0);
    for (unsigned i = 0; i < 16; i++)
        pieces[i] = (float)(sum[i / 4] >> i % 4 * 16 & 0xffff);
}
#include "tests/unit/kernels_adamw.h"

struct kernel_case {
    const char *name;
    void (*run)(KERNELS);
    bool fused; /* built from products: multiply-add is fused on some levels */
    enum kernel_op op;
};
static const struct kernel_case kernel_cases[] = {
    {"embedding", case_embedding, false, KERNEL_EMBEDDING},
    {"embedding_backward", case_embedding_backward, false, KERNEL_EMBEDDING_BACKWARD},
    {"embedding_folded", case_embedding_folded, false, KERNEL_EMBEDDING_BACKWARD},
    {"embedding_seen", case_embedding_seen, false, KERNEL_EMBEDDING_BACKWARD},
    {"norm", case_norm, false, KERNEL_RMSNORM},
    {"norm_residual", case_norm_residual, false, KERNEL_RMSNORM},
    {"norm_backward", case_norm_backward, false, KERNEL_RMSNORM_BACKWARD},
    {"linear", case_linear, true, KERNEL_LINEAR},
    {"linear_dx", case_linear_dx, true, KERNEL_LINEAR_BACKWARD_INPUT},
    {"linear_dx_added", case_linear_dx_added, true, KERNEL_LINEAR_BACKWARD_INPUT},
    {"linear_dw", case_linear_dw, true, KERNEL_LINEAR_BACKWARD_WEIGHT},
    {"linear_dw_added", case_linear_dw_added, true, KERNEL_LINEAR_BACKWARD_WEIGHT},
    {"linear_dw_folded", case_linear_dw_folded, true, KERNEL_LINEAR_BACKWARD_WEIGHT},
    {"linears", case_linears, true, KERNEL_LINEARS},
    {"linears_dw", case_linears_dw, true, KERNEL_LINEARS_BACKWARD_WEIGHT},
    {"linears_dw_folded", case_linears_dw_folded, true, KERNEL_LINEARS_BACKWARD_WEIGHT},
    {"linear_float8", case_linear_float8, true, KERNEL_LINEAR},
    {"linear_dx_float8", case_linear_dx_float8, true, KERNEL_LINEAR_BACKWARD_INPUT},
    {"linear_dw_float8", case_linear_dw_float8, true, KERNEL_LINEAR_BACKWARD_WEIGHT},
    {"linear_dx_e4m3_float8", case_linear_dx_e4m3, true, KERNEL_LINEAR_BACKWARD_INPUT},
    {"linear_dw_e4m3_float8", case_linear_dw_e4m3, true, KERNEL_LINEAR_BACKWARD_WEIGHT},
    {"linear_coded_float8", case_linear_coded_float8, true, KERNEL_LINEAR_BACKWARD_INPUT},
    {"rope", case_rope, false, KERNEL_ROPE},
    {"rope_inverse", case_rope_inverse, false, KERNEL_ROPE},
    {"attention", case_attention, true, KERNEL_ATTENTION},
    {"attention_backward", case_attention_backward, true, KERNEL_ATTENTION_BACKWARD},
    {"rope_documents", case_rope_documents, false, KERNEL_ROPE},
    {"attention_documents", case_attention_documents, true, KERNEL_ATTENTION},
    {"attention_backward_documents", case_attention_backward_documents, true,
     KERNEL_ATTENTION_BACKWARD},
    {"swiglu", case_swiglu, false, KERNEL_SWIGLU},
    {"swiglu_backward", case_swiglu_backward, false, KERNEL_SWIGLU_BACKWARD},
    {"cross_entropy", case_cross_entropy, false, KERNEL_CROSS_ENTROPY},
    {"pack", case_pack, false, KERNEL_PACK},
    {"unpack", case_unpack, false, KERNEL_UNPACK},
    {"add", case_add, false, KERNEL_ADD},
    {"add_seen", case_add_seen, false, KERNEL_ADD},
    {"fold", case_fold, false, KERNEL_FOLD},
    {"fold_first", case_fold_first, false, KERNEL_FOLD},
    {"fold_many", case_fold_many, false, KERNEL_FOLD},
    {"fold_bf16", case_fold_bf16, false, KERNEL_FOLD},
    {"fold_first_bf16", case_fold_first_bf16, false, KERNEL_FOLD},
    {"convert", case_convert, false, KERNEL_CONVERT},
    {"e4m3", case_e4m3, false, KERNEL_ROUND_FLOAT8},
    {"e5m2", case_e5m2, false, KERNEL_ROUND_FLOAT8},
    {"e4m3_noted", case_e4m3_noted, false, KERNEL_ROUND_FLOAT8},
    {"largest", case_largest, false, KERNEL_FLOAT8_LARGEST},
    {"encoded", case_encoded, false, KERNEL_FLOAT8_ENCODE},
    {"coded", case_coded, false, KERNEL_FLOAT8_DECODE},
    {"extremes", case_extremes, false, KERNEL_EXTREMES},
    {"extremes_broken", case_extremes_broken, false, KERNEL_EXTREMES},
    {"sum_squares", case_sum_squares, false, KERNEL_SUM_SQUARES},
    {"sum_squares_bf16", case_sum_squares_bf16, false, KERNEL_SUM_SQUARES},
    {"digest", case_digest, false, KERNEL_DIGEST},
    {"adamw", case_adamw, false, KERNEL_ADAMW},
    {"adam", case_adam, false, KERNEL_ADAMW},
    {"adamw_bf16", case_adamw_bf16, false, KERNEL_ADAMW},
    {"adamw_gradients_bf16", case_adamw_gradients_bf16, false, KERNEL_ADAMW},
    {"adamw_all_bf16", case_adamw_all_bf16, false, KERNEL_ADAMW},
};
#define NUM_CASES (int)(sizeof(kernel_cases) / sizeof(kernel_cases[0]))

/* Shapes for every edge: one row, odd sizes, no multiple of 16, several tiles, each GQA ratio. */
static const struct kernel_shapes kernel_shapes[] = {
    /* batch, seq, dim, hidden, heads, kv_heads, head_dim, vocab */
    {1, 1, 16, 16, 1, 1, 16, 17, KERNEL_F32},    {1, 7, 5, 3, 3, 1, 6, 11, KERNEL_F32},
    {3, 33, 100, 50, 6, 2, 10, 130, KERNEL_F32}, {1, 150, 48, 200, 4, 4, 24, 250, KERNEL_F32},
    {2, 261, 64, 129, 8, 2, 16, 64, KERNEL_F32}, {1, 70, 300, 260, 5, 1, 64, 96, KERNEL_F32},
    {1, 66, 32, 24, 70, 1, 2, 40, KERNEL_F32},
};
#define NUM_SHAPES (int)(sizeof(kernel_shapes) / sizeof(kernel_shapes[0]))

/* ---- Back-ends with scratch; NULL when the CPU lacks the level ---- */

struct engine {
    struct kernels *kernels;
    struct lane *lane;
    void *scratch;
};
static inline void engine_lane(struct engine *e, struct lane *lane)
{
    size_t bytes = 0;
    for (int i = 0; i < NUM_SHAPES; i++) {
        size_t needed = kernels_scratch_bytes(e->kernels, &kernel_shapes[i]);
        bytes = needed > bytes ? needed : bytes;
    }
    e->lane = lane;
    assert_int_equal(device_alloc(lane->device, &e->scratch, bytes, ON_DEVICE), 0);
    lane_set_scratch(lane, e->scratch, bytes);
}
static inline struct engine new_engine(enum kernel_backend backend, const char *isa,
                                       uint32_t threads)
{
    struct engine e = {0};
    struct kernels_options options = {.backend = backend, .num_threads = threads, .isa = isa};
    if (kernels_new(&e.kernels, &options) == 0)
        engine_lane(&e, new_lane());
    return e;
}
/* The best level with the library, others with our own products, the plain twins. */
#define NUM_LEVELS 4
#define TWINS (NUM_LEVELS - 1)
static inline struct engine level_engine(int level, uint32_t threads)
{
    static const char *const levels[NUM_LEVELS] = {NULL, "avx2", "sse2", NULL};
    return new_engine(level == TWINS ? KERNEL_BACKEND_REFERENCE : KERNEL_BACKEND_BEST,
                      levels[level], threads);
}
static inline void free_engine(struct engine *e)
{
    if (e->lane)
        device_free(e->lane->device, e->scratch);
    free_lane(e->lane);
    kernels_free(e->kernels);
    *e = (struct engine){0};
}

/* FNV-1a of a case's name: a new case in the table does not change its numbers. */
static inline uint64_t seed_of(int which)
{
    uint64_t seed = 0xcbf29ce484222325u;
    for (const char *at = kernel_cases[which].name; *at != '\0'; at++)
        seed = (seed ^ (unsigned char)*at) * 0x100000001b3u;
    return seed;
}
static inline struct run run_case(const struct engine *e, int which, struct kernel_shapes shapes,
                                  enum kernel_dtype dtype, size_t misalignment)
{
    struct run run = {
        .seed = seed_of(which), .misalignment = misalignment, .device = e->lane->device};
    shapes.dtype = dtype;
    kernel_cases[which].run(e->kernels, e->lane, &shapes, &run);
    assert_int_equal(lane_settle(e->lane), 0);
    return run;
}

/* Printed by failing tests: the case, by name and shape. */
static inline void say_case(const char *what, int which, const struct kernel_shapes *s,
                            enum kernel_dtype dtype)
{
    print_error("%s: %s, %s, B %u T %u C %u F %u H %u K %u D %u V %u\n", what,
                kernel_cases[which].name, dtype == KERNEL_F32 ? "f32" : "bf16", s->batch, s->seq,
                s->dim, s->hidden, s->heads, s->kv_heads, s->head_dim, s->vocab);
}

static inline void same_bits(const struct run *got, const struct run *want, const char *what,
                             int which, int shape, enum kernel_dtype dtype)
{
    for (int i = 0; i < want->num_outputs; i++) {
        const struct buffer *a = &got->buffers[i], *b = &want->buffers[i];
        if (memcmp(a->data, b->data, b->count * kernel_dtype_bytes(b->dtype)) != 0) {
            say_case(what, which, &kernel_shapes[shape], dtype);
            fail();
        }
    }
}
/* Runs a case on both. */
static inline void same_case(const struct engine *a, const struct engine *b, const char *what,
                             int which, int shape, enum kernel_dtype dtype, size_t misalignment)
{
    struct run got = run_case(a, which, kernel_shapes[shape], dtype, misalignment);
    struct run want = run_case(b, which, kernel_shapes[shape], dtype, 0);
    same_bits(&got, &want, what, which, shape, dtype);
    free_run(&got);
    free_run(&want);
}

#endif
