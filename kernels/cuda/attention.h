/* attention.h - which keys a query sees, and the places of rows: shared by attention.cu and
 * flash.cu. */
#ifndef HOLDFAST_CUDA_ATTENTION_H
#define HOLDFAST_CUDA_ATTENTION_H

#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"

#define HIDDEN_MAX -1e30f /* below every score */

/* Arguments for the kernels: `queries` is always a number of rows. Row r of the queries is at
 * position first + r. */
template <class A> static A with_queries(const A &from)
{
    A a = from;
    a.queries = a.queries == 0 ? a.seq : a.queries;
    return a;
}
/* The place of a row of [B,T,kv_heads,D]. */
template <class A> DEVICE size_t key_at(const A &a, uint32_t b, uint32_t t, uint32_t head)
{
    return (((size_t)b * a.seq + t) * a.kv_heads + head) * a.head_dim;
}
/* First visible key of a row's query; the last one is its position. */
template <class A> DEVICE uint32_t start_of(const A &a, uint32_t b, uint32_t row)
{
    return a.starts != NULL ? (uint32_t)a.starts[(size_t)b * a.queries + row] : 0;
}
DEVICE uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
DEVICE float scale_of(uint32_t head_dim)
{
    return 1.0f / square_root((float)head_dim);
}

/* ln x for x >= 1, see cpu/isa/attention.c. */
DEVICE float logarithm(float x)
{
    const uint32_t half_root = 0x3f3504f3;
    uint32_t exponent = (uint32_t)(bits_of(x) - half_root) >> 23;
    float m = float_of(bits_of(x) - (exponent << 23));
    float f = (m - 1.0f) / (m + 1.0f), square = f * f;
    float p = square * (1.0f / 9) + 1.0f / 7;
    p = p * square + 1.0f / 5;
    p = p * square + 1.0f / 3;
    p = p * square * f + f;
    return (float)(int32_t)exponent * 0x1.62e430p-1f + 2.0f * p + (x - x);
}

/* True if tensor cores can compute it (flash.cu): bf16, heads of 64 or 128 values, any range of
 * queries. */
bool cuda_flash_fits(enum kernel_dtype dtype, uint32_t head_dim);
int cuda_flash(const struct cuda_call *call, const struct kernel_attention *args);
int cuda_flash_backward(const struct cuda_call *call, const struct kernel_attention_backward *args);

#endif
