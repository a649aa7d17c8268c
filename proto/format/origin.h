/* origin.h - a checkpoint that lies under another run's name than the one it was saved under.
 *
 * The run's name is in the manifest and in the header of every shard. `ckpt-cli rename`, `cp` and
 * `adopt` do not rewrite these: they put a small file beside the manifest, which names the run that
 * the checkpoint was saved under and its nonce. Every reader of a store settles a summary that it
 * has read here before it believes the run in it.
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

struct storage;

/* The file's text, for a checkpoint whose manifest holds this run and nonce. */
void origin_write(char out[ORIGIN_BYTES_MAX], const char *run, const char *nonce);
/* "<run>/step-.../origin.json", as manifest_key. */
int origin_key(char *out, size_t size, const struct manifest_summary *summary);

/* The directory that a manifest was read from, and how to read a small file of its store. */
struct origin_place {
    const char *run;
    uint64_t step, attempt;
    int (*fetch)(struct storage *storage, const char *key, void *data, size_t size,
                 uint64_t *out_bytes); /* storage_fetch */
    struct storage *storage;
};
/* `summary` as the manifest in that directory has it. Where the run is another one and the origin
 * file vouches for it, summary->run becomes the directory's and summary->origin the manifest's.
 * ERR_MISMATCH: moved here by hand, and summary->origin tells from which run. Other errors are
 * those of fetch, and ERR_CORRUPT for an origin file that is not one. */
int origin_settle(struct manifest_summary *summary, const struct origin_place *place);
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
