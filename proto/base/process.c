/* process.c - the host's name; the process's memory, from /proc/self/status. ckptd's pool is shared
 * with ranks (memfd), so it is not part of private_memory. A leak is. */
#include "proto/base/process.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void process_host(char *out, size_t size)
{
    const char *said = getenv("HOLDFAST_HOST");
    if (said != NULL && said[0] != '\0')
        snprintf(out, size, "%s", said);
    else if (gethostname(out, size) != 0)
        snprintf(out, size, "?");
    out[size - 1] = '\0';
}

void process_measure(struct process_memory *out, const char *root)
{
    static const struct {
        const char *key;
        size_t at;
    } fields[] = {{"VmRSS", offsetof(struct process_memory, resident)},
                  {"RssAnon", offsetof(struct process_memory, private_memory)},
                  {"RssShmem", offsetof(struct process_memory, shared)},
                  {"RssFile", offsetof(struct process_memory, files)},
                  {"VmHWM", offsetof(struct process_memory, peak)},
                  {"VmSwap", offsetof(struct process_memory, swapped)},
                  {"VmPin", offsetof(struct process_memory, pinned)},
                  {"VmLck", offsetof(struct process_memory, locked)}};
    char line[128], key[32];
    unsigned long long kib;
    char path[1024];
    snprintf(path, sizeof path, "%s/proc/self/status", root);
    FILE *file = fopen(path, "re");
    *out = (struct process_memory){0};
    while (file && fgets(line, sizeof line, file))
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
            if (sscanf(line, "%31[^:]: %llu kB", key, &kib) == 2 && !strcmp(key, fields[i].key))
                *(uint64_t *)(void *)((char *)out + fields[i].at) = kib * 1024;
    if (file)
        fclose(file);
}
