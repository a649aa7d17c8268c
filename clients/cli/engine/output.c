/* output.c - a file that a command writes outside of stores: an export, a report.
 *
 * Until it is complete and durable it is named NAME.part (characters that storage refuses are
 * replaced by '_'). --force replaces files, but none of a checkpoint. */
#include "clients/cli/engine/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <string.h>
#include <sys/stat.h>

int output_find(bool *out_exists, struct stat *out, const char *path)
{
    *out_exists = lstat(path, out) == 0;
    return *out_exists || errno == ENOENT
               ? 0
               : report_errno(ERR_IO, "could not check the path of the output", path);
}

/* May the file get that name? */
static int check_path(const struct output_place *output)
{
    const char *path = output->path;
    char manifest[sizeof output->parent + sizeof MANIFEST_NAME + 1];
    struct stat status, other;
    bool exists, is_checkpoint;
    ERR_TRY(output_find(&exists, &status, path));
    if (path[strlen(path) - 1] == '/' || (exists && !S_ISREG(status.st_mode)))
        return report_error(ERR_EXISTS, "name a file", "%s is not a regular file", path);
    snprintf(manifest, sizeof manifest, "%s/" MANIFEST_NAME, output->parent);
    ERR_TRY(output_find(&is_checkpoint, &other, manifest));
    if (is_checkpoint)
        return report_error(ERR_DENIED, "name a file elsewhere", "%s lies in a checkpoint", path);
    return exists && !output->may_replace
               ? report_error(ERR_EXISTS, "name another file, or add --force", "%s exists already",
                              path)
               : 0;
}

int output_open(struct output_place *out, const char *path, bool may_replace)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    static const struct storage_options options = {.is_quiet = true};
    char copy[sizeof out->parent];
    struct stat status;
    *out = (struct output_place){.path = path, .may_replace = may_replace};
    strcpy(copy, path);
    strcpy(out->parent, dirname(copy));
    strcpy(copy, path);
    snprintf(out->key, sizeof out->key, "%.200s.part", basename(copy));
    for (char *c = out->key; *c != '\0'; c++) {
        if (strchr(good, *c) == NULL)
            *c = '_';
    }
    if (stat(out->parent, &status) != 0 || !S_ISDIR(status.st_mode))
        return report_errno(ERR_IO, "could not create the output", path);
    int error = check_path(out);
    return error == 0 ? storage_open(&out->folder, &storage_local, out->parent, &options) : error;
}

int output_name(const struct output_place *output)
{
    char part[sizeof output->parent + sizeof output->key + 1];
    snprintf(part, sizeof part, "%s/%s", output->parent, output->key);
    int result = output->may_replace ? renameat2(AT_FDCWD, part, AT_FDCWD, output->path, 0)
                                     : storage_place(AT_FDCWD, part, output->path);
    return result == 0 ? storage_sync_names(output->folder, "")
                       : report_errno(errno == EEXIST ? ERR_EXISTS : ERR_IO,
                                      "could not name the output", output->path);
}

int output_write(const char *path, bool may_replace, const void *data, size_t bytes)
{
    struct output_place output;
    struct failure failure = {0};
    int error = output_open(&output, path, may_replace);
    if (error == 0 && may_replace) {
        error = storage_remove(output.folder, output.key);
        error = error == ERR_NOT_FOUND ? 0 : error;
    }
    bool is_ours = error == 0;
    if (error == 0)
        error = storage_publish(output.folder, output.key, data, bytes);
    if (error == ERR_EXISTS && is_ours) {
        is_ours = false;
        error = report_error(error, "add --force to replace it when no other command writes it",
                             "%s/%s exists already", output.parent, output.key);
    }
    if (error == 0)
        error = output_name(&output);
    failure_keep(&failure, error);
    if (error != 0 && is_ours)
        storage_remove(output.folder, output.key);
    storage_close(output.folder);
    return failure_report(&failure);
}
