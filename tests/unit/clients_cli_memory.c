/* clients_cli_memory.c - each allocation of every command of ckpt-cli fails, once and for ever.
 *
 * Goal: out of memory is reported as such, and never as damage, a missing file or a shorter answer.
 * Nothing is left in memory or on the disk, no partial output counts as whole, and the store that
 * is read is unchanged. Method: the commands and the judge of clients_cli_bed.h, memory_bed.h
 * between them and the system. A first run records the places of allocations; then the first
 * allocation at each place fails.
 *
 * SAMPLE=1 fails every place once and for ever in the first command that reaches it. A place is
 * five callers, most of which are code that commands share. Of the ways by which other commands
 * reach it (twelve callers) a sample fails. make test takes one in PLACES_APART of these
 * (sample.h); the choice changes: SEED= repeats, TORTURE=1 takes every allocation by its number,
 * TOOL= one command alone. */
#define CALLERS 12
#include "proto/base/sanitized.h"
#include "tests/unit/clients_cli_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/memory_bed.h"
#include "tests/unit/suite.h"

#include <spawn.h>
#include <sys/wait.h>

#define EVERY 16 /* ways to a place that has failed: one of them fails, too */

static void arm(void *user)
{
    memory_arm(user);
}

static void disarm(void *user)
{
    (void)user;
    memory_disarm();
}

static int run_with(const struct tool *tool, struct world *world, bool is_json, struct lack at)
{
    const struct between between = {arm, disarm, &at};
    prepare(tool, world);
    return run_tool(tool, world, is_json, false, &between);
}

static bool names_memory(const char *text)
{
    return strstr(text, "memory") != NULL || strstr(text, "allocate") != NULL;
}

static void try_one(const struct tool *tool, struct world *world, bool is_json, struct lack at,
                    unsigned *least)
{
    long live = failing.live;
    snprintf(world->what, sizeof world->what, "%s, allocation %llu fails %s", tool->name,
             (unsigned long long)at.number, at.for_ever ? "for ever" : "once");
    int error = run_with(tool, world, is_json, at);
    expect(world, error == tool->want || (error == ERR_MEMORY && names_memory(report_line())),
           report_line());
    if (!is_let_go(live, least))
        fail_msg("%s: %ld allocations, and %u descriptors in place of %u", world->what,
                 failing.live - live, count_descriptors(), *least);
    /* It is unknown then whether a ckptd was asked, so shards that it may need stay. */
    judge(tool, world, error, is_json, at.for_ever || tool->effect == WRITES_SERVED);
    if (tool->effect == WRITES_SERVED && !is_there(tool, world))
        world->renew(world);
    if (at.for_ever)
        judge_again(tool, world);
}

/* True the first time, over all commands. */
static bool is_new(uint64_t near)
{
    static uint64_t known[PLACES_MAX];
    static uint32_t count;
    for (uint32_t i = 0; i < count; i++)
        if (known[i] == near)
            return false;
    assert_true(count < PLACES_MAX);
    known[count++] = near;
    return true;
}

static struct sample sample; /* of the places */

static void try_tool(const struct tool *tool, struct world *world, bool is_json)
{
    bool is_torture = getenv("TORTURE") != NULL;
    uint64_t start = next_random(EVERY);
    unsigned runs = 0;
    failing.num_seen = 0;
    assert_int_equal(run_with(tool, world, is_json, (struct lack){0}), tool->want);
    uint64_t allocations = failing.allocations;
    uint32_t places = failing.num_seen;
    unsigned least = count_descriptors();
    for (uint32_t i = 0; i < places && !is_torture; i++) {
        bool is_first = is_new(failing.seen[i].near), for_ever = next_random(2) == 0;
        if ((!is_first && i % EVERY != start) || !sample_takes(&sample))
            continue;
        const struct lack at = {.number = failing.seen[i].number, .for_ever = for_ever};
        try_one(tool, world, is_json, at, &least);
        if (is_first)
            try_one(tool, world, is_json, (struct lack){.number = at.number, .for_ever = !for_ever},
                    &least);
        runs += 1 + is_first;
    }
    for (uint64_t number = 1; number <= allocations && is_torture; number++, runs += 2) {
        try_one(tool, world, is_json, (struct lack){.number = number, .for_ever = false}, &least);
        try_one(tool, world, is_json, (struct lack){.number = number, .for_ever = true}, &least);
    }
    print_message("# %s%s: %llu allocations at %u places, %u runs\n", tool->name,
                  is_json ? " --json" : "", (unsigned long long)allocations, places, runs);
    assert_true(places > 0);
}

static void try_tools(const struct tool *list, size_t count, struct world *world)
{
    seed_random();
    sample = sample_begin(PLACES_APART);
    for (size_t i = 0; i < count; i++) {
        if (!is_chosen(&list[i]))
            continue;
        run_undisturbed(&list[i], world);
        try_tool(&list[i], world, false);
        try_tool(&list[i], world, true);
    }
}

TEST_BETWEEN(test_memory__a_command_without_it_says_so_and_leaves_nothing, world_open, world_close)
{
    try_tools(tools, NUM_TOOLS, *state);
}

/* ---- through a ckptd ---- */

static struct daemon {
    pid_t process;
    char server[160];
} source, target;

static void end_daemon(struct daemon *daemon)
{
    if (daemon->process <= 0)
        return;
    kill(daemon->process, SIGKILL);
    assert_int_equal(waitpid(daemon->process, NULL, 0), daemon->process);
    daemon->process = 0;
}

static void start_daemon(struct daemon *daemon, struct world *world, const char *name, char *store)
{
    static struct cli cli; /* too large for a stack */
    char program[512], log[400];
    const char *build = getenv("BUILD");
    posix_spawn_file_actions_t actions;
    snprintf(program, sizeof program, "%s/ckptd", build != NULL ? build : "build");
    snprintf(log, sizeof log, "%s/%s.log", world->root, name);
    snprintf(daemon->server, sizeof daemon->server, "unix:%.140s/%s", world->root, name);
    char *argv[] = {program,
                    "--listen",
                    daemon->server,
                    "--store",
                    store,
                    "--memory.pool_bytes=4MiB",
                    "--memory.segment_bytes=1MiB",
                    "--scrub.rate=0", /* it records in the store the checkpoints that it has read */
                    NULL};
    posix_spawn_file_actions_init(&actions);
    for (int fd = 1; fd <= 2; fd++)
        posix_spawn_file_actions_addopen(&actions, fd, log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    assert_int_equal(posix_spawn(&daemon->process, program, &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    set_defaults(&cli);
    strcpy(cli.server, daemon->server);
    unsigned waited = 0;
    for (; run_quietly(world, cli_health, &cli, NULL) != 0; waited += 10, wait_ms(10))
        assert_true(waited < PATIENCE_MS);
}

/* `out` contains only the files of its ckptd, and that ckptd agrees. */
static void renew_target(struct world *world)
{
    static struct cli cli; /* too large for a stack */
    char said[SAID_BYTES_MAX];
    strcpy(said, world->said);
    if (target.process > 0 && count_files(world->out, MANIFEST_NAME) == 0) {
        set_defaults(&cli);
        strcpy(cli.server, target.server);
        assert_int_equal(run_quietly(world, cli_gc, &cli, NULL), 0);
    } else {
        end_daemon(&target);
        remove_tree(world->out);
        start_daemon(&target, world, "t", world->out);
    }
    assert_int_equal(count_files(world->out, ".safetensors"), 0);
    strcpy(world->said, said);
}

static void set_dry(struct cli *cli, const struct world *world)
{
    set_store(cli, world);
    set_argument(cli, "run");
    cli->keep_last = 3;
    cli->is_dry_run = true;
}

static void set_reshard_served(struct cli *cli, const struct world *world)
{
    set_reshard(cli, world);
    strcpy(cli->output, target.server);
}

static const struct tool asking[] =
    {
        {"list --server", cli_list, set_store, READS, 0, NULL},
        {"show --server", cli_show, set_llama, READS, 0, NULL},
        {"prune --dry-run --server", cli_prune, set_dry, READS, 0, NULL},
        {"gc --dry-run --server", cli_gc, set_dry, READS, 0, NULL},
        {"pin --server", cli_pin, set_pin, READS, 0, NULL},
        {"status --watch --server", cli_watch, set_watch, TELLS, 0, NULL},
        {"status --server", cli_status, set_store, TELLS, 0, NULL},
        {"health --server", cli_health, set_store, READS, 0, NULL},
},
                         finding[] = {
                             {"verify --server", cli_verify, set_run, READS, 0, NULL},
                             {"verify --quick --server", cli_verify, set_quick, READS, 0, NULL},
                             {"verify --release --server", cli_verify, set_release, READS, 0, NULL},
                             {"diff --server", cli_diff, set_two, READS, CLI_DIFFERS, NULL},
                             {"export --server", cli_export, set_export, WRITES_FILES, 0, NULL},
                             {"export --format hf --server", cli_export, set_export_hf,
                              WRITES_FILES, 0, NULL},
                             {"reshard --server", cli_convert, set_reshard_served, WRITES_SERVED, 0,
                              "run@2"},
                             {"import --server", cli_import, set_import, WRITES_SERVED, 0, "new@0"},
                             {"du --server", cli_du, set_store, READS, 0, NULL},
};

static int open_served(void **state)
{
    static const struct tool pin = {"pin", cli_pin, set_pin, READS, 0, NULL};
    world_open(state);
    struct world *world = *state;
    world->renew = renew_target;
    start_daemon(&source, world, "s", world->fixture.root);
    world->source = source.server;
    world->target = target.server;
    world->through = ASKS;
    assert_int_equal(run_tool(&pin, world, false, false, NULL), 0);
    world->store = survey_of(world->fixture.root, BY_IDENTITY);
    return 0;
}

static int close_served(void **state)
{
    end_daemon(&source);
    end_daemon(&target);
    return world_close(state);
}

TEST_BETWEEN(test_memory__nor_does_one_through_a_ckptd, open_served, close_served)
{
    struct world *world = *state;
    try_tools(asking, sizeof asking / sizeof *asking, world);
    world->through = FINDS;
    try_tools(finding, sizeof finding / sizeof *finding, world);
}

/* The program itself, with less address space each time until it does not suffice. */
TEST_BETWEEN(test_memory__the_program_ends_with_70_where_there_is_too_little, world_open,
             world_close)
{
    struct world *world = *state;
    const char *build = getenv("BUILD");
    char command[1200];
    if (IS_SANITIZED)
        skip(); /* its shadow takes more addresses than any limit here */
    for (unsigned mib = 1024; mib > 16; mib -= 16) {
        snprintf(command, sizeof command,
                 "ulimit -v %u; exec '%s/ckpt-cli' verify run@2 --store '%s' >'%s/said' 2>&1",
                 mib << 10, build != NULL ? build : "build", world->fixture.root, world->root);
        int status = system(command);
        assert_true(WIFEXITED(status));
        read_said(world);
        if (WEXITSTATUS(status) == 70) {
            assert_true(names_memory(world->said));
            return;
        }
        if (WEXITSTATUS(status) != 0)
            fail_msg("%u MiB: exit status %d: %s", mib, WEXITSTATUS(status), world->said);
    }
    fail_msg("no limit was too low");
}

int main(void)
{
    memory_begin();
    tell_in_memory();
    log_setup("clients_cli_memory", NULL);
    return suite_run(NULL, NULL);
}
