/* stream_copy.h - large copies that bypass the processor's cache. */
#ifndef HOLDFAST_PROTO_BASE_STREAM_COPY_H
#define HOLDFAST_PROTO_BASE_STREAM_COPY_H

#include <stdint.h>

/* memcpy() between a tensor and a segment that bypasses the cache. It takes two thirds of the time
 * (pieces of 8 MiB, neither side in the cache) and leaves the cache to the computing threads.
 * Stores after the call become visible after the bytes. */
void stream_copy(void *to, const void *from, uint64_t bytes);

#endif
