/* process.h - where the process is, and what it takes of the machine's memory; see process.c. */
#ifndef HOLDFAST_PROTO_BASE_PROCESS_H
#define HOLDFAST_PROTO_BASE_PROCESS_H

#include <stddef.h>
#include <stdint.h>

/* The host's name: $HOLDFAST_HOST, by which a launcher plays several on one, or the system's; "?"
 * where neither says. */
void process_host(char *out, size_t size);

struct process_memory {
    uint64_t resident;       /* the next three together, bytes */
    uint64_t private_memory; /* its own: heap and stacks */
    uint64_t shared;         /* with other processes: ckptd's pool */
    uint64_t files;          /* program and libraries */
    uint64_t peak;           /* the most that was resident */
    uint64_t swapped;        /* of its own, and not resident */
    uint64_t pinned, locked;
};
/* As the kernel says it now; 0 of what it does not say. `root`: "", or a folder with proc for
 * tests.
 */
void process_measure(struct process_memory *out, const char *root);

#endif
