/* export_folder.c - exports into a directory of this machine.
 *
 * Files are written with O_DIRECT beside the final name, which appears when everything is complete
 * and durable. Until then the name is NAME.part (characters that storage refuses are replaced by
 * '_'), which is removed on any error. */
#include "clients/cli/model/export.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the destination ---- */

static int remove_file(void *user, const struct storage_entry *entry)
{
    return storage_remove(user, entry->name);
}

bool export_leaves(const struct storage_entry *entry)
{
    static const char *const names[] = {HF_CONFIG, HF_INDEX, "model*.safetensors"};
    bool is_ours = entry->is_dir && strcmp(entry->name, HF_ORIGINAL) == 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        is_ours = is_ours || (!entry->is_dir && fnmatch(names[i], entry->name, 0) == 0);
    for (uint32_t i = 0; i < HF_KEPT_FILES; i++)
        is_ours = is_ours || (!entry->is_dir && strcmp(hf_kept_name(i), entry->name) == 0);
    return is_ours;
}

static int visit_beside(void *user, const struct storage_entry *entry)
{
    const struct export *export = user;
    return export_leaves(entry) ? 0
                                : report_error(ERR_EXISTS, "name another folder",
                                               "%s is not an unfinished export: it holds %s",
                                               export->beside, entry->name);
}

/* Removes the folder that an earlier export left, unless it has other than regular files. */
static int remove_beside(struct export *export)
{
    static const struct storage_options options = {.is_quiet = true};
    struct storage *folder = NULL;
    int error = storage_open(&folder, &storage_local, export->beside, &options);
    if (error == 0)
        error = storage_list(folder, "", visit_beside, export);
    if (error == 0) {
        error = storage_remove(folder, HF_TOKENIZER_FILE); /* then its folder is empty */
        if (error == 0 || error == ERR_NOT_FOUND)
            error = storage_list(folder, "", remove_file, folder);
    }
    if (error == 0) /* left by an interrupted publication, which lists hide */
        error = storage_sweep(folder, "", &(struct storage_sweep){.removes = true});
    storage_close(folder);
    if (error == 0 && rmdir(export->beside) != 0)
        error =
            report_errno(ERR_IO, "could not remove the files of an earlier export", export->beside);
    return error;
}

static int open_hf_folder(struct export *export)
{
    static const struct storage_options options = {.is_quiet = true};
    snprintf(export->beside, sizeof export->beside, "%s.part", export->cli->output);
    struct stat status;
    bool exists;
    ERR_TRY(output_find(&exists, &status, export->cli->output));
    if (exists)
        return report_error(ERR_EXISTS, "name another folder", "%s exists already",
                            export->cli->output);
    ERR_TRY(output_find(&exists, &status, export->beside));
    if (exists && !S_ISDIR(status.st_mode))
        return report_error(ERR_EXISTS, "name another folder", "%s is not a folder",
                            export->beside);
    if (exists && !export->cli->is_forced)
        return report_error(ERR_EXISTS, "add --force to replace it when no other export is running",
                            "%s exists already", export->beside);
    if (exists)
        ERR_TRY(remove_beside(export));
    if (mkdir(export->beside, 0777) != 0)
        return report_errno(ERR_IO, "could not create the output", export->beside);
    export->is_folder_ours = true;
    return storage_open(&export->folder, &storage_local, export->beside, &options);
}

static int open_file_folder(struct export *export)
{
    int error = output_open(&export->output, export->cli->output, export->cli->is_forced);
    strcpy(export->parts[0].key, export->output.key);
    export->folder = export->output.folder;
    return error;
}

static uint64_t align_up(uint64_t value)
{
    return (value + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

static int create_part(struct export *export, struct part *part)
{
    const char *folder = export->is_hf ? export->beside : export->output.parent;
    int error = export->cli->is_forced ? storage_remove(export->folder, part->key) : 0;
    if (error == 0 || error == ERR_NOT_FOUND)
        error = storage_object_create(export->folder, &part->object, part->key,
                                      align_up(part->file.bytes));
    if (error == ERR_EXISTS)
        return report_error(ERR_EXISTS, "add --force to replace it when no other export is running",
                            "%s/%s exists already", folder, part->key);
    if (error == ERR_SPACE)
        return report_error(ERR_SPACE, "free some space, or export to another disk",
                            "no space for %llu bytes in %s", (unsigned long long)part->file.bytes,
                            folder);
    export->num_created += error == 0;
    return error;
}

/* Cuts a file to its size and makes it durable. */
static int finish_part(struct export *export, struct part *part)
{
    char path[sizeof export->beside + sizeof part->key + 1];
    snprintf(path, sizeof path, "%s/%s", export->is_hf ? export->beside : export->output.parent,
             part->key);
    if (truncate(path, (off_t)part->file.bytes) != 0)
        return report_errno(ERR_IO, "could not truncate the export", path);
    return storage_transfer(export->folder, STORAGE_SYNC, part->object, 0, NULL, 0);
}

/* ---- the name ---- */

/* Renames the folder without replacing another; on a file system without rename flags, such as NFS,
 * it may replace an empty one. 0, or -1 with errno. */
static int place_folder(const char *from, const char *path)
{
    int result = renameat2(AT_FDCWD, from, AT_FDCWD, path, RENAME_NOREPLACE);
    bool lacks_flags = result != 0 && (errno == EINVAL || errno == ENOSYS);
    return lacks_flags ? rename(from, path) : result;
}

static int name_folder(struct export *export)
{
    const char *path = export->cli->output;
    char copy[4096];
    if (place_folder(export->beside, path) != 0)
        return report_errno(errno == EEXIST ? ERR_EXISTS : ERR_IO, "could not rename the export",
                            path);
    export->is_folder_ours = false;
    export->num_created = 0;
    strcpy(copy, path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd >= 0 && fsync(fd) == 0
                    ? 0
                    : report_errno(ERR_IO, "could not make the export durable", path);
    if (fd >= 0)
        close(fd);
    return error;
}

/* Gives the output its name, durably. */
static int name_output(struct export *export)
{
    int error = export->is_hf ? name_folder(export) : output_name(&export->output);
    if (error == 0)
        export->num_created = 0;
    return error;
}

/* After an error: removes the created files, as far as possible; keeps the error's text. */
static void remove_output(struct export *export, int error)
{
    struct failure failure = {0};
    failure_keep(&failure, error);
    for (uint32_t i = 0; i < export->num_created; i++)
        storage_remove(export->folder, export->parts[i].key);
    if (export->is_folder_ours)
        remove_beside(export);
    failure_report(&failure);
}

static int open_folder(struct export *export)
{
    return export->is_hf ? open_hf_folder(export) : open_file_folder(export);
}

static int publish_file(struct export *export, const char *name, const void *data, size_t bytes)
{
    return storage_publish(export->folder, name, data, bytes);
}

const struct export_place export_to_folder = {
    .open = open_folder,
    .create = create_part,
    .finish = finish_part,
    .publish = publish_file,
    .name = name_output,
    .abandon = remove_output,
};
