/* shell.h - commands that a test runs by the shell. */
#ifndef HOLDFAST_TESTS_SHELL_H
#define HOLDFAST_TESTS_SHELL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Runs a command that must succeed. */
static inline void shell(const char *format, ...)
{
    char command[1500];
    va_list list;
    va_start(list, format);
    vsnprintf(command, sizeof command, format, list);
    va_end(list);
    assert_int_equal(system(command), 0);
}

#endif
