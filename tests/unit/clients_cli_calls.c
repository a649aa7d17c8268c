/* clients_cli_calls.c - each system call of every command of ckpt-cli fails, once and for ever, or
 * moves less than it was asked to.
 *
 * Goal: a full disk, a bad one, a limit or a missing right is told as what it is, and never as
 * damage, a wrong command line or success; nothing half counts as whole, nothing is left over where
 * what removes it works, and the store that is read is untouched. Short transfers change nothing.
 * Method: the commands and the judge of clients_cli_bed.h, calls_bed.h between them and the system.
 * io_uring makes its calls in the kernel and is refused here, so all is pread and pwrite.
 *
 * In make test every so manieth call fails, with one errno, both drawn: SEED= repeats, TORTURE=1
 * takes every call with every errno, TOOL= one command alone. time limit: 120 s */
#include "tests/unit/calls_bed.h"

#include "tests/unit/clients_cli_bed.h"

#define EVERY 12 /* calls: one of them fails */

/* Of io_uring_queue_init: as where a seccomp filter denies it. */
struct io_uring;
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
int __wrap_io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags)
{
    (void)entries, (void)ring, (void)flags;
    return -EPERM;
}

struct failure_at {
    unsigned first; /* 0: none, calls are counted */
    int number;     /* errno; 0: it is a short transfer */
    bool for_ever;
};

static void arm(void *user)
{
    const struct failure_at *at = user;
    failing.number = at->number;
    failing.for_ever = at->for_ever;
    failing.is_short = at->number == 0;
    failing.calls = 0;
    failing.first = at->first;
}

static void disarm(void *user)
{
    (void)user;
    failing.first = 0;
}

/* May a command end with `error` for this errno? A block that cannot be read is damage to verify.
 */
static bool is_fitting(const struct tool *tool, int error, int number)
{
    if (error == tool->want)
        return true;
    if (error == CLI_DIFFERS)
        return tool->run == cli_verify && number != ENOMEM;
    return error == ERR_IO || error == ERR_SPACE || error == ERR_DENIED || error == ERR_BUSY ||
           (error == ERR_MEMORY && number == ENOMEM);
}

static void try_one(const struct tool *tool, struct world *world, struct failure_at at)
{
    const struct between between = {arm, disarm, &at};
    bool is_json = at.first % 2 == 1;
    snprintf(world->what, sizeof world->what, "%s, call %u, errno %d (0: short), %s", tool->name,
             at.first, at.number, at.for_ever ? "for ever" : "once");
    prepare(tool, world);
    unsigned descriptors = count_descriptors();
    int error = run_tool(tool, world, is_json, false, &between);
    expect(world, is_fitting(tool, error, at.number) && (at.number != 0 || error == tool->want),
           report_line());
    expect(world, count_descriptors() == descriptors, "descriptors are left");
    /* A manifest that could not be made durable may be back after a power loss: its shards stay. */
    judge(tool, world, error, is_json, at.for_ever || tool->effect == WRITES_STORE);
    if (at.for_ever)
        judge_again(tool, world);
}

static void try_tool(const struct tool *tool, struct world *world)
{
    static const int numbers[] = {EIO,    ENOSPC, EDQUOT, EROFS,  EACCES, EPERM,
                                  EMFILE, ENFILE, ENOMEM, ESTALE, 0};
    const size_t count = sizeof numbers / sizeof *numbers;
    bool is_torture = getenv("TORTURE") != NULL;
    unsigned runs = 0, start = (unsigned)next_random(EVERY);
    struct failure_at none = {0};
    const struct between between = {arm, disarm, &none};
    run_undisturbed(tool, world);
    prepare(tool, world);
    assert_int_equal(run_tool(tool, world, true, false, &between), tool->want);
    unsigned calls = failing.calls;
    for (unsigned first = 1; first <= calls; first++) {
        if (!is_torture && first % EVERY != start)
            continue;
        size_t only = next_random(count), for_ever = next_random(2);
        for (size_t i = 0; i < 2 * count; i++) {
            if (!is_torture && i != 2 * only + for_ever)
                continue;
            try_one(tool, world, (struct failure_at){first, numbers[i / 2], i % 2 == 1});
            runs++;
        }
    }
    print_message("# %s: %u calls, %u runs\n", tool->name, calls, runs);
    assert_true(calls > 10);
}

static void test_calls__a_command_says_what_failed_and_leaves_nothing(void **state)
{
    seed_random();
    for (size_t i = 0; i < NUM_TOOLS; i++)
        if (is_chosen(&tools[i]))
            try_tool(&tools[i], *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls__a_command_says_what_failed_and_leaves_nothing,
                                        world_open, world_close),
    };
    log_setup("clients_cli_calls", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
