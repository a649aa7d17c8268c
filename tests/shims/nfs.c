/* nfs.c - a directory as an NFS client of Linux shows it, on a file system of this machine.
 *
 *     LD_PRELOAD=build/shims/nfs.so NFS_ROOT=folder NFS_LOST=3 ckptd ...
 *
 * A process that runs with it is one client, two of them are two clients of one server. Below
 * NFS_ROOT:
 *
 * Names: a looked-up name is cached for CACHE_S seconds, also an absent one. It is looked up again
 * once this process has opened its directory by name, or changed the name.
 *
 * Answers: every NFS_LOST-th link, rename, unlink and mkdir takes effect, its answer is lost, and
 * the second try is answered: EEXIST or ENOENT.
 *
 * Open files: one that this process removes while it has it open is called .nfs<number> from then
 * on, and goes with the last descriptor. Such a name cannot be removed before.
 *
 * Refusals: no rename with flags, no fallocate, no file without a name, as NFS 3.
 *
 * Not shown: ESTALE for a file that another client removed, data that are cached, locks. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_S 5
#define NAMES_MAX 4096u
#define FILES_MAX 4096

struct seen {
    ino_t folder;
    char name[NAME_MAX + 1];
    bool is_absent;
    struct stat status;
    time_t until;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the fields below */
static struct seen seen[NAMES_MAX];
static size_t next_seen;
static struct {
    ino_t file;
    char path[PATH_MAX];
} hidden[FILES_MAX];
static size_t num_hidden;

static const char *root;
static long lost_every;
static atomic_long num_changes;

__attribute__((constructor)) static void read_settings(void)
{
    root = getenv("NFS_ROOT");
    lost_every = getenv("NFS_LOST") ? strtol(getenv("NFS_LOST"), NULL, 10) : 0;
    if (root == NULL || root[0] != '/' || lost_every < 2)
        abort(); /* or the test would test nothing */
}

/* ---- the system's own calls ---- */

static int raw_open(int folder, const char *name, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, folder, name, flags, mode);
}

static int raw_stat(int folder, const char *name, struct stat *out, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, name, out, flags);
}

static bool path_of(int fd, char out[PATH_MAX])
{
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    out[length > 0 ? length : 0] = '\0';
    return length > 0;
}

/* Is this descriptor at or below the directory that is remote? Leaves errno alone. */
static bool is_remote(int fd)
{
    char path[PATH_MAX];
    size_t length = strlen(root);
    int number = errno;
    bool below = fd >= 0 && path_of(fd, path) && strncmp(path, root, length) == 0 &&
                 (path[length] == '/' || path[length] == '\0');
    errno = number;
    return below;
}

static ino_t inode_of(int folder, const char *name)
{
    struct stat status;
    int number = errno;
    ino_t inode = raw_stat(folder, name, &status, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0
                      ? status.st_ino
                      : 0;
    errno = number;
    return inode;
}

/* How many descriptors of this process are of the file, for reading or writing. */
static size_t count_open(ino_t file)
{
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    size_t count = 0;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] != '.' && inode_of(fd, "") == file && is_remote(fd))
            count++;
    }
    if (folder != NULL)
        closedir(folder);
    return count;
}

/* ---- names that were seen ---- */

static void keep(int folder, const char *name, const struct stat *status)
{
    ino_t inode = inode_of(folder, "");
    pthread_mutex_lock(&mutex);
    struct seen *slot = &seen[next_seen++ % NAMES_MAX];
    *slot =
        (struct seen){.folder = inode, .is_absent = status == NULL, .until = time(NULL) + CACHE_S};
    snprintf(slot->name, sizeof slot->name, "%s", name);
    if (status != NULL)
        slot->status = *status;
    pthread_mutex_unlock(&mutex);
}

/* `name` NULL: all of that directory. */
static void forget(ino_t folder, const char *name)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < NAMES_MAX; i++)
        if (seen[i].folder == folder && (name == NULL || strcmp(seen[i].name, name) == 0))
            seen[i].folder = 0;
    pthread_mutex_unlock(&mutex);
}

static bool recall(int folder, const char *name, struct seen *out)
{
    ino_t inode = inode_of(folder, "");
    bool found = false;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < NAMES_MAX && !found; i++) {
        found = seen[i].folder == inode && seen[i].until > time(NULL) &&
                strcmp(seen[i].name, name) == 0;
        if (found)
            *out = seen[i];
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static int open_there(int folder, const char *name, int flags, mode_t mode)
{
    struct seen known;
    struct stat status;
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if ((flags & O_CREAT) != 0)
        forget(inode_of(folder, ""), name);
    else if (recall(folder, name, &known) && known.is_absent) {
        errno = ENOENT;
        return -1;
    }
    int fd = raw_open(folder, name, flags, mode);
    if (fd < 0 && errno == ENOENT && (flags & O_CREAT) == 0) {
        keep(folder, name, NULL);
        errno = ENOENT;
    }
    if (fd >= 0 && (flags & O_PATH) == 0 && strcmp(name, ".") != 0 &&
        raw_stat(fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISDIR(status.st_mode))
        forget(status.st_ino, NULL);
    return fd;
}

int openat(int folder, const char *name, int flags, ...)
{
    mode_t mode = 0;
    va_list rest;
    va_start(rest, flags);
    if ((flags & (O_CREAT | O_TMPFILE)) != 0)
        mode = va_arg(rest, mode_t);
    va_end(rest);
    return is_remote(folder) ? open_there(folder, name, flags, mode)
                             : raw_open(folder, name, flags, mode);
}

int fstatat(int folder, const char *restrict name, struct stat *restrict out, int flags)
{
    struct seen known;
    if (!is_remote(folder) || name[0] == '\0')
        return raw_stat(folder, name, out, flags);
    if (recall(folder, name, &known)) {
        *out = known.status;
        errno = ENOENT;
        return known.is_absent ? -1 : 0;
    }
    int result = raw_stat(folder, name, out, flags), number = errno;
    if (result == 0 || number == ENOENT)
        keep(folder, name, result == 0 ? out : NULL);
    errno = number;
    return result;
}

/* ---- changes, of which some are made twice ---- */

static int change(long call, int folder, const char *name, int other_folder, const char *other,
                  int flags)
{
    int result = (int)syscall(call, folder, name, other_folder, other, flags);
    bool is_there = is_remote(folder);
    if (is_there)
        forget(inode_of(folder, ""), name);
    if (is_there && other != NULL)
        forget(inode_of(other_folder, ""), other);
    if (result == 0 && is_there && atomic_fetch_add(&num_changes, 1) % lost_every == 0)
        return (int)syscall(call, folder, name, other_folder, other, flags);
    return result;
}

int linkat(int folder, const char *name, int other_folder, const char *other, int flags)
{
    return change(SYS_linkat, folder, name, other_folder, other, flags);
}

int renameat2(int folder, const char *name, int other_folder, const char *other, unsigned flags)
{
    if (flags != 0 && is_remote(folder)) {
        errno = EINVAL;
        return -1;
    }
    return change(SYS_renameat2, folder, name, other_folder, other, (int)flags);
}

int renameat(int folder, const char *name, int other_folder, const char *other)
{
    return renameat2(folder, name, other_folder, other, 0);
}

int mkdirat(int folder, const char *name, mode_t mode)
{
    int result = (int)syscall(SYS_mkdirat, folder, name, mode);
    if (!is_remote(folder))
        return result;
    forget(inode_of(folder, ""), name);
    if (result == 0 && atomic_fetch_add(&num_changes, 1) % lost_every == 0)
        return (int)syscall(SYS_mkdirat, folder, name, mode);
    return result;
}

/* ---- files that are open when they go ---- */

static int hide(int folder, const char *name, ino_t file)
{
    static atomic_ulong number;
    char path[PATH_MAX], hiding[64];
    snprintf(hiding, sizeof hiding, ".nfs%016lx%08lx", (unsigned long)file,
             atomic_fetch_add(&number, 1) + ((unsigned long)getpid() << 12));
    if (!path_of(folder, path) || strlen(path) + sizeof hiding + 1 > PATH_MAX)
        abort();
    if (syscall(SYS_renameat2, folder, name, folder, hiding, 0) != 0)
        return -1;
    pthread_mutex_lock(&mutex);
    if (num_hidden == FILES_MAX)
        abort();
    hidden[num_hidden].file = file;
    strcat(strcat(strcpy(hidden[num_hidden++].path, path), "/"), hiding);
    pthread_mutex_unlock(&mutex);
    return 0;
}

int unlinkat(int folder, const char *name, int flags)
{
    ino_t file = inode_of(folder, name);
    if (!is_remote(folder) || (flags & AT_REMOVEDIR) != 0 || file == 0 || count_open(file) == 0)
        return change(SYS_unlinkat, folder, name, flags, NULL, 0);
    if (strncmp(name, ".nfs", 4) == 0) {
        errno = EBUSY;
        return -1;
    }
    forget(inode_of(folder, ""), name);
    return hide(folder, name, file);
}

int close(int fd)
{
    ino_t file = num_hidden > 0 ? inode_of(fd, "") : 0;
    int result = (int)syscall(SYS_close, fd), number = errno;
    if (file != 0 && count_open(file) == 0) {
        pthread_mutex_lock(&mutex);
        for (size_t i = 0; i < num_hidden; i++)
            if (hidden[i].file == file) {
                unlink(hidden[i].path);
                hidden[i--] = hidden[--num_hidden];
            }
        pthread_mutex_unlock(&mutex);
    }
    errno = number;
    return result;
}

/* ---- refusals ---- */

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    errno = EOPNOTSUPP;
    return is_remote(fd) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
}
