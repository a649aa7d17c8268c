/* ckptd_config.c - ckptd's settings.
 *
 * Goal: relations between keys are refused with the key's name, precedence is as documented, and
 * the manual (deploy/ckptd.conf) names every key with its true default. Method: config_load on
 * argument lists; with every commented default enabled the manual must give the same settings as no
 * file, and name all keys. The source is included whole for its table. */
#include "ckptd/core/config.c"
#include "tests/unit/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARGUMENTS_MAX 9

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

/* A store is a directory and the far tier is none; a socket's path is absolute and short; sizes fit
 * each other; users are numbers. */
TEST(test_config__what_means_nothing_is_refused_by_its_name)
{
    static const char path[] = "unix:/ppppppppppppppppppppppppppppppppppppppppppppppppppppppp"
                               "ppppppppppppppppppppppppppppppppppppppppppppppp"; /* 108 bytes */
    static const struct {
        const char *key, *value, *said;
    } refused[] = {
        {"--storage.block_bytes", "1500KiB", "storage.block_bytes"},
        {"--memory.segment_bytes", "10MiB", "memory.segment_bytes"},
        {"--memory.pool_bytes", "300MiB", "memory.pool_bytes"},
        {"--store", "s3://bucket/x", "s3://bucket/x"},
        {"--store", "s3:/bucket/x", "s3:/bucket/x"},
        {"--store", "dir:/x", "dir:/x"},
        {"--store", "peer:n:1", "peer:n:1"},
        {"--tier.store", "s3:/bucket/x", "tier.store"},
        {"--tier.store", "S3://bucket/x", "tier.store"},
        {"--tier.store", "gs://bucket/x", "tier.store"},
        {"--tier.store", "/x", "tier.store"},
        {"--tier.store", "x", "tier.store"},
        {"--tier.store", "dir:x", "tier.store"},
        {"--tier.store", "peer:n:1", "tier.store"},
        {"--tier.store", "s3://", "tier.store"},
        {"--listen", "localhost:1", "listen"},
        {"--listen", path, "listen"},
        {"--access.uids", "alice", "access.uids"},
        {"--access.uids", "1000,", "access.uids"},
        {"--access.uids", ",1000", "access.uids"},
        {"--access.uids", "1000,alice", "access.uids"},
        {"--access.uids", "1000 1001", "access.uids"},
        {"--access.uids", "-1", "access.uids"},
        {"--access.uids", "1000;", "access.uids"},
        {"--access.uids", "4294967295", "access.uids"},
        {"--access.uids", "1,,2", "access.uids"},
        {"--access.operators", "0x10", "access.operators"},
        {"--pace.write_rate", "1000KiB", "pace.write_rate"},
        {"--pace.cpu_nice", "20", "pace.cpu_nice"},
        {"--log", "door,tiers", "no area \"tiers\""},
        {"--http.listen", "0.0.0.0:9464", "http.public"},
        {"--log", "doo", "no area \"doo\""},
        {"--memory.pool_byte", "1GiB", "memory.pool_bytes"}, /* the nearest known one */
    };
    struct config config;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int error = load(&config, "--store", "/x", refused[i].key, refused[i].value, NULL);
        if (error != ERR_INVALID || !strstr(report_line(), refused[i].said))
            fail_msg("%s %s: %d, %s", refused[i].key, refused[i].value, error, report_line());
    }
    assert_int_equal(load(&config, "--store", "/x", "serve", NULL), ERR_INVALID);
    assert_non_null(strstr(report_message(), "serve"));
    assert_int_equal(load(&config, "--store", "/x", "--limits.private_bytes", "2GiB",
                          "--limits.exit_private_bytes", "1GiB", NULL),
                     ERR_INVALID);
    assert_non_null(strstr(report_message(), "limits.exit_private_bytes"));
    assert_int_equal(load(&config, "--store", "/x", "--limits.private_bytes", "2GiB",
                          "--limits.exit_private_bytes", "2GiB", NULL),
                     0);
    assert_int_equal(load(&config, "--store", "x", "--tier.store", "s3://b/x", "--http.listen",
                          "0.0.0.0:9464", "--http.public", "true", NULL),
                     0);
    assert_int_equal(load(&config, "--store", "memory:1048576", "--tier.store", "dir:/x", NULL), 0);
    assert_int_equal(load(&config, "--store", "/x", "--pace.write_rate", "1MiB", "--log",
                          "tier, -door,all", NULL),
                     0);
}

TEST(test_config__users_are_let_in_by_their_numbers)
{
    struct config config;
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

static int make_file(char path[200])
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, 200, "%s/ckptd-config-%d.toml", folder ? folder : "/var/tmp", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

/* Loads a file with this text. */
static int load_text(struct config *out, const char *text, const char *key, const char *value)
{
    char path[200];
    FILE *file = fdopen(make_file(path), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    int error = load(out, key, value, "--config", path, NULL);
    unlink(path);
    return error;
}

TEST(test_config__arguments_win_over_the_file)
{
    struct config config;
    assert_int_equal(load_text(&config, "store = \"/from/file\"\n[limits]\nsessions = 7\n",
                               "--limits.sessions", "9"),
                     0);
    assert_string_equal(config.store, "/from/file");
    assert_true(config.limit_sessions == 9);
}

/* Of a file of an earlier version. */
TEST(test_config__keys_that_are_gone_are_all_counted_and_refused)
{
    struct config config;
    static const char text[] = "store = \"/x\"\n[limits]\nloads = 7\nsessions = 7\n"
                               "[tier]\nwhat = \"last\"\n";
    assert_int_equal(load_text(&config, text, "--threads.rpc", "2"), ERR_INVALID);
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
