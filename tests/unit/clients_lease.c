/* clients_lease.c - a tool that cannot write the lease of the checkpoint that it reads.
 *
 * Goal: without the right to write, or without room, it reads all the same and reports it. Where a
 * prune then removes the checkpoint it ends in an error, never in wrong data. Any other failure
 * counts as one of the disk, and the tool refuses to read. No failed lease leaves a file. Method:
 * calls_bed.h between storage/ and the system; each of the calls that make a lease fails once, and
 * for ever, with each errno. */
#include "storage/engine/engine.h"
#include "storage/store/store.h"
#include "tests/unit/calls_bed.h"
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/suite.h"

#define CALLS_MAX 40u

static unsigned first_in_hold, calls_in_hold; /* the call that fails, 0: none; those made */

int __real_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes);
int __wrap_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes);
int __wrap_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes)
{
    failing.calls = 0;
    failing.first = first_in_hold;
    int error = __real_storage_hold(storage, out, key, data, bytes);
    failing.first = 0;
    calls_in_hold = failing.calls;
    return error;
}

/* ---- the bed ---- */

/* Files in the folder of leases; with `clears` hidden ones are removed and do not count. */
static uint32_t count_leases(const struct fixture *fixture, bool clears)
{
    char path[400];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/run/leases", fixture->root);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        bool is_hidden = strncmp(entry->d_name, ".holdfast.", 10) == 0;
        count += !is_hidden || !clears || unlinkat(dirfd(folder), entry->d_name, 0) != 0;
    }
    if (folder)
        closedir(folder);
    return count;
}

/* The error of checkpoint_open, and whether the log reports that there is no lease. */
static int open_told(struct checkpoint *out, struct storage *store, const struct fixture *fixture,
                     bool *out_is_told)
{
    char path[400], text[2048] = "";
    snprintf(path, sizeof path, "%s.log", fixture->root);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), before = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    int error = checkpoint_open(out, store, "run@7");
    dup2(before, STDERR_FILENO);
    close(before);
    assert_true(pread(file, text, sizeof text - 1, 0) >= 0);
    close(file);
    unlink(path);
    *out_is_told = strstr(text, "without a lease") != NULL;
    return error;
}

/* The reader finds the checkpoint whole, or does not read it at all. */
static void check_outcome(int error, int number, bool is_told, struct checkpoint *checkpoint)
{
    int code = storage_code_of_errno(number);
    bool goes_on = code == ERR_SPACE || code == ERR_DENIED;
    if (error != 0) {
        assert_false(goes_on);
        assert_int_equal(error, code);
        return;
    }
    assert_int_equal(checkpoint->lease == NULL, is_told);
    assert_true(!is_told || goes_on);
    assert_int_equal(checkpoint_load(checkpoint, LOAD_HEADERS), 0);
    assert_int_equal(checkpoint_need_whole(checkpoint), 0);
    checkpoint_close(checkpoint);
}

TEST(test_lease__each_failure_is_told_or_refuses_the_read)
{
    static const int numbers[] = {ENOSPC, EDQUOT, EROFS, EACCES, EPERM, EIO, EMFILE, ENOMEM};
    struct fixture fixture;
    struct checkpoint checkpoint;
    fixture_open(&fixture, 2, 600);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    uint32_t told = 0, refused = 0;
    for (size_t i = 0; i < 2 * sizeof numbers / sizeof *numbers; i++) {
        failing.number = numbers[i / 2];
        failing.for_ever = i % 2 == 1;
        first_in_hold = 0;
        do {
            bool is_told;
            assert_true(++first_in_hold < CALLS_MAX);
            int error = open_told(&checkpoint, store, &fixture, &is_told);
            check_outcome(error, numbers[i / 2], is_told, &checkpoint);
            told += is_told;
            refused += error != 0;
            /* A file that cannot be removed any more stays, hidden. */
            assert_int_equal(count_leases(&fixture, failing.for_ever), 0);
        } while (calls_in_hold >= first_in_hold);
    }
    first_in_hold = 0;
    assert_true(told > 20 && refused > 10);
    storage_close(store);
    fixture_close(&fixture);
}

/* A prune sees no lease, and removes: the read ends in an error. */
TEST(test_lease__without_one_a_prune_ends_the_read_with_an_error)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    bool is_told;
    fixture_open(&fixture, 2, 601);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    failing.number = ENOSPC;
    first_in_hold = 1;
    assert_int_equal(open_told(&checkpoint, store, &fixture, &is_told), 0);
    assert_true(is_told);
    first_in_hold = 0;
    struct storage *pruner = NULL;
    assert_int_equal(storage_open(&pruner, &storage_local, fixture.root, NULL), 0);
    assert_int_equal(store_remove(pruner, "run/step-00000007-a0001"), 0);
    storage_close(pruner);
    int error = checkpoint_load(&checkpoint, LOAD_HEADERS);
    assert_true(error != 0 || checkpoint_need_whole(&checkpoint) == ERR_CORRUPT);
    checkpoint_close(&checkpoint);
    storage_close(store);
    fixture_close(&fixture);
}

int main(void)
{
    seed_random();
    return suite_run(NULL, NULL);
}
