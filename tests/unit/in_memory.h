/* in_memory.h - for tests that are a story told hundreds of times, of which nothing asks for a
 * disk: what fails in it a bed makes fail. */
#ifndef HOLDFAST_TESTS_IN_MEMORY_H
#define HOLDFAST_TESTS_IN_MEMORY_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>

/* Such tellings wait for a disk for most of their time. Where this process may mount, what lies
 * below the TMPDIR that tests/run gives is in memory, for it and its children alone. Before there
 * are threads. */
static inline void tell_in_memory(void)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", parent, "tmpfs", 0, "size=256m,mode=700") != 0)
        printf("# on the disk: mounting a tmpfs needs root\n");
}

#endif
