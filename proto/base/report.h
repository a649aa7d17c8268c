/* report.h - error codes, the thread's last error, and the log.
 *
 * Every fallible function of the project returns 0 or a negative code from ERR_MAP. The text that
 * explains a failure is kept per thread in three parts: a message (the event, one line, past
 * tense), a detail (system call, offset, key) and a hint (what to do). A caller that passes a lower
 * error up returns its code and leaves the text alone.
 *
 *     if (fd < 0)
 *         return report_errno(ERR_IO, "could not open the shard", path);
 *
 * Every program exits with a code of enum exit_code. Threads: every function may be called from any
 * thread. */
#ifndef HOLDFAST_PROTO_BASE_REPORT_H
#define HOLDFAST_PROTO_BASE_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(name, value, gRPC status, may a retry succeed, text) */
#define ERR_MAP(X)                                                      \
    X(ERR_INVALID, -1, 3, false, "invalid argument or configuration")   \
    X(ERR_NOT_FOUND, -2, 5, false, "not found")                         \
    X(ERR_EXISTS, -3, 6, false, "already exists")                       \
    X(ERR_STALE, -4, 9, false, "a newer attempt has taken over")        \
    X(ERR_BUSY, -5, 8, true, "a limit was reached")                     \
    X(ERR_SPACE, -6, 8, true, "not enough space")                       \
    X(ERR_IO, -7, 14, true, "an input or output operation failed")      \
    X(ERR_CORRUPT, -8, 15, false, "stored data is damaged")             \
    X(ERR_UNAVAILABLE, -9, 14, true, "the server cannot be reached")    \
    X(ERR_TIMEOUT, -10, 4, true, "the deadline passed")                 \
    X(ERR_DENIED, -11, 7, false, "permission denied")                   \
    X(ERR_MEMORY, -12, 8, true, "out of memory")                        \
    X(ERR_ABORTED, -13, 10, true, "aborted")                            \
    X(ERR_MISMATCH, -14, 9, false, "does not fit the stored state")     \
    X(ERR_VERSION, -15, 9, false, "unknown format or protocol version") \
    X(ERR_INTERNAL, -16, 13, false, "internal error")                   \
    X(ERR_UNSETTLED, -17, 2, true, "nobody can tell whether it happened")

enum err {
#define X(name, value, grpc, retry, text) name = value,
    ERR_MAP(X)
#undef X
};

enum exit_code {
    EXIT_DONE = 0,          /* the work is complete */
    EXIT_RUN_AGAIN = 75,    /* stopped early (signal, lost peer, lost server): start it again */
    EXIT_DO_NOT_RETRY = 78, /* a person must correct configuration, data or state */
    EXIT_TIME_IS_OVER = 79  /* saved; the job's time is over: its scheduler starts it again */
};

/* The version of this build: "0.1-g1a2b3c4" (the commit), with "-dirty" if the tree differed. */
extern const char report_version[];
/* For main(): prints "program version" and returns true when one of the arguments is --version. */
bool report_print_version(const char *program, int argc, char *const *argv);

const char *err_name(int error); /* "ERR_IO"; "OK" for 0; "ERR_UNKNOWN" */
const char *err_text(int error); /* the text column */
int err_grpc_status(int error);  /* 0 for 0 */
bool err_retry(int error);       /* may the same call succeed later? */

/* Set this thread's last error and return `error`. Formats are printf's; `detail` and `hint` may be
 * NULL. report_errno appends strerror(errno) to the detail. */
int report_error(int error, const char *hint, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int report_errno(int error, const char *message, const char *detail);
/* The same with finished texts: for another thread's or server's error that is passed on or
 * reworded. */
int report_set(int error, const char *message, const char *detail, const char *hint);
void report_clear(void);

/* The text of a last error, kept for another thread, or during a call whose own failure is
 * ignored. */
#define REPORT_TEXT_MAX 1024 /* of each part; longer ones are cut */
struct report_text {
    char message[REPORT_TEXT_MAX], detail[REPORT_TEXT_MAX], hint[REPORT_TEXT_MAX];
};
void report_keep(struct report_text *out);
/* Makes it this thread's last error and returns `error`. */
int report_restore(const struct report_text *text, int error);

/* Borrowed until this thread's next report_*; "" when unset. */
const char *report_message(void);
const char *report_detail(void);
const char *report_hint(void);
/* "message: detail (hint)", one printable line. Borrowed likewise. */
const char *report_line(void);
/* Bytes of the printable UTF-8 character at `text`. 0: a control character (C0 or C1) or invalid
 * UTF-8, which error and log lines replace by '?'. */
size_t report_printable(const char *text);
/* Replaces every byte that is no part of a printable character by '?'. Then a foreign text can go
 * into a line, or into a protobuf string, which parsers refuse unless it is UTF-8. */
void report_make_printable(char *text);

/* Log. One line per event on stderr: time, level, area, text. Areas are switched by a list such as
 * "memory,restore,-storage" ("all" for everything); info and above print always, debug only for
 * areas that are on. Colour only on terminals and when NO_COLOR is unset. */
enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
void log_setup(const char *program, const char *areas); /* areas may be NULL */
/* Sets a name that each line has between time and level, such as "node7:3" of rank 3, for processes
 * that share one log. Call it before other threads log. */
#define LOG_ORIGIN_MAX 80 /* a longer one is cut */
void log_set_origin(const char *origin);
/* From now on this thread, or every thread of this process, logs only warnings and errors. */
void log_hush(bool is_process);
void log_print(enum log_level level, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Shows progress in a line after the last line of the log, cut to the width of the terminal;
 * without a terminal it does nothing. The next call replaces the line, log lines are printed above
 * it, and NULL removes it. */
bool log_has_terminal(void);
void log_show(const char *text);
/* Logs a kind of warning that clients can cause without end, such as a refused connection: one line
 * per second, with the number of lines left out before it. The caller guards `limit`, which is zero
 * at first. */
struct log_limit {
    int64_t logged_ms;
    uint32_t left_out;
};
void log_warn_limited(struct log_limit *limit, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define log_debug(area, ...) log_print(LOG_DEBUG, area, __VA_ARGS__)
#define log_info(area, ...) log_print(LOG_INFO, area, __VA_ARGS__)
#define log_warn(area, ...) log_print(LOG_WARN, area, __VA_ARGS__)
#define log_error(area, ...) log_print(LOG_ERROR, area, __VA_ARGS__)

/* Assertion that stays on in release builds: prints file, line and the condition, then aborts. */
#define CHECK(condition) \
    ((condition) ? (void)0 : report_check_failed(__FILE__, __LINE__, #condition))
_Noreturn void report_check_failed(const char *file, int line, const char *condition);

/* For code of trainer and kernels in which each line is a call. */
#define ERR_TRY(call)          \
    do {                       \
        int err_try_ = (call); \
        if (err_try_ != 0)     \
            return err_try_;   \
    } while (0)

#endif
