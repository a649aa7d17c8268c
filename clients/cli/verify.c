/* verify.c - proves that a stored checkpoint is whole, or says exactly where it is not.
 *
 * In this order: the manifest against its SHA-256 (checkpoint_open); every shard's size, its
 * checksum table against the manifest, its header against the layout and the manifest
 * (checkpoint_load); every block against the table; and, from the same pass over the bytes, the
 * layout-free digest of every tensor against the manifest. Damage does not stop it: all of it is
 * reported, up to DAMAGE_MAX places; the rest is counted.
 *
 * --release takes a checkpoint that turned out to be whole out of quarantine: its files were put
 * right from a copy, or the disk read badly once. Through a server that serves it again at once.
 *
 * --quick ends before the blocks. It proves that the files are there, whole in size, of this
 * checkpoint (by the hash at the end of each header), and that the table of their checksums is the
 * one that was committed; it proves nothing about the data, and says so. */
#include "clients/cli/engine/blocks.h"

#include <stdlib.h>
#include <string.h>

#define DAMAGE_MAX 200u

struct verify {
    const struct cli *cli;
    struct checkpoint checkpoint;
    struct progress progress;
    uint64_t num_damages, blocks, bytes;
};

/* ---- damage ---- */

/* One place of damage. `block` < 0: it is not about one block. */
static void report_damage(struct verify *verify, const char *object, int64_t block, uint64_t start,
                          uint64_t bytes, const char *what)
{
    char safe[256], name[256];
    bool is_first = verify->num_damages++ == 0;
    if (verify->num_damages > DAMAGE_MAX)
        return;
    progress_hide(&verify->progress);
    if (!verify->cli->is_json) {
        printf("DAMAGED  %s: %s\n", text_safe(name, sizeof name, object),
               text_safe(safe, sizeof safe, what));
        return;
    }
    printf("%s\n    {\"object\": ", is_first ? "" : ",");
    text_json(stdout, object);
    if (block >= 0)
        printf(", \"block\": %lld, \"start\": %llu, \"bytes\": %llu", (long long)block,
               (unsigned long long)start, (unsigned long long)bytes);
    printf(", \"what\": ");
    text_json(stdout, what);
    printf("}");
}

static void shard_name(char *out, size_t size, const struct verify *verify, uint32_t shard)
{
    snprintf(out, size, "shard-%05u-of-%05u.safetensors", shard + 1,
             verify->checkpoint.manifest->summary.shards);
}

static int take_damaged(void *user, const struct scan_read *read, int error_number)
{
    struct verify *verify = user;
    char name[64], what[160];
    uint64_t start, bytes;
    shard_block(&start, &bytes, &read->file->geometry, read->block);
    shard_name(name, sizeof name, verify, read->file->shard);
    snprintf(what, sizeof what, "block %llu (bytes %llu to %llu) %s%s",
             (unsigned long long)read->block, (unsigned long long)start,
             (unsigned long long)(start + bytes),
             error_number != 0 ? "could not be read: " : "does not match its checksum",
             error_number != 0 ? strerror(error_number) : "");
    report_damage(verify, name, (int64_t)read->block, start, bytes, what);
    return 0;
}

/* ---- every block ---- */

static void report_digest(void *user, const char *tensor)
{
    report_damage(user, tensor, -1, 0, 0, "the tensor's values do not match its digest");
}

static int verify_blocks(struct verify *verify)
{
    struct blocks blocks = {.checkpoint = &verify->checkpoint,
                            .end_shard = verify->checkpoint.manifest->summary.shards,
                            .progress = &verify->progress,
                            .user = verify,
                            .damaged = take_damaged};
    int error = blocks_run(&blocks);
    if (error == 0)
        error = blocks_compare(&blocks, report_digest, verify);
    verify->blocks = blocks.num_blocks;
    blocks_free(&blocks);
    return error;
}

/* ---- the whole ---- */

static void print_begin(const struct verify *verify)
{
    if (!verify->cli->is_json)
        return;
    printf("{\"checkpoint\": ");
    text_json(stdout, verify->checkpoint.name);
    printf(", \"quick\": %s, \"damage\": [", verify->cli->is_quick ? "true" : "false");
}

static void print_whole(const struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    /* With --release it is about to leave. */
    const char *where = verify->checkpoint.quarantine[0] == '\0' || verify->cli->is_released
                            ? CLI_STORED
                            : "in quarantine until `verify --release`";
    char size[32];
    text_bytes(size, sizeof size, verify->bytes);
    if (verify->cli->is_quick)
        printf("%s: files in order, %s. %s, %s: manifest, sizes, hashes of headers and checksum "
               "tables match. The data were NOT read; `verify` without --quick proves them.\n",
               verify->checkpoint.name, where, text_count(manifest->summary.shards, "shard").text,
               size);
    else
        printf("%s: whole, %s. %s, %s, %s, %s: all match.\n", verify->checkpoint.name, where,
               text_count(manifest->summary.shards, "shard").text,
               text_count(verify->blocks, "block").text, size,
               text_count(manifest->table->num_tensors, "tensor digest").text);
}

static void print_json_end(const struct verify *verify)
{
    bool is_damaged = verify->num_damages > 0 || verify->checkpoint.quarantine[0] != '\0';
    printf("%s], \"quarantine\": ", verify->num_damages > 0 ? "\n" : "");
    text_json(stdout, verify->checkpoint.quarantine);
    printf(", \"durability\": \"%s\"", is_damaged ? CLI_DAMAGED : CLI_STORED);
    printf(", \"damages\": %llu, \"shards\": %u, \"blocks\": %llu, \"bytes\": %llu, "
           "\"tensors\": %u}\n",
           (unsigned long long)verify->num_damages, verify->checkpoint.manifest->summary.shards,
           (unsigned long long)verify->blocks, (unsigned long long)verify->bytes,
           verify->checkpoint.manifest->table->num_tensors);
}

static void print_end(const struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    char text[sizeof verify->checkpoint.quarantine];
    if (verify->checkpoint.quarantine[0] != '\0')
        printf("in quarantine: %s\n", text_safe(text, sizeof text, verify->checkpoint.quarantine));
    if (verify->num_damages > DAMAGE_MAX)
        printf("         and %llu more\n", (unsigned long long)(verify->num_damages - DAMAGE_MAX));
    if (verify->num_damages == 0)
        print_whole(verify);
    else
        printf("%s: DAMAGED in %s (%s, %s read)\n", verify->checkpoint.name,
               text_count(verify->num_damages, "place").text,
               text_count(manifest->summary.shards, "shard").text,
               text_count(verify->blocks, "block").text);
}

static int verify_all(struct verify *verify)
{
    uint32_t shards = verify->checkpoint.manifest->summary.shards;
    uint64_t to_read = 0;
    char name[64];
    int error =
        checkpoint_load(&verify->checkpoint, verify->cli->is_quick ? LOAD_QUICK : LOAD_HEADERS);
    if (error != 0)
        return error;
    print_begin(verify);
    for (uint32_t i = 0; i < shards; i++) {
        const struct shard_file *file = &verify->checkpoint.shards[i];
        shard_name(name, sizeof name, verify, i);
        if (file->damage != NULL)
            report_damage(verify, name, -1, 0, 0, file->damage);
        else
            to_read += file->geometry.table_start;
        if (file->header_damage != NULL)
            report_damage(verify, name, -1, 0, 0, file->header_damage);
        verify->bytes += file->damage == NULL ? file->geometry.file_bytes : 0;
    }
    if (!verify->cli->is_quick) {
        progress_begin(&verify->progress, verify->cli, "verify", to_read);
        error = verify_blocks(verify);
        progress_end(&verify->progress);
    }
    if (error == 0 && !verify->cli->is_json) /* else nothing can be said about the whole */
        print_end(verify);
    return error;
}

/* Everything matches: the note that says otherwise goes. */
static int release(const struct verify *verify)
{
    const struct manifest_summary *summary = &verify->checkpoint.manifest->summary;
    struct storage *store = NULL;
    char prefix[STORAGE_KEY_MAX];
    if (verify->cli->server[0] != '\0') {
        int answer = server_release(verify->cli, summary);
        if (answer == 0 && !verify->cli->is_json)
            printf("%s: not in quarantine, and served\n", verify->checkpoint.name);
        return answer;
    }
    int error = shard_dir_key(prefix, sizeof prefix, summary->run, summary->step, summary->attempt);
    if (error == 0)
        error = store_open_writable(&store, verify->cli);
    if (error != 0)
        return error;
    error = storage_group_unnote(store, STORAGE_QUARANTINE, prefix);
    storage_close(store);
    if (!verify->cli->is_json && (error == 0 || error == ERR_NOT_FOUND))
        printf("%s: %s\n", verify->checkpoint.name,
               error == 0 ? "out of quarantine; a running ckptd sees that at its next start"
                          : "was not in quarantine");
    return error == ERR_NOT_FOUND ? 0 : error;
}

int cli_verify(const struct cli *cli)
{
    struct verify verify = {.cli = cli};
    struct storage *store = NULL;
    int error = cli->is_released && cli->is_quick
                    ? report_error(ERR_INVALID, "verify without --quick",
                                   "--release needs the proof that --quick does not give")
                    : store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&verify.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = verify_all(&verify);
    if (error == 0 && verify.num_damages == 0 && cli->is_released) {
        error = release(&verify);
        verify.checkpoint.quarantine[0] = '\0';
    }
    if (error == 0 && cli->is_json)
        print_json_end(&verify); /* with what became of the quarantine, or not at all */
    checkpoint_close(&verify.checkpoint);
    if (store != NULL)
        storage_close(store);
    return error != 0 ? error : verify.num_damages > 0 ? CLI_DIFFERS : 0;
}
