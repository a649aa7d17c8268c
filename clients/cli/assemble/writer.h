/* writer.h - writes a new checkpoint into a store: locked, or served by a ckptd that commits it.
 *
 * The caller describes it (run, step, attempt, lineage, tensors, layouts) in `manifest` and
 * supplies the bytes. The writer makes headers, checksums, digests, a nonce and the manifest.
 *
 *     writer_init -> manifest filled in -> writer_plan -> writer_open
 *         writer_shard, its blocks through writer_complete or writer_take ... for every shard
 *     writer_end, also after an error -> writer_deinit
 *
 * States of a shard: created with its size -> blocks complete, hashed, written -> all hashed: the
 * tail, which is the last block and the table -> all written: sync -> synced, closed. After all
 * shards: names synced, manifest published. Until then there is no checkpoint; a killed writer
 * leaves shards without a manifest, which --force replaces. A committed checkpoint is never
 * replaced.
 *
 * In a served store the writer has a lease on its directory instead of the lock, so that gc does
 * not take it for rubbish. ckptd publishes the manifest (ckptd/keep/admit.c), because only it knows
 * the other writers. After that call the writer removes shards only if ckptd refused. */
#ifndef HOLDFAST_CLIENTS_WRITER_H
#define HOLDFAST_CLIENTS_WRITER_H

#include "clients/cli/engine/scan.h"

#include <pthread.h>

struct writer {
    /* Set by the caller, except nonce, time, code version, bytes, digests and shards, which the
     * writer fills in. The table is freed with the writer; texts stay the caller's. */
    struct manifest manifest;
    /* For assemblies: the source's tensor, per tensor of the table. NULL: the same index. */
    const uint32_t *source_of;
    /* Its --server serves the store; NULL: no ckptd does. Set it like the above, before
     * writer_plan. */
    const struct cli *served;
    const char *option; /* the option with that server: "--server", for hints */
    bool begins_run;    /* refuse an existing run; a ckptd ensures that */
    /* Private to the writer. */
    struct storage *store;
    struct storage_hold *lease; /* in a served store */
    const char *where;          /* the store's directory */
    char directory[STORAGE_KEY_MAX];
    bool is_marked;          /* the directory may have a mark */
    struct digest **digests; /* per worker, per tensor of the table */
    uint32_t num_opened;
    struct target *targets; /* open shards; used by the thread that opens them */
    pthread_mutex_t lock;   /* guards the following, and is_ended of the targets */
    pthread_cond_t changed;
    uint32_t num_requests; /* for tails and syncs, under way */
    struct failure failure;
};

void writer_init(struct writer *writer);
void writer_deinit(struct writer *writer);
/* Computes the sizes of the shards, and so of the checkpoint. ERR_INVALID: its manifest is too
 * large. */
int writer_plan(struct writer *writer);
/* Opens the store `where`, created if missing: locked or leased, with space, and without this
 * checkpoint. `is_forced`: removes an unfinished one, in a store without a serving ckptd. */
int writer_open(struct writer *writer, const char *where, bool is_forced);
/* The next shard as an output file, every tensor with its box; NULL: there is none. It is the
 * `open` of struct assembly_hooks, with the writer as `user`. */
int writer_shard(void *user, struct output_file **out);
/* It is the `complete` of struct assembly_hooks. */
int writer_complete(void *user, uint32_t worker, struct output_block *block);
/* Without an assembly: writes block `index` of a shard, SCAN_BLOCK bytes of aligned memory with
 * zeros after its end. Waits until it is written. From any thread; workers count up to
 * scan_workers(). */
int writer_take(struct output_file *file, uint32_t worker, uint64_t index, void *data);
/* After an error removes the written files, as far as possible, and returns it. Else waits until
 * every shard is durable and publishes the manifest; if that fails, the shards stay. `proof`,
 * unless NULL: the expected digests, per tensor of the table. */
int writer_end(struct writer *writer, int error, const struct digest *proof);
/* Prints what was committed: made from, or as, the checkpoint `name`. `output`: the store as in
 * --output; NULL: it is the command's. */
void writer_print_result(const struct writer *writer, const struct cli *cli, const char *name,
                         const char *output);

/* The table of a checkpoint of parts x replicas ranks of a trainer: every tensor cut along its
 * first dimension into `parts`, each held `replicas` times. */
int writer_plan_rows(struct layout_table **out, const struct layout_table *from, uint32_t replicas,
                     uint32_t parts);
#define SHARDS_MAX 65536u /* made by convert and import */

#endif
