/* values.c - the ends of JSON values, text between them, and escapes without a character (see
 * values.h). */
#include "trainer/corpus/values.h"

#include <string.h>

/* ---- ends ---- */

/* `at` is after the opening quote; returns the place after the closing one. */
static size_t string_end(const char *text, size_t at, size_t bytes)
{
    for (; at < bytes && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < bytes ? at + 1 : VALUE_OPEN_STRING;
}

static bool is_word(char c)
{
    return c != '\0' && strchr(" \t\r\n,:\"{}[]", c) == NULL;
}

size_t values_end(const char *text, size_t at, size_t bytes)
{
    size_t depth = 0;
    while (at < bytes) {
        char c = text[at++];
        if (c == '"')
            at = string_end(text, at, bytes);
        else if (c == '{' || c == '[')
            depth++;
        else if (c == '}' || c == ']')
            depth -= depth > 0;
        else if (depth == 0)
            while (at < bytes && is_word(text[at]))
                at++;
        if (depth == 0 || at > bytes)
            return at;
    }
    return VALUE_OPEN;
}

/* ---- between values ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t skip_spaces(const char *text, size_t at, size_t bytes)
{
    while (at < bytes && is_space(text[at]))
        at++;
    return at;
}

size_t values_mark(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

enum values_form values_form_of(const char *text, size_t bytes)
{
    size_t at = skip_spaces(text, values_mark(text, bytes), bytes);
    if (at < bytes && text[at] == '[')
        return FORM_ARRAY;
    if (at == bytes || text[at] != '{')
        return FORM_LINES;
    const char *newline = memchr(text + at, '\n', bytes - at);
    size_t line_end = newline != NULL ? (size_t)(newline - text) : bytes;
    size_t end = values_end(text, at, line_end);
    if (end <= line_end)
        return skip_spaces(text, end, line_end) < line_end ? FORM_VALUES : FORM_LINES;
    return newline != NULL && end != VALUE_OPEN_STRING ? FORM_VALUES : FORM_LINES;
}

size_t values_first(enum values_form form, const char *text, size_t bytes)
{
    size_t at = skip_spaces(text, values_mark(text, bytes), bytes);
    return form == FORM_ARRAY && at < bytes ? at + 1 : at;
}

size_t values_next(const char *text, size_t at, size_t bytes)
{
    while (at < bytes && (is_space(text[at]) || text[at] == ','))
        at++;
    return at;
}

size_t values_cut(const char *text, size_t at, size_t bytes)
{
    size_t cut = bytes, end;
    while ((at = values_next(text, at, bytes)) < bytes && text[at] != ']' &&
           (end = values_end(text, at, bytes)) <= bytes)
        cut = at = end;
    return cut;
}

/* ---- escapes ---- */

/* The number of an escape of four hexadecimal digits; -1: none. */
static long escape_at(const char *text, size_t at, size_t bytes)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    long value = 0;
    if (at + 6 > bytes || text[at] != '\\' || text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        const char *digit = text[i] != '\0' ? strchr(digits, text[i]) : NULL;
        if (digit == NULL)
            return -1;
        value = value << 4 | ((digit - digits) & 15);
    }
    return value;
}

bool values_mend(char *text, size_t bytes)
{
    bool is_mended = false;
    for (size_t at = 0; at < bytes;) {
        long value = escape_at(text, at, bytes), next = escape_at(text, at + 6, bytes);
        bool is_high = value >= 0xd800 && value < 0xdc00,
             is_low = value >= 0xdc00 && value < 0xe000;
        bool is_pair = is_high && next >= 0xdc00 && next < 0xe000;
        if (is_pair || (!is_high && !is_low)) {
            at += is_pair ? 12 : text[at] == '\\' ? 2 : 1;
            continue;
        }
        memcpy(text + at + 2, "fffd", 4);
        is_mended = true;
        at += 6;
    }
    return is_mended;
}
