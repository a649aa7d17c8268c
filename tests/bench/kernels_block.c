/* kernels_block.c - what each operation of a transformer block costs, forward and backward.
 *
 * Method: the operations of one block of the debug model (C 256, H 16, K 4, D 16, F 768, V 4096, T
 * 256) and of a 110M model (C 768, H = K 12, D 64, F 2048, V 32000, T 1024), each called in turn;
 * the median of ROUNDS rounds is printed in microseconds, with its share and, for products and
 * attention, GFLOP/s (attention counted causal). Usage: kernels_block [threads] [f32|bf16] [batch]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "proto/model/model_shape.h"
#include "tests/unit/lane_bed.h"

#define ROUNDS 15
#define OPS_MAX 64

struct bench {
    struct kernels *k;
    struct lane *lane;
    struct kernel_shapes s;
    enum kernel_dtype dtype;
    struct {
        const char *name;
        double flops, us[ROUNDS];
    } ops[OPS_MAX];
    int num_ops, round;
    bool cpu_time; /* with one thread: a busy machine disturbs less */
    double last;
};

static double now_us(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void lap(struct bench *b, const char *name, double flops)
{
    double now = now_us(b);
    b->ops[b->num_ops].name = name;
    b->ops[b->num_ops].flops = flops;
    b->ops[b->num_ops++].us[b->round] = now - b->last;
    b->last = now_us(b);
}

/* Values small enough that nothing overflows, and not zero. */
static void *tensor(size_t count, enum kernel_dtype dtype)
{
    size_t bytes = (count * kernel_dtype_bytes(dtype) + 63) / 64 * 64;
    char *data = aligned_alloc(64, bytes);
    if (!data)
        exit(1);
    for (size_t i = 0; i < count; i++) {
        float value = 0.02f * (float)((int)(i * 2654435761u >> 24) - 128) / 16;
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        if (dtype == KERNEL_F32)
            memcpy(data + 4 * i, &value, 4);
        else
            memcpy(data + 2 * i, (char *)&bits + 2, 2);
    }
    return data;
}

struct tensors {
    void *x, *normed, *q, *key, *value, *attended, *gate, *up, *hidden, *logits;
    void *dx, *dnormed, *dq, *dkey, *dvalue, *dattended, *dgate, *dup, *dhidden;
    void *wq, *wk, *wo, *w1, *w2, *head, *norm;
    float *rstd, *lse, *losses, *dw, *cosines, *sines, *moments[2], *master;
    int32_t *ids;
};

static void make(struct tensors *t, const struct kernel_shapes *s, enum kernel_dtype d)
{
    size_t n = (size_t)s->batch * s->seq, c = s->dim, f = s->hidden;
    size_t h = (size_t)s->heads * s->head_dim, kv = (size_t)s->kv_heads * s->head_dim;
    void **wide[] = {&t->x, &t->normed, &t->dx, &t->dnormed};
    void **query[] = {&t->q, &t->attended, &t->dq, &t->dattended};
    void **keys[] = {&t->key, &t->value, &t->dkey, &t->dvalue};
    void **mlp[] = {&t->gate, &t->up, &t->hidden, &t->dgate, &t->dup, &t->dhidden};
    for (int i = 0; i < 4; i++) {
        *wide[i] = tensor(n * c, d);
        *query[i] = tensor(n * h, d);
        *keys[i] = tensor(n * kv, d);
    }
    for (int i = 0; i < 6; i++)
        *mlp[i] = tensor(n * f, d);
    t->logits = tensor(n * s->vocab, d);
    t->wq = tensor(h * c, d);
    t->wk = tensor(kv * c, d);
    t->wo = tensor(h * c, d);
    t->w1 = tensor(f * c, d);
    t->w2 = tensor(f * c, d);
    t->head = tensor(s->vocab * c, d);
    t->norm = tensor(c, d);
    t->rstd = tensor(n, KERNEL_F32);
    t->lse = tensor(n * s->heads, KERNEL_F32);
    t->losses = tensor(n, KERNEL_F32);
    t->dw = tensor(s->vocab * c, KERNEL_F32);
    t->moments[0] = tensor(s->vocab * c, KERNEL_F32);
    t->moments[1] = tensor(s->vocab * c, KERNEL_F32);
    t->master = tensor(s->vocab * c, KERNEL_F32);
    t->cosines = tensor((size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    t->sines = tensor((size_t)s->seq * s->head_dim / 2, KERNEL_F32);
    double frequencies[MODEL_HEAD_DIM_MAX / 2];
    model_shape_frequencies(frequencies,
                            &(struct model_shape){.head_dim = s->head_dim, .rope_theta = 10000});
    kernel_rope_table(t->cosines, t->sines, s->seq, s->head_dim, frequencies);
    t->ids = tensor(n, KERNEL_F32);
    for (size_t i = 0; i < n; i++)
        t->ids[i] = (int32_t)(i * 7919 % s->vocab);
    for (size_t i = 0; i < s->vocab * c; i++)
        t->moments[1][i] = 1;
}

/* ---- What a block calls; of [N,I] and a weight [O,I] ---- */

static void linear(struct bench *b, const char *name, void *out, const void *x, const void *w,
                   uint32_t in, uint32_t out_dim)
{
    uint32_t rows = b->s.batch * b->s.seq;
    struct kernel_linear args = {
        .out = out, .x = x, .w = w, .rows = rows, .in = in, .out_dim = out_dim, .dtype = b->dtype};
    kernel_linear(b->k, b->lane, &args);
    lap(b, name, 2.0 * rows * in * out_dim);
}

static void linear_dx(struct bench *b, const char *name, void *dx, const void *dout, const void *w,
                      uint32_t in, uint32_t out_dim)
{
    uint32_t rows = b->s.batch * b->s.seq;
    struct kernel_linear_backward_input args = {.dx = dx,
                                                .dout = dout,
                                                .w = w,
                                                .rows = rows,
                                                .in = in,
                                                .out_dim = out_dim,
                                                .accumulate = strstr(name, "added") != NULL,
                                                .dtype = b->dtype};
    kernel_linear_backward_input(b->k, b->lane, &args);
    lap(b, name, 2.0 * rows * in * out_dim);
}

static void linear_dw(struct bench *b, const char *name, float *dw, const void *dout, const void *x,
                      uint32_t in, uint32_t out_dim)
{
    uint32_t rows = b->s.batch * b->s.seq;
    struct kernel_linear_backward_weight args = {.dw = dw,
                                                 .dout = dout,
                                                 .x = x,
                                                 .rows = rows,
                                                 .in = in,
                                                 .out_dim = out_dim,
                                                 .dtype = b->dtype};
    kernel_linear_backward_weight(b->k, b->lane, &args);
    lap(b, name, 2.0 * rows * in * out_dim);
}

static void embedding(struct bench *b, struct tensors *t)
{
    struct kernel_embedding args = {t->x,     t->ids,  t->head, b->s.batch * b->s.seq,
                                    b->s.dim, b->dtype};
    kernel_embedding(b->k, b->lane, &args);
    lap(b, "embedding", 0);
}

static void norm(struct bench *b, struct tensors *t)
{
    struct kernel_rmsnorm args = {.out = t->normed,
                                  .rstd = t->rstd,
                                  .x = t->x,
                                  .residual = t->x,
                                  .weight = t->norm,
                                  .rows = b->s.batch * b->s.seq,
                                  .dim = b->s.dim,
                                  .eps = 1e-5f,
                                  .dtype = b->dtype};
    kernel_rmsnorm(b->k, b->lane, &args);
    lap(b, "norm + residual", 0);
}

static void norm_backward(struct bench *b, struct tensors *t)
{
    struct kernel_rmsnorm_backward args = {.dx = t->dx,
                                           .dweight = t->dw,
                                           .dout = t->dnormed,
                                           .x = t->x,
                                           .rstd = t->rstd,
                                           .weight = t->norm,
                                           .rows = b->s.batch * b->s.seq,
                                           .dim = b->s.dim,
                                           .dtype = b->dtype};
    kernel_rmsnorm_backward(b->k, b->lane, &args);
    lap(b, "norm backward", 0);
}

static void rope(struct bench *b, struct tensors *t)
{
    struct kernel_rope args = {.x = t->q,
                               .cos = t->cosines,
                               .sin = t->sines,
                               .batch = b->s.batch,
                               .seq = b->s.seq,
                               .heads = b->s.heads,
                               .head_dim = b->s.head_dim,
                               .dtype = b->dtype};
    kernel_rope(b->k, b->lane, &args);
    lap(b, "rope q", 0);
}

/* Causal: half of the square. */
static double attention_flops(const struct bench *b, double products)
{
    return products * b->s.batch * b->s.seq * (b->s.seq + 1) * b->s.heads * b->s.head_dim;
}

static void attention(struct bench *b, struct tensors *t)
{
    struct kernel_attention args = {.out = t->attended,
                                    .lse = t->lse,
                                    .q = t->q,
                                    .key = t->key,
                                    .value = t->value,
                                    .batch = b->s.batch,
                                    .seq = b->s.seq,
                                    .heads = b->s.heads,
                                    .kv_heads = b->s.kv_heads,
                                    .head_dim = b->s.head_dim,
                                    .dtype = b->dtype};
    kernel_attention(b->k, b->lane, &args);
    lap(b, "attention", attention_flops(b, 2));
}

static void attention_backward(struct bench *b, struct tensors *t)
{
    struct kernel_attention_backward args = {.dq = t->dq,
                                             .dkey = t->dkey,
                                             .dvalue = t->dvalue,
                                             .dout = t->dattended,
                                             .out = t->attended,
                                             .lse = t->lse,
                                             .q = t->q,
                                             .key = t->key,
                                             .value = t->value,
                                             .batch = b->s.batch,
                                             .seq = b->s.seq,
                                             .heads = b->s.heads,
                                             .kv_heads = b->s.kv_heads,
                                             .head_dim = b->s.head_dim,
                                             .dtype = b->dtype};
    kernel_attention_backward(b->k, b->lane, &args);
    lap(b, "attention backward", attention_flops(b, 5));
}

static void swiglu(struct bench *b, struct tensors *t)
{
    size_t count = (size_t)b->s.batch * b->s.seq * b->s.hidden;
    kernel_swiglu(
        b->k, b->lane,
        &(struct kernel_swiglu){
            .out = t->hidden, .gate = t->gate, .up = t->up, .count = count, .dtype = b->dtype});
    lap(b, "swiglu", 0);
}

static void swiglu_backward(struct bench *b, struct tensors *t)
{
    struct kernel_swiglu_backward args = {.dgate = t->dgate,
                                          .dup = t->dup,
                                          .dout = t->dhidden,
                                          .gate = t->gate,
                                          .up = t->up,
                                          .count = (size_t)b->s.batch * b->s.seq * b->s.hidden,
                                          .dtype = b->dtype};
    kernel_swiglu_backward(b->k, b->lane, &args);
    lap(b, "swiglu backward", 0);
}

static void cross_entropy(struct bench *b, struct tensors *t)
{
    struct kernel_cross_entropy args = {.losses = t->losses,
                                        .logits = t->logits,
                                        .targets = t->ids,
                                        .scale = &(float){1e-3f},
                                        .rows = b->s.batch * b->s.seq,
                                        .vocab = b->s.vocab,
                                        .dtype = b->dtype};
    kernel_cross_entropy(b->k, b->lane, &args);
    lap(b, "cross entropy", 0);
}

static void embedding_backward(struct bench *b, struct tensors *t)
{
    struct kernel_embedding_backward args = {.dtable = t->dw,
                                             .tokens = t->ids,
                                             .dout = t->dx,
                                             .rows = b->s.batch * b->s.seq,
                                             .dim = b->s.dim,
                                             .vocab = b->s.vocab,
                                             .dtype = b->dtype};
    kernel_embedding_backward(b->k, b->lane, &args);
    lap(b, "embedding backward", 0);
}

static void forward(struct bench *b, struct tensors *t)
{
    const struct kernel_shapes *s = &b->s;
    uint32_t c = s->dim, f = s->hidden, h = s->heads * s->head_dim;
    b->last = now_us(b);
    embedding(b, t);
    norm(b, t);
    linear(b, "wq", t->q, t->normed, t->wq, c, h);
    linear(b, "wk", t->key, t->normed, t->wk, c, s->kv_heads * s->head_dim);
    rope(b, t);
    attention(b, t);
    linear(b, "wo", t->normed, t->attended, t->wo, h, c);
    linear(b, "w1", t->gate, t->normed, t->w1, c, f);
    swiglu(b, t);
    linear(b, "w2", t->normed, t->hidden, t->w2, f, c);
    linear(b, "head", t->logits, t->normed, t->head, c, s->vocab);
    cross_entropy(b, t);
}

static void backward(struct bench *b, struct tensors *t)
{
    uint32_t c = b->s.dim, f = b->s.hidden, h = b->s.heads * b->s.head_dim, v = b->s.vocab;
    linear_dx(b, "head dx", t->dnormed, t->logits, t->head, c, v);
    linear_dw(b, "head dw", t->dw, t->logits, t->normed, c, v);
    linear_dx(b, "w2 dx", t->dhidden, t->dx, t->w2, f, c);
    linear_dw(b, "w2 dw", t->dw, t->dx, t->hidden, f, c);
    swiglu_backward(b, t);
    linear_dx(b, "w1 dx, added", t->dnormed, t->dgate, t->w1, c, f);
    linear_dw(b, "w1 dw", t->dw, t->dgate, t->normed, c, f);
    norm_backward(b, t);
    attention_backward(b, t);
    linear_dw(b, "wq dw", t->dw, t->dq, t->normed, c, h);
    embedding_backward(b, t);
}

/* On as many parameters as the embedding has. */
static void optimizer(struct bench *b, struct tensors *t)
{
    size_t count = (size_t)b->s.vocab * b->s.dim;
    struct kernel_adamw_numbers options = {.lr = 1e-4f,
                                           .eps = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .grad_scale = 1,
                                           .keep1 = 1,
                                           .rest1 = 0.1f,
                                           .keep2 = 1,
                                           .rest2 = 0.05f,
                                           .bias1 = 0.1f,
                                           .bias2 = 0.05f,
                                           .noise = {1, 2},
                                           .is_mean = 1};
    struct kernel_exact_sum sum = {0};
    kernel_fold(b->k, b->lane,
                &(struct kernel_fold){.acc = t->master, .leaf = t->dw, .count = count});
    lap(b, "fold", 0);
    const struct kernel_squares_piece rows = {t->dw, b->s.dim, b->s.vocab};
    kernel_sum_squares(
        b->k, b->lane,
        &(struct kernel_sum_squares){.sum = &sum, .pieces = &rows, .rows = b->s.vocab, .num = 1});
    lap(b, "sum of squares", 0);
    struct kernel_adamw_piece piece = {.param = t->master,
                                       .exp_avg = t->moments[0],
                                       .exp_avg_sq = t->moments[1],
                                       .grad = t->dw,
                                       .count = count,
                                       .numbers = &options,
                                       .columns = b->s.dim};
    struct kernel_adamw update = {.pieces = &piece};
    kernel_adamw_add(&update, count);
    kernel_adamw(b->k, b->lane, &update);
    lap(b, "adamw", 0);
    update.moments = KERNEL_BF16; /* in half of the same memory */
    kernel_adamw(b->k, b->lane, &update);
    lap(b, "adamw, moments of bf16", 0);
    kernel_convert(b->k, b->lane,
                   &(struct kernel_convert){
                       .out = t->head, .out_dtype = b->dtype, .in = t->master, .count = count});
    lap(b, "convert", 0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(struct bench *b)
{
    double total = 0;
    for (int i = 0; i < b->num_ops; i++) {
        qsort(b->ops[i].us, ROUNDS, sizeof(double), by_value);
        total += b->ops[i].us[ROUNDS / 2];
    }
    for (int i = 0; i < b->num_ops; i++) {
        double us = b->ops[i].us[ROUNDS / 2];
        printf("  %-20s %9.1f us %5.1f %%", b->ops[i].name, us, 100 * us / total);
        if (b->ops[i].flops > 0)
            printf("  %6.1f GFLOP/s", b->ops[i].flops / us * 1e-3);
        printf("\n");
    }
    printf("  %-20s %9.1f us\n", "sum", total);
}

static int measure(const char *name, struct kernel_shapes shapes, uint32_t threads)
{
    static struct bench b;
    struct kernels_options options = {.num_threads = threads, .isa = getenv("KERNELS_ISA")};
    struct tensors t;
    b = (struct bench){.s = shapes, .dtype = shapes.dtype, .cpu_time = threads == 1};
    if (kernels_new(&b.k, &options) != 0)
        return 1;
    size_t bytes = kernels_scratch_bytes(b.k, &shapes);
    void *scratch = tensor(bytes / sizeof(float), KERNEL_F32);
    b.lane = new_lane();
    lane_set_scratch(b.lane, scratch, bytes);
    make(&t, &shapes, b.dtype);
    printf("%s, %s, B %u T %u, %u threads, %s, scratch %.1f MiB\n", name,
           b.dtype == KERNEL_F32 ? "f32" : "bf16", shapes.batch, shapes.seq, threads,
           kernels_describe(b.k), (double)bytes / (1 << 20));
    for (b.round = -1; b.round < ROUNDS; b.round++) {
        int round = b.round;
        b.round = round < 0 ? 0 : round; /* the first warms up and is overwritten */
        b.num_ops = 0;
        forward(&b, &t);
        backward(&b, &t);
        optimizer(&b, &t);
        b.round = round;
    }
    report(&b);
    free_lane(b.lane);
    kernels_free(b.k);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    enum kernel_dtype dtype = argc > 2 && strcmp(argv[2], "bf16") == 0 ? KERNEL_BF16 : KERNEL_F32;
    uint32_t batch = argc > 3 ? (uint32_t)atoi(argv[3]) : 2;
    return measure("debug model",
                   (struct kernel_shapes){batch, 256, 256, 768, 16, 4, 16, 4096, dtype}, threads) ||
           measure("110M", (struct kernel_shapes){1, 1024, 768, 2048, 12, 12, 64, 32000, dtype},
                   threads);
}
