/* origin.h - a checkpoint that lies under another run's name than the one it was saved under.
 *
 * The run's name is in the manifest and in the header of every shard. `ckpt-cli rename`, `cp` and
 * `adopt` do not rewrite these: they put a small file beside the manifest, which names the run that
 * the checkpoint was saved under and its nonce. storage/store/read.c settles a summary that
 * it has read by that file before anyone believes the run in it.
 *
 * Without that file a checkpoint in another run's directory was moved or copied by hand. It is not
 * damaged, so nothing is noted about it, but nothing loads it: ERR_MISMATCH names the run that it
 * came from, and a move back makes it what it was. */
#ifndef HOLDFAST_PROTO_FORMAT_ORIGIN_H
#define HOLDFAST_PROTO_FORMAT_ORIGIN_H

#include "proto/format/manifest.h"

#define ORIGIN_NAME "origin.json"
#define ORIGIN_BYTES_MAX 512u
#define MANIFEST_DAMAGED_NAME "manifest.damaged" /* in whose place `ckpt-cli repair` made one */
#define VERIFIED_NAME "verified.json"            /* what the last `ckpt-cli verify` found */
#define PLACES_NAME "places.json"                /* which shards lie on which nodes: places.h */

/* The file's text, for a checkpoint whose manifest holds this run and nonce. */
void origin_write(char out[ORIGIN_BYTES_MAX], const char *run, const char *nonce);
/* "<run>/step-.../origin.json", as manifest_key. */
int origin_key(char *out, size_t size, const struct manifest_summary *summary);

/* 0: the text says that this manifest was saved under the name that it has. ERR_CORRUPT. */
int origin_check(const char *text, size_t bytes, const struct manifest_summary *summary);
/* Before what a server has settled: takes the directory's name for the manifest's. */
void origin_rename(struct manifest_summary *summary, const char *run);
/* The name in the manifest and in the shards' headers. */
static inline const char *origin_run(const struct manifest_summary *summary)
{
    return summary->origin[0] != '\0' ? summary->origin : summary->run;
}
/* May a file of this name lie in a checkpoint's directory beside the manifest? A shard, or one
 * of these two. */
bool origin_is_member(const char *name);

#endif
