/* local.c - objects as files below one directory.
 *
 * Big objects: created exclusively, reserved with fallocate (a full disk is found now, and the size
 * does not change later), O_DIRECT, requests by the engine (io_uring, or threads where it is
 * refused). The descriptor that wrote is the one that is synced.
 *
 * O_DIRECT is switched on after the open, by fcntl: a refused open with the flag leaves a file.
 * Where the file system refuses it (or needs more than 4 KiB alignment), requests go through the
 * page cache. The sync makes them durable all the same; describe reports the mode.
 *
 * With is_ours_alone the root must belong to the caller's user or to root, and no other user may
 * write into it. Another user could replace a run by another one, except in a sticky directory. New
 * roots are made so, regardless of the umask. Without is_ours_alone any root is accepted.
 *
 * names.c has paths and small objects, locks.c locks and holds. */
#include "storage/local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u /* of the root's path */
#define READS_AT_ONCE 16u    /* as many as a cold disk answers at once */

/* ---- open and close ---- */

/* Makes a directory's name durable: fsync of the directory above it. For an existing directory of
 * another user, its creator has to do that. */
static int sync_above(const char *path, bool is_new)
{
    char above[PATH_BYTES_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash != NULL)
        snprintf(above, sizeof(above), "%.*s", (int)(slash - path + 1), path);
    int fd = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = 0;
    if (fd < 0 && errno == EACCES && !is_new)
        return 0;
    if (fd < 0 || fsync(fd) != 0)
        error = report_errno(ERR_IO, "could not make the store's directory durable", path);
    if (fd >= 0)
        close(fd);
    return error;
}

/* Makes the root and its missing parents. */
static int make_root(const char *where)
{
    char path[PATH_BYTES_MAX];
    if (where[0] == '\0' || strlen(where) >= sizeof(path))
        return report_error(ERR_INVALID, "name the store's directory",
                            "the path of the store is empty or too long");
    snprintf(path, sizeof(path), "%s", where);
    for (size_t last = strlen(path) - 1; last > 0 && path[last] == '/'; last--)
        path[last] = '\0'; /* the last component is the root */
    for (char *p = path + 1;; p++) {
        char end = *p;
        if (end != '/' && end != '\0')
            continue;
        *p = '\0';
        int error = 0;
        bool is_new = mkdir(path, 0755) == 0;
        if (!is_new && errno != EEXIST)
            error = local_fail("could not make the store's directory", path);
        else if (is_new || end == '\0') /* its creator may not have synced it */
            error = sync_above(path, is_new);
        *p = end;
        if (error != 0 || end == '\0')
            return error;
    }
}

static int check_owner(const struct local *local, const char *where)
{
    struct stat status;
    if (fstat(local->root_fd, &status) != 0)
        return local_fail("could not read the attributes of the store", where);
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return report_error(ERR_DENIED, "run it as that user, or name a new directory",
                            "the store %s belongs to user %u, and this process to user %u", where,
                            (unsigned)status.st_uid, (unsigned)geteuid());
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) == 0 || (status.st_mode & S_ISVTX) != 0)
        return 0;
    return report_error(ERR_DENIED, "chmod go-w, or name a new directory in it",
                        "the store %s of user %u can be changed by other users: its mode is %04o",
                        where, (unsigned)status.st_uid, (unsigned)status.st_mode & 07777);
}

/* Switches O_DIRECT on if the file accepts it at our alignment. */
static bool set_direct(int fd)
{
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
        (status.stx_mask & STATX_DIOALIGN) != 0 &&
        (status.stx_dio_offset_align == 0 || status.stx_dio_offset_align > STORAGE_ALIGN ||
         status.stx_dio_mem_align > STORAGE_ALIGN))
        return false;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

static const char *probe_direct(const struct local *local)
{
    int fd = local->read_only ? -1 : local_open_beneath(local->root_fd, "", O_RDWR | O_TMPFILE);
    if (fd < 0)
        return "O_DIRECT where the file system takes it";
    bool direct = set_direct(fd);
    close(fd);
    return direct ? "O_DIRECT" : "through the page cache (the file system refuses O_DIRECT)";
}

static void write_text(struct local *local)
{
    snprintf(local->text, sizeof(local->text), "%s%s, %s",
             local->engine->ops->describe(local->engine), local->refusal, local->direct_text);
}

static int open_engine(struct local *local, const struct storage_options *options)
{
    if (options->force_pwrite) {
        snprintf(local->refusal, sizeof(local->refusal), " (as the options ask)");
        return engine_pwrite.open(&local->engine, options);
    }
    int error = engine_uring.open(&local->engine, options);
    if (error == 0 || error == ERR_INVALID)
        return error;
    snprintf(local->refusal, sizeof(local->refusal), " (%s)", report_line());
    return engine_pwrite.open(&local->engine, options);
}

static void local_close(struct storage *storage)
{
    struct local *local = local_of(storage);
    if (local->engine != NULL)
        local->engine->ops->close(local->engine);
    if (local->keeper != NULL)
        local_keeper_close(local->keeper);
    if (local->lock_fd >= 0)
        close(local->lock_fd);
    if (local->root_fd >= 0)
        close(local->root_fd);
    free(local);
}

static int local_open(struct storage **out, const char *where,
                      const struct storage_options *options)
{
    int error = options->read_only ? 0 : make_root(where);
    if (error != 0)
        return error;
    struct local *local = calloc(1, sizeof(*local));
    if (local == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the local store");
    local->base.ops = &storage_local;
    local->base.text = local->text;
    local->base.num_at_once = READS_AT_ONCE;
    local->lock_fd = -1;
    local->read_only = options->read_only;
    local->is_quiet = options->read_only || options->is_quiet;
    local->is_shared = options->is_shared;
    local->root_fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (local->root_fd < 0) {
        error = local_fail("could not open the store", where);
        goto close_local;
    }
    error = options->is_ours_alone ? check_owner(local, where) : 0;
    if (error == 0)
        error = open_engine(local, options);
    if (error == 0 && options->is_shared)
        error = local_keeper_open(local);
    if (error != 0)
        goto close_local;
    local->direct_text = probe_direct(local);
    write_text(local);
    log_print(local->is_quiet ? LOG_DEBUG : LOG_INFO, "storage", "opened %s: %s", where,
              local->text);
    if (options->is_shared)
        log_print(local->is_quiet ? LOG_DEBUG : LOG_INFO, "storage",
                  "%s is shared: its locks count between machines only if its file system passes "
                  "them on",
                  where);
    *out = (struct storage *)local;
    return 0;
close_local:
    local_close((struct storage *)local);
    return error;
}

static int local_register_buffers(struct storage *storage, const struct iovec *buffers,
                                  uint32_t count)
{
    struct local *local = local_of(storage);
    int error = local->engine->ops->register_buffers(local->engine, buffers, count);
    write_text(local);
    if (error == 0)
        log_print(local->is_quiet ? LOG_DEBUG : LOG_INFO, "storage", "registered %u buffers: %s",
                  count, local->text);
    return error;
}

static void local_replace_buffer(struct storage *storage, uint32_t index,
                                 const struct iovec *buffer)
{
    struct engine *engine = local_of(storage)->engine;
    engine->ops->replace_buffer(engine, index, buffer);
}

/* ---- big objects ---- */

static int new_object(struct storage_object **out, int fd, uint64_t bytes)
{
    struct engine_file *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate an open object");
    file->base.ops = &storage_local;
    file->fd = fd;
    file->bytes = bytes;
    file->direct = set_direct(fd);
    *out = (struct storage_object *)file;
    return 0;
}

/* Allocates all blocks now, so that a full disk is found before the first write. File systems
 * without fallocate only set the size; they report a full disk later. */
static int reserve(int fd, uint64_t bytes)
{
    int result = 0;
    do
        result = bytes == 0 ? 0 : fallocate(fd, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EOPNOTSUPP)
        result = ftruncate(fd, (off_t)bytes);
    return result;
}

static int local_object_create(struct storage *storage, struct storage_object **out,
                               const char *key, uint64_t bytes)
{
    struct local *local = local_of(storage);
    int error = local_refuse_read_only(local);
    if (error != 0)
        return error;
    const char *name;
    int parent = local_open_parent(local, key, true, &name);
    if (parent < 0)
        return local_fail("could not make the directory of an object", key);
    int fd = local_open_beneath(parent, name, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0) {
        error = local_fail("could not create an object", key);
        goto close_parent;
    }
    error =
        reserve(fd, bytes) == 0 ? 0 : local_fail("could not reserve the space of an object", key);
    if (error == 0)
        error = new_object(out, fd, bytes);
    if (error != 0) {
        close(fd);
        unlinkat(parent, name, 0);
    }
close_parent:
    close(parent);
    return error;
}

static int local_object_open(struct storage *storage, struct storage_object **out, const char *key,
                             uint64_t *out_bytes)
{
    int fd;
    uint64_t bytes;
    ERR_TRY(local_open_for_reading(&fd, &bytes, local_of(storage), key));
    int error = new_object(out, fd, bytes);
    if (error != 0)
        close(fd);
    *out_bytes = bytes;
    return error;
}

static void local_object_close(struct storage *storage, struct storage_object *object)
{
    (void)storage;
    struct engine_file *file = (struct engine_file *)object;
    close(file->fd);
    free(file);
}

static void local_submit(struct storage *storage, struct storage_request *request)
{
    struct engine *engine = local_of(storage)->engine;
    engine->ops->submit(engine, request);
}

/* ---- the store as a whole ---- */

static int local_space(struct storage *storage, struct storage_space *out)
{
    struct statvfs status;
    if (fstatvfs(local_of(storage)->root_fd, &status) != 0)
        return local_fail("could not ask for the free space", "");
    /* Like df, does not count the space that the file system reserves for root. */
    uint64_t blocks_used = status.f_blocks - status.f_bfree;
    out->bytes_total = (blocks_used + status.f_bavail) * status.f_frsize;
    out->bytes_free = (uint64_t)status.f_bavail * status.f_frsize;
    out->inodes_total = status.f_files;
    out->inodes_free = status.f_favail;
    out->refusal_number =
        (status.f_flag & ST_RDONLY) != 0 ? EROFS : atomic_load(&local_of(storage)->refusal_number);
    return 0;
}

const struct storage_ops storage_local = {
    .name = "local",
    .version = 1,
    .flags = STORAGE_DURABLE | STORAGE_DIRECT,
    .open = local_open,
    .close = local_close,
    .register_buffers = local_register_buffers,
    .replace_buffer = local_replace_buffer,
    .object_create = local_object_create,
    .object_open = local_object_open,
    .object_close = local_object_close,
    .submit = local_submit,
    .sync_names = local_sync_names,
    .publish = local_publish,
    .fetch = local_fetch,
    .list = local_list,
    .stamp = local_stamp,
    .remove = local_remove,
    .rename = local_rename,
    .replace = local_replace,
    .lock = local_lock,
    .space = local_space,
    .hold = local_hold,
    .release = local_release,
    .sweep = local_sweep,
    .find_holder = local_find_holder,
};
