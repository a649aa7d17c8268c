/* driver.c - replaces NVIDIA's driver (libcuda.so.1) while cuDNN builds plans for an absent GPU
 * (plans.c): it accepts code and never runs it. The calls that finish a plan succeed, and the names
 * of kernels are printed. The library needs only the addresses of the others: they fail. */
#include <cuda.h>
#include <stdio.h>

#define ABSENT(X)                                  \
    X(cuCtxGetCurrent)                             \
    X(cuCtxGetLimit)                               \
    X(cuCtxPopCurrent)                             \
    X(cuCtxPushCurrent)                            \
    X(cuCtxPopCurrent_v2)                          \
    X(cuCtxPushCurrent_v2)                         \
    X(cuStreamGetCtx)                              \
    X(cuDeviceGet)                                 \
    X(cuDeviceGetAttribute)                        \
    X(cuDeviceGetCount)                            \
    X(cuFuncGetName)                               \
    X(cuFuncSetAttribute)                          \
    X(cuGetProcAddress)                            \
    X(cuGetProcAddress_v2)                         \
    X(cuGraphAddDependencies)                      \
    X(cuGraphAddDependencies_v2)                   \
    X(cuGraphAddKernelNode_v2)                     \
    X(cuGraphKernelNodeGetParams)                  \
    X(cuGraphKernelNodeSetAttribute)               \
    X(cuGraphKernelNodeSetParams_v2)               \
    X(cuGraphNodeGetDependentNodes)                \
    X(cuGraphNodeGetDependentNodes_v2)             \
    X(cuLaunchKernel)                              \
    X(cuLaunchCooperativeKernel)                   \
    X(cuLaunchKernelEx)                            \
    X(cuLibraryLoadFromFile)                       \
    X(cuLinkCreate)                                \
    X(cuLinkAddData)                               \
    X(cuLinkComplete)                              \
    X(cuLinkDestroy)                               \
    X(cuModuleGetFunction)                         \
    X(cuModuleLoadData)                            \
    X(cuOccupancyAvailableDynamicSMemPerBlock)     \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
    X(cuOccupancyMaxActiveClusters)                \
    X(cuOccupancyMaxPotentialClusterSize)
#define X(name)                                  \
    CUresult absent_##name(void) __asm__(#name); \
    CUresult absent_##name(void)                 \
    {                                            \
        return CUDA_ERROR_NO_DEVICE;             \
    }
ABSENT(X)
#undef X

CUresult cuInit(unsigned flags)
{
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
    *name = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    return cuGetErrorName(error, text);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned num_jit, CUlibraryOption *options,
                           void **values, unsigned num)
{
    (void)jit_options, (void)jit_values, (void)num_jit, (void)options, (void)values, (void)num;
    *library = (CUlibrary)code;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    (void)library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    printf("kernel %s\n", name);
    *kernel = (CUkernel)library;
    return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device)
{
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return CUDA_SUCCESS;
}
