/* values.c - the ends of JSON values, and escapes that stand for no character (see values.h). */
#include "trainer/corpus/values.h"

#include <string.h>

/* ---- ends ---- */

/* `at` is behind the opening quote; returns the place behind the closing one. */
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

/* ---- escapes ---- */

/* The number of an escape \uXXXX, or -1: there is none. */
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
