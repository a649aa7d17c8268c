/* writer.h - a new checkpoint, written into a store: locked, or served by a ckptd that commits it.
 *
 * The caller says what it is (run, step, attempt, lineage, tensors, layouts) in `manifest` and
 * brings the bytes; the writer makes headers, checksums, digests, a nonce and the manifest of it.
 *
 *     writer_init -> manifest filled in -> writer_plan -> writer_open
 *         writer_shard, its blocks through writer_complete or writer_take ... for every shard
 *     writer_end, whatever happened -> writer_deinit
 *
 * Life of a shard: created with its size -> blocks complete, hashed, written -> all hashed: the
 * tail, which is the last block and the table -> all written: sync -> synced, closed. When all are:
 * names synced, manifest published. Until then there is no checkpoint; a writer that was killed
 * leaves shards without a manifest, which --force replaces. A committed checkpoint is never
 * replaced.
 *
 * In a served store the writer has a lease on its directory instead of the lock, so that nobody
 * takes it for rubbish, and ckptd publishes the manifest (ckptd/keep/admit.c): it alone knows what
 * else is being written. Once it has been asked, shards are removed only when it refused. */
#ifndef HOLDFAST_CLIENTS_WRITER_H
#define HOLDFAST_CLIENTS_WRITER_H

#include "clients/cli/engine/scan.h"

#include <pthread.h>

struct writer {
    /* The caller's: all but nonce, time, code version, bytes, digests and shards, which the writer
     * fills in. The table is freed with the writer; texts stay the caller's. */
    struct manifest manifest;
    /* Of the tensor of the source, per tensor of the table; for assemblies. NULL: the same. */
    const uint32_t *source_of;
    const struct cli *served; /* whose --server serves the store; NULL: nobody does. As the above,
                               * before writer_plan. */
    const char *option;       /* that names such a server: "--server", for hints */
    bool begins_run;          /* refused where the run is there; a ckptd makes sure of that */
    /* The writer's own. */
    struct storage *store;
    struct storage_hold *lease; /* in a served store */
    const char *where;          /* the store's directory */
    char directory[STORAGE_KEY_MAX];
    bool is_marked;          /* the directory may have a mark */
    struct digest **digests; /* per worker, per tensor of the table */
    uint32_t num_opened;
    struct target *targets; /* shards that are open; of the thread that opens them */
    pthread_mutex_t lock;   /* guards what follows, and is_ended of the targets */
    pthread_cond_t changed;
    uint32_t num_requests; /* for tails and syncs, under way */
    struct failure failure;
};

void writer_init(struct writer *writer);
void writer_deinit(struct writer *writer);
/* Sizes of the shards, so also of the checkpoint. ERR_INVALID: its manifest is too large. */
int writer_plan(struct writer *writer);
/* The store `where`, created when missing: locked or leased, with room, and without this
 * checkpoint. `is_forced`: an unfinished one is removed, in a store that nobody serves. */
int writer_open(struct writer *writer, const char *where, bool is_forced);
/* The next shard as an output file, every tensor with its box; NULL: there is none. For the `open`
 * of struct assembly_hooks with the writer as `user`. */
int writer_shard(void *user, struct output_file **out);
/* For the `complete` of struct assembly_hooks. */
int writer_complete(void *user, uint32_t worker, struct output_block *block);
/* Without an assembly: the block `index` of a shard, SCAN_BLOCK bytes of aligned memory with zeros
 * behind its end. Waits until it is written. From any thread; workers count up to scan_workers().
 */
int writer_take(struct output_file *file, uint32_t worker, uint64_t index, void *data);
/* After an error removes what was written, as far as that goes, and returns it; else waits until
 * every shard is durable and publishes the manifest; should that fail, the shards stay. `proof`,
 * unless NULL: the digests that must have come out, per tensor of the table. */
int writer_end(struct writer *writer, int error, const struct digest *proof);
/* Tells what was committed: made of, or as, the checkpoint `name`. `output`: the store as --output
 * names it; NULL: it is the command's. */
void writer_tell(const struct writer *writer, const struct cli *cli, const char *name,
                 const char *output);

/* The table of a checkpoint that parts x replicas ranks of a trainer would save: every tensor cut
 * along its first dimension into `parts`, each held `replicas` times. */
int writer_plan_rows(struct layout_table **out, const struct layout_table *from, uint32_t replicas,
                     uint32_t parts);
#define SHARDS_MAX 65536u /* that convert and import make */

#endif
