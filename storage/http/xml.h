/* xml.h - parses the responses of an S3 server, which are small XML documents; only xml.c uses
 * expat.
 *
 * A response is hostile: document types are refused, so no entity is expanded, and the depth is
 * bounded. Pure. */
#ifndef HOLDFAST_STORAGE_HTTP_XML_H
#define HOLDFAST_STORAGE_HTTP_XML_H

#include <stddef.h>

#define XML_PATH_BYTES 256u

/* Calls `found` for each element without children, in order, with its path ("Error/Code") and its
 * text. At the end of an element with children it calls it with text NULL. A nonzero result stops
 * the parser and is returned. ERR_CORRUPT: it is no such document; ERR_MEMORY. */
int xml_read(const char *text, size_t bytes,
             int (*found)(void *user, const char *path, const char *text), void *user);

#endif
