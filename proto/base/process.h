/* process.h - the host of this process, and how much memory the process uses; see process.c. */
#ifndef HOLDFAST_PROTO_BASE_PROCESS_H
#define HOLDFAST_PROTO_BASE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* The host's name: $HOLDFAST_HOST, which a launcher sets to run several nodes on one host, or the
 * system's; "?" if neither is known. */
void process_host(char *out, size_t size);

struct process_memory {
    uint64_t resident;       /* the sum of the next three, bytes */
    uint64_t private_memory; /* heap and stacks */
    uint64_t shared;         /* shared with other processes: ckptd's pool, as far as it is mapped */
    uint64_t files;          /* program and libraries */
    uint64_t peak;           /* the largest `resident` so far */
    uint64_t swapped;        /* private memory that is swapped out */
    uint64_t pinned, locked;
};
/* Reads the kernel's current figures; a missing one is 0. `root`: "", or a folder with proc for
 * tests. */
void process_measure(struct process_memory *out, const char *root);

#endif
