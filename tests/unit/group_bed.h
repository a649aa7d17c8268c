/* group_bed.h - a group of three shards as a save leaves it, for the tests of its removal. */
#ifndef HOLDFAST_TESTS_GROUP_BED_H
#define HOLDFAST_TESTS_GROUP_BED_H

#include "tests/fault/storage_fault.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/storage_bed.h"

#define SHARDS 3
#define BYTES STORAGE_ALIGN

static inline bool is_ours(const char *name)
{
    return strncmp(name, "shard-", 6) == 0;
}

static inline bool is_group(const char *name)
{
    return strncmp(name, "step-", 5) == 0;
}

#define GROUP "run/step-1"
static const struct storage_group_kind kind = {
    .marker = "manifest", .is_ours = is_ours, .is_group = is_group};

static inline struct storage *open_fault(const char *where)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_fault, where, NULL), 0);
    return storage;
}

/* A group as a save leaves it. */
static inline int make_group(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        struct storage_object *object;
        char key[64];
        snprintf(key, sizeof(key), "run/step-1/shard-%d", i);
        int error = storage_object_create(storage, &object, key, BYTES);
        if (error != 0)
            return error;
        error = storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
        storage_object_close(storage, object);
        if (error != 0)
            return error;
    }
    int error = storage_sync_names(storage, "run/step-1");
    return error == 0 ? storage_publish(storage, "run/step-1/manifest", "{}", 2) : error;
}

static inline bool is_whole(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        char key[64];
        snprintf(key, sizeof(key), "run/step-1/shard-%d", i);
        if (!bed_exists(storage, key))
            return false;
    }
    return bed_exists(storage, "run/step-1/manifest");
}

static inline int count_name(void *user, const struct storage_entry *entry)
{
    *(int *)user += strcmp(entry->name, STORAGE_RESERVE) != 0;
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
