/* publish.c - the last two steps before a checkpoint exists: its names, then its manifest.
 *
 * Both block and run on a worker: fsync of the step's directory and of every one above it, then the
 * manifest, whole and exclusive. The manifest consists of the texts of OpenAttempt, the layout
 * table, the digests summed over all shards, and the hash of each shard's checksum table. While a
 * worker has the save, the service thread only reads it.
 *
 * With the manifest comes one hash of all tensors' digests, to compare it with the former
 * checkpoint (save.c).
 *
 * A publication ends as durable, absent, or unknown. Unknown is never treated as one of the others
 * (commit.I2 and commit.I3). */
#include "ckptd/save/publish.h"
#include "ckptd/attempt/attempt.h"
#include "ckptd/attempt/coordinator.h"
#include "ckptd/attempt/describe.h"
#include "ckptd/attempt/replicas.h"
#include "ckptd/core/catalog.h"
#include "ckptd/core/loop.h"
#include "ckptd/core/service.h"
#include "ckptd/machines/commit.h"
#include "ckptd/memory/image.h"
#include "ckptd/memory/stage.h"
#include "ckptd/save/compare.h"
#include "ckptd/save/mark.h"
#include "ckptd/save/save.h"
#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "proto/base/toml.h"
#include "proto/format/manifest.h"
#include "proto/format/places.h"
#include "proto/layout/layout.h"
#include "storage/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void work_sync_names(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    int error = storage_sync_names(save->service->storage, save->dir);
    if (error != 0)
        fault_take(&save->fault, error);
}

static void names_synced(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    struct commit_actions actions = {0};
    save->named_ms = clock_ms();
    commit_names_synced(&save->run->coordinator->machine, &actions, save->id, save->fault.code);
    run_perform(save->run, &actions);
}

void publish_sync_names(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    save->durable_ms = clock_ms();
    save->job = (struct job){.work = work_sync_names, .done.run = names_synced};
    loop_work(save->service->loop, &save->job);
}

static void fill_summary(struct save *save)
{
    struct manifest_summary *summary = &save->summary;
    memset(summary, 0, sizeof *summary);
    summary->version = MANIFEST_VERSION;
    snprintf(summary->run, sizeof summary->run, "%s", save->run->name);
    snprintf(summary->nonce, sizeof summary->nonce, "%s", save->nonce);
    manifest_now(summary->time);
    summary->step = save->step;
    summary->attempt = save->attempt;
    summary->world_size = save->world_size;
    summary->shards = save->world_size;
    summary->bytes = save->bytes;
}

/* On the worker: with 16,384 ranks these are millions of sums. */
static int merge_digests(struct save *save)
{
    uint32_t count = save->group->table->num_tensors;
    save->digests = calloc(count + 1, sizeof *save->digests);
    if (!save->digests)
        return report_error(ERR_MEMORY, NULL, "no memory for %u digests", count);
    for (uint32_t i = 0; i < save->world_size; i++) {
        const struct image *image = save->stages[i].image;
        const struct group_rank *rank = &save->group->ranks[i];
        const struct digest *digests = image ? image->digests : save->remote[i].digests;
        for (uint32_t t = 0; t < rank->num_tensors; t++)
            digest_merge(&save->digests[rank->tensors[t].tensor], &digests[t]);
    }
    return 0;
}

/* After ERR_IO the manifest may reappear after a power loss. ERR_EXISTS: a manifest has our name,
 * though the catalog has none: the owner of its files is unknown. */
static enum commit_outcome classify_error(int error)
{
    if (error == 0)
        return OUTCOME_DURABLE;
    return error == ERR_IO || error == ERR_EXISTS ? OUTCOME_UNKNOWN : OUTCOME_ABSENT;
}

static int write_manifest(struct save *save)
{
    const struct attempt *attempt = save->run->coordinator->attempt;
    char *text = NULL, *mesh = NULL;
    size_t bytes = 0;
    struct manifest manifest = {
        .summary = save->summary,
        .parent_step = attempt->parent_step,
        .parent_attempt = attempt->parent_attempt,
        .mesh_json = attempt->mesh_json,
        .identity_json = attempt->identity_json,
        .config_json = attempt->config_json,
        .data_json = attempt->data_json,
        .state_json = save->state_json,
        .table = save->group->table,
        .digests = save->digests,
        .shards = calloc(save->world_size, sizeof *manifest.shards),
    };
    if (!manifest.shards)
        return report_error(ERR_MEMORY, NULL, "no memory for the manifest");
    memcpy(manifest.code_version, attempt->code_version, sizeof manifest.code_version);
    for (uint32_t i = 0; i < save->world_size; i++) {
        const struct stage *stage = &save->stages[i];
        if (!stage->image) {
            manifest.shards[i] = save->remote[i].shard;
            continue;
        }
        manifest.shards[i] = (struct manifest_shard){stage->image->geometry.file_bytes,
                                                     stage->image->geometry.data_start,
                                                     stage->header_hash, stage->table_hash};
    }
    int error = 0;
    if (save->replicas)
        error = replicas_add(&mesh, attempt->mesh_json, save->replicas, save->group->table);
    if (mesh)
        manifest.mesh_json = mesh;
    if (error == 0)
        error = manifest_write(&text, &bytes, &manifest);
    if (error == 0)
        error = store_put_places(save->service->storage, &save->summary, &save->places);
    if (error == 0) {
        error = store_commit(save->service->storage, save->dir, text, bytes); /* commit.I11 */
        save->outcome = classify_error(error);
        save->manifest_hash = checksum_bytes(text, bytes);
    }
    if (save->outcome == OUTCOME_DURABLE && save->places.num_shards > 0) {
        save->manifest_text = text;
        save->manifest_bytes = bytes;
        text = NULL;
    }
    free(text);
    free(mesh);
    free(manifest.shards);
    return error;
}

/* ---- the content ---- */

/* One hash of the names and digests of all tensors; they are sorted by name. "" without tensors, or
 * without memory: then it is not compared. */
static void hash_content(char out[CHECKSUM_SHA256_HEX], const struct layout_table *table,
                         const struct digest *digests)
{
    const size_t room = LAYOUT_NAME_MAX + sizeof *digests;
    char *text = malloc(table->num_tensors * room + 1);
    size_t bytes = 0;
    out[0] = '\0';
    for (uint32_t i = 0; text && i < table->num_tensors; i++) {
        size_t length = strlen(table->tensors[i].name) + 1;
        memcpy(text + bytes, table->tensors[i].name, length);
        memcpy(text + bytes + length, &digests[i], sizeof digests[i]);
        bytes += length + sizeof digests[i];
    }
    if (bytes > 0 && checksum_sha256_hex(out, text, bytes) != 0)
        log_warn("commit", "a save is not compared with the one before: %s", report_line());
    free(text);
}

/* After a restart the digests of the former checkpoint are only in its manifest. If that is
 * unreadable it is not compared; a load reports the error. */
static void read_before(struct save *save)
{
    struct manifest_summary before = {.step = save->before.step, .attempt = save->before.attempt};
    struct manifest *manifest = NULL;
    if (save->before.attempt == 0)
        return;
    snprintf(before.run, sizeof before.run, "%s", save->run->name);
    if (store_read_manifest(&manifest, save->service->storage, &before) == 0)
        hash_content(save->before.content, manifest->table, manifest->digests);
    else
        log_warn("commit", "run %s: step %llu cannot be compared with step %llu, attempt %llu: %s",
                 save->run->name, (unsigned long long)save->step, (unsigned long long)before.step,
                 (unsigned long long)before.attempt, report_line());
    manifest_free(manifest);
}

static void work_publish(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    save->outcome = OUTCOME_ABSENT;
    int error = merge_digests(save);
    if (error == 0)
        error = compare_replicas(save);
    if (error == 0)
        error = write_manifest(save);
    if (error != 0) {
        fault_take(&save->fault, error);
        return;
    }
    hash_content(save->content, save->group->table, save->digests);
    read_before(save);
}

static void published(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    struct commit_actions actions = {0};
    commit_published(&save->run->coordinator->machine, &actions, save->id, save->outcome,
                     save->fault.code);
    run_perform(save->run, &actions);
}

void publish_manifest(struct run *run, const struct commit_action *action)
{
    struct save *save = save_find(run, action->save);
    fill_summary(save);
    const struct checkpoint *before = save_before(save);
    if (before && !before->content[0]) {
        save->before.step = before->summary.step;
        save->before.attempt = before->summary.attempt;
    }
    save->job = (struct job){.work = work_publish, .done.run = published};
    loop_work(save->service->loop, &save->job);
}
