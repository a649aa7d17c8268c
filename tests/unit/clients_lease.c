/* clients_lease.c - a tool that cannot write the lease of what it reads.
 *
 * Goal: without the right to write, or without room, it reads all the same, says so, and where a
 * prune then takes the checkpoint away it ends in an error, never in wrong data; any other failure
 * is one of the disk, and refuses the read. No failed lease leaves a file. Method: the linker sends
 * the system calls of storage/ through the functions below (--wrap); each of those that make a
 * lease fails once, and for ever, with each errno. */
#include "storage/engine.h"
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/wrap.h"

#include <dirent.h>
#include <errno.h>
#include <sys/random.h>

#define CALLS_MAX 40u

static struct {
    bool in_hold;
    unsigned calls, first; /* within the hold; the one that fails, 0: none */
    bool for_ever;
    int number; /* errno */
} plan_of_failure;

static bool fails(void)
{
    if (!plan_of_failure.in_hold)
        return false;
    unsigned call = ++plan_of_failure.calls;
    if (plan_of_failure.first == 0 || call < plan_of_failure.first ||
        (call > plan_of_failure.first && !plan_of_failure.for_ever))
        return false;
    errno = plan_of_failure.number;
    return true;
}

int __real_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes);
int __wrap_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes);
int __wrap_storage_hold(struct storage *storage, struct storage_hold **out, const char *key,
                        const void *data, size_t bytes)
{
    plan_of_failure.in_hold = true;
    int error = __real_storage_hold(storage, out, key, data, bytes);
    plan_of_failure.in_hold = false;
    return error;
}

WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode), -1)
WRAP(ssize_t, write, (int fd, const void *data, size_t bytes), (fd, data, bytes), -1)
WRAP(ssize_t, getrandom, (void *out, size_t bytes, unsigned flags), (out, bytes, flags), -1)
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
     (a, from, b, to, flags), -1)

WRAP_FCNTL
WRAP_SYSCALL

/* ---- the bed ---- */

static uint32_t count_leases(const struct fixture *fixture)
{
    char path[400];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/run/leases", fixture->root);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (folder)
        closedir(folder);
    return count;
}

/* What checkpoint_open says, and whether the log says that there is no lease. */
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

/* The checkpoint is whole in the reader's eyes, or is not read at all. */
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
    assert_int_equal(checkpoint_load(checkpoint, true), 0);
    assert_int_equal(checkpoint_need_whole(checkpoint), 0);
    checkpoint_close(checkpoint);
}

static void test_lease__each_failure_is_told_or_refuses_the_read(void **state)
{
    static const int numbers[] = {ENOSPC, EDQUOT, EROFS, EACCES, EPERM, EIO, EMFILE, ENOMEM};
    struct fixture fixture;
    struct checkpoint checkpoint;
    (void)state;
    fixture_open(&fixture, 2, 600);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    uint32_t told = 0, refused = 0;
    for (size_t i = 0; i < 2 * sizeof numbers / sizeof *numbers; i++) {
        plan_of_failure.number = numbers[i / 2];
        plan_of_failure.for_ever = i % 2 == 1;
        plan_of_failure.calls = plan_of_failure.first = 0;
        do {
            bool is_told;
            plan_of_failure.calls = 0;
            assert_true(++plan_of_failure.first < CALLS_MAX);
            int error = open_told(&checkpoint, store, &fixture, &is_told);
            check_outcome(error, numbers[i / 2], is_told, &checkpoint);
            told += is_told;
            refused += error != 0;
            assert_int_equal(count_leases(&fixture), 0);
        } while (plan_of_failure.calls >= plan_of_failure.first);
    }
    plan_of_failure.first = 0;
    assert_true(told > 20 && refused > 10);
    storage_close(store);
    fixture_close(&fixture);
}

static bool is_ours(const char *name)
{
    return strncmp(name, "shard-", 6) == 0;
}

/* A prune sees no lease, and removes: what is being read ends in an error. */
static void test_lease__without_one_a_prune_ends_the_read_with_an_error(void **state)
{
    static const struct storage_group_kind kind = {.marker = "manifest.json", .is_ours = is_ours};
    struct fixture fixture;
    struct checkpoint checkpoint;
    bool is_told;
    (void)state;
    fixture_open(&fixture, 2, 601);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    plan_of_failure.number = ENOSPC;
    plan_of_failure.first = 1;
    plan_of_failure.calls = 0;
    assert_int_equal(open_told(&checkpoint, store, &fixture, &is_told), 0);
    assert_true(is_told);
    plan_of_failure.first = 0;
    struct storage *pruner = NULL;
    assert_int_equal(storage_open(&pruner, &storage_local, fixture.root, NULL), 0);
    assert_int_equal(storage_group_remove(pruner, &kind, "run/step-00000007-a0001"), 0);
    storage_close(pruner);
    int error = checkpoint_load(&checkpoint, true);
    assert_true(error != 0 || checkpoint_need_whole(&checkpoint) == ERR_CORRUPT);
    checkpoint_close(&checkpoint);
    storage_close(store);
    fixture_close(&fixture);
}

int main(void)
{
    seed_random();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lease__each_failure_is_told_or_refuses_the_read),
        cmocka_unit_test(test_lease__without_one_a_prune_ends_the_read_with_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
