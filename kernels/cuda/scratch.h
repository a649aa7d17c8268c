/* scratch.h - how the operations share a stream's scratch: each has all of it while it runs. */
#ifndef HOLDFAST_CUDA_SCRATCH_H
#define HOLDFAST_CUDA_SCRATCH_H

/* The exact norm adds rows up in so many blocks. */
#define SCRATCH_SQUARES_BLOCKS 1024
/* The digest likewise, two sums each. */
#define SCRATCH_DIGEST_BLOCKS 2048
/* So many blocks look for the largest value of a tensor (float8.cu). */
#define SCRATCH_FLOAT8_BLOCKS 512
/* So many blocks look for a tensor's extremes (extremes.cu). */
#define SCRATCH_EXTREMES_BLOCKS 1024
/* Rows of one segment of the norm's weight gradient, a row of floats each. */
#define SCRATCH_NORM_SEGMENT 32

#endif
