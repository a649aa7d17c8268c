/* run.c - the CPU's back-end: choose the code, cut operations into items, run them on the pool.
 * Products are in products.c.
 *
 * Code, in order of preference: the highest ISA level that both the program and the CPU have, with
 * the library for products; a lower level that is given by name, with Holdfast's products, so its
 * results are the same on every machine with the level; the plain C of reference.c if it is chosen.
 *
 * Scratch belongs to the lane: first the part that threads share, then an equal piece for each
 * thread. prepare() returns the most that any operation needs at the given shapes.
 *
 * Lanes may call at the same time. The first uses the pool; others work alone (pool.c). */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/job.h"
#include "proto/base/report.h"

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
    *best_out = *out == best && (!isa || *out == levels[0]);
    return *out ? 0 : ERR_INVALID;
}

static struct cpu_kernels *of(const struct kernels *kernels)
{
    return (struct cpu_kernels *)kernels;
}

static void cpu_close(struct kernels *kernels)
{
    struct cpu_kernels *k = of(kernels);
    pool_free(k->pool);
    library_free(k->library);
    pthread_mutex_destroy(&k->products);
    free(k);
}

/* ERR_INVALID: no threads, too many, or an ISA level that is unknown or that this CPU lacks.
 * ERR_MEMORY, ERR_BUSY: no memory, no threads. */
static int cpu_open(struct kernels **out, const struct kernels_options *options)
{
    if (options->num_threads < 1 || options->num_threads > THREADS_MAX)
        return ERR_INVALID;
    struct cpu_kernels *k = calloc(1, sizeof(*k));
    if (!k)
        return ERR_MEMORY;
    k->base.ops = &kernel_backend_cpu;
    pthread_mutex_init(&k->products, NULL);
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
    if (error != 0) {
        cpu_close(&k->base);
        return error;
    }
    snprintf(k->description, sizeof(k->description), "%s, products by %s", k->ops->name,
             k->library ? library_describe(k->library) : "own code");
    *out = &k->base;
    return 0;
}

static int cpu_chain_products(struct kernels *kernels)
{
    struct cpu_kernels *k = of(kernels);
    if (k->ops == &kernel_ops_reference)
        return 0;
    if (k->ops == &kernel_ops_sse2)
        return ERR_INVALID;
    library_free(k->library);
    k->library = NULL;
    k->is_chained = true;
    snprintf(k->description, sizeof(k->description), "fma, products in order");
    return 0;
}

static const char *cpu_describe(const struct kernels *kernels)
{
    return of(kernels)->description;
}

/* ---- Scratch and items ---- */

static size_t norm_scratch(uint32_t rows, uint32_t dim)
{
    return round_up(divide_up(rows, NORM_ROWS) * dim * sizeof(float), 64);
}

static size_t sorted_scratch(size_t rows)
{
    return rows * sizeof(uint64_t);
}

/* Scratch for the sums of each thread. */
static size_t sums_scratch(const struct cpu_kernels *k, size_t bytes)
{
    return pool_threads(k->pool) * bytes;
}

static size_t cpu_prepare(const struct kernels *kernels, const struct kernel_shapes *s)
{
    const struct cpu_kernels *k = of(kernels);
    struct attention_args attention = {.batch = s->batch,
                                       .seq = s->seq,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim};
    size_t width = larger(s->dim, larger(s->hidden, (size_t)s->heads * s->head_dim));
    size_t needs[] = {attention_scratch(&attention), loss_scratch(s->vocab),
                      k->library ? LIBRARY_SCRATCH + library_leaf(PRODUCT_ROWS_WEIGHT, width) : 0};
    size_t shared[] = {norm_scratch(s->batch * s->seq, s->dim),
                       sums_scratch(k, sizeof(struct kernel_exact_sum)), /* the largest sums */
                       sorted_scratch((size_t)s->batch * s->seq), products_scratch(k, s)};
    size_t most = 0;
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        most = larger(most, needs[i]);
    most = round_up(most, 64) * pool_threads(k->pool);
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++)
        most = larger(most, shared[i]);
    return most;
}

/* Scratch that the operation's threads share. */
static void *shared_scratch(const struct job *j, size_t bytes)
{
    REQUIRE(bytes <= j->lane->scratch_bytes);
    return j->lane->scratch;
}

/* ---- Operations, in the order of kernels.h ---- */

void cpu_embedding(const struct job *j, const struct kernel_embedding *a)
{
    run(j, j->k->ops->embedding, a, divide_up(a->rows, NORM_ROWS), 0);
}

/* Shell sort (1959) with Knuth's gaps: for some thousand keys, much less work than the sums of as
 * many rows. */
static void sort_keys(uint64_t *keys, size_t num)
{
    size_t gap = 1;
    while (gap < num / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3)
        for (size_t i = gap; i < num; i++) {
            uint64_t key = keys[i];
            size_t at = i;
            for (; at >= gap && keys[at - gap] > key; at -= gap)
                keys[at] = keys[at - gap];
            keys[at] = key;
        }
}

void cpu_embedding_backward(const struct job *j, const struct kernel_embedding_backward *a)
{
    struct embedding_backward_args args = {*a, NULL};
    if (a->is_folded || a->seen) {
        args.sorted = shared_scratch(j, sorted_scratch(a->rows));
        for (size_t n = 0; n < a->rows; n++)
            args.sorted[n] = (uint64_t)a->tokens[n] << 32 | n;
        sort_keys(args.sorted, a->rows);
    }
    run(j, j->k->ops->embedding_backward, &args, divide_up(a->dim, COLUMN_ITEM), 0);
    for (size_t n = 0; n < a->rows && a->seen; n++)
        a->seen[a->tokens[n]] = 1;
}

/* The largest |x| of args->x. */
static uint32_t find_largest(const struct job *j, struct float8_args *args)
{
    size_t bytes = sums_scratch(j->k, FLOAT8_WORKER * sizeof(uint32_t));
    uint32_t largest = 0;
    args->largest = shared_scratch(j, bytes);
    memset(args->largest, 0, bytes);
    run(j, j->k->ops->largest, args, divide_up(args->count, FLAT_ITEM), 0);
    for (uint32_t i = 0; i < pool_threads(j->k->pool); i++) {
        uint32_t mine = args->largest[i * FLOAT8_WORKER];
        largest = mine > largest ? mine : largest;
    }
    return largest;
}

/* Raises *to to the largest |x| that an operation has written. */
static void note_largest(const struct job *j, uint32_t *to, const void *x, size_t count,
                         enum kernel_dtype dtype)
{
    if (to == NULL)
        return;
    uint32_t largest =
        find_largest(j, &(struct float8_args){.x = x, .count = count, .dtype = dtype});
    *to = largest > *to ? largest : *to;
}

void cpu_rmsnorm(const struct job *j, const struct kernel_rmsnorm *a)
{
    run(j, j->k->ops->norm, a, divide_up(a->rows, NORM_ROWS), 0);
    note_largest(j, a->largest, a->out, (size_t)a->rows * a->dim, a->dtype);
}

void cpu_rmsnorm_backward(const struct job *j, const struct kernel_rmsnorm_backward *a)
{
    struct norm_backward_args args = {.a = *a,
                                      .partial = shared_scratch(j, norm_scratch(a->rows, a->dim))};
    run(j, j->k->ops->norm_backward, &args, divide_up(a->rows, NORM_ROWS), 0);
    run(j, j->k->ops->norm_dweight, &args, divide_up(a->dim, COLUMN_ITEM), 0);
}

void cpu_rope(const struct job *j, const struct kernel_rope *a)
{
    REQUIRE(a->head_dim % 2 == 0);
    run(j, j->k->ops->rope, a, divide_up((size_t)a->batch * a->seq, ROPE_ROWS), 0);
}

void cpu_attention(const struct job *j, const struct kernel_attention *a)
{
    struct attention_args args = {.out = a->out,
                                  .lse = a->lse,
                                  .q = a->q,
                                  .key = a->key,
                                  .value = a->value,
                                  .starts = a->starts,
                                  .batch = a->batch,
                                  .seq = a->seq,
                                  .heads = a->heads,
                                  .kv_heads = a->kv_heads,
                                  .head_dim = a->head_dim,
                                  .queries = a->queries > 0 ? a->queries : a->seq,
                                  .first = a->first,
                                  .dtype = a->dtype};
    REQUIRE(a->kv_heads > 0 && a->heads % a->kv_heads == 0);
    REQUIRE(args.first + args.queries <= a->seq);
    run(j, j->k->ops->attention, &args, attention_items(&args, false), attention_scratch(&args));
}

void cpu_attention_backward(const struct job *j, const struct kernel_attention_backward *a)
{
    struct attention_args args = {.dq = a->dq,
                                  .dkey = a->dkey,
                                  .dvalue = a->dvalue,
                                  .dout = a->dout,
                                  .out_in = a->out,
                                  .lse_in = a->lse,
                                  .q = a->q,
                                  .key = a->key,
                                  .value = a->value,
                                  .starts = a->starts,
                                  .batch = a->batch,
                                  .seq = a->seq,
                                  .heads = a->heads,
                                  .kv_heads = a->kv_heads,
                                  .head_dim = a->head_dim,
                                  .queries = a->queries > 0 ? a->queries : a->seq,
                                  .first = a->first,
                                  .accumulate = a->accumulate,
                                  .dtype = a->dtype,
                                  .sums = a->is_partial ? KERNEL_F32 : a->dtype};
    REQUIRE(a->kv_heads > 0 && a->heads % a->kv_heads == 0);
    REQUIRE(args.first + args.queries <= a->seq && (a->is_partial || !a->accumulate));
    run(j, j->k->ops->attention_backward, &args, attention_items(&args, true),
        attention_scratch(&args));
}

void cpu_swiglu(const struct job *j, const struct kernel_swiglu *a)
{
    run(j, j->k->ops->swiglu, a, divide_up(a->count, FLAT_ITEM), 0);
    note_largest(j, a->largest, a->out, a->count, a->dtype);
}

void cpu_swiglu_backward(const struct job *j, const struct kernel_swiglu_backward *a)
{
    run(j, j->k->ops->swiglu_backward, a, divide_up(a->count, FLAT_ITEM), 0);
    note_largest(j, a->largest_dgate, a->dgate, a->count, a->dtype);
    note_largest(j, a->largest_dup, a->dup, a->count, a->dtype);
}

void cpu_cross_entropy(const struct job *j, const struct kernel_cross_entropy *a)
{
    run(j, j->k->ops->loss, a, divide_up(a->rows, LOSS_ROWS), loss_scratch(a->vocab));
}

/* Copies `columns` elements of each of `rows` rows; strides in elements. */
static void copy_box(const struct job *j, struct box_args args, size_t columns,
                     enum kernel_dtype dtype)
{
    size_t element = kernel_dtype_bytes(dtype);
    if (args.rows == 0 || columns == 0)
        return;
    args.row_bytes = columns * element;
    args.to_stride *= element;
    args.from_stride *= element;
    args.item_rows = divide_up(FLAT_ITEM, columns);
    run(j, j->k->ops->box, &args, divide_up(args.rows, args.item_rows), 0);
}

void cpu_pack(const struct job *j, const struct kernel_pack *a)
{
    size_t at = (a->first_row * a->width + a->first_column) * kernel_dtype_bytes(a->dtype);
    REQUIRE(a->first_column + a->columns <= a->width);
    copy_box(j,
             (struct box_args){.to = a->packed,
                               .from = (const char *)a->full + at,
                               .rows = a->rows,
                               .to_stride = a->columns,
                               .from_stride = a->width},
             a->columns, a->dtype);
}

void cpu_unpack(const struct job *j, const struct kernel_unpack *a)
{
    size_t at = (a->first_row * a->width + a->first_column) * kernel_dtype_bytes(a->dtype);
    REQUIRE(a->first_column + a->columns <= a->width);
    copy_box(j,
             (struct box_args){.to = (char *)a->full + at,
                               .from = a->packed,
                               .rows = a->rows,
                               .to_stride = a->width,
                               .from_stride = a->columns},
             a->columns, a->dtype);
}

void cpu_add(const struct job *j, const struct kernel_add *a)
{
    run(j, j->k->ops->add, a, divide_up(a->count, FLAT_ITEM), 0);
}

void cpu_fold(const struct job *j, const struct kernel_fold *a)
{
    run(j, j->k->ops->fold, a, divide_up(a->count, FLAT_ITEM), 0);
}

void cpu_convert(const struct job *j, const struct kernel_convert *a)
{
    run(j, j->k->ops->convert, a, divide_up(a->count, FLAT_ITEM), 0);
}

/* The power of two for a largest |x| with these bits. The largest value of both formats is 1.75
 * times a power. */
static int float8_scale(uint32_t largest, int highest)
{
    int exponent = (int)(largest >> 23) - 127;
    if (largest >= 0x7f800000)
        return FLOAT8_NAN;
    int scale = highest - exponent - ((largest & 0x7fffff) > 0x600000);
    if (scale > KERNEL_FLOAT8_SCALE_MAX)
        return KERNEL_FLOAT8_SCALE_MAX;
    return scale < -KERNEL_FLOAT8_SCALE_MAX ? -KERNEL_FLOAT8_SCALE_MAX : scale;
}

static const struct {
    int bits, lowest, highest;
} formats[] = {[KERNEL_E4M3] = {3, -6, 8}, [KERNEL_E5M2] = {2, -14, 15}};

void cpu_round_float8(const struct job *j, const struct kernel_round_float8 *a)
{
    struct float8_args args = {.out = a->out,
                               .x = a->x,
                               .count = a->count,
                               .dtype = a->dtype,
                               .bits = formats[a->format].bits,
                               .lowest = formats[a->format].lowest};
    uint32_t largest = a->largest != NULL ? *a->largest : find_largest(j, &args);
    args.scale = float8_scale(largest, formats[a->format].highest);
    run(j, j->k->ops->round_float8, &args, divide_up(a->count, FLAT_ITEM), 0);
}

void cpu_float8_largest(const struct job *j, const struct kernel_float8_largest *a)
{
    *a->out =
        find_largest(j, &(struct float8_args){.x = a->x, .count = a->count, .dtype = a->dtype});
}

void cpu_float8_encode(const struct job *j, const struct kernel_float8_encode *a)
{
    struct float8_args args = {.out = (char *)a->out + KERNEL_CODES_AT,
                               .x = a->x,
                               .count = a->count,
                               .dtype = a->dtype,
                               .scale = float8_scale(*a->largest, formats[KERNEL_E4M3].highest),
                               .bits = formats[KERNEL_E4M3].bits,
                               .lowest = formats[KERNEL_E4M3].lowest};
    memset(a->out, 0, KERNEL_CODES_AT);
    memcpy(a->out, a->largest, sizeof(*a->largest));
    run(j, j->k->ops->float8_encode, &args, divide_up(a->count, FLAT_ITEM), 0);
}

void cpu_float8_decode(const struct job *j, const struct kernel_float8_decode *a)
{
    const uint32_t *largest = a->coded;
    struct float8_args args = {.out = a->out,
                               .x = (const char *)a->coded + KERNEL_CODES_AT,
                               .count = a->count,
                               .dtype = a->dtype,
                               .scale = float8_scale(*largest, formats[KERNEL_E4M3].highest)};
    run(j, j->k->ops->float8_decode, &args, divide_up(a->count, FLAT_ITEM), 0);
}

void cpu_extremes(const struct job *j, const struct kernel_extremes *a)
{
    struct extremes_args args = {
        .a = *a, .partial = shared_scratch(j, sums_scratch(j->k, sizeof(struct extent_of_worker)))};
    struct kernel_extent all = EXTENT_NONE;
    for (uint32_t i = 0; i < pool_threads(j->k->pool); i++)
        args.partial[i].of = all;
    run(j, j->k->ops->extremes, &args, divide_up(a->count, FLAT_ITEM), 0);
    for (uint32_t i = 0; i < pool_threads(j->k->pool); i++)
        extent_merge(&all, &args.partial[i].of);
    *a->out = all;
}

void cpu_sum_squares(const struct job *j, const struct kernel_sum_squares *a)
{
    size_t bytes = sums_scratch(j->k, sizeof(struct kernel_exact_sum));
    struct squares_args args = {.a = *a, .partial = shared_scratch(j, bytes)};
    memset(args.partial, 0, bytes);
    run(j, j->k->ops->squares, &args, divide_up(a->rows, SQUARES_ROWS), 0);
    for (uint32_t i = 0; i < pool_threads(j->k->pool); i++)
        exact_merge(a->sum, &args.partial[i]);
}

void cpu_digest(const struct job *j, const struct kernel_digest *a)
{
    size_t bytes = sums_scratch(j->k, sizeof(struct digest_sums));
    struct digest_args args = {.a = *a, .partial = shared_scratch(j, bytes)};
    memset(args.partial, 0, bytes);
    run(j, j->k->ops->digest, &args, divide_up(a->rows * a->width, FLAT_ITEM), 0);
    for (uint32_t i = 0; i < pool_threads(j->k->pool); i++) {
        a->sum[0] += args.partial[i].of[0];
        a->sum[1] += args.partial[i].of[1];
    }
}

void cpu_adamw(const struct job *j, const struct kernel_adamw *a)
{
    REQUIRE(a->num > 0 && a->num <= KERNEL_ADAMW_PIECES);
    for (uint32_t i = 0; i < a->num; i++)
        REQUIRE(a->moments == KERNEL_F32 || a->pieces[i].columns > 0 || a->pieces[i].count == 0);
    run(j, j->k->ops->adamw, a, a->end[a->num - 1], 0);
}

/* ---- The table ---- */

#define X(NAME, name, pointers, last)                             \
    static void run_##name(const struct job *j, const void *args) \
    {                                                             \
        cpu_##name(j, args);                                      \
    }
KERNEL_OPS(X)
#undef X

static void cpu_run(struct kernels *kernels, struct lane *lane, enum kernel_op op, const void *args)
{
    static void (*const table[NUM_KERNEL_OPS])(const struct job *, const void *) = {
#define X(NAME, name, pointers, last) run_##name,
        KERNEL_OPS(X)
#undef X
    };
    table[op](&(struct job){of(kernels), lane}, args);
}

const struct kernel_backend_ops kernel_backend_cpu = {
    .name = "cpu",
    .device_flags = DEVICE_HOST_MEMORY,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .chain_products = cpu_chain_products,
    .prepare = cpu_prepare,
    .run = cpu_run,
};
