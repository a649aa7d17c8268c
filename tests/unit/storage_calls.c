/* storage_calls.c - each system call of the local back-end fails, once and for ever, with each
 * errno that it may have, or transfers fewer bytes than asked.
 *
 * Goal: every function of storage.h then answers 0 or a code, leaks no descriptor and no file,
 * leaves existing files unchanged, and hides no failure: a publish whose new name was made answers
 * ERR_IO, as a power loss may bring the name back. Short transfers change nothing. Method:
 * calls_bed.h between storage/ and the system; each case is a short use of a store on the pwrite
 * engine, repeated with its n-th call failing, for n = 1, 2, ... until it has no such call. make
 * test makes one in PLANS_APART of these plans, so that each call gets some errnos and each errno
 * some calls; SEED= repeats a run, SAMPLE=1 makes all (sample.h). The io_uring engine makes its
 * calls in the kernel: storage_uring.c has those. */
#include "storage/store/store.h"
#include "tests/unit/calls_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/sample.h"
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

#include "tests/unit/descriptors.h"

#define BYTES (4 * STORAGE_ALIGN)
#define CALLS_MAX 400u
#define PLANS_APART 5u /* a prime, as there are 2^5 plans for each call */

/* ---- a store with something in it ---- */

static char directory[BED_PATH_BYTES];
static const struct storage_options options = {
    .force_pwrite = true, .num_threads = 1, .is_quiet = true};

static struct storage *open_plain(void)
{
    struct storage *storage;
    unsigned first = failing.first;
    failing.first = 0;
    assert_int_equal(storage_open(&storage, &storage_local, directory, &options), 0);
    failing.first = first;
    return storage;
}

static int set_up(void **state)
{
    (void)state;
    failing.first = 0;
    bed_make_directory(directory);
    struct storage *storage = open_plain();
    bed_put(storage, NULL, "run/older/shard", BYTES, 1);
    assert_int_equal(storage_sync_names(storage, "run/older"), 0);
    assert_int_equal(storage_publish(storage, "run/older/manifest", "whole", 5), 0);
    storage_close(storage);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    failing.first = 0;
    bed_remove_directory(directory);
    return 0;
}

/* ---- the cases: each is a use of a store; 0, or the first error ---- */

static int use_open(void)
{
    struct storage *storage;
    int error = storage_open(&storage, &storage_local, directory, &options);
    if (error == 0)
        storage_close(storage);
    return error;
}

static int use_create(void)
{
    struct storage *storage = open_plain();
    struct storage_object *object;
    unsigned char *data = bed_buffer(BYTES);
    bed_fill(data, BYTES, 7);
    int error = storage_object_create(storage, &object, "run/new/deep/shard", BYTES);
    if (error == 0) {
        error = storage_transfer(storage, STORAGE_WRITE, object, 0, data, BYTES);
        if (error == 0)
            error = storage_transfer(storage, STORAGE_SYNC, object, 0, NULL, 0);
        storage_object_close(storage, object);
        if (error == 0)
            error = storage_sync_names(storage, "run/new/deep");
    }
    failing.first = 0;
    if (error == 0)
        bed_expect(storage, "run/new/deep/shard", BYTES, 7);
    storage_close(storage);
    free(data);
    return error;
}

static int use_publish(void)
{
    struct storage *storage = open_plain();
    failing.was_named = false;
    int error = storage_publish(storage, "run/new/manifest", "its text", 8);
    bool was_named = failing.was_named, removal_failed = failing.for_ever;
    failing.first = 0;
    bool exists = bed_exists(storage, "run/new/manifest");
    if (error == 0) {
        char text[8];
        uint64_t bytes;
        assert_int_equal(storage_fetch(storage, "run/new/manifest", text, 8, &bytes), 0);
        assert_true(bytes == 8 && memcmp(text, "its text", 8) == 0);
    } else {
        assert_true(!exists || removal_failed);
        assert_true(!was_named || error == ERR_IO);
    }
    storage_close(storage);
    return error;
}

static int use_read(void)
{
    struct storage *storage = open_plain();
    struct storage_object *object;
    unsigned char *data = bed_buffer(BYTES), *want = bed_buffer(BYTES);
    uint64_t bytes = 0;
    char text[8] = "";
    bed_fill(want, BYTES, 1);
    int error = storage_object_open(storage, &object, "run/older/shard", &bytes);
    if (error == 0) {
        assert_int_equal(bytes, BYTES);
        error = storage_transfer(storage, STORAGE_READ, object, 0, data, BYTES);
        assert_true(error != 0 || memcmp(data, want, BYTES) == 0);
        storage_object_close(storage, object);
    }
    int fetched = storage_fetch(storage, "run/older/manifest", text, 8, &bytes);
    assert_true(fetched != 0 || (bytes == 5 && strcmp(text, "whole") == 0));
    storage_close(storage);
    free(data);
    free(want);
    return error != 0 ? error : fetched;
}

static int count_entry(void *user, const struct storage_entry *entry)
{
    unsigned *count = user;
    *count += 1 + entry->is_dir;
    return 0;
}

static int use_list(void)
{
    struct storage *storage = open_plain();
    unsigned above = 0, below = 0;
    int error = storage_list(storage, "run", count_entry, &above);
    assert_true(error != 0 || above == 2);
    if (error == 0)
        error = storage_list(storage, "run/older", count_entry, &below);
    assert_true(error != 0 || below == 2); /* never a part of it as if it were all */
    storage_close(storage);
    return error;
}

static int use_remove(void)
{
    struct storage *storage = open_plain();
    unsigned first = failing.first, calls = failing.calls;
    failing.first = 0;
    assert_int_equal(storage_publish(storage, "run/gone/file", "x", 1), 0);
    failing.first = first;
    failing.calls = calls;
    unsigned entries = 0;
    int file = storage_remove(storage, "run/gone/file");
    int folder = file != 0 ? file : storage_remove(storage, "run/gone");
    int error = folder != 0 ? folder : storage_sync_names(storage, "run");
    failing.first = 0;
    assert_true(file != 0 || !bed_exists(storage, "run/gone/file"));
    assert_int_equal(storage_list(storage, "run", count_entry, &entries), 0);
    assert_true(folder != 0 || entries == 2); /* "older" alone: one, and one for a directory */
    storage_close(storage);
    return error;
}

static int use_lock_and_space(void)
{
    struct storage *storage = open_plain();
    struct storage_space space;
    int error = storage_lock(storage);
    if (error == 0)
        error = storage_space(storage, &space);
    assert_true(error != 0 || (space.bytes_total > 0 && space.inodes_total > 0));
    storage_close(storage);
    return error;
}

/* A reader that got a lease is visible to every remover. */
static int use_lease(void)
{
    struct storage *storage = open_plain();
    struct storage_hold *hold = NULL;
    unsigned count = 0;
    int error = store_lease(storage, &hold, "run/older", "a reader");
    assert_int_equal(error == 0, hold != NULL);
    if (error == 0)
        error = store_for_leases(storage, "run", count_entry, &count);
    assert_true(error != 0 || count == 1);
    storage_release(storage, hold);
    storage_close(storage);
    return error;
}

static int use_sweep(void)
{
    struct storage *storage = open_plain();
    struct storage_sweep sweep = {.removes = true};
    char path[BED_PATH_BYTES + 40];
    snprintf(path, sizeof path, "%s/run/.holdfast.tmp.0123456789abcdef", directory);
    int fd = __real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    int error = storage_sweep(storage, "run", &sweep);
    bool is_gone = access(path, F_OK) != 0;
    assert_true(error != 0 || (is_gone && sweep.files == 1));
    assert_true(is_gone || unlink(path) == 0);
    storage_close(storage);
    return error;
}

/* ---- all plans for one case ---- */

static void check_older(void)
{
    struct storage *storage = open_plain();
    char text[8] = "";
    uint64_t bytes;
    bed_expect(storage, "run/older/shard", BYTES, 1);
    assert_int_equal(storage_fetch(storage, "run/older/manifest", text, 8, &bytes), 0);
    assert_string_equal(text, "whole");
    storage_close(storage);
}

static int find_temporary(const char *path, const struct stat *status, int type, struct FTW *walk)
{
    (void)status, (void)type, (void)walk;
    return strstr(path, "/.holdfast.tmp.") != NULL;
}

/* Runs a case once with a plan; returns how many calls it made. */
static unsigned run_case(int (*use)(void), unsigned first, int number, bool for_ever, bool is_short)
{
    unsigned before = count_descriptors();
    failing.number = number;
    failing.for_ever = for_ever;
    failing.is_short = is_short;
    failing.calls = 0;
    failing.first = first;
    int error = use();
    unsigned calls = failing.calls;
    failing.first = 0;
    if (error > 0 || error < ERR_INTERNAL || (is_short && error != 0) ||
        count_descriptors() != before)
        fail_msg("call %u, errno %d, %s: answer %d (%s), %u descriptors instead of %u", first,
                 number,
                 is_short   ? "short"
                 : for_ever ? "for ever"
                            : "once",
                 error, report_line(), count_descriptors(), before);
    check_older();
    if (!for_ever) /* a file that cannot be removed any more stays, hidden */
        assert_int_equal(nftw(directory, find_temporary, 16, FTW_PHYS), 0);
    struct storage *storage = open_plain(); /* for the next plan */
    storage_remove(storage, "run/new/deep/shard");
    storage_remove(storage, "run/new/deep");
    storage_remove(storage, "run/new/manifest");
    storage_remove(storage, "run/new");
    storage_remove(storage, "run/gone/file");
    storage_remove(storage, "run/gone");
    storage_sweep(storage, "run/leases", &(struct storage_sweep){.removes = true});
    storage_close(storage);
    return calls;
}

/* The failure at a call. */
static const struct happening {
    int number;    /* errno; 0: the transfer is short */
    bool can_last; /* an interrupted caller retries as long as EINTR comes */
} happenings[] = {{EIO, true},        {ENOSPC, true},    {EDQUOT, true}, {EROFS, true},
                  {EACCES, true},     {EPERM, true},     {EMFILE, true}, {ENFILE, true},
                  {ENOMEM, true},     {ESTALE, true},    {EINVAL, true}, {EFBIG, true},
                  {EOPNOTSUPP, true}, {ETIMEDOUT, true}, {EINTR, false}, {EAGAIN, false},
                  {0, true}};

static void run_all(int (*use)(void))
{
    unsigned runs = 0, calls = run_case(use, 0, 0, false, false);
    assert_true(calls > 2 && calls < CALLS_MAX);
    seed_random();
    struct sample sample = sample_begin(PLANS_APART);
    for (unsigned first = 1; first <= calls; first++)
        for (size_t i = 0; i < 2 * sizeof happenings / sizeof happenings[0]; i++) {
            const struct happening *happening = &happenings[i / 2];
            bool for_ever = i % 2 == 1;
            if ((for_ever && !happening->can_last) || !sample_takes(&sample))
                continue;
            run_case(use, first, happening->number, for_ever, happening->number == 0);
            runs++;
        }
    print_message("# %u calls, %u plans\n", calls, runs);
}

#define CASE(name, use)                                 \
    TEST_BETWEEN(test_calls__##name, set_up, tear_down) \
    {                                                   \
        run_all(use);                                   \
    }
CASE(a_store_opens_or_says_why_not, use_open)
CASE(an_object_is_durable_or_an_error, use_create)
CASE(a_publish_is_whole_or_nothing_and_unsure_only_as_an_io_error, use_publish)
CASE(a_read_gives_all_bytes_or_an_error, use_read)
CASE(a_list_is_complete_or_an_error, use_list)
CASE(a_removal_says_what_it_did, use_remove)
CASE(lock_and_space_answer_or_say_why_not, use_lock_and_space)
CASE(a_lease_is_held_and_found_or_an_error, use_lease)
CASE(a_sweep_finds_all_or_says_why_not, use_sweep)

TEST_BETWEEN(test_calls__a_publish_syncs_its_file_and_every_directory_above_it, set_up, tear_down)
{
    struct storage *storage = open_plain();
    failing.only = "fsync";
    failing.calls = 0;
    assert_int_equal(storage_publish(storage, "run/step/manifest", "whole", 5), 0);
    assert_int_equal(failing.calls, 4); /* the file, step, run and the root */
    assert_int_equal(storage_sync_names(storage, "run/step"), 0);
    assert_int_equal(failing.calls, 4 + 3);
    failing.only = NULL;
    storage_close(storage);
}

int main(void)
{
    tell_in_memory();
    log_setup("storage_calls", "none");
    return suite_run(NULL, NULL);
}
