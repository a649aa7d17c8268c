/* report.c - error codes, the thread's last error, and the log.
 *
 * The last error is three fixed buffers in thread-local storage: setting one allocates nothing, so
 * an out-of-memory error can be reported too. Texts that do not fit are cut, never refused. Every
 * text is formatted into a scratch buffer first, so a caller may build an error from the previous
 * one.
 *
 * A log line is put together in one buffer and written with one write(), so lines of several
 * threads and processes never mix. Control characters in it become '?', as they do in an error's
 * line: the text of a file or a peer cannot forge a second line, nor talk to the terminal. The list
 * of areas is guarded by a mutex, taken only when some debug area is on. */
#include "proto/base/report.h"
#include "proto/base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_MAX 4096   /* of a log line; longer lines are cut */
#define LOG_LIMITED_MS 1000 /* between two lines of log_warn_limited() */
#define LOG_AREAS_MAX 512   /* of the list of areas; a longer list is cut */

/* ---- error codes ---- */

struct err_row {
    int value;
    const char *name;
    const char *text;
    int grpc_status;
    bool retry;
};

static const struct err_row err_rows[] = {
#define X(name, value, grpc, retry, text) {value, #name, text, grpc, retry},
    ERR_MAP(X)
#undef X
};

static const struct err_row *find_row(int error)
{
    for (size_t i = 0; i < sizeof(err_rows) / sizeof(err_rows[0]); i++) {
        if (err_rows[i].value == error)
            return &err_rows[i];
    }
    return NULL;
}

const char *err_name(int error)
{
    const struct err_row *row = find_row(error);
    if (error == 0)
        return "OK";
    return row ? row->name : "ERR_UNKNOWN";
}

const char *err_text(int error)
{
    const struct err_row *row = find_row(error);
    if (error == 0)
        return "success";
    return row ? row->text : "unknown error";
}

int err_grpc_status(int error)
{
    const struct err_row *row = find_row(error);
    if (error == 0)
        return 0;
    return row ? row->grpc_status : 2; /* UNKNOWN */
}

bool err_retry(int error)
{
    const struct err_row *row = find_row(error);
    return row ? row->retry : false;
}

/* ---- the thread's last error ---- */

struct last_error {
    struct report_text text;
    char line[3 * REPORT_TEXT_MAX + 8];
};
static _Thread_local struct last_error last;

static void put_text(char out[REPORT_TEXT_MAX], const char *text)
{
    char copy[REPORT_TEXT_MAX];
    snprintf(copy, sizeof(copy), "%s", text ? text : "");
    memcpy(out, copy, sizeof(copy));
}

int report_set(int error, const char *message, const char *detail, const char *hint)
{
    struct last_error next;
    put_text(next.text.message, message);
    put_text(next.text.detail, detail);
    put_text(next.text.hint, hint);
    next.line[0] = '\0';
    last = next;
    return error;
}

int report_error(int error, const char *hint, const char *format, ...)
{
    char message[REPORT_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    return report_set(error, message, NULL, hint);
}

int report_errno(int error, const char *message, const char *detail)
{
    int number = errno;
    char reason[128];
    char text[REPORT_TEXT_MAX];
    const char *why = strerror_r(number, reason, sizeof(reason));
    if (detail && detail[0])
        snprintf(text, sizeof(text), "%s: %s", detail, why);
    else
        snprintf(text, sizeof(text), "%s", why);
    report_set(error, message, text, NULL);
    errno = number;
    return error;
}

void report_clear(void)
{
    last.text.message[0] = last.text.detail[0] = last.text.hint[0] = '\0';
}

void report_keep(struct report_text *out)
{
    *out = last.text;
}

int report_restore(const struct report_text *text, int error)
{
    last.text = *text;
    return error;
}

const char *report_message(void)
{
    return last.text.message;
}

const char *report_detail(void)
{
    return last.text.detail;
}

const char *report_hint(void)
{
    return last.text.hint;
}

/* The second byte of a character that has no shorter form, is no surrogate and is below 0x110000.
 */
static bool is_second(unsigned char first, unsigned char second)
{
    return (first != 0xe0 || second >= 0xa0) && (first != 0xed || second < 0xa0) &&
           (first != 0xf0 || second >= 0x90) && (first != 0xf4 || second < 0x90);
}

size_t report_printable(const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x20 || c[0] == 0x7f)
        return 0;
    size_t length = c[0] < 0x80                    ? 1
                    : c[0] >= 0xc2 && c[0] < 0xe0  ? 2
                    : c[0] >= 0xe0 && c[0] < 0xf0  ? 3
                    : c[0] >= 0xf0 && c[0] <= 0xf4 ? 4
                                                   : 0;
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    }
    if (length > 1 && ((c[0] == 0xc2 && c[1] < 0xa0) || !is_second(c[0], c[1])))
        return 0;
    return length;
}

void report_make_printable(char *text)
{
    for (size_t length; *text != '\0'; text += length) {
        length = report_printable(text);
        if (length == 0) {
            *text = '?';
            length = 1;
        }
    }
}

const char *report_line(void)
{
    const struct report_text *text = &last.text;
    snprintf(last.line, sizeof(last.line), "%s%s%s%s%s%s", text->message,
             text->detail[0] ? ": " : "", text->detail, text->hint[0] ? " (" : "", text->hint,
             text->hint[0] ? ")" : "");
    report_make_printable(last.line);
    return last.line;
}

/* ---- log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_program[64];                /* guarded by log_lock */
static char log_areas[LOG_AREAS_MAX];       /* guarded by log_lock */
static char log_origin[LOG_ORIGIN_MAX + 1]; /* followed by a space; set before other threads log */
static pthread_mutex_t shown_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_shown[256];     /* guarded by shown_lock; "": no line is shown */
static int log_some_area_on;    /* atomic: avoids the lock while no debug area is on */
static bool log_process_hushed; /* atomic */
static _Thread_local bool log_thread_hushed;

bool report_print_version(const char *program, int argc, char *const *argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s\n", program, report_version);
            return true;
        }
    }
    return false;
}

void log_setup(const char *program, const char *areas)
{
    pthread_mutex_lock(&log_lock);
    snprintf(log_program, sizeof(log_program), "%s", program ? program : "");
    snprintf(log_areas, sizeof(log_areas), "%s", areas ? areas : "");
    __atomic_store_n(&log_some_area_on, log_areas[0] != '\0', __ATOMIC_RELEASE);
    pthread_mutex_unlock(&log_lock);
}

void log_set_origin(const char *origin)
{
    snprintf(log_origin, sizeof(log_origin), "%.*s ", LOG_ORIGIN_MAX - 1, origin);
}

void log_hush(bool is_process)
{
    if (is_process)
        __atomic_store_n(&log_process_hushed, true, __ATOMIC_RELAXED);
    else
        log_thread_hushed = true;
}

static bool is_hushed(enum log_level level)
{
    return level < LOG_WARN &&
           (log_thread_hushed || __atomic_load_n(&log_process_hushed, __ATOMIC_RELAXED));
}

/* The list is read from left to right; the last entry for an area wins. */
static bool is_area_in(const char *list, const char *area)
{
    bool on = false;
    size_t area_length = strlen(area);
    while (*list) {
        size_t length = strcspn(list, ",");
        const char *word = list + strspn(list, " ");
        size_t word_length = length - (size_t)(word - list < (ptrdiff_t)length ? word - list : 0);
        bool off = word_length > 0 && *word == '-';
        if (off) {
            word++;
            word_length--;
        }
        bool is_all = word_length == 3 && memcmp(word, "all", 3) == 0;
        if (is_all || (word_length == area_length && memcmp(word, area, area_length) == 0))
            on = !off;
        list += length + (list[length] == ',');
    }
    return on;
}

static bool is_debug_on(const char *area)
{
    if (!__atomic_load_n(&log_some_area_on, __ATOMIC_ACQUIRE))
        return false;
    pthread_mutex_lock(&log_lock);
    bool on = is_area_in(log_areas, area);
    pthread_mutex_unlock(&log_lock);
    return on;
}

static size_t format_time(char *out, size_t size)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t length = strftime(out, size, "%Y-%m-%dT%H:%M:%S", &utc);
    return length + (size_t)snprintf(out + length, size - length, ".%03ldZ", now.tv_nsec / 1000000);
}

static void write_all(const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(STDERR_FILENO, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* stderr has failed: the failure cannot be reported */
        data += n;
        bytes -= (size_t)n;
    }
}

#define EMPTY_LINE "\r\033[K"
#define COLUMNS 80 /* of a terminal that does not report its width */

bool log_has_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

void log_show(const char *text)
{
    struct winsize size;
    bool has_size = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    if (!log_has_terminal())
        return;
    pthread_mutex_lock(&shown_lock);
    /* The last column stays free: after a full line a terminal wraps. */
    snprintf(log_shown, sizeof(log_shown), "%.*s", (has_size ? size.ws_col : COLUMNS) - 1,
             text != NULL ? text : "");
    write_all(EMPTY_LINE, strlen(EMPTY_LINE));
    write_all(log_shown, strlen(log_shown));
    pthread_mutex_unlock(&shown_lock);
}

/* In one write(), so that lines of several processes do not mix. */
static void write_line(const char *line, size_t bytes)
{
    pthread_mutex_lock(&shown_lock);
    if (log_shown[0] != '\0')
        write_all(EMPTY_LINE, strlen(EMPTY_LINE));
    write_all(line, bytes);
    write_all(log_shown, strlen(log_shown));
    pthread_mutex_unlock(&shown_lock);
}

void log_print(enum log_level level, const char *area, const char *format, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    static const char *const colors[] = {"\033[2m", "", "\033[33m", "\033[31m"};
    int saved_errno = errno;
    if (is_hushed(level) || (level == LOG_DEBUG && !is_debug_on(area)))
        return;

    char line[LOG_LINE_MAX];
    const char *no_color = getenv("NO_COLOR");
    bool color = log_has_terminal() && !(no_color && no_color[0]) && colors[level][0];
    size_t start = (size_t)snprintf(line, sizeof(line), "%s", color ? colors[level] : "");
    size_t length = start + format_time(line + start, sizeof(line) - start);
    length += (size_t)snprintf(line + length, sizeof(line) - length, " %s%s %.64s: ", log_origin,
                               names[level], area);

    const size_t reserve = 8; /* for the end of the colour and the newline */
    va_list args;
    va_start(args, format);
    int added = vsnprintf(line + length, sizeof(line) - reserve - length, format, args);
    va_end(args);
    if (added > 0)
        length += (size_t)added;
    if (length > sizeof(line) - reserve - 1)
        length = sizeof(line) - reserve - 1;
    report_make_printable(line + start);
    length += (size_t)snprintf(line + length, reserve, "%s\n", color ? "\033[0m" : "");
    write_line(line, length);
    errno = saved_errno;
}

void log_warn_limited(struct log_limit *limit, const char *area, const char *format, ...)
{
    char text[REPORT_TEXT_MAX], more[64] = "";
    va_list args;
    int64_t now_ms = clock_ms();
    if (limit->logged_ms != 0 && now_ms - limit->logged_ms < LOG_LIMITED_MS) {
        limit->left_out++;
        return;
    }
    if (limit->left_out > 0)
        snprintf(more, sizeof(more), " (%u more since the line before)", limit->left_out);
    *limit = (struct log_limit){.logged_ms = now_ms};
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    log_warn(area, "%s%s", text, more);
}

void report_check_failed(const char *file, int line, const char *condition)
{
    char text[LOG_LINE_MAX];
    pthread_mutex_lock(&log_lock);
    int length = snprintf(text, sizeof(text), "%s%s%s:%d: check failed: %s\n", log_program,
                          log_program[0] ? ": " : "", file, line, condition);
    pthread_mutex_unlock(&log_lock);
    write_all(text, length < (int)sizeof(text) ? (size_t)length : sizeof(text) - 1);
    abort();
}
