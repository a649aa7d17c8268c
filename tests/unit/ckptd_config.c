/* ckptd_config.c - what ckptd can be told.
 *
 * Goal: relations between keys are refused with the key's name, precedence is as documented, and
 * the manual (deploy/ckptd.conf) names every key with its true default. Method: config_load on
 * argument lists; the manual with every commented default switched on must give the same settings
 * as no file at all, and name all keys. The source is included whole for its table. */
#include "ckptd/core/config.c"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS_MAX 8

/* Loads "ckptd" with the arguments given, ended by NULL. */
static int load(struct config *out, ...)
{
    char *argv[ARGUMENTS_MAX + 1] = {"ckptd"};
    char copies[ARGUMENTS_MAX][256];
    int argc = 1;
    bool help;
    va_list list;
    va_start(list, out);
    for (const char *argument; (argument = va_arg(list, const char *)) != NULL; argc++) {
        snprintf(copies[argc - 1], sizeof copies[argc - 1], "%s", argument);
        argv[argc] = copies[argc - 1];
    }
    va_end(list);
    return config_load(out, argc, argv, &help);
}

TEST(test_config__a_store_is_all_that_must_be_given)
{
    struct config config;
    assert_int_equal(load(&config, NULL), ERR_INVALID);
    assert_non_null(strstr(report_hint(), "--store"));
    assert_int_equal(load(&config, "--store", "/tmp/x", NULL), 0);
    assert_int_equal(strncmp(config.listen, "unix:/tmp/holdfast-", 19), 0);
    assert_true(config.segment_bytes == 256 << 20);
}

TEST(test_config__sizes_that_do_not_fit_each_other_are_refused)
{
    struct config config;
    assert_int_equal(load(&config, "--store", "/x", "--storage.block_bytes", "1500KiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "storage.block_bytes"));
    assert_int_equal(load(&config, "--store", "/x", "--memory.segment_bytes", "10MiB",
                          "--storage.block_bytes", "4MiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "memory.segment_bytes"));
    assert_int_equal(load(&config, "--store", "/x", "--memory.pool_bytes", "300MiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "memory.pool_bytes"));
}

TEST(test_config__a_store_is_a_directory_and_the_far_tier_is_none)
{
    static const char *const no_store[] = {"s3://bucket/x", "s3:/bucket/x", "dir:/x", "peer:n:1"};
    static const char *const no_tier[] = {
        "s3:/bucket/x", "S3://bucket/x", "gs://bucket/x", "/x", "x", "dir:x", "peer:n:1", "s3://"};
    struct config config;
    for (size_t i = 0; i < sizeof no_store / sizeof *no_store; i++) {
        assert_int_equal(load(&config, "--store", no_store[i], NULL), ERR_INVALID);
        assert_non_null(strstr(report_message(), no_store[i]));
    }
    for (size_t i = 0; i < sizeof no_tier / sizeof *no_tier; i++) {
        assert_int_equal(load(&config, "--store", "/x", "--tier.store", no_tier[i], NULL),
                         ERR_INVALID);
        assert_non_null(strstr(report_message(), "tier.store"));
    }
    assert_int_equal(load(&config, "--store", "x", "--tier.store", "s3://b/x", NULL), 0);
    assert_int_equal(load(&config, "--store", "memory:1048576", "--tier.store", "dir:/x", NULL), 0);
}

TEST(test_config__a_socket_path_must_be_absolute_and_short)
{
    struct config config;
    char path[200] = "unix:/";
    assert_int_equal(load(&config, "--store", "/x", "--listen", "localhost:1", NULL), ERR_INVALID);
    memset(path + 6, 'p', 102);
    assert_int_equal(load(&config, "--store", "/x", "--listen", path, NULL), ERR_INVALID);
}

TEST(test_config__only_numbers_are_users)
{
    static const char *const bad[] = {"alice", "1000,", ",1000",      "1000,alice", "1000 1001",
                                      "-1",    "1000;", "4294967295", "1,,2",       "0x10"};
    struct config config;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(load(&config, "--store", "/x", "--access.uids", bad[i], NULL),
                         ERR_INVALID);
        assert_non_null(strstr(report_message(), "access.uids"));
        assert_int_equal(load(&config, "--store", "/x", "--access.operators", bad[i], NULL),
                         ERR_INVALID);
        assert_non_null(strstr(report_message(), "access.operators"));
    }
    assert_int_equal(load(&config, "--store", "/x", "--access.uids", "", NULL), 0);
    assert_false(config_allows_uid(&config, 0));
    assert_int_equal(load(&config, "--store", "/x", "--access.uids", "10,4294967294,12", NULL), 0);
    assert_true(config_allows_uid(&config, 10));
    assert_true(config_allows_uid(&config, 4294967294u));
    assert_true(config_allows_uid(&config, 12));
    assert_false(config_allows_uid(&config, 1));
    assert_false(config_allows_uid(&config, 0));
}

TEST(test_config__operators_are_let_in_and_no_others_are_operators)
{
    struct config config;
    assert_int_equal(load(&config, "--store", "/x", "--access.uids", "10,11", "--access.operators",
                          "11,12", NULL),
                     0);
    for (uid_t uid = 9; uid <= 13; uid++) {
        assert_int_equal(config_allows_uid(&config, uid), uid >= 10 && uid <= 12);
        assert_int_equal(config_is_operator(&config, uid), uid == 11 || uid == 12);
    }
    assert_int_equal(load(&config, "--store", "/x", "--access.uids", "10", NULL), 0);
    assert_false(config_is_operator(&config, 10));
    assert_false(config_is_operator(&config, 0)); /* root needs no setting; listen.c */
}

TEST(test_config__manners_that_mean_nothing_are_refused_by_name)
{
    struct config config;
    assert_int_equal(load(&config, "--store", "/x", "--pace.write_rate", "1000KiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "pace.write_rate"));
    assert_int_equal(load(&config, "--store", "/x", "--pace.write_rate", "1MiB", NULL), 0);
    assert_int_equal(load(&config, "--store", "/x", "--pace.cpu_nice", "20", NULL), ERR_INVALID);
}

TEST(test_config__an_area_of_the_log_that_is_not_there_is_named)
{
    struct config config;
    assert_int_equal(load(&config, "--store", "/x", "--log", "tier, -door,all", NULL), 0);
    assert_int_equal(load(&config, "--store", "/x", "--log", "door,tiers", NULL), ERR_INVALID);
    assert_non_null(strstr(report_message(), "no area \"tiers\""));
    assert_int_equal(load(&config, "--store", "/x", "--log", "doo", NULL), ERR_INVALID);
}

TEST(test_config__an_unknown_key_or_word_is_refused)
{
    struct config config;
    assert_int_equal(load(&config, "--store", "/x", "--memory.pool_byte", "1GiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_line(), "memory.pool_bytes")); /* the nearest known one */
    assert_int_equal(load(&config, "--store", "/x", "serve", NULL), ERR_INVALID);
    assert_non_null(strstr(report_message(), "serve"));
}

static int make_file(char path[200])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, 200, "%s/ckptd-config-%d.toml", folder ? folder : "/var/tmp", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

TEST(test_config__arguments_win_over_the_file)
{
    struct config config;
    char path[200];
    static const char text[] = "store = \"/from/file\"\n[limits]\nsessions = 7\n";
    int fd = make_file(path);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(load(&config, "--limits.sessions", "9", "--config", path, NULL), 0);
    unlink(path);
    assert_string_equal(config.store, "/from/file");
    assert_true(config.limit_sessions == 9);
}

/* Of a file of an earlier version. */
TEST(test_config__keys_that_are_gone_are_all_counted_and_refused)
{
    struct config config;
    char path[200];
    static const char text[] = "store = \"/x\"\n[limits]\nloads = 7\nsessions = 7\n"
                               "[tier]\nwhat = \"last\"\n";
    int fd = make_file(path);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(load(&config, "--threads.rpc", "2", "--config", path, NULL), ERR_INVALID);
    unlink(path);
    assert_non_null(strstr(report_message(), "3 of the keys"));
    assert_int_equal(load(&config, "--store", "/x", "--limits.load", "7", NULL), ERR_INVALID);
    assert_null(strstr(report_line(), "limits.loads")); /* as the nearest */
}

/* The manual with every "#key = value" line switched on. */
static void switch_on(FILE *to, FILE *from)
{
    char line[512];
    while (fgets(line, sizeof line, from)) {
        bool key = line[0] == '#' && ((line[1] >= 'a' && line[1] <= 'z' && strstr(line, " = ")) ||
                                      line[1] == '['); /* the section of a run */
        fputs(key ? line + 1 : line, to);
    }
}

TEST(test_config__the_manual_names_every_key_with_its_default)
{
    struct config manual = {.argc = 0}, plain;
    char path[200];
    FILE *from = fopen("deploy/ckptd.conf", "r"), *to = fdopen(make_file(path), "w");
    assert_non_null(from);
    assert_non_null(to);
    switch_on(to, from);
    fclose(from);
    fclose(to);
    bool is_set[sizeof table / sizeof table[0]] = {false};
    assert_int_equal(options_read_toml(&(struct options){.table = table,
                                                         .config = &manual,
                                                         .is_set = is_set,
                                                         .set_other = set_of_run},
                                       path),
                     0);
    for (size_t i = 0; table[i].key; i++)
        if (!is_set[i] && table[i].type != OPTION_TYPE_GONE &&
            strcmp(table[i].key, "config") != 0 && strcmp(table[i].key, "check") != 0)
            fail_msg("%s is not in it", table[i].key);
    int error = load(&manual, "--config", path, NULL);
    unlink(path);
    if (error != 0)
        fail_msg("%s", report_line());
    assert_int_equal(load(&plain, "--config", "/dev/null", "--store", manual.store, "--listen",
                          manual.listen, NULL),
                     0);
    assert_int_equal(manual.policies.num_runs, 1); /* it has no default */
    memset(&manual.policies.runs, 0, sizeof manual.policies.runs);
    manual.policies.num_runs = 0;
    manual.argc = plain.argc = 0;
    manual.argv = plain.argv = NULL;
    memset(manual.config_file, 0, sizeof manual.config_file);
    memset(plain.config_file, 0, sizeof plain.config_file);
    assert_memory_equal(&manual, &plain, sizeof plain);
}

SUITE(NULL, NULL)
