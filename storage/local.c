/* local.c - objects as files below one directory.
 *
 * Every path is opened component by component below the root's descriptor, and none of them may be
 * a link, so no key and no link that somebody planted leads out of the store. (openat2 would do it
 * in one call, but systemd's RestrictSUIDSGID=, which comes with DynamicUser=, refuses that.)
 *
 * Big objects: created exclusively, reserved with fallocate (a full disk is found now, and the size
 * does not change later), O_DIRECT, requests by the engine (io_uring, or threads where it is
 * refused). The descriptor that wrote is the one that is synced. Small objects: temporary name in
 * the same directory, fsync, renameat2(RENAME_NOREPLACE), fsync of every directory up to the root.
 *
 * O_DIRECT is switched on after the open, by fcntl: an open with the flag would leave a file behind
 * where the file system refuses it. Where it is refused (or wants more than 4 KiB alignment)
 * requests go through the page cache; the sync makes them durable all the same; describe says so.
 *
 * Who serves a store may ask (is_ours_alone) that the root belongs to its user or to root, and that
 * nobody else may write into it: he could put a run of his own in the place of another. In a sticky
 * directory he cannot. Roots are made so, whatever the umask leaves. Who does not ask takes any.
 *
 * Locks and holds are in locks.c.
 *
 * Names that begin with ".holdfast" are ours: no key can be one, list hides them. A temporary file
 * that a crash left behind is removed with its directory. */
#include "storage/local.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u /* of the root's path */
#define OPEN_TRIES_MAX 64    /* while signals interrupt it */

int local_fail(const char *message, const char *key)
{
    return report_errno(storage_code_of_errno(errno), message, key[0] ? key : "(root)");
}

int local_refuse_read_only(const struct local *local)
{
    if (!local->read_only)
        return 0;
    return report_error(ERR_DENIED, NULL, "the store was opened for reading only");
}

/* ---- paths ---- */

static bool is_link(int directory, const char *name)
{
    struct stat status;
    return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

/* A descriptor, or -1 with errno, of a link ELOOP. */
static int open_component(int directory, const char *name, int flags)
{
    int fd, tries = 0;
    do /* 0666 less the umask: the operator decides who may read */
        fd = openat(directory, name, flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR && ++tries < OPEN_TRIES_MAX);
    if (fd < 0 && errno == ENOTDIR)
        errno = is_link(directory, name) ? ELOOP : ENOTDIR;
    return fd;
}

/* What root makes in a directory of somebody else is of that user, best effort: where a tool run as
 * root takes the first lease, or writes a checkpoint, ckptd's user goes on. */
static void give_to_owner_of(int parent, int made)
{
    struct stat above;
    if (geteuid() == 0 && fstat(parent, &above) == 0 && above.st_uid != 0 &&
        fchown(made, above.st_uid, above.st_gid) != 0)
        log_debug("storage", "what root made stays root's: %s", strerror(errno));
}

/* A descriptor, or -1 with errno. `path` "" is the directory itself. */
int local_open_beneath(int directory, const char *path, int flags)
{
    char copy[STORAGE_KEY_MAX + 1], *rest = copy;
    CHECK(strlen(path) < sizeof(copy));
    strcpy(copy, path[0] ? path : ".");
    for (int at = directory;;) {
        const char *name = strsep(&rest, "/");
        CHECK(strcmp(name, "..") != 0);
        int fd = open_component(at, name, rest != NULL ? O_PATH | O_DIRECTORY : flags);
        int number = errno;
        if (fd >= 0 && rest == NULL && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0)
            give_to_owner_of(at, fd);
        if (at != directory)
            close(at);
        errno = number;
        if (fd < 0 || rest == NULL)
            return fd;
        at = fd;
    }
}

static int open_directory(int directory, const char *path)
{
    return local_open_beneath(directory, path, O_RDONLY | O_DIRECTORY);
}

/* Cuts the last component off: "a/b" becomes "a", "a" becomes "". */
static void cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    *(slash ? slash : path) = '\0';
}

/* Opens the directory `path` and makes what is missing of it. A descriptor, or -1 with errno. */
static int make_directories(const struct local *local, const char *path)
{
    int fd = open_directory(local->root_fd, path);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    char copy[STORAGE_KEY_MAX + 1], *rest = copy, *name;
    snprintf(copy, sizeof(copy), "%s", path);
    fd = open_directory(local->root_fd, "");
    while (fd >= 0 && (name = strsep(&rest, "/")) != NULL) {
        int next = -1;
        bool is_made = mkdirat(fd, name, 0777) == 0;
        if (is_made || errno == EEXIST)
            next = open_directory(fd, name);
        int number = errno;
        if (is_made && next >= 0)
            give_to_owner_of(fd, next);
        close(fd);
        errno = number;
        fd = next;
    }
    return fd;
}

/* Opens the directory that holds `key` (made when missing, if asked); *out_name is the last
 * component. A descriptor, or -1 with errno. */
int local_open_parent(const struct local *local, const char *key, bool make, const char **out_name)
{
    char parent[STORAGE_KEY_MAX + 1];
    snprintf(parent, sizeof(parent), "%s", key);
    cut_last(parent);
    *out_name = parent[0] ? key + strlen(parent) + 1 : key;
    return make ? make_directories(local, parent) : open_directory(local->root_fd, parent);
}

/* ---- open and close ---- */

/* Makes a directory's name durable: fsync of the directory above it. One that was there, in a
 * directory that is not ours to read, is the business of who made it. */
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

/* Makes the root and what is missing above it. */
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
        else if (is_new || end == '\0') /* who made the root may not have got so far */
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
        return local_fail("could not look at the store", where);
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

/* Switches O_DIRECT on where the file takes it at our alignment. */
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
    snprintf(local->text, sizeof(local->text), "%s%s, %s%s",
             local->engine->ops->describe(local->engine), local->refusal, local->direct_text,
             local->priority_text);
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
    local->lock_fd = -1;
    local->read_only = options->read_only;
    local->is_quiet = options->read_only || options->is_quiet;
    local->root_fd = open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (local->root_fd < 0) {
        error = local_fail("could not open the store", where);
        goto close_local;
    }
    error = options->is_ours_alone ? check_owner(local, where) : 0;
    if (error == 0)
        error = open_engine(local, options);
    if (error != 0)
        goto close_local;
    local->direct_text = probe_direct(local);
    local->io_priority = options->io_priority;
    engine_priority_describe(local->priority_text, sizeof(local->priority_text), local->root_fd,
                             local->io_priority);
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

static const char *local_describe(struct storage *storage)
{
    return local_of(storage)->text;
}

/* ---- big objects ---- */

static int new_object(struct storage_object **out, int fd, uint64_t bytes, uint16_t io_priority)
{
    struct engine_file *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate an open object");
    file->base.ops = &storage_local;
    file->fd = fd;
    file->bytes = bytes;
    file->io_priority = io_priority;
    file->direct = set_direct(fd);
    *out = (struct storage_object *)file;
    return 0;
}

/* All blocks now, so that a full disk is found before the first write. File systems without
 * fallocate give the size only; they find out later. */
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
        error = new_object(out, fd, bytes, local->io_priority);
    if (error != 0) {
        close(fd);
        unlinkat(parent, name, 0);
    }
close_parent:
    close(parent);
    return error;
}

/* Opens a regular file for reading. O_NONBLOCK: a FIFO that somebody planted must not hang us. It
 * goes again at once: io_uring answers EAGAIN for such files where the file system cannot read
 * without waiting. */
static int open_for_reading(int *out_fd, uint64_t *out_bytes, const struct local *local,
                            const char *key)
{
    int fd = local_open_beneath(local->root_fd, key, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOTDIR)
        errno = ENOENT;
    if (fd < 0)
        return local_fail("could not open an object", key);
    struct stat status;
    int error = 0;
    if (fstat(fd, &status) != 0)
        error = local_fail("could not look at an object", key);
    else if (!S_ISREG(status.st_mode))
        error = report_error(ERR_NOT_FOUND, NULL, "\"%s\" is not an object", key);
    else if (fcntl(fd, F_SETFL, O_RDONLY) != 0)
        error = local_fail("could not open an object", key);
    if (error != 0) {
        close(fd);
        return error;
    }
    *out_fd = fd;
    *out_bytes = (uint64_t)status.st_size;
    return 0;
}

static int local_object_open(struct storage *storage, struct storage_object **out, const char *key,
                             uint64_t *out_bytes)
{
    int fd;
    uint64_t bytes;
    int error = open_for_reading(&fd, &bytes, local_of(storage), key);
    if (error != 0)
        return error;
    error = new_object(out, fd, bytes, 0);
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

/* ---- names and small objects ---- */

static int local_sync_names(struct storage *storage, const char *prefix)
{
    struct local *local = local_of(storage);
    char path[STORAGE_KEY_MAX + 1];
    snprintf(path, sizeof(path), "%s", prefix);
    for (;;) {
        int fd = open_directory(local->root_fd, path);
        if (fd < 0 && errno == ENOTDIR)
            errno = ENOENT;
        if (fd < 0)
            return local_fail("could not open a directory to make its names durable", path);
        int error = 0;
        if (fsync(fd) != 0)
            error = report_errno(ERR_IO, "could not make the names of a directory durable", path);
        close(fd);
        if (error != 0 || path[0] == '\0')
            return error;
        cut_last(path);
    }
}

int storage_place(int parent, const char *temporary, const char *name)
{
    if (renameat2(parent, temporary, parent, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (linkat(parent, temporary, parent, name, 0) != 0)
        return -1;
    unlinkat(parent, temporary, 0);
    return 0;
}

int local_write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(fd, data, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -1;
        data += written;
        bytes -= (size_t)written;
    }
    return 0;
}

/* A descriptor, or -1 with errno. It is locked while it is open, best effort: who sweeps sees that
 * somebody is at work on it, whatever the clock says of its age. */
int local_create_temporary(char out[TEMPORARY_BYTES], int parent)
{
    uint64_t nonce;
    if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
        return -1;
    snprintf(out, TEMPORARY_BYTES, "%s%016llx", TEMPORARY_PREFIX, (unsigned long long)nonce);
    int fd = local_open_beneath(parent, out, O_WRONLY | O_CREAT | O_EXCL);
    if (fd >= 0)
        local_lock_file(fd);
    return fd;
}

static int publish_in(struct local *local, int parent, const char *name, const char *key,
                      const void *data, size_t bytes)
{
    char temporary[TEMPORARY_BYTES];
    int fd = local_create_temporary(temporary, parent);
    if (fd < 0)
        return local_fail("could not create a temporary file", key);
    int error = 0;
    if (local_write_all(fd, data, bytes) != 0 || fsync(fd) != 0)
        error = local_fail("could not write a small object", key);
    else if (storage_place(parent, temporary, name) != 0)
        error = local_fail("could not publish a small object", key);
    close(fd);
    if (error != 0) {
        unlinkat(parent, temporary, 0);
        return error;
    }
    char directory[STORAGE_KEY_MAX + 1];
    snprintf(directory, sizeof(directory), "%s", key);
    cut_last(directory);
    if (local_sync_names((struct storage *)local, directory) == 0)
        return 0;
    unlinkat(parent, name, 0);
    /* Whatever kept us from the sync: the name was there, and a power loss may bring it back. */
    return report_error(ERR_IO, NULL, "%s", report_line());
}

static int local_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct local *local = local_of(storage);
    int error = local_refuse_read_only(local);
    if (error != 0)
        return error;
    const char *name;
    int parent = local_open_parent(local, key, true, &name);
    if (parent < 0)
        return local_fail("could not make the directory of a small object", key);
    error = publish_in(local, parent, name, key, data, bytes);
    close(parent);
    return error;
}

static int local_fetch(struct storage *storage, const char *key, void *data, size_t size,
                       uint64_t *out_bytes)
{
    int fd;
    uint64_t bytes;
    int error = open_for_reading(&fd, &bytes, local_of(storage), key);
    if (error != 0)
        return error;
    size_t wanted = bytes < size ? bytes : size, got = 0;
    while (error == 0 && got < wanted) {
        ssize_t moved = pread(fd, (char *)data + got, wanted - got, (off_t)got);
        if (moved < 0 && errno != EINTR)
            error = local_fail("could not read a small object", key);
        else if (moved == 0)
            error = report_error(ERR_CORRUPT, NULL, "\"%s\" got shorter while it was read", key);
        else if (moved > 0)
            got += (size_t)moved;
    }
    close(fd);
    *out_bytes = bytes;
    return error;
}

/* Fills *out and returns 0; 1 for what is no object (links, devices, names that are no keys,
 * entries that have just gone); -1 with errno. */
static int look_at_entry(struct storage_entry *out, int directory, const char *name)
{
    if (!storage_name_is_valid(name, strlen(name)))
        return 1;
    struct stat status;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 1 : -1;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return 1;
    bool is_dir = S_ISDIR(status.st_mode);
    *out = (struct storage_entry){name, is_dir, is_dir ? 0 : (uint64_t)status.st_size,
                                  (uint64_t)status.st_nlink, status.st_uid != geteuid()};
    return 0;
}

static DIR *open_names(int parent, const char *name)
{
    int fd = open_directory(parent, name);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL && fd >= 0)
        close(fd);
    return directory;
}

static int local_stamp(struct storage *storage, const char *prefix, uint64_t *out,
                       uint64_t *out_age_ms)
{
    const int64_t second = 1000000000;
    struct stat status;
    struct timespec now;
    int fd = open_directory(local_of(storage)->root_fd, prefix);
    if (fd < 0)
        return local_fail("could not open a directory", prefix);
    int result = fstat(fd, &status);
    close(fd);
    if (result != 0)
        return local_fail("could not look at a directory", prefix);
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t changed = status.st_ctim.tv_sec * second + status.st_ctim.tv_nsec;
    int64_t age = now.tv_sec * second + now.tv_nsec - changed;
    *out = (uint64_t)changed ^ (uint64_t)status.st_ino << 1; /* another one in its place, too */
    *out_age_ms = age > 0 ? (uint64_t)age / 1000000 : 0;
    return 0;
}

static int local_list(struct storage *storage, const char *prefix,
                      int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    DIR *directory = open_names(local_of(storage)->root_fd, prefix);
    if (directory == NULL)
        return errno == ENOENT || errno == ENOTDIR
                   ? 0
                   : local_fail("could not open a directory", prefix);
    int result = 0;
    struct dirent *found;
    while (errno = 0, result == 0 && (found = readdir(directory)) != NULL) {
        struct storage_entry entry;
        int looked = look_at_entry(&entry, dirfd(directory), found->d_name);
        if (looked < 0)
            result = local_fail("could not look at an object", found->d_name);
        else if (looked == 0)
            result = visit(user, &entry);
    }
    if (result == 0 && errno != 0)
        result = local_fail("could not list a directory", prefix);
    closedir(directory);
    return result;
}

static int sweep_file(int parent, const char *name, struct storage_sweep *sweep)
{
    struct stat status;
    if (fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 0 : -1;
    if (sweep->seconds > 0 && time(NULL) - status.st_mtime < (time_t)sweep->seconds)
        return 0;
    if (local_is_locked(parent, name))
        return 0; /* the clock jumped: somebody is at work on it */
    sweep->files++;
    sweep->bytes += (uint64_t)status.st_size;
    return !sweep->removes || unlinkat(parent, name, 0) == 0 || errno == ENOENT ? 0 : -1;
}

static int sweep_directory(int parent, const char *name, struct storage_sweep *sweep)
{
    DIR *directory = open_names(parent, name);
    if (directory == NULL)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    struct dirent *found;
    int result = 0;
    while (result == 0 && (errno = 0, found = readdir(directory)) != NULL)
        if (strncmp(found->d_name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0)
            result = sweep_file(dirfd(directory), found->d_name, sweep);
    int number = errno; /* 0: all was seen to */
    closedir(directory);
    errno = number;
    return number == 0 ? 0 : -1;
}

static int local_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    struct local *local = local_of(storage);
    int error = sweep->removes ? local_refuse_read_only(local) : 0;
    if (error == 0 && sweep_directory(local->root_fd, prefix, sweep) != 0)
        error = local_fail("could not look for temporary files", prefix);
    return error;
}

static int remove_entry(int parent, const char *name)
{
    if (unlinkat(parent, name, 0) == 0)
        return 0;
    if (errno != EISDIR)
        return -1;
    if (unlinkat(parent, name, AT_REMOVEDIR) == 0)
        return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return -1;
    sweep_directory(parent, name, &(struct storage_sweep){.removes = true});
    return unlinkat(parent, name, AT_REMOVEDIR);
}

static int local_remove(struct storage *storage, const char *key)
{
    struct local *local = local_of(storage);
    int error = local_refuse_read_only(local);
    if (error != 0)
        return error;
    const char *name;
    int parent = local_open_parent(local, key, false, &name);
    if (parent < 0 && errno == ENOTDIR)
        errno = ENOENT;
    if (parent < 0)
        return local_fail("could not open the directory of an object", key);
    if (remove_entry(parent, name) != 0)
        error = local_fail("could not remove an object", key);
    close(parent);
    return error;
}

/* As storage_place(), also for directories, which have no second name: where the file system has no
 * such rename, what is in the way is looked for first. */
static int move_entry(int parent, const char *name, int other_parent, const char *other)
{
    struct stat status;
    if (renameat2(parent, name, other_parent, other, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (fstatat(other_parent, other, &status, AT_SYMLINK_NOFOLLOW) == 0)
        errno = EEXIST;
    return errno == ENOENT ? renameat(parent, name, other_parent, other) : -1;
}

static int local_rename(struct storage *storage, const char *key, const char *other)
{
    struct local *local = local_of(storage);
    const char *name, *other_name;
    int error = local_refuse_read_only(local);
    if (error != 0)
        return error;
    int parent = local_open_parent(local, key, false, &name);
    if (parent < 0)
        return local_fail("could not open the directory of an object", key);
    int other_parent = local_open_parent(local, other, true, &other_name);
    if (other_parent < 0)
        error = local_fail("could not open the directory of an object", other);
    else if (move_entry(parent, name, other_parent, other_name) != 0)
        error = local_fail("could not rename an object", key);
    if (other_parent >= 0)
        close(other_parent);
    close(parent);
    return error;
}

/* ---- the store as a whole ---- */

static int local_space(struct storage *storage, struct storage_space *out)
{
    struct statvfs status;
    if (fstatvfs(local_of(storage)->root_fd, &status) != 0)
        return local_fail("could not ask for the free space", "");
    /* What the file system keeps for root is not ours to fill: as df counts. */
    uint64_t blocks_used = status.f_blocks - status.f_bfree;
    out->bytes_total = (blocks_used + status.f_bavail) * status.f_frsize;
    out->bytes_free = (uint64_t)status.f_bavail * status.f_frsize;
    out->inodes_total = status.f_files;
    out->inodes_free = status.f_favail;
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
    .lock = local_lock,
    .space = local_space,
    .hold = local_hold,
    .release = local_release,
    .sweep = local_sweep,
    .find_holder = local_find_holder,
    .describe = local_describe,
};
