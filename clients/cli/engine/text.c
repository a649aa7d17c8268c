/* text.c - output for users: sizes, shapes, JSON strings, errors of other threads, the progress
 * bar.
 *
 * Any user may have written the names in files. text_safe keeps control characters (and with them
 * terminal escapes) off the screen; text_json writes any bytes as valid JSON. */
#include "clients/cli/engine/cli.h"

#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_CELLS 28u
#define COLUMNS 80 /* of a terminal that does not report its width */
#define BAR_EVERY_NS 100000000u

void text_json(FILE *out, const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    fputc('"', out);
    while (*c != '\0') {
        size_t length = report_printable((const char *)c);
        bool is_c1 = c[0] == 0xc2 && (c[1] & 0xe0) == 0x80;
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (length > 0)
            fwrite(c, 1, length, out);
        else
            fprintf(out, "\\u%04x", is_c1 ? c[1] : *c < 0x80 ? *c : 0xfffdu);
        c += length > 0 ? length : is_c1 ? 2 : 1;
    }
    fputc('"', out);
}

/* jansson escapes characters that are not ASCII, and all control characters except DEL. */
static int write_json(const char *text, size_t bytes, void *user)
{
    FILE *out = user;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == 0x7f)
            fputs("\\u007f", out);
        else
            fputc(text[i], out);
    }
    return ferror(out) ? -1 : 0;
}

int text_json_value(FILE *out, const json_t *value, size_t flags)
{
    flags |= JSON_ENSURE_ASCII | json_shortest(value);
    return json_dump_callback(value, write_json, out, flags) == 0
               ? 0
               : report_errno(ERR_IO, "could not write the output", "stdout");
}

int text_document(const json_t *root)
{
    json_begin();
    int error = text_json_value(stdout, root, JSON_INDENT(2));
    if (!json_end())
        return report_error(ERR_MEMORY, NULL, "no memory to write the output");
    printf("\n");
    return error;
}

int text_pack(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    json_begin();
    json_t *root = json_vpack_ex(NULL, 0, format, values);
    va_end(values);
    int error = root != NULL ? text_json_value(stdout, root, JSON_INDENT(2)) : ERR_MEMORY;
    json_decref(root);
    if (!json_end() || root == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to write the output");
    printf("\n");
    return error;
}

uint64_t member_number(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

const char *member_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

const char *text_safe(char *out, size_t size, const char *text)
{
    size_t length = 0;
    for (; text[length] != '\0' && length + 1 < size; length++) {
        unsigned char c = (unsigned char)text[length];
        out[length] = (char)(c < 0x20 || c >= 0x7f ? '?' : c);
    }
    out[length] = '\0';
    return out;
}

const char *text_bytes(char *out, size_t size, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1024;
    snprintf(out, size, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

struct text_count text_count(uint64_t count, const char *noun)
{
    struct text_count out;
    int length = (int)strlen(noun);
    bool is_one = count == 1;
    bool ends_in_y = length > 1 && noun[length - 1] == 'y' && noun[length - 2] != 'a';
    snprintf(out.text, sizeof out.text, "%llu %.*s%s", (unsigned long long)count,
             length - (ends_in_y && !is_one), noun,
             is_one      ? ""
             : ends_in_y ? "ies"
                         : "s");
    return out;
}

struct text_checkpoint text_checkpoint(const char *run, uint64_t step, uint64_t attempt)
{
    struct text_checkpoint out;
    snprintf(out.text, sizeof out.text, "%s@%llu-a%llu", run, (unsigned long long)step,
             (unsigned long long)attempt);
    return out;
}

struct text_checkpoint member_checkpoint(const json_t *object)
{
    char run[128];
    return text_checkpoint(text_safe(run, sizeof run, member_text(object, "run")),
                           member_number(object, "step"), member_number(object, "attempt"));
}

const char *text_shape(char *out, size_t size, const struct tensor_meta *tensor)
{
    size_t length = 0;
    length += (size_t)snprintf(out, size, "[");
    for (uint32_t d = 0; d < tensor->dims && length < size; d++)
        length += (size_t)snprintf(out + length, size - length, d == 0 ? "%llu" : ",%llu",
                                   (unsigned long long)tensor->shape[d]);
    if (length < size)
        snprintf(out + length, size - length, "]");
    return out;
}

void failure_keep(struct failure *failure, int error)
{
    if (error == 0 || failure->error != 0)
        return;
    failure->error = error;
    report_keep(&failure->text);
}

int failure_report(const struct failure *failure)
{
    return failure->error == 0 ? 0 : report_restore(&failure->text, failure->error);
}

bool progress_is_wanted(const struct cli *cli)
{
    return !cli->is_json && isatty(STDERR_FILENO) == 1;
}

void progress_begin(struct progress *progress, const struct cli *cli, const char *verb,
                    uint64_t total)
{
    *progress = (struct progress){.verb = verb, .total = total, .begin_ns = clock_ns()};
    progress->is_shown = total > 0 && progress_is_wanted(cli);
}

static int columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS;
}

/* The last column stays free: after a full line a terminal wraps. */
void text_transient(const char *line)
{
    fprintf(stderr, "\r%.*s\033[K", columns() - 1, line);
    fflush(stderr);
}

static void format_amount(char *out, size_t size, const struct progress *progress, uint64_t now)
{
    char done[32], rate[32];
    double seconds = (double)(now - progress->begin_ns) / 1e9 + 1e-9;
    if (progress->unit != NULL)
        snprintf(out, size, "%llu of %s", (unsigned long long)progress->done,
                 text_count(progress->total, progress->unit).text);
    else
        snprintf(out, size, "%s  %s/s", text_bytes(done, sizeof done, progress->done),
                 text_bytes(rate, sizeof rate, (uint64_t)((double)progress->done / seconds)));
}

void progress_add(struct progress *progress, uint64_t amount)
{
    progress->done += amount;
    uint64_t now = clock_ns();
    if (!progress->is_shown || now - progress->shown_ns < BAR_EVERY_NS)
        return;
    progress->shown_ns = now;
    char bar[BAR_CELLS + 1], done[128], line[256];
    size_t cells = (size_t)columns() / 3;
    cells = cells < BAR_CELLS ? cells : BAR_CELLS;
    double part = (double)progress->done / (double)progress->total;
    part = part < 1 ? part : 1;
    memset(bar, '.', cells);
    memset(bar, '#', (size_t)(part * (double)cells));
    bar[cells] = '\0';
    format_amount(done, sizeof done, progress, now);
    snprintf(line, sizeof line, "%s [%s] %3.0f %%  %s", progress->verb, bar, part * 100, done);
    text_transient(line);
}

void progress_hide(const struct progress *progress)
{
    if (progress->is_shown)
        text_transient("");
}

void progress_end(struct progress *progress)
{
    progress_hide(progress);
    progress->is_shown = false;
}

int text_confirm(const struct cli *cli, const char *question, const char *otherwise)
{
    char answer[16] = "";
    if (cli->is_yes)
        return 0;
    if (!isatty(STDIN_FILENO))
        return report_error(ERR_DENIED, "add --yes",
                            "the command asks for a yes, and stdin is not a terminal");
    fprintf(stderr, "%s? Type yes: ", question);
    if (fgets(answer, sizeof answer, stdin) != NULL && strcmp(answer, "yes\n") == 0)
        return 0;
    return report_error(ERR_DENIED, NULL, "%s", otherwise);
}

int span_parse(uint64_t *out, const char *option, const char *text)
{
    *out = 0;
    if (text[0] == '\0' || options_parse_span(out, text))
        return 0;
    return report_error(ERR_INVALID, "a number and s, m, h, d or w, such as 12h",
                        "--%s '%s' is not a duration", option, text);
}
