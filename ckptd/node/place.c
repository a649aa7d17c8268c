/* place.c - the directory of the store: must it be there already, and is it still where it was?
 *
 * A disk that is not mounted leaves an empty directory, in which ckptd would begin an empty store
 * and trainers would begin at step 0. With store_must_exist ckptd starts only where the mark of a
 * store lies: the lock file, which every writer leaves. `ckptd --make_store` makes it.
 *
 * ckptd holds the directory open while it serves, so it would go on writing into a store that was
 * moved away, or over which another disk was mounted: nobody would find those checkpoints at the
 * next start. So device and inode of the path are compared with those that were opened: every
 * PLACE_LOOK_MS, on a worker, and before the first byte of a save. Where they differ the store goes
 * offline with the reason. */
#include "ckptd/node/place.h"
#include "ckptd/loop.h"
#include "ckptd/service.h"
#include "proto/report.h"
#include "storage/storage.h"

#include <errno.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PLACE_LOOK_MS 1000
#define PATH_BYTES_MAX 4096u
#define FSTAB "/etc/fstab"

/* ---- at the start ---- */

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
    snprintf(above, sizeof above, "%s/..", mount);
    return stat(mount, &here) == 0 && stat(above, &there) == 0 &&
           (here.st_dev != there.st_dev || here.st_ino == there.st_ino);
}

/* The longest mount point of fstab that the path needs and that has nothing mounted; "": none. */
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

/* The deepest directory of the path that is there, and where its file system is mounted. */
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

/* Without links, as far as it is there. */
static void make_absolute(char out[PATH_BYTES_MAX], const char *where)
{
    char *path = realpath(where, NULL);
    char *here = path || where[0] == '/' ? NULL : realpath(".", NULL);
    snprintf(out, PATH_BYTES_MAX, "%s%s%s", here ? here : "", here ? "/" : "", path ? path : where);
    free(path);
    free(here);
}

int place_need_store(const char *where)
{
    char name[PATH_BYTES_MAX], path[PATH_BYTES_MAX], mount[PATH_BYTES_MAX];
    struct stat status;
    snprintf(name, sizeof name, "%s/" STORAGE_LOCK_NAME, where);
    if (lstat(name, &status) == 0 && S_ISREG(status.st_mode))
        return 0;
    make_absolute(path, where);
    find_unmounted(mount, path);
    if (mount[0])
        return report_error(ERR_NOT_FOUND, "mount it, then start ckptd again",
                            "%s holds no store: %s of " FSTAB " is not mounted", where, mount);
    find_mount(mount, path);
    return report_error(ERR_NOT_FOUND,
                        "mount its disk; for a new store: ckptd --store DIRECTORY --make_store",
                        "%s holds no store, and store_must_exist is set: is its disk not mounted? "
                        "The path lies on the file system that is mounted at %s",
                        where, mount);
}

/* ---- while it serves ---- */

static bool read_id(char out[40], const char *path)
{
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    snprintf(out, 40, "%llx:%llx", (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino);
    return true;
}

int place_note(struct service *service, const char *where)
{
    struct place *place = calloc(1, sizeof *place);
    if (!place)
        return report_error(ERR_MEMORY, NULL, "no memory for the service");
    service->place = place;
    place->service = service;
    place->path = realpath(where, NULL);
    if (place->path)
        read_id(place->id, place->path);
    return 0;
}

int place_check(const struct place *place)
{
    char id[40];
    if (!place || !place->path || !place->id[0])
        return 0;
    if (!read_id(id, place->path))
        return report_error(ERR_IO, "bring it back, then restart ckptd",
                            "the store was moved away or unmounted: %s: %s", place->path,
                            strerror(errno));
    return strcmp(id, place->id) == 0
               ? 0
               : report_error(
                     ERR_IO, "bring it back, then restart ckptd",
                     "%s is another directory now: the store was moved away, unmounted, or "
                     "another disk was mounted over it",
                     place->path);
}

static void work_look(struct job *job)
{
    struct place *place = CONTAINER_OF(job, struct place, job);
    int error = place_check(place);
    if (error != 0)
        fault_take(&place->fault, error);
}

static void looked(struct event *event)
{
    struct place *place = CONTAINER_OF(event, struct place, job.done);
    struct service *service = place->service;
    if (place->fault.code != 0)
        service_go_offline(service, place->fault.message);
    if (place->fault.code == 0 && !service->offline[0])
        loop_timer(service->loop, &place->timer, PLACE_LOOK_MS);
}

static void look_again(struct timer *timer)
{
    struct place *place = CONTAINER_OF(timer, struct place, timer);
    struct service *service = place->service;
    place->job = (struct job){.work = work_look, .done.run = looked};
    loop_work(service->loop, &place->job);
}

int place_watch(struct service *service)
{
    struct place *place = service->place;
    if (!place || !place->path)
        return 0;
    place->timer.run = look_again;
    loop_timer(service->loop, &place->timer, PLACE_LOOK_MS);
    return 0;
}

void place_close(struct service *service)
{
    if (service->place)
        free(service->place->path);
    free(service->place);
    service->place = NULL;
}
