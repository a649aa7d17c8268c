/* manifest_private.h - what the files manifest*.c share. Private to them. */
#ifndef HOLDFAST_PROTO_FORMAT_MANIFEST_PRIVATE_H
#define HOLDFAST_PROTO_FORMAT_MANIFEST_PRIVATE_H

#include "proto/format/manifest.h"

#include <stdio.h>

/* The members from "layouts" on, with a comma and a newline behind the last. */
void manifest_print_tables(FILE *out, const struct manifest *manifest);
/* The same, of exactly this text; the summary is there already. Whether they belong together is not
 * looked at. After an error manifest_free() frees what was read. ERR_CORRUPT, ERR_MEMORY. */
int manifest_read_tables(struct manifest *manifest, const char *text, size_t bytes);

int manifest_fail_member(const char *name); /* ERR_CORRUPT */
int manifest_fail_memory(void);

#endif
