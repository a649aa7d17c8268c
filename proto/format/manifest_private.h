/* manifest_private.h - shared by the files manifest*.c. Private to them. */
#ifndef HOLDFAST_PROTO_FORMAT_MANIFEST_PRIVATE_H
#define HOLDFAST_PROTO_FORMAT_MANIFEST_PRIVATE_H

#include "proto/format/manifest.h"

#include <stdio.h>

/* Prints the members from "layouts" on, with a comma and a newline after the last. */
void manifest_print_tables(FILE *out, const struct manifest *manifest);
/* Reads exactly that text; the summary is already read. Does not compare them with each other. The
 * caller frees by manifest_free(), also after an error. ERR_CORRUPT, ERR_MEMORY. */
int manifest_read_tables(struct manifest *manifest, const char *text, size_t bytes);

int manifest_fail_member(const char *name); /* ERR_CORRUPT */
int manifest_fail_memory(void);

#endif
