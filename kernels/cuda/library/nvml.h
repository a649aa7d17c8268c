/* nvml.h - what NVIDIA's management library says of a GPU's state. It comes with the driver and is
 * looked for at run time. */
#ifndef HOLDFAST_CUDA_NVML_H
#define HOLDFAST_CUDA_NVML_H

#include "kernels/device.h"

/* Of the GPU with that UUID ("GPU-..."), as far as the library is there and knows it. */
void nvml_look(struct device_health *out, const char *uuid);

#endif
