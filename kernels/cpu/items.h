/* items.h - shared by the files of the CPU's back-end: work items, the operation table, the pool,
 * the library.
 *
 * Every operation is cut into items of a fixed size. One thread computes a whole item, only from
 * `args`, so a result depends neither on the number of threads nor on their order. A back-end is a
 * table of functions that compute one item each: kernel_ops_reference is plain C,
 * kernel_ops_{sse2,avx2,avx512} are the files of cpu/isa compiled three times. run.c fills in the
 * arguments, counts the items and gives them to the pool. The library of cpu/linear.c may compute
 * matrix products instead of the table.
 *
 * Dimension letters are those of kernels.h. */
#ifndef HOLDFAST_KERNELS_CPU_ITEMS_H
#define HOLDFAST_KERNELS_CPU_ITEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/backend.h"

/* ---- Items ---- */

/* The sizes of items. They are part of the numeric identity: NORM_ROWS is the segment of the norm's
 * weight gradient, PRODUCT_ROWS* are the rows that the library computes in one call. */
#define NORM_ROWS 32
#define ROPE_ROWS 32
#define LOSS_ROWS 4
#define SQUARES_ROWS 64
#define FLAT_ITEM 16384         /* elements, for elementwise operations */
#define COLUMN_ITEM 64          /* columns, if rows have to be added in order */
#define PRODUCT_ROWS 128        /* rows of an activation or its gradient */
#define PRODUCT_ROWS_WEIGHT 256 /* rows of a weight's gradient */
#define ATTENTION_LANES 64      /* queries (positions x heads of a group) in one tile */
#define ATTENTION_KEYS 64       /* keys per block */
#define THREADS_MAX 256         /* per struct kernels; more is refused */
#define LANES 16                /* of every sum */

/* The thread that works on an item. */
struct worker {
    uint32_t index; /* 0 is the caller */
    void *scratch;  /* of the worker, 64-byte aligned */
};
typedef void item_fn(const void *args, uint32_t item, const struct worker *worker);
/* The head of an item's function; some do not use their worker. */
#define ITEM(name) \
    void name(const void *args, uint32_t item, __attribute__((unused)) const struct worker *worker)

struct range {
    size_t begin, end;
};
static inline struct range item_range(uint32_t item, size_t item_size, size_t total)
{
    size_t begin = (size_t)item * item_size;
    size_t end = begin + item_size < total ? begin + item_size : total;
    return (struct range){begin, end};
}
static inline size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}
static inline size_t round_up(size_t a, size_t b)
{
    return divide_up(a, b) * b;
}

/* ---- Arguments: the operation's struct of kernels.h, or if items need more, one of these; shapes
 * as there ---- */

/* sorted: (token, row) of the rows in that order, if the sums of tokens are made separately. */
struct embedding_backward_args {
    struct kernel_embedding_backward a;
    uint64_t *sorted;
};
struct norm_backward_args {
    struct kernel_rmsnorm_backward a;
    float *partial; /* [segments,C] weight gradients of NORM_ROWS rows each */
};

/* c[M,N] (+)= a[M,K] b[K,N]; strides in elements; the rows of c are dense. An item is item_rows
 * whole rows of c, since the library is fastest with dense results. In Holdfast's products it is
 * these rows of the current columns. */
struct product_args {
    void *c;
    const void *a, *b;
    uint32_t m, n, k, item_rows;
    size_t a_row, a_column, b_row, b_column;
    bool accumulate;
    bool is_folded; /* c is added at the end */
    enum kernel_dtype in, out;
    /* For Holdfast's products. is_chained: an element's chain begins with c, instead of being added
     * to c at its end. The others give the current columns, rows and depths, and b packed in
     * panels. A depth that does not begin at 0 continues from c. */
    bool is_chained;
    struct range columns, depth;
    float *panels;
};

/* The position of row n of [B,T] in its document, or in its sequence. */
static inline size_t rope_position(const struct kernel_rope *a, size_t n)
{
    return a->first + n % a->seq - (a->starts != NULL ? (size_t)a->starts[n] : 0);
}

struct attention_args {
    void *out;                   /* [B,Q,H,D] */
    float *lse;                  /* [B,H,Q] */
    const void *q, *key, *value; /* [B,Q,H,D], [B,T,K,D] */
    void *dq, *dkey, *dvalue;    /* likewise */
    const void *dout, *out_in;   /* [B,Q,H,D] */
    const float *lse_in;         /* [B,H,Q] */
    const int32_t *starts;       /* [B,Q] first visible key of a query; NULL: 0 */
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t queries, first; /* Q; the first one's position */
    bool accumulate;
    enum kernel_dtype dtype, sums; /* sums: of dkey and dvalue */
};
/* The first visible key of the query at position t of sequence b. */
static inline size_t attention_start(const struct attention_args *a, size_t b, size_t t)
{
    return a->starts != NULL ? (size_t)a->starts[b * a->queries + t - a->first] : 0;
}
/* Query positions per item: with the heads that share a key, about ATTENTION_LANES queries. */
static inline uint32_t attention_positions(const struct attention_args *a)
{
    uint32_t group = a->heads / a->kv_heads;
    return group >= ATTENTION_LANES ? 1 : ATTENTION_LANES / group;
}
/* Forward items are (sequence, key head, tile of positions); backward items (sequence, key head).
 */
static inline uint32_t attention_items(const struct attention_args *a, bool backward)
{
    size_t tiles = backward ? 1 : divide_up(a->queries, attention_positions(a));
    return (uint32_t)((size_t)a->batch * a->kv_heads * tiles);
}

/* Copies between a rectangle of a matrix and dense rows, in bytes. */
struct box_args {
    char *to;
    const char *from;
    size_t rows, row_bytes, to_stride, from_stride;
    size_t item_rows; /* about FLAT_ITEM elements */
};

struct float8_args { /* out, x: numbers, or codes */
    void *out;
    const void *x;
    size_t count;
    enum kernel_dtype dtype;
    uint32_t *largest; /* bits of |x|, one per worker, a line apart */
    int scale;         /* the power of two; FLOAT8_NAN: all results are NaN */
    /* Of the format: bits after the first; the exponent below which steps are equal. */
    int bits, lowest;
};
#define FLOAT8_NAN 1000
#define FLOAT8_WORKER 16u /* a cache line */

struct extremes_args {
    struct kernel_extremes a;
    struct extent_of_worker { /* one per worker, a cache line each */
        _Alignas(64) struct kernel_extent of;
    } * partial;
};
#define EXTENT_NONE ((struct kernel_extent){.smallest = UINT32_MAX})
static inline void extent_merge(struct kernel_extent *all, const struct kernel_extent *part)
{
    all->largest = part->largest > all->largest ? part->largest : all->largest;
    all->smallest = part->smallest < all->smallest ? part->smallest : all->smallest;
    all->not_finite += part->not_finite;
}
static inline void extent_add(struct kernel_extent *all, uint32_t bits)
{
    bool is_finite = bits < 0x7f800000;
    extent_merge(all, &(struct kernel_extent){bits, bits, is_finite ? 0 : 1});
}

struct squares_args {
    struct kernel_sum_squares a;
    struct kernel_exact_sum *partial; /* one per worker */
};
/* The piece of a row, and the row's place in it, in elements. */
static inline const struct kernel_squares_piece *squares_piece(const struct kernel_sum_squares *a,
                                                               uint64_t row, size_t *out_first)
{
    uint32_t low = 0, high = a->num - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (row < a->pieces[middle].end)
            high = middle;
        else
            low = middle + 1;
    }
    *out_first = (row - (low > 0 ? a->pieces[low - 1].end : 0)) * a->pieces[low].width;
    return &a->pieces[low];
}

struct digest_sums {
    uint64_t of[2];
};
struct digest_args {
    struct kernel_digest a;
    struct digest_sums *partial; /* one per worker */
};
/* Adds an element: its bits, and (its index in the tensor + 1) DIGEST_STEP (proto/base/checksum.h).
 */
#define DIGEST_STEP 0x9e3779b97f4a7c15u
static inline void digest_element(struct digest_sums *sums, uint64_t bits, uint64_t a)
{
    uint64_t b = (a ^ a >> 32) * 0xff51afd7ed558ccdu, key = b ^ b >> 32;
    uint64_t c = key * 0xc4ceb9fe1a85ec53u;
    sums->of[0] += bits * key;
    sums->of[1] += bits * (c ^ c >> 32);
}

_Static_assert(KERNEL_ADAMW_ITEM == FLAT_ITEM, "items are those of what is elementwise");
/* The piece of an item, and the item's elements in it. */
static inline const struct kernel_adamw_piece *adamw_piece(const struct kernel_adamw *a,
                                                           uint32_t item, struct range *out)
{
    uint32_t i = 0;
    while (item >= a->end[i])
        i++;
    *out = item_range(item - (i > 0 ? a->end[i - 1] : 0), FLAT_ITEM, a->pieces[i].count);
    return &a->pieces[i];
}
/* The permutation of kernels.h. */
static inline uint32_t noise_mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15) * 0x735a2d97u;
    return x ^ x >> 15;
}

/* ---- The table of a back-end: each slot computes one item ---- */

/* X(slot), or OPTIONAL(slot), which reference.c lacks. */
#define KERNEL_SLOTS(X, OPTIONAL)                                                               \
    X(embedding)             /* NORM_ROWS rows of out */                                        \
    X(embedding_backward)    /* COLUMN_ITEM columns of dtable */                                \
    X(norm)                  /* out, rstd, x; NORM_ROWS rows */                                 \
    X(norm_backward)         /* dx and the segment's row of partial; NORM_ROWS rows */          \
    X(norm_dweight)          /* dweight from partial, segments in order; COLUMN_ITEM columns */ \
    OPTIONAL(product_panels) /* packs PRODUCT_PANELS columns of b; NULL: product reads b */     \
    X(product)               /* item_rows of c; scratch: PRODUCT_SCRATCH */                     \
    X(rope)                  /* ROPE_ROWS of B*T */                                             \
    X(attention)             /* out, lse; scratch: attention_scratch */                         \
    X(attention_backward)    /* dq, dkey, dvalue; scratch: attention_scratch */                 \
    X(swiglu)                /* FLAT_ITEM elements */                                           \
    X(swiglu_backward)       /* FLAT_ITEM elements */                                           \
    X(loss)                  /* LOSS_ROWS rows; scratch: loss_scratch */                        \
    X(box)                   /* item_rows rows copied */                                        \
    X(add)                   /* FLAT_ITEM elements */                                           \
    X(fold)                  /* FLAT_ITEM elements */                                           \
    X(convert)               /* FLAT_ITEM elements */                                           \
    X(largest)               /* |x| of FLAT_ITEM elements into largest[worker] */               \
    X(round_float8)          /* FLAT_ITEM elements, with a known scale */                       \
    X(float8_encode)         /* FLAT_ITEM elements to codes of e4m3 */                          \
    X(float8_decode)         /* and back; x: codes */                                           \
    X(extremes)              /* FLAT_ITEM elements into partial[worker] */                      \
    X(squares)               /* SQUARES_ROWS rows into partial[worker] */                       \
    X(digest)                /* FLAT_ITEM elements into partial[worker] */                      \
    X(adamw)                 /* FLAT_ITEM elements of a piece */

struct kernel_ops {
    const char *name;
    uint32_t strip_rows; /* rows that a product computes together; 0: one, as in reference.c */
#define X(slot) item_fn *slot;
    KERNEL_SLOTS(X, X)
#undef X
};
extern const struct kernel_ops kernel_ops_reference, kernel_ops_sse2, kernel_ops_avx2,
    kernel_ops_avx512;

/* Scratch per thread, in bytes, for every back-end. */
#define PRODUCT_TILE_ROWS 96 /* Holdfast's products: most rows of an item */
#define PRODUCT_COLUMNS 768  /* most columns of a round */
#define PRODUCT_DEPTH 768    /* cuts of the contraction */
#define PRODUCT_PANELS 48    /* columns that are packed together */
#define PRODUCT_SCRATCH \
    (sizeof(float) * PRODUCT_TILE_ROWS * (size_t)(PRODUCT_COLUMNS + PRODUCT_DEPTH + LANES))
static inline size_t attention_scratch(const struct attention_args *a)
{
    size_t lanes = round_up((size_t)attention_positions(a) * (a->heads / a->kv_heads), LANES);
    size_t width = round_up(a->head_dim, LANES);
    size_t tile = 8 * width * lanes + 2 * ATTENTION_KEYS * lanes + 8 * lanes;
    size_t block = 2 * ATTENTION_KEYS * width;
    size_t sums = 2 * round_up(a->seq, ATTENTION_KEYS) * width; /* dkey and dvalue of one head */
    size_t scores = 2 * round_up(a->seq, LANES);                /* the reference's, in double */
    return sizeof(float) * (tile + block + sums + scores);
}
static inline size_t loss_scratch(uint32_t vocab)
{
    return sizeof(float) * round_up(vocab, LANES);
}

/* ---- Exact sums (exact.c) ---- */

/* Adds a value >= 0, infinity or NaN. */
void exact_add(struct kernel_exact_sum *sum, double value);
void exact_merge(struct kernel_exact_sum *sum, const struct kernel_exact_sum *other);

/* ---- Threads (pool.c) ---- */

struct pool;
int pool_new(struct pool **out, uint32_t num_threads);
void pool_free(struct pool *pool);
uint32_t pool_threads(const struct pool *pool);
/* Calls fn(args, i, worker) once for each i < items, on the caller and on threads that are free.
 * Worker w works on scratch + w * scratch_stride. All calls have returned, and are visible to the
 * caller, when this returns. */
void pool_run(struct pool *pool, item_fn *fn, const void *args, uint32_t items, void *scratch,
              size_t scratch_stride);

/* ---- The library (cpu/linear.c) ---- */

#define LIBRARY_SCRATCH ((size_t)4 << 20) /* bytes per thread; larger products are Holdfast's */
/* The place, after the library's scratch, for an item of a folded product. */
static inline size_t library_leaf(size_t rows, size_t columns)
{
    return sizeof(float) * rows * columns;
}

struct library;
int library_new(struct library **out, uint32_t num_threads);
void library_free(struct library *library);
const char *library_describe(const struct library *library); /* borrowed */
/* A product ready to run, with the same items. */
struct library_product {
    const struct product_args *args;
    struct library *owner;
    struct library_entry *whole, *last; /* for items of item_rows, and for the last */
    item_fn *fold;                      /* the table's, for a folded product */
};
/* Returns false if the library does not support the product (type or scratch). */
bool library_prepare(struct library_product *out, struct library *library,
                     const struct product_args *args);
void library_product_item(const void *product, uint32_t item, const struct worker *worker);

#endif
