/* look.c - inspects a checkpoint's directory: names, sizes, and the small files. It opens no shard,
 * so ckptd can inspect every checkpoint of a store at its start. */
#include "proto/base/array.h"
#include "storage/store/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file {
    char name[256];
    bool is_dir;
    uint64_t bytes;
};
struct files {
    struct file *list;
    uint32_t count, room;
};

static int visit_file(void *user, const struct storage_entry *entry)
{
    struct files *files = user;
    if (strlen(entry->name) >= sizeof files->list->name)
        return 0; /* no member's name is that long */
    ERR_TRY(array_reserve(&files->list, &files->room, files->count, sizeof *files->list));
    struct file *file = &files->list[files->count++];
    snprintf(file->name, sizeof file->name, "%s", entry->name);
    file->is_dir = entry->is_dir;
    file->bytes = entry->bytes;
    return 0;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct file *)a)->name, ((const struct file *)b)->name);
}

static const struct file *find_file(const struct files *files, const char *name)
{
    struct file key;
    snprintf(key.name, sizeof key.name, "%s", name);
    return files->count > 0 ? bsearch(&key, files->list, files->count, sizeof key, compare_files)
                            : NULL;
}

/* Do the names and sizes in the directory match the summary? ERR_CORRUPT. */
static int check_files(const struct store_seen *seen, const struct files *files)
{
    const struct manifest_summary *summary = &seen->summary;
    struct shard_identity identity;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < summary->shards; i++) {
        char key[STORAGE_KEY_MAX];
        if (!places_is_here(&seen->places, i))
            continue;
        manifest_identity(&identity, summary, i);
        ERR_TRY(shard_key(key, sizeof key, &identity));
        const struct file *file = find_file(files, strrchr(key, '/') + 1);
        if (!file || file->is_dir)
            return report_error(ERR_CORRUPT, NULL, "%s is missing", strrchr(key, '/') + 1);
        bytes += file->bytes;
    }
    if (bytes != summary->bytes && seen->places.num_shards == 0)
        return report_error(ERR_CORRUPT, NULL, "its shards have %llu bytes instead of %llu",
                            (unsigned long long)bytes, (unsigned long long)summary->bytes);
    return 0;
}

/* 0, or the fault of the checkpoint. Reads only the summary of its manifest. */
static int read_checkpoint(struct store_seen *seen, struct storage *storage, const char *run,
                           uint64_t step, uint64_t attempt, const struct files *files)
{
    int damage = store_read_summary(&seen->summary, storage, run, step, attempt);
    if (damage == 0 && find_file(files, PLACES_NAME))
        damage = store_read_places(&seen->places, storage, &seen->summary);
    bool is_proven = damage == 0; /* another tier may repair it */
    if (is_proven)
        damage = check_files(seen, files);
    else if (damage != ERR_MISMATCH)
        seen->summary = (struct manifest_summary){0};
    if (!is_proven || (damage != 0 && seen->summary.shards > STORE_SHARDS_MAX))
        seen->summary.shards = 0; /* the number is unverified, or larger than any save's */
    if (damage == 0 && find_file(files, VERIFIED_NAME))
        store_read_verified(&seen->verified, storage, &seen->summary);
    return damage;
}

int store_inspect(struct store_seen *out, struct storage *storage, const char *run, uint64_t step,
                  uint64_t attempt)
{
    char dir[STORAGE_KEY_MAX];
    struct files files = {0};
    *out = (struct store_seen){0};
    int error = shard_dir_key(dir, sizeof dir, run, step, attempt);
    if (error == 0)
        error = storage_list(storage, dir, visit_file, &files);
    if (files.count > 0)
        qsort(files.list, files.count, sizeof *files.list, compare_files);
    for (uint32_t i = 0; i < files.count; i++) {
        bool is_ours = !files.list[i].is_dir && shard_is_file_name(files.list[i].name);
        bool is_mark = strcmp(files.list[i].name, MARK_NAME) == 0;
        out->has_mark |= is_mark;
        out->num_ours += is_ours;
        out->num_others += !is_ours && !is_mark;
    }
    out->has_manifest = error == 0 && find_file(&files, MANIFEST_NAME);
    if (out->has_manifest) {
        error = read_checkpoint(out, storage, run, step, attempt, &files);
    } else if (error == 0) {
        struct shard_identity identity;
        error = store_rest(storage, dir, &out->rest);
        if (error == 0 && out->has_mark)
            error = store_read_part(&identity, out->coordinator, storage, dir);
        error = error == ERR_NOT_FOUND ? 0 : error; /* it is of no part */
    }
    free(files.list);
    return error;
}

int store_inspect_committed(struct manifest_summary *out, struct places *out_places,
                            struct storage *storage, const char *run, uint64_t step,
                            uint64_t attempt)
{
    struct store_seen seen;
    int error = store_inspect(&seen, storage, run, step, attempt);
    *out = seen.summary;
    if (out_places)
        *out_places = seen.places;
    else
        places_free(&seen.places);
    return error != 0 || seen.has_manifest
               ? error
               : report_error(ERR_NOT_FOUND, "see ckpt-cli list", "it has no manifest");
}
