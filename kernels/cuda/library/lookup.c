/* lookup.c - see lookup.h. */
#include "kernels/cuda/library/lookup.h"

#include <dlfcn.h>
#include <string.h>

static bool has_all(void *library, const char *const names[], size_t num_calls)
{
    for (size_t i = 0; i < num_calls; i++)
        if (!dlsym(library, names[i]))
            return false;
    return true;
}

bool cuda_lookup(void **library, void *calls, const char *const names[], size_t num_calls,
                 const char *object)
{
    void *where = RTLD_DEFAULT;
    *library = NULL;
    if (!has_all(where, names, num_calls)) {
        where = *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
        if (!where)
            return false;
        if (!has_all(where, names, num_calls)) {
            dlclose(where);
            *library = NULL;
            return false;
        }
    }
    for (size_t i = 0; i < num_calls; i++) {
        void *found = dlsym(where, names[i]);
        memcpy((char *)calls + i * sizeof(found), &found, sizeof(found));
    }
    return true;
}
