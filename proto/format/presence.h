/* presence.h - is a committed checkpoint really there? Asked before another one is removed because
 * of it: who keeps two checkpoints must not keep two names.
 *
 * Read are the manifest, whole, and of every shard that must lie there (proto/format/places.h) its
 * size and its header; no tensor. The caller brings the function that reads: storage_fetch() of
 * storage.h, with its storage. */
#ifndef HOLDFAST_PROTO_FORMAT_PRESENCE_H
#define HOLDFAST_PROTO_FORMAT_PRESENCE_H

#include "proto/format/manifest.h"

/* What may be wrong with a checkpoint, in lists and answers. */
#define FLAW_DAMAGED "damaged"
#define FLAW_MOVED "moved" /* it lies in another run's directory: proto/format/origin.h */
#define FLAW_ASIDE \
    "set aside"            /* shards without a manifest, and nothing proves them rubbish: mark.h */
#define FLAW_NEWER "newer" /* a later version wrote it */
#define FLAW_IN_DOUBT \
    "in doubt" /* a part of a save whose coordinator has not said what came of it: mark.h */

#define IN_DOUBT_TEXT \
    "node %s coordinated its save and has not said what came of it: the ckptd here asks it"

struct storage;

/* As storage_fetch(): up to `size` bytes from the start of a small or big object. */
typedef int presence_fetch(struct storage *storage, const char *key, void *data, size_t size,
                           uint64_t *out_bytes);

/* 0: it is the one that the summary tells of, and complete; `text_hash`, when not 0, is that of its
 * manifest (struct manifest). ERR_NOT_FOUND: it has no manifest, so it has vanished. ERR_CORRUPT:
 * it is damaged, or another one. Else nobody can tell. Blocks; any thread. */
int presence_check(struct storage *storage, presence_fetch *fetch,
                   const struct manifest_summary *summary, uint64_t text_hash);
/* Are the shards in the checkpoint's directory `prefix` ("<run>/step-...") which a manifest names
 * that is not in it now? 0, ERR_CORRUPT: the first that is not, or a manifest of another one. */
int presence_check_shards(struct storage *storage, presence_fetch *fetch, const char *prefix,
                          const void *text, size_t bytes);

#endif
