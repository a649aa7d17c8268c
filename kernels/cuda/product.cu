/* product.cu - the products of kernels.h, and a plain kernel for them.
 *
 * Tensor cores compute bf16 if its shape allows, by the library (blas.h) or mma.cu. The plain
 * kernel computes the rest: float, and rows that are no multiple of 16 bytes. Its element of c is
 * one chain of fused multiplications and additions over k, in order, as in cpu/isa/product.c if the
 * level fuses: it has the bits of avx2.
 *
 * A block of 256 threads owns a tile of 64 x 64 and walks k in steps of 16; both operands of a step
 * lie in shared memory as floats, [k][m] and [k][n], each thread has 4 x 4 values of c. */
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_grid.h"
#include "kernels/cuda/values.h"

#define THREADS 256
#define TILE 64
#define DEPTH 16
#define EACH 4 /* values of c a thread has, in either direction */

struct tiles {
    float a[2][DEPTH][TILE + 4], b[2][DEPTH][TILE + 4];
};

/* out[DEPTH][TILE] = the operand from (first, k) on; zeros past its ends. */
template <bool BF16>
DEVICE void load_tile(float (*out)[TILE + 4], const void *from, uint32_t first, uint32_t rows,
                      uint32_t k_first, uint32_t k, bool by_k)
{
#pragma unroll
    for (unsigned i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        /* Neighbouring threads read neighbouring values. */
        unsigned row = by_k ? i / DEPTH : i % TILE, l = by_k ? i % DEPTH : i / TILE;
        size_t at = by_k ? (size_t)(first + row) * k + k_first + l
                         : (size_t)(k_first + l) * rows + first + row;
        bool is_inside = first + row < rows && k_first + l < k;
        out[l][row] = is_inside ? load_one<BF16>(from, at) : 0;
    }
}

template <bool BF16>
DEVICE void load_tiles(struct tiles &t, const struct product &p, const struct place &at,
                       unsigned turn, uint32_t k_first)
{
    load_tile<BF16>(t.a[turn], p.a, at.row, p.m, k_first, p.k, p.a_by_k);
    load_tile<BF16>(t.b[turn], p.b, at.column, p.n, k_first, p.k, p.b_by_k);
}

DEVICE void multiply_tiles(float (&c)[EACH][EACH], const struct tiles &t, unsigned turn,
                           unsigned row, unsigned column, unsigned depth)
{
    for (unsigned l = 0; l < depth; l++) {
#pragma unroll
        for (unsigned i = 0; i < EACH; i++)
#pragma unroll
            for (unsigned j = 0; j < EACH; j++)
                c[i][j] = fused(t.a[turn][l][row + i], t.b[turn][l][column + j], c[i][j]);
    }
}

template <bool BF16> DEVICE void store_value(const struct product &p, size_t at, float value)
{
    if (p.is_float)
        store_one<false>(p.c, at, p.is_added ? value + load_one<false>(p.c, at) : value);
    else
        store_one<BF16>(p.c, at, p.is_added ? value + load_one<BF16>(p.c, at) : value);
}

DEVICE void begin(float (&c)[EACH][EACH], const struct product &p, uint32_t row, uint32_t column)
{
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++)
            if (row + i < p.m && column + j < p.n)
                c[i][j] = load_one<false>(p.c, (size_t)(row + i) * p.n + column + j);
}

template <bool BF16> KERNEL(THREADS, 2) void product_plain(struct product p)
{
    SHARED(struct tiles, t);
    const struct place at = own_place(p, p.a_by_k, TILE);
    unsigned row = threadIdx.x / (TILE / EACH) * EACH, column = threadIdx.x % (TILE / EACH) * EACH;
    float c[EACH][EACH] = {};
    if (!BF16 && p.is_begun)
        begin(c, p, at.row + row, at.column + column);
    unsigned turn = 0;
    for (uint32_t k = 0; k < p.k; k += DEPTH, turn ^= 1) {
        load_tiles<BF16>(t, p, at, turn, k);
        BARRIER();
        /* Without the zeros after the end: a fused addition of 0 turns -0 into 0. */
        multiply_tiles(c, t, turn, row, column, p.k - k < DEPTH ? p.k - k : DEPTH);
    }
    own_result(p, at);
#pragma unroll
    for (unsigned i = 0; i < EACH; i++)
#pragma unroll
        for (unsigned j = 0; j < EACH; j++) {
            uint32_t m = at.row + row + i, n = at.column + column + j;
            if (m < p.m && n < p.n)
                store_value<BF16>(p, (size_t)m * p.n + n, c[i][j]);
        }
}

int cuda_product_plain(const struct cuda_call *call, const struct product *p)
{
    dim3 grid = product_grid(*p, TILE);
    return p->dtype == KERNEL_BF16
               ? LAUNCH(call->stream, grid, THREADS, 0, product_plain<true>, *p)
               : LAUNCH(call->stream, grid, THREADS, 0, product_plain<false>, *p);
}

static int run_fitting(const struct cuda_call *call, const struct product &p, bool fits)
{
    if (!fits)
        return cuda_product_plain(call, &p);
    return call->products != NULL ? call->products->multiply(call->products, call, &p)
                                  : cuda_product_mma(call, &p);
}

/* If tensor cores can compute only some of the products, each is a launch. */
static int run(const struct cuda_call *call, const struct product &p)
{
    uint32_t num = p.num_next + 1, num_fitting = 0;
    for (uint32_t i = 0; i < num; i++) {
        const struct product one = product_at(&p, i);
        num_fitting += cuda_product_fits(&one);
    }
    if (num_fitting % num == 0)
        return run_fitting(call, p, num_fitting > 0);
    int error = 0;
    for (uint32_t i = 0; i < num && error == 0; i++) {
        struct product one = product_at(&p, i);
        one.num_next = 0;
        error = run_fitting(call, one, cuda_product_fits(&one));
    }
    return error;
}

/* A packed operand of float8, [rows,width]; transposed: k are its rows. */
static const void *codes_of(const void *operand, size_t rows, size_t width, bool is_transposed)
{
    return (const char *)operand + (is_transposed ? rows * kernel_float8_pitch(width) : 0);
}
static const float *scale_at(const void *operand, size_t rows, size_t width)
{
    return (const float *)((const char *)operand + kernel_float8_scale_at(rows, width));
}
static uint32_t pairs_of(uint32_t k)
{
    return (uint32_t)kernel_float8_pitch(k) / 2;
}

/* A product that is added to the values in memory. */
static int run_added(const struct cuda_call *call, struct product p)
{
    p.is_begun = p.is_added && !p.is_folded && call->is_chained && p.dtype == KERNEL_F32;
    p.is_added = p.is_added && !p.is_begun;
    return run(call, p);
}

static int run_float8(const struct cuda_call *call, const struct product &p)
{
    return call->products != NULL ? call->products->multiply(call->products, call, &p)
                                  : cuda_product_float8(call, &p);
}

extern "C" int cuda_linear(const struct cuda_call *call, const void *args)
{
    const struct kernel_linear &a = *(const struct kernel_linear *)args;
    struct product p = {a.out,        a.x,     a.w,  a.rows, a.out_dim, a.in, true, true,  false,
                        a.is_partial, a.dtype, NULL, NULL,   false,     {},   0,    false, false};
    if (!a.is_float8 || a.dtype != KERNEL_BF16)
        return run(call, p);
    p.k = pairs_of(a.in);
    p.scale_a = scale_at(a.x, a.rows, a.in);
    p.scale_b = scale_at(a.w, a.out_dim, a.in);
    return run_float8(call, p);
}

extern "C" int cuda_linear_backward_input(const struct cuda_call *call, const void *args)
{
    const struct kernel_linear_backward_input &a =
        *(const struct kernel_linear_backward_input *)args;
    struct product p = {a.dx,         a.dout,       a.w,     a.rows, a.in, a.out_dim, true, false,
                        a.accumulate, a.is_partial, a.dtype, NULL,   NULL, false,     {},   0,
                        false,        false};
    if (!a.is_float8 || a.dtype != KERNEL_BF16)
        return run_added(call, p);
    p.k = pairs_of(a.out_dim);
    p.a_is_e5m2 = a.dout_format == KERNEL_E5M2;
    p.b_by_k = true;
    p.b = codes_of(a.w, a.out_dim, a.in, true);
    p.scale_a = scale_at(a.dout, a.rows, a.out_dim);
    p.scale_b = scale_at(a.w, a.out_dim, a.in);
    return run_float8(call, p);
}

extern "C" int cuda_linear_backward_weight(const struct cuda_call *call, const void *args)
{
    const struct kernel_linear_backward_weight &a =
        *(const struct kernel_linear_backward_weight *)args;
    struct product p = {a.dw, a.dout,  a.x,  a.out_dim, a.in,  a.rows, false, false, false,
                        true, a.dtype, NULL, NULL,      false, {},     0,     false, a.is_folded};
    p.is_added = a.accumulate || a.is_folded;
    if (!a.is_float8 || a.dtype != KERNEL_BF16)
        return run_added(call, p);
    p.k = pairs_of(a.rows);
    p.a_is_e5m2 = a.dout_format == KERNEL_E5M2;
    p.a_by_k = p.b_by_k = true;
    p.a = codes_of(a.dout, a.rows, a.out_dim, true);
    p.b = codes_of(a.x, a.rows, a.in, true);
    p.scale_a = scale_at(a.dout, a.rows, a.out_dim);
    p.scale_b = scale_at(a.x, a.rows, a.in);
    return run_float8(call, p);
}

/* Sets the products after the first. */
static void follow(struct product &p, uint32_t num, void *const *c, const void *const *operands,
                   const uint32_t *sizes)
{
    p.num_next = num - 1;
    for (uint32_t i = 1; i < num; i++)
        p.next[i - 1] = {c[i], operands[i], sizes[i]};
}

#define REFUSED 1 /* cudaErrorInvalidValue */
extern "C" int cuda_linears(const struct cuda_call *call, const void *args)
{
    const struct kernel_linears &a = *(const struct kernel_linears *)args;
    struct product p = {a.out[0], a.x,     a.w[0], a.rows, a.out_dim[0], a.in, true, true,  false,
                        false,    a.dtype, NULL,   NULL,   false,        {},   0,    false, false};
    if (a.num == 0 || a.num > KERNEL_LINEARS_MAX)
        return REFUSED;
    follow(p, a.num, a.out, a.w, a.out_dim);
    return run(call, p);
}

extern "C" int cuda_linears_backward_weight(const struct cuda_call *call, const void *args)
{
    const struct kernel_linears_backward_weight &a =
        *(const struct kernel_linears_backward_weight *)args;
    struct product p = {a.dw[0], a.dout[0],   a.x,   a.out_dim[0], a.in, a.rows, false,
                        false,   a.is_folded, true,  a.dtype,      NULL, NULL,   false,
                        {},      0,           false, a.is_folded};
    if (a.num == 0 || a.num > KERNEL_LINEARS_MAX)
        return REFUSED;
    follow(p, a.num, (void *const *)a.dw, a.dout, a.out_dim);
    return run(call, p);
}
