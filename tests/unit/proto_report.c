/* proto_report.c - error codes, the thread's last error, the log.
 *
 * Goal: codes and texts arrive as report.h promises, per thread, and a log line is one line
 * whatever text it quotes. Method: log output is captured by putting a pipe (or a pseudo terminal)
 * in the place of stderr. An assertion that fails is watched from the parent of a fork. */
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <errno.h>
#include <pthread.h>
#include <pty.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define LINE_FORM "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

/* ---- capture of stderr ---- */

struct capture {
    int saved, read_end;
    char text[65536];
};

static void begin_capture_into(struct capture *capture, int write_end, int read_end)
{
    fflush(stderr);
    capture->saved = dup(STDERR_FILENO);
    capture->read_end = read_end;
    assert_int_equal(dup2(write_end, STDERR_FILENO), STDERR_FILENO);
    close(write_end);
}

static void begin_capture(struct capture *capture)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    begin_capture_into(capture, ends[1], ends[0]);
}

/* All output since then; at most the capacity of a pipe. */
static const char *end_capture(struct capture *capture)
{
    size_t length = 0;
    assert_int_equal(dup2(capture->saved, STDERR_FILENO), STDERR_FILENO);
    close(capture->saved);
    for (;;) {
        ssize_t n =
            read(capture->read_end, capture->text + length, sizeof(capture->text) - 1 - length);
        if (n <= 0)
            break;
        length += (size_t)n;
    }
    close(capture->read_end);
    capture->text[length] = '\0';
    return capture->text;
}

static void assert_matches(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int result = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    if (result != 0)
        fail_msg("'%s' does not match '%s'", text, pattern);
}

/* ---- errors ---- */

TEST(test_report__every_code_has_name_text_status_and_retry)
{
    int count = 0;
#define X(name, value, grpc, retry, text)           \
    assert_int_equal(name, value);                  \
    assert_string_equal(err_name(value), #name);    \
    assert_true(strlen(err_text(value)) > 0);       \
    assert_int_equal(err_grpc_status(value), grpc); \
    assert_true(err_retry(value) == retry);         \
    count++;
    ERR_MAP(X)
#undef X
    assert_int_equal(count, 17);
    assert_string_equal(err_name(0), "OK");
    assert_int_equal(err_grpc_status(0), 0);
    assert_string_equal(err_name(-999), "ERR_UNKNOWN");
    assert_int_equal(err_grpc_status(7), 2);
    assert_false(err_retry(ERR_CORRUPT));
    assert_true(err_retry(ERR_IO));
}

TEST(test_report__error_keeps_message_and_hint)
{
    assert_int_equal(report_error(ERR_SPACE, "free some", "step %d failed", 7), ERR_SPACE);
    assert_string_equal(report_message(), "step 7 failed");
    assert_string_equal(report_detail(), "");
    assert_string_equal(report_hint(), "free some");
    assert_string_equal(report_line(), "step 7 failed (free some)");
    report_clear();
    assert_string_equal(report_line(), "");
}

TEST(test_report__errno_text_goes_into_the_detail)
{
    errno = ENOENT;
    assert_int_equal(report_errno(ERR_IO, "could not open", "/some/file"), ERR_IO);
    assert_string_equal(report_detail(), "/some/file: No such file or directory");
    assert_string_equal(report_line(), "could not open: /some/file: No such file or directory");
    assert_int_equal(errno, ENOENT);
    assert_int_equal(report_errno(ERR_IO, "could not open", NULL), ERR_IO);
    assert_string_equal(report_detail(), "No such file or directory");
}

TEST(test_report__new_error_may_be_built_from_the_old_one)
{
    report_set(ERR_IO, "inner", "detail", "hint");
    report_error(ERR_ABORTED, report_hint(), "outer: %s: %s", report_message(), report_detail());
    assert_string_equal(report_line(), "outer: inner: detail (hint)");
    report_set(ERR_IO, report_hint(), report_message(), report_message());
    assert_string_equal(report_message(), "hint");
    assert_string_equal(report_detail(), "outer: inner: detail");
}

TEST(test_report__too_long_texts_are_cut)
{
    char text[5000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    report_set(ERR_IO, text, text, text);
    size_t length = strlen(report_message());
    assert_in_range(length, 500, sizeof(text) - 2);
    assert_int_equal(strlen(report_line()), 3 * length + 2 + 3);
}

TEST(test_report__kept_text_outlives_another_error)
{
    struct report_text text;
    report_set(ERR_IO, "first", "detail", "hint");
    report_keep(&text);
    report_error(ERR_BUSY, NULL, "second");
    assert_int_equal(report_restore(&text, ERR_IO), ERR_IO);
    assert_string_equal(report_line(), "first: detail (hint)");
}

static void *set_other_error(void *user)
{
    (void)user;
    const char *first = report_message();
    bool was_empty = first[0] == '\0';
    report_error(ERR_BUSY, NULL, "other");
    return (void *)(uintptr_t)(was_empty && strcmp(report_message(), "other") == 0);
}

TEST(test_report__last_error_belongs_to_its_thread)
{
    pthread_t thread;
    void *result = NULL;
    report_error(ERR_IO, NULL, "mine");
    assert_int_equal(pthread_create(&thread, NULL, set_other_error, NULL), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_non_null(result);
    assert_string_equal(report_message(), "mine");
}

TEST(test_report__failed_check_names_the_condition_and_aborts)
{
    struct capture capture;
    log_setup("unit", NULL);
    begin_capture(&capture);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        CHECK(1 + 1 == 2);
        CHECK(1 + 1 == 3);
        _exit(0);
    }
    int status = 0;
    pid_t ended = waitpid(child, &status, 0);
    const char *text = end_capture(&capture);
    assert_int_equal(ended, child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_matches(text, "^unit: .*proto_report\\.c:[0-9]+: check failed: 1 \\+ 1 == 3\n");
}

/* ---- log ---- */

TEST(test_log__line_has_time_level_area_and_text)
{
    struct capture capture;
    log_setup("ckptd", NULL);
    begin_capture(&capture);
    log_info("commit", "step %d committed", 40);
    log_warn("commit", "slow");
    log_error("uring", "gone");
    const char *text = end_capture(&capture);
    assert_matches(text, LINE_FORM "info commit: step 40 committed\n");
    assert_non_null(strstr(text, "Z warn commit: slow\n"));
    assert_non_null(strstr(text, "Z error uring: gone\n"));
    assert_null(strchr(text, '\033'));
}

/* Last of the log's tests: an origin stays. */
TEST(test_log__debug_prints_only_for_areas_that_are_on)
{
    static const struct {
        const char *areas;
        bool commit, uring;
    } cases[] = {
        {NULL, false, false},          {"", false, false},
        {"commit", true, false},       {"all", true, true},
        {"all,-uring", true, false},   {"commit,-uring", true, false},
        {"-all", false, false},        {"all,-all,uring", false, true},
        {"commit, uring", true, true}, {"commi,committed", false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct capture capture;
        log_setup("ckptd", cases[i].areas);
        begin_capture(&capture);
        log_debug("commit", "one");
        log_debug("uring", "two");
        log_info("uring", "three");
        const char *text = end_capture(&capture);
        assert_true((strstr(text, "Z debug commit: one\n") != NULL) == cases[i].commit);
        assert_true((strstr(text, "Z debug uring: two\n") != NULL) == cases[i].uring);
        assert_non_null(strstr(text, "Z info uring: three\n"));
    }
    log_setup("ckptd", NULL);
}

TEST(test_log__text_cannot_forge_a_second_line)
{
    struct capture capture;
    begin_capture(&capture);
    log_info("rpc", "%s", "peer said\n2026-01-01T00:00:00.000Z info commit: \033[31mlie\x7f");
    const char *text = end_capture(&capture);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_non_null(strstr(text, "peer said?2026-01-01T00:00:00.000Z info commit: ?[31mlie?\n"));
}

TEST(test_log__too_long_line_is_cut_but_ends_with_a_newline)
{
    static char text[10000];
    struct capture capture;
    memset(text, 'y', sizeof(text) - 1);
    begin_capture(&capture);
    log_info("rpc", "%s", text);
    const char *line = end_capture(&capture);
    assert_in_range(strlen(line), 1000, 4096);
    assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

TEST(test_log__colour_only_on_terminals_without_no_color)
{
    int master, slave;
    char buffer[512] = {0};
    struct capture capture;
    for (int no_color = 0; no_color < 2; no_color++) {
        if (openpty(&master, &slave, NULL, NULL, NULL) != 0) {
            print_message("# SKIP there is no pseudo terminal\n");
            skip();
        }
        if (no_color)
            setenv("NO_COLOR", "1", 1);
        else
            unsetenv("NO_COLOR");
        begin_capture_into(&capture, slave, master);
        log_error("rpc", "red");
        dup2(capture.saved, STDERR_FILENO);
        close(capture.saved);
        ssize_t n = read(master, buffer, sizeof(buffer) - 1);
        close(master);
        assert_true(n > 0);
        buffer[n] = '\0';
        assert_true((strstr(buffer, "\033[31m") != NULL) == !no_color);
        assert_true((strstr(buffer, "\033[0m") != NULL) == !no_color);
    }
}

TEST(test_log__lines_go_above_what_is_shown)
{
    static const char *const want[] = {"\r\033[Kstep 1 of 9", "\r\033[K2", "one\nstep 1 of 9",
                                       "\r\033[Kstep 2 of 9", "\r\033[Kthree"};
    int master, slave;
    struct capture capture;
    struct termios modes;
    if (openpty(&master, &slave, NULL, NULL, NULL) != 0) {
        print_message("# SKIP there is no pseudo terminal\n");
        skip();
    }
    assert_int_equal(tcgetattr(slave, &modes), 0);
    modes.c_oflag &= ~(tcflag_t)OPOST;
    assert_int_equal(tcsetattr(slave, TCSANOW, &modes), 0);
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = 15}), 0);
    begin_capture_into(&capture, slave, master);
    log_show("step 1 of 9");
    log_info("train", "one");
    log_show("step 2 of 9, and more than there is room for");
    log_show("three");
    log_show(NULL);
    log_info("train", "four");
    const char *all = end_capture(&capture), *at = all;
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const char *found = strstr(at, want[i]);
        if (found == NULL)
            fail_msg("'%s' is not in '%s'", want[i], at);
        at = found + strlen(want[i]);
    }
    assert_null(strstr(all, "more than"));
    assert_true(all[strlen(all) - 1] == '\n'); /* nothing is shown any more */
}

TEST(test_log__nothing_is_shown_elsewhere)
{
    struct capture capture;
    begin_capture(&capture);
    log_show("step 1 of 9");
    log_show(NULL);
    assert_string_equal(end_capture(&capture), "");
}

#define NUM_THREADS 4
#define LINES_PER_THREAD 100

static void *write_lines(void *user)
{
    for (int i = 0; i < LINES_PER_THREAD; i++) {
        log_debug("threads", "writer %d line %d", *(int *)user, i);
        log_setup("ckptd", "threads");
    }
    return NULL;
}

TEST(test_log__lines_of_threads_do_not_mix)
{
    struct capture capture;
    pthread_t threads[NUM_THREADS];
    int numbers[NUM_THREADS];
    log_setup("ckptd", "threads");
    begin_capture(&capture);
    for (int i = 0; i < NUM_THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, &numbers[i]), 0);
    }
    for (int i = 0; i < NUM_THREADS; i++)
        pthread_join(threads[i], NULL);
    char *text = (char *)end_capture(&capture), *rest = NULL;
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_matches(line, LINE_FORM "debug threads: writer [0-3] line [0-9]+$");
        lines++;
    }
    assert_int_equal(lines, NUM_THREADS * LINES_PER_THREAD);
    log_setup("ckptd", NULL);
}

TEST(test_log__an_origin_stands_in_front_of_the_level)
{
    struct capture capture;
    log_set_origin("node7:3");
    begin_capture(&capture);
    log_warn("comm", "waits");
    assert_non_null(strstr(end_capture(&capture), "Z node7:3 warn comm: waits\n"));
}

static void *write_line(void *arg)
{
    log_info("threads", "%s", (const char *)arg);
    return NULL;
}

static void *hush_and_write(void *arg)
{
    log_hush(false);
    log_warn("threads", "%s is wrong", (const char *)arg);
    return write_line(arg);
}

static const char *lines_of(struct capture *capture, void *(*work)(void *), const char *text)
{
    pthread_t thread;
    begin_capture(capture);
    assert_int_equal(pthread_create(&thread, NULL, work, (void *)(uintptr_t)text), 0);
    pthread_join(thread, NULL);
    return end_capture(capture);
}

TEST(test_log__hushed_threads_leave_out_lines_below_warnings)
{
    struct capture capture;
    const char *lines = lines_of(&capture, hush_and_write, "the one");
    assert_non_null(strstr(lines, "warn threads: the one is wrong\n"));
    assert_null(strstr(lines, "info"));
    assert_non_null(strstr(lines_of(&capture, write_line, "another"), "info threads: another\n"));
    log_hush(true); /* for good: the last case */
    assert_string_equal(lines_of(&capture, write_line, "all"), "");
}

SUITE(NULL, NULL)
