/* storage_store_leases.c - leases on checkpoints, and remains without a holder.
 *
 * Goal: checkpoints that are being read or written are not removed. A lease lasts as long as its
 * holder, and at least one of holder and remover sees the other. Remains of crashes are found and
 * removed. Method: separate processes hold leases, and drop them when killed. The storage
 * operations of leases and rubbish removal fail, and lose power, at each operation. */
#include "storage/engine/backend.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

static char path[BED_PATH_BYTES];
static struct storage *storage; /* of that directory, with a checkpoint in it */

static int set_up(void **state)
{
    (void)state;
    bed_make_directory(path);
    storage = open_local(path, false);
    return make_checkpoint(storage);
}

static int tear_down(void **state)
{
    (void)state;
    storage_close(storage);
    bed_remove_directory(path);
    return 0;
}

/* ---- leases ---- */

/* Leases the checkpoint, reports it, and waits to be killed. */
static void read_until_killed(const char *place, int fd)
{
    struct storage_hold *hold;
    char answer =
        store_lease(open_local(place, true), &hold, GROUP, "a reader") == 0 && hold ? 'y' : 'n';
    if (write(fd, &answer, 1) == 1)
        pause();
    _exit(1);
}

/* This program once more, with its answer on a pipe. */
static pid_t start_reader(void)
{
    int ends[2];
    pid_t pid;
    char answer = '?', self[] = "/proc/self/exe", mode[] = "reader";
    char *argv[] = {self, mode, (char *)(uintptr_t)path, NULL};
    posix_spawn_file_actions_t actions;
    assert_int_equal(pipe(ends), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    assert_int_equal(posix_spawn(&pid, self, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    assert_int_equal(read(ends[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    close(ends[0]);
    return pid;
}

static int count_step(void *user, const struct storage_entry *entry)
{
    assert_string_equal(entry->name, STEP);
    ++*(int *)user;
    return 0;
}

static int count_leased(struct storage *of)
{
    int count = 0;
    assert_int_equal(store_for_leases(of, "run", count_step, &count), 0);
    return count;
}

TEST_BETWEEN(test_leases__a_lease_lasts_as_long_as_its_holder, set_up, tear_down)
{
    struct storage_hold *hold;
    assert_int_equal(storage_lock(storage), 0);
    pid_t reader = start_reader();
    assert_int_equal(store_lease(storage, &hold, GROUP, "another"), 0);
    assert_int_equal(count_leased(storage), 2);
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "a process reads it"));
    storage_release(storage, hold);
    assert_int_equal(count_leased(storage), 1);
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    kill(reader, SIGKILL);
    assert_int_equal(waitpid(reader, NULL, 0), reader);
    assert_int_equal(count_names(storage, "run/leases"), 1); /* a file that no process locks */
    assert_int_equal(count_leased(storage), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/leases"), 0);
}

/* The lock is free, so the tombstone is of an interrupted removal: it does not block a pin, and the
 * pin blocks the removal. */
TEST_BETWEEN(test_leases__a_pin_outlives_a_tombstone_that_a_crash_left, set_up, tear_down)
{
    struct storage *remover = open_local(path, false);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(storage_lock(remover), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "late"), ERR_NOT_FOUND);
    storage_close(remover);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "in time"), 0);
    remover = open_local(path, false);
    assert_int_equal(storage_lock(remover), 0);
    assert_int_equal(store_remove(remover, GROUP), ERR_DENIED);
    assert_int_equal(store_recover_run(remover, "run"), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(count_names(storage, "run/pins"), 1);
    storage_close(remover);
}

/* ---- removers without the lock ---- */

/* A remover's store, in which `storage` does something at a point of the removal. */
static struct storage_ops hooked;
static int granted;

static int lease_behind_marker(struct storage *remover, const char *key)
{
    struct storage_hold *hold = NULL;
    if (strcmp(key, MANIFEST) == 0) {
        assert_int_equal(store_recover_run(storage, "run"), 0);
        granted += store_lease(storage, &hold, GROUP, "late") == 0;
        storage_release(storage, hold);
        granted += store_put_note(storage, STORE_PIN, GROUP, "late") == 0;
        assert_non_null(strstr(report_line(), "being removed"));
    }
    return storage_local.remove(remover, key);
}

static int forget_hold(void *user, const struct storage_entry *entry)
{
    char key[STORAGE_KEY_MAX + 1];
    snprintf(key, sizeof(key), "run/tombstones/%s", entry->name);
    (void)user;
    return strchr(entry->name, '.') ? storage_remove(storage, key) : 0;
}

static int lose_hold(struct storage *remover, const char *prefix,
                     int (*visit)(void *user, const struct storage_entry *entry), void *user)
{
    if (strcmp(prefix, "run/leases") == 0)
        assert_int_equal(storage_list(storage, "run/tombstones", forget_hold, NULL), 0);
    return storage_local.list(remover, prefix, visit, user);
}

static struct storage *open_remover(void)
{
    struct storage *remover = open_local(path, false);
    hooked = storage_local;
    ((struct storage_base *)remover)->ops = &hooked;
    granted = 0;
    return remover;
}

/* Also when another process has taken the tombstone for a crash's remains. */
TEST_BETWEEN(test_leases__a_remover_without_the_lock_is_seen_until_the_marker_is_gone, set_up,
             tear_down)
{
    struct storage *remover = open_remover();
    hooked.remove = lease_behind_marker;
    assert_int_equal(store_remove(remover, GROUP), 0);
    assert_int_equal(granted, 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/pins"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(remover);
}

/* As by a bucket's clock, for a process that was stopped, or by a server that forgot its locks. */
TEST_BETWEEN(test_leases__a_remover_that_has_lost_its_hold_removes_nothing, set_up, tear_down)
{
    struct storage *remover = open_remover();
    hooked.list = lose_hold;
    assert_int_equal(store_remove(remover, GROUP), ERR_STALE);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(remover);
}

/* Recovery by others leaves the tombstone while its maker lives, and afterwards completes the
 * removal. */
TEST_BETWEEN(test_leases__what_a_remover_without_the_lock_left_is_recovered_when_it_has_died,
             set_up, tear_down)
{
    static const char held[] = "run/tombstones/step-00000001-a0001.0123456789abcdef";
    struct storage_hold *hold, *lease;
    struct storage *other = open_local(path, false);
    assert_int_equal(storage_hold(storage, &hold, held, "", 0), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(store_recover_run(other, "run"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 2);
    assert_int_equal(store_lease(other, &lease, GROUP, ""), ERR_NOT_FOUND);
    storage_leave(storage, hold);
    assert_int_equal(store_lease(other, &lease, GROUP, ""), 0);
    assert_int_equal(store_recover_run(other, "run"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_true(is_whole(storage));
    storage_release(other, lease);
    storage_close(other);
}

/* A directory has the name of the note: it is no note, and no caller gets one. */
TEST_BETWEEN(test_leases__what_has_the_name_of_a_pin_is_none, set_up, tear_down)
{
    assert_int_equal(storage_publish(storage, "run/pins/step-00000001-a0001/x", "", 0), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "keep it"), ERR_IO);
    assert_non_null(strstr(report_line(), "pins/step-00000001-a0001 cannot be made"));
    assert_int_equal(store_find_note(storage, STORE_PIN, GROUP, NULL, 0), ERR_NOT_FOUND);
}

/* A tombstone means a removal only while a process can be removing. */
TEST_BETWEEN(test_leases__a_lease_is_refused_while_a_removal_is_under_way, set_up, tear_down)
{
    struct storage_hold *hold;
    struct storage *reader = open_local(path, true);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(store_lease(reader, &hold, GROUP, ""), 0); /* a crash left it */
    storage_release(reader, hold);
    assert_int_equal(storage_lock(storage), 0);
    assert_int_equal(store_lease(reader, &hold, GROUP, ""), ERR_NOT_FOUND);
    assert_null(hold);
    assert_non_null(strstr(report_line(), "being removed"));
    assert_int_equal(count_names(storage, "run/leases"), 0);
    storage_close(reader);
}

/* A writer of a checkpoint leases it, too: until there is a manifest, or the writer is gone. */
TEST_BETWEEN(test_leases__one_without_a_marker_goes_when_nobody_leases_it, set_up, tear_down)
{
    struct store_rubbish_list list = {0};
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    assert_int_equal(list.count, 0);
    assert_int_equal(store_clear(storage, GROUP), 0);
    assert_true(is_whole(storage)); /* it has a manifest */
    pid_t writer = start_reader();
    assert_int_equal(make_unfinished(storage), 0);
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    assert_int_equal(list.count, 0);
    assert_int_equal(store_clear(storage, GROUP), ERR_DENIED);
    assert_int_equal(count_names(storage, GROUP), SHARDS + 1);
    kill(writer, SIGKILL);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    assert_int_equal(list.count, 2); /* and the file of its lease */
    assert_int_equal(list.items[0].what, STORE_UNFINISHED);
    assert_int_equal(list.items[0].files, SHARDS);
    assert_int_equal(list.items[0].bytes, SHARDS * BYTES);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(store_rubbish_remove(storage, &list.items[i]), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/leases"), 0);
    store_rubbish_free(&list);
}

/* A reader in another process; `settings` are those of the remover. False when the failing
 * operation was never reached. */
static bool refuse_leased(const char *settings, unsigned at)
{
    char path[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *reader = open_local(path, false);
    assert_int_equal(make_checkpoint(reader), 0);
    assert_int_equal(store_lease(reader, &hold, GROUP, "a reader"), 0);
    snprintf(where, sizeof(where), "seed=%u,%s=%u:local:%s", at, settings, at, path);
    struct storage *storage = open_fault(where);
    int error = store_remove(storage, GROUP);
    assert_true(error == ERR_DENIED || error == ERR_IO);
    bool is_reached = storage_fault_operations(storage) >= at;
    assert_int_equal(storage_fault_crash(storage), 0);
    storage_close(storage);
    assert_true(is_whole(reader));
    assert_int_equal(count_leased(reader), 1);
    storage_release(reader, hold);
    assert_int_equal(store_remove(reader, GROUP), 0);
    assert_int_equal(count_names(reader, GROUP), 0);
    storage_close(reader);
    bed_remove_directory(path);
    return is_reached;
}

TEST(test_leases__what_is_leased_stays_whatever_fails)
{
    unsigned at = 1;
    while (refuse_leased("fail_at", at))
        assert_true(refuse_leased("fail_from", at++));
    assert_true(at > 5); /* list, tombstone, pin, quarantine, leases, holder */
}

/* A reader has a lease that a removal sees, or an error; a power loss ends the lease. */
static bool lease_over(const char *settings, unsigned at)
{
    char path[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *plain = open_local(path, false);
    assert_int_equal(make_checkpoint(plain), 0);
    snprintf(where, sizeof(where), "seed=%u,%s=%u:local:%s", at, settings, at, path);
    struct storage *storage = open_fault(where);
    int error = store_lease(storage, &hold, GROUP, "a reader");
    assert_int_equal(error == 0, hold != NULL);
    assert_int_equal(count_leased(plain), error == 0);
    assert_true(error == 0 || error == ERR_IO);
    if (error == 0)
        assert_int_equal(store_remove(plain, GROUP), ERR_DENIED);
    bool is_reached = storage_fault_operations(storage) >= at;
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(store_remove(plain, GROUP), 0);
    assert_int_equal(count_names(plain, "run/leases"), 0);
    storage_release(storage, hold);
    storage_close(storage);
    storage_close(plain);
    bed_remove_directory(path);
    return is_reached;
}

TEST(test_leases__a_lease_is_seen_or_refused_whatever_fails)
{
    unsigned at = 1;
    while (lease_over("fail_at", at))
        assert_true(lease_over("fail_from", at++));
    assert_int_equal(at, 4); /* hold, removers, tombstone */
}

static void check_without_marker(enum store_note note, const char *said)
{
    struct storage *storage = open_fault("lost=1:memory:");
    struct store_rubbish_list list = {0};
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_put_note(storage, note, GROUP, "keep it"), 0);
    assert_int_equal(storage_remove(storage, MANIFEST), 0);
    assert_int_equal(store_clear(storage, GROUP), ERR_DENIED);
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].what, STORE_UNKNOWN);
    assert_non_null(strstr(store_rubbish_reason(&list.items[0]), said));
    assert_int_equal(store_rubbish_remove(storage, &list.items[0]), ERR_CORRUPT);
    assert_int_equal(count_names(storage, GROUP), SHARDS);
    store_rubbish_free(&list);
    assert_int_equal(store_remove_note(storage, note, GROUP), 0);
    assert_int_equal(store_clear(storage, GROUP), ERR_DENIED); /* nothing proves it rubbish */
    assert_int_equal(store_erase(storage, GROUP), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    /* A note on nothing at all goes. */
    assert_int_equal(store_put_note(storage, note, GROUP, "keep it"), 0);
    assert_int_equal(store_rubbish_find(&list, storage, "run"), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].what, STORE_STALE);
    store_rubbish_free(&list);
    storage_close(storage);
}

/* Its manifest was lost after the note was made: its remains are no rubbish, nor is the note. */
TEST(test_leases__what_is_noted_stays_without_its_marker)
{
    check_without_marker(STORE_PIN, "pinned");
    check_without_marker(STORE_QUARANTINE, "quarantine");
}

/* ---- rubbish ---- */

/* A checkpoint without a manifest, notes and a lease on none, and remains of a publication. */
static void make_rubbish(struct storage *storage, const char *path)
{
    static const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    char name[BED_PATH_BYTES + 64];
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(make_unfinished(storage), 0);
    assert_int_equal(storage_publish(storage, "run/step-00000002-a0001/manifest.json", "{}", 2), 0);
    assert_int_equal(storage_publish(storage, "run/pins/step-00000008-a0001", "", 0), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-00000007-a0001", "", 0), 0);
    assert_int_equal(
        storage_publish(storage, "run/leases/step-00000002-a0001.0123456789abcdef", "", 0), 0);
    snprintf(name, sizeof(name), "%s/run/.holdfast.tmp.0123456789abcdef", path);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(utimensat(AT_FDCWD, name, old, 0), 0);
}

/* How much of it was found; with `must_work` all of that goes. */
static size_t collect(struct storage *storage, bool must_work)
{
    struct store_rubbish_list list = {0};
    int error = store_rubbish_find(&list, storage, "run");
    assert_true(error == 0 || !must_work);
    for (size_t i = 0; i < list.count && error == 0; i++) {
        int failed = store_rubbish_remove(storage, &list.items[i]);
        assert_true(failed == 0 || !must_work);
    }
    size_t count = list.count;
    store_rubbish_free(&list);
    return count;
}

static bool cut_collection(unsigned at)
{
    char path[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    bed_make_directory(path);
    struct storage *plain = open_local(path, false);
    make_rubbish(plain, path);
    snprintf(where, sizeof(where), "seed=%u,late=1,fail_from=%u:local:%s", at, at, path);
    struct storage *storage = open_fault(where);
    collect(storage, false);
    bool is_reached = storage_fault_operations(storage) >= at;
    assert_int_equal(storage_fault_crash(storage), 0);
    storage_close(storage);
    collect(plain, true);
    assert_int_equal(collect(plain, true), 0);
    assert_int_equal(count_names(plain, GROUP), 0);
    assert_true(bed_exists(plain, "run/step-00000002-a0001/manifest.json"));
    storage_close(plain);
    bed_remove_directory(path);
    return is_reached;
}

TEST(test_leases__rubbish_goes_after_a_power_cut_anywhere_in_its_removal)
{
    unsigned at = 1;
    while (cut_collection(at))
        at++;
    assert_true(at > 25);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "reader") == 0)
        read_until_killed(argv[2], 1);
    tell_in_memory();
    return suite_run(NULL, NULL);
}
