/* nested.h - a JSON object of as many levels as one likes. */
#ifndef HOLDFAST_TESTS_NESTED_H
#define HOLDFAST_TESTS_NESTED_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NESTED_LEVELS_MAX 2048u /* jansson's limit */
#define NESTED_BYTES_MAX (2 * NESTED_LEVELS_MAX + 8)

/* {"a":[[...]]} of `levels` levels, itself the first. Returns `out`. */
static inline char *nested_write(char out[NESTED_BYTES_MAX], uint32_t levels)
{
    static const char head[] = "{\"a\":";
    uint32_t arrays = levels - 1;
    char *at = out + strlen(head);
    memcpy(out, head, strlen(head));
    memset(at, '[', arrays);
    memset(at + arrays, ']', arrays);
    if (arrays == 0)
        *at++ = '0';
    memcpy(at + 2 * (size_t)arrays, "}", 2);
    return out;
}

#endif
