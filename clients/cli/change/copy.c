/* copy.c - cp: copies checkpoints into another run, or another store, and verifies every byte.
 *
 * A copy is the same checkpoint: its manifest and shards are copied unchanged, and a file beside
 * them names the run that saved them (proto/format/origin.h). For each checkpoint:
 *
 *   1. Read the other side's present shards. One with the right size, header and checksum table is
 *      read completely, and kept if every block is right; any other is written again.
 *   2. Write every missing shard: each block verified by its checksum, the table last; sync it.
 *   3. Compare the digests with the manifest's: of written bytes from memory, of kept ones as read.
 *   4. Publish the origin file, the names (synced) and the manifest: cp itself under the store's
 *      lock, or the ckptd that serves the store (Adopt).
 *
 * Until the end a mark of unfinished work is beside them: gc and the next start of a ckptd remove a
 * directory with a mark and no lease (proto/format/mark.h).
 *
 * So each byte is read once and moved once; written bytes are not read back. A bucket accepts a
 * part only with the SHA-256 that the request names, and the object's ETag is that of the parts
 * (storage/bucket/upload.c). `verify` checks the bytes on a disk.
 *
 * The same command continues an interrupted copy, and skips checkpoints that are already copied. A
 * damaged checkpoint is not copied, and cp ends there; the error names it. */
#include "clients/cli/assemble/blocks.h"
#include "clients/cli/assemble/writer.h"

#include "proto/format/origin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct copy {
    const struct cli *cli;
    struct cli to; /* has the other store */
    char run[128]; /* the run there */
    struct storage *source, *store;
    struct storage_hold *lease; /* of the present checkpoint, in a served store */
    struct checkpoint from, made;
    char directory[STORAGE_KEY_MAX]; /* of `made` */
    struct progress progress;
    struct digest *digests; /* of the present checkpoint, as in struct blocks */
    uint32_t num_copied, num_there, num_shards_kept;
    uint64_t bytes;
};

/* ---- the other side ---- */

/* Parses "[STORE:]RUN"; STORE is a directory or unix:/PATH. */
static int parse_target(struct copy *copy)
{
    struct selection selection;
    const char *text = copy->cli->args[1], *colon = strrchr(text, ':');
    ERR_TRY(selection_parse_run(&selection, colon != NULL ? colon + 1 : text));
    strcpy(copy->run, selection.run);
    copy->to = *copy->cli;
    return colon == NULL ? 0 /* the same store, served or not */
                         : server_find_named(&copy->to, copy->cli, text, (size_t)(colon - text));
}

static int open_target(struct copy *copy)
{
    static const struct storage_options options = {.is_quiet = true};
    int error = parse_target(copy);
    if (error == 0)
        error = storage_open_where(&copy->store, copy->to.store, &options);
    if (error == ERR_NOT_FOUND) /* this code means that the source was not found */
        error = ERR_IO;
    return error == 0 && copy->to.server[0] == '\0' ? store_lock(copy->store, "STORE") : error;
}

/* In a served store a lease shows that a process writes this directory. */
static int lease_target(struct copy *copy, uint64_t bytes)
{
    char text[64];
    if (copy->to.server[0] == '\0')
        return 0;
    snprintf(text, sizeof text, "ckpt-cli copies it, process %ld\n", (long)getpid());
    ERR_TRY(server_prepare_write(&copy->to, bytes));
    return store_lease(copy->store, &copy->lease, copy->directory, text);
}

/* *out_is_there: with the same manifest, byte for byte. */
static int find_copy(bool *out_is_there, const struct copy *copy)
{
    struct manifest_summary there = copy->from.manifest->summary;
    void *text = NULL;
    size_t bytes = 0;
    *out_is_there = false;
    strcpy(there.run, copy->run);
    int error = store_fetch_manifest(&text, &bytes, copy->store, &there);
    if (error == 0) {
        *out_is_there = bytes == copy->from.text_bytes && memcmp(text, copy->from.text, bytes) == 0;
        if (!*out_is_there)
            error = report_error(ERR_EXISTS, "name another run or store",
                                 "a different checkpoint exists there as %s", copy->directory);
    }
    free(text);
    return error == ERR_NOT_FOUND ? 0 : error;
}

/* ---- one shard ---- */

static int copy_shard(struct copy *copy, uint32_t shard)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX + 64];
    manifest_identity(&identity, &copy->made.manifest->summary, shard);
    ERR_TRY(shard_key(key, sizeof key, &identity));
    copy->bytes += copy->from.shards[shard].stored.geometry.file_bytes;
    return shard_copy(copy->store, key, &copy->from, shard, &copy->digests, &copy->progress);
}

/* ---- one checkpoint ---- */

/* Reads the shards in `made` by the same manifest, under its new name. */
static int check_made(struct copy *copy)
{
    ERR_TRY(manifest_read(&copy->made.manifest, copy->from.text, copy->from.text_bytes));
    origin_rename(&copy->made.manifest->summary, copy->run);
    copy->made.store = copy->store;
    snprintf(copy->made.name, sizeof copy->made.name, "the copy %.180s", copy->directory);
    return checkpoint_load(&copy->made, LOAD_HEADERS);
}

static int fail_kept(void *user, const struct scan_read *read, int error_number)
{
    struct copy *copy = user;
    int error = report_error(error_number != 0 ? ERR_IO : ERR_CORRUPT, NULL,
                             "block %llu of an earlier, interrupted copy is damaged",
                             (unsigned long long)read->block);
    return checkpoint_fail(&copy->made, read->file->stored.shard, error);
}

/* Reads and verifies a shard from an earlier try, once. ERR_CORRUPT: it must be written again. */
static int verify_kept(struct copy *copy, uint32_t shard)
{
    struct blocks blocks = {.checkpoint = &copy->made,
                            .first_shard = shard,
                            .end_shard = shard + 1,
                            .progress = &copy->progress,
                            .digests = copy->digests,
                            .user = copy,
                            .damaged = fail_kept};
    int error = blocks_run(&blocks);
    copy->digests = blocks.digests;
    copy->num_shards_kept += error == 0;
    return error;
}

static int keep_or_copy(struct copy *copy, uint32_t shard)
{
    const struct shard_file *there = &copy->made.shards[shard];
    bool is_kept = there->damage == NULL && there->header_damage == NULL;
    int error = is_kept ? verify_kept(copy, shard) : ERR_CORRUPT;
    if (is_kept && error == ERR_CORRUPT)
        log_warn("cp", "%s: the shard is copied again", report_line());
    return error == ERR_CORRUPT ? copy_shard(copy, shard) : error;
}

static void count_digest(void *user, const char *tensor)
{
    (void)tensor;
    ++*(uint32_t *)user;
}

/* Compares the digests of all shards, each from its present bytes. */
static int compare_digests(const struct copy *copy)
{
    const struct blocks blocks = {.checkpoint = (struct checkpoint *)(uintptr_t)&copy->from,
                                  .digests = copy->digests};
    uint32_t differing = 0;
    ERR_TRY(blocks_compare(&blocks, count_digest, &differing));
    return differing == 0 ? 0
                          : report_error(ERR_CORRUPT, DAMAGE_HINT,
                                         "%s: %s whose digest differs from the manifest",
                                         copy->made.name, text_count(differing, "tensor").text);
}

/* Publishes it under the lock, or by ckptd. */
static int commit(struct copy *copy)
{
    const struct manifest_summary *summary = &copy->made.manifest->summary;
    struct manifest_summary own = *summary;
    int error = 0;
    strcpy(own.run, origin_run(summary));
    own.origin[0] = '\0';
    if (summary->origin[0] != '\0')
        error = store_put_origin(copy->store, &own, copy->run);
    if (error == 0)
        error = storage_sync_names(copy->store, copy->directory);
    if (error == 0 && copy->to.server[0] != '\0')
        return server_adopt(&copy->to, copy->from.text, copy->from.text_bytes, false, copy->run);
    if (error == 0)
        error = store_note_unread(copy->store, summary);
    return error == 0
               ? store_commit(copy->store, copy->directory, copy->from.text, copy->from.text_bytes)
               : error;
}

static int check_source(struct copy *copy)
{
    ERR_TRY(checkpoint_load(&copy->from, LOAD_HEADERS));
    ERR_TRY(checkpoint_need_whole(&copy->from));
    return copy->from.quarantine[0] == '\0'
               ? 0
               : report_error(ERR_CORRUPT, "repair it, or copy another one",
                              "%s is in quarantine: %s", copy->from.name, copy->from.quarantine);
}

static int write_copy(struct copy *copy)
{
    uint32_t shards = copy->from.manifest->summary.shards;
    ERR_TRY(check_source(copy));
    ERR_TRY(lease_target(copy, copy->from.manifest->summary.bytes));
    ERR_TRY(check_made(copy));
    progress_begin(&copy->progress, copy->cli, "cp", copy->from.manifest->summary.bytes);
    struct store_mark mark = {.boot_id = 0};
    manifest_identity(&mark.identity, &copy->made.manifest->summary, 0);
    int error = store_mark(copy->store, &mark);
    error = error == ERR_EXISTS ? 0 : error; /* left by the interrupted try */
    for (uint32_t i = 0; i < shards && error == 0; i++)
        error = keep_or_copy(copy, i);
    if (error == 0)
        error = compare_digests(copy);
    progress_end(&copy->progress);
    return error == 0 ? commit(copy) : error;
}

static void close_one(struct copy *copy)
{
    if (copy->from.store != NULL) {
        verified_report(copy->cli, &copy->from);
        checkpoint_close(&copy->from);
    }
    checkpoint_close(&copy->made);
    storage_release(copy->store, copy->lease);
    copy->lease = NULL;
    free(copy->digests);
    copy->digests = NULL;
}

static int copy_one(struct copy *copy, const char *name)
{
    bool is_there = false;
    ERR_TRY(checkpoint_open(&copy->from, copy->source, name));
    const struct manifest_summary *summary = &copy->from.manifest->summary;
    int error = shard_dir_key(copy->directory, sizeof copy->directory, copy->run, summary->step,
                              summary->attempt);
    if (error == 0)
        error = find_copy(&is_there, copy);
    if (error == 0 && !is_there)
        error = write_copy(copy);
    *(is_there ? &copy->num_there : &copy->num_copied) += error == 0;
    close_one(copy);
    return error;
}

/* ---- the command ---- */

/* Copies all intact checkpoints of a run, the oldest first, so that an interrupted copy lacks only
 * the newest. */
static int copy_run(struct copy *copy, const char *run)
{
    struct store_list catalog = {0};
    struct failure unread = {0};
    char name[200];
    int error = store_need_run(copy->source, run);
    if (error == 0)
        error = store_list_read(&catalog, copy->source, run);
    for (uint32_t i = catalog.count; i-- > 0 && error == 0;) {
        const struct store_entry *entry = &catalog.entries[i];
        strcpy(name, text_checkpoint(run, entry->summary.step, entry->summary.attempt).text);
        if (entry->unread != 0)
            failure_keep(&unread,
                         report_error(entry->unread, "fix the read error that its reason names",
                                      "%s is skipped: %s", name, entry->damage));
        else if (entry->damage != NULL)
            log_warn("cp", "%s is skipped: %s", name, entry->damage);
        else
            error = copy_one(copy, name);
    }
    store_list_free(&catalog);
    return error == 0 ? failure_report(&unread) : error;
}

static void print_copied(const struct copy *copy)
{
    char size[32];
    if (copy->cli->is_json)
        printf("{\"run\": \"%s\", \"copied\": %u, \"there_already\": %u, \"shards_kept\": %u, "
               "\"bytes\": %llu, \"durability\": \"%s\"}\n",
               copy->run, copy->num_copied, copy->num_there, copy->num_shards_kept,
               (unsigned long long)copy->bytes, store_durability(copy->to.store));
    else
        printf("%s: %s copied, digests compared, %s, %s; %u there already\n", copy->run,
               text_count(copy->num_copied, "checkpoint").text,
               text_bytes(size, sizeof size, copy->bytes), store_durability(copy->to.store),
               copy->num_there);
}

/* Refuses to copy a run onto itself, because each of its checkpoints exists already. */
static int refuse_itself(const struct copy *copy, const struct selection *from)
{
    bool is_same = false;
    ERR_TRY(store_compare(&is_same, copy->cli->store, copy->to.store));
    return is_same && strcmp(from->run, copy->run) == 0
               ? report_error(ERR_INVALID, "name another run or store",
                              "%s would be copied onto itself", from->run)
               : 0;
}

int cli_cp(const struct cli *cli)
{
    struct copy copy = {.cli = cli};
    struct selection selection;
    struct cli from = *cli;
    int error = selection_parse(&selection, cli->args[0]);
    if (error == 0 && cli->server[0] != '\0')
        error = server_find_source(&from);
    if (error == 0)
        error = store_open(&copy.source, &from);
    if (error == 0)
        error = open_target(&copy);
    if (error == 0)
        error = refuse_itself(&copy, &selection);
    if (error == 0)
        error = strchr(cli->args[0], '@') != NULL ? copy_one(&copy, cli->args[0])
                                                  : copy_run(&copy, selection.run);
    if (error == 0)
        print_copied(&copy);
    storage_close(copy.store);
    storage_close(copy.source);
    return error;
}
