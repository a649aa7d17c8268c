/* storage_local.c - behaviour of the directory back-end alone.
 *
 * Goal: no path leads out of the store, one writer locks it, a full disk and refusals of the system
 * are handled. Method: a fresh directory per case; links, FIFOs and leftovers are planted by hand.
 * A full disk is a small tmpfs and a file system without O_DIRECT is a ramfs, mounted in a mount
 * namespace of a child (needs root, else the case is skipped); io_uring is refused, and syncs fail,
 * by a seccomp filter in a child. */
#include "storage/store/store.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define BYTES 65536u

static char directory[BED_PATH_BYTES], where[BED_PATH_BYTES + 8];

static int setup(void **state)
{
    (void)state;
    bed_make_directory(directory);
    snprintf(where, sizeof(where), "%s/store", directory);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bed_remove_directory(directory);
    return 0;
}

static struct storage *open_store_at(const char *place)
{
    struct storage *storage;
    int error = storage_open(&storage, &storage_local, place, NULL);
    if (error != 0)
        print_error("%s\n", report_line());
    assert_int_equal(error, 0);
    return storage;
}

static struct storage *open_store(void)
{
    return open_store_at(where);
}

static void path_in(char out[2 * BED_PATH_BYTES], const char *name)
{
    snprintf(out, 2 * BED_PATH_BYTES, "%s/%s", where, name);
}

static int count_entry(void *user, const struct storage_entry *entry)
{
    (void)entry;
    ++*(int *)user;
    return 0;
}

static int count_entries(struct storage *storage, const char *prefix)
{
    int count = 0;
    assert_int_equal(storage_list(storage, prefix, count_entry, &count), 0);
    return count;
}

/* Names really there, ours included. */
static int count_real_entries(const char *path)
{
    DIR *directory = opendir(path);
    assert_non_null(directory);
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

static void skip_child(void)
{
    fflush(stdout);
    _exit(77);
}

/* Runs `check` in a child; a failed CHECK there ends the child, and fails the case. */
static void in_child(void (*check)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        check();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

TEST_BETWEEN(test_local__open_makes_the_root_and_what_is_above_it, setup, teardown)
{
    char place[2 * BED_PATH_BYTES];
    struct stat status;
    path_in(place, "some/deep/place/");
    storage_close(open_store_at(place));
    assert_int_equal(stat(place, &status), 0);
    assert_true(S_ISDIR(status.st_mode));
    storage_close(open_store_at(place));
}

TEST_BETWEEN(test_local__open_refuses_a_path_that_is_no_directory, setup, teardown)
{
    struct storage *storage;
    int fd = open(where, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(storage_open(&storage, &storage_local, where, NULL), ERR_INVALID);
    assert_int_equal(storage_open(&storage, &storage_local, "", NULL), ERR_INVALID);
    assert_null(storage);
}

static char refusal[512]; /* of the last that was refused */

/* The mode that a daemon asks for; 0 or the error. Others open it with any mode. */
static int open_ours_alone(void)
{
    struct storage *storage;
    int error = storage_open(&storage, &storage_local, where,
                             &(struct storage_options){.is_ours_alone = true});
    if (error == 0)
        storage_close(storage);
    else
        snprintf(refusal, sizeof refusal, "%s", report_line());
    storage_close(open_store());
    CHECK(storage_open(&storage, &storage_local, where,
                       &(struct storage_options){.read_only = true}) == 0);
    storage_close(storage);
    return error;
}

TEST_BETWEEN(test_local__a_root_that_others_may_change_is_refused_to_who_asks, setup, teardown)
{
    static const struct {
        mode_t mode;
        int error;
    } cases[] = {{0700, 0},  {0755, 0},  {0775, ERR_DENIED},  {0777, ERR_DENIED},
                 {01777, 0}, {01775, 0}, {02775, ERR_DENIED}, {0757, ERR_DENIED}};
    mode_t before = umask(0);
    assert_int_equal(open_ours_alone(), 0); /* made now, and not for others to change */
    umask(before);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(chmod(where, cases[i].mode), 0);
        assert_int_equal(open_ours_alone(), cases[i].error);
        if (cases[i].error != 0)
            assert_true(strstr(refusal, where) && strstr(refusal, "chmod go-w"));
    }
}

TEST_BETWEEN(test_local__a_root_of_another_user_is_refused_to_who_asks, setup, teardown)
{
    storage_close(open_store());
    if (geteuid() != 0 || chown(where, 12345, 12345) != 0) {
        print_message("# skipped: giving a store to another user needs root\n");
        skip();
    }
    assert_int_equal(open_ours_alone(), ERR_DENIED);
    assert_true(strstr(refusal, where) && strstr(refusal, "user 12345"));
}

static void check_root_of_root(void)
{
    if (geteuid() != 0) {
        printf("# skipped: becoming another user needs root\n");
        skip_child();
    }
    CHECK(mkdir(where, 0755) == 0 &&
          chdir(where) == 0); /* the directories above are for root alone */
    CHECK(setgid(12345) == 0 && setuid(12345) == 0);
    struct storage *storage; /* the lock has to report that nothing can be written there */
    CHECK(storage_open(&storage, &storage_local, ".",
                       &(struct storage_options){.is_ours_alone = true}) == 0);
    storage_close(storage);
}

TEST_BETWEEN(test_local__a_root_of_root_is_refused_to_nobody, setup, teardown)
{
    in_child(check_root_of_root);
}

TEST_BETWEEN(test_local__read_only_store_creates_nothing, setup, teardown)
{
    struct storage *storage;
    struct storage_object *object;
    struct storage_options options = {.read_only = true};
    assert_int_equal(storage_open(&storage, &storage_local, where, &options), ERR_NOT_FOUND);
    storage = open_store();
    bed_put(storage, NULL, "a", BYTES, 1);
    storage_close(storage);
    int before = count_real_entries(where);
    assert_int_equal(storage_open(&storage, &storage_local, where, &options), 0);
    bed_expect(storage, "a", BYTES, 1);
    assert_int_equal(storage_object_create(storage, &object, "b", BYTES), ERR_DENIED);
    assert_int_equal(storage_publish(storage, "b", "x", 1), ERR_DENIED);
    assert_int_equal(storage_remove(storage, "a"), ERR_DENIED);
    assert_int_equal(storage_lock(storage), ERR_DENIED);
    storage_close(storage);
    assert_int_equal(count_real_entries(where), before);
}

TEST_BETWEEN(test_local__links_are_not_followed, setup, teardown)
{
    struct storage *storage = open_store();
    struct storage_object *object;
    uint64_t bytes;
    char path[2 * BED_PATH_BYTES], outside[2 * BED_PATH_BYTES];
    snprintf(outside, sizeof(outside), "%s/outside", directory);
    assert_int_equal(mkdir(outside, 0700), 0);
    assert_int_equal(storage_publish(storage, "real/file", "x", 1), 0);
    path_in(path, "out");
    assert_int_equal(symlink("../outside", path), 0);
    path_in(path, "in"); /* a link that stays inside is a link too */
    assert_int_equal(symlink("real", path), 0);
    path_in(path, "real/link");
    assert_int_equal(symlink("file", path), 0);
    const char *keys[] = {"out/file", "in/file", "real/link"};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(storage_fetch(storage, keys[i], NULL, 0, &bytes), ERR_DENIED);
    assert_int_equal(storage_object_open(storage, &object, "in/file", &bytes), ERR_DENIED);
    assert_int_equal(storage_object_create(storage, &object, "out/new", BYTES), ERR_DENIED);
    assert_int_equal(storage_publish(storage, "out/new", "x", 1), ERR_DENIED);
    assert_int_equal(storage_publish(storage, "out/dir/new", "x", 1), ERR_DENIED);
    assert_int_equal(storage_publish(storage, "real/link", "x", 1), ERR_EXISTS);
    assert_int_equal(storage_remove(storage, "in/file"), ERR_DENIED);
    assert_int_equal(storage_sync_names(storage, "in"), ERR_DENIED);
    int count = 0;
    assert_int_equal(storage_list(storage, "in", count_entry, &count), ERR_DENIED);
    assert_int_equal(count_entries(storage, "real"), 1);
    assert_int_equal(count_entries(storage, ""), 1);
    assert_int_equal(count_real_entries(outside), 0);
    storage_close(storage);
}

TEST_BETWEEN(test_local__a_planted_fifo_does_not_hang_a_reader, setup, teardown)
{
    struct storage *storage = open_store();
    uint64_t bytes;
    char path[2 * BED_PATH_BYTES];
    path_in(path, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(storage_fetch(storage, "fifo", NULL, 0, &bytes), ERR_NOT_FOUND);
    assert_int_equal(count_entries(storage, ""), 0);
    storage_close(storage);
}

TEST_BETWEEN(test_local__create_reserves_every_block, setup, teardown)
{
    struct storage *storage = open_store();
    struct storage_object *object;
    struct stat status;
    char path[2 * BED_PATH_BYTES];
    assert_int_equal(storage_object_create(storage, &object, "a", 1u << 20), 0);
    path_in(path, "a");
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 1u << 20);
    assert_true(status.st_blocks * 512 >= 1 << 20);
    storage_object_close(storage, object);
    storage_close(storage);
}

TEST_BETWEEN(test_local__leftovers_of_a_killed_publisher_are_hidden_and_go_with_their_directory,
             setup, teardown)
{
    struct storage *storage = open_store();
    char path[2 * BED_PATH_BYTES];
    assert_int_equal(storage_publish(storage, "run/a", "x", 1), 0);
    path_in(path, "run");
    assert_int_equal(count_real_entries(path), 1); /* no temporary name stays */
    path_in(path, "run/.holdfast.tmp.0123456789abcdef");
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(count_entries(storage, "run"), 1);
    assert_int_equal(storage_remove(storage, "run"), ERR_EXISTS);
    assert_int_equal(storage_remove(storage, "run/a"), 0);
    assert_int_equal(storage_remove(storage, "run"), 0);
    assert_int_equal(count_entries(storage, ""), 0);
    storage_close(storage);
}

/* ---- the lock ---- */

TEST_BETWEEN(test_local__lock_refuses_a_second_opener_and_names_the_first, setup, teardown)
{
    struct storage *first = open_store(), *second = open_store();
    char pid[32];
    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_int_equal(storage_lock(first), 0);
    assert_int_equal(storage_lock(second), ERR_BUSY);
    assert_non_null(strstr(report_message(), pid));
    assert_int_equal(count_entries(first, ""), 0); /* the lock file is not an object */
    storage_close(first);
    assert_int_equal(storage_lock(second), 0);
    storage_close(second);
}

TEST_BETWEEN(test_local__a_removed_lock_file_admits_nobody_and_is_made_again, setup, teardown)
{
    struct storage *first = open_store(), *second = open_store();
    char path[BED_PATH_BYTES + 32];
    snprintf(path, sizeof(path), "%s/" STORAGE_LOCK_NAME, where);
    assert_int_equal(storage_lock(first), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(storage_find_holder(second, NULL), 0);
    assert_int_equal(storage_lock(second), ERR_BUSY);
    for (int i = 0; i < 2000 && access(path, F_OK) != 0; i++)
        usleep(10000);
    assert_int_equal(storage_lock(second), ERR_BUSY);
    assert_int_equal(storage_publish(first, "a", "b", 1), 0);
    storage_close(first);
    assert_int_equal(storage_find_holder(second, NULL), ERR_NOT_FOUND);
    assert_int_equal(storage_lock(second), 0);
    storage_close(second);
}

/* As an older program does it, which locks the file alone. */
TEST_BETWEEN(test_local__whose_lock_file_another_made_changes_nothing_more, setup, teardown)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct storage *storage = open_store();
    char path[BED_PATH_BYTES + 32], key[16];
    int error = 0;
    snprintf(path, sizeof(path), "%s/" STORAGE_LOCK_NAME, where);
    assert_int_equal(storage_lock(storage), 0);
    assert_int_equal(unlink(path), 0);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
    for (int i = 0; i < 2000 && error == 0; i++) {
        snprintf(key, sizeof(key), "a%d", i);
        error = storage_publish(storage, key, "b", 1);
        usleep(10000);
    }
    assert_int_equal(error, ERR_STALE);
    close(fd);
    storage_close(storage);
}

/* ---- systems that refuse calls; each in a separate child ---- */

static void mount_or_skip(const char *type, const char *options, const char *where)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        (mkdir(where, 0700) != 0 && errno != EEXIST) || mount("none", where, type, 0, options)) {
        printf("# skipped: mounting a %s needs root\n", type);
        skip_child();
    }
}

static void check_full_disk(void)
{
    struct storage *storage;
    struct storage_object *object;
    struct storage_space space;
    uint64_t bytes;
    mount_or_skip("tmpfs", "size=4m,mode=700", where);
    CHECK(storage_open(&storage, &storage_local, where, NULL) == 0);
    CHECK(storage_space(storage, &space) == 0 && space.bytes_total == 4u << 20);
    CHECK(storage_object_create(storage, &object, "big", 8u << 20) == ERR_SPACE);
    CHECK(storage_fetch(storage, "big", NULL, 0, &bytes) == ERR_NOT_FOUND);
    CHECK(storage_object_create(storage, &object, "fits", 3u << 20) == 0);
    storage_object_close(storage, object);
    char *text = calloc(1, 2u << 20);
    CHECK(text != NULL);
    CHECK(storage_publish(storage, "manifest", text, 2u << 20) == ERR_SPACE);
    CHECK(storage_fetch(storage, "manifest", NULL, 0, &bytes) == ERR_NOT_FOUND);
    CHECK(count_real_entries(where) == 1); /* no temporary file stays either */
    CHECK(storage_remove(storage, "fits") == 0);
    CHECK(storage_publish(storage, "manifest", text, 2u << 20) == 0);
    CHECK(storage_lock(storage) == 0);
    free(text);
    storage_close(storage);
}

TEST_BETWEEN(test_local__full_disk_refuses_create_and_publish_and_leaves_nothing, setup, teardown)
{
    in_child(check_full_disk);
}

/* Whom a directory or a file of the store belongs to. */
static uid_t owner_of(const char *name)
{
    char path[2 * BED_PATH_BYTES];
    struct stat status;
    snprintf(path, sizeof(path), "%s/%s", where, name);
    CHECK(stat(path, &status) == 0);
    return status.st_uid;
}

/* A tool run as root takes the first lease in a store of another user, and locks it, before he
 * does. */
static void check_roots_lease(void)
{
    const uid_t uid = 12345;
    char run[2 * BED_PATH_BYTES];
    struct storage *storage;
    struct storage_object *object;
    struct storage_hold *root_lease, *lease;
    snprintf(run, sizeof(run), "%s/run", where);
    if (mkdir(where, 0755) != 0 || mkdir(run, 0755) != 0 || chown(where, uid, uid) != 0 ||
        chown(run, uid, uid) != 0) {
        printf("# skipped: giving a store to another user needs root\n");
        skip_child();
    }
    CHECK(storage_open(&storage, &storage_local, where, NULL) == 0);
    CHECK(store_lease(storage, &root_lease, "run/step-1", "root reads it") == 0);
    CHECK(store_put_note(storage, STORE_PIN, "run/step-1", "root keeps it") == 0);
    CHECK(owner_of("run/leases") == uid && owner_of("run/pins") == uid);
    CHECK(storage_object_create(storage, &object, "new/step/a", BYTES) == 0);
    storage_object_close(storage, object);
    CHECK(storage_lock(storage) == 0);
    CHECK(owner_of("new") == uid && owner_of("new/step") == uid);
    CHECK(owner_of("new/step/a") == uid && owner_of(".holdfast.lock") == uid);
    CHECK(setgid(uid) == 0 && setuid(uid) == 0);
    CHECK(store_lease(storage, &lease, "run/step-1", "its user reads it") == 0);
    CHECK(store_remove_note(storage, STORE_PIN, "run/step-1") == 0);
    storage_release(storage, lease);
    storage_release(storage, root_lease);
    storage_close(storage);
}

TEST_BETWEEN(test_local__what_root_makes_in_a_users_store_keeps_that_user_out_of_nothing, setup,
             teardown)
{
    in_child(check_roots_lease);
}

static void check_no_direct(void)
{
    struct storage *storage;
    struct storage_object *object;
    uint64_t bytes;
    mount_or_skip("ramfs", "mode=700", where);
    CHECK(storage_open(&storage, &storage_local, where, NULL) == 0);
    CHECK(strstr(storage_describe(storage), "page cache") != NULL);
    unsigned char *data = aligned_alloc(STORAGE_ALIGN, BYTES);
    unsigned char *back = aligned_alloc(STORAGE_ALIGN, BYTES);
    CHECK(data != NULL && back != NULL);
    bed_fill(data, BYTES, 3);
    CHECK(storage_object_create(storage, &object, "a", BYTES) == 0);
    CHECK(storage_fetch(storage, "a", NULL, 0, &bytes) == 0 && bytes == BYTES);
    CHECK(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES) == 0);
    CHECK(storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0) == 0);
    CHECK(storage_transfer(storage, STORAGE_READ, object, 0, back, BYTES) == 0);
    CHECK(memcmp(data, back, BYTES) == 0);
    storage_object_close(storage, object);
    memset(back, 0, BYTES);
    CHECK(storage_object_open(storage, &object, "a", &bytes) == 0);
    CHECK(storage_transfer(storage, STORAGE_READ, object, 0, back, BYTES) == 0);
    CHECK(memcmp(data, back, BYTES) == 0);
    storage_object_close(storage, object);
    CHECK(storage_publish(storage, "run/b", "x", 1) == 0);
    CHECK(storage_publish(storage, "run/b", "x", 1) == ERR_EXISTS);
    storage_close(storage);
    free(data);
    free(back);
}

TEST_BETWEEN(test_local__goes_through_the_page_cache_where_direct_io_is_refused, setup, teardown)
{
    in_child(check_no_direct);
}

/* From now on the kernel answers this system call by `action` (an errno, or a SIGSYS). */
static void filter_call(uint32_t call, uint32_t action)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(filter) / sizeof(filter[0]), .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        printf("# skipped: the kernel has no seccomp filters\n");
        skip_child();
    }
}

static void check_without_io_uring(void)
{
    struct storage *storage;
    struct storage_object *object;
    filter_call(SYS_io_uring_setup, SECCOMP_RET_ERRNO | EPERM); /* as container runtimes do */
    CHECK(storage_open(&storage, &storage_local, where, NULL) == 0);
    const char *text = storage_describe(storage);
    CHECK(strstr(text, "4 pwrite threads") != NULL);
    CHECK(strstr(text, "Operation not permitted") != NULL);
    unsigned char *data = aligned_alloc(STORAGE_ALIGN, BYTES);
    CHECK(data != NULL);
    bed_fill(data, BYTES, 3);
    CHECK(storage_object_create(storage, &object, "a", BYTES) == 0);
    CHECK(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES) == 0);
    CHECK(storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0) == 0);
    storage_object_close(storage, object);
    storage_close(storage);
    free(data);
}

TEST_BETWEEN(test_local__takes_threads_where_io_uring_is_refused_and_says_why, setup, teardown)
{
    in_child(check_without_io_uring);
    struct storage *storage = open_store();
    bed_expect(storage, "a", BYTES, 3);
    storage_close(storage);
}

TEST_BETWEEN(test_local__a_store_of_a_later_format_has_no_writer_here, setup, teardown)
{
    static const char *const later[] = {
        "1                   \nformat 3\n", "1                   \nformat 10\n",
        "1                   \nformat 20\n", "1                   \nformat ?"};
    char path[BED_PATH_BYTES + 32], text[64] = "";
    snprintf(path, sizeof(path), "%s/.holdfast.lock", where);
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        struct storage *storage = open_store();
        FILE *file = fopen(path, "we");
        assert_true(file != NULL && fputs(later[i], file) >= 0 && fclose(file) == 0);
        assert_int_equal(storage_lock(storage), ERR_VERSION);
        storage_close(storage);
    }
    assert_int_equal(unlink(path), 0);
    for (int life = 0; life < 3; life++) { /* made, then found, then made by the version before */
        struct storage *storage = open_store();
        FILE *file = life == 2 ? fopen(path, "we") : NULL;
        if (file != NULL)
            assert_true(fputs("1                   \nformat 1\n", file) >= 0 && fclose(file) == 0);
        assert_int_equal(storage_lock(storage), 0);
        file = fopen(path, "re");
        assert_true(file != NULL && fread(text, 1, sizeof(text) - 1, file) == 30);
        assert_string_equal(text + 20, "\nformat 2\n");
        fclose(file);
        storage_close(storage);
    }
}

/* A start that was cut short, or an operator, made the root and did not sync its name. */
static void check_name_of_the_root(void)
{
    struct storage *storage;
    struct storage_options options = {.force_pwrite = true};
    filter_call(SYS_fsync, SECCOMP_RET_ERRNO | EIO);
    CHECK(mkdir(where, 0755) == 0);
    CHECK(storage_open(&storage, &storage_local, where, &options) == ERR_IO);
}

TEST_BETWEEN(test_local__the_name_of_a_root_that_was_there_is_synced_too, setup, teardown)
{
    in_child(check_name_of_the_root);
}

static void check_root_below_what_is_not_ours(void)
{
    struct storage *storage;
    char path[BED_PATH_BYTES + 16];
    snprintf(path, sizeof(path), "%s/store", where);
    CHECK(mkdir(where, 0755) == 0 && mkdir(path, 0755) == 0);
    CHECK(chown(path, 65534, 65534) == 0 && chmod(where, 0711) == 0);
    char above[BED_PATH_BYTES + 16];
    snprintf(above, sizeof(above), "%s/..", where);
    CHECK(chmod(above, 0711) == 0);
    CHECK(setuid(65534) == 0);
    CHECK(storage_open(&storage, &storage_local, path, &(struct storage_options){0}) == 0);
    storage_close(storage);
}

TEST_BETWEEN(test_local__a_root_below_a_directory_that_it_may_not_read_is_opened, setup, teardown)
{
    if (geteuid() != 0) {
        print_message("# skipped: only root can become another user\n");
        skip();
    }
    in_child(check_root_below_what_is_not_ours);
}

SUITE(NULL, NULL)
