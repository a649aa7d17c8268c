/* peaks.h - the operations per second of GPUs that mfu is a part of: kernels/cuda/gpus.toml. */
#ifndef HOLDFAST_TRAINER_PEAKS_H
#define HOLDFAST_TRAINER_PEAKS_H

#include <stdbool.h>

/* TFLOP/s of products of bf16 in tensor cores, or of float outside of them; `described` is what
 * kernels_describe() says. 0: not known. As torchtitan's, bf16's also with float8 products. */
double peaks_find(const char *described, bool is_float);

#endif
