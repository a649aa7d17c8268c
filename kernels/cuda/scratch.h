/* scratch.h - the scratch of a stream: each operation uses all of it while it runs. */
#ifndef HOLDFAST_CUDA_SCRATCH_H
#define HOLDFAST_CUDA_SCRATCH_H

/* Blocks that add rows for the exact norm. */
#define SCRATCH_SQUARES_BLOCKS 1024
/* Blocks of the digest, two sums each. */
#define SCRATCH_DIGEST_BLOCKS 2048
/* Blocks that find the largest value of a tensor (float8.cu). */
#define SCRATCH_FLOAT8_BLOCKS 512
/* Blocks that find a tensor's extremes (extremes.cu). */
#define SCRATCH_EXTREMES_BLOCKS 1024
/* Rows of a segment of the norm's weight gradient; a segment has one row of floats. */
#define SCRATCH_NORM_SEGMENT 32

#endif
