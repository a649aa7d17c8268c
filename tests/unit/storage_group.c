/* storage_group.c - the removal of a group: whole or gone, whatever happens in between.
 *
 * Goal: at no point of a removal is there a marker without its objects; what is pinned, damaged or
 * being read is not removed; a removal that was cut short can be made again. Method: every
 * operation of a removal fails once, and the power is lost after each, with all, half or nothing of
 * what was not synced; leases are held, and dropped by a kill, in a process of their own. What
 * leases and rubbish ask of the storage fails and is cut likewise.
 * also without io_uring
 */
#include "tests/fault/storage_fault.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/storage_bed.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#define SHARDS 3
#define BYTES STORAGE_ALIGN

static bool is_ours(const char *name)
{
    return strncmp(name, "shard-", 6) == 0;
}

static bool is_group(const char *name)
{
    return strncmp(name, "step-", 5) == 0;
}

#define GROUP "run/step-1"
static const struct storage_group_kind kind = {
    .marker = "manifest", .is_ours = is_ours, .is_group = is_group};

static struct storage *open_fault(const char *where)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_fault, where, NULL), 0);
    return storage;
}

/* A group as a save leaves it. */
static int make_group(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        struct storage_object *object;
        char key[64];
        snprintf(key, sizeof(key), "run/step-1/shard-%d", i);
        int error = storage_object_create(storage, &object, key, BYTES);
        if (error != 0)
            return error;
        error = storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
        storage_object_close(storage, object);
        if (error != 0)
            return error;
    }
    int error = storage_sync_names(storage, "run/step-1");
    return error == 0 ? storage_publish(storage, "run/step-1/manifest", "{}", 2) : error;
}

static bool is_whole(struct storage *storage)
{
    for (int i = 0; i < SHARDS; i++) {
        char key[64];
        snprintf(key, sizeof(key), "run/step-1/shard-%d", i);
        if (!bed_exists(storage, key))
            return false;
    }
    return bed_exists(storage, "run/step-1/manifest");
}

static int count_name(void *user, const struct storage_entry *entry)
{
    *(int *)user += strcmp(entry->name, STORAGE_RESERVE) != 0;
    return 0;
}

static int count_names(struct storage *storage, const char *prefix)
{
    int count = 0;
    assert_int_equal(storage_list(storage, prefix, count_name, &count), 0);
    return count;
}

static void test_group__goes_whole_and_leaves_nothing(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, "run/step-1"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP),
                     0); /* nothing is there: nothing to do */
    storage_close(storage);
}

/* On a disk without room for a file the reserve goes for the tombstone, and comes back. */
static void test_group__goes_where_nothing_can_be_made(void **state)
{
    (void)state;
    for (int at = 3; at <= 4; at++) { /* after manifest and reserve; 4: it does without */
        char text[64];
        snprintf(text, sizeof(text), "only=publish,fail_at=%d,errno=%d:memory:", at, ENOSPC);
        struct storage *storage = open_fault(text);
        assert_int_equal(make_group(storage), 0);
        assert_int_equal(storage_groups_prepare(storage, "run"), 0);
        assert_true(bed_exists(storage, "run/tombstones/reserve"));
        assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
        assert_int_equal(count_names(storage, "run/step-1"), 0);
        assert_true(bed_exists(storage, "run/tombstones/reserve"));
        assert_int_equal(storage_groups_recover(storage, &kind, "run"), 0); /* it is no tombstone */
        assert_true(bed_exists(storage, "run/tombstones/reserve"));
        storage_close(storage);
    }
    struct storage *storage = open_fault("only=publish,fail_from=3,errno=28:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_groups_prepare(storage, "run"), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_SPACE);
    assert_true(is_whole(storage)); /* somebody else took what the reserve was */
    storage_close(storage);
}

/* A removal that spends the reserve and is refused then leaves all as it was. */
static void test_group__a_refused_removal_gives_the_reserve_back(void **state)
{
    (void)state;
    struct storage *storage = open_fault("only=publish,fail_at=4,errno=28:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_groups_prepare(storage, "run"), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "keep it"), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "is in pins"));
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_true(bed_exists(storage, "run/tombstones/reserve"));
    storage_close(storage);
}

static int check_pin(void *user, const struct storage_entry *entry)
{
    (void)user;
    assert_string_equal(entry->name, "step-1");
    return 0;
}

static void test_group__what_is_pinned_stays_until_it_is_unpinned(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_group_unnote(storage, STORAGE_PIN, GROUP), ERR_NOT_FOUND);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "for the paper"), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "again"), ERR_EXISTS);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "run/step-1 is in pins"));
    assert_int_equal(storage_group_find_note(storage, STORAGE_PIN, GROUP, NULL, 0), 0);
    assert_int_equal(storage_groups_noted(storage, STORAGE_PIN, "run", check_pin, NULL), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_group_unnote(storage, STORAGE_PIN, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    assert_int_equal(count_names(storage, "run/step-1"), 0);
    storage_close(storage);
}

/* The removal stands between tombstone and marker: a pin comes too late, and says so. */
static void test_group__a_pin_sees_the_removal_under_way(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-1", "", 0), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "too late"), ERR_NOT_FOUND);
    assert_non_null(strstr(report_line(), "is being removed"));
    assert_int_equal(count_names(storage, "run/pins"), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    storage_close(storage);
}

/* A reader that had leased the group until its tombstone came has left a file in it. */
static int publish_late(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    int error = strncmp(key, "run/tombstones/", 15) == 0
                    ? storage_memory.publish(storage, GROUP "/shard-of-a-reader", "", 0)
                    : 0;
    return error == 0 ? storage_memory.publish(storage, key, data, bytes) : error;
}

static void test_group__what_a_reader_left_in_it_until_the_tombstone_goes_too(void **state)
{
    (void)state;
    struct storage_ops late = storage_memory;
    struct storage *storage;
    late.publish = publish_late;
    for (int is_told = 0; is_told < 2; is_told++) {
        assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
        assert_int_equal(make_group(storage), 0);
        ((struct storage_base *)storage)->ops = &late;
        assert_int_equal(
            (is_told ? storage_group_erase : storage_group_remove)(storage, &kind, GROUP), 0);
        assert_int_equal(count_names(storage, "run/step-1"), 0);
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
        storage_close(storage);
    }
}

static void test_group__what_is_in_quarantine_stays_with_the_reason(void **state)
{
    (void)state;
    char text[16];
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(
        storage_group_find_note(storage, STORAGE_QUARANTINE, GROUP, text, sizeof(text)),
        ERR_NOT_FOUND);
    assert_string_equal(text, "");
    assert_int_equal(storage_group_note(storage, STORAGE_QUARANTINE, GROUP, "block 7 is damaged"),
                     0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(
        storage_group_find_note(storage, STORAGE_QUARANTINE, GROUP, text, sizeof(text)), 0);
    assert_string_equal(text, "block 7 is dama"); /* cut to what fits */
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "run/step-1 is in quarantine"));
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_group_unnote(storage, STORAGE_QUARANTINE, GROUP), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    storage_close(storage);
}

/* ---- the trash ---- */

static int keep_item(void *user, const struct storage_trashed *item)
{
    *(struct storage_trashed *)user = *item;
    return 0;
}

static struct storage *open_memory(void)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    return storage;
}

static void test_group__what_is_held_does_not_go_into_the_trash(void **state)
{
    (void)state;
    struct storage *storage = open_memory();
    assert_int_equal(make_group(storage), 0);
    for (int kept = STORAGE_PIN; kept <= STORAGE_QUARANTINE; kept++) {
        assert_int_equal(storage_group_note(storage, (enum storage_note)kept, GROUP, "keep"), 0);
        assert_int_equal(storage_trash_put(storage, GROUP, 1000, false), ERR_DENIED);
        assert_true(is_whole(storage));
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
        assert_int_equal(storage_group_unnote(storage, (enum storage_note)kept, GROUP), 0);
    }
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "keep"), 0);
    uint64_t count;
    assert_int_equal(storage_trash_put_all(storage, &kind, "run", 1000, &count), ERR_DENIED);
    assert_true(is_whole(storage) && count == 0);
    storage_close(storage);
}

static void test_group__the_trash_holds_it_whole_until_it_is_taken_back_or_emptied(void **state)
{
    (void)state;
    struct storage *storage = open_memory();
    struct storage_trashed item = {.seconds = 0}, newer = {.seconds = 0};
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_QUARANTINE, GROUP, "block 7"), 0);
    assert_int_equal(storage_trash_put(storage, GROUP, 1000, true), 0); /* a person names it */
    assert_false(bed_exists(storage, GROUP "/manifest"));
    assert_int_equal(count_names(storage, "run/quarantine"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_trash_list(storage, "run", keep_item, &item), 0);
    assert_true(item.seconds == 1000 && item.files == SHARDS + 1 &&
                item.bytes == SHARDS * BYTES + 2);
    assert_string_equal(item.group, GROUP);
    assert_int_equal(make_group(storage), 0); /* another one has its name */
    assert_int_equal(storage_trash_take(storage, &item), ERR_EXISTS);
    assert_int_equal(storage_trash_put(storage, GROUP, 1000, false), 0); /* in the same second */
    newer = item;
    snprintf(newer.key, sizeof(newer.key), "run/trash/step-1.1001");
    assert_int_equal(storage_trash_take(storage, &newer), 0);
    assert_true(is_whole(storage));
    assert_int_equal(storage_group_discard(storage, &kind, item.key), 0);
    assert_int_equal(count_names(storage, "run/trash"), 0);
    assert_true(is_whole(storage));
    storage_close(storage);
}

static void test_group__the_term_of_the_trash_is_in_the_store(void **state)
{
    (void)state;
    struct storage *storage = open_memory();
    uint64_t seconds = 1;
    assert_int_equal(storage_trash_term(storage, "run", &seconds), 0);
    assert_true(seconds == 0);
    for (uint64_t term = 0; term <= 604800; term += 302400) {
        assert_int_equal(storage_trash_set_term(storage, "run", term), 0);
        assert_int_equal(storage_trash_term(storage, "run", &seconds), 0);
        assert_true(seconds == term);
    }
    assert_int_equal(storage_trash_set_term(storage, "run", 0), 0);
    assert_int_equal(count_names(storage, "run/trash"), 0);
    storage_close(storage);
}

/* ---- leases, on a directory ---- */

static struct storage *open_local(const char *path, bool read_only)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_local, path,
                                  &(struct storage_options){.read_only = read_only}),
                     0);
    return storage;
}

/* Leases the group, says so, and waits to be killed. */
static void read_until_killed(const char *path, int fd)
{
    struct storage *storage = open_local(path, true);
    struct storage_hold *hold;
    char answer = storage_group_lease(storage, &hold, GROUP, "a reader") == 0 && hold ? 'y' : 'n';
    if (write(fd, &answer, 1) == 1)
        pause();
    _exit(1);
}

/* This program once more, with its answer on a pipe. */
static pid_t start_reader(const char *path)
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
    assert_string_equal(entry->name, "step-1");
    ++*(int *)user;
    return 0;
}

static int count_leased(struct storage *storage)
{
    int count = 0;
    assert_int_equal(storage_groups_leased(storage, "run", count_step, &count), 0);
    return count;
}

static void test_group__a_lease_lasts_as_long_as_its_holder(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *storage = open_local(path, false);
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_lock(storage), 0);
    pid_t reader = start_reader(path);
    assert_int_equal(storage_group_lease(storage, &hold, GROUP, "another"), 0);
    assert_int_equal(count_leased(storage), 2);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "somebody reads it"));
    storage_release(storage, hold);
    assert_int_equal(count_leased(storage), 1);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    kill(reader, SIGKILL);
    assert_int_equal(waitpid(reader, NULL, 0), reader);
    assert_int_equal(count_names(storage, "run/leases"), 1); /* a file that nobody holds */
    assert_int_equal(count_leased(storage), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    assert_int_equal(count_names(storage, "run/step-1"), 0);
    assert_int_equal(count_names(storage, "run/leases"), 0);
    storage_close(storage);
    bed_remove_directory(path);
}

/* Nobody has the lock, so the tombstone is of a removal that was cut short: that is no obstacle to
 * a pin, and the pin is one to the removal. */
static void test_group__a_pin_outlives_a_tombstone_that_a_crash_left(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES];
    bed_make_directory(path);
    struct storage *storage = open_local(path, false), *remover = open_local(path, false);
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-1", "", 0), 0);
    assert_int_equal(storage_lock(remover), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "late"), ERR_NOT_FOUND);
    storage_close(remover);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "in time"), 0);
    remover = open_local(path, false);
    assert_int_equal(storage_lock(remover), 0);
    assert_int_equal(storage_group_remove(remover, &kind, GROUP), ERR_DENIED);
    assert_int_equal(storage_groups_recover(remover, &kind, "run"), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(count_names(storage, "run/pins"), 1);
    storage_close(remover);
    storage_close(storage);
    bed_remove_directory(path);
}

/* A directory has the name of the note: that is none, and nobody is told that there is one. */
static void test_group__what_has_the_name_of_a_pin_is_none(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES];
    bed_make_directory(path);
    struct storage *storage = open_local(path, false);
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/pins/step-1/x", "", 0), 0);
    assert_int_equal(storage_group_note(storage, STORAGE_PIN, GROUP, "keep it"), ERR_IO);
    assert_non_null(strstr(report_line(), "pins/step-1 cannot be made"));
    assert_int_equal(storage_group_find_note(storage, STORAGE_PIN, GROUP, NULL, 0), ERR_NOT_FOUND);
    storage_close(storage);
    bed_remove_directory(path);
}

/* A tombstone means a removal only while somebody can be removing. */
static void test_group__a_lease_is_refused_while_a_removal_is_under_way(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *storage = open_local(path, false), *reader = open_local(path, true);
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-1", "", 0), 0);
    assert_int_equal(storage_group_lease(reader, &hold, GROUP, ""), 0); /* a crash left it */
    storage_release(reader, hold);
    assert_int_equal(storage_lock(storage), 0);
    assert_int_equal(storage_group_lease(reader, &hold, GROUP, ""), ERR_NOT_FOUND);
    assert_null(hold);
    assert_non_null(strstr(report_line(), "being removed"));
    assert_int_equal(count_names(storage, "run/leases"), 0);
    storage_close(reader);
    storage_close(storage);
    bed_remove_directory(path);
}

/* Who writes a group leases it, too: until there is a marker, or the writer is gone. */
static void test_group__one_without_a_marker_goes_when_nobody_leases_it(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES];
    struct storage_rubbish_list list = {0};
    bed_make_directory(path);
    struct storage *storage = open_local(path, false);
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_rubbish_find(&list, storage, &kind, "run"), 0);
    assert_int_equal(list.count, 0);
    assert_int_equal(storage_group_clear(storage, &kind, GROUP), 0);
    assert_true(is_whole(storage)); /* it has a marker */
    pid_t writer = start_reader(path);
    assert_int_equal(storage_remove(storage, GROUP "/manifest"), 0);
    assert_int_equal(storage_rubbish_find(&list, storage, &kind, "run"), 0);
    assert_int_equal(list.count, 0);
    assert_int_equal(storage_group_clear(storage, &kind, GROUP), ERR_DENIED);
    assert_int_equal(count_names(storage, GROUP), SHARDS);
    kill(writer, SIGKILL);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    assert_int_equal(storage_rubbish_find(&list, storage, &kind, "run"), 0);
    assert_int_equal(list.count, 2); /* and the file of its lease */
    assert_int_equal(list.items[0].what, STORAGE_UNFINISHED);
    assert_int_equal(list.items[0].files, SHARDS);
    assert_int_equal(list.items[0].bytes, SHARDS * BYTES);
    for (size_t i = 0; i < list.count; i++)
        assert_int_equal(storage_rubbish_remove(storage, &kind, &list.items[i]), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/leases"), 0);
    storage_rubbish_free(&list);
    storage_close(storage);
    bed_remove_directory(path);
}

/* A reader in another process; `settings` of the one that removes. False when what fails was never
 * reached. */
static bool refuse_leased(const char *settings, unsigned at)
{
    char path[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *reader = open_local(path, false);
    assert_int_equal(make_group(reader), 0);
    assert_int_equal(storage_group_lease(reader, &hold, GROUP, "a reader"), 0);
    snprintf(where, sizeof(where), "seed=%u,%s=%u:local:%s", at, settings, at, path);
    struct storage *storage = open_fault(where);
    int error = storage_group_remove(storage, &kind, GROUP);
    assert_true(error == ERR_DENIED || error == ERR_IO);
    bool is_reached = storage_fault_operations(storage) >= at;
    assert_int_equal(storage_fault_crash(storage), 0);
    storage_close(storage);
    assert_true(is_whole(reader));
    assert_int_equal(count_leased(reader), 1);
    storage_release(reader, hold);
    assert_int_equal(storage_group_remove(reader, &kind, GROUP), 0);
    assert_int_equal(count_names(reader, GROUP), 0);
    storage_close(reader);
    bed_remove_directory(path);
    return is_reached;
}

static void test_group__what_is_leased_stays_whatever_fails(void **state)
{
    (void)state;
    unsigned at = 1;
    while (refuse_leased("fail_at", at))
        assert_true(refuse_leased("fail_from", at++));
    assert_true(at > 5); /* list, tombstone, pin, quarantine, leases, holder */
}

/* Who reads has a lease that a removal sees, or an error; the power ends it. */
static bool lease_over(const char *settings, unsigned at)
{
    char path[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(path);
    struct storage *plain = open_local(path, false);
    assert_int_equal(make_group(plain), 0);
    snprintf(where, sizeof(where), "seed=%u,%s=%u:local:%s", at, settings, at, path);
    struct storage *storage = open_fault(where);
    int error = storage_group_lease(storage, &hold, GROUP, "a reader");
    assert_int_equal(error == 0, hold != NULL);
    assert_int_equal(count_leased(plain), error == 0);
    assert_true(error == 0 || error == ERR_IO);
    if (error == 0)
        assert_int_equal(storage_group_remove(plain, &kind, GROUP), ERR_DENIED);
    bool is_reached = storage_fault_operations(storage) >= at;
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_group_remove(plain, &kind, GROUP), 0);
    assert_int_equal(count_names(plain, "run/leases"), 0);
    storage_release(storage, hold);
    storage_close(storage);
    storage_close(plain);
    bed_remove_directory(path);
    return is_reached;
}

static void test_group__a_lease_is_seen_or_refused_whatever_fails(void **state)
{
    (void)state;
    unsigned at = 1;
    while (lease_over("fail_at", at))
        assert_true(lease_over("fail_from", at++));
    assert_int_equal(at, 3); /* hold, tombstone */
}

static void check_without_marker(enum storage_note note, const char *said)
{
    struct storage *storage = open_fault("lost=1:memory:");
    struct storage_rubbish_list list = {0};
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_group_note(storage, note, GROUP, "keep it"), 0);
    assert_int_equal(storage_remove(storage, GROUP "/manifest"), 0);
    assert_int_equal(storage_group_clear(storage, &kind, GROUP), ERR_DENIED);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), ERR_DENIED);
    assert_int_equal(storage_rubbish_find(&list, storage, &kind, "run"), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].what, STORAGE_UNKNOWN);
    assert_non_null(strstr(storage_rubbish_reason(&list.items[0]), said));
    assert_int_equal(storage_rubbish_remove(storage, &kind, &list.items[0]), ERR_CORRUPT);
    assert_int_equal(count_names(storage, GROUP), SHARDS);
    storage_rubbish_free(&list);
    assert_int_equal(storage_group_unnote(storage, note, GROUP), 0);
    assert_int_equal(storage_group_clear(storage, &kind, GROUP), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    /* A note on nothing at all goes. */
    assert_int_equal(storage_group_note(storage, note, GROUP, "keep it"), 0);
    assert_int_equal(storage_rubbish_find(&list, storage, &kind, "run"), 0);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].what, STORAGE_STALE);
    storage_rubbish_free(&list);
    storage_close(storage);
}

/* Its manifest was lost after the note was made: what is left of it is no rubbish, nor is that. */
static void test_group__what_is_noted_stays_without_its_marker(void **state)
{
    (void)state;
    check_without_marker(STORAGE_PIN, "pinned");
    check_without_marker(STORAGE_QUARANTINE, "quarantine");
}

/* Of two removals that were cut short one cannot be ended: the error is that of it. */
static void test_group__recovery_tells_of_the_one_that_stays(void **state)
{
    (void)state;
    char path[BED_PATH_BYTES], where[BED_PATH_BYTES + 64];
    bed_make_directory(path);
    snprintf(where, sizeof(where), "only=remove,fail_at=1:local:%s", path);
    struct storage *storage = open_fault(where);
    for (int i = 1; i <= 2; i++) { /* each with a lease that nobody holds any more */
        char key[64];
        snprintf(key, sizeof(key), "run/tombstones/step-%d", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
        snprintf(key, sizeof(key), "run/leases/step-%d.0123456789abcdef", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
        snprintf(key, sizeof(key), "run/step-%d/shard-1", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
    }
    assert_int_equal(storage_groups_recover(storage, &kind, "run"), ERR_IO);
    assert_non_null(strstr(report_line(), "injected fault"));
    assert_int_equal(count_names(storage, "run/tombstones"), 1);
    storage_close(storage);
    bed_remove_directory(path);
}

/* A group without a marker, notes and a lease on none, and what a publication left. */
static void make_rubbish(struct storage *storage, const char *path)
{
    static const struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    char name[BED_PATH_BYTES + 64];
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_remove(storage, GROUP "/manifest"), 0);
    assert_int_equal(storage_publish(storage, "run/step-2/manifest", "{}", 2), 0);
    assert_int_equal(storage_publish(storage, "run/pins/step-8", "", 0), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-7", "", 0), 0);
    assert_int_equal(storage_publish(storage, "run/leases/step-2.0123456789abcdef", "", 0), 0);
    snprintf(name, sizeof(name), "%s/run/.holdfast.tmp.0123456789abcdef", path);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(utimensat(AT_FDCWD, name, old, 0), 0);
}

/* How much of it was found; with `must_work` all of that goes. */
static size_t collect(struct storage *storage, bool must_work)
{
    struct storage_rubbish_list list = {0};
    int error = storage_rubbish_find(&list, storage, &kind, "run");
    assert_true(error == 0 || !must_work);
    for (size_t i = 0; i < list.count && error == 0; i++) {
        int failed = storage_rubbish_remove(storage, &kind, &list.items[i]);
        assert_true(failed == 0 || !must_work);
    }
    size_t count = list.count;
    storage_rubbish_free(&list);
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
    assert_true(bed_exists(plain, "run/step-2/manifest"));
    storage_close(plain);
    bed_remove_directory(path);
    return is_reached;
}

static void test_group__rubbish_goes_after_a_power_cut_anywhere_in_its_removal(void **state)
{
    (void)state;
    unsigned at = 1;
    while (cut_collection(at))
        at++;
    assert_true(at > 25);
}

static void test_group__what_is_not_ours_stays_with_its_directory(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/step-1/notes", "mine", 4), 0);
    assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, "run/step-1"), 1);
    assert_true(bed_exists(storage, "run/step-1/notes"));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(storage);
}

static void test_group__recovery_takes_back_what_is_whole_and_ends_the_rest(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_group(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-1", "", 0), 0);
    assert_int_equal(storage_groups_recover(storage, &kind, "run"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/step-1", "", 0), 0);
    assert_int_equal(storage_remove(storage, "run/step-1/manifest"), 0);
    assert_int_equal(storage_remove(storage, "run/step-1/shard-1"), 0);
    assert_int_equal(storage_groups_recover(storage, &kind, "run"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, "run/step-1"), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_groups_recover(storage, &kind, "run"), 0); /* nothing to do */
    storage_close(storage);
}

/* Operation `fail_at` fails, then the power; then the removal is made again. False when the
 * operation was never reached. */
static bool cut_short(int fail_at, const char *lost, int *made)
{
    char where[64];
    snprintf(where, sizeof(where), "seed=%d,lost=%s,fail_at=%d:memory:", fail_at, lost, fail_at);
    struct storage *storage = open_fault(where);
    if (make_group(storage) != 0) { /* it failed before the removal */
        storage_close(storage);
        return true;
    }
    int error = storage_group_remove(storage, &kind, GROUP);
    assert_true(error == 0 || error == ERR_IO);
    assert_int_equal(storage_fault_crash(storage), 0);
    if (error == 0) { /* the failing operation is still to come: meet it here */
        assert_int_equal(storage_sync_names(storage, ""), ERR_IO);
        assert_int_equal(count_names(storage, "run/step-1"), 0);
    } else {
        ++*made;
        assert_true(is_whole(storage) || !bed_exists(storage, "run/step-1/manifest"));
        assert_int_equal(storage_group_remove(storage, &kind, GROUP), 0);
        assert_int_equal(storage_fault_crash(storage), 0);
        assert_int_equal(count_names(storage, "run/step-1"), 0);
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
    }
    storage_close(storage);
    return error != 0;
}

static void test_group__a_removal_cut_anywhere_leaves_it_whole_or_gone(void **state)
{
    (void)state;
    static const char *const losses[] = {"0", "0.5", "1"};
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        int made = 0;
        for (int n = 1; cut_short(n, losses[i], &made); n++)
            continue;
        /* list, tombstone, pin, quarantine, leases, marker, its sync, list, three shards,
         * directory, its sync, leases, tombstone, its sync */
        assert_int_equal(made, 16);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "reader") == 0)
        read_until_killed(argv[2], 1);
    tell_in_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group__goes_where_nothing_can_be_made),
        cmocka_unit_test(test_group__a_refused_removal_gives_the_reserve_back),
        cmocka_unit_test(test_group__goes_whole_and_leaves_nothing),
        cmocka_unit_test(test_group__what_is_pinned_stays_until_it_is_unpinned),
        cmocka_unit_test(test_group__a_pin_sees_the_removal_under_way),
        cmocka_unit_test(test_group__a_pin_outlives_a_tombstone_that_a_crash_left),
        cmocka_unit_test(test_group__what_has_the_name_of_a_pin_is_none),
        cmocka_unit_test(test_group__what_a_reader_left_in_it_until_the_tombstone_goes_too),
        cmocka_unit_test(test_group__what_is_in_quarantine_stays_with_the_reason),
        cmocka_unit_test(test_group__what_is_held_does_not_go_into_the_trash),
        cmocka_unit_test(test_group__the_trash_holds_it_whole_until_it_is_taken_back_or_emptied),
        cmocka_unit_test(test_group__the_term_of_the_trash_is_in_the_store),
        cmocka_unit_test(test_group__a_lease_lasts_as_long_as_its_holder),
        cmocka_unit_test(test_group__a_lease_is_refused_while_a_removal_is_under_way),
        cmocka_unit_test(test_group__one_without_a_marker_goes_when_nobody_leases_it),
        cmocka_unit_test(test_group__what_is_leased_stays_whatever_fails),
        cmocka_unit_test(test_group__a_lease_is_seen_or_refused_whatever_fails),
        cmocka_unit_test(test_group__what_is_noted_stays_without_its_marker),
        cmocka_unit_test(test_group__recovery_tells_of_the_one_that_stays),
        cmocka_unit_test(test_group__rubbish_goes_after_a_power_cut_anywhere_in_its_removal),
        cmocka_unit_test(test_group__what_is_not_ours_stays_with_its_directory),
        cmocka_unit_test(test_group__recovery_takes_back_what_is_whole_and_ends_the_rest),
        cmocka_unit_test(test_group__a_removal_cut_anywhere_leaves_it_whole_or_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
