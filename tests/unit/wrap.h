/* wrap.h - a wrapper of a system function (the linker's --wrap, see WRAP_ in mk/tests.mk). The file
 * that includes it says in fails() when a call is to fail. */
#ifndef HOLDFAST_TESTS_WRAP_H
#define HOLDFAST_TESTS_WRAP_H

#include <stdarg.h>
#include <stdbool.h>

/* True, with errno set, when this call of that function has to fail. */
static bool fails(const char *name);

#define WRAP(type, name, parameters, arguments, failure)           \
    type __real_##name parameters;                                 \
    type __wrap_##name parameters;                                 \
    type __wrap_##name parameters                                  \
    {                                                              \
        return fails(#name) ? (failure) : __real_##name arguments; \
    }

/* fcntl() and syscall(): only the arguments that the tree passes are read. */
#define WRAP_FCNTL                                                        \
    int __real_fcntl(int fd, int command, ...);                           \
    int __wrap_fcntl(int fd, int command, ...);                           \
    int __wrap_fcntl(int fd, int command, ...)                            \
    {                                                                     \
        va_list list;                                                     \
        va_start(list, command);                                          \
        void *argument = va_arg(list, void *);                            \
        va_end(list);                                                     \
        return fails("fcntl") ? -1 : __real_fcntl(fd, command, argument); \
    }
#define WRAP_SYSCALL                                                                 \
    long __real_syscall(long number, ...);                                           \
    long __wrap_syscall(long number, ...);                                           \
    long __wrap_syscall(long number, ...)                                            \
    {                                                                                \
        va_list list;                                                                \
        va_start(list, number);                                                      \
        long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long), \
             d = va_arg(list, long);                                                 \
        va_end(list);                                                                \
        return fails("syscall") ? -1 : __real_syscall(number, a, b, c, d);           \
    }

#endif
