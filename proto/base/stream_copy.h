/* stream_copy.h - large copies that leave the processor's cache to others. */
#ifndef HOLDFAST_PROTO_BASE_STREAM_COPY_H
#define HOLDFAST_PROTO_BASE_STREAM_COPY_H

#include <stdint.h>

/* memcpy() between a tensor and a segment, past the cache: takes two thirds of its time (pieces of
 * 8 MiB, of which neither side is in the cache), and leaves the cache to those who compute. What is
 * announced or said afterwards is seen after the bytes. */
void stream_copy(void *to, const void *from, uint64_t bytes);

#endif
