/* repair.c - repair: replaces damaged shards of a checkpoint from a copy elsewhere. It also
 * replaces its manifest, from the copy or, without one, from the headers of its shards (rebuild.c).
 *
 *   every block here is read: which shards are damaged?
 *    │ for each, the same shard elsewhere, each block verified by the manifest and tables here
 *    ▼ (the manifest here is intact, so both are verified by it)
 *   a new file beside the damaged one, synced
 *    ▼
 *   renamed over the damaged one; the whole checkpoint is read back, by blocks and digests
 *    ▼
 *   released from quarantine, and served again
 *
 * An interrupted repair leaves a checkpoint with the same damage as before, or less; the same
 * command continues it. */
#include "clients/cli/change/repair.h"
#include "clients/cli/assemble/blocks.h"

#include "proto/format/origin.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of a shard's name, so that a removal of the checkpoint removes it. */
#define NEW_SUFFIX ".new.safetensors"

struct repair {
    const struct cli *cli;
    struct cli elsewhere;
    struct storage *store, *other; /* `store` is writable */
    struct checkpoint here, there;
    struct progress progress;
    bool *is_bad; /* per shard */
    uint32_t num_bad;
    char run_there[128]; /* "": the same as here */
    bool has_new_manifest,
        has_lost_state; /* the manifest was lost; and no copy has it, so the state is lost */
};

/* ---- the damage here ---- */

static void find_shard(struct repair *repair, uint32_t shard)
{
    repair->num_bad += !repair->is_bad[shard];
    repair->is_bad[shard] = true;
}

static int note_block(void *user, const struct scan_read *read, int error_number)
{
    (void)error_number;
    find_shard(user, read->file->stored.shard);
    return 0;
}

static int find_damage(struct repair *repair)
{
    uint32_t shards = repair->here.manifest->summary.shards;
    struct blocks blocks = {.checkpoint = &repair->here,
                            .end_shard = shards,
                            .progress = &repair->progress,
                            .user = repair,
                            .damaged = note_block};
    repair->is_bad = calloc(shards, sizeof *repair->is_bad);
    if (repair->is_bad == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to repair");
    ERR_TRY(checkpoint_load(&repair->here, LOAD_HEADERS));
    for (uint32_t i = 0; i < shards; i++) {
        if (repair->here.shards[i].damage != NULL || repair->here.shards[i].header_damage != NULL)
            find_shard(repair, i);
    }
    int error = blocks_run(&blocks);
    blocks_free(&blocks);
    return error;
}

/* ---- the copy elsewhere ---- */

/* Parses STORE, or STORE:RUN if the run has another name there. */
static int open_elsewhere(struct repair *repair)
{
    struct cli *other = &repair->elsewhere;
    const char *from = repair->cli->from, *colon = strrchr(from, ':');
    bool is_server = strncmp(from, "unix:/", 6) == 0;
    bool has_run = colon != NULL && strchr(colon, '/') == NULL && !(is_server && colon == from + 4);
    if (repair->other != NULL)
        return 0;
    if (from[0] == '\0')
        return report_error(ERR_INVALID, "add --from STORE, or --from STORE:RUN",
                            "no store with a copy of it was named");
    snprintf(repair->run_there, sizeof repair->run_there, "%s", has_run ? colon + 1 : "");
    ERR_TRY(server_find_named(other, repair->cli, from,
                              has_run ? (size_t)(colon - from) : strlen(from)));
    return store_open(&repair->other, other);
}

static int load_elsewhere(struct repair *repair)
{
    const char *run = repair->here.manifest->summary.run;
    ERR_TRY(open_elsewhere(repair));
    if (repair->run_there[0] != '\0')
        run = repair->run_there;
    ERR_TRY(manifest_read(&repair->there.manifest, repair->here.text, repair->here.text_bytes));
    origin_rename(&repair->there.manifest->summary, run);
    repair->there.store = repair->other;
    snprintf(repair->there.name, sizeof repair->there.name, "%.180s", repair->cli->from);
    return checkpoint_load(&repair->there, LOAD_HEADERS);
}

/* Repairs the manifest, if the checkpoint is named with its attempt. */
static int repair_manifest(struct repair *repair)
{
    struct selection selection;
    struct manifest *manifest = NULL;
    ERR_TRY(selection_parse(&selection, repair->cli->args[0]));
    if (selection.attempt == 0)
        return 0;
    int error = checkpoint_manifest(&manifest, repair->store, &selection);
    if (manifest != NULL)
        manifest_free(manifest);
    if (error != ERR_NOT_FOUND && error != ERR_CORRUPT)
        return error == ERR_MISMATCH ? 0 : error; /* opening it explains that error */
    repair->has_new_manifest = true;
    repair->has_lost_state = repair->cli->from[0] == '\0';
    if (repair->has_lost_state)
        return rebuild_from_shards(repair->store, repair->cli, &selection);
    ERR_TRY(open_elsewhere(repair));
    return rebuild_from_copy(repair->store, &selection, repair->other,
                             repair->run_there[0] != '\0' ? repair->run_there : selection.run);
}

static int check_there(const struct repair *repair, uint32_t shard)
{
    const struct shard_file *file = &repair->there.shards[shard];
    return file->damage == NULL
               ? 0
               : report_error(file->damage_error, "name a store with an undamaged copy of it",
                              "%s: shard %u: %s", repair->there.name, shard + 1, file->damage);
}

/* ---- the replacement ---- */

static int replace_shard(struct repair *repair, uint32_t shard)
{
    struct shard_identity identity;
    char key[STORAGE_KEY_MAX], fresh[STORAGE_KEY_MAX + 32], folder[STORAGE_KEY_MAX];
    manifest_identity(&identity, &repair->here.manifest->summary, shard);
    ERR_TRY(shard_key(key, sizeof key, &identity));
    ERR_TRY(shard_dir_key(folder, sizeof folder, identity.run, identity.step, identity.attempt));
    snprintf(fresh, sizeof fresh, "%s" NEW_SUFFIX, key);
    struct digest *digests = NULL; /* everything is read again at the end */
    int error =
        shard_copy(repair->store, fresh, &repair->there, shard, &digests, &repair->progress);
    free(digests);
    if (error != 0)
        return error;
    error = storage_remove(repair->store, key);
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_rename(repair->store, fresh, key);
    return error == 0 ? storage_sync_names(repair->store, folder) : error;
}

static int fail_still_damaged(void *user, const struct scan_read *read, int error_number)
{
    struct repair *repair = user;
    (void)error_number;
    int error =
        report_error(ERR_CORRUPT, "check the store's disk",
                     "block %llu is damaged after the repair", (unsigned long long)read->block);
    return checkpoint_fail(&repair->here, read->file->stored.shard, error);
}

static void count_digest(void *user, const char *tensor)
{
    (void)tensor;
    ++*(uint32_t *)user;
}

static int read_back(struct repair *repair)
{
    uint32_t differing = 0;
    struct blocks blocks = {.checkpoint = &repair->here,
                            .end_shard = repair->here.manifest->summary.shards,
                            .progress = &repair->progress,
                            .user = repair,
                            .damaged = fail_still_damaged};
    checkpoint_unload(&repair->here);
    ERR_TRY(checkpoint_load(&repair->here, LOAD_HEADERS));
    ERR_TRY(checkpoint_need_whole(&repair->here));
    int error = blocks_run(&blocks);
    if (error == 0)
        error = blocks_compare(&blocks, count_digest, &differing);
    blocks_free(&blocks);
    return error != 0 || differing == 0
               ? error
               : report_error(ERR_CORRUPT, "use another checkpoint",
                              "%s: %s differ from the manifest after the repair", repair->here.name,
                              text_count(differing, "digest").text);
}

/* Verification found it intact: ends the quarantine. */
static int end_quarantine(const struct repair *repair)
{
    const struct manifest_summary *summary = &repair->here.manifest->summary;
    verified_keep(repair->cli, summary, &(struct verified){.percent = 100});
    int error = verified_release(repair->cli, summary);
    return error == ERR_NOT_FOUND && repair->cli->server[0] == '\0' ? 0 : error;
}

static int repair_shards(struct repair *repair)
{
    uint32_t shards = repair->here.manifest->summary.shards;
    progress_begin(&repair->progress, repair->cli, "repair",
                   2 * repair->here.manifest->summary.bytes);
    int error = find_damage(repair);
    if (error == 0 && repair->num_bad > 0)
        error = load_elsewhere(repair);
    for (uint32_t i = 0; i < shards && error == 0 && repair->num_bad > 0; i++)
        error = repair->is_bad[i] ? check_there(repair, i) : 0;
    for (uint32_t i = 0; i < shards && error == 0; i++)
        error = repair->is_bad[i] ? replace_shard(repair, i) : 0;
    if (error == 0)
        error = read_back(repair);
    progress_end(&repair->progress);
    return error == 0 ? end_quarantine(repair) : error;
}

static int open_here(struct repair *repair)
{
    const struct cli *cli = repair->cli;
    if (cli->server[0] != '\0')
        ERR_TRY(server_need_here(cli));
    ERR_TRY(store_open_writable(&repair->store, cli));
    if (cli->server[0] != '\0')
        ERR_TRY(server_prepare_write(cli, 0));
    else
        ERR_TRY(store_lock(repair->store, "--server"));
    ERR_TRY(repair_manifest(repair));
    return checkpoint_open(&repair->here, repair->store, cli->args[0]);
}

int cli_repair(const struct cli *cli)
{
    struct repair repair = {.cli = cli};
    int error = open_here(&repair);
    if (error == 0)
        error = repair_shards(&repair);
    if (error == 0 && cli->is_json)
        printf("{\"checkpoint\": \"%s\", \"shards_replaced\": %u, \"manifest_replaced\": %s, "
               "\"state_lost\": %s, \"durability\": \"%s\"}\n",
               repair.here.name, repair.num_bad, repair.has_new_manifest ? "true" : "false",
               repair.has_lost_state ? "true" : "false", store_durability(cli->store));
    else if (error == 0)
        printf("%s: whole, %s. %s replaced%s, all read back\n%s", repair.here.name,
               store_durability(cli->store), text_count(repair.num_bad, "shard").text,
               repair.has_new_manifest ? " and the manifest" : "",
               repair.has_lost_state ? "its state is lost: no trainer resumes from it; export it, "
                                       "or start another run from its weights\n"
                                     : "");
    free(repair.is_bad);
    checkpoint_close(&repair.there);
    checkpoint_close(&repair.here);
    storage_close(repair.other);
    storage_close(repair.store);
    return error;
}
