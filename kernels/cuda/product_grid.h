/* product_grid.h - several products in one launch (product.h): its grid, and the tile of a block.
 *
 * The tiles of all products are adjacent: along the columns of c if they have a in common, else
 * along its rows. A block finds its product and its tile; the rest of a kernel handles one product,
 * so each has the bits of a single product.
 *
 * Device code, included by the .cu files. */
#ifndef HOLDFAST_CUDA_PRODUCT_GRID_H
#define HOLDFAST_CUDA_PRODUCT_GRID_H

#include "kernels/cuda/bodies.h"
#include "kernels/cuda/product.h"

struct place {
    uint32_t row, column; /* of the first value of c */
    uint32_t product;     /* of the launch */
};

/* The place of the block's tile of `tile` rows and columns; p becomes the block's product, without
 * c: one more pointer in registers reduces the blocks on a multiprocessor. */
DEVICE struct place own_place(struct product &p, bool has_common_a, unsigned tile)
{
    unsigned along = has_common_a ? blockIdx.x : blockIdx.y, product = 0;
#pragma unroll
    for (unsigned i = 0; i < PRODUCT_NEXT_MAX; i++) {
        unsigned tiles = ((has_common_a ? p.n : p.m) + tile - 1) / tile;
        if (along < tiles)
            break;
        along -= tiles;
        product++;
        (has_common_a ? p.b : p.a) = p.next[i].operand;
        (has_common_a ? p.n : p.m) = p.next[i].size;
    }
    return {(has_common_a ? blockIdx.y : along) * tile, (has_common_a ? along : blockIdx.x) * tile,
            product};
}
/* Sets c, too. */
DEVICE void own_result(struct product &p, const struct place &at)
{
#pragma unroll
    for (unsigned i = 0; i < PRODUCT_NEXT_MAX; i++)
        if (at.product == i + 1)
            p.c = p.next[i].c;
}

static inline dim3 product_grid(const struct product &p, unsigned tile)
{
    unsigned columns = blocks_for(p.n, tile), rows = blocks_for(p.m, tile);
    for (uint32_t i = 0; i < p.num_next; i++)
        (p.a_by_k ? columns : rows) += blocks_for(p.next[i].size, tile);
    return dim3(columns, rows);
}

#endif
