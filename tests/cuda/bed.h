/* bed.h - shared by lanes_bed.h and gpu_bed.h: the cases of kernels_cases.h for the kernels of
 * kernels/cuda, wherever these run. */
#ifndef HOLDFAST_TESTS_CUDA_BED_H
#define HOLDFAST_TESTS_CUDA_BED_H

#include "kernels/cuda/run.h"
#include "proto/base/sanitized.h"
#include "tests/unit/kernels_cases.h"

/* The bytes after a buffer are unchanged: 0xff. (AddressSanitizer finds violations by itself.) */
static inline void nothing_written_past(const struct run *run)
{
    for (int i = 0; !IS_SANITIZED && i < run->num_buffers; i++) {
        const struct buffer *b = &run->buffers[i];
        const unsigned char *end =
            (const unsigned char *)b->data + b->count * kernel_dtype_bytes(b->dtype);
        for (size_t at = 0; (uintptr_t)(end + at) % 64 != 0; at++)
            assert_int_equal(end[at], 0xff);
    }
}

#endif
