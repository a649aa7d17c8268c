/* memfile.h - open_memstream, with a lack of memory that is told.
 *
 * glibc's drops what it has no room for, and neither ferror nor fclose says so (2.36): nobody
 * learns that a part of the text is missing. */
#ifndef HOLDFAST_PROTO_BASE_MEMFILE_H
#define HOLDFAST_PROTO_BASE_MEMFILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* What is printed comes to *out, with a NUL behind its *out_bytes; both are true after an fflush
 * that did not fail, and after the close. *out is the caller's to free, also where printing or
 * closing failed. It cannot seek. NULL: no memory; then *out is NULL, too. */
FILE *memfile_open(char **out, size_t *out_bytes);
/* False: there was no memory for all of it. */
bool memfile_close(FILE *file);

#endif
