/* clients_cli_calls.c - each system call of every command of ckpt-cli fails, once and for ever, or
 * moves less than it was asked to.
 *
 * Goal: a full disk, a bad one, a limit or a missing right is told as what it is, and never as
 * damage, a wrong command line or success; nothing half counts as whole, nothing is left over where
 * what removes it works, and the store that is read is untouched. Short transfers change nothing.
 * Method: the commands and the judge of clients_cli_bed.h, calls_bed.h between them and the system.
 * io_uring makes its calls in the kernel and is refused here, so all is pread and pwrite.
 *
 * In make test every call fails once and for ever, each time with the next errno, so that every
 * function of the system meets each errno both ways; every transfer is short, once or for ever.
 * Where the errnos begin changes: SEED= repeats, TORTURE=1 takes every call with every errno, TOOL=
 * one command alone. time limit: 300 s */
#include "tests/unit/calls_bed.h"

#include "tests/unit/clients_cli_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/no_ring.h"

#define FUNCTIONS_MAX 40u

/* A short transfer is the last of them. */
static const int numbers[] = {EIO,    ENOSPC, EDQUOT, EROFS,  EACCES, EPERM,
                              EMFILE, ENFILE, ENOMEM, ESTALE, 0};
#define NUM_ERRNOS (sizeof numbers / sizeof *numbers - 1)

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

/* ---- functions of the system ---- */

/* What a function has met: one errno after the other, once [0] and for ever [1]. */
static struct function {
    const char *name;
    size_t start, met[2];
    const struct tool *tool; /* a command and a call of it that is one of this function */
    unsigned call;
} functions[FUNCTIONS_MAX];
static size_t num_functions;

static struct function *find_function(const char *name)
{
    size_t i = 0;
    assert_non_null(name);
    while (i < num_functions && strcmp(functions[i].name, name) != 0)
        i++;
    if (i == num_functions) {
        assert_true(num_functions < FUNCTIONS_MAX);
        functions[num_functions++] =
            (struct function){.name = name, .start = next_random(NUM_ERRNOS)};
    }
    return &functions[i];
}

static bool is_transfer(const char *name)
{
    return strcmp(name, "pread") == 0 || strcmp(name, "pwrite") == 0 || strcmp(name, "write") == 0;
}

static void try_next_errno(struct function *function, const struct tool *tool, struct world *world,
                           unsigned call, bool for_ever)
{
    size_t at = function->start + function->met[for_ever]++;
    try_one(tool, world, (struct failure_at){call, numbers[at % NUM_ERRNOS], for_ever});
}

/* The errnos that are left where a function is called fewer times than there are of them. */
static unsigned try_rest(struct world *world)
{
    unsigned runs = 0;
    for (size_t i = 0; i < num_functions; i++) {
        struct function *function = &functions[i];
        run_undisturbed(function->tool, world);
        for (int for_ever = 0; for_ever < 2; for_ever++)
            for (; function->met[for_ever] < NUM_ERRNOS; runs++)
                try_next_errno(function, function->tool, world, function->call, for_ever == 1);
    }
    return runs;
}

/* ---- commands ---- */

static unsigned try_call(const struct tool *tool, struct world *world, unsigned call,
                         const char *name)
{
    struct function *function = find_function(name);
    bool is_torture = getenv("TORTURE") != NULL;
    unsigned runs = 0;
    function->tool = tool;
    function->call = call;
    if (is_transfer(name) && !is_torture)
        try_one(tool, world, (struct failure_at){call, 0, call % 2 == 0});
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        for (size_t i = 0; i < NUM_ERRNOS + 1 && is_torture; i++, runs++)
            try_one(tool, world, (struct failure_at){call, numbers[i], for_ever == 1});
        if (!is_torture)
            try_next_errno(function, tool, world, call, for_ever == 1);
    }
    return is_torture ? runs : is_transfer(name) ? 3 : 2;
}

static void try_tool(const struct tool *tool, struct world *world)
{
    struct failure_at none = {0};
    const struct between between = {arm, disarm, &none};
    static const char *names[CALLS_NAMED_MAX];
    unsigned runs = 0;
    run_undisturbed(tool, world);
    prepare(tool, world);
    assert_int_equal(run_tool(tool, world, true, false, &between), tool->want);
    unsigned calls = failing.calls;
    assert_true(calls > 10 && calls < CALLS_NAMED_MAX);
    memcpy(names, failing.names, sizeof names);
    for (unsigned call = 1; call <= calls; call++)
        runs += try_call(tool, world, call, names[call]);
    print_message("# %s: %u calls, %u runs\n", tool->name, calls, runs);
}

static void test_calls__a_command_says_what_failed_and_leaves_nothing(void **state)
{
    seed_random();
    for (size_t i = 0; i < NUM_TOOLS; i++)
        if (is_chosen(&tools[i]))
            try_tool(&tools[i], *state);
    unsigned runs = try_rest(*state);
    print_message("# %zu functions, %u runs more\n", num_functions, runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls__a_command_says_what_failed_and_leaves_nothing,
                                        world_open, world_close),
    };
    tell_in_memory();
    log_setup("clients_cli_calls", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
