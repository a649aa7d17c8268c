/* storage_store_trash.c - the trash of a store that several processes share, where nothing can be
 * renamed.
 *
 * Goal: whatever two of them do to one checkpoint concurrently, a manifest, in its place or in the
 * trash, never lacks an object that it names. Method: one process's store has a hook at the worst
 * point of a removal, a put or an undelete; there the other process acts. Both are stores of one
 * directory, without a rename, as a bucket. */
#include "storage/engine/backend.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

#define TRASHED "run/trash/" STEP ".1000"

static const struct store_trashed in_trash = {.prefix = GROUP, .key = TRASHED, .seconds = 1000};

/* The single action of `other` at that point, and its result. */
static struct storage_ops parted, hooked;
static struct storage *one, *other;
static int (*at_point)(void);
static int told;

static void meet(void)
{
    int (*act)(void) = at_point;
    at_point = NULL;
    if (act)
        told = act();
}

static int put(void)
{
    return store_trash_put(other, GROUP, 1000, false);
}

static int erase(void)
{
    return store_erase(other, GROUP);
}

static int remove_by_rule(void)
{
    return store_remove(other, GROUP);
}

static int empty(void)
{
    return store_trash_empty(other, &in_trash);
}

static int take(void)
{
    return store_trash_take(other, &in_trash);
}

static int hold_behind(struct storage *storage, struct storage_hold **out, const char *key,
                       const void *data, size_t bytes)
{
    meet();
    return storage_local.hold(storage, out, key, data, bytes);
}

static int publish_behind(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    if (strstr(key, "/manifest.json"))
        meet();
    return storage_local.publish(storage, key, data, bytes);
}

static int remove_behind(struct storage *storage, const char *key)
{
    if (strstr(key, "/manifest.json"))
        meet();
    return storage_local.remove(storage, key);
}

static void open_both(char path[BED_PATH_BYTES])
{
    bed_make_directory(path);
    parted = storage_local;
    parted.rename = NULL;
    hooked = parted;
    one = open_local(path, false);
    other = open_local(path, false);
    assert_int_equal(make_checkpoint(other), 0);
    ((struct storage_base *)one)->ops = &hooked;
    ((struct storage_base *)other)->ops = &parted;
    at_point = NULL;
    told = 0;
}

static void close_both(const char *path)
{
    assert_int_equal(count_names(other, "run/tombstones"), 0);
    assert_int_equal(count_names(other, "run/leases"), 0);
    storage_close(one);
    storage_close(other);
    bed_remove_directory(path);
}

static bool is_trashed(void)
{
    return bed_exists(other, TRASHED "/manifest.json");
}

/* It comes back with all that it names. */
static void assert_comes_back(void)
{
    assert_true(is_trashed() && !bed_exists(other, MANIFEST));
    assert_int_equal(store_trash_take(other, &in_trash), 0);
    assert_true(is_whole(other) && !is_trashed());
}

TEST(test_trash__who_removes_for_good_gives_way_to_a_put)
{
    char path[BED_PATH_BYTES];
    int (*const removals[])(void) = {erase, remove_by_rule, put};
    for (size_t i = 0; i < sizeof(removals) / sizeof(removals[0]); i++) {
        open_both(path);
        hooked.publish = publish_behind;
        at_point = removals[i];
        assert_int_equal(store_trash_put(one, GROUP, 1000, false), 0);
        assert_int_equal(told, ERR_BUSY);
        assert_comes_back();
        close_both(path);
    }
}

TEST(test_trash__a_put_gives_way_to_who_removes_for_good)
{
    char path[BED_PATH_BYTES];
    for (int is_told = 0; is_told < 2; is_told++) {
        open_both(path);
        hooked.remove = remove_behind;
        at_point = put;
        assert_int_equal((is_told ? store_erase : store_remove)(one, GROUP), 0);
        assert_int_equal(told, ERR_BUSY);
        assert_false(is_trashed());
        assert_int_equal(count_names(other, GROUP), 0);
        close_both(path);
    }
}

/* The put begins and ends between the removal's list and its hold. */
TEST(test_trash__a_rule_that_comes_late_removes_nothing_of_what_was_put)
{
    char path[BED_PATH_BYTES];
    open_both(path);
    hooked.hold = hold_behind;
    at_point = put;
    assert_int_equal(store_remove(one, GROUP), 0);
    assert_int_equal(told, 0);
    assert_comes_back();
    close_both(path);
}

/* Like a ckptd that still lists a checkpoint which another one has put into the trash: final means
 * final. */
TEST(test_trash__a_removal_for_good_takes_the_trash_along)
{
    char path[BED_PATH_BYTES];
    open_both(path);
    hooked.hold = hold_behind;
    at_point = put;
    assert_int_equal(store_erase(one, GROUP), 0);
    assert_int_equal(told, 0);
    assert_false(is_trashed());
    assert_int_equal(count_names(other, GROUP), 0);
    close_both(path);
}

/* The emptying comes while the shards are looked at, or just before the manifest comes back. */
TEST(test_trash__an_undelete_is_not_emptied_under_its_hands)
{
    char path[BED_PATH_BYTES];
    open_both(path);
    assert_int_equal(put(), 0);
    hooked.publish = publish_behind;
    at_point = empty;
    assert_int_equal(store_trash_take(one, &in_trash), 0);
    assert_int_equal(told, ERR_DENIED);
    assert_true(is_whole(other) && !is_trashed());
    close_both(path);
}

TEST(test_trash__what_is_being_emptied_does_not_come_back)
{
    char path[BED_PATH_BYTES];
    open_both(path);
    assert_int_equal(put(), 0);
    hooked.remove = remove_behind;
    at_point = take;
    assert_int_equal(store_trash_empty(one, &in_trash), 0);
    assert_int_equal(told, ERR_NOT_FOUND);
    assert_false(is_trashed());
    assert_int_equal(count_names(other, GROUP), 0);
    close_both(path);
}

/* A tool that has the store's lock needs no other lock. */
TEST(test_trash__who_has_no_lock_gives_way_to_a_tool)
{
    char path[BED_PATH_BYTES];
    open_both(path);
    assert_int_equal(storage_lock(other), 0);
    hooked.hold = hold_behind;
    assert_int_equal(store_trash_put(one, GROUP, 1000, false), ERR_BUSY);
    assert_int_equal(store_remove(one, GROUP), ERR_BUSY);
    assert_true(is_whole(other));
    assert_int_equal(erase(), 0);
    assert_int_equal(count_names(other, GROUP), 0);
    close_both(path);
}

int main(void)
{
    tell_in_memory();
    return suite_run(NULL, NULL);
}
