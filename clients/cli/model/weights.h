/* weights.h - the header of a safetensors file that a tool writes, from left to right:
 *
 *     weights_header_begin(&header, run, step, attempt, nonce);
 *     weights_header_add(&header, name, "F32", "[4096,512]", start, bytes);    for each tensor
 *     weights_header_end(&header);
 *
 * It begins with its length and is padded with spaces to a multiple of SHARD_ALIGN. */
#ifndef HOLDFAST_CLIENTS_CLI_MODEL_WEIGHTS_H
#define HOLDFAST_CLIENTS_CLI_MODEL_WEIGHTS_H

#include "proto/layout/layout.h"

#include <stdio.h>

struct weights_header {
    char *text; /* the caller frees it, also after an error */
    size_t bytes;
    FILE *out; /* until the end */
};

/* ERR_MEMORY */
int weights_header_begin(struct weights_header *header, const char *run, uint64_t step,
                         uint64_t attempt, const char *nonce);
/* Its data are at [start, start + bytes) after the header. */
void weights_header_add(struct weights_header *header, const char *name, enum dtype dtype,
                        const char *shape, uint64_t start, uint64_t bytes);
/* ERR_MEMORY; ERR_INVALID: it exceeds the limit of the safetensors library. */
int weights_header_end(struct weights_header *header);

#endif
