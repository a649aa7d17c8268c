/* job.h - an operation in the CPU's back-end: shared by run.c and products.c. */
#ifndef HOLDFAST_KERNELS_CPU_JOB_H
#define HOLDFAST_KERNELS_CPU_JOB_H

#include <pthread.h>

#include "kernels/cpu/items.h"

struct cpu_kernels {
    struct kernels base;
    const struct kernel_ops *ops;
    struct library *library;  /* NULL: products use ops->product */
    bool is_chained;          /* products of floats: kernels_chain_products */
    pthread_mutex_t products; /* held while the library computes a product */
    struct pool *pool;
    char description[128];
};

struct job {
    struct cpu_kernels *k;
    struct lane *lane;
};

/* Runs items that each need `bytes` of scratch for their thread. */
static inline void run(const struct job *j, item_fn *fn, const void *args, size_t items,
                       size_t bytes)
{
    size_t stride = round_up(bytes, 64);
    REQUIRE(items <= UINT32_MAX);
    REQUIRE(stride * pool_threads(j->k->pool) <= j->lane->scratch_bytes);
    pool_run(j->k->pool, fn, args, (uint32_t)items, j->lane->scratch, stride);
}

static inline size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Each operation of kernels.h: cuts it into items, and runs them. */
#define X(NAME, name, pointers, last) \
    void cpu_##name(const struct job *j, const struct kernel_##name *a);
KERNEL_OPS(X)
#undef X

/* Bytes of scratch for Holdfast's products at these shapes. */
size_t products_scratch(const struct cpu_kernels *k, const struct kernel_shapes *s);

#endif
