/* clients_store_bed.h - checkpoints of random layouts in a store of the test.
 *
 * 1 to RANKS_MAX ranks, tensors of 0 to 4 dimensions and all dtypes, one of them large enough for
 * several blocks per shard, cut anyhow; written with the format's own functions. The same seed
 * gives the same tensors and values for any number of ranks. */
#ifndef HOLDFAST_CLIENTS_STORE_BED_H
#define HOLDFAST_CLIENTS_STORE_BED_H

#include "clients/cli/engine/scan.h"
#include "tests/unit/random.h"
#include "tests/unit/shell.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef TENSORS
#define TENSORS 6
#endif
#define RANKS_MAX 5
#ifndef LARGE_WIDTH
#define LARGE_WIDTH 600000u /* at least, of the rows of a tensor: several blocks per shard */
#endif

struct fixture {
    char root[256];
    struct layout_table *table;
    unsigned char *data[TENSORS]; /* whole, by index of the table */
    uint64_t elements[TENSORS];
    uint32_t ranks;
    uint64_t random;
    /* Of the checkpoints that are written from now on. */
    uint64_t parent_step, parent_attempt;
    uint64_t more_header_bytes; /* than the headers need */
};

static uint64_t draw(struct fixture *fixture, uint64_t below)
{
    return splitmix64(&fixture->random) % below;
}

/* ---- writing a checkpoint ---- */

static void make_meta(struct fixture *fixture, struct tensor_meta *out, uint32_t index)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8, DTYPE_F16};
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, index == 3 ? "optimizer.exp_avg.t%u" : "t%u", index);
    out->dtype = dtypes[draw(fixture, 5)];
    out->dims = index == 1 ? 2 : (uint32_t)draw(fixture, 5);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        out->shape[d] = d < out->dims ? 1 + draw(fixture, 12) : 1;
    if (index == 1) { /* several blocks per shard, and rows that gather has to cut */
        out->shape[0] = 3 + draw(fixture, 5);
        out->shape[1] = LARGE_WIDTH + draw(fixture, LARGE_WIDTH * 3 / 2);
    }
}

/* Cuts dimension `d` of the tensor evenly; every rank holds all of a tensor without dimensions. */
static void cut(struct slice *out, const struct tensor_meta *tensor, uint32_t d, uint32_t rank,
                uint32_t ranks)
{
    *out = (struct slice){.tensor = *tensor};
    memcpy(out->box.extent, tensor->shape, sizeof out->box.extent);
    if (d >= tensor->dims)
        return;
    uint64_t rows = (tensor->shape[d] + ranks - 1) / ranks;
    uint64_t begin = rows * rank < tensor->shape[d] ? rows * rank : tensor->shape[d];
    out->box.offset[d] = begin;
    out->box.extent[d] = tensor->shape[d] - begin < rows ? tensor->shape[d] - begin : rows;
}

static void plan(struct fixture *fixture)
{
    struct tensor_meta metas[TENSORS];
    struct slice slices[RANKS_MAX][TENSORS];
    const struct slice *lists[RANKS_MAX];
    uint32_t counts[RANKS_MAX];
    for (uint32_t i = 0; i < TENSORS; i++) {
        make_meta(fixture, &metas[i], i);
        uint32_t d = (uint32_t)draw(fixture, LAYOUT_DIMS_MAX);
        for (uint32_t rank = 0; rank < fixture->ranks; rank++)
            cut(&slices[rank][i], &metas[i], d, rank, fixture->ranks);
    }
    for (uint32_t rank = 0; rank < fixture->ranks; rank++) {
        lists[rank] = slices[rank];
        counts[rank] = TENSORS;
    }
    assert_int_equal(
        layout_plan_save(&fixture->table, lists, counts, fixture->ranks, LAYOUT_EQUAL_REPLICAS), 0);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const struct tensor_meta *meta = &fixture->table->tensors[i];
        fixture->elements[i] = meta->shape[0] * meta->shape[1] * meta->shape[2] * meta->shape[3];
        uint64_t bytes = fixture->elements[i] * dtype_bytes(meta->dtype);
        fixture->data[i] = malloc(bytes + 8);
        for (uint64_t byte = 0; byte < bytes; byte += 8) {
            uint64_t value = draw(fixture, UINT64_MAX);
            memcpy(fixture->data[i] + byte, &value, 8);
        }
    }
}

static void write_file(const struct fixture *fixture, const char *key, const void *data,
                       uint64_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", fixture->root, key);
    for (char *c = path + strlen(fixture->root) + 1; *c != '\0'; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        mkdir(path, 0755);
        *c = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void write_shard(const struct fixture *fixture, struct manifest *manifest, uint32_t shard)
{
    struct shard_identity identity;
    struct shard_geometry geometry;
    struct shard_tensor *tensors;
    uint32_t count;
    uint64_t bytes, start, length, header_hash;
    char key[STORAGE_KEY_MAX];
    manifest_identity(&identity, &manifest->summary, shard);
    assert_int_equal(shard_geometry(&geometry, fixture->table, shard, identity.run, fixture->ranks),
                     0);
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, fixture->table, shard), 0);
    assert_int_equal(
        shard_geometry_derive(&geometry, geometry.data_start + fixture->more_header_bytes, bytes),
        0);
    unsigned char *file = calloc(1, geometry.file_bytes);
    assert_int_equal(shard_header_write(file, &geometry, fixture->table, &identity), 0);
    assert_true(shard_header_hash(&header_hash, file, geometry.data_start));
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor_meta *meta = &fixture->table->tensors[tensors[i].tensor];
        struct box whole = {.offset = {0}};
        memcpy(whole.extent, meta->shape, sizeof whole.extent);
        box_copy(file + geometry.data_start + tensors[i].data_byte, &tensors[i].box,
                 fixture->data[tensors[i].tensor], &whole, &tensors[i].box, meta->dims,
                 dtype_bytes(meta->dtype));
    }
    uint64_t seed = checksum_shard_identity(identity.nonce, shard, fixture->ranks);
    for (uint64_t block = 0; block < geometry.num_blocks; block++) {
        shard_block(&start, &length, &geometry, block);
        uint64_t sum = checksum_block(file + start, length, seed, block);
        memcpy(file + geometry.table_start + 8 * block, &sum, 8);
    }
    manifest->shards[shard] = (struct manifest_shard){
        geometry.file_bytes, geometry.data_start, header_hash,
        checksum_bytes(file + geometry.table_start, geometry.file_bytes - geometry.table_start)};
    manifest->summary.bytes += geometry.file_bytes;
    assert_int_equal(shard_key(key, sizeof key, &identity), 0);
    write_file(fixture, key, file, geometry.file_bytes);
    free(file);
    free(tensors);
}

static void write_checkpoint(const struct fixture *fixture, const char *run, uint64_t step,
                             uint64_t attempt)
{
    struct manifest_shard shards[RANKS_MAX];
    struct digest digests[TENSORS] = {{{0}}};
    char state_json[] = "{\"metrics\":{\"loss\":0.5}}";
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .step = step,
                                            .attempt = attempt,
                                            .time = "2026-01-02T03:04:05Z",
                                            .world_size = fixture->ranks,
                                            .shards = fixture->ranks},
                                .parent_step = fixture->parent_step,
                                .parent_attempt = fixture->parent_attempt,
                                .code_version = "test",
                                .state_json = state_json,
                                .table = fixture->table,
                                .digests = digests,
                                .shards = shards};
    char directory[STORAGE_KEY_MAX], key[STORAGE_KEY_MAX + 32], *text;
    size_t bytes;
    strcpy(manifest.summary.run, run);
    snprintf(manifest.summary.nonce, sizeof manifest.summary.nonce, "0123456789abcdef%08llx%08llx",
             (unsigned long long)step, (unsigned long long)attempt);
    for (uint32_t i = 0; i < TENSORS; i++)
        digest_add(&digests[i], fixture->data[i], fixture->elements[i],
                   dtype_bytes(fixture->table->tensors[i].dtype), 0);
    for (uint32_t shard = 0; shard < fixture->ranks; shard++)
        write_shard(fixture, &manifest, shard);
    assert_int_equal(manifest_write(&text, &bytes, &manifest), 0);
    assert_int_equal(shard_dir_key(directory, sizeof directory, run, step, attempt), 0);
    snprintf(key, sizeof key, "%s/%s", directory, MANIFEST_NAME);
    write_file(fixture, key, text, bytes);
    free(text);
}

static void fixture_open(struct fixture *fixture, uint32_t ranks, uint64_t seed)
{
    const char *parent = getenv("TMPDIR");
    memset(fixture, 0, sizeof *fixture);
    fixture->random = seed;
    fixture->ranks = ranks;
    snprintf(fixture->root, sizeof fixture->root, "%s/store-XXXXXX",
             parent != NULL ? parent : "/var/tmp");
    assert_non_null(mkdtemp(fixture->root));
    plan(fixture);
}

static void fixture_close(struct fixture *fixture)
{
    shell("rm -rf '%s'", fixture->root);
    layout_table_free(fixture->table);
    for (int i = 0; i < TENSORS; i++)
        free(fixture->data[i]);
}

static inline struct storage *open_store(const struct fixture *fixture)
{
    struct cli cli = {.is_json = false};
    struct storage *store = NULL;
    snprintf(cli.store, sizeof cli.store, "%s", fixture->root);
    assert_int_equal(store_open(&store, &cli), 0);
    return store;
}

static inline void open_loaded(struct checkpoint *checkpoint, struct storage *store,
                               const char *name)
{
    assert_int_equal(checkpoint_open(checkpoint, store, name), 0);
    assert_int_equal(checkpoint_load(checkpoint, LOAD_HEADERS), 0);
}

/* A store with run@7-a1, which is loaded. */
struct stored {
    struct fixture fixture;
    struct storage *store;
    struct checkpoint checkpoint;
};

static inline void stored_open(struct stored *out, uint32_t ranks, uint64_t seed)
{
    fixture_open(&out->fixture, ranks, seed);
    write_checkpoint(&out->fixture, "run", 7, 1);
    out->store = open_store(&out->fixture);
    open_loaded(&out->checkpoint, out->store, "run");
}

/* As it is on the disk by now. */
static inline void stored_load_again(struct stored *stored)
{
    checkpoint_close(&stored->checkpoint);
    open_loaded(&stored->checkpoint, stored->store, "run@7-a1");
}

static inline void stored_close(struct stored *stored)
{
    checkpoint_close(&stored->checkpoint);
    storage_close(stored->store);
    fixture_close(&stored->fixture);
}

static inline void flip(const struct fixture *fixture, uint32_t shard, uint64_t byte)
{
    char path[600];
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/shard-%05u-of-%05u.safetensors",
             fixture->root, shard + 1, fixture->ranks);
    unsigned char value;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &value, 1, (off_t)byte), 1);
    value ^= 0x40;
    assert_int_equal(pwrite(fd, &value, 1, (off_t)byte), 1);
    close(fd);
}

#endif
