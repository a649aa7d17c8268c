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
 * product(): k is cut in PRODUCT_DEPTH; of each cut, b's tile is copied to dense float rows and a's
 * to float, then added to a float tile that is converted at the end. */
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

/* out[rows,columns] dense rows of out_row floats, zeros up to it; in[r,c] = in[r row + c column].
 */
INLINE void copy_block(float *out, size_t out_row, const void *in, struct tile t, size_t row,
                       size_t column, bool bf16)
{
    for (size_t r = 0; r < t.rows; r++) {
        size_t from = (t.row + r) * row + t.column * column;
        for (size_t c = 0; c < out_row; c += WIDTH) {
            lanes x = {0};
            size_t count = t.columns > c ? part_of(c, t.columns) : 0;
            if (column == 1)
                x = load_part(in, from + c, count, bf16);
            else
                for (size_t l = 0; l < count; l++)
                    x[l] = value_at(in, from + (c + l) * column, bf16);
            store(out, r * out_row + c, x, false);
        }
    }
}

INLINE void write_tile(const struct product_args *p, struct tile t, const float *c, size_t c_row,
                       bool bf16)
{
    for (size_t r = 0; r < t.rows; r++) {
        size_t to = (t.row + r) * p->c_row + t.column;
        for (size_t i = 0; i < t.columns; i += WIDTH) {
            size_t count = part_of(i, t.columns);
            lanes x = load(c, r * c_row + i, false);
            if (p->accumulate)
                x += load_part(p->c, to + i, count, bf16);
            store_part(p->c, to + i, x, count, bf16);
        }
    }
}

void ISA_NAME(product)(const void *args, uint32_t item, const struct worker *worker)
{
    const struct product_args *p = args;
    struct tile t = product_tile(p, item);
    size_t width = round_up(t.columns, LANES);
    float *b = worker->scratch, *a = b + PRODUCT_DEPTH * PRODUCT_COLUMNS;
    float *c = a + PRODUCT_DEPTH * PRODUCT_ROWS;
    for (size_t k = 0; k < p->k; k += PRODUCT_DEPTH) {
        uint32_t depth = (uint32_t)(p->k - k < PRODUCT_DEPTH ? p->k - k : PRODUCT_DEPTH);
        struct tile from_a = {t.row, (uint32_t)k, t.rows, depth};
        struct tile from_b = {(uint32_t)k, t.column, depth, t.columns};
        if (p->in == KERNEL_BF16) {
            copy_block(a, PRODUCT_DEPTH, p->a, from_a, p->a_row, p->a_column, true);
            copy_block(b, width, p->b, from_b, p->b_row, p->b_column, true);
        } else {
            copy_block(a, PRODUCT_DEPTH, p->a, from_a, p->a_row, p->a_column, false);
            copy_block(b, width, p->b, from_b, p->b_row, p->b_column, false);
        }
        struct block block = {.c = c,
                              .a = a,
                              .b = b,
                              .c_row = width,
                              .a_row = PRODUCT_DEPTH,
                              .a_column = 1,
                              .b_row = width,
                              .m = t.rows,
                              .n = width,
                              .k = depth,
                              .accumulate = k > 0};
        ISA_NAME(block_product)(&block);
    }
    if (p->out == KERNEL_BF16)
        write_tile(p, t, c, width, true);
    else
        write_tile(p, t, c, width, false);
}
