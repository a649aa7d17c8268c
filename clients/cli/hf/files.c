/* files.c - the files of a Hugging Face folder, in a directory or in a bucket. Names in it are
 * hostile; links and devices are not read. */
#include "clients/cli/hf/files.h"
#include "proto/layout/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int hf_folder_open(struct hf_folder *out, const char *where)
{
    static const struct storage_options options = {.is_quiet = true, .read_only = true};
    struct storage_where parsed;
    out->bucket = NULL;
    out->fd = -1;
    if (strncmp(where, "s3://", 5) == 0) {
        ERR_TRY(storage_where_parse(&parsed, where));
        return storage_open(&out->bucket, parsed.ops, parsed.place, &options);
    }
    out->fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return out->fd >= 0 ? 0
                        : report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO,
                                       "could not open the model", where);
}

void hf_folder_close(struct hf_folder *folder)
{
    storage_close(folder->bucket);
    if (folder->fd >= 0)
        close(folder->fd);
    folder->bucket = NULL;
    folder->fd = -1;
}

/* Checks for a regular file, and sets the size. */
static int check_plain(struct hf_file *file)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0)
        return report_errno(ERR_IO, "could not read a file of the model", file->name);
    if (!S_ISREG(status.st_mode))
        return report_error(ERR_IO, NULL, "%s is not a file", file->name);
    file->bytes = (uint64_t)status.st_size;
    return 0;
}

int hf_file_open(struct hf_file *out, const struct hf_folder *folder, const char *name)
{
    *out = (struct hf_file){.fd = -1, .bucket = folder->bucket};
    snprintf(out->name, sizeof out->name, "%s", name);
    if (folder->bucket != NULL)
        return storage_object_open(folder->bucket, &out->object, name, &out->bytes);
    out->fd = openat(folder->fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out->fd < 0)
        return report_errno(errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO,
                            "could not open a file of the model", name);
    int error = check_plain(out);
    if (error != 0)
        hf_file_close(out);
    return error;
}

void hf_file_close(struct hf_file *file)
{
    if (file->object != NULL)
        storage_object_close(file->bucket, file->object);
    if (file->fd >= 0)
        close(file->fd);
    file->object = NULL;
    file->fd = -1;
}

int hf_file_read(const struct hf_file *file, void *out, uint64_t start, uint32_t bytes)
{
    if (bytes == 0)
        return 0;
    if (file->object != NULL)
        return storage_transfer(file->bucket, STORAGE_READ, file->object, start, out, bytes);
    for (uint32_t done = 0; done < bytes;) {
        ssize_t got = pread(file->fd, (char *)out + done, bytes - done, (off_t)(start + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return report_errno(ERR_IO, "could not read a file of the model", file->name);
        if (got == 0)
            return report_error(ERR_IO, "check whether another program changes it",
                                "%s ended early", file->name);
        done += (uint32_t)got;
    }
    return 0;
}

static int parse_object(json_t **out, const char *name, const char *text, size_t bytes)
{
    const char *why;
    int error = safetensors_read_json(out, text, bytes, &why);
    return error == ERR_CORRUPT ? report_error(error, NULL, "%s cannot be read: %s", name, why)
                                : error;
}

int hf_folder_json(json_t **out, const struct hf_folder *folder, const char *name, size_t most)
{
    struct hf_file file;
    char *text = NULL;
    *out = NULL;
    int error = hf_file_open(&file, folder, name);
    if (error == ERR_NOT_FOUND)
        return report_error(ERR_NOT_FOUND, "FOLDER must be a model in Hugging Face's format",
                            "the folder has no %s", name);
    if (error == 0 && file.bytes > most)
        error = report_error(ERR_CORRUPT, NULL, "%s is larger than %zu bytes", name, most);
    if (error == 0 && (text = malloc(file.bytes + 1)) == NULL)
        error = report_error(ERR_MEMORY, NULL, "no memory for %s", name);
    if (error == 0)
        error = hf_file_read(&file, text, 0, (uint32_t)file.bytes);
    if (error == 0)
        error = parse_object(out, name, text, (size_t)file.bytes);
    free(text);
    hf_file_close(&file);
    return error;
}
