/* locks.c - for `local`: the store's single writer, and holds (small objects that exist as long as
 * their holder).
 *
 * The lock is an open-file-description lock on ".holdfast.lock". It ends with the process in any
 * case, and refuses a second open in the same process, too. The file has the owner's pid and the
 * format of the store: a program that could take a later format for rubbish must not write. A hold
 * is a file that its holder keeps locked likewise; a rename makes it appear.
 *
 * Removing the lock file does not free the store: the holder has also locked the directory (flock),
 * and makes the file again within RELOCK_S.
 *
 * A disk that was remounted read-only, or whose device is gone, is noticed only by a write. So the
 * holder of the lock writes its pid again, in place and unsynced, at intervals; storage_space()
 * reports the result.
 *
 * The server of a shared directory may silently forget a lock, as NFS does after a restart or a
 * long network outage. So the keeper requests every lock again each RELOCK_S: the holder gets it,
 * also if it was forgotten. If another process has taken the store's lock meanwhile, this process
 * makes no further change (ERR_STALE). For up to RELOCK_S a lease may seem to have no holder. The
 * files that it reads may then be removed: a read finds them missing or damaged, never wrong. */
#include "proto/base/clock.h"
#include "storage/local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RELOCK_S 2
#define PROBE_TURNS 5u             /* of RELOCK_S: interval of the store writer's write tests */
#define FORMAT_LINE "format 2\n"   /* the format of new files in the store */
#define FORMER_FORMAT "format 1\n" /* manifests of version 1; still read */

int local_lock_file(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* A query of a lock's holder needs no permission to write. 1: a process has the lock, 0: none; -1
 * with errno. */
static int query_lock(int directory, const char *name)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = local_open_beneath(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -1;
    int result = fcntl(fd, F_OFD_GETLK, &lock) != 0 ? -1 : lock.l_type != F_UNLCK;
    int number = errno;
    close(fd);
    errno = number;
    return result;
}

bool local_is_locked(int directory, const char *name)
{
    return query_lock(directory, name) == 1;
}

static int report_holder(int fd)
{
    char pid[32] = "";
    ssize_t got = pread(fd, pid, sizeof(pid) - 1, 0);
    pid[got > 0 ? strspn(pid, "0123456789") : 0] = '\0';
    return report_error(ERR_BUSY, "stop it, or use another store",
                        "the store is in use by process %s", pid[0] ? pid : "(unknown)");
}

static bool begins_with(const char *line, const char *format)
{
    return strncmp(line, format, strlen(format)) == 0;
}

/* *out_changes: the file has the former format, or none yet, because the store is new. */
static int check_format(int fd, bool *out_changes)
{
    char text[64] = "";
    if (pread(fd, text, sizeof(text) - 1, 0) < 0)
        return local_fail("could not read the lock file", STORAGE_LOCK_NAME);
    const char *line = strstr(text, "format ");
    *out_changes = line == NULL || begins_with(line, FORMER_FORMAT);
    if (*out_changes || begins_with(line, FORMAT_LINE))
        return 0;
    return report_error(ERR_VERSION, "use the version that wrote it, or a later one",
                        "the store has \"%.*s\", this program writes \"%.8s\"",
                        (int)strcspn(line, "\n"), line, FORMAT_LINE);
}

/* A FIFO or a device could be locked but holds no format: it is another program's file. */
static int check_lock_file(int fd)
{
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode))
        return 0;
    return report_error(
        ERR_DENIED, "remove it: ckptd makes a new one",
        "%s in the store is not a regular file, but %s: it cannot be the store's lock",
        STORAGE_LOCK_NAME, S_ISFIFO(status.st_mode) ? "a FIFO" : "a socket or a device");
}

/* The length is constant, so the write fits in place on a full disk. A full store must open, for
 * removals. */
static bool write_pid(int fd)
{
    char text[64];
    int length = snprintf(text, sizeof(text), "%-20ld\n" FORMAT_LINE, (long)getpid());
    return pwrite(fd, text, (size_t)length, 0) == length;
}

/* Opens and locks the file; *out_changes as in check_format(). -1: *out_error has the error. */
static int open_lock_file(int *out_error, bool *out_changes, const struct local *local)
{
    int fd = local_open_beneath(local->root_fd, STORAGE_LOCK_NAME, O_RDWR | O_CREAT | O_EXCL);
    if (fd < 0 && errno == EEXIST)
        fd = local_open_beneath(local->root_fd, STORAGE_LOCK_NAME, O_RDWR);
    if (fd < 0) {
        *out_error = local_fail("could not open the lock file", STORAGE_LOCK_NAME);
        return -1;
    }
    *out_error = check_lock_file(fd);
    if (*out_error == 0 && local_lock_file(fd) == 0)
        *out_error = check_format(fd, out_changes);
    else if (*out_error == 0)
        *out_error = errno == EAGAIN || errno == EACCES
                         ? report_holder(fd)
                         : local_fail("could not lock the store", STORAGE_LOCK_NAME);
    if (*out_error != 0) {
        close(fd);
        return -1;
    }
    if (!write_pid(fd))
        log_warn("storage", "could not write the pid into the lock file: %s", strerror(errno));
    return fd;
}

/* On a file system without this lock the file's lock has to suffice. */
static bool lock_directory(int fd, int how)
{
    return flock(fd, how | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* ---- locks that a server may forget, or whose files may be removed ---- */

struct storage_hold {
    struct storage_hold *next;
    int fd; /* locked */
    char key[STORAGE_KEY_MAX + 1];
};

struct local_keeper {
    struct local *local;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the following */
    pthread_cond_t wake;
    struct storage_hold *holds;
    uint32_t turns;
    bool has_told; /* logged that the lock file cannot be made again */
    bool stop;
};

static bool has_its_name(const struct local *local)
{
    struct stat named, locked;
    return fstatat(local->root_fd, STORAGE_LOCK_NAME, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           fstat(local->lock_fd, &locked) == 0 && named.st_dev == locked.st_dev &&
           named.st_ino == locked.st_ino;
}

static void name_again(struct local_keeper *keeper)
{
    struct local *local = keeper->local;
    bool changes;
    int error, fd = open_lock_file(&error, &changes, local);
    if (error == ERR_BUSY)
        atomic_store(&local->is_lock_lost, true);
    if (fd >= 0 || !keeper->has_told)
        log_error("storage", "the store's lock file was removed: %s",
                  fd >= 0 ? "this process created it again" : report_line());
    keeper->has_told = fd < 0;
    if (fd < 0)
        return;
    close(local->lock_fd);
    local->lock_fd = fd;
}

/* A full disk still accepts removals; the next write reports other failures. */
static void probe_write(struct local *local)
{
    int number = 0, fd = local_open_beneath(local->root_fd, STORAGE_LOCK_NAME, O_WRONLY);
    if (fd < 0 || !write_pid(fd))
        number = errno;
    if (fd >= 0)
        close(fd);
    atomic_store(&local->refusal_number, number == EROFS || number == EIO ? number : 0);
}

static void lock_again(struct local_keeper *keeper)
{
    struct local *local = keeper->local;
    for (struct storage_hold *hold = keeper->holds; hold != NULL; hold = hold->next)
        if (local_lock_file(hold->fd) != 0)
            log_warn("storage", "%s is not locked any more: %s", hold->key, strerror(errno));
    if (local->lock_fd < 0 || atomic_load(&local->is_lock_lost))
        return;
    if (local_lock_file(local->lock_fd) == 0) {
        if (!has_its_name(local))
            name_again(keeper);
        if (++keeper->turns % PROBE_TURNS == 0)
            probe_write(local);
        return;
    }
    if (errno != EAGAIN && errno != EACCES)
        return;
    atomic_store(&local->is_lock_lost, true);
    log_error("storage", "the store's lock was lost: another process has taken it");
}

static void *keep_locks(void *argument)
{
    struct local_keeper *keeper = argument;
    pthread_mutex_lock(&keeper->mutex);
    while (!keeper->stop) {
        const struct timespec until =
            clock_after_ns(CLOCK_REALTIME, (uint64_t)RELOCK_S * CLOCK_SECOND_NS);
        if (pthread_cond_timedwait(&keeper->wake, &keeper->mutex, &until) == ETIMEDOUT)
            lock_again(keeper);
    }
    pthread_mutex_unlock(&keeper->mutex);
    return NULL;
}

int local_keeper_open(struct local *local)
{
    struct local_keeper *keeper = calloc(1, sizeof(*keeper));
    if (keeper == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate the keeper of locks");
    keeper->local = local;
    pthread_mutex_init(&keeper->mutex, NULL);
    pthread_cond_init(&keeper->wake, NULL);
    if (pthread_create(&keeper->thread, NULL, keep_locks, keeper) != 0) {
        free(keeper);
        return report_error(ERR_MEMORY, NULL, "could not allocate a thread that keeps locks");
    }
    local->keeper = keeper;
    return 0;
}

void local_keeper_close(struct local_keeper *keeper)
{
    pthread_mutex_lock(&keeper->mutex);
    keeper->stop = true;
    pthread_cond_signal(&keeper->wake);
    pthread_mutex_unlock(&keeper->mutex);
    pthread_join(keeper->thread, NULL);
    pthread_cond_destroy(&keeper->wake);
    pthread_mutex_destroy(&keeper->mutex);
    free(keeper);
}

static void keep_hold(struct local_keeper *keeper, struct storage_hold *hold)
{
    pthread_mutex_lock(&keeper->mutex);
    hold->next = keeper->holds;
    keeper->holds = hold;
    pthread_mutex_unlock(&keeper->mutex);
}

static void leave_hold(struct local_keeper *keeper, const struct storage_hold *hold)
{
    pthread_mutex_lock(&keeper->mutex);
    struct storage_hold **at = &keeper->holds;
    while (*at != NULL && *at != hold)
        at = &(*at)->next;
    if (*at != NULL) /* it may be older than its keeper */
        *at = hold->next;
    pthread_mutex_unlock(&keeper->mutex);
}

/* ---- the store's one writer ---- */

static void set_lock(struct local *local, int fd)
{
    pthread_mutex_lock(&local->keeper->mutex);
    local->lock_fd = fd;
    pthread_mutex_unlock(&local->keeper->mutex);
}

/* Locks the directory first, but not on a shared one: there flock is local to this machine, or a
 * further lock that the server may forget. */
static int acquire_lock(int *out_fd, bool *out_changes, const struct local *local)
{
    int error = 0, fd;
    if (!local->is_shared && !lock_directory(local->root_fd, LOCK_EX)) {
        fd = local_open_beneath(local->root_fd, STORAGE_LOCK_NAME, O_RDONLY | O_NONBLOCK);
        error = report_holder(fd);
        close(fd);
        return error;
    }
    *out_fd = open_lock_file(&error, out_changes, local);
    if (error != 0)
        flock(local->root_fd, LOCK_UN);
    return error;
}

int local_lock(struct storage *storage)
{
    struct local *local = local_of(storage);
    bool changes = false;
    int fd = -1;
    CHECK(local->lock_fd < 0);
    ERR_TRY(local_refuse_read_only(local));
    if (local->keeper == NULL)
        ERR_TRY(local_keeper_open(local));
    ERR_TRY(acquire_lock(&fd, &changes, local));
    if (changes && (fsync(fd) != 0 || fsync(local->root_fd) != 0))
        log_warn("storage", "could not make the lock file durable: %s", strerror(errno));
    set_lock(local, fd);
    return 0;
}

/* ---- holds ---- */

/* The name appears after the lock: no process sees it without its holder. */
static int hold_in(int fd, int parent, const char *temporary, const char *name, const void *data,
                   size_t bytes)
{
    return local_lock_file(fd) != 0 || local_write_all(fd, data, bytes) != 0
               ? -1
               : storage_place(parent, temporary, name);
}

int local_hold(struct storage *storage, struct storage_hold **out, const char *key,
               const void *data, size_t bytes)
{
    struct storage_hold *hold = calloc(1, sizeof(*hold));
    if (hold == NULL)
        return report_error(ERR_MEMORY, NULL, "could not allocate a hold");
    const char *name;
    char temporary[TEMPORARY_BYTES];
    int error = 0, parent = local_open_parent(local_of(storage), key, true, &name);
    hold->fd = parent >= 0 ? local_create_temporary(temporary, parent) : -1;
    if (hold->fd < 0) {
        error = local_fail("could not create a temporary file", key);
    } else if (hold_in(hold->fd, parent, temporary, name, data, bytes) != 0) {
        error = local_fail("could not hold a small object", key);
        unlinkat(parent, temporary, 0);
        close(hold->fd);
    }
    if (parent >= 0)
        close(parent);
    if (error != 0) {
        free(hold);
        return error;
    }
    snprintf(hold->key, sizeof(hold->key), "%s", key);
    if (local_of(storage)->keeper != NULL)
        keep_hold(local_of(storage)->keeper, hold);
    *out = hold;
    return 0;
}

/* Removes the name first, so that a visible one always has a holder. */
void local_release(struct storage *storage, struct storage_hold *hold, bool stays)
{
    const char *name;
    if (local_of(storage)->keeper != NULL)
        leave_hold(local_of(storage)->keeper, hold);
    int parent = stays ? -1 : local_open_parent(local_of(storage), hold->key, false, &name);
    if (parent >= 0) {
        unlinkat(parent, name, 0); /* a file that stays has no holder */
        close(parent);
    }
    close(hold->fd);
    free(hold);
}

/* A holder whose lock file was removed keeps the directory locked until it has made the file
 * again. */
static bool has_directory_holder(const struct local *local)
{
    int fd = local->is_shared ? -1 : local_open_beneath(local->root_fd, "", O_RDONLY | O_DIRECTORY);
    bool is_held = fd >= 0 && !lock_directory(fd, LOCK_SH);
    if (fd >= 0)
        close(fd);
    return is_held;
}

int local_find_holder(struct storage *storage, const char *key)
{
    const char *name = key != NULL ? key : STORAGE_LOCK_NAME;
    int found = query_lock(local_of(storage)->root_fd, name), number = errno;
    if (found <= 0 && key == NULL && has_directory_holder(local_of(storage)))
        return 0;
    errno = number;
    if (found < 0)
        return local_fail("could not look for the holder of an object", name);
    return found > 0 ? 0 : report_error(ERR_NOT_FOUND, NULL, "no process holds \"%s\"", name);
}
