/* clients_cli_calls.c - each system call of every command of ckpt-cli fails, once and for ever, or
 * transfers fewer bytes than asked.
 *
 * Goal: a full disk, a bad one, a limit or a missing right is reported as such, and never as
 * damage, a wrong command line or success. No partial output counts as whole. Nothing is left where
 * its removal works, and the store that is read is unchanged. Short transfers change nothing.
 * Method: the commands and the judge of clients_cli_bed.h, calls_bed.h between them and the system.
 * io_uring makes its calls in the kernel and is refused here, so all is pread and pwrite.
 *
 * SAMPLE=1 fails every call, of close() one in CLOSES_APART, once and for ever, each time with the
 * next errno, so that every function of the system meets each both ways. Every transfer is short,
 * once or for ever. make test does so with one call in CALLS_APART, and with the first call of each
 * function (sample.h). The first errno changes: SEED= repeats, TORTURE=1 takes every call with
 * every errno, TOOL= one command alone. */
#include "tests/unit/calls_bed.h"

#include "tests/unit/clients_cli_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/no_ring.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

#define FUNCTIONS_MAX 40u
#define CLOSES_APART 4u /* there are many, and they are alike: one in so many fails */
#define CALLS_APART 7u

/* A short transfer is the last of them. */
static const int numbers[] = {EIO,    ENOSPC, EDQUOT, EROFS, EACCES,     EPERM,     EMFILE, ENFILE,
                              ENOMEM, ESTALE, EINVAL, EFBIG, EOPNOTSUPP, ETIMEDOUT, EINTR,  0};
#define NUM_ERRNOS (sizeof numbers / sizeof *numbers - 1)

struct failure_at {
    unsigned first; /* 0: none, calls are counted */
    int number;     /* errno; 0: it is a short transfer */
    bool for_ever;
    const char *only; /* calls of this function alone count; NULL: all */
};

/* An interrupted caller retries as long as EINTR comes: so it comes once. */
static void arm(void *user)
{
    const struct failure_at *at = user;
    failing.number = at->number;
    failing.for_ever = at->for_ever && at->number != EINTR;
    failing.is_short = at->number == 0;
    failing.calls = 0;
    failing.only = at->only;
    failing.first = at->first;
}

static void disarm(void *user)
{
    (void)user;
    failing.first = 0;
}

/* May a command end with `error` for this errno? A block that cannot be read is damage to verify,
 * and so is a run to list and report. */
static bool is_fitting(const struct tool *tool, int error, int number)
{
    if (error == tool->want)
        return true;
    if (error == CLI_DIFFERS)
        return (tool->run == cli_verify || tool->run == cli_list || tool->run == cli_report) &&
               number != ENOMEM;
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

/* The next errno of a function: once [0] and for ever [1]. */
static struct function {
    const char *name;
    size_t start, met[2];
    const struct tool *tool; /* a command and a call of it that is one of this function */
    unsigned call;
} functions[FUNCTIONS_MAX];
static size_t num_functions;
static struct sample sample; /* of the trials */

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
    try_one(tool, world, (struct failure_at){call, numbers[at % NUM_ERRNOS], for_ever, NULL});
}

/* The next errno, where the sample takes it; how many runs that was. */
static unsigned try_left(struct function *function, struct world *world, bool for_ever)
{
    if (!sample_takes(&sample)) {
        function->met[for_ever]++;
        return 0;
    }
    try_next_errno(function, function->tool, world, function->call, for_ever);
    return 1;
}

/* The remaining errnos, where a function is called fewer times than there are errnos. */
static unsigned try_rest(struct world *world)
{
    unsigned runs = 0;
    for (size_t i = 0; i < num_functions; i++) {
        struct function *function = &functions[i];
        run_undisturbed(function->tool, world);
        for (int for_ever = 0; for_ever < 2; for_ever++)
            while (function->met[for_ever] < NUM_ERRNOS)
                runs += try_left(function, world, for_ever == 1);
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
    if (!sample_takes(&sample) && function->met[0] > 0)
        return 0;
    if (strcmp(name, "close") == 0 && next_random(CLOSES_APART) != 0 && !is_torture)
        return 0;
    if (is_transfer(name) && !is_torture)
        try_one(tool, world, (struct failure_at){call, 0, call % 2 == 0, NULL});
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        for (size_t i = 0; i < NUM_ERRNOS + 1 && is_torture; i++, runs++)
            try_one(tool, world, (struct failure_at){call, numbers[i], for_ever == 1, NULL});
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

TEST_BETWEEN(test_calls__a_command_says_what_failed_and_leaves_nothing, world_open, world_close)
{
    seed_random();
    sample = sample_begin(CALLS_APART);
    for (size_t i = 0; i < NUM_TOOLS; i++)
        if (is_chosen(&tools[i]))
            try_tool(&tools[i], *state);
    unsigned runs = try_rest(*state);
    print_message("# %zu functions, %u runs more\n", num_functions, runs);
}

/* ---- unreadable files ---- */

/* A bad sector in a header, a table or a block affects one shard: verify continues and lists it.
 * Without the manifest there is nothing to verify; verify ignores the holders of leases. */
TEST_BETWEEN(test_calls__verify_lists_every_read_that_fails, world_open, world_close)
{
    struct world *world = *state;
    unsigned listed = 0;
    for (size_t i = 0; i < NUM_TOOLS; i++) {
        const struct tool *tool = &tools[i];
        /* Several threads read: the number among all calls would differ from run to run. */
        struct failure_at at = {.number = EIO, .only = "pread"};
        const struct between between = {arm, disarm, &at};
        if (tool->run != cli_verify)
            continue;
        prepare(tool, world);
        assert_int_equal(run_tool(tool, world, true, false, &between), tool->want);
        for (unsigned calls = failing.calls; at.first++ < calls;) {
            snprintf(world->what, sizeof world->what, "%s, read %u", tool->name, at.first);
            prepare(tool, world);
            int error = run_tool(tool, world, true, false, &between);
            listed += error == CLI_DIFFERS;
            expect(world,
                   error == CLI_DIFFERS || error == tool->want ||
                       strstr(report_line(), "small object") != NULL,
                   report_line());
        }
    }
    print_message("# %u reads were listed\n", listed);
    assert_true(listed > 10);
}

/* Each call of a function fails once; it proves no damage. */
static void try_calls_of(struct world *world, int (*run)(const struct cli *cli),
                         struct failure_at at)
{
    const struct between between = {arm, disarm, &at};
    const struct tool *tool = tools;
    while (tool->run != run)
        tool++;
    run_undisturbed(tool, world);
    prepare(tool, world);
    assert_int_equal(run_tool(tool, world, true, false, &between), tool->want);
    unsigned calls = failing.calls;
    assert_true(calls > 10);
    while (at.first++ < calls)
        try_one(tool, world, at);
}

/* Of a header; loaders read several at a time, so that no number of a call identifies it. */
TEST_BETWEEN(test_calls__a_read_that_fails_is_no_damage_to_diff, world_open, world_close)
{
    try_calls_of(*state, cli_diff, (struct failure_at){.number = EIO, .only = "pread"});
}

/* The manifest of another owner. */
TEST_BETWEEN(test_calls__what_may_not_be_opened_is_no_damage_to_rm, world_open, world_close)
{
    try_calls_of(*state, cli_rm, (struct failure_at){.number = EACCES, .only = "openat"});
}

/* ---- refusals ---- */

static void set_onto_fifo(struct cli *cli, const struct world *world)
{
    set_run(cli, world);
    cli->is_forced = true;
    snprintf(cli->output, sizeof cli->output, "%s/fifo", world->work);
}

static void set_into_checkpoint(struct cli *cli, const struct world *world)
{
    set_onto_fifo(cli, world);
    snprintf(cli->output, sizeof cli->output, "%s/run/step-00000001-a0001/out", world->work);
}

static void set_onto_folder(struct cli *cli, const struct world *world)
{
    set_export_hf(cli, world);
    strcpy(cli->output, world->model);
}

static void set_onto_itself(struct cli *cli, const struct world *world)
{
    set_work(cli, world);
    set_argument(cli, "run@2");
    strcpy(cli->dtype, "bf16");
    strcpy(cli->output, world->work);
}

/* A store without a checkpoint: its lock file alone shows that it is one. */
static void set_empty(struct cli *cli, const struct world *world)
{
    snprintf(cli->store, sizeof cli->store, "%s/empty", world->work);
}

static const struct refused {
    struct tool tool;
    int want;
} refusals[] = {
    {{"export onto a pipe", cli_export, set_onto_fifo, CHANGES, 0, NULL}, ERR_EXISTS},
    {{"export into a checkpoint", cli_export, set_into_checkpoint, CHANGES, 0, NULL}, ERR_DENIED},
    {{"export onto a folder", cli_export, set_onto_folder, CHANGES, 0, NULL}, ERR_EXISTS},
    {{"convert onto itself", cli_convert, set_onto_itself, CHANGES, 0, NULL}, ERR_INVALID},
    {{"list of a store without runs", cli_list, set_empty, CHANGES, 0, NULL}, 0},
};

/* How many calls it made. */
static unsigned refuse_once(const struct refused *refused, struct world *world,
                            struct failure_at at)
{
    static struct cli cli; /* too large for a stack */
    const struct between between = {arm, disarm, &at};
    snprintf(world->what, sizeof world->what, "%s, call %u fails %s", refused->tool.name, at.first,
             at.for_ever ? "for ever" : "once");
    prepare(&refused->tool, world);
    shell("mkfifo '%s/fifo' && mkdir '%s/empty' && : >'%s/empty/.holdfast.lock'", world->work,
          world->work, world->work);
    uint64_t work = survey_of(world->work, BY_IDENTITY);
    set_defaults(&cli);
    refused->tool.set(&cli, world);
    int error = run_quietly(world, refused->tool.run, &cli, &between);
    unsigned calls = failing.calls;
    expect(world, error == refused->want || (at.first != 0 && error == ERR_IO), report_line());
    expect(world, survey_of(world->work, BY_IDENTITY) == work, "something was changed");
    expect(world, survey_of(world->fixture.root, BY_IDENTITY) == world->store,
           "the store is another one");
    return calls;
}

TEST_BETWEEN(test_calls__what_is_refused_stays_so_when_nobody_can_look, world_open, world_close)
{
    seed_random();
    sample = sample_begin(CALLS_APART);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        unsigned calls = refuse_once(&refusals[i], *state, (struct failure_at){0});
        for (unsigned trial = 0; trial < 2 * calls; trial++)
            if (sample_takes(&sample))
                refuse_once(&refusals[i], *state,
                            (struct failure_at){1 + trial / 2, EIO, trial % 2 == 1, NULL});
        print_message("# %s: %u calls\n", refusals[i].tool.name, calls);
    }
}

/* ---- concurrent processes ---- */

#define PINNED "step-00000001-a0001"
static const struct world *pinning;

/* A removal that is killed after it removed the manifest, as the pin gets its name. */
static void remove_manifest(const char *to)
{
    char path[400];
    snprintf(path, sizeof path, "%s/run/" PINNED "/manifest.json", pinning->work);
    if (strcmp(to, PINNED) == 0)
        assert_int_equal(remove(path), 0);
}

TEST_BETWEEN(test_calls__a_pin_on_what_was_removed_meanwhile_is_not_called_made, world_open,
             world_close)
{
    struct world *world = *state;
    static const struct tool pin = {"pin", cli_pin, set_pin, CHANGES, 0, NULL};
    char path[400];
    prepare(&pin, world);
    pinning = world;
    failing.before_rename = remove_manifest;
    int error = run_tool(&pin, world, false, false, NULL);
    failing.before_rename = NULL;
    assert_int_equal(error, ERR_NOT_FOUND);
    snprintf(path, sizeof path, "%s/run/pins/" PINNED, world->work);
    assert_false(exists(path));
    assert_int_equal(run_tool(&pin, world, false, false, NULL), ERR_NOT_FOUND);
}

int main(void)
{
    tell_in_memory();
    log_setup("clients_cli_calls", NULL);
    return suite_run(NULL, NULL);
}
