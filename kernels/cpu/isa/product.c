/* product.c - Holdfast's matrix products of floats, in registers of the level's width.
 *
 * Each element of a result is one chain over k, in order, so the bits depend neither on tiles nor
 * on threads. Multiply and add are fused if the level can (avx2, avx512), so sse2 differs from
 * these two.
 *
 * tile_product holds some rows and vectors of c in registers and walks k: a value of a is
 * broadcast, a row of b is loaded. block_product covers the blocks that attention.c is built from.
 *
 * A product as large as a layer's (run.c cuts it) reads b from panels: PANEL columns side by side,
 * fewer in the last, row after row of k, zeros after the last column. So the kernel reads one
 * stream for any strides of b. product_panels packs them once for all rows of c. An item of
 * product() is some rows of c times the packed columns. Their sums stay in a tile of floats in the
 * thread's scratch, while the loop over k takes cuts of PRODUCT_DEPTH: a few rows of a and a panel
 * of b of that depth fit into the first-level cache. Rows of a are read in place; a transposed a,
 * or one in bf16, is copied for each cut.
 *
 * Layout and order of loops: Goto and van de Geijn, Anatomy of High-Performance Matrix
 * Multiplication, 2008. */
#include "kernels/cpu/isa/isa.h"

/* Registers of c for blocks: 16 of 32, or 8 of 16. */
#define ROWS_WIDE 4
#define VECTORS_WIDE (WIDTH == 16 ? 4 : 2)
#define ROWS_NARROW 8

/* Registers of c for panels: 24 of 32, or 12 of 16. */
#define TILE_VECTORS (WIDTH == 16 ? 3 : 2)
#define PANEL (TILE_VECTORS * WIDTH)
/* Calls an INLINE function whose last argument is the vectors of a panel. */
#define BY_VECTORS(num, function, ...)                           \
    ((num) == TILE_VECTORS ? function(__VA_ARGS__, TILE_VECTORS) \
     : (num) == 2          ? function(__VA_ARGS__, 2)            \
                           : function(__VA_ARGS__, 1))
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
    if (!bf16)
        return _mm_loadu_ps((const float *)p + i);
    __m128i narrow_x = _mm_loadl_epi64((const __m128i *)((const uint16_t *)p + i));
    return (__m128)_mm_unpacklo_epi16(_mm_setzero_si128(), narrow_x);
}

/* Values of SIDE columns side by side; the transposition stays within quads. */
#if WIDTH >= 8
#define SIDE 8
#define SIDE_OP(op) _mm256_##op
typedef __m256 side;

INLINE side load_side(const void *p, size_t i, size_t column, bool bf16)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(load_quad(p, i, bf16)),
                                load_quad(p, i + 4 * column, bf16), 1);
}
#else
#define SIDE 4
#define SIDE_OP(op) _mm_##op
typedef __m128 side;

INLINE side load_side(const void *p, size_t i, size_t column, bool bf16)
{
    (void)column;
    return load_quad(p, i, bf16);
}
#endif
#define LINE 16
_Static_assert(WIDTH % SIDE == 0, "a panel is whole sides");

/* to[l, c] = from[c, l]: four l of SIDE columns. */
INLINE void transpose_side(float *to, size_t to_row, const void *from, size_t i, size_t column,
                           bool bf16)
{
    side a = load_side(from, i, column, bf16), b = load_side(from, i + column, column, bf16);
    side c = load_side(from, i + 2 * column, column, bf16);
    side d = load_side(from, i + 3 * column, column, bf16);
    side ab = SIDE_OP(unpacklo_ps)(a, b), cd = SIDE_OP(unpacklo_ps)(c, d);
    SIDE_OP(storeu_ps)(to, SIDE_OP(shuffle_ps)(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)));
    SIDE_OP(storeu_ps)(to + to_row, SIDE_OP(shuffle_ps)(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    ab = SIDE_OP(unpackhi_ps)(a, b), cd = SIDE_OP(unpackhi_ps)(c, d);
    SIDE_OP(storeu_ps)(to + 2 * to_row, SIDE_OP(shuffle_ps)(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)));
    SIDE_OP(storeu_ps)(to + 3 * to_row, SIDE_OP(shuffle_ps)(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
}

/* A rectangle of a matrix, element (l, c) at l row + c column, one of them 1, and its copy as
 * floats in panels of `width` columns, row after row, `stride` from one panel to the next, zeros
 * after the last column. */
struct packing {
    const void *from;
    size_t row, column, rows, columns;
    float *to;
    size_t stride;
};

/* `width` is a constant at every call, here and below. */
INLINE float *packed(const struct packing *p, const size_t width, size_t l, size_t c)
{
    return p->to + c / width * p->stride + l * width + c % width;
}

INLINE void pack_element(const struct packing *p, const size_t width, size_t l, size_t c, bool bf16)
{
    *packed(p, width, l, c) =
        c < p->columns ? value_at(p->from, l * p->row + c * p->column, bf16) : 0;
}

/* For columns that are contiguous in memory; one panel. Copies LINE values of a column, then of the
 * next: a cache line is read once, even if columns are a power of two apart. */
INLINE void pack_transposed(const struct packing *p, const size_t width, bool bf16)
{
    size_t sides = p->columns / SIDE * SIDE, quads = p->rows / 4 * 4;
    for (size_t begin = 0; begin < quads; begin += LINE)
        for (size_t c = 0; c < sides; c += SIDE)
            for (size_t l = begin; l < quads && l < begin + LINE; l += 4)
                transpose_side(packed(p, width, l, c), width, p->from, l * p->row + c * p->column,
                               p->column, bf16);
    for (size_t l = 0; l < p->rows; l++)
        for (size_t c = l < quads ? sides : 0; c < width; c++)
            pack_element(p, width, l, c, bf16);
}

/* `width` values that are neighbours. */
INLINE void pack_row(float *to, const void *from, size_t i, const size_t width, bool bf16)
{
    if (!bf16)
        memcpy(to, (const float *)from + i, width * sizeof(float));
    else
        for (size_t c = 0; c < width; c += WIDTH) {
            size_t count = part_of(c, width);
            lanes x = load_part(from, i + c, count, true);
            memcpy(to + c, &x, count * sizeof(float));
        }
}

/* For rows that are contiguous in memory. A few panels at a time: panels are a power of two apart,
 * and share sets of the cache. */
INLINE void pack_dense(const struct packing *p, const size_t width, bool bf16)
{
    size_t end = round_up(p->columns, width), num = p->columns / width, whole = num * width;
    for (size_t first = 0; first < num; first += 16)
        for (size_t l = 0; l < p->rows; l++)
            for (size_t i = first; i < num && i < first + 16; i++)
                pack_row(p->to + i * p->stride + l * width, p->from, l * p->row + i * width, width,
                         bf16);
    for (size_t l = 0; l < p->rows; l++)
        for (size_t c = whole; c < end; c++)
            pack_element(p, width, l, c, bf16);
}

INLINE void pack_panel(const struct packing *b, enum kernel_dtype dtype, const size_t vectors)
{
    if (b->column == 1)
        BY_TYPE(dtype, pack_dense, b, vectors * WIDTH);
    else
        BY_TYPE(dtype, pack_transposed, b, vectors * WIDTH);
}

/* The vectors of a panel that begins at a column: those that are left; of four, two. */
static size_t panel_vectors(size_t begin, size_t columns)
{
    size_t left = divide_up(columns - begin, WIDTH);
    return left > TILE_VECTORS ? TILE_VECTORS - (TILE_VECTORS == 3 && left == 4) : left;
}

static const void *element(const void *p, size_t i, enum kernel_dtype dtype)
{
    return (const char *)p + i * kernel_dtype_bytes(dtype);
}

ITEM(ISA_NAME(product_panels))
{
    const struct product_args *p = args;
    size_t columns = p->columns.end - p->columns.begin, depth = p->depth.end - p->depth.begin;
    struct range own = item_range(item, PRODUCT_PANELS, columns);
    for (size_t begin = 0, vectors; begin < own.end; begin += vectors * WIDTH) {
        vectors = panel_vectors(begin, columns);
        if (begin < own.begin)
            continue;
        size_t column = p->columns.begin + begin, left = columns - begin;
        struct packing b = {element(p->b, p->depth.begin * p->b_row + column * p->b_column, p->in),
                            p->b_row,
                            p->b_column,
                            depth,
                            left < vectors * WIDTH ? left : vectors * WIDTH,
                            p->panels + begin * depth,
                            0};
        BY_VECTORS(vectors, pack_panel, &b, p->in);
    }
}

/* ---- Rows of c times the packed columns ---- */

/* A cut of k of the rows of a, in strips of TILE_ROWS rows: row r of strip i, element l is at[i
 * strip + r row + l column]; the last strip has its own place and row, and zeros after the last
 * row. */
struct strips {
    const float *at, *last;
    size_t strip, row, last_row, column;
};

/* to[rows][depth], zeros up to a whole strip. */
INLINE void copy_rows(float *to, const void *from, size_t from_row, size_t rows, size_t depth,
                      bool bf16)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t l = 0; l < depth; l += WIDTH) {
            size_t count = part_of(l, depth);
            lanes x = load_part(from, r * from_row + l, count, bf16);
            store_part(to, r * depth + l, x, count, false);
        }
    memset(to + rows * depth, 0, (round_up(rows, TILE_ROWS) - rows) * depth * sizeof(float));
}

/* Contiguous rows are read in place, except the last strip, and all rows in bf16; a transposed a is
 * packed. */
static struct strips rows_of(const struct product_args *p, struct range rows, struct range k,
                             float *scratch)
{
    size_t depth = k.end - k.begin, num = rows.end - rows.begin;
    size_t last = (divide_up(num, TILE_ROWS) - 1) * TILE_ROWS;
    const void *from = element(p->a, rows.begin * p->a_row + k.begin * p->a_column, p->in);
    if (p->a_column != 1) {
        size_t strip = TILE_ROWS * depth + LINE; /* a gap: strips share no cache sets */
        struct packing a = {from, p->a_column, 1, depth, num, scratch, strip};
        BY_TYPE(p->in, pack_dense, &a, TILE_ROWS);
        return (struct strips){scratch, scratch + last / TILE_ROWS * strip, strip, 1, 1, TILE_ROWS};
    }
    if (p->in == KERNEL_BF16) {
        copy_rows(scratch, from, p->a_row, num, depth, true);
        return (struct strips){scratch, scratch + last * depth, TILE_ROWS * depth, depth, depth, 1};
    }
    copy_rows(scratch, (const float *)from + last * p->a_row, p->a_row, num - last, depth, false);
    return (struct strips){from, scratch, TILE_ROWS * p->a_row, p->a_row, depth, 1};
}

/* tile[rows][columns] (+)= a times one cut of a panel. */
INLINE void add_panel(struct block block, const struct strips *a, const size_t vectors)
{
    size_t last = (divide_up(block.m, TILE_ROWS) - 1) * TILE_ROWS;
    block.a = a->at;
    for (size_t i = 0; i < last; i += TILE_ROWS) {
        tile_product(&block, 0, 0, TILE_ROWS, vectors);
        block.a += a->strip;
        block.c += TILE_ROWS * block.c_row;
    }
    block.a = a->last;
    block.a_row = a->last_row;
    tile_product(&block, 0, 0, TILE_ROWS, vectors);
}

INLINE void write_tile(const struct product_args *p, struct range rows, const float *tile,
                       size_t tile_row, bool bf16)
{
    bool is_added = (p->accumulate && !p->is_chained) || p->is_folded;
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

/* Reads the starts of the chains: the results of earlier depths, or the values in memory. */
static void read_tile(const struct product_args *p, struct range rows, float *tile, size_t tile_row)
{
    size_t columns = p->columns.end - p->columns.begin;
    for (size_t r = rows.begin; r < rows.end; r++, tile += tile_row)
        memcpy(tile, (const float *)p->c + r * p->n + p->columns.begin, columns * sizeof(float));
}

ITEM(ISA_NAME(product))
{
    const struct product_args *p = args;
    struct range rows = item_range(item, p->item_rows, p->m);
    size_t width = round_up(p->columns.end - p->columns.begin, WIDTH);
    size_t depth = p->depth.end - p->depth.begin;
    float *tile = worker->scratch, *packed = tile + PRODUCT_TILE_ROWS * PRODUCT_COLUMNS;
    bool goes_on = p->depth.begin > 0 || (p->is_chained && p->accumulate);
    if (goes_on)
        read_tile(p, rows, tile, width);
    /* So that no cut is much shorter. */
    size_t cut = divide_up(depth, divide_up(depth, PRODUCT_DEPTH));
    for (size_t l = 0; l < depth; l += cut) {
        size_t end = l + cut < depth ? l + cut : depth;
        struct strips a =
            rows_of(p, rows, (struct range){p->depth.begin + l, p->depth.begin + end}, packed);
        struct block block = {.c_row = width,
                              .a_row = a.row,
                              .a_column = a.column,
                              .m = rows.end - rows.begin,
                              .k = end - l,
                              .accumulate = goes_on || l > 0};
        for (size_t j = 0, vectors; j < width; j += block.b_row) {
            vectors = panel_vectors(j, width);
            block.b_row = vectors * WIDTH;
            block.b = p->panels + j * depth + l * block.b_row;
            block.c = tile + j;
            BY_VECTORS(vectors, add_panel, block, &a);
        }
    }
    BY_TYPE(p->out, write_tile, p, rows, tile, width);
}
