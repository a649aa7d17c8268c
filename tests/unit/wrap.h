/* wrap.h - a function of the system between the tree and the system (the linker's --wrap, see
 * WRAP_ in the Makefile). The file that includes it says in fails() when a call is to fail. */
#ifndef HOLDFAST_TESTS_WRAP_H
#define HOLDFAST_TESTS_WRAP_H

#include <stdbool.h>

/* Does this call fail? With errno set. */
static bool fails(void);

#define WRAP(type, name, parameters, arguments, failure)      \
    type __real_##name parameters;                            \
    type __wrap_##name parameters;                            \
    type __wrap_##name parameters                             \
    {                                                         \
        return fails() ? (failure) : __real_##name arguments; \
    }

#endif
