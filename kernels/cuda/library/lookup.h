/* lookup.h - functions of a vendor's library, which need not be on the machine.
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

/* Writes `num_calls` pointers to calls[]: of the program's own functions of these names (a
 * simulated GPU's), else of the shared object's. *library: for dlclose; NULL: the program's own.
 * false: one of them is in neither; nothing is written then, *library is NULL. */
bool cuda_lookup(void **library, void *calls, const char *const names[], size_t num_calls,
                 const char *object);

#endif
