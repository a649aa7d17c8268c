/* mma.cu - products of bf16 by tensor cores, used without cuBLASLt.
 *
 * A block of 8 warps owns a tile of 128 x 128 of c and walks k in steps of 32. Three steps of both
 * operands lie in shared memory; asynchronous copies of 16 bytes fill the third while the first is
 * multiplied. A warp owns 64 x 32 of c: 4 x 4 products of m16n8k16, in float, rounded once at the
 * end. An operand has the tensor's layout in shared memory, [rows][k] or [k][rows]: ldmatrix
 * transposes the latter. Rows are padded by 16 bytes, so that the eight rows of a matrix are in
 * different banks. Zeros follow the ends. The sum over k runs in steps of 16 in order; the order
 * within a step is the tensor core's.
 *
 * In float8 operands a pair of codes replaces a value of bf16: copies and fragments are the same,
 * and a step of 16 pairs is a product of m16n8k32. Both operands have k contiguous. */
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_grid.h"
#include "kernels/cuda/values.h"

#define THREADS 256
#define TILE 128 /* rows and columns of c */
#define DEPTH 32
#define STAGES 3
#define WARP_ROWS 64
#define WARP_COLUMNS 32
#define CHUNK 8 /* values of a copy */
#define ROW_BY_K (DEPTH + 8)
#define ROW_ACROSS (TILE + 8)
/* For a tile of an operand in either layout. */
#define TILE_VALUES (TILE * ROW_BY_K > DEPTH * ROW_ACROSS ? TILE * ROW_BY_K : DEPTH * ROW_ACROSS)

enum operands { OF_BF16, OF_E4M3, OF_E5M2 }; /* the latter two: a; then b is E4M3 */

struct stage {
    uint16_t a[TILE_VALUES], b[TILE_VALUES];
};

/* Begins to copy an operand's tile at (first, k_first). */
template <bool BY_K>
DEVICE void copy_tile(uint16_t *to, const void *from, uint32_t first, uint32_t rows,
                      uint32_t k_first, uint32_t k)
{
    const unsigned per_row = (BY_K ? DEPTH : TILE) / CHUNK;
#pragma unroll
    for (unsigned i = threadIdx.x; i < TILE * DEPTH / CHUNK; i += THREADS) {
        unsigned outer = i / per_row, inner = i % per_row * CHUNK;
        uint32_t row = first + (BY_K ? outer : inner), l = k_first + (BY_K ? inner : outer);
        size_t at = BY_K ? (size_t)row * k + l : (size_t)l * rows + row;
        bool is_read = row < rows && l < k;
        copy_async(to + outer * (BY_K ? ROW_BY_K : ROW_ACROSS) + inner,
                   (const uint16_t *)from + (is_read ? at : 0), is_read);
    }
}

template <bool A_BY_K, bool B_BY_K>
DEVICE void copy_stage(struct stage *s, const struct product &p, const struct place &at,
                       uint32_t k_first)
{
    copy_tile<A_BY_K>(s->a, p.a, at.row, p.m, k_first, p.k);
    copy_tile<B_BY_K>(s->b, p.b, at.column, p.n, k_first, p.k);
    copy_commit();
}

/* a[16,16] at (row, k) as a fragment. */
template <bool BY_K>
DEVICE void load_a(uint32_t (&out)[4], const uint16_t *tile, unsigned row, unsigned k)
{
    unsigned lane = threadIdx.x % WARP, matrix = lane / 8, in = lane % 8;
    if (BY_K)
        load_matrices(out, tile + (row + matrix % 2 * 8 + in) * ROW_BY_K + k + matrix / 2 * 8);
    else
        load_matrices_transposed(out, tile + (k + matrix / 2 * 8 + in) * ROW_ACROSS + row +
                                          matrix % 2 * 8);
}
/* b[16,16] at (k, column): the fragments of two products of 8 columns. */
template <bool BY_K>
DEVICE void load_b(uint32_t (&out)[4], const uint16_t *tile, unsigned column, unsigned k)
{
    unsigned lane = threadIdx.x % WARP, matrix = lane / 8, in = lane % 8;
    if (BY_K)
        load_matrices(out, tile + (column + matrix / 2 * 8 + in) * ROW_BY_K + k + matrix % 2 * 8);
    else
        load_matrices_transposed(out, tile + (k + matrix % 2 * 8 + in) * ROW_ACROSS + column +
                                          matrix / 2 * 8);
}

template <enum operands OF>
DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (OF == OF_BF16)
        multiply_matrices(c, a, b0, b1);
    else
        multiply_float8<OF == OF_E5M2>(c, a, b0, b1);
}

#define M_TILES (WARP_ROWS / 16)
#define N_TILES (WARP_COLUMNS / 8)

template <enum operands OF, bool A_BY_K, bool B_BY_K>
DEVICE void multiply_stage(float (&c)[M_TILES][N_TILES][4], const struct stage *s, unsigned row,
                           unsigned column)
{
#pragma unroll
    for (unsigned k = 0; k < DEPTH; k += 16) {
        uint32_t a[M_TILES][4], b[N_TILES / 2][4];
#pragma unroll
        for (unsigned i = 0; i < M_TILES; i++)
            load_a<A_BY_K>(a[i], s->a, row + 16 * i, k);
#pragma unroll
        for (unsigned j = 0; j < N_TILES / 2; j++)
            load_b<B_BY_K>(b[j], s->b, column + 16 * j, k);
#pragma unroll
        for (unsigned i = 0; i < M_TILES; i++)
#pragma unroll
            for (unsigned j = 0; j < N_TILES; j++)
                multiply<OF>(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

/* Two neighbouring values of c. */
template <bool IS_FLOAT>
DEVICE void store_pair(const struct product &p, size_t at, float x, float y)
{
    if (p.is_added) {
        x = x + load_one<!IS_FLOAT>(p.c, at);
        y = y + load_one<!IS_FLOAT>(p.c, at + 1);
    }
    if (IS_FLOAT) {
        store_one<false>(p.c, at, x);
        store_one<false>(p.c, at + 1, y);
    } else {
        *(uint32_t *)((uint16_t *)p.c + at) = (uint32_t)to_bf16(y) << 16 | to_bf16(x);
    }
}

template <enum operands OF, bool IS_FLOAT>
DEVICE void store_tile(const struct product &p, const struct place &at,
                       const float (&c)[M_TILES][N_TILES][4], unsigned row, unsigned column)
{
    unsigned lane = threadIdx.x % WARP;
    float scale_a = OF == OF_BF16 ? 1 : *p.scale_a, scale_b = OF == OF_BF16 ? 1 : *p.scale_b;
#pragma unroll
    for (unsigned i = 0; i < M_TILES * N_TILES * 2; i++) {
        unsigned half = i % 2, tile_n = i / 2 % N_TILES, tile_m = i / 2 / N_TILES;
        uint32_t m = at.row + row + tile_m * 16 + half * 8 + lane / 4;
        uint32_t n = at.column + column + tile_n * 8 + lane % 4 * 2;
        const float *pair = c[tile_m][tile_n] + half * 2;
        if (m < p.m && n < p.n)
            store_pair<IS_FLOAT>(p, (size_t)m * p.n + n, pair[0] * scale_a * scale_b,
                                 pair[1] * scale_a * scale_b);
    }
}

template <enum operands OF, bool A_BY_K, bool B_BY_K, bool IS_FLOAT>
DEVICE void make_tile(struct product &p, const struct place &at)
{
    DYNAMIC_SHARED(struct stage, stages);
    unsigned warp = threadIdx.x / WARP, row = warp / 4 * WARP_ROWS,
             column = warp % 4 * WARP_COLUMNS;
    uint32_t steps = (p.k + DEPTH - 1) / DEPTH;
    float c[M_TILES][N_TILES][4] = {};
    for (uint32_t s = 0; s < STAGES - 1; s++)
        copy_stage<A_BY_K, B_BY_K>(stages + s, p, at, s * DEPTH);
    for (uint32_t s = 0; s < steps; s++) {
        copy_wait<STAGES - 2>();
        BARRIER(); /* copies of other threads are complete, and no thread reads the previous
                    * stage */
        copy_stage<A_BY_K, B_BY_K>(stages + (s + STAGES - 1) % STAGES, p, at,
                                   (s + STAGES - 1) * DEPTH);
        multiply_stage<OF, A_BY_K, B_BY_K>(c, stages + s % STAGES, row, column);
    }
    copy_wait<0>();
    own_result(p, at);
    store_tile<OF, IS_FLOAT>(p, at, c, row, column);
}

template <bool A_BY_K, bool B_BY_K, bool IS_FLOAT>
KERNEL(THREADS, 1)
void product_mma(struct product p)
{
    struct place at = {blockIdx.y * TILE, blockIdx.x * TILE, 0};
    if (A_BY_K == B_BY_K) /* the other case is gradients of rows: no product follows */
        at = own_place(p, A_BY_K, TILE);
    make_tile<OF_BF16, A_BY_K, B_BY_K, IS_FLOAT>(p, at);
}
/* For sm_90a ptxas widens the codes to fp16 (F2FP.F16.E4M3.UNPACK_B, HMMA): there this saves memory
 * traffic, but no time of the tensor cores. */
template <enum operands OF, bool IS_FLOAT> KERNEL(THREADS, 1) void product_float8(struct product p)
{
    const struct place at = {blockIdx.y * TILE, blockIdx.x * TILE, 0};
    make_tile<OF, true, true, IS_FLOAT>(p, at);
}

bool cuda_product_fits(const struct product *p)
{
    return p->dtype == KERNEL_BF16 && (p->a_by_k ? p->k : p->m) % CHUNK == 0 &&
           (p->b_by_k ? p->k : p->n) % CHUNK == 0 && p->n % 2 == 0;
}

#define SHARED_BYTES (STAGES * sizeof(struct stage))

template <bool A_BY_K, bool B_BY_K>
static int launch(const struct cuda_call *call, const struct product &p)
{
    return p.is_float ? LAUNCH(call->stream, product_grid(p, TILE), THREADS, SHARED_BYTES,
                               (product_mma<A_BY_K, B_BY_K, true>), p)
                      : LAUNCH(call->stream, product_grid(p, TILE), THREADS, SHARED_BYTES,
                               (product_mma<A_BY_K, B_BY_K, false>), p);
}

/* Of eight possible variants, those that the operations of kernels.h use. */
int cuda_product_mma(const struct cuda_call *call, const struct product *p)
{
    if (p->a_by_k)
        return p->b_by_k ? launch<true, true>(call, *p) : launch<true, false>(call, *p);
    return LAUNCH(call->stream, product_grid(*p, TILE), THREADS, SHARED_BYTES,
                  (product_mma<false, false, true>), *p);
}

template <enum operands OF>
static int launch_float8(const struct cuda_call *call, const struct product &p)
{
    return p.is_float ? LAUNCH(call->stream, product_grid(p, TILE), THREADS, SHARED_BYTES,
                               (product_float8<OF, true>), p)
                      : LAUNCH(call->stream, product_grid(p, TILE), THREADS, SHARED_BYTES,
                               (product_float8<OF, false>), p);
}

#define NOT_SUPPORTED 801 /* cudaErrorNotSupported */
int cuda_product_float8(const struct cuda_call *call, const struct product *p)
{
    if (p->n % 2 != 0) /* two values of a result are stored as one */
        return NOT_SUPPORTED;
    return p->a_is_e5m2 ? launch_float8<OF_E5M2>(call, *p) : launch_float8<OF_E4M3>(call, *p);
}
