/* text.c - what reaches the user: sizes, shapes, JSON strings, errors of other threads, the
 * progress bar.
 *
 * Names come from files that anybody may have written. text_safe keeps control characters (and with
 * them terminal escapes) off the screen; text_json writes any bytes as valid JSON. */
#include "clients/cli/cli.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_CELLS 28
#define BAR_EVERY_NS 100000000u

/* Bytes of the UTF-8 character at `text`; 0 when there is none. (Overlong forms of two bytes only
 * are sorted out: what is left is harmless in JSON.) */
static size_t utf8_length(const unsigned char *text)
{
    size_t length = text[0] < 0x80                       ? 1
                    : text[0] >= 0xc2 && text[0] < 0xe0  ? 2
                    : text[0] >= 0xe0 && text[0] < 0xf0  ? 3
                    : text[0] >= 0xf0 && text[0] <= 0xf4 ? 4
                                                         : 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

void text_json(FILE *out, const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    fputc('"', out);
    while (*c != '\0') {
        size_t length = utf8_length(c);
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            fprintf(out, "\\u%04x", *c);
        else if (length > 0)
            fwrite(c, 1, length, out);
        else
            fputs("\\ufffd", out);
        c += length > 0 ? length : 1;
    }
    fputc('"', out);
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

static uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
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

static void print_amount(const struct progress *progress, uint64_t now)
{
    char done[32], rate[32];
    double seconds = (double)(now - progress->begin_ns) / 1e9 + 1e-9;
    if (progress->unit != NULL)
        fprintf(stderr, "%llu of %llu %s", (unsigned long long)progress->done,
                (unsigned long long)progress->total, progress->unit);
    else
        fprintf(stderr, "%s  %s/s", text_bytes(done, sizeof done, progress->done),
                text_bytes(rate, sizeof rate, (uint64_t)((double)progress->done / seconds)));
}

void progress_add(struct progress *progress, uint64_t amount)
{
    progress->done += amount;
    uint64_t now = clock_ns();
    if (!progress->is_shown || now - progress->shown_ns < BAR_EVERY_NS)
        return;
    progress->shown_ns = now;
    char bar[BAR_CELLS + 1];
    double part = (double)progress->done / (double)progress->total;
    int filled = (int)((part > 1 ? 1 : part) * BAR_CELLS);
    memset(bar, '.', BAR_CELLS);
    memset(bar, '#', (size_t)filled);
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f %%  ", progress->verb, bar, part * 100);
    print_amount(progress, now);
    fputs(" \033[K", stderr);
    fflush(stderr);
}

void progress_hide(const struct progress *progress)
{
    if (progress->is_shown)
        fputs("\r\033[K", stderr);
}

void progress_end(struct progress *progress)
{
    progress_hide(progress);
    progress->is_shown = false;
}
