/* verify.c - verifies that a stored checkpoint is intact, or reports every damaged place.
 *
 * The order: the manifest against its SHA-256 (checkpoint_open); every shard's size, its checksum
 * table against the manifest, its header against the layout and the manifest (checkpoint_load);
 * every block against the table. The same pass over the bytes compares the layout-free digest of
 * every tensor with the manifest. verify continues after damage: it reports up to DAMAGE_MAX places
 * and counts the rest.
 *
 * --release ends the quarantine of a checkpoint that is intact: its files were restored from a
 * copy, or the disk misread once. A server then serves it again at once.
 *
 * --sample reads a part of the blocks, chosen by a printed seed; digests need all of them. The
 * result is stored beside the manifest (verified.c), where prune and retention read it. verify
 * reports damage to a ckptd that serves the store, so that its scrub reads the checkpoint at once.
 *
 * --quick ends before the blocks. It proves that the files exist with the right size and belong to
 * this checkpoint (by the hash at the end of each header), and that their checksum table is the
 * committed one. It proves nothing about the data, and prints that. */
#include "clients/cli/assemble/blocks.h"
#include "proto/format/flaw.h"
#include "proto/format/places.h"
#include "storage/store/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define DAMAGE_MAX 200u

struct verify {
    const struct cli *cli;
    struct checkpoint checkpoint;
    struct progress progress;
    double percent; /* of the blocks that are read */
    int64_t seed;
    bool is_first; /* the first checkpoint: no comma before it */
    uint64_t num_damages, blocks, bytes;
    uint32_t num_elsewhere; /* shards that are on other nodes, by places.json */
};

/* ---- damage ---- */

/* Reports one place of damage. `block` < 0: it is not about one block. */
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

static int report_damaged_block(void *user, const struct scan_read *read, int error_number)
{
    struct verify *verify = user;
    char name[64], what[160];
    uint64_t start, bytes;
    shard_block(&start, &bytes, &read->file->stored.geometry, read->block);
    shard_name(name, sizeof name, verify, read->file->stored.shard);
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

/* A part of each shard, the same again with the same seed; always the first block. */
static bool is_in_sample(void *user, uint32_t shard, uint64_t block)
{
    const struct verify *verify = user;
    const uint64_t place[] = {(uint64_t)verify->seed, shard, block};
    return block == 0 ||
           (double)checksum_bytes(place, sizeof place) < verify->percent / 100 * (double)UINT64_MAX;
}

static int verify_blocks(struct verify *verify)
{
    bool is_sample = verify->percent < 100;
    struct blocks blocks = {.checkpoint = &verify->checkpoint,
                            .end_shard = verify->checkpoint.manifest->summary.shards,
                            .progress = &verify->progress,
                            .user = verify,
                            .is_wanted = is_sample ? is_in_sample : NULL,
                            .damaged = report_damaged_block};
    int error = blocks_run(&blocks);
    if (error == 0 && !is_sample)
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
    printf("%s{\"checkpoint\": ", verify->is_first ? "" : ",\n");
    text_json(stdout, verify->checkpoint.name);
    if (verify->percent < 100)
        printf(", \"percent\": %.17g, \"seed\": %lld", verify->percent, (long long)verify->seed);
    printf(", \"quick\": %s, \"damage\": [", verify->cli->is_quick ? "true" : "false");
}

static void print_whole(const struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    /* --release is about to end the quarantine. */
    const char *where = verify->checkpoint.quarantine[0] == '\0' || verify->cli->is_released
                            ? store_durability(verify->cli->store)
                            : "in quarantine until `verify --release`";
    char size[32];
    text_bytes(size, sizeof size, verify->bytes);
    if (verify->num_elsewhere > 0)
        printf("%s: a part, %s. %u of %s are here, and match%s; the others lie on other nodes.\n",
               verify->checkpoint.name, where, manifest->summary.shards - verify->num_elsewhere,
               text_count(manifest->summary.shards, "shard").text,
               verify->cli->is_quick ? " by their headers" : "");
    else if (verify->cli->is_quick)
        printf("%s: files in order, %s. %s, %s: manifest, sizes, hashes of headers and checksum "
               "tables match. The data were NOT read; `verify` without --quick reads them.\n",
               verify->checkpoint.name, where, text_count(manifest->summary.shards, "shard").text,
               size);
    else if (verify->percent < 100)
        printf("%s: no damage found, %s. %s, %s of them read (%g%%, --seed %lld): these match.\n",
               verify->checkpoint.name, where, text_count(manifest->summary.shards, "shard").text,
               text_count(verify->blocks, "block").text, verify->percent, (long long)verify->seed);
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
    printf(", \"durability\": \"%s\"",
           is_damaged ? FLAW_DAMAGED : store_durability(verify->cli->store));
    if (verify->num_elsewhere > 0)
        printf(", \"on_other_nodes\": %u", verify->num_elsewhere);
    printf(", \"damages\": %llu, \"shards\": %u, \"blocks\": %llu, \"bytes\": %llu, "
           "\"tensors\": %u}%s",
           (unsigned long long)verify->num_damages, verify->checkpoint.manifest->summary.shards,
           (unsigned long long)verify->blocks, (unsigned long long)verify->bytes,
           verify->checkpoint.manifest->table->num_tensors, verify->cli->is_all ? "" : "\n");
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
    struct places places = {0};
    uint64_t to_read = 0;
    char name[64];
    int error =
        checkpoint_load(&verify->checkpoint, verify->cli->is_quick ? LOAD_QUICK : LOAD_HEADERS);
    if (error == 0)
        error = store_read_places(&places, verify->checkpoint.store,
                                  &verify->checkpoint.manifest->summary);
    if (error != 0)
        return error;
    print_begin(verify);
    for (uint32_t i = 0; i < shards; i++) {
        const struct shard_file *file = &verify->checkpoint.shards[i];
        shard_name(name, sizeof name, verify, i);
        if (file->damage != NULL && !places_is_here(&places, i)) {
            verify->num_elsewhere++;
            continue;
        }
        if (file->damage != NULL)
            report_damage(verify, name, -1, 0, 0, file->damage);
        else
            to_read +=
                (uint64_t)((double)file->stored.geometry.table_start * verify->percent / 100);
        if (file->header_damage != NULL)
            report_damage(verify, name, -1, 0, 0, file->header_damage);
        verify->bytes += file->damage == NULL ? file->stored.geometry.file_bytes : 0;
    }
    places_free(&places);
    if (!verify->cli->is_quick) {
        progress_begin(&verify->progress, verify->cli, "verify", to_read);
        error = verify_blocks(verify);
        progress_end(&verify->progress);
    }
    if (error == 0 && !verify->cli->is_json) /* after an error the result is unknown */
        print_end(verify);
    return error;
}

/* Everything matches: ends the quarantine. */
static int end_quarantine(const struct verify *verify)
{
    bool is_served = verify->cli->server[0] != '\0';
    int error = verified_release(verify->cli, &verify->checkpoint.manifest->summary);
    if (error != 0 && (is_served || error != ERR_NOT_FOUND))
        return error;
    if (!verify->cli->is_json)
        printf("%s: %s\n", verify->checkpoint.name,
               is_served ? "not in quarantine, and served"
               : error == 0
                   ? "released from quarantine; a running ckptd applies it at its next start"
                   : "was not in quarantine");
    return 0;
}

static int verify_one(bool *out_is_damaged, struct verify *verify, struct storage *store,
                      const char *name)
{
    const struct cli *cli = verify->cli;
    ERR_TRY(checkpoint_open(&verify->checkpoint, store, name));
    verify->num_damages = verify->blocks = verify->bytes = 0;
    int error = verify_all(verify);
    if (error == 0 && (!cli->is_quick || verify->num_damages > 0))
        verified_keep(cli, &verify->checkpoint.manifest->summary,
                      &(struct verified){.percent = verify->percent,
                                         .seed = verify->seed,
                                         .damages = verify->num_damages});
    if (error == 0 && verify->num_damages > 0 && cli->server[0] != '\0' &&
        verify->checkpoint.quarantine[0] == '\0')
        verified_report_to_server(cli, &verify->checkpoint.manifest->summary);
    if (error == 0 && verify->num_damages == 0 && cli->is_released) {
        error = end_quarantine(verify);
        verify->checkpoint.quarantine[0] = '\0';
    }
    if (error == 0 && cli->is_json)
        print_json_end(verify); /* with the new state of the quarantine, or not at all */
    *out_is_damaged = verify->num_damages > 0;
    checkpoint_close(&verify->checkpoint);
    return error;
}

/* Names a checkpoint that cannot be read; verify continues with the others. */
static int report_unread(struct verify *verify, const char *name, int error,
                         struct failure *failure)
{
    char safe[512];
    bool is_damage = error == ERR_CORRUPT || error == ERR_MISMATCH || error == ERR_VERSION;
    if (verify->cli->is_json) {
        printf("%s{\"checkpoint\": \"%s\", \"error\": ", verify->is_first ? "" : ",\n", name);
        text_json(stdout, report_line());
        printf("}");
    } else {
        printf("%s: %s: %s\n", name, is_damage ? "DAMAGED" : "not verified",
               text_safe(safe, sizeof safe, report_line()));
    }
    if (!is_damage)
        failure_keep(failure, error);
    return error == ERR_MEMORY ? error : 0;
}

/* Verifies all listed checkpoints of the store, or the run. */
static int verify_each(bool *out_is_damaged, struct verify *verify, struct storage *store,
                       const char *run)
{
    struct store_list catalog = {0};
    struct failure failure = {0};
    char name[200];
    int error = run[0] != '\0' ? store_need_run(store, run) : 0;
    if (error == 0)
        error = store_list_read(&catalog, store, run);
    if (verify->cli->is_json && error == 0)
        printf("[");
    for (uint32_t i = 0; i < catalog.count && error == 0; i++) {
        const struct manifest_summary *summary = &catalog.entries[i].summary;
        bool is_damaged = false;
        strcpy(name, text_checkpoint(summary->run, summary->step, summary->attempt).text);
        if (summary->attempt == 0) /* the run could not be read */
            strcpy(name, summary->run);
        int one = summary->attempt == 0
                      ? report_error(ERR_IO, NULL, "%s", catalog.entries[i].damage)
                      : verify_one(&is_damaged, verify, store, name);
        if (one != 0)
            error = report_unread(verify, name, one, &failure);
        *out_is_damaged |= is_damaged || (one != 0 && failure.error == 0);
        verify->is_first = false;
    }
    if (verify->cli->is_json && error == 0)
        printf("]\n");
    store_list_free(&catalog);
    return error == 0 ? failure_report(&failure) : error;
}

/* Parses "5%", or "5". */
static int parse_sample(struct verify *verify)
{
    const struct cli *cli = verify->cli;
    char *end = NULL;
    verify->percent = cli->sample[0] != '\0' ? strtod(cli->sample, &end) : 100;
    if (end != NULL && *end == '%')
        end++;
    if (end != NULL &&
        (end == cli->sample || *end != '\0' || !(verify->percent > 0 && verify->percent <= 100)))
        return report_error(ERR_INVALID, "give a share of the blocks: 5%",
                            "--sample %s is not a share of the blocks", cli->sample);
    verify->seed = cli->seed;
    while (verify->percent < 100 && verify->seed == 0 &&
           getrandom(&verify->seed, sizeof verify->seed, 0) == sizeof verify->seed)
        verify->seed = (int64_t)((uint64_t)verify->seed >> 33); /* short enough to be typed */
    return 0;
}

static int check_options(struct verify *verify)
{
    const struct cli *cli = verify->cli;
    if (cli->is_released && (cli->is_quick || cli->is_all || cli->sample[0] != '\0'))
        return report_error(ERR_INVALID, "verify one checkpoint completely",
                            "--release cannot be used with %s",
                            cli->is_quick ? "--quick"
                            : cli->is_all ? "--all"
                                          : "--sample");
    if (cli->is_quick && cli->sample[0] != '\0')
        return report_error(ERR_INVALID, "choose one", "--quick and --sample were both given");
    if (cli->num_args == 0 && !cli->is_all)
        return report_error(ERR_INVALID, "name one, or add --all", "verify takes a CHECKPOINT");
    return parse_sample(verify);
}

int cli_verify(const struct cli *cli)
{
    struct verify verify = {.cli = cli, .is_first = true};
    struct selection selection;
    struct storage *store = NULL;
    const char *name = cli->num_args > 0 ? cli->args[0] : "";
    bool is_damaged = false;
    int error = check_options(&verify);
    if (error == 0 && cli->is_all && name[0] != '\0')
        error = selection_parse_run(&selection, name);
    if (error == 0)
        error = store_open(&store, cli);
    if (error == 0)
        error = (cli->is_all ? verify_each : verify_one)(&is_damaged, &verify, store, name);
    storage_close(store);
    return error != 0 ? error : is_damaged ? CLI_DIFFERS : 0;
}
