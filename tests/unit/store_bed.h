/* store_bed.h - a checkpoint of three shards as a save leaves it, for the tests of its removal. */
#ifndef HOLDFAST_TESTS_STORE_BED_H
#define HOLDFAST_TESTS_STORE_BED_H

#include "proto/format/shard.h"
#include "storage/store/store.h"
#include "tests/fault/storage_fault.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/storage_bed.h"

#include "tests/unit/mark_bed.h"
#include "tests/unit/suite.h"

#define SHARDS 3
#define BYTES 8192u /* of a shard: a page of header, one of data and checksums */
#define STEP "step-00000001-a0001"
#define GROUP "run/" STEP
#define MANIFEST GROUP "/manifest.json"
#define SHARD(n) GROUP "/shard-0000" #n "-of-00003.safetensors"

static inline struct storage *open_fault(const char *where)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_fault, where, NULL), 0);
    return storage;
}

/* ---- a checkpoint of one tensor, a row to each of its shards ---- */

struct made_checkpoint {
    unsigned char *shards[SHARDS];
    char *manifest;
    size_t manifest_bytes;
};

static inline void make_table(struct layout_table **out)
{
    struct slice slices[SHARDS];
    const struct slice *lists[SHARDS];
    uint32_t counts[SHARDS];
    for (uint32_t i = 0; i < SHARDS; i++) {
        slices[i] = (struct slice){
            .tensor = {.name = "w", .dtype = DTYPE_F32, .dims = 1, .shape = {SHARDS, 1, 1, 1}},
            .box = {.offset = {i}, .extent = {1, 1, 1, 1}}};
        lists[i] = &slices[i];
        counts[i] = 1;
    }
    assert_int_equal(layout_plan_save(out, lists, counts, SHARDS, LAYOUT_EQUAL_REPLICAS), 0);
}

static inline unsigned char *make_shard(struct manifest *manifest, uint32_t shard)
{
    struct shard_identity identity;
    struct shard_geometry geometry;
    manifest_identity(&identity, &manifest->summary, shard);
    assert_int_equal(shard_geometry(&geometry, manifest->table, shard, identity.run, SHARDS), 0);
    assert_int_equal(geometry.file_bytes, BYTES);
    unsigned char *file = aligned_alloc(STORAGE_ALIGN, BYTES);
    assert_non_null(file);
    memset(file, 0, BYTES);
    assert_int_equal(shard_header_write(file, &geometry, manifest->table, &identity), 0);
    struct manifest_shard *entry = &manifest->shards[shard];
    *entry = (struct manifest_shard){.bytes = BYTES, .data_start = geometry.data_start};
    assert_true(shard_header_hash(&entry->header_hash, file, geometry.data_start));
    manifest->summary.bytes += BYTES;
    return file;
}

/* Made once; its shards' data and checksums are zeros, which nothing here reads. */
static inline const struct made_checkpoint *the_checkpoint(void)
{
    static struct made_checkpoint made;
    static struct manifest_shard shards[SHARDS];
    static struct digest digest;
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .run = "run",
                                            .step = 1,
                                            .attempt = 1,
                                            .nonce = "0123456789abcdef0123456789abcdef",
                                            .time = "2026-01-02T03:04:05Z",
                                            .world_size = SHARDS,
                                            .shards = SHARDS},
                                .code_version = "test",
                                .digests = &digest,
                                .shards = shards};
    if (made.manifest)
        return &made;
    make_table(&manifest.table);
    for (uint32_t i = 0; i < SHARDS; i++)
        made.shards[i] = make_shard(&manifest, i);
    assert_int_equal(manifest_write(&made.manifest, &made.manifest_bytes, &manifest), 0);
    layout_table_free(manifest.table);
    return &made;
}

static inline void shard_of(char out[96], int shard)
{
    snprintf(out, 96, GROUP "/shard-%05d-of-%05d.safetensors", shard + 1, SHARDS);
}

static inline int publish_manifest(struct storage *storage, const char *key)
{
    const struct made_checkpoint *made = the_checkpoint();
    return storage_publish(storage, key, made->manifest, made->manifest_bytes);
}

/* A checkpoint as a save leaves it. */
static inline int make_checkpoint(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        struct storage_object *object;
        char key[96];
        shard_of(key, i);
        int error = storage_object_create(storage, &object, key, BYTES);
        if (error != 0)
            return error;
        error =
            storage_transfer(storage, STORAGE_WRITE, object, 0, the_checkpoint()->shards[i], BYTES);
        if (error == 0)
            error = storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
        storage_object_close(storage, object);
        if (error != 0)
            return error;
    }
    int error = storage_sync_names(storage, GROUP);
    return error == 0 ? publish_manifest(storage, MANIFEST) : error;
}

/* Its manifest goes, and it has the mark of unfinished work: as a save that a crash cut short. */
static inline int make_unfinished(struct storage *storage)
{
    char text[MARK_BYTES_MAX];
    mark_text(text, "run", 1, 1);
    ERR_TRY(storage_publish(storage, GROUP "/" MARK_NAME, text, strlen(text)));
    return storage_remove(storage, MANIFEST);
}

static inline bool has_all_shards(struct storage *storage)
{
    int count = 0;
    for (int i = 0; i < SHARDS; i++) {
        char key[96];
        shard_of(key, i);
        count += bed_exists(storage, key);
    }
    return count == SHARDS;
}

static inline bool is_whole(struct storage *storage)
{
    return has_all_shards(storage) && bed_exists(storage, MANIFEST);
}

static inline int count_name(void *user, const struct storage_entry *entry)
{
    *(int *)user += strcmp(entry->name, STORE_RESERVE) != 0;
    return 0;
}

static inline int count_names(struct storage *storage, const char *prefix)
{
    int count = 0;
    assert_int_equal(storage_list(storage, prefix, count_name, &count), 0);
    return count;
}

static inline struct storage *open_local(const char *path, bool read_only)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_local, path,
                                  &(struct storage_options){.read_only = read_only}),
                     0);
    return storage;
}

#endif
