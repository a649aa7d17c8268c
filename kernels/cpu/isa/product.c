/* product.c - our own matrix products of floats, in registers of the level's own width.
 *
 * block_product is the piece that attention.c is built from, and product() makes from it what the
 * library does not: products in bf16 on machines without bf16 instructions, and all products when a
 * level below the machine's best is asked for by name (so that such a run has the same bits on
 * every machine).
 *
 * The kernel holds ROWS x VECTORS registers of c and walks k: a value of a is broadcast, a row of b
 * is loaded. Each element of c is one chain over k, in order, so tile shapes do not show in the
 * bits. Multiply and add are fused where the level has it (avx2, avx512), so sse2 differs from
 * these two.
 *
 * product(): blocks of PRODUCT_COLUMNS columns; k is cut in PRODUCT_DEPTH; of each cut, a and b are
 * copied to dense floats, their product is added to a block of floats, which is converted at the
 * end. */
#include "kernels/cpu/isa/isa.h"

/* Registers of c: 16 of 32, or 8 of 16. */
#define ROWS_WIDE 4
#define VECTORS_WIDE (WIDTH == 16 ? 4 : 2)
#define ROWS_NARROW 8

/* `rows` and `vectors` are constants at every call: the loops over them unroll into registers. */
INLINE void tile_product(const struct block *p, size_t i, size_t j, const size_t rows,
                         const size_t vectors)
{
    lanes c[ROWS_NARROW][VECTORS_WIDE];
    float *out = p->c + i * p->c_row + j;
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (size_t v = 0; v < vectors; v++)
            c[r][v] = p->accumulate ? load(out, r * p->c_row + v * WIDTH, false) : (lanes){0};
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    size_t a_row = p->a_row, a_column = p->a_column, b_row = p->b_row;
    for (size_t l = p->k; l > 0; l--, a += a_column, b += b_row) {
        lanes row[VECTORS_WIDE];
#pragma GCC unroll 8
        for (size_t v = 0; v < vectors; v++)
            row[v] = load(b, v * WIDTH, false);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (size_t v = 0; v < vectors; v++)
                c[r][v] = multiply_add(broadcast(a[r * a_row]), row[v], c[r][v], true);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (size_t v = 0; v < vectors; v++)
            store(out, r * p->c_row + v * WIDTH, c[r][v], false);
}

void ISA_NAME(block_product)(const struct block *p)
{
    size_t j = 0;
    for (; j + VECTORS_WIDE * WIDTH <= p->n; j += VECTORS_WIDE * WIDTH) {
        size_t i = 0;
        for (; i + ROWS_WIDE <= p->m; i += ROWS_WIDE)
            tile_product(p, i, j, ROWS_WIDE, VECTORS_WIDE);
        for (; i < p->m; i++)
            tile_product(p, i, j, 1, VECTORS_WIDE);
    }
    for (; j < p->n; j += WIDTH) {
        size_t i = 0;
        for (; i + ROWS_NARROW <= p->m; i += ROWS_NARROW)
            tile_product(p, i, j, ROWS_NARROW, 1);
        for (; i < p->m; i++)
            tile_product(p, i, j, 1, 1);
    }
}

/* ---- The slot ---- */

INLINE float value_at(const void *p, size_t i, bool bf16)
{
    if (!bf16)
        return ((const float *)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE lanes gather(const void *p, size_t i, size_t stride, size_t count, bool bf16)
{
    lanes x = {0};
    for (size_t l = 0; l < count; l++)
        x[l] = value_at(p, i + l * stride, bf16);
    return x;
}

/* A rectangle of a matrix, or of its transpose: rows and columns from where, and how far apart they
 * lie. */
struct source {
    const void *at;
    size_t row, column, rows, columns; /* where it begins, how large it is */
    size_t row_stride, column_stride;
};

/* out[rows,columns] as floats, dense rows of out_row, zeros up to it. */
INLINE void copy_block_as(float *out, size_t out_row, const struct source *s, bool bf16)
{
    for (size_t r = 0; r < s->rows; r++) {
        size_t from = (s->row + r) * s->row_stride + s->column * s->column_stride;
        for (size_t c = 0; c < out_row; c += WIDTH) {
            size_t count = s->columns > c ? part_of(c, s->columns) : 0;
            lanes x = s->column_stride == 1 ? load_part(s->at, from + c, count, bf16)
                                            : gather(s->at, from + c * s->column_stride,
                                                     s->column_stride, count, bf16);
            store(out, r * out_row + c, x, false);
        }
    }
}

static void copy_block(float *out, size_t out_row, const struct source *s, enum kernel_dtype dtype)
{
    if (dtype == KERNEL_BF16)
        copy_block_as(out, out_row, s, true);
    else
        copy_block_as(out, out_row, s, false);
}

/* c[rows, columns] of the result, from dense rows of PRODUCT_COLUMNS floats. */
INLINE void write_block(const struct product_args *p, struct range rows, struct range columns,
                        const float *c, bool bf16)
{
    for (size_t r = rows.begin; r < rows.end; r++, c += PRODUCT_COLUMNS) {
        for (size_t i = columns.begin; i < columns.end; i += WIDTH) {
            size_t count = part_of(i, columns.end);
            lanes x = load(c, i - columns.begin, false);
            if (p->accumulate)
                x += load_part(p->c, r * p->n + i, count, bf16);
            store_part(p->c, r * p->n + i, x, count, bf16);
        }
    }
}

/* Where a product's blocks lie in a thread's scratch. */
struct blocks {
    float *a, *b, *c;
};

/* c (+)= a[rows, k..] b[k.., columns] for one cut of k. A transposed a stays so: both ways are
 * dense. */
static void add_cut(const struct product_args *p, const struct blocks *at, struct range rows,
                    struct range columns, struct range k)
{
    size_t m = rows.end - rows.begin, n = columns.end - columns.begin, depth = k.end - k.begin;
    bool transposed = p->a_column != 1;
    size_t a_row = round_up(transposed ? m : depth, LANES);
    struct source a = {p->a, rows.begin, k.begin, m, depth, p->a_row, p->a_column};
    struct source a_transposed = {p->a, k.begin, rows.begin, depth, m, p->a_column, p->a_row};
    struct source b = {p->b, k.begin, columns.begin, depth, n, p->b_row, p->b_column};
    copy_block(at->a, a_row, transposed ? &a_transposed : &a, p->in);
    copy_block(at->b, round_up(n, LANES), &b, p->in);
    struct block block = {.c = at->c,
                          .a = at->a,
                          .b = at->b,
                          .c_row = PRODUCT_COLUMNS,
                          .a_row = transposed ? 1 : a_row,
                          .a_column = transposed ? a_row : 1,
                          .b_row = round_up(n, LANES),
                          .m = m,
                          .n = round_up(n, LANES),
                          .k = depth,
                          .accumulate = k.begin > 0};
    ISA_NAME(block_product)(&block);
}

void ISA_NAME(product)(const void *args, uint32_t item, const struct worker *worker)
{
    const struct product_args *p = args;
    struct range rows = item_range(item, p->item_rows, p->m);
    struct blocks at = {.b = worker->scratch};
    at.c = at.b + PRODUCT_DEPTH * PRODUCT_COLUMNS;
    at.a = at.c + p->item_rows * PRODUCT_COLUMNS;
    for (uint32_t j = 0; j < divide_up(p->n, PRODUCT_COLUMNS); j++) {
        struct range columns = item_range(j, PRODUCT_COLUMNS, p->n);
        for (uint32_t i = 0; i < divide_up(p->k, PRODUCT_DEPTH); i++)
            add_cut(p, &at, rows, columns, item_range(i, PRODUCT_DEPTH, p->k));
        if (p->out == KERNEL_BF16)
            write_block(p, rows, columns, at.c, true);
        else
            write_block(p, rows, columns, at.c, false);
    }
}
