/* kernels.c - the functions of kernels.h: choose a back-end, check arguments, cut into items, run.
 *
 * Back-ends, in order of preference: the highest ISA level that both the program and the CPU have,
 * with the library for products; a lower level asked for by name, with our own products, so that
 * its results are the same on every machine that has the level; the plain C of reference.c when
 * asked for.
 *
 * Scratch is the caller's: first what an operation shares between threads, then an equal piece for
 * each thread. kernels_scratch_bytes is the largest that any operation asks for at the given
 * shapes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "proto/report.h"

struct kernels {
    const struct kernel_ops *ops;
    struct library *library; /* NULL: products are ops->product */
    struct pool *pool;
    char *scratch;
    size_t scratch_bytes;
    struct kernel_exact_sum *partial; /* one per thread */
    char description[128];
};

_Noreturn void kernels_require_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: requirement not met: %s\n", file, line, condition);
    abort();
}

/* ---- Life ---- */

static bool cpu_has(const struct kernel_ops *ops)
{
    __builtin_cpu_init();
    if (ops == &kernel_ops_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && cpu_has(&kernel_ops_avx2);
    if (ops == &kernel_ops_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    return true;
}

/* ERR_INVALID: an unknown name, or a level that this CPU lacks. */
static int choose_ops(const struct kernel_ops **out, bool *best_out, const char *isa)
{
    static const struct kernel_ops *const levels[] = {&kernel_ops_avx512, &kernel_ops_avx2,
                                                      &kernel_ops_sse2};
    const struct kernel_ops *best = NULL;
    *out = NULL;
    for (int i = 0; i < 3; i++) {
        if (!cpu_has(levels[i]))
            continue;
        best = best ? best : levels[i];
        if (!*out && (!isa || strcmp(isa, levels[i]->name) == 0))
            *out = levels[i];
    }
    *best_out = *out == best;
    return *out ? 0 : ERR_INVALID;
}

/* ERR_INVALID: no threads, too many, or an ISA level that is unknown or that this CPU lacks.
 * ERR_MEMORY, ERR_BUSY: no memory, no threads to be had. */
int kernels_new(struct kernels **out, const struct kernels_options *options)
{
    *out = NULL;
    if (options->num_threads < 1 || options->num_threads > THREADS_MAX)
        return ERR_INVALID;
    struct kernels *k = calloc(1, sizeof(*k));
    if (!k)
        return ERR_MEMORY;
    bool best = false;
    int error = 0;
    if (options->backend == KERNEL_BACKEND_REFERENCE)
        k->ops = &kernel_ops_reference;
    else
        error = choose_ops(&k->ops, &best, options->isa);
    if (error == 0)
        error = pool_new(&k->pool, options->num_threads);
    if (error == 0 && best)
        error = library_new(&k->library, options->num_threads);
    if (error == 0 && !(k->partial = calloc(options->num_threads, sizeof(*k->partial))))
        error = ERR_MEMORY;
    if (error != 0) {
        kernels_free(k);
        return error;
    }
    snprintf(k->description, sizeof(k->description), "%s, products by %s", k->ops->name,
             k->library ? library_describe(k->library) : "own code");
    *out = k;
    return 0;
}

void kernels_free(struct kernels *k)
{
    if (!k)
        return;
    pool_free(k->pool);
    library_free(k->library);
    free(k->partial);
    free(k);
}

const char *kernels_describe(const struct kernels *k)
{
    return k->description;
}

/* ---- Scratch and items ---- */

static size_t norm_scratch(uint32_t rows, uint32_t dim)
{
    return round_up(divide_up(rows, NORM_ROWS) * dim * sizeof(float), 64);
}

size_t kernels_scratch_bytes(const struct kernels *k, const struct kernel_shapes *s)
{
    struct attention_args attention = {.batch = s->batch,
                                       .seq = s->seq,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim};
    size_t needs[] = {attention_scratch(&attention), loss_scratch(s->vocab), product_scratch(),
                      k->library ? LIBRARY_SCRATCH : 0};
    size_t thread = 0, shared = norm_scratch(s->batch * s->seq, s->dim);
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        thread = needs[i] > thread ? needs[i] : thread;
    thread = round_up(thread, 64) * pool_threads(k->pool);
    return thread > shared ? thread : shared;
}

void kernels_set_scratch(struct kernels *k, void *scratch, size_t bytes)
{
    REQUIRE((uintptr_t)scratch % 64 == 0);
    k->scratch = scratch;
    k->scratch_bytes = bytes;
}

/* Runs items that each need `bytes` of scratch for their thread. */
static void run(struct kernels *k, item_fn *fn, const void *args, size_t items, size_t bytes)
{
    size_t stride = round_up(bytes, 64);
    REQUIRE(items <= UINT32_MAX);
    REQUIRE(stride * pool_threads(k->pool) <= k->scratch_bytes);
    pool_run(k->pool, fn, args, (uint32_t)items, k->scratch, stride);
}

/* ---- Operations, in the order of kernels.h ---- */

void kernel_embedding(struct kernels *k, void *out, const int32_t *tokens, const void *table,
                      uint32_t rows, uint32_t dim, enum kernel_dtype dtype)
{
    struct embedding_args args = {
        .out = out, .tokens = tokens, .table = table, .rows = rows, .dim = dim, .dtype = dtype};
    run(k, k->ops->embedding, &args, divide_up(rows, NORM_ROWS), 0);
}

void kernel_embedding_backward(struct kernels *k, float *dtable, const int32_t *tokens,
                               const void *dout, uint32_t rows, uint32_t dim, uint32_t vocab,
                               enum kernel_dtype dtype)
{
    struct embedding_args args = {.dtable = dtable,
                                  .tokens = tokens,
                                  .dout = dout,
                                  .rows = rows,
                                  .dim = dim,
                                  .vocab = vocab,
                                  .dtype = dtype};
    run(k, k->ops->embedding_backward, &args, divide_up(dim, COLUMN_ITEM), 0);
}

void kernel_rmsnorm(struct kernels *k, void *out, float *rstd, void *x, const void *residual,
                    const void *weight, uint32_t rows, uint32_t dim, float eps,
                    enum kernel_dtype dtype)
{
    struct norm_args args = {.out = out,
                             .rstd = rstd,
                             .x = x,
                             .residual = residual,
                             .weight = weight,
                             .rows = rows,
                             .dim = dim,
                             .eps = eps,
                             .dtype = dtype};
    run(k, k->ops->norm, &args, divide_up(rows, NORM_ROWS), 0);
}

void kernel_rmsnorm_backward(struct kernels *k, void *dx, float *dweight, const void *dout,
                             const void *x, const float *rstd, const void *weight, uint32_t rows,
                             uint32_t dim, enum kernel_dtype dtype)
{
    struct norm_args args = {.dx = dx,
                             .dweight = dweight,
                             .dout = dout,
                             .x_in = x,
                             .rstd_in = rstd,
                             .weight = weight,
                             .partial = (float *)k->scratch,
                             .rows = rows,
                             .dim = dim,
                             .dtype = dtype};
    REQUIRE(norm_scratch(rows, dim) <= k->scratch_bytes);
    run(k, k->ops->norm_backward, &args, divide_up(rows, NORM_ROWS), 0);
    run(k, k->ops->norm_dweight, &args, divide_up(dim, COLUMN_ITEM), 0);
}

static void product(struct kernels *k, const struct product_args *args)
{
    struct library_product product;
    size_t items = divide_up(args->m, args->item_rows);
    REQUIRE(args->m > 0 && args->n > 0 && args->k > 0);
    if (k->library && library_prepare(&product, k->library, args))
        run(k, library_product_item, &product, items, LIBRARY_SCRATCH);
    else
        run(k, k->ops->product, args, items, product_scratch());
}

void kernel_linear(struct kernels *k, void *out, const void *x, const void *w, uint32_t rows,
                   uint32_t in, uint32_t out_dim, enum kernel_dtype dtype)
{
    struct product_args args = {.c = out,
                                .a = x,
                                .b = w,
                                .m = rows,
                                .n = out_dim,
                                .k = in,
                                .item_rows = PRODUCT_ROWS,
                                .a_row = in,
                                .a_column = 1,
                                .b_row = 1,
                                .b_column = in,
                                .in = dtype,
                                .out = dtype};
    product(k, &args);
}

void kernel_linear_backward_input(struct kernels *k, void *dx, const void *dout, const void *w,
                                  uint32_t rows, uint32_t in, uint32_t out_dim, bool accumulate,
                                  enum kernel_dtype dtype)
{
    struct product_args args = {.c = dx,
                                .a = dout,
                                .b = w,
                                .m = rows,
                                .n = in,
                                .k = out_dim,
                                .item_rows = PRODUCT_ROWS,
                                .a_row = out_dim,
                                .a_column = 1,
                                .b_row = in,
                                .b_column = 1,
                                .accumulate = accumulate,
                                .in = dtype,
                                .out = dtype};
    product(k, &args);
}

void kernel_linear_backward_weight(struct kernels *k, float *dw, const void *dout, const void *x,
                                   uint32_t rows, uint32_t in, uint32_t out_dim,
                                   enum kernel_dtype dtype)
{
    struct product_args args = {.c = dw,
                                .a = dout,
                                .b = x,
                                .m = out_dim,
                                .n = in,
                                .k = rows,
                                .item_rows = PRODUCT_ROWS_WEIGHT,
                                .a_row = 1,
                                .a_column = out_dim,
                                .b_row = in,
                                .b_column = 1,
                                .in = dtype,
                                .out = KERNEL_F32};
    product(k, &args);
}

void kernel_rope_table(float *cos_out, float *sin_out, uint32_t seq, uint32_t head_dim,
                       const double *frequencies)
{
    for (uint32_t t = 0; t < seq; t++) {
        for (uint32_t i = 0; i < head_dim / 2; i++) {
            double angle = t * frequencies[i];
            cos_out[(size_t)t * (head_dim / 2) + i] = (float)cos(angle);
            sin_out[(size_t)t * (head_dim / 2) + i] = (float)sin(angle);
        }
    }
}

void kernel_rope(struct kernels *k, void *x, const float *cos, const float *sin,
                 const int32_t *starts, uint32_t batch, uint32_t seq, uint32_t heads,
                 uint32_t head_dim, bool inverse, enum kernel_dtype dtype)
{
    struct rope_args args = {.x = x,
                             .cos = cos,
                             .sin = sin,
                             .starts = starts,
                             .batch = batch,
                             .seq = seq,
                             .heads = heads,
                             .head_dim = head_dim,
                             .inverse = inverse,
                             .dtype = dtype};
    REQUIRE(head_dim % 2 == 0);
    run(k, k->ops->rope, &args, divide_up((size_t)batch * seq, ROPE_ROWS), 0);
}

void kernel_attention(struct kernels *k, void *out, float *lse, const void *q, const void *key,
                      const void *value, const int32_t *starts, uint32_t batch, uint32_t seq,
                      uint32_t heads, uint32_t kv_heads, uint32_t head_dim, enum kernel_dtype dtype)
{
    struct attention_args args = {.out = out,
                                  .lse = lse,
                                  .q = q,
                                  .key = key,
                                  .value = value,
                                  .starts = starts,
                                  .batch = batch,
                                  .seq = seq,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .dtype = dtype};
    REQUIRE(kv_heads > 0 && heads % kv_heads == 0);
    run(k, k->ops->attention, &args, attention_items(&args, false), attention_scratch(&args));
}

void kernel_attention_backward(struct kernels *k, void *dq, void *dkey, void *dvalue,
                               const void *dout, const void *out, const float *lse, const void *q,
                               const void *key, const void *value, const int32_t *starts,
                               uint32_t batch, uint32_t seq, uint32_t heads, uint32_t kv_heads,
                               uint32_t head_dim, enum kernel_dtype dtype)
{
    struct attention_args args = {.dq = dq,
                                  .dkey = dkey,
                                  .dvalue = dvalue,
                                  .dout = dout,
                                  .out_in = out,
                                  .lse_in = lse,
                                  .q = q,
                                  .key = key,
                                  .value = value,
                                  .starts = starts,
                                  .batch = batch,
                                  .seq = seq,
                                  .heads = heads,
                                  .kv_heads = kv_heads,
                                  .head_dim = head_dim,
                                  .dtype = dtype};
    REQUIRE(kv_heads > 0 && heads % kv_heads == 0);
    run(k, k->ops->attention_backward, &args, attention_items(&args, true),
        attention_scratch(&args));
}

void kernel_swiglu(struct kernels *k, void *out, const void *gate, const void *up, size_t count,
                   enum kernel_dtype dtype)
{
    struct swiglu_args args = {.out = out, .gate = gate, .up = up, .count = count, .dtype = dtype};
    run(k, k->ops->swiglu, &args, divide_up(count, FLAT_ITEM), 0);
}

void kernel_swiglu_backward(struct kernels *k, void *dgate, void *dup, const void *dout,
                            const void *gate, const void *up, size_t count, enum kernel_dtype dtype)
{
    struct swiglu_args args = {.dgate = dgate,
                               .dup = dup,
                               .dout = dout,
                               .gate = gate,
                               .up = up,
                               .count = count,
                               .dtype = dtype};
    run(k, k->ops->swiglu_backward, &args, divide_up(count, FLAT_ITEM), 0);
}

void kernel_cross_entropy(struct kernels *k, float *losses, void *logits, const int32_t *targets,
                          uint32_t rows, uint32_t vocab, float scale, enum kernel_dtype dtype)
{
    struct loss_args args = {.losses = losses,
                             .logits = logits,
                             .targets = targets,
                             .rows = rows,
                             .vocab = vocab,
                             .scale = scale,
                             .dtype = dtype};
    run(k, k->ops->loss, &args, divide_up(rows, LOSS_ROWS), loss_scratch(vocab));
}

void kernel_add(struct kernels *k, void *y, const void *x, size_t count, enum kernel_dtype dtype)
{
    struct flat_args args = {.y = y, .x = x, .count = count, .dtype = dtype};
    run(k, k->ops->add, &args, divide_up(count, FLAT_ITEM), 0);
}

void kernel_fold(struct kernels *k, float *acc, const float *leaf, size_t count)
{
    struct flat_args args = {.y = acc, .x = leaf, .count = count};
    run(k, k->ops->fold, &args, divide_up(count, FLAT_ITEM), 0);
}

void kernel_convert(struct kernels *k, void *out, enum kernel_dtype out_dtype, const float *in,
                    size_t count)
{
    struct flat_args args = {.y = out, .x = in, .count = count, .dtype = out_dtype};
    run(k, k->ops->convert, &args, divide_up(count, FLAT_ITEM), 0);
}

void kernel_sum_squares(struct kernels *k, struct kernel_exact_sum *sum, const float *x,
                        uint64_t rows, uint64_t width)
{
    uint32_t threads = pool_threads(k->pool);
    struct squares_args args = {.partial = k->partial, .x = x, .rows = rows, .width = width};
    memset(k->partial, 0, threads * sizeof(*k->partial));
    run(k, k->ops->squares, &args, divide_up(rows, SQUARES_ROWS), 0);
    for (uint32_t i = 0; i < threads; i++)
        exact_merge(sum, &k->partial[i]);
}

void kernel_adamw(struct kernels *k, float *param, float *exp_avg, float *exp_avg_sq,
                  const float *grad, size_t count, const struct kernel_adamw *options)
{
    struct adamw_args args = {.param = param,
                              .exp_avg = exp_avg,
                              .exp_avg_sq = exp_avg_sq,
                              .grad = grad,
                              .count = count,
                              .options = *options};
    run(k, k->ops->adamw, &args, divide_up(count, FLAT_ITEM), 0);
}
