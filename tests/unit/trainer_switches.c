/* trainer_switches.c - requests from outside to save or end a run.
 *
 * Goal: rank 0 reads files and clocks, and removes a save switch. Method: switches on files of a
 * scratch folder; clocks are set back. */
#include "proto/base/clock.h"
#include "proto/base/report.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"
#include "trainer/config/launched.h"
#include "trainer/config/switches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void make_file(const char *path)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

static void set_path(char out[CONFIG_TEXT_MAX], const char *name)
{
    snprintf(out, CONFIG_TEXT_MAX, "%s/hf-switch-%s-%d", getenv("TMPDIR"), name, (int)getpid());
}

TEST(test_switches__a_kill_switch_counts_while_it_is_there)
{
    static struct config config = {.interval_type = INTERVAL_STEPS, .interval = 1};
    struct switches switches;
    switches_open(&switches, &config);
    assert_int_equal(switches_poll(&switches, 0), 0); /* no path, no file */
    set_path(config.kill_switch, "kill");
    assert_false(switches_is_killed(&config));
    assert_int_equal(switches_poll(&switches, 0), 0);
    make_file(config.kill_switch);
    assert_true(switches_is_killed(&config));
    assert_int_equal(switches_poll(&switches, 0), SWITCH_KILL);
    assert_int_equal(switches_poll(&switches, 0), SWITCH_KILL);
    unlink(config.kill_switch);
    assert_int_equal(switches_poll(&switches, 0), 0);
}

TEST(test_switches__a_save_switch_asks_for_one_save)
{
    static struct config config = {.interval_type = INTERVAL_STEPS, .interval = 1};
    struct switches switches;
    set_path(config.save_switch, "save");
    switches_open(&switches, &config);
    make_file(config.save_switch);
    assert_int_equal(switches_poll(&switches, 0), SWITCH_SAVE);
    assert_int_equal(access(config.save_switch, F_OK), -1);
    assert_int_equal(switches_poll(&switches, 0), 0);
    /* A switch that cannot be removed counts once, too. */
    assert_int_equal(mkdir(config.save_switch, 0777), 0);
    assert_int_equal(switches_poll(&switches, 0), SWITCH_SAVE);
    assert_int_equal(switches_poll(&switches, 0), 0);
    rmdir(config.save_switch);
}

TEST(test_switches__clocks_ask_when_their_time_is_over)
{
    static struct config config = {.interval_type = INTERVAL_SECONDS, .interval = 3600};
    struct switches switches;
    config.exit_minutes = 90;
    switches_open(&switches, &config);
    assert_int_equal(switches_poll(&switches, 0), 0);
    switches.saved_at -= 3601;
    assert_int_equal(switches_poll(&switches, 0), SWITCH_SAVE);
    switches_saved(&switches);
    assert_int_equal(switches_poll(&switches, 0), 0);
    switches.opened_at -= 89 * 60;
    assert_int_equal(switches_poll(&switches, 0), 0);
    switches.opened_at -= 61;
    assert_int_equal(switches_poll(&switches, 0), SWITCH_DURATION);
    config.interval_type = INTERVAL_STEPS; /* which the loop counts itself */
    switches.saved_at -= 3601;
    assert_int_equal(switches_poll(&switches, 0), SWITCH_DURATION);
}

/* Twice the longest step and save before it, at least the key's; the longest stays. */
TEST(test_switches__a_job_that_ends_is_left_in_time)
{
    static const struct {
        double left, least, lap, save;
        unsigned seen;
    } cases[] = {
        {100, 10, 0, 0, 0},  {9, 10, 0, 0, SWITCH_DURATION},   {9, 0, 0, 0, 0},
        {100, 10, 40, 5, 0}, {88, 10, 40, 5, SWITCH_DURATION}, {60, 10, 0, 31, SWITCH_DURATION}};
    static struct config config;
    struct switches switches;
    char end[32];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        config.exit_lead_seconds = cases[i].least;
        snprintf(end, sizeof(end), "%.0f", (double)time(NULL) + cases[i].left);
        setenv("SLURM_JOB_END_TIME", end, 1);
        switches_open(&switches, &config);
        switches.polled_at = clock_seconds() - cases[i].lap;
        assert_int_equal(switches_poll(&switches, cases[i].save), cases[i].seen);
        assert_int_equal(switches_poll(&switches, cases[i].save), cases[i].seen);
    }
    setenv("HOLDFAST_JOB_END_TIME", "9e9", 1);
    assert_true(launched_job_end() == 9e9);
    setenv("SLURM_JOB_END_TIME", "8e9", 1);
    const char *const no_numbers[] = {"", "tomorrow", "2026-12-01T12:00", "9e9 s", "-1", "inf"};
    for (size_t i = 0; i < sizeof(no_numbers) / sizeof(no_numbers[0]); i++) {
        setenv("HOLDFAST_JOB_END_TIME", no_numbers[i], 1);
        assert_true(launched_job_end() == 8e9);
    }
    unsetenv("HOLDFAST_JOB_END_TIME");
    unsetenv("SLURM_JOB_END_TIME");
    assert_true(launched_job_end() == 0);
}

TEST(test_switches__memory_is_short_by_what_is_own_or_by_what_is_left)
{
    static struct config config = {.exit_leak_gib = 0};
    struct switches switches;
    char root[] = "/tmp/switches-XXXXXX";
    assert_non_null(mkdtemp(root));
    shell("cd %s && mkdir -p proc/self && printf 'MemAvailable: 5242880 kB\n' >proc/meminfo &&"
          " printf 'VmRSS: 9000000 kB\nRssAnon: 3145728 kB\nRssFile: 5000000 kB\n"
          "VmSwap: 1048576 kB\n' >proc/self/status",
          root);
    static const struct {
        double most, least;
        bool is_short;
    } cases[] = {{0, 0, false},   {4, 0, true},   {4.01, 0, false},
                 {0, 4.9, false}, {0, 5.0, true}, {4.01, 5.1, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        config.exit_memory_gib = cases[i].most;
        config.exit_free_memory_gib = cases[i].least;
        switches_open(&switches, &config);
        switches.root = root;
        assert_int_equal(switches_memory_is_short(&switches), cases[i].is_short);
        assert_false(switches_memory_is_short(&switches)); /* within the same second */
    }
    shell("rm -r %s", root);
}

/* Half hours in which memory rose by 64 MiB each; `flat`: but in one. */
static struct leak leak_of(bool flat)
{
    struct leak leak = {.num_past = LEAK_WINDOWS};
    for (uint64_t i = 0; i < LEAK_WINDOWS; i++)
        leak.past[i] = (struct leak_window){(int64_t)i * LEAK_WINDOW_MS, (100 + i) << 26};
    leak.past[4].bytes -= flat ? 1 << 26 : 0;
    return leak;
}

TEST(test_switches__a_leak_ends_a_run_if_it_is_quick)
{
    static struct config config;
    static const struct {
        double limit; /* GiB an hour */
        bool flat, is_short;
    } cases[] = {
        {0, false, false}, {0.125, false, true}, {0.126, false, false}, {0.1, true, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct switches switches;
        config.exit_leak_gib = cases[i].limit;
        switches_open(&switches, &config);
        switches.leak = leak_of(cases[i].flat);
        assert_int_equal(switches_memory_is_short(&switches), cases[i].is_short);
        assert_int_equal(switches.is_leak_said, !cases[i].flat);
    }
}

TEST(test_switches__each_has_its_exit_code)
{
    assert_int_equal(switches_exit_code(0), EXIT_RUN_AGAIN);
    assert_int_equal(switches_exit_code(SWITCH_SAVE), EXIT_RUN_AGAIN);
    assert_int_equal(switches_exit_code(SWITCH_MEMORY), EXIT_RUN_AGAIN);
    assert_int_equal(switches_exit_code(SWITCH_DURATION), EXIT_TIME_IS_OVER);
    assert_int_equal(switches_exit_code(SWITCH_DURATION | SWITCH_KILL), EXIT_DO_NOT_RETRY);
}

SUITE(NULL, NULL)
