/* storage_fault.c - the wrapper that injects faults, which other tests rely on.
 *
 * Goal: errors come at their rate; a crash never loses synced data, and may lose the rest. Method:
 * lost=1 loses all that is not durable, lost=0 nothing, lost=0.4 mixes by the seed. The tests of
 * storage/store/ count that each operation fails once. */
#include "tests/fault/storage_fault.h"
#include "storage/engine/measured.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#include <time.h>

#define PAGE STORAGE_ALIGN
#define BYTES (16 * PAGE)
#define LEASE "run/leases/step-1.0123456789abcdef"

static struct storage *open_fault(const char *where)
{
    struct storage *storage;
    int error = storage_open(&storage, &storage_fault, where, NULL);
    if (error != 0)
        print_error("%s\n", report_line());
    assert_int_equal(error, 0);
    return storage;
}

static void write_object(struct storage *storage, struct storage_object **out, const char *key,
                         uint64_t number)
{
    unsigned char *data = bed_buffer(BYTES);
    bed_fill(data, BYTES, number);
    assert_int_equal(storage_object_create(storage, out, key, BYTES), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, *out, 0, data, BYTES), 0);
    free(data);
}

static unsigned char *read_object(struct storage *storage, const char *key)
{
    void *data;
    size_t bytes;
    assert_int_equal(storage_fetch_all(storage, key, BYTES, &data, &bytes), 0);
    assert_int_equal(bytes, BYTES);
    return data;
}

static int sync_object(struct storage *storage, struct storage_object *object)
{
    return storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
}

static bool is_all(const unsigned char *data, size_t bytes, unsigned char value)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != value)
            return false;
    return true;
}

static struct storage *open_over(const char *directory, const char *settings)
{
    char where[2 * BED_PATH_BYTES];
    snprintf(where, sizeof(where), "%s:local:%s", settings, directory);
    return open_fault(where);
}

/* ---- single faults ---- */

TEST(test_fault__data_of_a_failed_sync_is_lost_whatever_later_syncs_say)
{
    /* Operations: create, sync_names, write, sync, sync. */
    struct storage *storage = open_fault("lost=1,fail_at=4:memory:");
    struct storage_object *object;
    unsigned char *data = bed_buffer(BYTES);
    assert_int_equal(storage_object_create(storage, &object, "shard", BYTES), 0);
    assert_int_equal(storage_sync_names(storage, ""), 0);
    bed_fill(data, BYTES, 1);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES), 0);
    assert_int_equal(sync_object(storage, object), ERR_IO);
    assert_int_equal(sync_object(storage, object), 0); /* Linux reports once */
    storage_object_close(storage, object);
    assert_int_equal(storage_fault_crash(storage), 0);
    free(data);
    data = read_object(storage, "shard");
    assert_true(is_all(data, BYTES, 0));
    storage_close(storage);
    free(data);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The percentiles of three writes that wait up to 0.4 s, compared with the time of the middle one
 * and of the slowest: up to a quarter more, and less by the test's own time. */
TEST(test_fault__a_store_tells_how_many_requests_it_had_and_how_long_they_took)
{
    struct storage *storage = open_fault("delay_us=400000:memory:");
    struct storage_object *object;
    struct storage_measured measured;
    unsigned char *data = bed_buffer(BYTES);
    double took[3], sum = 0, least = 1e9, most = 0;
    assert_int_equal(storage_object_create(storage, &object, "shard", BYTES), 0);
    for (int i = 0; i < 3; i++) {
        double begun = seconds_now();
        assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES), 0);
        took[i] = seconds_now() - begun;
        sum += took[i];
        least = took[i] < least ? took[i] : least;
        most = took[i] > most ? took[i] : most;
    }
    double middle = sum - least - most;
    storage_measured(storage, &measured);
    const struct storage_measured_op *writes = &measured.of[STORAGE_WRITE];
    assert_int_equal(measured.in_work, 0);
    assert_int_equal(writes->operations, 3);
    assert_int_equal(writes->bytes, 3 * BYTES);
    assert_true(writes->p50_seconds > 0.8 * middle && writes->p50_seconds < 1.3 * middle);
    assert_true(writes->p99_seconds > 0.8 * most && writes->p99_seconds < 1.3 * most);
    uint64_t counted = 0;
    for (uint32_t i = 0; i <= HISTOGRAM_BOUNDS; i++)
        counted += writes->seconds.counts[i];
    double counted_s = (double)writes->seconds.sum_us * 1e-6;
    assert_int_equal(counted, 3);
    assert_true(counted_s > 0.8 * sum && counted_s <= sum);
    assert_int_equal(measured.of[STORAGE_READ].operations, 0);
    assert_true(measured.of[STORAGE_READ].p99_seconds == 0);
    storage_object_close(storage, object);
    storage_close(storage);
    free(data);
}

TEST(test_fault__errors_come_at_their_rate)
{
    struct storage *storage = open_fault("seed=3,error=0.25:memory:");
    int num_failed = 0;
    uint64_t bytes;
    for (int i = 0; i < 1000; i++)
        num_failed += storage_fetch(storage, "missing", NULL, 0, &bytes) == ERR_IO;
    assert_in_range(num_failed, 200, 300);
    storage_close(storage);
}

/* ---- data and names ---- */

TEST(test_fault_crash__only_what_was_written_after_the_sync_is_lost)
{
    struct storage *storage = open_fault("lost=1:memory:");
    struct storage_object *object;
    unsigned char *ones = bed_buffer(2 * PAGE), *expected = bed_buffer(BYTES);
    memset(ones, 1, 2 * PAGE);
    assert_int_equal(storage_object_create(storage, &object, "shard", BYTES), 0);
    assert_int_equal(storage_sync_names(storage, ""), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, ones, 2 * PAGE), 0);
    assert_int_equal(sync_object(storage, object), 0);
    memset(ones, 2, 2 * PAGE);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, PAGE, ones, 2 * PAGE), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    memset(expected, 1, 2 * PAGE); /* the second page is old again, the third empty */
    unsigned char *data = read_object(storage, "shard");
    assert_memory_equal(data, expected, BYTES);
    storage_object_close(storage, object);
    storage_close(storage);
    free(data);
    free(ones);
    free(expected);
}

TEST(test_fault_crash__unsynced_names_vanish_with_what_is_below)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(storage_publish(storage, "old/manifest", "x", 1), 0);
    bed_put(storage, NULL, "half/dir/shard", BYTES, 1);
    assert_int_equal(storage_sync_names(storage, "half"), 0); /* half/dir yes, its shard no */
    bed_put(storage, NULL, "old/shard", BYTES, 1);            /* its name is not synced */
    bed_put(storage, NULL, "new/dir/shard", BYTES, 1);        /* nor is the name of its directory */
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(bed_exists(storage, "old/manifest"));
    assert_false(bed_exists(storage, "old/shard"));
    assert_int_equal(storage_sync_names(storage, "new"), ERR_NOT_FOUND);
    assert_int_equal(storage_sync_names(storage, "half/dir"), 0);
    assert_false(bed_exists(storage, "half/dir/shard"));
    storage_close(storage);
}

TEST(test_fault_crash__unsynced_removals_come_back)
{
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(storage_publish(storage, "run/a", "a", 1), 0);
    assert_int_equal(storage_publish(storage, "run/b", "b", 1), 0);
    assert_int_equal(storage_remove(storage, "run/a"), 0);
    assert_int_equal(storage_sync_names(storage, "run"), 0);
    assert_int_equal(storage_remove(storage, "run/b"), 0);
    assert_int_equal(storage_remove(storage, "run/b"), ERR_NOT_FOUND);
    assert_int_equal(storage_remove(storage, "run"), 0);
    assert_false(bed_exists(storage, "run/b"));
    assert_int_equal(storage_sync_names(storage, "run"), ERR_NOT_FOUND);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_false(bed_exists(storage, "run/a"));
    assert_true(bed_exists(storage, "run/b"));
    storage_close(storage);
}

TEST(test_fault_crash__a_name_made_anew_does_not_turn_into_the_old_one)
{
    struct storage *storage = open_fault("lost=1:memory:");
    char text[8] = "";
    uint64_t bytes;
    assert_int_equal(storage_publish(storage, "run/a", "old", 3), 0);
    assert_int_equal(storage_remove(storage, "run/a"), 0);
    assert_int_equal(storage_remove(storage, "run"), 0);
    assert_int_equal(storage_publish(storage, "run/a", "newer", 5), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_fetch(storage, "run/a", text, sizeof(text), &bytes), 0);
    assert_string_equal(text, "newer");
    storage_close(storage);
}

/* ---- renames ---- */

/* run/step, durable with its contents, becomes run/trash/step.1, whose contents are not durable. */
static struct storage *rename_step(const char *where)
{
    struct storage *storage = open_fault(where);
    bed_put(storage, NULL, "run/step/shard", BYTES, 1);
    assert_int_equal(storage_publish(storage, "run/step/manifest", "x", 1), 0);
    assert_int_equal(storage_rename(storage, "run/step", "run/trash/step.1"), 0);
    assert_false(bed_exists(storage, "run/step/manifest"));
    bed_expect(storage, "run/trash/step.1/shard", BYTES, 1);
    return storage;
}

/* It is whole under one name after a crash. */
static void expect_step(struct storage *storage, bool is_moved)
{
    assert_int_equal(bed_exists(storage, "run/step/manifest"), !is_moved);
    assert_int_equal(bed_exists(storage, "run/trash/step.1/manifest"), is_moved);
    bed_expect(storage, is_moved ? "run/trash/step.1/shard" : "run/step/shard", BYTES, 1);
}

TEST(test_fault_crash__a_rename_is_undone_until_both_directories_are_synced)
{
    for (int synced = 0; synced < 4; synced++) {
        struct storage *storage = rename_step("lost=1:memory:");
        if ((synced & 1) != 0) /* the directory above is synced with it */
            assert_int_equal(storage_sync_names(storage, "run/trash"), 0);
        if ((synced & 2) != 0)
            assert_int_equal(storage_sync_names(storage, "run"), 0);
        assert_int_equal(storage_fault_crash(storage), 0);
        expect_step(storage, (synced & 1) != 0);
        storage_close(storage);
    }
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(storage_publish(storage, "old/a", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "new/b", "x", 1), 0);
    assert_int_equal(storage_rename(storage, "old/a", "new/a"), 0);
    assert_int_equal(storage_sync_names(storage, "new"), 0); /* of "old" nothing is */
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(bed_exists(storage, "old/a") && !bed_exists(storage, "new/a"));
    storage_close(storage);
}

TEST(test_fault_crash__changes_within_a_renamed_tree_move_with_it)
{
    static const char *const losses[] = {"lost=1:memory:", "lost=0:memory:"};
    for (int is_kept = 0; is_kept < 2; is_kept++) {
        struct storage *storage = open_fault(losses[is_kept]);
        assert_int_equal(storage_publish(storage, "a/old", "x", 1), 0);
        assert_int_equal(storage_remove(storage, "a/old"), 0);
        bed_put(storage, NULL, "a/new", BYTES, 1);
        assert_int_equal(storage_rename(storage, "a", "b"), 0);
        assert_int_equal(storage_rename(storage, "b", "c"), 0);
        assert_true(bed_exists(storage, "c/new") && !bed_exists(storage, "c/old"));
        assert_int_equal(storage_fault_crash(storage), 0);
        assert_int_equal(bed_exists(storage, "c/new"), is_kept);
        assert_int_equal(bed_exists(storage, "a/old"), !is_kept);
        assert_false(bed_exists(storage, "a/new") || bed_exists(storage, "c/old"));
        storage_close(storage);
    }
}

TEST(test_fault_crash__nothing_is_renamed_back_over_what_took_its_name)
{
    struct storage *storage = rename_step("lost=1:memory:");
    assert_int_equal(storage_publish(storage, "run/step/manifest", "new", 3), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(bed_exists(storage, "run/step/manifest") && !bed_exists(storage, "run/step/shard"));
    bed_expect(storage, "run/trash/step.1/shard", BYTES, 1);
    storage_close(storage);
}

TEST(test_fault__a_rename_that_fails_late_was_carried_out)
{
    for (int is_late = 0; is_late < 2; is_late++) {
        struct storage *storage = open_fault(is_late ? "only=rename,fail_at=1,late=1,lost=1:memory:"
                                                     : "only=rename,fail_at=1,lost=1:memory:");
        assert_int_equal(storage_publish(storage, "a/x", "x", 1), 0);
        assert_int_equal(storage_rename(storage, "a", "b"), ERR_IO);
        assert_int_equal(bed_exists(storage, "a/x"), !is_late);
        assert_int_equal(bed_exists(storage, "b/x"), is_late);
        assert_int_equal(storage_fault_crash(storage), 0);
        assert_true(bed_exists(storage, "a/x") && !bed_exists(storage, "b/x"));
        storage_close(storage);
    }
}

/* ---- pages ---- */

/* The state of a page after a crash: 'k'ept, 'l'ost, 't'orn. */
static char state_of_page(const unsigned char *page, const unsigned char *written)
{
    bool any_kept = false, any_lost = false;
    for (size_t i = 0; i < PAGE; i += 512) {
        bool kept = memcmp(page + i, written + i, 512) == 0;
        assert_true(kept || is_all(page + i, 512, 0));
        any_kept |= kept;
        any_lost |= !kept;
    }
    return any_kept && any_lost ? 't' : any_kept ? 'k' : 'l';
}

static void crash_by_seed(char out[BYTES / PAGE + 1], unsigned seed)
{
    char where[64];
    struct storage_object *object;
    snprintf(where, sizeof(where), "seed=%u,lost=0.4:memory:", seed);
    struct storage *storage = open_fault(where);
    unsigned char *written = bed_buffer(BYTES);
    bed_fill(written, BYTES, 1);
    write_object(storage, &object, "shard", 1);
    assert_int_equal(storage_sync_names(storage, ""), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    unsigned char *data = read_object(storage, "shard");
    for (size_t i = 0; i < BYTES / PAGE; i++)
        out[i] = state_of_page(data + i * PAGE, written + i * PAGE);
    out[BYTES / PAGE] = '\0';
    storage_object_close(storage, object);
    storage_close(storage);
    free(written);
    free(data);
}

TEST(test_fault_crash__seeds_keep_lose_and_tear_and_repeat_themselves)
{
    char all[20 * (BYTES / PAGE) + 1] = "", first[BYTES / PAGE + 1], again[BYTES / PAGE + 1];
    for (unsigned seed = 1; seed <= 20; seed++) {
        crash_by_seed(first, seed);
        crash_by_seed(again, seed);
        assert_string_equal(first, again);
        strcat(all, first);
    }
    assert_non_null(strchr(all, 'k'));
    assert_non_null(strchr(all, 'l'));
    assert_non_null(strchr(all, 't'));
}

TEST(test_fault_crash__objects_opened_before_it_are_dead)
{
    struct storage *storage = open_fault("lost=0:memory:");
    struct storage_object *object, *reader;
    uint64_t bytes;
    unsigned char *data = bed_buffer(BYTES);
    bed_put(storage, &object, "shard", BYTES, 1);
    assert_int_equal(storage_object_open(storage, &reader, "shard", &bytes), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES), ERR_IO);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, reader, 0, data, BYTES), ERR_IO);
    assert_int_equal(sync_object(storage, object), ERR_IO);
    storage_object_close(storage, object);
    storage_object_close(storage, reader);
    bed_expect(storage, "shard", BYTES, 1);
    storage_close(storage);
    free(data);
}

TEST(test_fault_crash__requests_on_the_way_end_with_an_error)
{
    struct storage *storage = open_fault("lost=1,delay_us=10000000:memory:");
    struct storage_object *object;
    struct storage_request requests[8];
    struct bed_wait wait;
    unsigned char *data = bed_buffer(8 * PAGE);
    bed_wait_init(&wait);
    assert_int_equal(storage_object_create(storage, &object, "shard", 8 * PAGE), 0);
    for (uint32_t i = 0; i < 8; i++) {
        requests[i] = bed_request(STORAGE_WRITE, object, i * PAGE, data, PAGE, &wait);
        storage_submit(storage, &requests[i]);
    }
    assert_int_equal(storage_fault_crash(storage), 0); /* within far less than the delay */
    assert_int_equal(wait.num_done, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(requests[i].error, ERR_IO);
    storage_object_close(storage, object);
    storage_close(storage);
    bed_wait_deinit(&wait);
    free(data);
}

TEST(test_fault_crash__shows_in_the_wrapped_directory)
{
    char directory[BED_PATH_BYTES], where[2 * BED_PATH_BYTES];
    bed_make_directory(directory);
    snprintf(where, sizeof(where), "lost=1:local:%s", directory);
    struct storage *storage = open_fault(where);
    struct storage_object *object;
    bed_put(storage, NULL, "run/kept", BYTES, 1);
    write_object(storage, &object, "run/lost", 2);
    storage_object_close(storage, object);
    assert_int_equal(storage_sync_names(storage, "run"), 0);
    bed_put(storage, NULL, "run/gone", BYTES, 3);
    assert_int_equal(storage_fault_crash(storage), 0);
    storage_close(storage);
    assert_int_equal(storage_open(&storage, &storage_local, directory, NULL), 0);
    bed_expect(storage, "run/kept", BYTES, 1);
    unsigned char *data = read_object(storage, "run/lost");
    assert_true(is_all(data, BYTES, 0));
    assert_false(bed_exists(storage, "run/gone"));
    storage_close(storage);
    bed_remove_directory(directory);
    free(data);
}

/* ---- holds ---- */

/* The list of names decides whether its file stays; its holder does not. */
static void check_held_at_crash(const char *settings, bool is_synced, bool stays)
{
    char directory[BED_PATH_BYTES];
    struct storage_hold *hold;
    bed_make_directory(directory);
    struct storage *storage = open_over(directory, settings);
    assert_int_equal(storage_hold(storage, &hold, LEASE, "x", 1), 0);
    assert_int_equal(storage_find_holder(storage, LEASE), 0);
    if (is_synced)
        assert_int_equal(storage_sync_names(storage, "run/leases"), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_int_equal(storage_find_holder(storage, LEASE), ERR_NOT_FOUND);
    assert_int_equal(bed_exists(storage, LEASE), stays);
    storage_release(storage, hold);
    assert_int_equal(bed_exists(storage, LEASE), stays);
    storage_close(storage);
    bed_remove_directory(directory);
}

TEST(test_fault_crash__ends_holds_and_may_leave_their_files)
{
    check_held_at_crash("lost=1", false, false);
    check_held_at_crash("lost=0", false, true);
    check_held_at_crash("lost=1", true, true);
}

SUITE(NULL, NULL)
