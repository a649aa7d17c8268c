/* shard_private.h - the words of a shard's header, for shard.c, which writes it, and shard_read.c,
 * which reads it. */
#ifndef HOLDFAST_PROTO_FORMAT_SHARD_PRIVATE_H
#define HOLDFAST_PROTO_FORMAT_SHARD_PRIVATE_H

#include "proto/format/shard.h"

#define FORMAT_NAME "holdfast-shard"
#define FORMAT_VERSION "1"
#define HASH_PREFIX "\"header_hash\":\""
#define HASH_SUFFIX "\"}}"
#define NUM_FIXED_METADATA 10 /* members of __metadata__ that are not slices */

#endif
