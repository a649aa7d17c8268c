/* storage_store_remove.c - the removal of a checkpoint: afterwards it is whole or gone, whatever
 * fails in between.
 *
 * Goal: at no point of a removal is there a manifest without its objects. Pinned or damaged
 * checkpoints are not removed. An interrupted removal can be repeated. Method: every operation of a
 * removal fails once, and the power is lost after each, with all, half or none of the unsynced
 * changes. (Leases and rubbish: storage_store_leases.c.) */
#include "storage/engine/backend.h"
#include "tests/unit/store_bed.h"
#include "tests/unit/suite.h"

TEST(test_group__goes_whole_and_leaves_nothing)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(store_remove(storage, GROUP), 0); /* nothing is there: nothing to do */
    storage_close(storage);
}

/* On a disk where nothing can be made the reserve becomes the tombstone, and comes back. */
TEST(test_group__goes_where_nothing_can_be_made)
{
    struct storage *storage = open_fault("only=publish,fail_from=3,errno=28:memory:");
    assert_int_equal(make_checkpoint(storage), 0); /* manifest and reserve are the two */
    assert_int_equal(store_prepare_run(storage, "run"), 0);
    assert_true(bed_exists(storage, "run/tombstones/reserve"));
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_true(bed_exists(storage, "run/tombstones/reserve"));
    assert_int_equal(store_recover_run(storage, "run"), 0); /* it is no tombstone */
    assert_true(bed_exists(storage, "run/tombstones/reserve"));
    storage_close(storage);
}

/* The tombstone of an interrupted removal serves the next one; without it and without the reserve
 * nothing is removed. */
TEST(test_group__needs_the_reserve_where_nothing_can_be_made)
{
    struct storage *storage = open_fault("only=publish,fail_from=3,errno=28:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_prepare_run(storage, "run"), 0);
    assert_int_equal(storage_rename(storage, "run/tombstones/reserve", "run/reserve"), 0);
    assert_int_equal(store_remove(storage, GROUP), ERR_SPACE);
    assert_true(is_whole(storage));
    assert_int_equal(storage_rename(storage, "run/reserve", "run/tombstones/" STEP), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(storage);
}

/* A removal that uses the reserve and is refused then restores everything. */
TEST(test_group__a_refused_removal_gives_the_reserve_back)
{
    struct storage *storage = open_fault("only=publish,fail_from=4,errno=28:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_prepare_run(storage, "run"), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "keep it"), 0);
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "is in pins"));
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_true(bed_exists(storage, "run/tombstones/reserve"));
    storage_close(storage);
}

static int check_pin(void *user, const struct storage_entry *entry)
{
    (void)user;
    assert_string_equal(entry->name, STEP);
    return 0;
}

TEST(test_group__what_is_pinned_stays_until_it_is_unpinned)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_remove_note(storage, STORE_PIN, GROUP), ERR_NOT_FOUND);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "for the paper"), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "again"), ERR_EXISTS);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "run/step-00000001-a0001 is in pins"));
    assert_int_equal(store_find_note(storage, STORE_PIN, GROUP, NULL, 0), 0);
    assert_int_equal(store_for_notes(storage, STORE_PIN, "run", check_pin, NULL), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(store_remove_note(storage, STORE_PIN, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    storage_close(storage);
}

/* The removal is between tombstone and manifest: a pin comes too late, and reports it. */
TEST(test_group__a_pin_sees_the_removal_under_way)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(storage_lock(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(store_put_note(storage, STORE_PIN, GROUP, "too late"), ERR_NOT_FOUND);
    assert_non_null(strstr(report_line(), "is being removed"));
    assert_int_equal(count_names(storage, "run/pins"), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    storage_close(storage);
}

/* A reader that had leased the checkpoint until its tombstone came has left a file in it. */
static int publish_late(struct storage *storage, const char *key, const void *data, size_t bytes)
{
    int error =
        strncmp(key, "run/tombstones/", 15) == 0
            ? storage_memory.publish(storage, GROUP "/shard-00004-of-00009.safetensors", "", 0)
            : 0;
    return error == 0 ? storage_memory.publish(storage, key, data, bytes) : error;
}

TEST(test_group__what_a_reader_left_in_it_until_the_tombstone_goes_too)
{
    struct storage_ops late = storage_memory;
    struct storage *storage;
    late.publish = publish_late;
    for (int is_told = 0; is_told < 2; is_told++) {
        assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
        assert_int_equal(make_checkpoint(storage), 0);
        ((struct storage_base *)storage)->ops = &late;
        assert_int_equal((is_told ? store_erase : store_remove)(storage, GROUP), 0);
        assert_int_equal(count_names(storage, GROUP), 0);
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
        storage_close(storage);
    }
}

TEST(test_group__what_is_in_quarantine_stays_with_the_reason)
{
    char text[16];
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(store_find_note(storage, STORE_QUARANTINE, GROUP, text, sizeof(text)),
                     ERR_NOT_FOUND);
    assert_string_equal(text, "");
    assert_int_equal(store_put_note(storage, STORE_QUARANTINE, GROUP, "block 7 is damaged"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(store_find_note(storage, STORE_QUARANTINE, GROUP, text, sizeof(text)), 0);
    assert_string_equal(text, "block 7 is dama"); /* cut to the maximal length */
    assert_int_equal(store_remove(storage, GROUP), ERR_DENIED);
    assert_non_null(strstr(report_line(), "run/step-00000001-a0001 is in quarantine"));
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(store_remove_note(storage, STORE_QUARANTINE, GROUP), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    storage_close(storage);
}

/* Of two interrupted removals one cannot be completed: its error is returned. */
TEST(test_group__recovery_tells_of_the_one_that_stays)
{
    char path[BED_PATH_BYTES], where[BED_PATH_BYTES + 64];
    bed_make_directory(path);
    snprintf(where, sizeof(where), "only=remove,fail_at=1:local:%s", path);
    struct storage *storage = open_fault(where);
    for (int i = 1; i <= 2; i++) { /* each with a lease that no process holds any more */
        char key[96];
        snprintf(key, sizeof(key), "run/tombstones/step-%08d-a0001", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
        snprintf(key, sizeof(key), "run/leases/step-%08d-a0001.0123456789abcdef", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
        snprintf(key, sizeof(key), "run/step-%08d-a0001/shard-00001-of-00001.safetensors", i);
        assert_int_equal(storage_publish(storage, key, "", 0), 0);
    }
    assert_int_equal(store_recover_run(storage, "run"), ERR_IO);
    assert_non_null(strstr(report_line(), "injected fault"));
    assert_int_equal(count_names(storage, "run/tombstones"), 1);
    storage_close(storage);
    bed_remove_directory(path);
}

TEST(test_group__what_is_not_ours_stays_with_its_directory)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(storage_publish(storage, GROUP "/notes", "mine", 4), 0);
    assert_int_equal(store_remove(storage, GROUP), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, GROUP), 1);
    assert_true(bed_exists(storage, GROUP "/notes"));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    storage_close(storage);
}

TEST(test_group__recovery_takes_back_what_is_whole_and_ends_the_rest)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(make_checkpoint(storage), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(store_recover_run(storage, "run"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(is_whole(storage));
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(storage_publish(storage, "run/tombstones/" STEP, "", 0), 0);
    assert_int_equal(storage_remove(storage, MANIFEST), 0);
    assert_int_equal(storage_remove(storage, SHARD(2)), 0);
    assert_int_equal(store_recover_run(storage, "run"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(count_names(storage, GROUP), 0);
    assert_int_equal(count_names(storage, "run/tombstones"), 0);
    assert_int_equal(store_recover_run(storage, "run"), 0); /* nothing to do */
    storage_close(storage);
}

/* Operation `fail_at` fails, then the power; then the removal is made again. False when the
 * operation was never reached. */
static bool cut_short(int fail_at, const char *lost, int *made)
{
    char where[64];
    snprintf(where, sizeof(where), "seed=%d,lost=%s,fail_at=%d:memory:", fail_at, lost, fail_at);
    struct storage *storage = open_fault(where);
    if (make_checkpoint(storage) != 0) { /* it failed before the removal */
        storage_close(storage);
        return true;
    }
    int error = store_remove(storage, GROUP);
    assert_true(error == 0 || error == ERR_IO);
    assert_int_equal(storage_fault_crash(storage), 0);
    if (error == 0) { /* the failing operation is still to come: it fails here */
        assert_int_equal(storage_sync_names(storage, ""), ERR_IO);
        assert_int_equal(count_names(storage, GROUP), 0);
    } else {
        ++*made;
        assert_true(is_whole(storage) || !bed_exists(storage, MANIFEST));
        assert_int_equal(store_remove(storage, GROUP), 0);
        assert_int_equal(storage_fault_crash(storage), 0);
        assert_int_equal(count_names(storage, GROUP), 0);
        assert_int_equal(count_names(storage, "run/tombstones"), 0);
    }
    storage_close(storage);
    return error != 0;
}

TEST(test_group__a_removal_cut_anywhere_leaves_it_whole_or_gone)
{
    static const char *const losses[] = {"0", "0.5", "1"};
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        int made = 0;
        for (int n = 1; cut_short(n, losses[i], &made); n++)
            continue;
        /* list, hold, other removers, a tool, tombstone, pin, quarantine, leases, manifest, its
         * sync, list, three shards, directory, its sync, leases, tombstone, its sync */
        assert_int_equal(made, 19);
    }
}

int main(void)
{
    tell_in_memory();
    return suite_run(NULL, NULL);
}
