/* in_memory.h - puts TMPDIR into memory, for tests that repeat a story hundreds of times. They need
 * no disk: a bed injects the failures. */
#ifndef HOLDFAST_TESTS_IN_MEMORY_H
#define HOLDFAST_TESTS_IN_MEMORY_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>

/* On a disk such tests spend most of their time waiting. Where this process may mount, the TMPDIR
 * that tests/run gives becomes a file system in memory, for this process and its children. Call it
 * before any thread is created. */
static inline void tell_in_memory(void)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", parent, "tmpfs", 0, "size=256m,mode=700") != 0)
        printf("# on the disk: mounting a tmpfs needs root\n");
}

#endif
