/* nvml.h - reads a GPU's state from NVIDIA's management library, which comes with the driver and is
 * looked up at run time. */
#ifndef HOLDFAST_CUDA_NVML_H
#define HOLDFAST_CUDA_NVML_H

#include "kernels/device.h"

/* For the GPU with that UUID ("GPU-..."); writes nothing if the library is missing or does not know
 * it. */
void nvml_look(struct device_health *out, const char *uuid);

#endif
