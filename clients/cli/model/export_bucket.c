/* export_bucket.c - exports straight into a bucket, without files on this machine.
 *
 * Each file is one object, which appears after its last byte, with the same bytes as a local
 * export. config.json of a folder is the last, so without it the model is incomplete.
 *
 * Uploaded objects stay after an error or a kill, and the same command continues. It skips an
 * object that has the same size and header, which has the checkpoint's nonce. Parts of an
 * interrupted upload are not sent again (storage/bucket/object.c). --force sends everything
 * again. */
#include "clients/cli/model/export.h"

#include <stdlib.h>
#include <string.h>

/* ---- the destination ---- */

/* The text before the last '/' of an object is the store's, the rest its key. */
static int split_output(struct export *export, struct storage_where *where)
{
    char *last = strrchr(where->place, '/');
    if (last == NULL || strlen(last + 1) >= sizeof export->parts->key)
        return report_error(ERR_INVALID, "write s3://BUCKET/NAME", "%s names no object",
                            export->cli->output);
    strcpy(export->parts[0].key, last + 1);
    *last = '\0';
    return 0;
}

static bool has_part(const struct export *export, const char *name)
{
    for (uint32_t i = 0; i < export->num_parts; i++) {
        if (strcmp(export->parts[i].key, name) == 0)
            return true;
    }
    return false;
}

/* Refuses other files of weights: a program that loads the model takes each of them for a part of
 * it. */
static int visit_there(void *user, const struct storage_entry *entry)
{
    const struct export *export = user;
    bool is_file = !entry->is_dir && strstr(entry->name, ".safetensors") != NULL &&
                   strcmp(entry->name, HF_INDEX) != 0;
    if (export_leaves(entry) && (!is_file || has_part(export, entry->name)))
        return 0;
    return report_error(ERR_EXISTS, "name another folder", "%s is not this export: it holds %s",
                        export->cli->output, entry->name);
}

/* Removes the marker of a complete folder first. */
static int remove_marker(struct export *export, const char *marker)
{
    uint64_t bytes;
    int error = storage_fetch(export->folder, MANIFEST_NAME, NULL, 0, &bytes);
    if (error == 0)
        return report_error(ERR_DENIED, "name a place elsewhere", "%s lies in a checkpoint",
                            export->cli->output);
    if (error == ERR_NOT_FOUND)
        error = storage_fetch(export->folder, marker, NULL, 0, &bytes);
    if (error == ERR_NOT_FOUND)
        return 0;
    if (error == 0 && !export->cli->is_forced)
        return report_error(ERR_EXISTS, "name another place, or add --force", "%s exists already",
                            export->cli->output);
    return error == 0 ? storage_remove(export->folder, marker) : error;
}

static int open_bucket(struct export *export)
{
    static const struct storage_options options = {.is_quiet = true};
    struct storage_where where;
    ERR_TRY(storage_where_parse(&where, export->cli->output));
    if (!export->is_hf)
        ERR_TRY(split_output(export, &where));
    int error = storage_open(&export->folder, where.ops, where.place, &options);
    if (error == ERR_NOT_FOUND) /* this code means that the checkpoint was not found */
        error = ERR_IO;
    if (error == 0)
        error = remove_marker(export, export->is_hf ? HF_CONFIG : export->parts[0].key);
    return error == 0 && export->is_hf ? storage_list(export->folder, "", visit_there, export)
                                       : error;
}

/* ---- objects ---- */

/* Is the existing object this part of ours? Objects appear whole, so its header shows that. */
static int check_part(struct export *export, struct part *part)
{
    size_t size = part->file.head_bytes;
    char *head = malloc(size);
    uint64_t bytes = 0;
    int error = head != NULL ? storage_fetch(export->folder, part->key, head, size, &bytes)
                             : report_error(ERR_MEMORY, NULL, "no memory for a header");
    part->is_there =
        error == 0 && bytes == part->file.bytes && memcmp(head, part->file.head, size) == 0;
    free(head);
    return error != 0 || part->is_there
               ? error
               : report_error(ERR_EXISTS, "name another place, or add --force to replace it",
                              "%s has another %s", export->cli->output, part->key);
}

static int create_object(struct export *export, struct part *part)
{
    int error = export->cli->is_forced ? storage_remove(export->folder, part->key) : 0;
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_object_create(export->folder, &part->object, part->key, part->file.bytes);
    if (error == ERR_EXISTS && export->is_hf && !export->cli->is_forced)
        error = check_part(export, part);
    export->num_created += error == 0;
    return error;
}

static int finish_object(struct export *export, struct part *part)
{
    return part->is_there
               ? 0
               : storage_transfer(export->folder, STORAGE_SYNC, part->object, 0, NULL, 0);
}

/* Is an existing text ours, or another export's? */
static int check_text(struct export *export, const char *name, const void *data, size_t bytes)
{
    char *there = malloc(bytes + 1);
    uint64_t size = 0;
    int error = there != NULL ? storage_fetch(export->folder, name, there, bytes + 1, &size)
                              : report_error(ERR_MEMORY, NULL, "no memory for %s", name);
    bool is_same = error == 0 && size == bytes && memcmp(there, data, bytes) == 0;
    free(there);
    return error != 0 || is_same
               ? error
               : report_error(ERR_EXISTS, "name another place, or add --force to replace it",
                              "%s has another %s", export->cli->output, name);
}

static int publish_object(struct export *export, const char *name, const void *data, size_t bytes)
{
    int error = export->cli->is_forced ? storage_remove(export->folder, name) : 0;
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_publish(export->folder, name, data, bytes);
    return error == ERR_EXISTS ? check_text(export, name, data, bytes) : error;
}

static int name_nothing(struct export *export)
{
    (void)export;
    return 0;
}

static void keep_sent(struct export *export, int error)
{
    struct failure failure = {0};
    failure_keep(&failure, error);
    if (export->num_created > 0)
        log_warn("export", "uploaded objects stay in %s: the same command continues",
                 export->cli->output);
    failure_report(&failure);
}

const struct export_place export_to_bucket = {
    .open = open_bucket,
    .create = create_object,
    .finish = finish_object,
    .publish = publish_object,
    .name = name_nothing,
    .abandon = keep_sent,
};
