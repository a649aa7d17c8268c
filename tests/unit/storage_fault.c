/* storage_fault.c - the wrapper that injects faults, which other tests rely on.
 *
 * Goal: what was synced is never lost by a crash, what was not may be, and every operation can be
 * made to fail. Method: lost=1 loses all that is not durable, lost=0.5 mixes; one save is run with
 * its first, second, ... n-th operation failing until it passes, and after each failure and crash
 * the store is looked at. */
#include "tests/fault/storage_fault.h"
#include "tests/unit/storage_bed.h"

#define PAGE STORAGE_ALIGN
#define BYTES (16 * PAGE)

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

static void test_fault__bad_settings_are_refused_by_name(void **state)
{
    (void)state;
    const char *wheres[] = {"",
                            "seed=1",
                            "sed=1:memory:",
                            "error=2:memory:",
                            "error=x:memory:",
                            "seed:memory:",
                            "seed=1:tape:x",
                            "fail_at=-1:memory:"};
    for (size_t i = 0; i < sizeof(wheres) / sizeof(wheres[0]); i++) {
        struct storage *storage;
        assert_int_equal(storage_open(&storage, &storage_fault, wheres[i], NULL), ERR_INVALID);
        assert_null(storage);
    }
    struct storage *storage = open_fault("seed=5,lost=0:memory:4096");
    assert_non_null(strstr(storage_describe(storage), "seed 5"));
    assert_non_null(strstr(storage_describe(storage), "4096"));
    storage_close(storage);
}

/* ---- crashes ---- */

static void test_fault_crash__synced_data_and_names_survive(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    bed_put(storage, NULL, "run/step/shard", BYTES, 1);
    assert_int_equal(storage_sync_names(storage, "run/step"), 0);
    assert_int_equal(storage_publish(storage, "run/step/manifest", "whole", 5), 0);
    assert_int_equal(storage_fault_crash(storage), 0);
    bed_expect(storage, "run/step/shard", BYTES, 1);
    assert_true(bed_exists(storage, "run/step/manifest"));
    storage_close(storage);
}

static void test_fault_crash__unsynced_data_is_lost(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    struct storage_object *object;
    write_object(storage, &object, "shard", 1);
    storage_object_close(storage, object); /* a close makes nothing durable */
    assert_int_equal(storage_sync_names(storage, ""), 0);
    bed_expect(storage, "shard", BYTES, 1);
    assert_int_equal(storage_fault_crash(storage), 0);
    unsigned char *data = read_object(storage, "shard");
    assert_true(is_all(data, BYTES, 0));
    free(data);
    storage_close(storage);
}

static void test_fault_crash__only_what_was_written_after_the_sync_is_lost(void **state)
{
    (void)state;
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

static void test_fault_crash__unsynced_names_vanish_with_what_is_below(void **state)
{
    (void)state;
    struct storage *storage = open_fault("lost=1:memory:");
    assert_int_equal(storage_publish(storage, "old/manifest", "x", 1), 0);
    bed_put(storage, NULL, "half/dir/shard", BYTES, 1);
    assert_int_equal(storage_sync_names(storage, "half"), 0); /* half/dir yes, its shard no */
    bed_put(storage, NULL, "old/shard", BYTES, 1);            /* its name is not synced */
    bed_put(storage, NULL, "new/dir/shard", BYTES, 1);        /* nor is its directory's */
    assert_int_equal(storage_fault_crash(storage), 0);
    assert_true(bed_exists(storage, "old/manifest"));
    assert_false(bed_exists(storage, "old/shard"));
    assert_int_equal(storage_sync_names(storage, "new"), ERR_NOT_FOUND);
    assert_int_equal(storage_sync_names(storage, "half/dir"), 0);
    assert_false(bed_exists(storage, "half/dir/shard"));
    storage_close(storage);
}

static void test_fault_crash__unsynced_removals_come_back(void **state)
{
    (void)state;
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

static void test_fault_crash__a_name_made_anew_does_not_turn_into_the_old_one(void **state)
{
    (void)state;
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

/* What a page shows after a crash: 'k'ept, 'l'ost, 't'orn. */
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

static void test_fault_crash__seeds_keep_lose_and_tear_and_repeat_themselves(void **state)
{
    (void)state;
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

static void test_fault_crash__objects_opened_before_it_are_dead(void **state)
{
    (void)state;
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

static void test_fault_crash__requests_on_the_way_end_with_an_error(void **state)
{
    (void)state;
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

static void test_fault_crash__shows_in_the_wrapped_directory(void **state)
{
    (void)state;
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

#define LEASE "run/leases/step-1.0123456789abcdef"

static struct storage *open_over(const char *directory, const char *settings)
{
    char where[2 * BED_PATH_BYTES];
    snprintf(where, sizeof(where), "%s:local:%s", settings, directory);
    return open_fault(where);
}

/* Whether its file stays is for the list of names; its holder does not. */
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

static void test_fault_crash__ends_holds_and_may_leave_their_files(void **state)
{
    (void)state;
    check_held_at_crash("lost=1", false, false);
    check_held_at_crash("lost=0", false, true);
    check_held_at_crash("lost=1", true, true);
}

static void test_fault_crash__brings_back_a_released_file_that_was_durable(void **state)
{
    (void)state;
    for (int is_synced = 0; is_synced < 2; is_synced++) {
        char directory[BED_PATH_BYTES];
        struct storage_hold *hold;
        bed_make_directory(directory);
        struct storage *storage = open_over(directory, "lost=1");
        assert_int_equal(storage_hold(storage, &hold, LEASE, "x", 1), 0);
        if (is_synced)
            assert_int_equal(storage_sync_names(storage, "run/leases"), 0);
        storage_release(storage, hold);
        assert_false(bed_exists(storage, LEASE));
        assert_int_equal(storage_find_holder(storage, LEASE), ERR_NOT_FOUND);
        assert_int_equal(storage_fault_crash(storage), 0);
        assert_int_equal(bed_exists(storage, LEASE), is_synced);
        assert_int_equal(storage_find_holder(storage, LEASE), ERR_NOT_FOUND);
        storage_close(storage);
        bed_remove_directory(directory);
    }
}

/* ---- single faults ---- */

static void test_fault__data_of_a_failed_sync_is_lost_whatever_later_syncs_say(void **state)
{
    (void)state;
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

static void test_fault__torn_write_fails_and_leaves_a_first_part(void **state)
{
    (void)state;
    struct storage *storage = open_fault("torn=1:memory:");
    struct storage_object *object;
    unsigned char *data = bed_buffer(BYTES);
    bed_fill(data, BYTES, 1);
    assert_int_equal(storage_object_create(storage, &object, "shard", BYTES), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES), ERR_IO);
    unsigned char *found = read_object(storage, "shard");
    size_t num_written = 0;
    while (num_written < BYTES && found[num_written] != 0)
        num_written++;
    assert_true(num_written > 0 && num_written < BYTES);
    assert_memory_equal(found, data, num_written);
    assert_true(is_all(found + num_written, BYTES - num_written, 0));
    storage_object_close(storage, object);
    storage_close(storage);
    free(found);
    free(data);
}

static void test_fault__errors_come_at_their_rate(void **state)
{
    (void)state;
    struct storage *storage = open_fault("seed=3,error=0.25:memory:");
    int num_failed = 0;
    uint64_t bytes;
    for (int i = 0; i < 1000; i++)
        num_failed += storage_fetch(storage, "missing", NULL, 0, &bytes) == ERR_IO;
    assert_in_range(num_failed, 200, 300);
    storage_close(storage);
}

static int list_nothing(void *user, const struct storage_entry *entry)
{
    (void)user, (void)entry;
    return 0;
}

static int transfer_with(struct storage *storage, enum storage_op op)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(PAGE);
    char key[32];
    static int number;
    snprintf(key, sizeof(key), "run/shard-%d", number++);
    assert_int_equal(storage_object_create(storage, &object, key, PAGE), 0);
    int error = storage_transfer(storage, op, object, 0, op == STORAGE_SYNC ? NULL : data,
                                 op == STORAGE_SYNC ? 0 : PAGE);
    storage_object_close(storage, object);
    free(data);
    return error;
}

static int call_by_name(struct storage *storage, const char *name)
{
    struct storage_object *object = NULL;
    struct storage_hold *hold = NULL;
    struct storage_space space;
    struct storage_sweep sweep = {0};
    uint64_t bytes;
    static unsigned char page[PAGE] __attribute__((aligned(PAGE)));
    int error = ERR_INVALID; /* there is no such name */
    if (strcmp(name, "read") == 0)
        return transfer_with(storage, STORAGE_READ);
    if (strcmp(name, "write") == 0)
        return transfer_with(storage, STORAGE_WRITE);
    if (strcmp(name, "sync") == 0)
        return transfer_with(storage, STORAGE_SYNC);
    if (strcmp(name, "create") == 0)
        error = storage_object_create(storage, &object, "run/created", PAGE);
    if (strcmp(name, "open") == 0)
        error = storage_object_open(storage, &object, "run/old", &bytes);
    if (strcmp(name, "publish") == 0)
        error = storage_publish(storage, "run/new", "x", 1);
    if (strcmp(name, "fetch") == 0)
        error = storage_fetch(storage, "run/old", NULL, 0, &bytes);
    if (strcmp(name, "list") == 0)
        error = storage_list(storage, "run", list_nothing, NULL);
    if (strcmp(name, "remove") == 0)
        error = storage_remove(storage, "run/gone");
    if (strcmp(name, "sync_names") == 0)
        error = storage_sync_names(storage, "run");
    if (strcmp(name, "register") == 0)
        error = storage_register_buffers(storage, &(struct iovec){page, PAGE}, 1);
    if (strcmp(name, "lock") == 0)
        error = storage_lock(storage);
    if (strcmp(name, "space") == 0)
        error = storage_space(storage, &space);
    if (strcmp(name, "hold") == 0)
        error = storage_hold(storage, &hold, LEASE, "x", 1);
    if (strcmp(name, "find_holder") == 0)
        error = storage_find_holder(storage, "run/old");
    if (strcmp(name, "sweep") == 0)
        error = storage_sweep(storage, "run", &sweep);
    storage_object_close(storage, object);
    storage_release(storage, hold);
    return error;
}

/* Of each one the first fails, with that errno and no effect, and the second is as ever. */
static void test_fault__each_call_can_be_made_to_fail_by_its_name(void **state)
{
    (void)state;
    static const char *const names[] = {
        "read",   "write",      "sync",     "create", "open",  "publish", "fetch",       "list",
        "remove", "sync_names", "register", "lock",   "space", "hold",    "find_holder", "sweep"};
    char directory[BED_PATH_BYTES], settings[64];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        bed_make_directory(directory);
        struct storage *plain; /* whose calls do not count */
        assert_int_equal(storage_open(&plain, &storage_local, directory, NULL), 0);
        assert_int_equal(storage_publish(plain, "run/old", "old", 3), 0);
        assert_int_equal(storage_publish(plain, "run/gone", "x", 1), 0);
        snprintf(settings, sizeof(settings), "only=%s,fail_at=1,errno=%d", names[i], EMFILE);
        struct storage *storage = open_over(directory, settings);
        assert_int_equal(call_by_name(storage, names[i]), ERR_BUSY);
        assert_int_equal(storage_fault_operations(storage), 1);
        assert_false(bed_exists(plain, "run/created") || bed_exists(plain, "run/new") ||
                     bed_exists(plain, LEASE));
        assert_true(bed_exists(plain, "run/gone"));
        int error = call_by_name(storage, names[i]);
        assert_int_equal(error, strcmp(names[i], "find_holder") == 0 ? ERR_NOT_FOUND : 0);
        assert_int_equal(storage_fault_operations(storage), 2);
        storage_close(storage);
        storage_close(plain);
        bed_remove_directory(directory);
    }
}

static int see_links(void *user, const struct storage_entry *entry)
{
    if (strcmp(entry->name, "old") == 0)
        *(uint64_t *)user = entry->links;
    return 0;
}

static void test_fault__lists_say_all_that_the_wrapped_back_end_does(void **state)
{
    (void)state;
    char directory[BED_PATH_BYTES], old[BED_PATH_BYTES + 16], new[BED_PATH_BYTES + 16];
    uint64_t links = 0;
    bed_make_directory(directory);
    struct storage *storage = open_over(directory, "lost=1");
    assert_int_equal(storage_publish(storage, "old", "x", 1), 0);
    snprintf(old, sizeof(old), "%s/old", directory);
    snprintf(new, sizeof(new), "%s/new", directory);
    assert_int_equal(link(old, new), 0);
    assert_int_equal(storage_list(storage, "", see_links, &links), 0);
    assert_int_equal(links, 2);
    storage_close(storage);
    bed_remove_directory(directory);
}

/* One save as the daemon makes it. 0 when it is acknowledged, else the first error. */
static int save(struct storage *storage)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(BYTES);
    bed_fill(data, BYTES, 1);
    int error = storage_object_create(storage, &object, "run/step/shard", BYTES);
    if (error != 0)
        goto free_data;
    error = storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES / 2);
    if (error == 0)
        error = storage_transfer(storage, STORAGE_WRITE, object, BYTES / 2, data + BYTES / 2,
                                 BYTES / 2);
    if (error == 0)
        error = sync_object(storage, object);
    storage_object_close(storage, object);
    if (error == 0)
        error = storage_sync_names(storage, "run/step");
    if (error == 0)
        error = storage_publish(storage, "run/step/manifest", "whole", 5);
free_data:
    free(data);
    return error;
}

static void test_fault__every_operation_of_a_save_fails_once_and_none_is_half_done(void **state)
{
    (void)state;
    int num_failures = 0;
    for (int n = 1;; n++) {
        char where[64];
        snprintf(where, sizeof(where), "lost=1,fail_at=%d:memory:", n);
        struct storage *storage = open_fault(where);
        int error = save(storage);
        assert_true(error == 0 || error == ERR_IO);
        assert_int_equal(storage_fault_crash(storage), 0);
        /* The manifest stands exactly when the save was acknowledged, and then all is there. */
        if (error == 0) {
            /* The n-th operation is still to come. */
            assert_int_equal(storage_sync_names(storage, ""), ERR_IO);
            bed_expect(storage, "run/step/shard", BYTES, 1);
            assert_true(bed_exists(storage, "run/step/manifest"));
        } else {
            assert_false(bed_exists(storage, "run/step/manifest"));
            num_failures++;
        }
        storage_close(storage);
        if (error == 0)
            break;
    }
    assert_int_equal(num_failures, 6); /* create, two writes, sync, sync_names, publish */
}

static void test_fault__acknowledged_saves_survive_any_seed(void **state)
{
    (void)state;
    int num_acknowledged = 0, num_failed = 0;
    for (unsigned seed = 1; seed <= 200; seed++) {
        char where[96];
        snprintf(where, sizeof(where), "seed=%u,error=0.1,short=0.3,torn=0.1:memory:", seed);
        struct storage *storage = open_fault(where);
        int error = save(storage);
        assert_int_equal(storage_fault_crash(storage), 0);
        struct storage_object *object;
        uint64_t bytes;
        int opened = ERR_IO;
        for (int i = 0; i < 50 && opened == ERR_IO; i++) /* reads may meet faults too */
            opened = storage_object_open(storage, &object, "run/step/manifest", &bytes);
        assert_int_equal(opened, error == 0 ? 0 : ERR_NOT_FOUND);
        if (opened == 0)
            storage_object_close(storage, object);
        num_acknowledged += error == 0;
        num_failed += error != 0;
        storage_close(storage);
    }
    assert_true(num_acknowledged > 20 && num_failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault__bad_settings_are_refused_by_name),
        cmocka_unit_test(test_fault_crash__synced_data_and_names_survive),
        cmocka_unit_test(test_fault_crash__unsynced_data_is_lost),
        cmocka_unit_test(test_fault_crash__only_what_was_written_after_the_sync_is_lost),
        cmocka_unit_test(test_fault_crash__unsynced_names_vanish_with_what_is_below),
        cmocka_unit_test(test_fault_crash__unsynced_removals_come_back),
        cmocka_unit_test(test_fault_crash__a_name_made_anew_does_not_turn_into_the_old_one),
        cmocka_unit_test(test_fault_crash__seeds_keep_lose_and_tear_and_repeat_themselves),
        cmocka_unit_test(test_fault_crash__objects_opened_before_it_are_dead),
        cmocka_unit_test(test_fault_crash__requests_on_the_way_end_with_an_error),
        cmocka_unit_test(test_fault_crash__shows_in_the_wrapped_directory),
        cmocka_unit_test(test_fault_crash__ends_holds_and_may_leave_their_files),
        cmocka_unit_test(test_fault_crash__brings_back_a_released_file_that_was_durable),
        cmocka_unit_test(test_fault__data_of_a_failed_sync_is_lost_whatever_later_syncs_say),
        cmocka_unit_test(test_fault__torn_write_fails_and_leaves_a_first_part),
        cmocka_unit_test(test_fault__errors_come_at_their_rate),
        cmocka_unit_test(test_fault__each_call_can_be_made_to_fail_by_its_name),
        cmocka_unit_test(test_fault__lists_say_all_that_the_wrapped_back_end_does),
        cmocka_unit_test(test_fault__every_operation_of_a_save_fails_once_and_none_is_half_done),
        cmocka_unit_test(test_fault__acknowledged_saves_survive_any_seed),
    };
    return cmocka_run_group_tests_name("storage_fault", tests, NULL, NULL);
}
