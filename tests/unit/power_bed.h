/* power_bed.h - the possible contents of a directory after a power loss: each state that a file
 * system may leave of the changes in it.
 *
 * The linker sends the calls below of storage/ through here (--wrap of the names in WRAP_POWER of
 * mk/tests.mk), and the bed records their changes in order. A state is a prefix of that log. Synced
 * changes are present. Of the others any subset is: names come and go one by one and in any order,
 * writes and sizes are whole, lost, or torn at a sector. A sync covers changes that ended before it
 * began: the bytes of its own file, or the names of its own directory and of no other. POSIX
 * promises that much; ext4, XFS and Btrfs keep more. (Pillai et al., "All File Systems Are Not
 * Created Equal", OSDI 2014, lists what programs wrongly assume beyond it.) */
#ifndef HOLDFAST_TESTS_POWER_BED_H
#define HOLDFAST_TESTS_POWER_BED_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POWER_SECTOR 512u
#define POWER_CHANGES_MAX 8192u
#define POWER_NODES_MAX 2048u

enum power_kind {
    POWER_LINK,
    POWER_MOVE,
    POWER_REMOVE,
    POWER_SIZE, /* at least so many bytes */
    POWER_CUT,  /* as many */
    POWER_DATA,
    POWER_SYNC
};

/* One change of a directory's names, or of a file; or the end of a sync. */
struct power_change {
    enum power_kind kind;
    int owner; /* the node whose sync makes it durable: a directory, or the file */
    int node;  /* LINK, MOVE: the node that the name then has */
    char name[NAME_MAX + 1], from[NAME_MAX + 1];
    off_t offset;
    size_t bytes;
    unsigned char *data;
    unsigned
        synced_at; /* the number of changes when it became durable; UINT32_MAX: it is not durable */
};

/* The log of one directory. */
struct power_log {
    bool is_on;
    dev_t device;
    unsigned num_placed; /* changes at the beginning: the files that were already there */
    unsigned num_changes, num_nodes;
    struct power_change changes[POWER_CHANGES_MAX];
    struct {
        ino_t inode;
        bool is_dir;
    } nodes[POWER_NODES_MAX];
};
static struct power_log
    power_logs[3]; /* of the story, of the start after the power loss, of a second one */
static struct power_log *power =
    power_logs; /* the log that is recorded, or whose states are made */
static pthread_mutex_t power_mutex = PTHREAD_MUTEX_INITIALIZER;

static inline void power_must(bool holds, const char *what)
{
    if (!holds) {
        perror(what);
        abort();
    }
}

/* ---- recording ---- */

static inline int power_add_node(const struct stat *status)
{
    power_must(power->num_nodes < POWER_NODES_MAX, "too many files for power_bed.h");
    power->nodes[power->num_nodes].inode = status->st_ino;
    power->nodes[power->num_nodes].is_dir = S_ISDIR(status->st_mode);
    return (int)power->num_nodes++;
}

/* -1: not of the store. A removed file's inode number may be used again by a later file. */
static inline int power_find_node(int fd)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && status.st_dev == power->device)
        for (int i = (int)power->num_nodes; i-- > 0;)
            if (power->nodes[i].inode == status.st_ino)
                return i;
    return -1;
}

static inline struct power_change *power_add(enum power_kind kind, int owner)
{
    power_must(power->num_changes < POWER_CHANGES_MAX, "too many changes for power_bed.h");
    struct power_change *change = &power->changes[power->num_changes++];
    *change = (struct power_change){.kind = kind, .owner = owner, .synced_at = UINT32_MAX};
    return change;
}

static inline void power_add_name(int parent, const char *name, int node)
{
    power_must(strchr(name, '/') == NULL, name);
    struct power_change *change = power_add(POWER_LINK, parent);
    change->node = node;
    snprintf(change->name, sizeof change->name, "%s", name);
}

/* A name that a call has just made. */
static inline void power_add_made(int parent_fd, const char *name)
{
    struct stat status;
    int parent = power_find_node(parent_fd);
    if (parent >= 0 && fstatat(parent_fd, name, &status, AT_SYMLINK_NOFOLLOW) == 0)
        power_add_name(parent, name, power_add_node(&status));
}

static inline void power_add_data(int node, off_t offset, const void *data, size_t bytes)
{
    struct power_change *change = power_add(POWER_DATA, node);
    change->offset = offset;
    change->bytes = bytes;
    change->data = malloc(bytes + 1);
    power_must(change->data != NULL, "malloc");
    memcpy(change->data, data, bytes);
}

static inline void power_add_file(int fd, int node)
{
    struct stat status;
    power_must(fstat(fd, &status) == 0, "fstat");
    unsigned char *data = malloc((size_t)status.st_size + 1);
    power_must(data != NULL && read(fd, data, (size_t)status.st_size) == status.st_size, "read");
    power_add_data(node, 0, data, (size_t)status.st_size);
    free(data);
}

/* Records the files that are in the directory already; takes `fd`. */
static inline void power_scan(int fd, int node)
{
    DIR *directory = fdopendir(fd);
    power_must(directory != NULL, "fdopendir");
    for (struct dirent *found; (found = readdir(directory)) != NULL;) {
        struct stat status;
        if (strcmp(found->d_name, ".") == 0 || strcmp(found->d_name, "..") == 0)
            continue;
        int below = openat(fd, found->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        power_must(below >= 0 && fstat(below, &status) == 0, found->d_name);
        int made = power_add_node(&status);
        power_add_name(node, found->d_name, made);
        if (S_ISDIR(status.st_mode)) {
            power_scan(below, made);
            continue;
        }
        power_add_file(below, made);
        close(below);
    }
    closedir(directory);
}

/* Starts to record changes below `path`; files that exist already are durable. */
static inline void power_record(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    power_must(fd >= 0 && fstat(fd, &status) == 0, path);
    for (unsigned i = 0; i < power->num_changes; i++)
        free(power->changes[i].data);
    power->num_changes = power->num_nodes = 0;
    power->device = status.st_dev;
    power_scan(fd, power_add_node(&status));
    for (unsigned i = 0; i < power->num_changes; i++)
        power->changes[i].synced_at = 0;
    power->num_placed = power->num_changes;
    pthread_mutex_lock(&power_mutex);
    power->is_on = true;
    pthread_mutex_unlock(&power_mutex);
}

/* The number of changes; 0 while nothing is recorded. */
static inline unsigned power_changes(void)
{
    pthread_mutex_lock(&power_mutex);
    unsigned count = power->is_on ? power->num_changes : 0;
    pthread_mutex_unlock(&power_mutex);
    return count;
}

static inline void power_stop(void)
{
    pthread_mutex_lock(&power_mutex);
    power->is_on = false;
    pthread_mutex_unlock(&power_mutex);
}

/* ---- the calls ---- */

/* Makes a call and records its change under one lock. */
#define POWER_CALL(type, name, parameters, arguments, failed, keep) \
    type __real_##name parameters;                                  \
    type __wrap_##name parameters;                                  \
    type __wrap_##name parameters                                   \
    {                                                               \
        pthread_mutex_lock(&power_mutex);                           \
        type result = __real_##name arguments;                      \
        int number = errno;                                         \
        if (power->is_on && result != (failed))                     \
            keep;                                                   \
        pthread_mutex_unlock(&power_mutex);                         \
        errno = number;                                             \
        return result;                                              \
    }

/* Opens the directory that holds `path`; *out_name is the last component. The caller closes it. */
static inline int power_open_above(const char **out_name, const char *path)
{
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(above, sizeof above, "%.*s", slash != NULL ? (int)(slash - path + 1) : 1,
             slash != NULL ? path : ".");
    int fd = open(above, O_PATH | O_DIRECTORY | O_CLOEXEC);
    power_must(fd >= 0, path);
    *out_name = slash != NULL ? slash + 1 : path;
    return fd;
}

static inline void power_keep_made_path(const char *path)
{
    const char *name;
    int fd = power_open_above(&name, path);
    power_add_made(fd, name);
    close(fd);
}

static inline void power_keep_move(int fd, const char *from, const char *to)
{
    struct stat status;
    int parent = power_find_node(fd);
    if (parent < 0)
        return;
    power_must(fstatat(fd, to, &status, AT_SYMLINK_NOFOLLOW) == 0, to);
    struct power_change *change = power_add(POWER_MOVE, parent);
    for (int i = (int)power->num_nodes; i-- > 0 && change->node == 0;)
        change->node = power->nodes[i].inode == status.st_ino ? i : 0;
    power_must(change->node != 0, to);
    snprintf(change->from, sizeof change->from, "%s", from);
    snprintf(change->name, sizeof change->name, "%s", to);
}

/* Within one directory, as all moves are. */
static inline void power_keep_move_at(int a, const char *from, int b, const char *to)
{
    const char *from_name = from, *to_name = to;
    if (a != AT_FDCWD) {
        power_must(a == b, "renameat2");
        power_keep_move(a, from, to);
        return;
    }
    a = power_open_above(&from_name, from);
    b = power_open_above(&to_name, to);
    power_must(power_find_node(a) == power_find_node(b), "renameat2");
    power_keep_move(a, from_name, to_name);
    close(a);
    close(b);
}

static inline void power_keep_removal(int fd, const char *name)
{
    int parent = power_find_node(fd);
    if (parent >= 0)
        snprintf(power_add(POWER_REMOVE, parent)->name, sizeof power->changes[0].name, "%s", name);
}

static inline void power_keep_removed_path(const char *path)
{
    const char *name;
    int fd = power_open_above(&name, path);
    power_keep_removal(fd, name);
    close(fd);
}

static inline void power_keep_size(int fd, enum power_kind kind, off_t bytes)
{
    int node = power_find_node(fd);
    if (node >= 0)
        power_add(kind, node)->bytes = (size_t)bytes;
}

static inline void power_keep_cut_path(const char *path, off_t bytes)
{
    int fd = open(path, O_PATH | O_CLOEXEC);
    power_must(fd >= 0, path);
    power_keep_size(fd, POWER_CUT, bytes);
    close(fd);
}

static inline void power_keep_data(int fd, const void *data, ssize_t bytes, off_t at)
{
    int node = bytes > 0 ? power_find_node(fd) : -1;
    if (node >= 0)
        power_add_data(node, at, data, (size_t)bytes);
}

POWER_CALL(int, mkdirat, (int fd, const char *name, mode_t mode), (fd, name, mode), -1,
           power_add_made(fd, name))
POWER_CALL(int, unlinkat, (int fd, const char *name, int flags), (fd, name, flags), -1,
           power_keep_removal(fd, name))
POWER_CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
           (a, from, b, to, flags), -1, power_keep_move_at(a, from, b, to))
POWER_CALL(int, fallocate, (int fd, int mode, off_t at, off_t bytes), (fd, mode, at, bytes), -1,
           power_keep_size(fd, POWER_SIZE, at + bytes))
POWER_CALL(int, ftruncate, (int fd, off_t bytes), (fd, bytes), -1,
           power_keep_size(fd, POWER_CUT, bytes))
POWER_CALL(int, truncate, (const char *path, off_t bytes), (path, bytes), -1,
           power_keep_cut_path(path, bytes))
POWER_CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), -1,
           power_keep_made_path(path))
POWER_CALL(int, rmdir, (const char *path), (path), -1, power_keep_removed_path(path))
POWER_CALL(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t at),
           (fd, data, bytes, at), -1, power_keep_data(fd, data, result, at))
POWER_CALL(ssize_t, write, (int fd, const void *data, size_t bytes), (fd, data, bytes), -1,
           power_keep_data(fd, data, result, lseek(fd, 0, SEEK_CUR) - result))

int __real_openat(int fd, const char *name, int flags, ...);
int __wrap_openat(int fd, const char *name, int flags, ...);
int __wrap_openat(int fd, const char *name, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    pthread_mutex_lock(&power_mutex);
    bool may_be_new = power->is_on && (flags & O_CREAT) != 0 && faccessat(fd, name, F_OK, 0) != 0;
    int result = __real_openat(fd, name, flags, mode), number = errno;
    if (may_be_new && result >= 0)
        power_add_made(fd, name);
    pthread_mutex_unlock(&power_mutex);
    errno = number;
    return result;
}

/* Changes that ended before the sync began are durable when the sync has ended. */
static inline int power_sync(int fd, int (*sync)(int fd))
{
    unsigned before = power_changes();
    int result = sync(fd), number = errno;
    pthread_mutex_lock(&power_mutex);
    int node = power->is_on && result == 0 ? power_find_node(fd) : -1;
    if (node >= 0)
        power_add(POWER_SYNC, node)->synced_at = 0;
    for (unsigned i = 0; node >= 0 && i < before; i++)
        if (power->changes[i].owner == node && power->changes[i].synced_at == UINT32_MAX)
            power->changes[i].synced_at = power->num_changes;
    pthread_mutex_unlock(&power_mutex);
    errno = number;
    return result;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    return power_sync(fd, __real_fsync);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
    return power_sync(fd, __real_fdatasync);
}

/* ---- states ---- */

enum power_fate { POWER_LOST, POWER_KEPT, POWER_FIRST_PART, POWER_LAST_PART };

/* The fate of each of the first `num_changes` changes; KEPT for the durable ones. */
struct power_state {
    unsigned num_changes;
    unsigned char fates[POWER_CHANGES_MAX];
};

static inline bool power_is_durable(const struct power_change *change, unsigned num_changes)
{
    return change->synced_at <= num_changes;
}

/* A write of several sectors may be torn. */
static inline bool power_can_tear(const struct power_change *change)
{
    return change->kind == POWER_DATA && change->bytes > POWER_SECTOR;
}

/* The resulting directory: names by parent, files by node. */
struct power_tree {
    struct {
        int parent, node;
        const char *name;
    } names[POWER_NODES_MAX];
    unsigned num_names;
    struct {
        unsigned char *data;
        size_t bytes;
    } files[POWER_NODES_MAX];
};

static inline void power_take_name(struct power_tree *tree, int parent, const char *name)
{
    for (unsigned i = 0; i < tree->num_names; i++)
        if (tree->names[i].parent == parent && strcmp(tree->names[i].name, name) == 0) {
            tree->names[i] = tree->names[--tree->num_names];
            return;
        }
}

static inline void power_put_name(struct power_tree *tree, int parent, const char *name, int node)
{
    power_take_name(tree, parent, name);
    power_must(tree->num_names < POWER_NODES_MAX, "too many names for power_bed.h");
    tree->names[tree->num_names].parent = parent;
    tree->names[tree->num_names].name = name;
    tree->names[tree->num_names++].node = node;
}

static inline void power_put_size(struct power_tree *tree, int node, size_t bytes)
{
    size_t before = tree->files[node].bytes;
    if (bytes <= before)
        return;
    tree->files[node].data = realloc(tree->files[node].data, bytes);
    power_must(tree->files[node].data != NULL, "realloc");
    memset(tree->files[node].data + before, 0, bytes - before);
    tree->files[node].bytes = bytes;
}

static inline void power_put_data(struct power_tree *tree, const struct power_change *change,
                                  enum power_fate fate)
{
    size_t middle = change->bytes / 2 / POWER_SECTOR * POWER_SECTOR;
    size_t from = fate == POWER_LAST_PART ? middle : 0;
    size_t to = fate == POWER_FIRST_PART ? middle : change->bytes;
    size_t at = (size_t)change->offset;
    power_put_size(tree, change->owner, at + to);
    if (to > from)
        memcpy(tree->files[change->owner].data + at + from, change->data + from, to - from);
}

static inline void power_apply(struct power_tree *tree, const struct power_change *change,
                               enum power_fate fate)
{
    switch (change->kind) {
    case POWER_LINK:
        power_put_name(tree, change->owner, change->name, change->node);
        break;
    case POWER_MOVE:
        power_take_name(tree, change->owner, change->from);
        power_put_name(tree, change->owner, change->name, change->node);
        break;
    case POWER_REMOVE:
        power_take_name(tree, change->owner, change->name);
        break;
    case POWER_SIZE:
        power_put_size(tree, change->owner, change->bytes);
        break;
    case POWER_CUT:
        power_put_size(tree, change->owner, change->bytes);
        tree->files[change->owner].bytes = change->bytes;
        break;
    case POWER_DATA:
        power_put_data(tree, change, fate);
        break;
    case POWER_SYNC:
        break;
    }
}

static inline void power_write_tree(const struct power_tree *tree, int fd, int node)
{
    for (unsigned i = 0; i < tree->num_names; i++) {
        const char *name = tree->names[i].name;
        int below, child = tree->names[i].node;
        if (tree->names[i].parent != node)
            continue;
        if (power->nodes[child].is_dir) {
            power_must(mkdirat(fd, name, 0755) == 0, name);
            below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            power_must(below >= 0, name);
            power_write_tree(tree, below, child);
        } else {
            size_t bytes = tree->files[child].bytes;
            below = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
            power_must(below >= 0, name);
            power_must(write(below, tree->files[child].data, bytes) == (ssize_t)bytes, name);
        }
        close(below);
    }
}

/* Makes the directory `path` in that state. Recording must be off. */
static inline void power_make(const struct power_state *state, const char *path)
{
    struct power_tree *tree = calloc(1, sizeof *tree);
    power_must(tree != NULL && !power->is_on, "power_make");
    for (unsigned i = 0; i < state->num_changes; i++)
        if (state->fates[i] != POWER_LOST)
            power_apply(tree, &power->changes[i], state->fates[i]);
    power_must(mkdir(path, 0755) == 0, path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    power_must(fd >= 0, path);
    power_write_tree(tree, fd, 0);
    close(fd);
    for (unsigned i = 0; i < power->num_nodes; i++)
        free(tree->files[i].data);
    free(tree);
}

#endif
