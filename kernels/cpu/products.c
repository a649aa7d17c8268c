/* products.c - the CPU's products: by the library, or by Holdfast's code from packed panels.
 *
 * The library (linear.c), if there is one, is tried first; its objects serve one product at a time.
 * Other products run in rounds: some columns and a depth of b are packed for all threads, then each
 * item multiplies its rows by them (isa/product.c). The panels are in the lane's scratch, after
 * that of the threads. reference.c packs nothing. */
#include "kernels/cpu/job.h"

/* Holdfast's products: bytes of b packed at a time, a depth that suffices for that, and the least
 * number of items per thread. */
#define PANELS_BYTES ((size_t)8 << 20)
#define DEPTH_MAX 4096
#define ITEMS_A_THREAD 4

/* The number of columns of b packed at a time: as many as fit for a depth. */
static size_t columns_of(size_t depth)
{
    size_t fit = PANELS_BYTES / sizeof(float) / depth / PRODUCT_PANELS * PRODUCT_PANELS;
    return fit < PRODUCT_PANELS ? PRODUCT_PANELS : fit > PRODUCT_COLUMNS ? PRODUCT_COLUMNS : fit;
}

static size_t panels_bytes(size_t depth)
{
    return sizeof(float) * depth * columns_of(depth);
}

/* For any product at these shapes. */
size_t products_scratch(const struct cpu_kernels *k, const struct kernel_shapes *s)
{
    size_t rows = (size_t)s->batch * s->seq, heads = (size_t)s->heads * s->head_dim;
    size_t depth = larger(larger(rows, heads), larger(s->dim, larger(s->hidden, s->vocab)));
    return pool_threads(k->pool) * round_up(PRODUCT_SCRATCH, 64) +
           larger(PANELS_BYTES, sizeof(float) * depth * PRODUCT_PANELS);
}

/* Several products by the library; threads take their items as those of one product. */
struct library_products {
    struct library_product of[KERNEL_LINEARS_MAX];
    uint32_t end[KERNEL_LINEARS_MAX]; /* number of items of the products up to this one */
};

static void library_products_item(const void *args, uint32_t item, const struct worker *worker)
{
    const struct library_products *all = args;
    uint32_t i = 0;
    while (item >= all->end[i])
        i++;
    library_product_item(&all->of[i], item - (i > 0 ? all->end[i - 1] : 0), worker);
}

/* Returns false if the library does not support one of them. */
static bool products_by_library(const struct job *j, const struct product_args *args, uint32_t num)
{
    struct library_products all;
    size_t items = 0, leaf = 0;
    bool is_taken = j->k->library != NULL;
    if (!is_taken)
        return false;
    pthread_mutex_lock(&j->k->products);
    for (uint32_t i = 0; i < num && is_taken; i++) {
        is_taken = library_prepare(&all.of[i], j->k->library, &args[i]);
        all.of[i].fold = j->k->ops->fold;
        items += divide_up(args[i].m, args[i].item_rows);
        all.end[i] = (uint32_t)items;
        size_t rows = args[i].m < args[i].item_rows ? args[i].m : args[i].item_rows;
        leaf = larger(leaf, args[i].is_folded ? library_leaf(rows, args[i].n) : 0);
    }
    if (is_taken)
        run(j, library_products_item, &all, items, LIBRARY_SCRATCH + leaf);
    pthread_mutex_unlock(&j->k->products);
    return is_taken;
}

/* Minimises the cost of the thread with the most strips, where an item costs half a strip in
 * addition to its strips. Each thread has several items, since others may be slower. */
static uint32_t rows_of_item(const struct cpu_kernels *k, size_t rows)
{
    size_t threads = pool_threads(k->pool), strips = divide_up(rows, k->ops->strip_rows);
    size_t best = 1, least = SIZE_MAX;
    for (size_t height = PRODUCT_TILE_ROWS / k->ops->strip_rows; height > 0; height--) {
        size_t items = divide_up(strips, height);
        size_t cost = divide_up(items, threads) * (2 * height + 1);
        if (cost >= least || (height > 1 && items < ITEMS_A_THREAD * threads))
            continue;
        least = cost;
        best = height;
    }
    return (uint32_t)best * k->ops->strip_rows;
}

/* One group of columns after another, each with its depths in order. This order does not change the
 * bits. */
static void product_by_panels(const struct job *j, const struct product_args *args)
{
    struct product_args a = *args;
    a.is_chained = j->k->is_chained && a.in == KERNEL_F32;
    bool goes_on = !a.is_folded && (a.is_chained || !a.accumulate); /* partial sums are kept in c */
    bool is_cut = a.out == KERNEL_F32 && goes_on && a.k > DEPTH_MAX;
    size_t depth = is_cut ? divide_up(a.k, divide_up(a.k, DEPTH_MAX)) : a.k;
    size_t columns = columns_of(depth);
    a.item_rows = rows_of_item(j->k, a.m);
    size_t items = divide_up(a.m, a.item_rows), threads = pool_threads(j->k->pool);
    a.panels = (float *)((char *)j->lane->scratch + threads * round_up(PRODUCT_SCRATCH, 64));
    REQUIRE(threads * round_up(PRODUCT_SCRATCH, 64) + panels_bytes(depth) <=
            j->lane->scratch_bytes);
    for (size_t c = 0; c < a.n; c = a.columns.end) {
        a.columns = (struct range){c, c + columns < a.n ? c + columns : a.n};
        for (size_t l = 0; l < a.k; l = a.depth.end) {
            a.depth = (struct range){l, l + depth < a.k ? l + depth : a.k};
            size_t groups = divide_up(a.columns.end - c, PRODUCT_PANELS);
            run(j, j->k->ops->product_panels, &a, groups, PRODUCT_SCRATCH);
            run(j, j->k->ops->product, &a, items, PRODUCT_SCRATCH);
        }
    }
}

/* Each has the bits of a single product. */
static void products(const struct job *j, const struct product_args *args, uint32_t num)
{
    for (uint32_t i = 0; i < num; i++)
        REQUIRE(args[i].m > 0 && args[i].n > 0 && args[i].k > 0);
    if (products_by_library(j, args, num))
        return;
    for (uint32_t i = 0; i < num; i++) {
        if (num > 1 && products_by_library(j, &args[i], 1))
            continue;
        if (j->k->ops->product_panels)
            product_by_panels(j, &args[i]);
        else
            run(j, j->k->ops->product, &args[i], divide_up(args[i].m, args[i].item_rows), 0);
    }
}

static struct product_args linear_args(const struct kernel_linear *a)
{
    return (struct product_args){.c = a->out,
                                 .a = a->x,
                                 .b = a->w,
                                 .m = a->rows,
                                 .n = a->out_dim,
                                 .k = a->in,
                                 .item_rows = PRODUCT_ROWS,
                                 .a_row = a->in,
                                 .a_column = 1,
                                 .b_row = 1,
                                 .b_column = a->in,
                                 .in = a->dtype,
                                 .out = a->is_partial ? KERNEL_F32 : a->dtype};
}

static struct product_args weight_args(const struct kernel_linear_backward_weight *a)
{
    REQUIRE(!a->accumulate || !a->is_folded);
    return (struct product_args){.c = a->dw,
                                 .a = a->dout,
                                 .b = a->x,
                                 .m = a->out_dim,
                                 .n = a->in,
                                 .k = a->rows,
                                 .item_rows = PRODUCT_ROWS_WEIGHT,
                                 .a_row = 1,
                                 .a_column = a->out_dim,
                                 .b_row = a->in,
                                 .b_column = 1,
                                 .accumulate = a->accumulate,
                                 .is_folded = a->is_folded,
                                 .in = a->dtype,
                                 .out = KERNEL_F32};
}

void cpu_linear(const struct job *j, const struct kernel_linear *a)
{
    struct product_args args = linear_args(a);
    products(j, &args, 1);
}

void cpu_linear_backward_input(const struct job *j, const struct kernel_linear_backward_input *a)
{
    struct product_args args = {.c = a->dx,
                                .a = a->dout,
                                .b = a->w,
                                .m = a->rows,
                                .n = a->in,
                                .k = a->out_dim,
                                .item_rows = PRODUCT_ROWS,
                                .a_row = a->out_dim,
                                .a_column = 1,
                                .b_row = a->in,
                                .b_column = 1,
                                .accumulate = a->accumulate,
                                .in = a->dtype,
                                .out = a->is_partial ? KERNEL_F32 : a->dtype};
    products(j, &args, 1);
}

void cpu_linear_backward_weight(const struct job *j, const struct kernel_linear_backward_weight *a)
{
    struct product_args args = weight_args(a);
    products(j, &args, 1);
}

void cpu_linears(const struct job *j, const struct kernel_linears *a)
{
    struct product_args args[KERNEL_LINEARS_MAX];
    REQUIRE(a->num <= KERNEL_LINEARS_MAX);
    for (uint32_t i = 0; i < a->num; i++)
        args[i] = linear_args(&(struct kernel_linear){.out = a->out[i],
                                                      .x = a->x,
                                                      .w = a->w[i],
                                                      .rows = a->rows,
                                                      .in = a->in,
                                                      .out_dim = a->out_dim[i],
                                                      .dtype = a->dtype});
    products(j, args, a->num);
}

void cpu_linears_backward_weight(const struct job *j,
                                 const struct kernel_linears_backward_weight *a)
{
    struct product_args args[KERNEL_LINEARS_MAX];
    REQUIRE(a->num <= KERNEL_LINEARS_MAX);
    for (uint32_t i = 0; i < a->num; i++)
        args[i] = weight_args(&(struct kernel_linear_backward_weight){.dw = a->dw[i],
                                                                      .dout = a->dout[i],
                                                                      .x = a->x,
                                                                      .rows = a->rows,
                                                                      .in = a->in,
                                                                      .out_dim = a->out_dim[i],
                                                                      .dtype = a->dtype,
                                                                      .is_folded = a->is_folded});
    products(j, args, a->num);
}
