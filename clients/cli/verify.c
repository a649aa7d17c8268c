/* verify.c - proves that a stored checkpoint is whole, or says exactly where it is not.
 *
 * In this order: the manifest against its SHA-256 (checkpoint_open); per shard its size, its
 * checksum table against the manifest, every block against the table, its header against the
 * layout; and, from the same pass over the bytes, the layout-free digest of every tensor against
 * the manifest. Damage does not stop it: all of it is reported, up to DAMAGE_MAX places; the rest
 * is counted. */
#include "clients/cli/cli.h"

#include "proto/shard.h"

#include <stdlib.h>
#include <string.h>

#define DAMAGE_MAX 200u

struct verify {
    const struct cli *cli;
    struct checkpoint checkpoint;
    struct digest *digests; /* per tensor, of the bytes that were read */
    struct progress progress;
    uint32_t shard;
    uint64_t num_damages, blocks, bytes;
};

/* One place of damage. `block` < 0: it is not about one block. */
static void report_damage(struct verify *verify, const char *object, int64_t block, uint64_t start,
                          uint64_t bytes, const char *what)
{
    char safe[256], name[256];
    bool is_first = verify->num_damages++ == 0;
    if (verify->num_damages > DAMAGE_MAX)
        return;
    progress_end(&verify->progress);
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

static void shard_name(char *out, size_t size, const struct verify *verify)
{
    snprintf(out, size, "shard-%05u-of-%05u.safetensors", verify->shard + 1,
             verify->checkpoint.manifest->summary.shards);
}

static void damage_in_shard(struct verify *verify, const char *what)
{
    char name[64];
    shard_name(name, sizeof name, verify);
    report_damage(verify, name, -1, 0, 0, what);
}

struct digest_run {
    struct digest *digest;
    const unsigned char *data;
    uint32_t element_bytes;
};

static void add_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    const struct digest_run *run = user;
    digest_add(run->digest, run->data + element * run->element_bytes, count, run->element_bytes,
               global);
}

static int take_elements(void *user, uint32_t tensor, const struct box *box, uint64_t first,
                         uint64_t count, const void *data)
{
    struct verify *verify = user;
    const struct tensor_meta *meta = &verify->checkpoint.manifest->table->tensors[tensor];
    struct digest_run run = {&verify->digests[tensor], data, dtype_bytes(meta->dtype)};
    slice_runs(box, meta, first, count, add_run, &run);
    return 0;
}

static int take_damaged_block(void *user, uint64_t block, uint64_t start, uint64_t bytes)
{
    struct verify *verify = user;
    char name[64], what[96];
    shard_name(name, sizeof name, verify);
    snprintf(what, sizeof what, "block %llu (bytes %llu to %llu) does not match its checksum",
             (unsigned long long)block, (unsigned long long)start,
             (unsigned long long)(start + bytes));
    report_damage(verify, name, (int64_t)block, start, bytes, what);
    return 0;
}

/* Does the header describe exactly what the layout says this shard holds? */
static bool header_fits(const struct shard_header *header, const struct manifest *manifest,
                        const struct shard_tensor *tensors, uint32_t count, uint32_t shard)
{
    const struct shard_identity *identity = &header->identity;
    bool fits = strcmp(identity->run, manifest->summary.run) == 0 &&
                strcmp(identity->nonce, manifest->summary.nonce) == 0 &&
                identity->step == manifest->summary.step &&
                identity->attempt == manifest->summary.attempt && identity->shard == shard &&
                identity->shards == manifest->summary.shards && header->num_tensors == count;
    for (uint32_t i = 0; i < count && fits; i++) {
        const struct tensor_meta *want = &manifest->table->tensors[tensors[i].tensor];
        const struct slice *have = &header->tensors[i];
        fits = strcmp(have->tensor.name, want->name) == 0 && have->tensor.dtype == want->dtype &&
               have->tensor.dims == want->dims &&
               memcmp(have->tensor.shape, want->shape, want->dims * sizeof *want->shape) == 0 &&
               box_equal(&have->box, &tensors[i].box, want->dims) &&
               header->data_byte[i] == tensors[i].data_byte;
    }
    return fits;
}

static int take_header(void *user, const void *data, uint64_t bytes, uint64_t file_bytes)
{
    struct verify *verify = user;
    const struct manifest *manifest = verify->checkpoint.manifest;
    struct shard_header header;
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t need = 0, data_bytes = 0;
    if (shard_header_parse(&header, &need, data, bytes, file_bytes) != 0) {
        damage_in_shard(verify, need > bytes ? "the header is longer than the manifest says"
                                             : report_message());
        return 0;
    }
    int error = layout_shard_tensors(&tensors, &count, &data_bytes, manifest->table, verify->shard);
    if (error == 0 && !header_fits(&header, manifest, tensors, count, verify->shard))
        damage_in_shard(verify, "the header does not agree with the manifest");
    free(tensors);
    shard_header_free(&header);
    return error;
}

/* ERR_CORRUPT never leaves: it is reported and the next shard follows. */
static int verify_shard(struct verify *verify, uint32_t shard)
{
    const struct shard_scan hooks = {.user = verify,
                                     .elements = take_elements,
                                     .damaged = take_damaged_block,
                                     .header = take_header,
                                     .progress = &verify->progress};
    struct shard_file file;
    verify->shard = shard;
    int error = shard_file_open(&file, &verify->checkpoint, shard);
    if (error == 0) {
        verify->blocks += file.geometry.num_blocks;
        verify->bytes += file.geometry.file_bytes;
        error = shard_scan(&verify->checkpoint, &file, &hooks);
        shard_file_close(&file, verify->checkpoint.store);
    }
    if (error == ERR_CORRUPT) {
        damage_in_shard(verify, report_message());
        error = 0;
    }
    return error;
}

static void compare_digests(struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    for (uint32_t i = 0; i < manifest->table->num_tensors; i++) {
        if (memcmp(&verify->digests[i], &manifest->digests[i], sizeof *verify->digests) != 0)
            report_damage(verify, manifest->table->tensors[i].name, -1, 0, 0,
                          "the tensor's values do not match its digest");
    }
}

static void print_begin(const struct verify *verify)
{
    if (!verify->cli->is_json)
        return;
    printf("{\"checkpoint\": ");
    text_json(stdout, verify->checkpoint.name);
    printf(", \"damage\": [");
}

static void print_end(const struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    char size[32];
    if (verify->cli->is_json) {
        printf("%s], \"damages\": %llu, \"shards\": %u, \"blocks\": %llu, \"bytes\": %llu, "
               "\"tensors\": %u}\n",
               verify->num_damages > 0 ? "\n" : "", (unsigned long long)verify->num_damages,
               manifest->summary.shards, (unsigned long long)verify->blocks,
               (unsigned long long)verify->bytes, manifest->table->num_tensors);
        return;
    }
    if (verify->num_damages > DAMAGE_MAX)
        printf("         and %llu more\n", (unsigned long long)(verify->num_damages - DAMAGE_MAX));
    text_bytes(size, sizeof size, verify->bytes);
    if (verify->num_damages == 0)
        printf("%s: whole. %u shards, %llu blocks, %s, %u tensor digests: all match.\n",
               verify->checkpoint.name, manifest->summary.shards,
               (unsigned long long)verify->blocks, size, manifest->table->num_tensors);
    else
        printf("%s: DAMAGED in %llu places (%u shards, %s read)\n", verify->checkpoint.name,
               (unsigned long long)verify->num_damages, manifest->summary.shards, size);
}

static int verify_all(struct verify *verify)
{
    const struct manifest *manifest = verify->checkpoint.manifest;
    int error = 0;
    verify->digests = calloc((size_t)manifest->table->num_tensors + 1, sizeof *verify->digests);
    if (verify->digests == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the digests");
    print_begin(verify);
    progress_begin(&verify->progress, "verify", manifest->summary.bytes);
    for (uint32_t shard = 0; shard < manifest->summary.shards && error == 0; shard++)
        error = verify_shard(verify, shard);
    progress_end(&verify->progress);
    if (error == 0)
        compare_digests(verify);
    print_end(verify);
    return error;
}

int cli_verify(const struct cli *cli)
{
    struct verify verify = {.cli = cli};
    struct storage *store = NULL;
    int error = store_open(&store, cli);
    if (error == 0)
        error = checkpoint_open(&verify.checkpoint, store, cli->args[0]);
    if (error == 0)
        error = verify_all(&verify);
    free(verify.digests);
    checkpoint_close(&verify.checkpoint);
    if (store != NULL)
        storage_close(store);
    return error != 0 ? error : verify.num_damages > 0 ? CLI_DIFFERS : 0;
}
