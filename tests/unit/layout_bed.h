/* layout_bed.h - slices of tensors, for the tests of the planners. */
#ifndef HOLDFAST_TESTS_LAYOUT_BED_H
#define HOLDFAST_TESTS_LAYOUT_BED_H

#include "proto/layout/layout.h"

#include <stdio.h>

/* The whole of a tensor. */
static inline struct slice make_slice(const char *name, enum dtype dtype, uint32_t dims,
                                      const uint64_t *shape)
{
    struct slice slice = {.tensor = {.dtype = dtype, .dims = dims}};
    snprintf(slice.tensor.name, sizeof(slice.tensor.name), "%s", name);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        slice.tensor.shape[d] = d < dims ? shape[d] : 1;
        slice.box.extent[d] = slice.tensor.shape[d];
    }
    return slice;
}

/* FSDP as PyTorch cuts: ceil(rows / ranks) rows each, the last ones shorter or empty. */
static inline void cut_rows(struct slice *slice, uint32_t rank, uint32_t ranks)
{
    uint64_t rows = slice->tensor.shape[0], chunk = (rows + ranks - 1) / ranks;
    uint64_t start = chunk * rank < rows ? chunk * rank : rows;
    uint64_t end = start + chunk < rows ? start + chunk : rows;
    slice->box.offset[0] = start;
    slice->box.extent[0] = end - start;
}

#endif
