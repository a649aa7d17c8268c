/* names.c - for `local`: maps keys to files, and implements small objects and names.
 *
 * Every path is opened component by component below the root's descriptor, and none of them may be
 * a link. So no key, and no link that another user made, leads out of the store. (openat2 does that
 * in one call, but systemd's RestrictSUIDSGID=, which DynamicUser= implies, refuses it.)
 *
 * Small objects: temporary name in the same directory, fsync, renameat2(RENAME_NOREPLACE), fsync of
 * every directory up to the root.
 *
 * Names that begin with ".holdfast" are reserved: no key can be one, list hides them. A temporary
 * file that a crash left is removed with its directory.
 *
 * A shared directory may be NFS, whose client repeats a request without an answer. The second
 * answer then reflects the effect of the first request. So after EEXIST or ENOENT the code checks
 * which file has the name. Names that other machines made become visible when the directory is
 * opened again by its name, as for every key. NFS renames a file that is removed while it is open
 * to SILLY_PREFIX... until it is closed: such a name is no object. */
#include "storage/local.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SILLY_PREFIX ".nfs" /* NFS's name of a file that was removed while it was open */
#define OPEN_TRIES_MAX 64   /* of an open that signals interrupt */

int local_fail(const char *message, const char *key)
{
    return report_errno(storage_code_of_errno(errno), message, key[0] ? key : "(root)");
}

int local_refuse_read_only(const struct local *local)
{
    if (atomic_load(&local->is_lock_lost))
        return report_error(ERR_STALE, "begin again", "the lock of the store was lost");
    if (!local->read_only)
        return 0;
    return report_error(ERR_DENIED, NULL, "the store was opened for reading only");
}

static bool begins(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* ---- paths ---- */

static bool is_link(int directory, const char *name)
{
    struct stat status;
    return fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
}

/* A descriptor, or -1 with errno; ELOOP for a link. */
static int open_component(int directory, const char *name, int flags)
{
    int fd, tries = 0;
    do /* 0666 less the umask: the operator decides which users may read */
        fd = openat(directory, name, flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR && ++tries < OPEN_TRIES_MAX);
    if (fd < 0 && errno == ENOTDIR)
        errno = is_link(directory, name) ? ELOOP : ENOTDIR;
    return fd;
}

/* A file that root makes in a directory of another user gets that user as its owner, best effort.
 * So ckptd can continue after a tool run as root takes the first lease, or writes a checkpoint. */
static void copy_owner(int parent, int made)
{
    struct stat above;
    if (geteuid() == 0 && fstat(parent, &above) == 0 && above.st_uid != 0 &&
        fchown(made, above.st_uid, above.st_gid) != 0)
        log_debug("storage", "could not give a new file to the owner of its directory: %s",
                  strerror(errno));
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
            copy_owner(at, fd);
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

/* Opens the directory `path`, creating its missing parts. A descriptor, or -1 with errno. */
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
            copy_owner(fd, next);
        close(fd);
        errno = number;
        fd = next;
    }
    return fd;
}

/* Opens the directory of `key` (created if missing, when `make`); *out_name is the last component.
 * A descriptor, or -1 with errno. */
int local_open_parent(const struct local *local, const char *key, bool make, const char **out_name)
{
    char parent[STORAGE_KEY_MAX + 1];
    snprintf(parent, sizeof(parent), "%s", key);
    cut_last(parent);
    *out_name = parent[0] ? key + strlen(parent) + 1 : key;
    return make ? make_directories(local, parent) : open_directory(local->root_fd, parent);
}

/* Opens a regular file for reading. O_NONBLOCK prevents a hang on a FIFO that another user made. It
 * is cleared at once: with it io_uring returns EAGAIN if the file system cannot read without
 * waiting. */
int local_open_for_reading(int *out_fd, uint64_t *out_bytes, const struct local *local,
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
        error = local_fail("could not read the attributes of an object", key);
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

/* ---- names and small objects ---- */

int local_sync_names(struct storage *storage, const char *prefix)
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

/* Do both names belong to one file or directory? Keeps errno. */
static bool is_same(int parent, const char *name, int other_parent, const char *other)
{
    struct stat one, two;
    int number = errno;
    bool same = fstatat(parent, name, &one, AT_SYMLINK_NOFOLLOW) == 0 &&
                fstatat(other_parent, other, &two, AT_SYMLINK_NOFOLLOW) == 0 &&
                one.st_dev == two.st_dev && one.st_ino == two.st_ino;
    errno = number;
    return same;
}

int storage_place(int parent, const char *temporary, const char *name)
{
    if (renameat2(parent, temporary, parent, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (linkat(parent, temporary, parent, name, 0) != 0 &&
        (errno != EEXIST || !is_same(parent, temporary, parent, name)))
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

/* A descriptor, or -1 with errno. It is locked while it is open, best effort, so that a sweep sees
 * that a process uses it, whatever its age is by the clock. */
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
    /* After any failed sync: the name existed, and a power loss may bring it back. */
    return report_error(ERR_IO, NULL, "%s", report_line());
}

int local_publish(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    struct local *local = local_of(storage);
    ERR_TRY(local_refuse_read_only(local));
    const char *name;
    int parent = local_open_parent(local, key, true, &name);
    if (parent < 0)
        return local_fail("could not make the directory of a small object", key);
    int error = publish_in(local, parent, name, key, data, bytes);
    close(parent);
    return error;
}

int local_fetch(struct storage *storage, const char *key, void *data, size_t size,
                uint64_t *out_bytes)
{
    int fd;
    uint64_t bytes;
    int error = local_open_for_reading(&fd, &bytes, local_of(storage), key);
    if (error != 0)
        return error;
    size_t wanted = bytes < size ? bytes : size, got = 0;
    while (error == 0 && got < wanted) {
        ssize_t moved = pread(fd, (char *)data + got, wanted - got, (off_t)got);
        if (moved < 0 && errno != EINTR)
            error = local_fail("could not read a small object", key);
        else if (moved == 0)
            error = report_error(ERR_CORRUPT, NULL, "\"%s\" became shorter while it was read", key);
        else if (moved > 0)
            got += (size_t)moved;
    }
    close(fd);
    *out_bytes = bytes;
    return error;
}

/* Fills *out and returns 0; 1 for an entry that is no object (links, devices, names that are no
 * keys, entries that were just removed); -1 with errno. */
static int read_entry(struct storage_entry *out, int directory, const char *name)
{
    if (!storage_name_is_valid(name, strlen(name)) || begins(name, SILLY_PREFIX))
        return 1;
    struct stat status;
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 1 : -1;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
        return 1;
    bool is_dir = S_ISDIR(status.st_mode);
    *out = (struct storage_entry){.name = name,
                                  .is_dir = is_dir,
                                  .bytes = is_dir ? 0 : (uint64_t)status.st_size,
                                  .links = (uint64_t)status.st_nlink,
                                  .is_foreign = status.st_uid != geteuid()};
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

int local_stamp(struct storage *storage, const char *prefix, uint64_t *out, uint64_t *out_age_ms)
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
        return local_fail("could not read the attributes of a directory", prefix);
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t changed = status.st_ctim.tv_sec * second + status.st_ctim.tv_nsec;
    int64_t age = now.tv_sec * second + now.tv_nsec - changed;
    *out = (uint64_t)changed ^ (uint64_t)status.st_ino
                                   << 1; /* changes also when another directory replaces it */
    *out_age_ms = age > 0 ? (uint64_t)age / 1000000 : 0;
    return 0;
}

int local_list(struct storage *storage, const char *prefix,
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
        int looked = read_entry(&entry, dirfd(directory), found->d_name);
        if (looked < 0)
            result = local_fail("could not read the attributes of an object", found->d_name);
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
        return 0; /* the clock jumped: the file may be in use */
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
        if (begins(found->d_name, TEMPORARY_PREFIX) || begins(found->d_name, SILLY_PREFIX))
            result = sweep_file(dirfd(directory), found->d_name, sweep);
    int number = errno; /* 0: no failure */
    closedir(directory);
    errno = number;
    return number == 0 ? 0 : -1;
}

int local_sweep(struct storage *storage, const char *prefix, struct storage_sweep *sweep)
{
    struct local *local = local_of(storage);
    int error = sweep->removes ? local_refuse_read_only(local) : 0;
    if (error == 0 && sweep_directory(local->root_fd, prefix, sweep) != 0)
        error = local_fail("could not list temporary files", prefix);
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

int local_remove(struct storage *storage, const char *key)
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
    /* If the name existed and no longer does, it is removed: on NFS by this very call, when its
     * answer was lost. */
    struct stat status;
    bool was_there = local->is_shared && fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (remove_entry(parent, name) != 0 && !(was_there && errno == ENOENT))
        error = local_fail("could not remove an object", key);
    close(parent);
    return error;
}

/* Like storage_place(), also for directories, which cannot have a second name. On a file system
 * without such a rename it checks first whether the new name exists. */
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

/* After an answer that the source does not exist: has the object arrived at `key`? */
static bool has_arrived(const struct local *local, const char *key, const struct stat *moved)
{
    struct stat status;
    const char *name;
    int parent = local_open_parent(local, key, false, &name);
    bool is_there = parent >= 0 && fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                    status.st_dev == moved->st_dev && status.st_ino == moved->st_ino;
    if (parent >= 0)
        close(parent);
    errno = ENOENT;
    return is_there;
}

static int move_object(struct storage *storage, const char *key, const char *other,
                       int (*move)(int parent, const char *name, int other_parent,
                                   const char *other))
{
    struct local *local = local_of(storage);
    const char *name, *other_name;
    int error = local_refuse_read_only(local);
    if (error != 0)
        return error;
    int parent = local_open_parent(local, key, false, &name);
    if (parent < 0)
        return local_fail("could not open the directory of an object", key);
    struct stat moved;
    bool was_there = local->is_shared && fstatat(parent, name, &moved, AT_SYMLINK_NOFOLLOW) == 0;
    int other_parent = local_open_parent(local, other, true, &other_name);
    if (other_parent < 0)
        error = local_fail("could not open the directory of an object", other);
    else if (move(parent, name, other_parent, other_name) != 0 &&
             !(errno == ENOENT && was_there && has_arrived(local, other, &moved)))
        error = local_fail("could not rename an object", key);
    if (other_parent >= 0)
        close(other_parent);
    close(parent);
    return error;
}

int local_rename(struct storage *storage, const char *key, const char *other)
{
    return move_object(storage, key, other, move_entry);
}

int local_replace(struct storage *storage, const char *key, const char *other)
{
    return move_object(storage, key, other, renameat);
}
