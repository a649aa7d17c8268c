/* directory.c - checks that a directory has the mark of a store, and is still the one that was
 * opened.
 *
 * The mark of a store is its lock file, which every writer creates, as does `ckptd --make_store`.
 * An empty directory, such as a mount point without its disk, has none: ckptd refuses it by name.
 *
 * A process with an open directory keeps writing into it after it was moved away, or another disk
 * was mounted over it. The next start cannot find those checkpoints. So device and inode of the
 * path are compared with those of the opened directory. */
#include "ckptd/core/directory.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "storage/storage.h"

#include <dirent.h>
#include <errno.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH_BYTES_MAX 4096u
#define FSTAB "/etc/fstab"

/* ---- before it is opened ---- */

/* Is `path` the directory `mount`, or in it? */
static bool is_in(const char *path, const char *mount)
{
    size_t length = strlen(mount);
    while (length > 0 && mount[length - 1] == '/')
        length--;
    return strncmp(path, mount, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static bool is_mounted(const char *mount)
{
    char above[PATH_BYTES_MAX];
    struct stat here, there;
    if (strcmp(mount, "/") == 0) /* nothing is above it */
        return true;
    snprintf(above, sizeof above, "%s/..", mount);
    return stat(mount, &here) == 0 && stat(above, &there) == 0 &&
           (here.st_dev != there.st_dev || here.st_ino == there.st_ino);
}

/* The longest mount point of fstab above the path that has nothing mounted; "": none. */
static void find_unmounted(char out[PATH_BYTES_MAX], const char *path)
{
    char text[PATH_BYTES_MAX];
    struct mntent entry;
    FILE *table = setmntent(FSTAB, "re");
    out[0] = '\0';
    while (table && getmntent_r(table, &entry, text, sizeof text))
        if (entry.mnt_dir[0] == '/' && is_in(path, entry.mnt_dir) && !is_mounted(entry.mnt_dir) &&
            strlen(entry.mnt_dir) > strlen(out))
            snprintf(out, PATH_BYTES_MAX, "%s", entry.mnt_dir);
    if (table)
        endmntent(table);
}

/* The deepest existing directory of the path, and the mount point of its file system. */
static void find_mount(char out[PATH_BYTES_MAX], const char *path)
{
    struct stat here, above;
    char parent[PATH_BYTES_MAX];
    snprintf(out, PATH_BYTES_MAX, "%s", path);
    for (;;) {
        snprintf(parent, sizeof parent, "%s", out);
        char *slash = strrchr(parent, '/');
        if (!slash || strcmp(out, "/") == 0)
            return;
        slash[slash == parent ? 1 : 0] = '\0';
        if (stat(out, &here) == 0 && stat(parent, &above) == 0 && here.st_dev != above.st_dev)
            return;
        strcpy(out, parent);
    }
}

/* Resolves links, as far as the path exists. */
static void make_absolute(char out[PATH_BYTES_MAX], const char *where)
{
    char *path = realpath(where, NULL);
    char *here = path || where[0] == '/' ? NULL : realpath(".", NULL);
    snprintf(out, PATH_BYTES_MAX, "%s%s%s", here ? here : "", here ? "/" : "", path ? path : where);
    free(path);
    free(here);
}

static bool has_mark(const char *where)
{
    char name[PATH_BYTES_MAX];
    struct stat status;
    snprintf(name, sizeof name, "%s/" STORAGE_LOCK_NAME, where);
    return lstat(name, &status) == 0 && S_ISREG(status.st_mode);
}

static int refuse_unmarked(const char *where, const char *after_mount, const char *option)
{
    char path[PATH_BYTES_MAX], mount[PATH_BYTES_MAX], hint[PATH_BYTES_MAX];
    make_absolute(path, where);
    find_unmounted(mount, path);
    if (mount[0])
        return report_error(ERR_NOT_FOUND, after_mount,
                            "%s holds no store: %s of " FSTAB " is not mounted", where, mount);
    find_mount(mount, path);
    snprintf(hint, sizeof hint, "mount its disk; for a new store: ckptd %s --make_store", option);
    return report_error(ERR_NOT_FOUND, hint,
                        "%s holds no store: is its disk not mounted? The path lies on the file "
                        "system that is mounted at %s",
                        where, mount);
}

int directory_need_store(const char *where)
{
    return has_mark(where)
               ? 0
               : refuse_unmarked(where, "mount it, then start ckptd again", "--store DIRECTORY");
}

/* A far tier of a release without marks has runs, and those have attempts. */
static bool has_run(const char *where)
{
    bool is_found = false;
    DIR *directory = opendir(where);
    for (struct dirent *entry; directory && !is_found && (entry = readdir(directory)) != NULL;) {
        char name[PATH_BYTES_MAX];
        struct stat status;
        int length = snprintf(name, sizeof name, "%s/%s/attempts", where, entry->d_name);
        is_found = shard_run_is_valid(entry->d_name) && length < (int)sizeof name &&
                   stat(name, &status) == 0 && S_ISDIR(status.st_mode);
    }
    if (directory)
        closedir(directory);
    return is_found;
}

int directory_need_tier(const char *where)
{
    return has_mark(where) || has_run(where)
               ? 0
               : refuse_unmarked(where, "mount it",
                                 "--store DIRECTORY --tier.store dir:/DIRECTORY");
}

/* ---- while it is open ---- */

static bool read_id(char out[40], const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    snprintf(out, 40, "%llx:%llx", (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino);
    return true;
}

void directory_take(struct directory *out, const char *where)
{
    out->path = realpath(where, NULL);
    if (out->path)
        read_id(out->id, out->path);
}

int directory_check(const struct directory *directory)
{
    char id[40];
    if (!directory->path || !directory->id[0])
        return 0;
    if (!read_id(id, directory->path))
        return report_error(ERR_IO, "mount it again, or move it back",
                            "the store was moved away or unmounted: %s: %s", directory->path,
                            strerror(errno));
    return strcmp(id, directory->id) == 0
               ? 0
               : report_error(
                     ERR_IO, "mount it again, or move it back",
                     "%s is another directory now: the store was moved away, unmounted, or "
                     "another disk was mounted over it",
                     directory->path);
}
