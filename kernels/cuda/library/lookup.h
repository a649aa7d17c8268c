/* lookup.h - looks up functions of a vendor's library that may be missing on the machine.
 *
 *     static const char *const names[] = {"cudnnCreate", "cudnnDestroy"};
 *     struct { __typeof__(cudnnCreate) *Create; __typeof__(cudnnDestroy) *Destroy; } calls;
 *     void *library;
 *     if (cuda_lookup(&library, &calls, names, 2, "libcudnn.so." CUDA_TEXT(CUDNN_MAJOR)))
 *         ... */
#ifndef HOLDFAST_CUDA_LOOKUP_H
#define HOLDFAST_CUDA_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>

#define CUDA_TEXT(x) CUDA_TEXT_OF(x)
#define CUDA_TEXT_OF(x) #x

/* Writes `num_calls` pointers to calls[]: to functions of the program with these names (a simulated
 * GPU's), else to those of the shared object. *library: for dlclose; NULL: functions of the
 * program. Returns false if one is in neither; then nothing is written, and *library is NULL. */
bool cuda_lookup(void **library, void *calls, const char *const names[], size_t num_calls,
                 const char *object);

#endif
