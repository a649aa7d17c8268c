/* memfile.h - open_memstream() that reports out-of-memory.
 *
 * glibc's drops text for which it has no memory, and neither ferror() nor fclose() reports that
 * (2.36). */
#ifndef HOLDFAST_PROTO_BASE_MEMFILE_H
#define HOLDFAST_PROTO_BASE_MEMFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* The stream writes to *out, with a NUL after its *out_bytes; both are valid after a successful
 * fflush(), and after the close. The caller frees *out, also when printing or closing failed. The
 * stream cannot seek. NULL: no memory; then *out is NULL, too. */
FILE *memfile_open(char **out, size_t *out_bytes);
/* False: memory was too short for all of the text. */
bool memfile_close(FILE *file);

#endif
