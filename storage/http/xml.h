/* xml.h - the answers of an S3 server, which are small XML documents; xml.c keeps expat to itself.
 *
 * Everything in an answer is hostile: document types are refused, so no entity is expanded, and the
 * depth is bounded. Pure. */
#ifndef HOLDFAST_STORAGE_HTTP_XML_H
#define HOLDFAST_STORAGE_HTTP_XML_H

#include <stddef.h>

#define XML_PATH_BYTES 256u

/* Calls found for each element without children, in order, with its path ("Error/Code") and its
 * text, and with text NULL where an element that has children ends. What is not 0 stops and is
 * returned. ERR_CORRUPT: it is no such document; ERR_MEMORY. */
int xml_read(const char *text, size_t bytes,
             int (*found)(void *user, const char *path, const char *text), void *user);

#endif
