/* proto_options.c - the option parser.
 *
 * Goal: values of every type arrive from every source in the promised precedence, and a wrong key
 * or value is refused with file, line, key, value and a useful hint. Method: one table with a row
 * of each type over a small struct; TOML files are written to TMPDIR; notes are read back from
 * stderr. */
#include "proto/base/options.h"

#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct settings {
    bool enable, verbose;
    int64_t steps, pool, every;
    double lr;
    char name[16], mode[16], listen[64], axes[64];
};

static const struct option table[] = {
    OPTION_STRING(struct settings, listen, "listen", "unix:/tmp/x", "where to listen"),
    OPTION_BOOL(struct settings, enable, "checkpoint.enable", "true", "save at all"),
    OPTION_INT(struct settings, steps, "training.steps", 10000, 1, 1 << 30, "optimizer steps"),
    OPTION_BYTES(struct settings, pool, "memory.pool_bytes", "64MiB", 4096, 1ll << 60,
                 "size of the pool"),
    OPTION_DOUBLE(struct settings, lr, "optimizer.lr", 3e-4, 0, 10, "learning rate"),
    OPTION_STRING(struct settings, name, "training.name", "", "name of it"),
    OPTION_CHOICE_BUT(struct settings, mode, "checkpoint.async_mode", "async", "disabled,async",
                      "later,never", "nothing would be saved", "how to save"),
    OPTION_STRING(struct settings, axes, "training.a_rather_long_key_that_breaks_the_line_here", "",
                  "axes"),
    OPTION_BOOL(struct settings, verbose, "verbose", "false", "say more"),
    OPTION_INT_OR(struct settings, every, "every", 5, "auto", 1, 9, "how often"),
    OPTION_ALIAS("training.num_steps", "training.steps"),
    OPTION_ALIAS("checkpoint.enable_checkpoint", "checkpoint.enable"),
    OPTION_IGNORED("training.gc_freq", "no garbage collector here"),
    OPTION_FIXED("training.fp8", "false,none", "there are no eight bits"),
    OPTION_GONE("training.dtype", "set training.mixed_precision_param"),
    OPTION_END,
};
#define NUM_ROWS (sizeof(table) / sizeof(table[0]))

static struct settings settings;
static bool is_set[NUM_ROWS];
static const struct options options = {.table = table, .config = &settings, .is_set = is_set};
static char file_path[256];

static int set_up(void **state)
{
    (void)state;
    const char *folder = getenv("TMPDIR");
    memset(&settings, 0xee, sizeof(settings));
    snprintf(file_path, sizeof(file_path), "%s/options-%d.toml", folder ? folder : "/tmp",
             getpid());
    return options_defaults(&options);
}

static int tear_down(void **state)
{
    (void)state;
    unlink(file_path);
    return 0;
}

static int read_toml(const char *text)
{
    FILE *file = fopen(file_path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return options_read_toml(&options, file_path);
}

/* Runs options_read_args over a copy of `text` split at blanks; returns what is left, joined. */
static int read_args(char *rest, const char *text, const char *const *short_keys)
{
    char copy[512] = "program ", *argv[32], *save = NULL;
    int argc = 0;
    strncat(copy, text, sizeof(copy) - 20);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    int error = options_read_args(&options, &argc, argv, short_keys);
    rest[0] = '\0';
    for (int i = 1; !error && i < argc; i++) {
        strcat(rest, i > 1 ? " " : "");
        strcat(rest, argv[i]);
    }
    if (!error)
        assert_null(argv[argc]);
    return error;
}

/* The text on stderr while `text` is read as TOML. */
static void read_toml_and_notes(char notes[4096], const char *text)
{
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    int error = read_toml(text);
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t n = read(ends[0], notes, 4095);
    close(ends[0]);
    assert_int_equal(error, 0);
    notes[n > 0 ? n : 0] = '\0';
}

static void assert_line_has(const char *part)
{
    if (!strstr(report_line(), part))
        fail_msg("'%s' does not contain '%s'", report_line(), part);
}

TEST_BETWEEN(test_options__defaults_fill_the_struct, set_up, tear_down)
{
    assert_true(settings.enable);
    assert_int_equal(settings.steps, 10000);
    assert_int_equal(settings.pool, 64 << 20);
    assert_true(settings.lr == 3e-4);
    assert_string_equal(settings.name, "");
    assert_string_equal(settings.mode, "async");
    assert_string_equal(settings.listen, "unix:/tmp/x");
    assert_false(is_set[2]);
}

TEST_BETWEEN(test_options__command_line_wins_over_file_over_default, set_up, tear_down)
{
    char rest[512];
    assert_int_equal(read_toml("[training]\nsteps = 7\nname = \"abc\"\n"), 0);
    assert_int_equal(settings.steps, 7);
    assert_int_equal(read_args(rest, "--training.steps 9", NULL), 0);
    assert_int_equal(settings.steps, 9);
    assert_string_equal(settings.name, "abc");
    assert_int_equal(settings.pool, 64 << 20);
    assert_true(is_set[2] && is_set[5]);
    assert_false(is_set[3]);
}

TEST_BETWEEN(test_options__toml_values_of_every_type_are_read, set_up, tear_down)
{
    assert_int_equal(read_toml("listen = \"unix:/run/x\"\n"
                               "verbose = true\n"
                               "[training]\n"
                               "a_rather_long_key_that_breaks_the_line_here = [\"pp\", \"dp\", 3]\n"
                               "[checkpoint]\n"
                               "enable = false\n"
                               "async_mode = 'disabled'\n"
                               "[memory]\n"
                               "pool_bytes = \"3 GiB\"\n"
                               "[optimizer]\n"
                               "lr = 1.25e-3 # a comment\n"),
                     0);
    assert_string_equal(settings.listen, "unix:/run/x");
    assert_true(settings.verbose);
    assert_string_equal(settings.axes, "pp,dp,3");
    assert_false(settings.enable);
    assert_string_equal(settings.mode, "disabled");
    assert_int_equal(settings.pool, 3ll << 30);
    assert_true(settings.lr == 1.25e-3);
    assert_int_equal(read_toml("training = { steps = 1_000 }\noptimizer.lr = 1\n"), 0);
    assert_int_equal(settings.steps, 1000);
    assert_true(settings.lr == 1.0);
}

TEST_BETWEEN(test_options__arguments_come_in_all_their_forms, set_up, tear_down)
{
    static const char *const short_keys[] = {"steps", "training.steps", "v", "verbose", NULL};
    char rest[512];
    assert_int_equal(read_args(rest,
                               "first --training.name=a=b --checkpoint.no_enable second "
                               "--steps 12 --v --optimizer.lr -0 -- --kept -x",
                               short_keys),
                     0);
    assert_string_equal(rest, "first second --kept -x");
    assert_string_equal(settings.name, "a=b");
    assert_false(settings.enable);
    assert_int_equal(settings.steps, 12);
    assert_true(settings.verbose);
    assert_int_equal(read_args(rest, "--no_verbose -v - -- -v", short_keys), 0);
    assert_true(settings.verbose);
    assert_string_equal(rest, "- -v");
    assert_int_equal(read_args(rest, "--checkpoint.enable next", NULL), 0);
    assert_true(settings.enable);
    assert_string_equal(rest, "next");
    assert_int_equal(read_args(rest, "--checkpoint.enable false last", NULL), 0);
    assert_false(settings.enable);
    assert_string_equal(rest, "last");
    assert_int_equal(read_args(rest, "--checkpoint.async-mode disabled", NULL), 0);
    assert_string_equal(settings.mode, "disabled");
    assert_int_equal(read_args(rest, "--checkpoint.enable-checkpoint --no_verbose", NULL), 0);
    assert_true(settings.enable);
    assert_false(settings.verbose);
}

TEST_BETWEEN(test_options__a_bare_key_with_nothing_to_decide_is_a_boolean, set_up, tear_down)
{
    char rest[512];
    assert_int_equal(read_args(rest, "--training.gc_freq --training.steps 3", NULL), 0);
    assert_int_equal(settings.steps, 3);
    assert_int_equal(read_args(rest, "--training.gc_freq 50 --training.gc_freq", NULL), 0);
    assert_string_equal(rest, "");
    assert_int_equal(read_args(rest, "--training.no_gc_freq --training.no_fp8", NULL), 0);
    assert_int_equal(read_args(rest, "--training.fp8 none last", NULL), 0);
    assert_string_equal(rest, "last");
    assert_int_equal(read_args(rest, "--training.fp8 --verbose", NULL), ERR_INVALID);
    assert_line_has("training.fp8 = 'true' is not available: there are no eight bits");
}

TEST_BETWEEN(test_options__byte_sizes_take_suffixes, set_up, tear_down)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {
        {"4096", 4096},      {"64KiB", 65536},
        {"1 MiB", 1 << 20},  {"2GiB", 2ll << 30},
        {"1TiB", 1ll << 40}, {"4KB", -1},
        {"4k", -1},          {"KiB", -1},
        {"1.5GiB", -1},      {"9000000000TiB", -1},
        {"-1", -1},          {"4KiB ", -1},
        {"0x1000", -1},      {"99999999999999999999", -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int error = options_set(&options, "memory.pool_bytes", cases[i].text, "test");
        assert_int_equal(error, cases[i].bytes < 0 ? ERR_INVALID : 0);
        if (cases[i].bytes >= 0)
            assert_int_equal(settings.pool, cases[i].bytes);
    }
}

TEST(test_options__spans_of_time_have_a_unit)
{
    static const char *const wrong[] = {"",
                                        "7",
                                        "d",
                                        "7x",
                                        "-7d",
                                        "+7d",
                                        " 7d",
                                        "7 d",
                                        "7dd",
                                        "7h3m",
                                        "1.5h",
                                        "9999999999999s",
                                        "99999999999999999999d"};
    uint64_t seconds = 3;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(options_parse_span(&seconds, wrong[i]));
    assert_int_equal(seconds, 3);
    assert_true(options_parse_span(&seconds, "45s") && seconds == 45);
    assert_true(options_parse_span(&seconds, "30m") && seconds == 1800);
    assert_true(options_parse_span(&seconds, "12h") && seconds == 43200);
    assert_true(options_parse_span(&seconds, "7d") && seconds == 604800);
    assert_true(options_parse_span(&seconds, "1w") && seconds == 604800);
}

TEST_BETWEEN(test_options__a_word_may_stand_beside_numbers, set_up, tear_down)
{
    char rest[512];
    assert_int_equal(settings.every, 5);
    assert_int_equal(read_toml("every = \"auto\"\n"), 0);
    assert_int_equal(settings.every, 0);
    char *json = options_to_json(&options);
    assert_non_null(strstr(json, "\"every\":\"auto\""));
    free(json);
    assert_int_equal(read_args(rest, "--every 7", NULL), 0);
    assert_int_equal(settings.every, 7);
    assert_int_equal(read_args(rest, "--every auto", NULL), 0);
    assert_int_equal(settings.every, 0);
    static const char *const wrong[] = {"0", "10", "automatic", "Auto", ""};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(options_set(&options, "every", wrong[i], "here"), ERR_INVALID);
        assert_line_has("a whole number, 1 to 9, or auto is wanted");
    }
}

TEST_BETWEEN(test_options__wrong_values_are_refused_and_change_nothing, set_up, tear_down)
{
    static const struct {
        const char *key, *value, *wanted;
    } cases[] = {
        {"training.steps", "0", "a whole number, 1 to 1073741824,"},
        {"training.steps", "1073741825", "a whole number, 1 to"},
        {"memory.pool_bytes", "5", ", 4096 or more, is wanted"},
        {"training.steps", "5.5", "a whole number"},
        {"training.steps", "", "a whole number"},
        {"training.steps", "7x", "a whole number"},
        {"training.steps", "99999999999999999999", "a whole number"},
        {"optimizer.lr", "11", "a number, 0 to 10,"},
        {"optimizer.lr", "nan", "a number, 0 to 10,"},
        {"optimizer.lr", "inf", "a number, 0 to 10,"},
        {"optimizer.lr", "1e-3f", "a number, 0 to 10,"},
        {"checkpoint.enable", "yes", "true or false"},
        {"checkpoint.async_mode", "asyn", "one of disabled,async"},
        {"checkpoint.async_mode", "disabled,async", "one of disabled,async"},
        {"checkpoint.async_mode", "never", "nothing would be saved; one of disabled,async"},
        {"training.name", "sixteen letters!", "at most 15 characters"},
    };
    struct settings before = settings;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(options_set(&options, cases[i].key, cases[i].value, "here"), ERR_INVALID);
        assert_line_has("here: ");
        assert_line_has(cases[i].key);
        assert_line_has(cases[i].value);
        assert_line_has(cases[i].wanted);
    }
    assert_memory_equal(&before, &settings, sizeof(before));
}

TEST_BETWEEN(test_options__message_names_file_and_line, set_up, tear_down)
{
    char expected[400];
    assert_int_equal(read_toml("[training]\n\nname = 'x'\nsteps = 0\n"), ERR_INVALID);
    snprintf(expected, sizeof(expected), "%s:4: training.steps = '0' is not valid", file_path);
    assert_line_has(expected);
    assert_int_equal(read_toml("[training]\nsteps = = 3\n"), ERR_INVALID);
    snprintf(expected, sizeof(expected), "%s:2: ", file_path);
    assert_line_has(expected);
    assert_int_equal(read_toml("[[training]]\nsteps = 3\n"), ERR_INVALID);
    assert_line_has("'training' is not a value or a list of values");
}

TEST_BETWEEN(test_options__unknown_key_is_refused_with_the_nearest_one, set_up, tear_down)
{
    static const struct {
        const char *key, *nearest; /* NULL: none is near */
    } cases[] = {
        {"training.stpes", "training.steps"},
        {"trainning.steps", "training.steps"},
        {"steps", "training.steps"},
        {"optimizer.learning_rate", NULL},
        {"checkpoint.async_mod", "checkpoint.async_mode"},
        {"optim.lr", "optimizer.lr"},
        {"zzzzzzzzzzzz", NULL},
        {"listne", "listen"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char expected[200];
        assert_int_equal(options_set(&options, cases[i].key, "1", "test"), ERR_INVALID);
        assert_line_has(cases[i].key);
        if (cases[i].nearest) {
            snprintf(expected, sizeof(expected), "did you mean '%s'?", cases[i].nearest);
            assert_line_has(expected);
        } else {
            assert_line_has("--help");
        }
    }
    char rest[512];
    assert_int_equal(read_args(rest, "--training.setps 5", NULL), ERR_INVALID);
    assert_line_has("command line: option '--training.setps' is unknown");
    assert_line_has("did you mean '--training.steps'?");
    assert_int_equal(read_args(rest, "--zzzz=1", NULL), ERR_INVALID);
    assert_line_has("command line: option '--zzzz' is unknown (--help lists the options)");
    assert_int_equal(read_args(rest, "--training.no_steps", NULL), ERR_INVALID);
    assert_int_equal(read_args(rest, "--training.steps", NULL), ERR_INVALID);
    assert_line_has("--training.steps has no value");
    assert_int_equal(read_args(rest, "--training.steps --verbose", NULL), ERR_INVALID);
}

TEST_BETWEEN(test_options__what_begins_with_one_dash_is_an_option_or_refused, set_up, tear_down)
{
    static const char *const short_keys[] = {"steps", "training.steps", "v", "verbose", NULL};
    static const char *const cases[] = {"-x", "-steps", "-vv", "-v=1", "-1"};
    char rest[512], text[64], expected[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(text, sizeof(text), "first %s second", cases[i]);
        assert_int_equal(read_args(rest, text, short_keys), ERR_INVALID);
        snprintf(expected, sizeof(expected), "command line: option '%s' is unknown", cases[i]);
        assert_line_has(expected);
    }
}

TEST_BETWEEN(test_options__missing_file_is_not_found, set_up, tear_down)
{
    assert_int_equal(options_read_toml(&options, "/nowhere/at/all.toml"), ERR_NOT_FOUND);
    assert_line_has("no configuration file \"/nowhere/at/all.toml\"");
    assert_int_equal(options_read_toml(&options, "/"), ERR_IO);
    assert_line_has("Is a directory");
}

TEST_BETWEEN(test_options__aliases_and_ignored_keys_are_accepted_with_a_note, set_up, tear_down)
{
    char notes[4096];
    read_toml_and_notes(notes, "[training]\nnum_steps = 55\ngc_freq = 50\n");
    assert_int_equal(settings.steps, 55);
    assert_true(is_set[2]);
    assert_non_null(strstr(notes, ":2: training.num_steps is taken as training.steps\n"));
    assert_non_null(strstr(notes, ":3: training.gc_freq is ignored: no garbage collector here\n"));
}

TEST_BETWEEN(test_options__json_has_one_member_per_section, set_up, tear_down)
{
    assert_int_equal(options_set(&options, "training.name", "a\"b\\c", "test"), 0);
    assert_int_equal(options_set(&options, "optimizer.lr", "0.1", "test"), 0);
    char *text = options_to_json(&options);
    assert_non_null(text);
    assert_string_equal(
        text,
        "{\"listen\":\"unix:/tmp/x\",\"checkpoint\":{\"enable\":true,\"async_mode\":\"async\"},"
        "\"training\":{\"steps\":10000,\"name\":\"a\\\"b\\\\c\","
        "\"a_rather_long_key_that_breaks_the_line_here\":\"\"},"
        "\"memory\":{\"pool_bytes\":67108864},\"optimizer\":{\"lr\":0.1},\"verbose\":false,"
        "\"every\":5}");
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_decref(root);
    free(text);
}

TEST_BETWEEN(test_options__a_fixed_key_is_refused_where_it_asks_for_something_else, set_up,
             tear_down)
{
    assert_int_equal(options_set(&options, "training.fp8", "false", "test"), 0);
    assert_int_equal(options_set(&options, "training.fp8", "", "test"), 0);
    assert_int_equal(options_set(&options, "training.fp8", "true", "f.toml:3"), ERR_INVALID);
    assert_non_null(strstr(report_line(), "f.toml:3: training.fp8 = 'true'"));
    assert_non_null(strstr(report_line(), "there are no eight bits"));
}

TEST_BETWEEN(test_options__a_value_that_is_final_elsewhere_is_not_looked_at, set_up, tear_down)
{
    bool is_final[NUM_ROWS] = {false};
    struct options file = options;
    file.is_final = is_final;
    is_final[2] = true; /* training.steps */
    assert_int_equal(options_set(&options, "training.steps", "7", "test"), 0);
    assert_int_equal(options_set(&file, "training.steps", "none", "test"), 0);
    assert_int_equal(options_set(&file, "training.num_steps", "9", "test"), 0);
    assert_int_equal(settings.steps, 7);
    assert_int_equal(options_set(&file, "training.step", "9", "test"), ERR_INVALID);
    assert_int_equal(options_set(&file, "optimizer.lr", "none", "test"), ERR_INVALID);
}

TEST_BETWEEN(test_options__help_is_aligned_and_names_other_keys_behind, set_up, tear_down)
{
    char *text = NULL, *save = NULL;
    size_t length = 0, column = 0;
    uint32_t rows = 0;
    FILE *out = open_memstream(&text, &length);
    options_print_help(&options, out);
    fclose(out);
    char *others = strstr(text, "\n\n");
    assert_non_null(others);
    assert_non_null(strstr(others, "training.num_steps: another name of training.steps"));
    assert_non_null(strstr(others, "training.gc_freq: ignored: no garbage collector here"));
    assert_non_null(strstr(others, "training.fp8: ignored if false,none, else refused: there are"));
    assert_null(strstr(text, "training.dtype"));
    others[0] = 0;
    assert_null(strstr(text, "num_steps"));
    assert_non_null(strstr(text, "--training.steps N"));
    assert_non_null(strstr(text, "optimizer steps (default 10000, 1 to 1073741824)"));
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        static const char *const helps[] = {"where to", "save at",  "optimizer steps",
                                            "size of",  "learning", "name of",
                                            "how to",   "axes",     "say more"};
        assert_true(strlen(line) <= 140);
        for (size_t i = 0; i < sizeof(helps) / sizeof(helps[0]); i++) {
            const char *at = strstr(line, helps[i]);
            if (!at)
                continue;
            rows++;
            if (column == 0)
                column = (size_t)(at - line);
            assert_int_equal(at - line, column);
        }
    }
    free(text);
    assert_int_equal(rows, 9);
}

SUITE(NULL, NULL)
