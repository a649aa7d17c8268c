/* clients_cli_memory.c - each allocation of every command of ckpt-cli fails, once and for ever.
 *
 * Goal: out of memory is told as such, and never as damage, a missing file or a shorter answer;
 * nothing is left over, in memory or on the disk, nothing half counts as whole, and the store that
 * is read is untouched. Method: the commands and the judge of clients_cli_bed.h, memory_bed.h
 * between them and the system. A first run notes the places of allocations; then the allocation
 * that each was met with fails.
 *
 * In make test every so manieth place fails, which ones changes: SEED= repeats, TORTURE=1 takes
 * every allocation by its number, TOOL= one command alone. time limit: 120 s */
#define CALLERS 12
#include "tests/unit/clients_cli_bed.h"
#include "tests/unit/memory_bed.h"
#include "tests/unit/sanitized.h"

#include <sys/wait.h>

#define EVERY 16 /* places: one of them fails */

struct failure_at {
    uint64_t number; /* 0: none, places are noted */
    bool for_ever;
};

static void arm(void *user)
{
    const struct failure_at *at = user;
    memory_arm(0, at->number, at->for_ever);
}

static void disarm(void *user)
{
    (void)user;
    memory_disarm();
}

static int run_with(const struct tool *tool, struct world *world, bool is_json,
                    struct failure_at at)
{
    const struct between between = {arm, disarm, &at};
    prepare(tool, world);
    return run_tool(tool, world, is_json, false, &between);
}

static bool names_memory(const char *text)
{
    return strstr(text, "memory") != NULL || strstr(text, "allocate") != NULL;
}

static void try_one(const struct tool *tool, struct world *world, bool is_json,
                    struct failure_at at)
{
    long live = failing.live;
    unsigned descriptors = count_descriptors();
    snprintf(world->what, sizeof world->what, "%s, allocation %llu fails %s", tool->name,
             (unsigned long long)at.number, at.for_ever ? "for ever" : "once");
    int error = run_with(tool, world, is_json, at);
    expect(world, error == tool->want || (error == ERR_MEMORY && names_memory(report_line())),
           report_line());
    expect(world, failing.live == live, "memory is left");
    expect(world, count_descriptors() == descriptors, "descriptors are left");
    judge(tool, world, error, is_json, at.for_ever);
    if (at.for_ever)
        judge_again(tool, world);
}

static void try_tool(const struct tool *tool, struct world *world, bool is_json)
{
    bool is_torture = getenv("TORTURE") != NULL;
    uint64_t start = next_random(EVERY);
    unsigned runs = 0;
    failing.num_seen = 0;
    assert_int_equal(run_with(tool, world, is_json, (struct failure_at){0, false}), tool->want);
    uint64_t allocations = failing.allocations;
    uint32_t places = failing.num_seen;
    for (uint32_t i = 0; i < places && !is_torture; i++) {
        if (i % EVERY != start)
            continue;
        try_one(tool, world, is_json,
                (struct failure_at){failing.seen[i].number, next_random(2) == 0});
        runs++;
    }
    for (uint64_t number = 1; number <= allocations && is_torture; number++, runs += 2) {
        try_one(tool, world, is_json, (struct failure_at){number, false});
        try_one(tool, world, is_json, (struct failure_at){number, true});
    }
    print_message("# %s%s: %llu allocations at %u places, %u runs\n", tool->name,
                  is_json ? " --json" : "", (unsigned long long)allocations, places, runs);
    assert_true(places > 5);
}

static void test_memory__a_command_without_it_says_so_and_leaves_nothing(void **state)
{
    seed_random();
    for (size_t i = 0; i < NUM_TOOLS; i++) {
        if (!is_chosen(&tools[i]))
            continue;
        run_undisturbed(&tools[i], *state);
        try_tool(&tools[i], *state, false);
        try_tool(&tools[i], *state, true);
    }
}

/* The program itself, with fewer addresses each time until they do not do. */
static void test_memory__the_program_ends_with_70_where_there_is_too_little(void **state)
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
#define CASE(name) cmocka_unit_test_setup_teardown(test_memory__##name, world_open, world_close)
    const struct CMUnitTest tests[] = {
        CASE(a_command_without_it_says_so_and_leaves_nothing),
        CASE(the_program_ends_with_70_where_there_is_too_little),
    };
#undef CASE
    memory_begin();
    log_setup("clients_cli_memory", NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
