/* peaks.h - the peak operations per second of GPUs, for mfu: kernels/cuda/gpus.toml. */
#ifndef HOLDFAST_TRAINER_PEAKS_H
#define HOLDFAST_TRAINER_PEAKS_H

#include <stdbool.h>

/* TFLOP/s of products of bf16 in tensor cores, or of float outside of them; `described`: from
 * kernels_describe(). 0: not known. As in torchtitan, the peak of bf16 is also used for float8
 * products. */
double peaks_find(const char *described, bool is_float);

#endif
