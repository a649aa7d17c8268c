/* attention.h - who sees whom, and where rows lie: what attention.cu and flash.cu share. */
#ifndef HOLDFAST_CUDA_ATTENTION_H
#define HOLDFAST_CUDA_ATTENTION_H

#include "kernels/cuda/run.h"
#include "kernels/cuda/values.h"

#define HIDDEN_MAX -1e30f /* below every score */

/* Where a row of [B,T,heads,D] begins. */
template <class A>
DEVICE size_t row_at(const A &a, uint32_t heads, uint32_t b, uint32_t t, uint32_t head)
{
    return (((size_t)b * a.seq + t) * heads + head) * a.head_dim;
}
/* First key that the query at t sees; the last one is t. */
template <class A> DEVICE uint32_t start_of(const A &a, uint32_t b, uint32_t t)
{
    return a.starts != NULL ? (uint32_t)a.starts[(size_t)b * a.seq + t] : 0;
}
DEVICE uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}
DEVICE float scale_of(uint32_t head_dim)
{
    return 1.0f / square_root((float)head_dim);
}

#endif
