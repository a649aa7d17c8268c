/* kernels_products.c - our products, cut into tiles for the pool, beside single calls of the
 * library.
 *
 *     kernels_products
 *
 * Commands on stdin, each answered with {"gflops"}:
 *
 *     WHO KIND TYPE THREADS ROWS IN OUT       WHO ours|library, KIND forward|input|weight,
 *                                             TYPE f32|bf16
 *
 *     WHO attention TYPE 1 SEQ HEADS DIM      one sequence, one key head per head
 *
 * `library` is one call of oneDNN on the whole matrix, with THREADS threads of its own; its bits
 * depend on THREADS, ours do not. For attention it is only the two batched products, the whole
 * square and no softmax; both sides count the causal half. A command repeats the call for 30 ms.
 * With one thread the thread's CPU time counts, so that a busy machine disturbs less. */
#include <math.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/bench/bench.h"
#include "tests/unit/lane_bed.h"

#define SECONDS 0.03
#define BUFFER_BYTES ((size_t)112 << 20) /* 32000 x 768 floats, and more */
#define THREADS_MAX 16

struct command {
    char who[16], kind[16], type[16];
    uint32_t threads, rows, in, out;
};

static void *buffers[5];                            /* x or q, w or key, out, value, lse */
static struct kernels *engines[2][THREADS_MAX + 1]; /* of bf16, and of floats */
static struct lane *lanes[2][THREADS_MAX + 1];
static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void make_buffers(void)
{
    for (int i = 0; i < 5; i++) {
        buffers[i] = aligned_alloc(4096, BUFFER_BYTES);
        BENCH_TRY(buffers[i] == NULL, "no memory");
        memset(buffers[i], 0x3c, BUFFER_BYTES); /* a small number in both types */
    }
}

/* Floats as a new run has them: in chains. */
static struct kernels *ours(uint32_t threads, bool is_float)
{
    struct kernels **k = &engines[is_float][threads];
    if (*k)
        return *k;
    struct kernels_options options = {.num_threads = threads, .isa = getenv("KERNELS_ISA")};
    struct kernel_shapes shapes = {1, 1024, 768, 2048, 12, 12, 64, 32000, KERNEL_F32};
    BENCH_TRY(kernels_new(k, &options), "kernels_new");
    BENCH_TRY(is_float && kernels_chain_products(*k), "no chains");
    size_t bytes = kernels_scratch_bytes(*k, &shapes);
    void *scratch = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    BENCH_TRY(scratch == NULL, "no memory");
    lanes[is_float][threads] = new_lane();
    lane_set_scratch(lanes[is_float][threads], scratch, bytes);
    return *k;
}

static void call_ours(struct kernels *k, struct lane *lane, const struct command *c,
                      enum kernel_dtype type)
{
    if (strcmp(c->kind, "forward") == 0)
        POST(k, lane, linear, .out = buffers[2], .x = buffers[0], .w = buffers[1], .rows = c->rows,
             .in = c->in, .out_dim = c->out, .dtype = type);
    else if (strcmp(c->kind, "input") == 0)
        POST(k, lane, linear_backward_input, .dx = buffers[2], .dout = buffers[0], .w = buffers[1],
             .rows = c->rows, .in = c->in, .out_dim = c->out, .dtype = type);
    else if (strcmp(c->kind, "weight") == 0)
        POST(k, lane, linear_backward_weight, .dw = buffers[2], .dout = buffers[0], .x = buffers[1],
             .rows = c->rows, .in = c->in, .out_dim = c->out, .dtype = type);
    else
        POST(k, lane, attention, .out = buffers[2], .lse = buffers[4], .q = buffers[0],
             .key = buffers[1], .value = buffers[3], .batch = 1, .seq = c->rows, .heads = c->in,
             .kv_heads = c->in, .head_dim = c->out, .dtype = type);
}

/* A matmul of the library: sizes, strides and types of its three matrices. */
struct matmul {
    int num_dims;
    dnnl_dims_t size[3], stride[3];
    dnnl_data_type_t type[3];
};

struct call {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
};

static struct call new_call(const struct matmul *m, void *a, void *b, void *c)
{
    const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    void *handles[3] = {a, b, c};
    dnnl_memory_desc_t d[3];
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t pd;
    struct call call;
    for (int i = 0; i < 3; i++) {
        BENCH_TRY(dnnl_memory_desc_init_by_strides(&d[i], m->num_dims, m->size[i], m->type[i],
                                                   m->stride[i]),
                  "library");
        call.args[i].arg = names[i];
        BENCH_TRY(dnnl_memory_create(&call.args[i].memory, &d[i], engine, handles[i]), "library");
    }
    BENCH_TRY(dnnl_matmul_desc_init(&matmul, &d[0], &d[1], NULL, &d[2]), "library");
    BENCH_TRY(dnnl_primitive_desc_create(&pd, &matmul, NULL, engine, NULL), "library");
    BENCH_TRY(dnnl_primitive_create(&call.primitive, pd), "library");
    dnnl_primitive_desc_destroy(pd);
    return call;
}

static void free_call(struct call *call)
{
    dnnl_primitive_destroy(call->primitive);
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(call->args[i].memory);
}

static struct matmul matmul_of(const struct command *c, dnnl_data_type_t t)
{
    dnnl_dim_t n = c->rows, in = c->in, out = c->out;
    if (strcmp(c->kind, "forward") == 0)
        return (struct matmul){
            2, {{n, in}, {in, out}, {n, out}}, {{in, 1}, {1, in}, {out, 1}}, {t, t, t}};
    if (strcmp(c->kind, "input") == 0)
        return (struct matmul){
            2, {{n, out}, {out, in}, {n, in}}, {{out, 1}, {in, 1}, {in, 1}}, {t, t, t}};
    return (struct matmul){
        2, {{out, n}, {n, in}, {out, in}}, {{1, out}, {in, 1}, {in, 1}}, {t, t, dnnl_f32}};
}

/* Scores of every head, then their product with the values. */
static int library_calls(struct call *calls, const struct command *c, dnnl_data_type_t t)
{
    if (strcmp(c->kind, "attention") != 0) {
        struct matmul m = matmul_of(c, t);
        calls[0] = new_call(&m, buffers[0], buffers[1], buffers[2]);
        return 1;
    }
    dnnl_dim_t s = c->rows, h = c->in, d = c->out, row = h * d;
    struct matmul scores = {
        3, {{h, s, d}, {h, d, s}, {h, s, s}}, {{d, row, 1}, {d, 1, row}, {s * s, s, 1}}, {t, t, t}};
    struct matmul out = {
        3, {{h, s, s}, {h, s, d}, {h, s, d}}, {{s * s, s, 1}, {d, row, 1}, {d, row, 1}}, {t, t, t}};
    calls[0] = new_call(&scores, buffers[0], buffers[1], buffers[2]);
    calls[1] = new_call(&out, buffers[2], buffers[3], buffers[4]);
    return 2;
}

static double flops(const struct command *c)
{
    if (strcmp(c->kind, "attention") == 0)
        return 2.0 * c->rows * (c->rows + 1.0) * c->in * c->out;
    return 2.0 * c->rows * c->in * c->out;
}

static double seconds_of(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double measure(const struct command *c)
{
    bool bf16 = strcmp(c->type, "bf16") == 0, library = strcmp(c->who, "library") == 0;
    struct kernels *k = ours(c->threads, !bf16);
    struct call calls[2];
    int count = 0, times = 0;
    if (library) {
        omp_set_num_threads((int)c->threads);
        count = library_calls(calls, c, bf16 ? dnnl_bf16 : dnnl_f32);
    }
    double begin = 0, seconds = 0;
    for (times = -1; times < 1 || seconds < SECONDS; times++) {
        if (times == 0) /* the first call is warm-up */
            begin = seconds_of(c->threads);
        if (!library)
            call_ours(k, lanes[!bf16][c->threads], c, bf16 ? KERNEL_BF16 : KERNEL_F32);
        for (int i = 0; i < count; i++) {
            BENCH_TRY(dnnl_primitive_execute(calls[i].primitive, stream, 3, calls[i].args),
                      "library");
            BENCH_TRY(dnnl_stream_wait(stream), "library");
        }
        seconds = times < 0 ? 0 : seconds_of(c->threads) - begin;
    }
    for (int i = 0; i < count; i++)
        free_call(&calls[i]);
    return flops(c) * times / seconds * 1e-9;
}

int main(void)
{
    struct command c;
    char line[256];
    make_buffers();
    BENCH_TRY(dnnl_engine_create(&engine, dnnl_cpu, 0), "library");
    BENCH_TRY(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "library");
    while (fgets(line, sizeof(line), stdin)) {
        int fields = sscanf(line, "%15s %15s %15s %u %u %u %u", c.who, c.kind, c.type, &c.threads,
                            &c.rows, &c.in, &c.out);
        BENCH_TRY(fields != 7 || c.threads < 1 || c.threads > THREADS_MAX, "a bad command");
        printf("{\"gflops\": %.1f}\n", measure(&c));
        fflush(stdout);
    }
    return 0;
}
