/* storage_contract.c - the contract of every back-end, on every back-end and both engines.
 *
 * Goal: callers need not know their back-end. Method: one list of cases, run once for each row of a
 * table of back-ends on a fresh store. The name of a case carries the row's name. */
#include "storage/numbered.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#define BLOCK (64u << 10)
#define NUM_BLOCKS 16u
#define NUM_THREADS 8u
#define NUM_NUMBERS 100u
#define REQUESTS_PER_THREAD 64u

struct backend {
    const char *name;
    const char *ops;
    const char *where; /* before a fresh directory, where it is on a disk */
    struct storage_options options;
    bool is_on_disk, needs_io_uring;
};

static const struct backend backends[] = {
    {"local, io_uring", "local", "", {0}, true, true},
    {"local, io_uring of depth 1", "local", "", {.queue_depth = 1}, true, true},
    {"local, pwrite", "local", "", {.force_pwrite = true}, true, false},
    {"memory", "memory", "", {0}, false, false},
    {"fault over memory", "fault", "delay_us=50:memory:", {0}, false, false},
    {"fault over local", "fault", "seed=7:local:", {0}, true, false},
};

static struct storage *storage; /* of the case that runs */
static char directory[BED_PATH_BYTES];

static int setup(void **state)
{
    const struct backend *backend = *state;
    char where[2 * BED_PATH_BYTES];
    bed_make_directory(directory);
    snprintf(where, sizeof(where), "%s%s", backend->where, backend->is_on_disk ? directory : "");
    return storage_open(&storage, storage_find(backend->ops), where, &backend->options);
}

static int teardown(void **state)
{
    (void)state;
    storage_close(storage);
    bed_remove_directory(directory);
    return 0;
}

TEST(test_storage__blocks_written_out_of_order_read_back)
{
    struct storage_object *object;
    struct bed_wait wait;
    struct storage_request requests[NUM_BLOCKS];
    unsigned char *data = bed_buffer(NUM_BLOCKS * BLOCK);
    bed_fill(data, NUM_BLOCKS * BLOCK, 3);
    bed_wait_init(&wait);
    assert_int_equal(storage_object_create(storage, &object, "run/step/shard", NUM_BLOCKS * BLOCK),
                     0);
    for (uint32_t i = 0; i < NUM_BLOCKS; i++) {
        uint32_t block = (i * 7 + 5) % NUM_BLOCKS;
        requests[i] =
            bed_request(STORAGE_WRITE, object, block * BLOCK, data + block * BLOCK, BLOCK, &wait);
        storage_submit(storage, &requests[i]);
    }
    bed_wait_for(&wait, NUM_BLOCKS);
    for (uint32_t i = 0; i < NUM_BLOCKS; i++)
        assert_int_equal(requests[i].error, 0);
    assert_int_equal(storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0), 0);
    storage_object_close(storage, object);
    assert_int_equal(storage_sync_names(storage, "run/step"), 0);
    bed_expect(storage, "run/step/shard", NUM_BLOCKS * BLOCK, 3);
    bed_wait_deinit(&wait);
    free(data);
}

TEST(test_storage__created_object_reads_as_zeros_and_stays_after_close)
{
    struct storage_object *object;
    uint64_t bytes = 0;
    unsigned char *data = bed_buffer(BLOCK), *zeros = bed_buffer(BLOCK);
    memset(data, 1, BLOCK);
    assert_int_equal(storage_object_create(storage, &object, "fresh", BLOCK), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, data, BLOCK), 0);
    assert_memory_equal(data, zeros, BLOCK);
    storage_object_close(storage, object);
    assert_int_equal(storage_fetch(storage, "fresh", NULL, 0, &bytes), 0);
    assert_int_equal(bytes, BLOCK);
    free(data);
    free(zeros);
}

TEST(test_storage__create_refuses_a_taken_name_and_a_ragged_size)
{
    struct storage_object *object;
    bed_put(storage, NULL, "a/shard", BLOCK, 1);
    assert_int_equal(storage_object_create(storage, &object, "a/shard", BLOCK), ERR_EXISTS);
    assert_null(object);
    assert_int_equal(storage_object_create(storage, &object, "a", BLOCK), ERR_EXISTS);
    bed_expect(storage, "a/shard", BLOCK, 1);
    assert_int_equal(storage_object_create(storage, &object, "ragged", 4097), ERR_INVALID);
    assert_false(bed_exists(storage, "ragged"));
}

TEST(test_storage__objects_hold_no_objects)
{
    struct storage_object *object;
    uint64_t bytes;
    assert_int_equal(storage_publish(storage, "a", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "a/b", "x", 1), ERR_INVALID);
    assert_int_equal(storage_object_create(storage, &object, "a/b", BLOCK), ERR_INVALID);
    assert_int_equal(storage_fetch(storage, "a/b", NULL, 0, &bytes), ERR_NOT_FOUND);
    assert_int_equal(storage_remove(storage, "a/b"), ERR_NOT_FOUND);
    assert_int_equal(storage_sync_names(storage, "a"), ERR_NOT_FOUND);
}

TEST(test_storage__open_finds_objects_only)
{
    struct storage_object *object;
    uint64_t bytes;
    assert_int_equal(storage_publish(storage, "a/b", "x", 1), 0);
    assert_int_equal(storage_object_open(storage, &object, "missing", &bytes), ERR_NOT_FOUND);
    assert_int_equal(storage_object_open(storage, &object, "a", &bytes), ERR_NOT_FOUND);
    assert_null(object);
}

TEST(test_storage__read_past_the_end_is_damage_and_a_write_there_is_refused)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(2 * BLOCK);
    bed_put(storage, &object, "a", BLOCK, 1);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, data, 2 * BLOCK),
                     ERR_CORRUPT);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, BLOCK, data, BLOCK),
                     ERR_CORRUPT);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, BLOCK, data, BLOCK),
                     ERR_INVALID);
    storage_object_close(storage, object);
    bed_expect(storage, "a", BLOCK, 1);
    free(data);
}

/* Of one request, to its end. */
static int run(struct storage_request request)
{
    struct bed_wait wait;
    bed_wait_init(&wait);
    request.user = &wait;
    storage_submit(storage, &request);
    bed_wait_for(&wait, 1);
    bed_wait_deinit(&wait);
    return request.error;
}

TEST(test_storage__what_was_given_up_is_not_carried_out)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(BLOCK), *found = bed_buffer(BLOCK);
    bed_put(storage, &object, "kept", BLOCK, 1);
    bed_fill(data, BLOCK, 2);
    for (int is_given_up = 1; is_given_up >= 0; is_given_up--) {
        const int want = is_given_up ? ERR_ABORTED : 0;
        atomic_bool given_up = is_given_up;
        struct storage_request request = bed_request(STORAGE_WRITE, object, 0, data, BLOCK, NULL);
        request.given_up = &given_up;
        assert_int_equal(run(request), want);
        memset(found, 0, BLOCK);
        request.op = STORAGE_READ;
        request.data = found;
        assert_int_equal(run(request), want);
        assert_int_equal(memcmp(found, data, BLOCK) == 0, !is_given_up);
        request = bed_request(STORAGE_SYNC, object, 0, NULL, 0, NULL);
        request.given_up = &given_up;
        assert_int_equal(run(request), 0);
        assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, found, BLOCK), 0);
        assert_int_equal(memcmp(found, data, BLOCK) == 0, !is_given_up);
    }
    storage_object_close(storage, object);
    free(data);
    free(found);
}

TEST(test_storage__publish_is_exclusive_and_may_be_empty)
{
    char text[16] = "";
    uint64_t bytes = 0;
    assert_int_equal(storage_publish(storage, "run/attempts/0001", "first", 5), 0);
    assert_int_equal(storage_publish(storage, "run/attempts/0001", "second", 6), ERR_EXISTS);
    assert_int_equal(storage_publish(storage, "run/attempts", "x", 1), ERR_EXISTS);
    assert_int_equal(storage_fetch(storage, "run/attempts/0001", text, sizeof(text), &bytes), 0);
    assert_int_equal(bytes, 5);
    assert_string_equal(text, "first");
    assert_int_equal(storage_publish(storage, "empty", NULL, 0), 0);
    assert_int_equal(storage_fetch(storage, "empty", NULL, 0, &bytes), 0);
    assert_int_equal(bytes, 0);
}

static void *publish_once(void *argument)
{
    (void)argument;
    return storage_publish(storage, "race/one", "x", 1) == 0 ? storage : NULL;
}

TEST(test_storage__one_of_many_publishers_wins)
{
    pthread_t threads[NUM_THREADS];
    int winners = 0;
    for (uint32_t i = 0; i < NUM_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, publish_once, storage), 0);
    for (uint32_t i = 0; i < NUM_THREADS; i++) {
        void *won;
        pthread_join(threads[i], &won);
        winners += won != NULL;
    }
    assert_int_equal(winners, 1);
}

TEST(test_storage__fetch_reads_a_start_and_tells_the_whole_size)
{
    char text[5] = "";
    uint64_t bytes = 0;
    void *all;
    size_t all_bytes;
    assert_int_equal(storage_publish(storage, "a", "0123456789", 10), 0);
    assert_int_equal(storage_fetch(storage, "a", text, 4, &bytes), 0);
    assert_int_equal(bytes, 10);
    assert_string_equal(text, "0123");
    assert_int_equal(storage_fetch_all(storage, "a", 10, &all, &all_bytes), 0);
    assert_int_equal(all_bytes, 10);
    assert_string_equal(all, "0123456789");
    free(all);
    assert_int_equal(storage_fetch_all(storage, "a", 9, &all, &all_bytes), ERR_CORRUPT);
    assert_int_equal(storage_fetch_all(storage, "b", 9, &all, &all_bytes), ERR_NOT_FOUND);
}

TEST(test_storage__of_numbered_objects_the_highest_counts)
{
    char text[8] = "nothing";
    uint64_t number = 9;
    assert_int_equal(storage_fetch_numbered(storage, "run/n", &number, text, sizeof text), 0);
    assert_true(number == 0 && text[0] == '\0');
    assert_int_equal(storage_publish_numbered(storage, "run/n", 0, "first"), 0);
    assert_int_equal(storage_publish_numbered(storage, "run/n", 0, "second"), ERR_EXISTS);
    assert_int_equal(storage_publish_numbered(storage, "run/n", 1, "second and more"), 0);
    /* Names of others: not our digits, too many, a directory. */
    assert_int_equal(storage_publish(storage, "run/n/99-and-more", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/n/99", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/n/-0000000000000000005", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/n/000000000000000000099", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/n/99999999999999999999", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/n/00000000000000000099/x", "x", 1), 0);
    assert_int_equal(storage_fetch_numbered(storage, "run/n", &number, text, sizeof text), 0);
    assert_true(number == 2);
    assert_string_equal(text, "second ");
    /* Remains of older ones are removed with the next. */
    assert_int_equal(storage_publish_numbered(storage, "run/n", 2, "third"), 0);
    assert_true(!bed_exists(storage, "run/n/00000000000000000001") &&
                bed_exists(storage, "run/n/00000000000000000002"));
    assert_true(bed_exists(storage, "run/n/99-and-more") && bed_exists(storage, "run/n/99"));
}

static _Atomic int publish_error;

static void *publish_numbers(void *unused)
{
    (void)unused;
    publish_error = 0;
    for (uint64_t number = 0; number < NUM_NUMBERS && publish_error == 0; number++)
        publish_error = storage_publish_numbered(storage, "run/m", number, "text");
    return NULL;
}

TEST(test_storage__a_numbered_object_is_replaced_under_its_reader)
{
    pthread_t writer;
    char text[8] = "";
    uint64_t number = 0, before = 0;
    assert_int_equal(pthread_create(&writer, NULL, publish_numbers, storage), 0);
    do
        before = number;
    while (storage_fetch_numbered(storage, "run/m", &number, text, sizeof text) == 0 &&
           number >= before && number < NUM_NUMBERS && publish_error == 0);
    pthread_join(writer, NULL); /* before an assertion closes the store under it */
    assert_true(publish_error == 0 && number == NUM_NUMBERS);
    assert_string_equal(text, "text");
}

struct seen {
    int num_files, num_dirs, num_calls, stop_at;
    uint64_t bytes;
};

static int see_entry(void *user, const struct storage_entry *entry)
{
    struct seen *seen = user;
    seen->num_files += !entry->is_dir;
    seen->num_dirs += entry->is_dir;
    seen->bytes += entry->bytes;
    assert_null(strchr(entry->name, '/'));
    return ++seen->num_calls == seen->stop_at ? 42 : 0;
}

TEST(test_storage__list_shows_what_is_directly_below)
{
    struct seen seen = {0};
    assert_int_equal(storage_publish(storage, "run/a", "xx", 2), 0);
    assert_int_equal(storage_publish(storage, "run/b", "yyy", 3), 0);
    assert_int_equal(storage_publish(storage, "run/dir/c", "z", 1), 0);
    assert_int_equal(storage_publish(storage, "running", "z", 1), 0);
    assert_int_equal(storage_list(storage, "run", see_entry, &seen), 0);
    assert_int_equal(seen.num_files, 2);
    assert_int_equal(seen.num_dirs, 1);
    assert_int_equal(seen.bytes, 5);
    seen = (struct seen){0};
    assert_int_equal(storage_list(storage, "", see_entry, &seen), 0);
    assert_int_equal(seen.num_files, 1);
    assert_int_equal(seen.num_dirs, 1);
    seen = (struct seen){.stop_at = 2};
    assert_int_equal(storage_list(storage, "run", see_entry, &seen), 42);
    assert_int_equal(seen.num_calls, 2);
    seen = (struct seen){0};
    assert_int_equal(storage_list(storage, "missing", see_entry, &seen), 0);
    assert_int_equal(storage_list(storage, "run/a", see_entry, &seen), 0);
    assert_int_equal(seen.num_calls, 0);
}

static int remove_entry(void *user, const struct storage_entry *entry)
{
    char key[64];
    snprintf(key, sizeof(key), "run/%s", entry->name);
    ++*(int *)user;
    return storage_remove(storage, key);
}

TEST(test_storage__list_may_remove_what_it_visits)
{
    int num_removed = 0;
    assert_int_equal(storage_publish(storage, "run/a", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "run/b", "x", 1), 0);
    assert_int_equal(storage_list(storage, "run", remove_entry, &num_removed), 0);
    assert_int_equal(num_removed, 2);
    assert_int_equal(storage_remove(storage, "run"), 0);
}

TEST(test_storage__remove_takes_objects_and_empty_directories)
{
    assert_int_equal(storage_publish(storage, "run/a", "x", 1), 0);
    assert_int_equal(storage_remove(storage, "run"), ERR_EXISTS);
    assert_int_equal(storage_remove(storage, "run/b"), ERR_NOT_FOUND);
    assert_int_equal(storage_remove(storage, "other/b"), ERR_NOT_FOUND);
    assert_int_equal(storage_remove(storage, "run/a"), 0);
    assert_int_equal(storage_remove(storage, "run/a"), ERR_NOT_FOUND);
    assert_int_equal(storage_remove(storage, "run"), 0);
    assert_int_equal(storage_sync_names(storage, ""), 0);
    assert_int_equal(storage_sync_names(storage, "run"), ERR_NOT_FOUND);
    assert_int_equal(storage_publish(storage, "run/a", "y", 1), 0);
}

TEST(test_storage__rename_moves_a_tree_and_replaces_nothing)
{
    char text[4] = "";
    uint64_t bytes;
    assert_int_equal(storage_publish(storage, "run/deep/a", "x", 1), 0);
    assert_int_equal(storage_publish(storage, "runner/a", "z", 1), 0);
    assert_int_equal(storage_rename(storage, "run", "runner"), ERR_EXISTS);
    assert_int_equal(storage_rename(storage, "none", "new"), ERR_NOT_FOUND);
    assert_int_equal(storage_rename(storage, "run", "other/new"), 0);
    assert_int_equal(storage_fetch(storage, "other/new/deep/a", text, 1, &bytes), 0);
    assert_string_equal(text, "x");
    assert_int_equal(storage_fetch(storage, "runner/a", text, 1, &bytes), 0);
    assert_string_equal(text, "z");
    assert_int_equal(storage_fetch(storage, "run/deep/a", text, 1, &bytes), ERR_NOT_FOUND);
    assert_int_equal(storage_publish(storage, "run/deep/a", "y", 1), 0);
}

TEST(test_storage__replace_puts_one_object_in_the_place_of_another)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(BLOCK), *expected = bed_buffer(BLOCK);
    char text[4] = "";
    uint64_t bytes;
    bed_fill(expected, BLOCK, 5);
    bed_put(storage, &object, "run/a", BLOCK, 5);
    assert_int_equal(storage_publish(storage, "run/a.new", "x", 1), 0);
    if (!storage_replaces(storage)) {
        assert_int_equal(storage_replace(storage, "run/a.new", "run/a"), ERR_INVALID);
    } else {
        assert_int_equal(storage_replace(storage, "run/none", "run/a"), ERR_NOT_FOUND);
        assert_int_equal(storage_replace(storage, "run/a.new", "run/a"), 0);
        assert_int_equal(storage_fetch(storage, "run/a", text, 1, &bytes), 0);
        assert_string_equal(text, "x");
        assert_int_equal(bytes, 1);
        assert_int_equal(storage_fetch(storage, "run/a.new", text, 1, &bytes), ERR_NOT_FOUND);
    }
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, data, BLOCK), 0);
    assert_memory_equal(data, expected, BLOCK); /* a process that has it open keeps its bytes */
    storage_object_close(storage, object);
    free(expected);
    free(data);
}

TEST(test_storage__removed_object_stays_readable_while_open)
{
    struct storage_object *object;
    unsigned char *data = bed_buffer(BLOCK), *expected = bed_buffer(BLOCK);
    bed_fill(expected, BLOCK, 5);
    bed_put(storage, &object, "a", BLOCK, 5);
    assert_int_equal(storage_remove(storage, "a"), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_READ, object, 0, data, BLOCK), 0);
    assert_memory_equal(data, expected, BLOCK);
    storage_object_close(storage, object);
    assert_false(bed_exists(storage, "a"));
    free(data);
    free(expected);
}

TEST(test_storage__bad_keys_are_refused_everywhere)
{
    char long_key[601], long_name[260];
    memset(long_key, 'a', 600);
    for (int i = 100; i < 600; i += 100)
        long_key[i] = '/';
    long_key[600] = '\0';
    memset(long_name, 'a', 256);
    long_name[256] = '\0';
    const char *keys[] = {"../x",
                          "a/../b",
                          "..",
                          ".",
                          "/a",
                          "a//b",
                          "a/",
                          "a b",
                          "a\nb",
                          "\x01",
                          "a\\b",
                          "caf\xc3\xa9",
                          long_key,
                          long_name,
                          ".holdfast.lock",
                          "a/.holdfast.tmp.1"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct storage_object *object;
        struct seen seen = {0};
        uint64_t bytes;
        assert_int_equal(storage_object_create(storage, &object, keys[i], BLOCK), ERR_INVALID);
        assert_int_equal(storage_object_open(storage, &object, keys[i], &bytes), ERR_INVALID);
        assert_int_equal(storage_publish(storage, keys[i], "x", 1), ERR_INVALID);
        assert_int_equal(storage_fetch(storage, keys[i], NULL, 0, &bytes), ERR_INVALID);
        assert_int_equal(storage_remove(storage, keys[i]), ERR_INVALID);
        assert_int_equal(storage_list(storage, keys[i], see_entry, &seen), ERR_INVALID);
        assert_int_equal(storage_sync_names(storage, keys[i]), ERR_INVALID);
    }
    uint64_t bytes;
    assert_int_equal(storage_publish(storage, "", "x", 1), ERR_INVALID);
    assert_int_equal(storage_fetch(storage, "", NULL, 0, &bytes), ERR_INVALID);
    assert_int_equal(storage_remove(storage, ""), ERR_INVALID);
}

TEST(test_storage__odd_but_legal_keys_are_kept)
{
    char key[STORAGE_KEY_MAX + 1];
    memset(key, 'k', STORAGE_KEY_MAX);
    for (int i = 128; i < STORAGE_KEY_MAX; i += 128)
        key[i] = '/';
    key[STORAGE_KEY_MAX] = '\0';
    const char *keys[] = {"...", ".a", "a..b", "-", "_", "..a/b..", key};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        assert_int_equal(storage_publish(storage, keys[i], "x", 1), 0);
        assert_true(bed_exists(storage, keys[i]));
    }
}

struct submitter {
    struct storage_object *object;
    unsigned char *data;
    uint32_t first;
    struct bed_wait *wait;
    struct storage_request requests[REQUESTS_PER_THREAD];
};

static void *submit_many(void *argument)
{
    struct submitter *submitter = argument;
    for (uint32_t i = 0; i < REQUESTS_PER_THREAD; i++) {
        uint64_t at = (uint64_t)(submitter->first + i) * STORAGE_ALIGN;
        submitter->requests[i] = bed_request(STORAGE_WRITE, submitter->object, at,
                                             submitter->data + at, STORAGE_ALIGN, submitter->wait);
        storage_submit(storage, &submitter->requests[i]);
    }
    return NULL;
}

TEST(test_storage__many_threads_submit_at_once)
{
    const uint32_t count = NUM_THREADS * REQUESTS_PER_THREAD, bytes = count * STORAGE_ALIGN;
    struct submitter *submitters = calloc(NUM_THREADS, sizeof(*submitters));
    pthread_t threads[NUM_THREADS];
    struct storage_object *object;
    struct bed_wait wait;
    unsigned char *data = bed_buffer(bytes);
    bed_fill(data, bytes, 9);
    bed_wait_init(&wait);
    assert_int_equal(storage_object_create(storage, &object, "many", bytes), 0);
    for (uint32_t i = 0; i < NUM_THREADS; i++) {
        submitters[i] = (struct submitter){object, data, i * REQUESTS_PER_THREAD, &wait, {{0}}};
        assert_int_equal(pthread_create(&threads[i], NULL, submit_many, &submitters[i]), 0);
    }
    for (uint32_t i = 0; i < NUM_THREADS; i++)
        pthread_join(threads[i], NULL);
    bed_wait_for(&wait, count);
    assert_int_equal(wait.num_done, count);
    assert_int_equal(wait.overlaps, 0);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(
            submitters[i / REQUESTS_PER_THREAD].requests[i % REQUESTS_PER_THREAD].error, 0);
    storage_object_close(storage, object);
    bed_expect(storage, "many", bytes, 9);
    bed_wait_deinit(&wait);
    free(submitters);
    free(data);
}

struct chain {
    struct storage_request request;
    unsigned char *data;
    struct bed_wait *wait;
};

static void write_next(struct storage_request *request)
{
    struct chain *chain = request->user;
    uint64_t next = request->offset + STORAGE_ALIGN;
    /* The last one of the chain is refused, past the end: its callback ends the chain. */
    if (request->error == 0) {
        request->offset = next;
        request->data = chain->data + next % BLOCK;
        storage_submit(storage, request);
        return;
    }
    request->user = chain->wait;
    bed_count_done(request);
}

TEST(test_storage__callbacks_may_submit)
{
    struct bed_wait wait;
    struct chain chain = {.data = bed_buffer(BLOCK), .wait = &wait};
    struct storage_object *object;
    bed_wait_init(&wait);
    bed_fill(chain.data, BLOCK, 4);
    assert_int_equal(storage_object_create(storage, &object, "chain", BLOCK), 0);
    chain.request = bed_request(STORAGE_WRITE, object, 0, chain.data, STORAGE_ALIGN, &wait);
    chain.request.done = write_next;
    chain.request.user = &chain;
    storage_submit(storage, &chain.request);
    bed_wait_for(&wait, 1);
    assert_int_equal(chain.request.error, ERR_INVALID);
    assert_int_equal(chain.request.offset, BLOCK);
    storage_object_close(storage, object);
    bed_expect(storage, "chain", BLOCK, 4);
    bed_wait_deinit(&wait);
    free(chain.data);
}

static void write_inside(struct storage_request *request)
{
    struct chain *chain = request->user;
    CHECK(request->error == ERR_INVALID);
    request->offset = 0;
    request->done = bed_count_done;
    request->user = chain->wait;
    storage_submit(storage, request);
}

TEST(test_storage__callback_of_a_refused_request_may_submit)
{
    struct bed_wait wait;
    struct chain chain = {.data = bed_buffer(BLOCK), .wait = &wait};
    struct storage_object *object;
    bed_wait_init(&wait);
    bed_fill(chain.data, BLOCK, 4);
    assert_int_equal(storage_object_create(storage, &object, "again", BLOCK), 0);
    for (uint32_t i = 1; i <= 20; i++) { /* an engine that is asleep, and one that just was awake */
        chain.request = bed_request(STORAGE_WRITE, object, BLOCK, chain.data, BLOCK, &wait);
        chain.request.done = write_inside;
        chain.request.user = &chain;
        storage_submit(storage, &chain.request);
        bed_wait_for(&wait, i);
        assert_int_equal(chain.request.error, 0);
    }
    storage_object_close(storage, object);
    bed_expect(storage, "again", BLOCK, 4);
    bed_wait_deinit(&wait);
    free(chain.data);
}

/* data[0] is written from buffer 0 and read back into buffer 1, data[1]. */
static void write_and_read_registered(const char *name, unsigned char *const data[2])
{
    struct storage_object *object;
    assert_int_equal(storage_object_create(storage, &object, name, BLOCK), 0);
    for (int i = 0; i < 2; i++) {
        struct storage_request request =
            bed_request(i == 0 ? STORAGE_WRITE : STORAGE_READ, object, 0, data[i], BLOCK, NULL);
        request.buffer = i;
        assert_int_equal(run(request), 0);
    }
    assert_memory_equal(data[0], data[1], BLOCK);
    storage_object_close(storage, object);
}

/* Before the buffers go. */
static void close_storage(void)
{
    storage_close(storage);
    storage = NULL;
}

TEST(test_storage__registered_buffers_write_and_read)
{
    unsigned char *data[2] = {bed_buffer(BLOCK), bed_buffer(BLOCK)};
    struct iovec buffers[2] = {{data[0], BLOCK}, {data[1], BLOCK}};
    bed_fill(data[0], BLOCK, 6);
    assert_int_equal(storage_register_buffers(storage, buffers, 2), 0);
    write_and_read_registered("fixed", data);
    close_storage();
    free(data[0]);
    free(data[1]);
}

TEST(test_storage__places_are_filled_emptied_and_filled_again)
{
    const struct iovec places[2] = {{NULL, BLOCK}, {NULL, BLOCK}};
    unsigned char *data[4] = {bed_buffer(BLOCK), bed_buffer(BLOCK), bed_buffer(BLOCK),
                              bed_buffer(BLOCK)};
    assert_int_equal(storage_register_buffers(storage, places, 2), 0);
    for (uint32_t i = 0; i < 4; i += 2) {
        bed_fill(data[i], BLOCK, 8 + i);
        for (uint32_t place = 0; place < 2; place++) {
            storage_replace_buffer(storage, place, NULL);
            storage_replace_buffer(storage, place, &(struct iovec){data[i + place], BLOCK});
        }
        write_and_read_registered(i == 0 ? "first" : "second", &data[i]);
    }
    close_storage();
    for (uint32_t i = 0; i < 4; i++)
        free(data[i]);
}

TEST(test_storage__tells_its_space_and_itself)
{
    struct storage_space space;
    assert_int_equal(storage_space(storage, &space), 0);
    assert_true(space.bytes_total > 0);
    assert_true(space.bytes_free <= space.bytes_total);
    assert_true(strlen(storage_describe(storage)) > 5);
    assert_null(storage_find("tape"));
}

int main(void)
{
    enum { NUM_BACKENDS = sizeof(backends) / sizeof(backends[0]) };
    static struct CMUnitTest tests[NUM_BACKENDS * SUITE_TESTS_MAX];
    static char names[NUM_BACKENDS * SUITE_TESTS_MAX][160];
    CHECK(suite_num <= SUITE_TESTS_MAX);
    for (size_t i = 0; i < NUM_BACKENDS * suite_num; i++) {
        const struct backend *backend = &backends[i / suite_num];
        const struct CMUnitTest *test = &suite_tests[i % suite_num];
        snprintf(names[i], sizeof(names[i]), "%s (%s)", test->name, backend->name);
        tests[i] = (struct CMUnitTest){names[i], test->test_func, setup, teardown, (void *)backend};
        if (backend->needs_io_uring)
            bed_needs_io_uring(&tests[i]);
    }
    return _cmocka_run_group_tests("storage_contract", tests, NUM_BACKENDS * suite_num, NULL, NULL);
}
