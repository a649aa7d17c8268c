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
#include "proto/model_shape.h"

#define ROUNDS 15
#define OPS_MAX 64

struct bench {
    struct kernels *k;
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

static void forward(struct bench *b, struct tensors *t)
{
    struct kernels *k = b->k;
    const struct kernel_shapes *s = &b->s;
    uint32_t n = s->batch * s->seq, c = s->dim, f = s->hidden, h = s->heads * s->head_dim;
    uint32_t kv = s->kv_heads * s->head_dim;
    enum kernel_dtype d = b->dtype;
    double pairs = 2.0 * n * (s->seq + 1) * h; /* causal: two products of half the square */
    b->last = now_us(b);
    kernel_embedding(k, t->x, t->ids, t->head, n, c, d);
    lap(b, "embedding", 0);
    kernel_rmsnorm(k, t->normed, t->rstd, t->x, t->x, t->norm, n, c, 1e-5f, d);
    lap(b, "norm + residual", 0);
    kernel_linear(k, t->q, t->normed, t->wq, n, c, h, d);
    lap(b, "wq", 2.0 * n * c * h);
    kernel_linear(k, t->key, t->normed, t->wk, n, c, kv, d);
    lap(b, "wk", 2.0 * n * c * kv);
    kernel_rope(k, t->q, t->cosines, t->sines, NULL, s->batch, s->seq, s->heads, s->head_dim, false,
                d);
    lap(b, "rope q", 0);
    kernel_attention(k, t->attended, t->lse, t->q, t->key, t->value, NULL, s->batch, s->seq,
                     s->heads, s->kv_heads, s->head_dim, d);
    lap(b, "attention", pairs);
    kernel_linear(k, t->normed, t->attended, t->wo, n, h, c, d);
    lap(b, "wo", 2.0 * n * c * h);
    kernel_linear(k, t->gate, t->normed, t->w1, n, c, f, d);
    lap(b, "w1", 2.0 * n * c * f);
    kernel_swiglu(k, t->hidden, t->gate, t->up, (size_t)n * f, d);
    lap(b, "swiglu", 0);
    kernel_linear(k, t->normed, t->hidden, t->w2, n, f, c, d);
    lap(b, "w2", 2.0 * n * c * f);
    kernel_linear(k, t->logits, t->normed, t->head, n, c, s->vocab, d);
    lap(b, "head", 2.0 * n * c * s->vocab);
    kernel_cross_entropy(k, t->losses, t->logits, t->ids, n, s->vocab, 1e-3f, d);
    lap(b, "cross entropy", 0);
}

static void backward(struct bench *b, struct tensors *t)
{
    struct kernels *k = b->k;
    const struct kernel_shapes *s = &b->s;
    uint32_t n = s->batch * s->seq, c = s->dim, f = s->hidden, h = s->heads * s->head_dim;
    enum kernel_dtype d = b->dtype;
    double pairs = 5.0 * n * (s->seq + 1) * h;
    kernel_linear_backward_input(k, t->dnormed, t->logits, t->head, n, c, s->vocab, false, d);
    lap(b, "head dx", 2.0 * n * c * s->vocab);
    kernel_linear_backward_weight(k, t->dw, t->logits, t->normed, n, c, s->vocab, d);
    lap(b, "head dw", 2.0 * n * c * s->vocab);
    kernel_linear_backward_input(k, t->dhidden, t->dx, t->w2, n, f, c, false, d);
    lap(b, "w2 dx", 2.0 * n * c * f);
    kernel_linear_backward_weight(k, t->dw, t->dx, t->hidden, n, f, c, d);
    lap(b, "w2 dw", 2.0 * n * c * f);
    kernel_swiglu_backward(k, t->dgate, t->dup, t->dhidden, t->gate, t->up, (size_t)n * f, d);
    lap(b, "swiglu backward", 0);
    kernel_linear_backward_input(k, t->dnormed, t->dgate, t->w1, n, c, f, true, d);
    lap(b, "w1 dx, added", 2.0 * n * c * f);
    kernel_linear_backward_weight(k, t->dw, t->dgate, t->normed, n, c, f, d);
    lap(b, "w1 dw", 2.0 * n * c * f);
    kernel_rmsnorm_backward(k, t->dx, t->dw, t->dnormed, t->x, t->rstd, t->norm, n, c, d);
    lap(b, "norm backward", 0);
    kernel_attention_backward(k, t->dq, t->dkey, t->dvalue, t->dattended, t->attended, t->lse, t->q,
                              t->key, t->value, NULL, s->batch, s->seq, s->heads, s->kv_heads,
                              s->head_dim, d);
    lap(b, "attention backward", pairs);
    kernel_linear_backward_weight(k, t->dw, t->dq, t->normed, n, c, h, d);
    lap(b, "wq dw", 2.0 * n * c * h);
    kernel_embedding_backward(k, t->dw, t->ids, t->dx, n, c, s->vocab, d);
    lap(b, "embedding backward", 0);
}

/* On as many parameters as the embedding has. */
static void optimizer(struct bench *b, struct tensors *t)
{
    size_t count = (size_t)b->s.vocab * b->s.dim;
    struct kernel_adamw options = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 0.1f, 0.05f, 0};
    struct kernel_exact_sum sum = {0};
    kernel_fold(b->k, t->master, t->dw, count);
    lap(b, "fold", 0);
    kernel_sum_squares(b->k, &sum, t->dw, b->s.vocab, b->s.dim);
    lap(b, "sum of squares", 0);
    kernel_adamw(b->k, t->master, t->moments[0], t->moments[1], t->dw, count, &options);
    lap(b, "adamw", 0);
    kernel_convert(b->k, t->head, b->dtype, t->master, count);
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
    kernels_set_scratch(b.k, scratch, bytes);
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
