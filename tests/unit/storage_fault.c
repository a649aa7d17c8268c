/* storage_fault.c - the wrapper that injects faults, which other tests rely on. What a loss of
 * power leaves is in storage_fault_crash.c.
 *
 * Goal: every operation can be made to fail. Method: one save is run with its first, second, ...
 * n-th operation failing until it passes, and after each failure and crash the store is looked at.
 */
#include "tests/unit/fault_bed.h"
#include "tests/unit/suite.h"

#include <time.h>

TEST(test_fault__bad_settings_are_refused_by_name)
{
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

/* The percentiles of three writes, which wait up to 0.4 s, beside the time of the middle one and of
 * the slowest: up to a quarter more, and what the test takes for its own less. */
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
    assert_int_equal(measured.of[STORAGE_READ].operations, 0);
    assert_true(measured.of[STORAGE_READ].p99_seconds == 0);
    storage_object_close(storage, object);
    storage_close(storage);
    free(data);
}

TEST(test_fault__torn_write_fails_and_leaves_a_first_part)
{
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
    if (strcmp(name, "rename") == 0)
        error = storage_rename(storage, "run/gone", "run/created");
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
TEST(test_fault__each_call_can_be_made_to_fail_by_its_name)
{
    static const char *const names[] = {"read",        "write",    "sync", "create", "open",
                                        "publish",     "fetch",    "list", "remove", "rename",
                                        "sync_names",  "register", "lock", "space",  "hold",
                                        "find_holder", "sweep"};
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

TEST(test_fault__lists_say_all_that_the_wrapped_back_end_does)
{
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

TEST(test_fault__every_operation_of_a_save_fails_once_and_none_is_half_done)
{
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

TEST(test_fault__acknowledged_saves_survive_any_seed)
{
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

SUITE(NULL, NULL)
