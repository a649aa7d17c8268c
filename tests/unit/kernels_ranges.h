/* kernels_ranges.h - attention of whole sequences, forward and backward, and of ranges of their
 * queries, on any back-end. The rows of a range must have the bits of the whole. */
#ifndef HOLDFAST_TESTS_KERNELS_RANGES_H
#define HOLDFAST_TESTS_KERNELS_RANGES_H

#include "tests/unit/kernels_cases.h"
#include "tests/unit/suite.h"

/* Attention of whole sequences, forward and backward, and the same by two ranges of queries. */
struct ranges {
    const struct engine *engine;
    struct kernel_shapes shapes;
    struct run run;
    char *q, *key, *value, *dout, *out, *dq, *dkey, *dvalue;
    float *lse;
    int32_t *starts; /* or NULL */
};

/* Rows [first, + rows) of each of `batch` tables of `all` rows. */
static inline void *copy_rows(struct ranges *r, const void *from, uint32_t first, uint32_t rows,
                              uint32_t all, size_t batch, size_t row_bytes)
{
    char *to = new_buffer(&r->run, batch * rows * row_bytes / sizeof(float) + 1, KERNEL_F32);
    for (size_t b = 0; b < batch; b++)
        memcpy(to + b * rows * row_bytes, (const char *)from + (b * all + first) * row_bytes,
               rows * row_bytes);
    return to;
}

static inline void attend(struct ranges *r, struct kernel_attention_backward a)
{
    a.key = r->key;
    a.value = r->value;
    a.batch = r->shapes.batch;
    a.seq = r->shapes.seq;
    a.heads = r->shapes.heads;
    a.kv_heads = r->shapes.kv_heads;
    a.head_dim = r->shapes.head_dim;
    a.dtype = r->shapes.dtype;
    struct kernel_attention forward = {.out = (void *)(uintptr_t)a.out,
                                       .lse = (float *)(uintptr_t)a.lse,
                                       .q = a.q,
                                       .key = a.key,
                                       .value = a.value,
                                       .starts = a.starts,
                                       .batch = a.batch,
                                       .seq = a.seq,
                                       .heads = a.heads,
                                       .kv_heads = a.kv_heads,
                                       .head_dim = a.head_dim,
                                       .queries = a.queries,
                                       .first = a.first,
                                       .dtype = a.dtype};
    kernel_attention(r->engine->kernels, r->engine->lane, &forward);
    kernel_attention_backward(r->engine->kernels, r->engine->lane, &a);
    assert_int_equal(lane_settle(r->engine->lane), 0);
}

static inline void whole_attention(struct ranges *r, bool has_documents)
{
    const struct kernel_shapes *s = &r->shapes;
    struct run *run = &r->run;
    r->q = random_buffer(run, QUERIES, s->dtype);
    r->key = random_buffer(run, KEYS, s->dtype);
    r->value = random_buffer(run, KEYS, s->dtype);
    r->dout = random_buffer(run, QUERIES, s->dtype);
    r->out = new_buffer(run, QUERIES, s->dtype);
    r->dq = new_buffer(run, QUERIES, s->dtype);
    r->dkey = new_buffer(run, KEYS, s->dtype);
    r->dvalue = new_buffer(run, KEYS, s->dtype);
    r->lse = new_buffer(run, ROWS * s->heads, KERNEL_F32);
    r->starts = NULL;
    if (has_documents)
        r->starts =
            (int32_t *)(uintptr_t)document_starts(r->engine->kernels, r->engine->lane, s, run);
    attend(r, (struct kernel_attention_backward){.dq = r->dq,
                                                 .dkey = r->dkey,
                                                 .dvalue = r->dvalue,
                                                 .dout = r->dout,
                                                 .out = r->out,
                                                 .lse = r->lse,
                                                 .q = r->q,
                                                 .starts = r->starts});
}

/* One range: its rows have the bits of the whole; sums continue from the range before. */
static inline bool range_agrees(struct ranges *r, uint32_t first, uint32_t rows, float *dkey,
                                float *dvalue)
{
    const struct kernel_shapes *s = &r->shapes;
    size_t row = (size_t)s->heads * s->head_dim * kernel_dtype_bytes(s->dtype), batch = s->batch;
    size_t bytes = batch * rows * row, lse_bytes = batch * s->heads * rows * sizeof(float);
    void *want_out = copy_rows(r, r->out, first, rows, s->seq, batch, row);
    void *want_dq = copy_rows(r, r->dq, first, rows, s->seq, batch, row);
    void *want_lse = copy_rows(r, r->lse, first, rows, s->seq, batch * s->heads, sizeof(float));
    void *out = new_buffer(&r->run, bytes / sizeof(float) + 1, KERNEL_F32);
    void *dq = new_buffer(&r->run, bytes / sizeof(float) + 1, KERNEL_F32);
    float *lse = new_buffer(&r->run, lse_bytes / sizeof(float), KERNEL_F32);
    struct kernel_attention_backward a = {
        .dq = dq,
        .dkey = dkey,
        .dvalue = dvalue,
        .dout = copy_rows(r, r->dout, first, rows, s->seq, batch, row),
        .out = out,
        .lse = lse,
        .q = copy_rows(r, r->q, first, rows, s->seq, batch, row),
        .queries = rows,
        .first = first,
        .is_partial = true,
        .accumulate = first > 0};
    if (r->starts != NULL)
        a.starts = copy_rows(r, r->starts, first, rows, s->seq, batch, sizeof(int32_t));
    attend(r, a);
    return memcmp(out, want_out, bytes) == 0 && memcmp(dq, want_dq, bytes) == 0 &&
           memcmp(lse, want_lse, lse_bytes) == 0;
}

static inline bool sums_agree(const struct ranges *r, const float *sums, const void *want)
{
    const struct kernel_shapes *s = &r->shapes;
    bool is_same = true;
    for (size_t i = 0; i < KEYS; i++) {
        float got = s->dtype == KERNEL_BF16 ? value_of(&(uint16_t){bf16_of(sums[i])}, 0, s->dtype)
                                            : sums[i];
        is_same = is_same && got == value_of(want, i, s->dtype);
    }
    return is_same;
}

/* Of two ranges, the second from `cut` on, where a tile ends; 0: of one. */
static inline bool ranges_have_the_bits(const struct engine *engine, struct kernel_shapes shapes,
                                        uint32_t cut, bool has_documents)
{
    const struct kernel_shapes *s = &shapes;
    struct ranges r = {
        .engine = engine, .shapes = shapes, .run = {.seed = 77, .device = engine->lane->device}};
    bool is_same = true;
    whole_attention(&r, has_documents);
    float *dkey = new_buffer(&r.run, KEYS, KERNEL_F32);
    float *dvalue = new_buffer(&r.run, KEYS, KERNEL_F32);
    if (cut > 0)
        is_same = range_agrees(&r, 0, cut, dkey, dvalue);
    is_same = range_agrees(&r, cut, s->seq - cut, dkey, dvalue) && is_same;
    is_same = is_same && sums_agree(&r, dkey, r.dkey) && sums_agree(&r, dvalue, r.dvalue);
    free_run(&r.run);
    return is_same;
}

#endif
