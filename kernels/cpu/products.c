/* products.c - the CPU's products: by the library, or by our own code from packed panels.
 *
 * The library (linear.c), where there is one, is asked first; its objects serve one product at a
 * time. What it does not take runs in rounds: some columns and a depth of b are packed for all
 * threads, then each item multiplies its rows by them (isa/product.c). The panels lie in the lane's
 * scratch, after the threads' own. The plain twin packs nothing. */
#include "kernels/cpu/job.h"

/* Our own products: bytes of b that are packed at a time, a depth that is enough for that, items
 * for each thread, and what their heights are multiples of (isa/product.c: 6 or 8 rows a strip). */
#define PANELS_BYTES ((size_t)8 << 20)
#define DEPTH_MAX 4096
#define ITEMS_A_THREAD 4
#define PRODUCT_ROWS_STEP 24

/* How many columns of b are packed at a time: as many as fit beside a depth. */
static size_t columns_of(size_t depth)
{
    size_t fit = PANELS_BYTES / sizeof(float) / depth / PRODUCT_PANELS * PRODUCT_PANELS;
    return fit < PRODUCT_PANELS ? PRODUCT_PANELS : fit > PRODUCT_COLUMNS ? PRODUCT_COLUMNS : fit;
}

static size_t panels_bytes(size_t depth)
{
    return sizeof(float) * depth * columns_of(depth);
}

/* Of any product at these shapes. */
size_t products_scratch(const struct cpu_kernels *k, const struct kernel_shapes *s)
{
    size_t rows = (size_t)s->batch * s->seq, heads = (size_t)s->heads * s->head_dim;
    size_t depth = larger(larger(rows, heads), larger(s->dim, larger(s->hidden, s->vocab)));
    return pool_threads(k->pool) * round_up(PRODUCT_SCRATCH, 64) +
           larger(PANELS_BYTES, sizeof(float) * depth * PRODUCT_PANELS);
}

/* False when the library does not take it. */
static bool product_by_library(const struct job *j, const struct product_args *args, size_t items)
{
    struct library_product product;
    if (!j->k->library)
        return false;
    pthread_mutex_lock(&j->k->products);
    bool is_taken = library_prepare(&product, j->k->library, args);
    if (is_taken)
        run(j, library_product_item, &product, items, LIBRARY_SCRATCH);
    pthread_mutex_unlock(&j->k->products);
    return is_taken;
}

/* The columns one group after another, and for each the depths in order. Nothing of that shows in
 * the bits. */
static void product_by_panels(const struct job *j, const struct product_args *args)
{
    struct product_args a = *args;
    a.is_chained = j->k->is_chained && a.in == KERNEL_F32;
    bool is_cut = a.out == KERNEL_F32 && (a.is_chained || !a.accumulate) && a.k > DEPTH_MAX;
    size_t depth = is_cut ? divide_up(a.k, divide_up(a.k, DEPTH_MAX)) : a.k;
    size_t columns = columns_of(depth);
    size_t share = divide_up(a.m, ITEMS_A_THREAD * (size_t)pool_threads(j->k->pool));
    share = round_up(share, PRODUCT_ROWS_STEP);
    a.item_rows = (uint32_t)(share < PRODUCT_TILE_ROWS ? share : PRODUCT_TILE_ROWS);
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

static void product(const struct job *j, const struct product_args *args)
{
    size_t items = divide_up(args->m, args->item_rows);
    REQUIRE(args->m > 0 && args->n > 0 && args->k > 0);
    if (product_by_library(j, args, items))
        return;
    if (j->k->ops->product_panels)
        product_by_panels(j, args);
    else
        run(j, j->k->ops->product, args, items, 0);
}

void cpu_linear(const struct job *j, const struct kernel_linear *a)
{
    struct product_args args = {.c = a->out,
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
    product(j, &args);
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
    product(j, &args);
}

void cpu_linear_backward_weight(const struct job *j, const struct kernel_linear_backward_weight *a)
{
    struct product_args args = {.c = a->dw,
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
                                .in = a->dtype,
                                .out = KERNEL_F32};
    product(j, &args);
}

void cpu_linears(const struct job *j, const struct kernel_linears *a)
{
    REQUIRE(a->num <= KERNEL_LINEARS_MAX);
    for (uint32_t i = 0; i < a->num; i++)
        cpu_linear(j, &(struct kernel_linear){.out = a->out[i],
                                              .x = a->x,
                                              .w = a->w[i],
                                              .rows = a->rows,
                                              .in = a->in,
                                              .out_dim = a->out_dim[i],
                                              .dtype = a->dtype});
}

void cpu_linears_backward_weight(const struct job *j,
                                 const struct kernel_linears_backward_weight *a)
{
    REQUIRE(a->num <= KERNEL_LINEARS_MAX);
    for (uint32_t i = 0; i < a->num; i++)
        cpu_linear_backward_weight(j,
                                   &(struct kernel_linear_backward_weight){.dw = a->dw[i],
                                                                           .dout = a->dout[i],
                                                                           .x = a->x,
                                                                           .rows = a->rows,
                                                                           .in = a->in,
                                                                           .out_dim = a->out_dim[i],
                                                                           .dtype = a->dtype});
}
