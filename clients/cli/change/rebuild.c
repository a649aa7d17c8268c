/* rebuild.c - makes the manifest of a checkpoint that has lost its own, or whose own is damaged,
 * for `ckpt-cli repair`.
 *
 *   from a copy of the checkpoint: its manifest, if it is of the save of these shards
 *   from the shards: their headers have the tensors and the identity of the save
 *
 *   headers of all shards ──► one identity? ──► the layout, by the planner of a save ──►
 *   each header must match that layout, to the byte ──► every block is verified by the shard's own
 *   checksum table, and the digests are computed ──► manifest
 *
 * A manifest made from shards has no state: only the lost one had the position in the data, the
 * schedule and the configuration. Its state records that ({"lost": true}), and no trainer resumes
 * from it. Its weights can be exported, compared and used for another run. It cannot detect a shard
 * that was replaced by another well-formed one; only the lost manifest could.
 *
 * A damaged manifest is kept beside the new one, as MANIFEST_DAMAGED_NAME. */
#include "clients/cli/assemble/blocks.h"
#include "clients/cli/change/repair.h"

#include "proto/format/origin.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES_FIRST (64u << 10) /* read first of a shard */
#define STATE_LOST "{\"lost\":true}"

/* The facts in the shards' files. */
struct found {
    struct storage *store;
    const struct selection *selection;
    char directory[STORAGE_KEY_MAX];
    uint32_t shards;              /* by the files' names */
    struct shard_header *headers; /* of each shard */
    struct manifest manifest;     /* the new one */
};

static int fail_shard(const struct found *found, uint32_t shard, int error)
{
    char message[REPORT_TEXT_MAX];
    snprintf(message, sizeof message, "%s, shard %u: %s", found->directory, shard + 1,
             report_message());
    return report_set(error, message, report_detail(), report_hint());
}

/* ---- the headers ---- */

static int count_shard(void *user, const struct storage_entry *entry)
{
    struct found *found = user;
    unsigned number, shards;
    if (!entry->is_dir && shard_is_file_name(entry->name) &&
        sscanf(entry->name, "shard-%u-of-%u", &number, &shards) == 2 && found->shards < shards)
        found->shards = shards;
    return 0;
}

static int key_of(char key[STORAGE_KEY_MAX], const struct found *found, uint32_t shard)
{
    struct shard_identity identity = {.step = (uint64_t)found->selection->step,
                                      .attempt = found->selection->attempt,
                                      .shard = shard,
                                      .shards = found->shards};
    snprintf(identity.run, sizeof identity.run, "%s", found->selection->run);
    return shard_key(key, STORAGE_KEY_MAX, &identity);
}

static int read_header(struct found *found, uint32_t shard)
{
    char key[STORAGE_KEY_MAX];
    uint64_t size = HEADER_BYTES_FIRST, need = 0, file_bytes = 0;
    struct manifest_shard *out = &found->manifest.shards[shard];
    void *bytes = NULL;
    ERR_TRY(key_of(key, found, shard));
    int error = ERR_BUSY;
    while (error == ERR_BUSY && size <= SHARD_HEADER_BYTES_MAX) {
        free(bytes);
        bytes = malloc(size);
        error = bytes != NULL ? storage_fetch(found->store, key, bytes, size, &file_bytes)
                              : report_error(ERR_MEMORY, NULL, "no memory for a header");
        if (error == 0)
            error = shard_header_parse(&found->headers[shard], &need, bytes,
                                       file_bytes < size ? file_bytes : size, file_bytes);
        size = need > size ? need : SHARD_HEADER_BYTES_MAX + 1ull;
    }
    const struct shard_geometry *geometry = &found->headers[shard].geometry;
    if (error == 0 && !shard_header_hash(&out->header_hash, bytes, geometry->data_start))
        error = report_error(ERR_CORRUPT, NULL, "the header has no hash at its end");
    free(bytes);
    if (error == ERR_NOT_FOUND || error == ERR_BUSY)
        error =
            report_error(ERR_CORRUPT, "restore it from a copy: repair --from STORE",
                         error == ERR_BUSY ? "its header is incomplete" : "the file is missing");
    if (error != 0)
        return fail_shard(found, shard, error);
    out->bytes = geometry->file_bytes;
    out->data_start = geometry->data_start;
    return 0;
}

/* Checks that all are of one save, and of this directory. */
static int check_identity(const struct found *found, uint32_t shard)
{
    const struct shard_identity *one = &found->headers[shard].identity,
                                *first = &found->headers[0].identity;
    bool is_here = one->step == (uint64_t)found->selection->step &&
                   one->attempt == found->selection->attempt && one->shard == shard &&
                   one->shards == found->shards;
    bool is_same = strcmp(one->nonce, first->nonce) == 0 && strcmp(one->run, first->run) == 0;
    return is_here && is_same
               ? 0
               : fail_shard(found, shard,
                            report_error(ERR_CORRUPT, NULL, "its header belongs to another %s",
                                         is_here ? "save than shard 1" : "checkpoint"));
}

static int read_headers(struct found *found)
{
    int error = storage_list(found->store, found->directory, count_shard, found);
    if (error == 0 && found->shards == 0)
        error = report_error(ERR_NOT_FOUND, "see `ckpt-cli list`", "%s holds no shard",
                             found->directory);
    if (error != 0)
        return error;
    found->headers = calloc(found->shards, sizeof *found->headers);
    found->manifest.shards = calloc(found->shards, sizeof *found->manifest.shards);
    if (found->headers == NULL || found->manifest.shards == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for %s",
                            text_count(found->shards, "header").text);
    struct failure first = {0}; /* the others may have the same facts */
    for (uint32_t i = 0; i < found->shards && error != ERR_MEMORY; i++) {
        error = read_header(found, i);
        failure_keep(&first, error);
    }
    for (uint32_t i = 0; i < found->shards && first.error == 0; i++)
        failure_keep(&first, check_identity(found, i));
    return failure_report(&first);
}

static void free_found(struct found *found)
{
    for (uint32_t i = 0; found->headers != NULL && i < found->shards; i++)
        shard_header_free(&found->headers[i]);
    free(found->headers);
    free(found->manifest.shards);
    layout_table_free(found->manifest.table);
    free(found->manifest.digests);
}

/* ---- the manifest from the headers ---- */

static int hash_table(struct found *found, uint32_t shard)
{
    const struct shard_geometry *geometry = &found->headers[shard].geometry;
    uint64_t from = geometry->table_start / SHARD_ALIGN * SHARD_ALIGN, bytes = 0;
    uint64_t length = geometry->file_bytes - from;
    struct storage_object *object = NULL;
    char key[STORAGE_KEY_MAX];
    ERR_TRY(key_of(key, found, shard));
    unsigned char *table = aligned_alloc(SHARD_ALIGN, length);
    int error = table != NULL ? storage_object_open(found->store, &object, key, &bytes)
                              : report_error(ERR_MEMORY, NULL, "no memory for a checksum table");
    for (uint64_t at = 0; at < length && error == 0; at += CHECKSUM_BLOCK_BYTES) {
        uint64_t rest = length - at;
        error =
            storage_transfer(found->store, STORAGE_READ, object, from + at, table + at,
                             (uint32_t)(rest < CHECKSUM_BLOCK_BYTES ? rest : CHECKSUM_BLOCK_BYTES));
    }
    if (object != NULL)
        storage_object_close(found->store, object);
    if (error == 0)
        found->manifest.shards[shard].table_hash = checksum_bytes(
            table + (geometry->table_start - from), geometry->file_bytes - geometry->table_start);
    free(table);
    return error == 0 ? 0 : fail_shard(found, shard, error);
}

static int plan(struct found *found)
{
    const struct slice **slices = calloc(found->shards, sizeof(struct slice *));
    uint32_t *counts = calloc(found->shards, sizeof *counts);
    int error = slices != NULL && counts != NULL
                    ? 0
                    : report_error(ERR_MEMORY, NULL, "no memory for the slices");
    for (uint32_t i = 0; i < found->shards && error == 0; i++) {
        slices[i] = found->headers[i].tensors;
        counts[i] = found->headers[i].num_tensors;
        error = hash_table(found, i);
    }
    if (error == 0)
        error = layout_plan_save(&found->manifest.table, slices, counts, found->shards,
                                 LAYOUT_EQUAL_REPLICAS);
    free(slices);
    free(counts);
    return error;
}

static int describe(struct found *found)
{
    static char state[] = STATE_LOST;
    struct manifest *manifest = &found->manifest;
    struct manifest_summary *summary = &manifest->summary;
    const struct shard_identity *identity = &found->headers[0].identity;
    *summary = (struct manifest_summary){.version = MANIFEST_VERSION,
                                         .step = identity->step,
                                         .attempt = identity->attempt,
                                         .world_size = found->shards,
                                         .shards = found->shards};
    snprintf(summary->run, sizeof summary->run, "%s", identity->run);
    snprintf(summary->nonce, sizeof summary->nonce, "%s", identity->nonce);
    manifest_now(summary->time);
    for (uint32_t i = 0; i < found->shards; i++)
        summary->bytes += manifest->shards[i].bytes;
    manifest->state_json = state;
    snprintf(manifest->code_version, sizeof manifest->code_version, "%s", "ckpt-cli repair");
    manifest->digests = calloc(manifest->table->num_tensors + 1u, sizeof *manifest->digests);
    return manifest->digests != NULL ? 0
                                     : report_error(ERR_MEMORY, NULL, "no memory for the digests");
}

/* ---- verification ---- */

static int fail_block(void *user, const struct scan_read *read, int error_number)
{
    struct checkpoint *checkpoint = user;
    int error = report_error(error_number != 0 ? ERR_IO : ERR_CORRUPT,
                             "restore the shard from a copy: repair --from STORE",
                             "block %llu is damaged", (unsigned long long)read->block);
    return checkpoint_fail(checkpoint, read->file->stored.shard, error);
}

/* Compares headers with the layout and blocks with the tables; computes the digests. */
static int verify_shards(struct found *found, const struct cli *cli)
{
    struct checkpoint checkpoint = {.store = found->store};
    struct progress progress = {0};
    struct blocks blocks = {.checkpoint = &checkpoint,
                            .end_shard = found->shards,
                            .progress = &progress,
                            .user = &checkpoint,
                            .damaged = fail_block};
    int error = manifest_write(&checkpoint.text, &checkpoint.text_bytes, &found->manifest);
    if (error == 0)
        error = manifest_read(&checkpoint.manifest, checkpoint.text, checkpoint.text_bytes);
    if (error == 0)
        origin_rename(&checkpoint.manifest->summary, found->selection->run);
    snprintf(checkpoint.name, sizeof checkpoint.name, "%.180s", found->directory);
    progress_begin(&progress, cli, "repair", found->manifest.summary.bytes);
    if (error == 0)
        error = checkpoint_load(&checkpoint, LOAD_HEADERS);
    if (error == 0)
        error = checkpoint_need_whole(&checkpoint);
    if (error == 0)
        error = blocks_run(&blocks);
    if (error == 0)
        memcpy(found->manifest.digests, blocks.digests,
               found->manifest.table->num_tensors * sizeof *blocks.digests);
    progress_end(&progress);
    blocks_free(&blocks);
    checkpoint_close(&checkpoint);
    return error;
}

/* ---- publication ---- */

/* The present manifest is damaged, or missing. */
static int publish_manifest(const struct found *found, const struct manifest_summary *summary,
                            const void *text, size_t bytes)
{
    char key[STORAGE_KEY_MAX + 32], kept[STORAGE_KEY_MAX + 32];
    snprintf(key, sizeof key, "%s/" MANIFEST_NAME, found->directory);
    snprintf(kept, sizeof kept, "%s/" MANIFEST_DAMAGED_NAME, found->directory);
    if (strcmp(summary->run, found->selection->run) != 0)
        ERR_TRY(store_put_origin(found->store, summary, found->selection->run));
    ERR_TRY(storage_sync_names(found->store, found->directory)); /* of the shards */
    int error = storage_rename(found->store, key, kept);
    if (error != 0 && error != ERR_NOT_FOUND)
        return error;
    return storage_publish(found->store, key, text, bytes);
}

static int open_found(struct found *found, struct storage *store, const struct selection *selection)
{
    *found = (struct found){.store = store, .selection = selection};
    ERR_TRY(shard_dir_key(found->directory, sizeof found->directory, selection->run,
                          (uint64_t)selection->step, selection->attempt));
    return read_headers(found);
}

int rebuild_from_shards(struct storage *store, const struct cli *cli,
                        const struct selection *selection)
{
    struct found found;
    char *text = NULL;
    size_t bytes = 0;
    int error = open_found(&found, store, selection);
    if (error == 0)
        error = plan(&found);
    if (error == 0)
        error = describe(&found);
    if (error == 0)
        error = verify_shards(&found, cli);
    if (error == 0)
        error = manifest_write(&text, &bytes, &found.manifest);
    if (error == 0)
        error = publish_manifest(&found, &found.manifest.summary, text, bytes);
    free(text);
    free_found(&found);
    return error;
}

/* The readable shards here must be of the copy's save. */
static int check_copy(const struct found *found, const struct manifest_summary *copy)
{
    bool is_any = false;
    for (uint32_t i = 0; found->headers != NULL && i < found->shards; i++) {
        const struct shard_identity *identity = &found->headers[i].identity;
        if (identity->nonce[0] == '\0')
            continue;
        is_any = true;
        if (strcmp(identity->nonce, copy->nonce) != 0)
            return report_error(ERR_MISMATCH, "name a store with a copy of this save",
                                "%s: its shards and the manifest there are from different saves",
                                found->directory);
    }
    return is_any ? 0
                  : report_error(ERR_NOT_FOUND, "copy the whole checkpoint: ckpt-cli cp",
                                 "%s: no shard here can be read", found->directory);
}

int rebuild_from_copy(struct storage *store, const struct selection *selection,
                      struct storage *other, const char *other_run)
{
    struct found found;
    struct manifest_summary there = {.step = (uint64_t)selection->step,
                                     .attempt = selection->attempt};
    struct manifest *manifest = NULL;
    void *text = NULL;
    size_t bytes = 0;
    int error = open_found(&found, store, selection);
    if (error == ERR_CORRUPT) /* a shard may be damaged, too: that is checked next */
        error = 0;
    snprintf(there.run, sizeof there.run, "%s", other_run);
    if (error == 0)
        error = store_fetch_manifest(&text, &bytes, other, &there);
    if (error == 0)
        error = manifest_read(&manifest, text, bytes);
    if (error == 0)
        error = check_copy(&found, &manifest->summary);
    if (error == 0)
        error = publish_manifest(&found, &manifest->summary, text, bytes);
    manifest_free(manifest);
    free(text);
    free_found(&found);
    return error;
}
