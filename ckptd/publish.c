/* publish.c - the last two steps before a checkpoint exists: its names, then its manifest.
 *
 * Both block and run on a worker: fsync of the step's directory and of every one above it, then the
 * manifest, whole and exclusive. The manifest is made of what OpenAttempt said, the layout table,
 * the digests summed over all shards, and the hash of each shard's checksum table. While a worker
 * has the save, the service thread only reads it.
 *
 * How a publication ended is one of three: durable, absent, or unknown. Unknown is never taken for
 * either of the others (commit.c, I2 and I3). */
#include "ckptd/ckptd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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
    save->named_ms = loop_now_ms();
    commit_names_synced(&save->run->machine, &actions, save->id, save->fault.code);
    run_perform(save->run, &actions);
}

void publish_sync_names(struct save *save)
{
    save->durable_ms = loop_now_ms();
    save->job = (struct job){.work = work_sync_names, .done.run = names_synced};
    loop_work(save->service->loop, &save->job);
}

static void fill_summary(struct save *save)
{
    struct manifest_summary *summary = &save->summary;
    struct tm utc;
    time_t now = time(NULL);
    gmtime_r(&now, &utc);
    memset(summary, 0, sizeof *summary);
    summary->version = MANIFEST_VERSION;
    snprintf(summary->run, sizeof summary->run, "%s", save->run->name);
    snprintf(summary->nonce, sizeof summary->nonce, "%s", save->nonce);
    strftime(summary->time, sizeof summary->time, "%Y-%m-%dT%H:%M:%SZ", &utc);
    summary->step = save->step;
    summary->attempt = save->attempt;
    summary->world_size = save->world_size;
    summary->shards = save->world_size;
    summary->bytes = save->bytes;
}

static int merge_digests(struct save *save)
{
    uint32_t count = save->group->table->num_tensors;
    save->digests = calloc(count + 1, sizeof *save->digests);
    if (!save->digests)
        return report_error(ERR_MEMORY, NULL, "no memory for %u digests", count);
    for (uint32_t i = 0; i < save->world_size; i++) {
        const struct image *image = save->stages[i].image;
        for (uint32_t t = 0; t < image->num_tensors; t++)
            digest_merge(&save->digests[image->tensors[t].tensor], &image->digests[t]);
    }
    return 0;
}

/* After ERR_IO the manifest may be back after a power loss. ERR_EXISTS: somebody's manifest has our
 * name, though the catalog knows none: whose the files are is not for us to guess. */
static enum commit_outcome judge_publish(int error)
{
    if (error == 0)
        return OUTCOME_DURABLE;
    return error == ERR_IO || error == ERR_EXISTS ? OUTCOME_UNKNOWN : OUTCOME_ABSENT;
}

static int write_manifest(struct save *save)
{
    const struct attempt *attempt = save->run->attempt;
    char *text = NULL, key[STORAGE_KEY_MAX + 32];
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
    save->outcome = OUTCOME_ABSENT;
    if (!manifest.shards)
        return report_error(ERR_MEMORY, NULL, "no memory for the manifest");
    memcpy(manifest.code_version, attempt->code_version, sizeof manifest.code_version);
    for (uint32_t i = 0; i < save->world_size; i++) {
        const struct stage *stage = &save->stages[i];
        manifest.shards[i] =
            (struct manifest_shard){stage->image->geometry.file_bytes,
                                    stage->image->geometry.data_start, stage->table_hash};
    }
    int error = manifest_write(&text, &bytes, &manifest);
    snprintf(key, sizeof key, "%s/%s", save->dir, MANIFEST_NAME);
    if (error == 0) {
        error = storage_publish(save->service->storage, key, text, bytes);
        save->outcome = judge_publish(error);
    }
    free(text);
    free(manifest.shards);
    return error;
}

static void work_publish(struct job *job)
{
    struct save *save = CONTAINER_OF(job, struct save, job);
    int error = write_manifest(save);
    if (error != 0)
        fault_take(&save->fault, error);
}

static void published(struct event *event)
{
    struct save *save = CONTAINER_OF(event, struct save, job.done);
    struct commit_actions actions = {0};
    commit_published(&save->run->machine, &actions, save->id, save->outcome, save->fault.code);
    run_perform(save->run, &actions);
}

void publish_manifest(struct save *save)
{
    fill_summary(save);
    int error = merge_digests(save);
    if (error != 0) {
        struct commit_actions actions = {0};
        fault_take(&save->fault, error);
        commit_published(&save->run->machine, &actions, save->id, OUTCOME_ABSENT, error);
        run_perform(save->run, &actions);
        return;
    }
    save->job = (struct job){.work = work_publish, .done.run = published};
    loop_work(save->service->loop, &save->job);
}
