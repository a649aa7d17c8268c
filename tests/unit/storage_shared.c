/* storage_shared.c - a directory that several machines use: locks that its server forgets, names.
 *
 * Goal: a lock that no other client has taken meanwhile is taken again. A client that lost the
 * store's lock to another changes nothing any more. A lock whose file cannot be made again is
 * reported once. Method: the store is open twice, as by two clients. The test drops a lock as an
 * NFS server does, without the store's knowledge: it finds the descriptor in /proc and unlocks
 * it. */
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <time.h>

#define PATIENCE_MS 10000

static struct storage *open_shared(const char *path)
{
    struct storage *storage;
    struct storage_options options = {.is_shared = true, .is_quiet = true};
    assert_int_equal(storage_open(&storage, &storage_local, path, &options), 0);
    return storage;
}

/* Drops the lock on the file whose path contains this. */
static void forget_lock(const char *part)
{
    struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    char link[300], path[512];
    struct dirent *entry;
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL) {
        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(link, path, sizeof path - 1);
        path[length > 0 ? length : 0] = '\0';
        if (strstr(path, part) != NULL) {
            assert_int_equal(fcntl(atoi(entry->d_name), F_OFD_SETLK, &none), 0);
            count++;
        }
    }
    closedir(folder);
    assert_int_equal(count, 1);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static bool becomes_held(struct storage *storage, const char *key)
{
    for (int ms = 0; ms < PATIENCE_MS; ms += 20) {
        if (storage_find_holder(storage, key) == 0)
            return true;
        sleep_ms(20);
    }
    return false;
}

TEST(test_shared__locks_that_the_server_forgot_are_had_again)
{
    char path[BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *one = open_shared(path), *other = open_shared(path);
    assert_int_equal(storage_lock(one), 0);
    assert_int_equal(storage_hold(one, &hold, "leases/x", "me", 2), 0);
    forget_lock(STORAGE_LOCK_NAME);
    forget_lock("/leases/");
    assert_int_equal(storage_find_holder(other, "leases/x"), ERR_NOT_FOUND);
    assert_true(becomes_held(other, "leases/x"));
    assert_true(becomes_held(other, NULL));
    assert_int_equal(storage_publish(one, "a", "a", 1), 0);
    storage_release(one, hold);
    assert_int_equal(storage_find_holder(other, "leases/x"), ERR_NOT_FOUND);
    storage_close(one);
    assert_int_equal(storage_find_holder(other, NULL), ERR_NOT_FOUND);
    storage_close(other);
    bed_remove_directory(path);
}

TEST(test_shared__who_lost_the_lock_to_another_changes_nothing)
{
    char path[BED_PATH_BYTES];
    int error = 0;
    bed_make_directory(path);
    struct storage *one = open_shared(path), *other = open_shared(path);
    assert_int_equal(storage_lock(one), 0);
    assert_int_equal(storage_publish(one, "kept", "a", 1), 0);
    forget_lock(STORAGE_LOCK_NAME);
    assert_int_equal(storage_lock(other), 0);
    for (int ms = 0; error != ERR_STALE && ms < PATIENCE_MS; ms += 20) {
        error = storage_remove(one, "none");
        sleep_ms(20);
    }
    assert_int_equal(error, ERR_STALE);
    assert_int_equal(storage_remove(one, "kept"), ERR_STALE);
    assert_int_equal(storage_publish(one, "new", "a", 1), ERR_STALE);
    assert_int_equal(storage_remove(other, "kept"), 0);
    storage_close(one);
    storage_close(other);
    bed_remove_directory(path);
}

/* Redirects stderr into `path`, or with NULL back to stderr. */
static void redirect_log(const char *path)
{
    static int before = -1;
    int fd = path ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : before;
    before = path ? dup(STDERR_FILENO) : -1;
    assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
    close(fd);
}

static int count_lines(const char *path, const char *words)
{
    char line[1024];
    int count = 0;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, words) != NULL;
    fclose(file);
    return count;
}

/* After it takes the lease's lock again, the store checks the lock file: two such checks are over
 * when the lease was locked again three times. */
TEST(test_shared__a_lock_file_that_cannot_be_made_again_is_logged_once)
{
    char path[BED_PATH_BYTES], name[BED_PATH_BYTES + 32], log[BED_PATH_BYTES + 32];
    struct storage_hold *hold;
    bed_make_directory(path);
    snprintf(name, sizeof name, "%s/" STORAGE_LOCK_NAME, path);
    snprintf(log, sizeof log, "%s/.holdfast.log", path);
    struct storage *one = open_shared(path), *other = open_shared(path);
    assert_int_equal(storage_lock(one), 0);
    assert_int_equal(storage_hold(one, &hold, "leases/x", "me", 2), 0);
    redirect_log(log);
    assert_true(unlink(name) == 0 && mkdir(name, 0700) == 0);
    bool is_held = true;
    for (int i = 0; i < 3 && is_held; i++) {
        forget_lock("/leases/");
        is_held = becomes_held(other, "leases/x");
    }
    redirect_log(NULL);
    assert_true(is_held);
    assert_int_equal(count_lines(log, "the store's lock file was removed: "), 1);
    storage_release(one, hold);
    storage_close(one);
    storage_close(other);
    bed_remove_directory(path);
}

static int count_a(void *user, const struct storage_entry *entry)
{
    assert_string_equal(entry->name, "a");
    ++*(int *)user;
    return 0;
}

TEST(test_shared__what_nfs_calls_an_open_file_that_was_removed_is_no_object)
{
    char path[BED_PATH_BYTES], hidden[BED_PATH_BYTES + 32];
    int count = 0;
    bed_make_directory(path);
    struct storage *storage = open_shared(path);
    assert_int_equal(storage_publish(storage, "run/a", "a", 1), 0);
    snprintf(hidden, sizeof hidden, "%s/run/.nfs000000000001", path);
    int fd = open(hidden, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(storage_list(storage, "run", count_a, &count), 0);
    assert_int_equal(count, 1);
    assert_int_equal(storage_remove(storage, "run/a"), 0);
    assert_int_equal(storage_remove(storage, "run"), 0); /* whose client died goes along */
    storage_close(storage);
    bed_remove_directory(path);
}

SUITE(NULL, NULL)
