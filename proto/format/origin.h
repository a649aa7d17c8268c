/* origin.h - a checkpoint in the directory of another run than the one that saved it.
 *
 * The run's name is in the manifest and in the header of every shard. `ckpt-cli rename`, `cp` and
 * `adopt` do not rewrite these. They put a small file beside the manifest with the run that saved
 * the checkpoint and the checkpoint's nonce. storage/store/read.c corrects a summary by that file
 * before other code uses its run.
 *
 * Without that file a checkpoint in another run's directory was moved or copied by hand. It is not
 * damaged, and no note is written, but a load of it returns ERR_MISMATCH, which names its run.
 * Moving it back makes it loadable. */
#ifndef HOLDFAST_PROTO_FORMAT_ORIGIN_H
#define HOLDFAST_PROTO_FORMAT_ORIGIN_H

#include "proto/format/manifest.h"

#define ORIGIN_NAME "origin.json"
#define ORIGIN_BYTES_MAX 512u
/* The damaged manifest that `ckpt-cli repair` replaced. */
#define MANIFEST_DAMAGED_NAME "manifest.damaged"
#define VERIFIED_NAME "verified.json" /* the result of the last `ckpt-cli verify` */
#define PLACES_NAME "places.json"     /* the node of each shard: places.h */

/* The file's text, for a checkpoint whose manifest has this run and nonce. */
void origin_write(char out[ORIGIN_BYTES_MAX], const char *run, const char *nonce);
/* "<run>/step-.../origin.json", as manifest_key. */
int origin_key(char *out, size_t size, const struct manifest_summary *summary);

/* 0: by this text the manifest belongs to this run's directory. ERR_CORRUPT. */
int origin_check(const char *text, size_t bytes, const struct manifest_summary *summary);
/* For a summary that a server has settled: replaces the manifest's run by the directory's. */
void origin_rename(struct manifest_summary *summary, const char *run);
/* The run in the manifest and in the shards' headers. */
static inline const char *origin_run(const struct manifest_summary *summary)
{
    return summary->origin[0] != '\0' ? summary->origin : summary->run;
}
/* May a checkpoint's directory contain a file of this name beside the manifest? True for a shard
 * and for these two. */
bool origin_is_member(const char *name);

#endif
