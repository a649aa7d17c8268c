/* product.c - our own matrix products of floats, in registers of the level's own width.
 *
 * Each element of a result is one chain over k, in order, so neither tiles nor threads show in the
 * bits. Multiply and add are fused where the level has it (avx2, avx512), so sse2 differs from
 * these two.
 *
 * tile_product holds some rows and vectors of c in registers and walks k: a value of a is
 * broadcast, a row of b is loaded. block_product covers the blocks that attention.c is built from.
 *
 * A product as large as a layer's (run.c cuts it) reads b from panels: PANEL columns side by side,
 * row after row of k, zeros past the last column, so that the kernel reads one stream whatever the
 * strides of b. product_panels packs them once for all rows of c. An item of product() is some rows
 * of c times the columns that are packed: their sums stay in a tile of floats in the thread's
 * scratch while k is walked in cuts of PRODUCT_DEPTH, for which a few rows of a and a panel of b
 * fit into the first-level cache. Rows of a are read where they lie; a transposed or in bf16 is
 * packed for each cut.
 *
 * Layout and order of loops: Goto and van de Geijn, Anatomy of High-Performance Matrix
 * Multiplication, 2008. */
#include "kernels/cpu/isa/isa.h"

/* Registers of c for blocks: 16 of 32, or 8 of 16. */
#define ROWS_WIDE 4
#define VECTORS_WIDE (WIDTH == 16 ? 4 : 2)
#define ROWS_NARROW 8

/* And for panels: 24 of 32, or 12 of 16. */
#define TILE_ROWS (WIDTH == 16 ? 8 : 6)
#define TILE_VECTORS (WIDTH == 16 ? 3 : 2)
#define PANEL (TILE_VECTORS * WIDTH)
_Static_assert(PRODUCT_PANELS % PANEL == 0, "an item packs whole panels");
_Static_assert(PRODUCT_TILE_ROWS % TILE_ROWS == 0, "a tile has room for whole strips");

/* `rows` and `vectors` are constants at every call: the loops over them unroll into registers. */
INLINE void tile_product(const struct block *p, size_t i, size_t j, const size_t rows,
                         const size_t vectors)
{
    lanes c[ROWS_NARROW][4];
    float *out = p->c + i * p->c_row + j;
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (size_t v = 0; v < vectors; v++)
            c[r][v] = p->accumulate ? load(out, r * p->c_row + v * WIDTH, false) : (lanes){0};
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    size_t a_row = p->a_row, a_column = p->a_column, b_row = p->b_row;
    for (size_t l = p->k; l > 0; l--, a += a_column, b += b_row) {
        lanes row[4];
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

/* ---- Panels of b ---- */

INLINE float value_at(const void *p, size_t i, bool bf16)
{
    return bf16 ? widen_one(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE __m128 load_quad(const void *p, size_t i, bool bf16)
{
    return bf16 ? _mm_setr_ps(value_at(p, i, true), value_at(p, i + 1, true),
                              value_at(p, i + 2, true), value_at(p, i + 3, true))
                : _mm_loadu_ps((const float *)p + i);
}

/* to[l,c] = from[c,l], four of each. */
INLINE void transpose_quads(float *to, size_t to_row, const void *from, size_t i, size_t from_row,
                            bool bf16)
{
    __m128 a = load_quad(from, i, bf16), b = load_quad(from, i + from_row, bf16);
    __m128 c = load_quad(from, i + 2 * from_row, bf16), d = load_quad(from, i + 3 * from_row, bf16);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + to_row, b);
    _mm_storeu_ps(to + 2 * to_row, c);
    _mm_storeu_ps(to + 3 * to_row, d);
}

/* A rectangle of a matrix, element (l, c) at l row + c column, and its copy as floats in panels of
 * `width` columns, row after row, `stride` from one panel to the next, zeros past the last column.
 */
struct packing {
    const void *from;
    size_t row, column, rows, columns;
    float *to;
    size_t stride;
};

/* `width` is a constant at every call. */
INLINE float *packed(const struct packing *p, const size_t width, size_t l, size_t c)
{
    return p->to + c / width * p->stride + l * width + c % width;
}

INLINE void pack_element(const struct packing *p, const size_t width, size_t l, size_t c, bool bf16)
{
    *packed(p, width, l, c) =
        c < p->columns ? value_at(p->from, l * p->row + c * p->column, bf16) : 0;
}

/* Of a transposed matrix, whose column goes on in memory; width is a multiple of 4. */
INLINE void pack_transposed(const struct packing *p, const size_t width, bool bf16)
{
    size_t end = round_up(p->columns, width), quads = p->columns / 4 * 4, l = 0;
    for (; l + 4 <= p->rows; l += 4) {
        for (size_t c = 0; c < quads; c += 4)
            transpose_quads(packed(p, width, l, c), width, p->from, l * p->row + c * p->column,
                            p->column, bf16);
        for (size_t i = 0; i < 4; i++)
            for (size_t c = quads; c < end; c++)
                pack_element(p, width, l + i, c, bf16);
    }
    for (; l < p->rows; l++)
        for (size_t c = 0; c < end; c++)
            pack_element(p, width, l, c, bf16);
}

INLINE void pack_dense(const struct packing *p, const size_t width, bool bf16)
{
    size_t end = round_up(p->columns, width), whole = bf16 ? 0 : p->columns / width * width;
    /* A few panels at a time: they lie a power of two apart, and share sets of the cache. */
    for (size_t begin = 0; begin < whole; begin += 4 * width)
        for (size_t l = 0; l < p->rows; l++)
            for (size_t c = begin; c < whole && c < begin + 4 * width; c += width)
                memcpy(packed(p, width, l, c), (const float *)p->from + l * p->row + c,
                       width * sizeof(float));
    for (size_t l = 0; l < p->rows; l++)
        for (size_t c = whole; c < end; c++)
            pack_element(p, width, l, c, bf16);
}

INLINE void pack(const struct packing *p, const size_t width, bool bf16)
{
    if (p->column == 1)
        pack_dense(p, width, bf16);
    else if (width % 4 == 0)
        pack_transposed(p, width, bf16);
    else
        for (size_t i = 0; i < p->rows * round_up(p->columns, width); i++)
            pack_element(p, width, i % p->rows, i / p->rows, bf16);
}

static const void *element(const void *p, size_t i, enum kernel_dtype dtype)
{
    return (const char *)p + i * kernel_dtype_bytes(dtype);
}

void ISA_NAME(product_panels)(const void *args, uint32_t item, const struct worker *worker)
{
    (void)worker;
    const struct product_args *p = args;
    size_t depth = p->depth.end - p->depth.begin;
    struct range own = item_range(item, PRODUCT_PANELS, p->columns.end - p->columns.begin);
    size_t column = p->columns.begin + own.begin;
    struct packing b = {element(p->b, p->depth.begin * p->b_row + column * p->b_column, p->in),
                        p->b_row,
                        p->b_column,
                        depth,
                        own.end - own.begin,
                        p->panels + own.begin * depth,
                        depth * PANEL};
    BY_TYPE(p->in, pack, &b, PANEL);
}

/* ---- Rows of c times the columns that are packed ---- */

/* A cut of k of the rows of a, TILE_ROWS of them a strip: row r of strip i, element l is at[i strip
 * + r row + l column], and of the last strip last[r + l TILE_ROWS], zeros past the last row. */
struct strips {
    const float *at, *last;
    size_t strip, row, column;
};

static struct strips rows_of(const struct product_args *p, struct range rows, struct range k,
                             float *scratch)
{
    size_t depth = k.end - k.begin, num = divide_up(rows.end - rows.begin, TILE_ROWS);
    bool is_direct = p->a_column == 1 && p->in == KERNEL_F32;
    size_t first = is_direct ? (num - 1) * TILE_ROWS : 0, row = rows.begin + first;
    struct packing a = {element(p->a, row * p->a_row + k.begin * p->a_column, p->in),
                        p->a_column,
                        p->a_row,
                        depth,
                        rows.end - row,
                        scratch + first * depth,
                        depth * TILE_ROWS};
    BY_TYPE(p->in, pack, &a, TILE_ROWS);
    const float *last = scratch + (num - 1) * TILE_ROWS * depth;
    if (is_direct)
        return (struct strips){(const float *)p->a + rows.begin * p->a_row + k.begin, last,
                               TILE_ROWS * p->a_row, p->a_row, 1};
    return (struct strips){scratch, last, TILE_ROWS * depth, 1, TILE_ROWS};
}

/* tile[rows][columns] (+)= a times one cut of a panel. */
static void add_panel(struct block block, const struct strips *a)
{
    size_t last = (divide_up(block.m, TILE_ROWS) - 1) * TILE_ROWS;
    block.a = a->at;
    for (size_t i = 0; i < last; i += TILE_ROWS) {
        tile_product(&block, 0, 0, TILE_ROWS, TILE_VECTORS);
        block.a += a->strip;
        block.c += TILE_ROWS * block.c_row;
    }
    block.a = a->last;
    block.a_row = 1;
    block.a_column = TILE_ROWS;
    tile_product(&block, 0, 0, TILE_ROWS, TILE_VECTORS);
}

INLINE void write_tile(const struct product_args *p, struct range rows, const float *tile,
                       size_t tile_row, bool bf16)
{
    bool is_added = p->accumulate && !p->is_chained;
    size_t columns = p->columns.end - p->columns.begin;
    for (size_t r = rows.begin; r < rows.end; r++, tile += tile_row) {
        size_t to = r * p->n + p->columns.begin;
        for (size_t i = 0; i < columns; i += WIDTH) {
            size_t count = part_of(i, columns);
            lanes x = load(tile, i, false);
            if (is_added)
                x += load_part(p->c, to + i, count, bf16);
            store_part(p->c, to + i, x, count, bf16);
        }
    }
}

/* Where the chains begin: what they came to with the depths before, or what was there. */
static void read_tile(const struct product_args *p, struct range rows, float *tile, size_t tile_row)
{
    size_t columns = p->columns.end - p->columns.begin;
    for (size_t r = rows.begin; r < rows.end; r++, tile += tile_row)
        memcpy(tile, (const float *)p->c + r * p->n + p->columns.begin, columns * sizeof(float));
}

void ISA_NAME(product)(const void *args, uint32_t item, const struct worker *worker)
{
    const struct product_args *p = args;
    struct range rows = item_range(item, p->item_rows, p->m);
    size_t width = round_up(p->columns.end - p->columns.begin, PANEL);
    size_t depth = p->depth.end - p->depth.begin;
    float *tile = worker->scratch, *packed = tile + PRODUCT_TILE_ROWS * PRODUCT_COLUMNS;
    bool goes_on = p->depth.begin > 0 || (p->is_chained && p->accumulate);
    if (goes_on)
        read_tile(p, rows, tile, width);
    size_t cut = divide_up(depth, divide_up(depth, PRODUCT_DEPTH)); /* none is much shorter */
    for (size_t l = 0; l < depth; l += cut) {
        size_t end = l + cut < depth ? l + cut : depth;
        struct strips a =
            rows_of(p, rows, (struct range){p->depth.begin + l, p->depth.begin + end}, packed);
        struct block block = {.c_row = width,
                              .a_row = a.row,
                              .a_column = a.column,
                              .b_row = PANEL,
                              .m = rows.end - rows.begin,
                              .k = end - l,
                              .accumulate = goes_on || l > 0};
        for (size_t j = 0; j < width; j += PANEL) {
            block.b = p->panels + j * depth + l * PANEL;
            block.c = tile + j;
            add_panel(block, &a);
        }
    }
    BY_TYPE(p->out, write_tile, p, rows, tile, width);
}
