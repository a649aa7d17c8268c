/* segment.h - is a descriptor one of a segment of ckptd's pool? For tests that get between the pool
 * and the system. */
#ifndef HOLDFAST_TESTS_SEGMENT_H
#define HOLDFAST_TESTS_SEGMENT_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static inline bool is_segment(int fd)
{
    char path[64], name[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    return strstr(name, "holdfast-segment") != NULL;
}

#endif
