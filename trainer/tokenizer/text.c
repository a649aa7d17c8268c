/* text.c - text files as memory, and the split expressions, run by PCRE2.
 *
 * The text is first cut into runs of valid UTF-8; inside a run every character is part of a match,
 * because the alternatives together cover all characters. A byte that is not UTF-8 ends the run as
 * the end of the text does. It is a piece alone, and the next run starts after it. `\s` is spelt
 * out as Unicode's White_Space, since PCRE2's own `\s` also takes U+180E, which tiktoken's regex
 * engine does not.
 *
 * The expression is compiled to machine code if the system allows that; otherwise PCRE2 interprets
 * it, with the same matches. Only this file uses PCRE2. */
#include "trainer/tokenizer/text.h"

#include "proto/base/report.h"
#include "proto/model/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- files ---- */

static int read_all(struct text *out, int fd, const char *path)
{
    char *data = NULL;
    size_t bytes = 0, room = 0;
    for (;;) {
        if (bytes == room) {
            room = room == 0 ? 1u << 16 : room * 2;
            char *grown = realloc(data, room);
            if (grown == NULL) {
                free(data);
                return report_error(ERR_MEMORY, NULL, "no memory to read %s", path);
            }
            data = grown;
        }
        ssize_t got = read(fd, data + bytes, room - bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            free(data);
            return report_errno(ERR_IO, "could not read the file", path);
        }
        if (got == 0)
            break;
        bytes += (size_t)got;
    }
    *out = (struct text){.data = data, .bytes = bytes};
    return 0;
}

int text_open(struct text *out, const char *path)
{
    bool standard_input = strcmp(path, "-") == 0;
    int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return report_errno(errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "could not open the file",
                            path);
    struct stat stat;
    int result = 0;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_size > 0 && !standard_input) {
        void *data = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            result = report_errno(ERR_IO, "could not map the file", path);
        else
            *out = (struct text){.data = data, .bytes = (size_t)stat.st_size, .mapped = true};
    } else {
        result = read_all(out, fd, path);
    }
    if (!standard_input)
        close(fd);
    return result;
}

void text_close(struct text *text)
{
    if (text->mapped)
        munmap((void *)text->data, text->bytes);
    else
        free((void *)text->data);
    *text = (struct text){0};
}

/* ---- pieces ---- */

/* The expressions in PCRE2's syntax; its own class of spaces has one character more. */
#define SPACE        \
    "\\x{9}-\\x{d} " \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define LLAMA3_FORM(digits)                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"                     \
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"                   \
    "|" digits "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*" \
    "|[" SPACE "]*[\\r\\n]+"                           \
    "|[" SPACE "]+(?![^" SPACE "])"                    \
    "|[" SPACE "]+"

static const struct {
    const char *text, *pcre2;
} expressions[SPLIT_NUM_EXPRESSIONS + 1] = {
    [SPLIT_LLAMA3] = {VOCAB_PIECES, LLAMA3_FORM("\\p{N}{1,3}")},
    [SPLIT_GPT2] = {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                    "|\\s+(?!\\S)|\\s+",
                    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+"
                    "|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
    [SPLIT_QWEN2] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                     "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
                     LLAMA3_FORM("\\p{N}")},
    [SPLIT_GRAPHEMES] = {NULL, "\\X"},
};

const char *split_expression_text(enum split_expression expression)
{
    return expression < SPLIT_NUM_EXPRESSIONS ? expressions[expression].text : NULL;
}

struct split {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
};

void split_close(struct split *split)
{
    if (split == NULL)
        return;
    pcre2_match_data_free(split->match);
    pcre2_match_context_free(split->context);
    pcre2_code_free(split->code);
    free(split);
}

int split_open(struct split **out, enum split_expression expression)
{
    int code;
    PCRE2_SIZE at;
    struct split *split = calloc(1, sizeof(*split));
    if (split == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory for the text splitter");
    split->code = pcre2_compile((PCRE2_SPTR)expressions[expression].pcre2, PCRE2_ZERO_TERMINATED,
                                PCRE2_UTF, &code, &at, NULL);
    if (split->code == NULL) {
        split_close(split);
        return report_error(ERR_INTERNAL, NULL, "PCRE2 refused the split expression at %zu (%d)",
                            (size_t)at, code);
    }
    pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE); /* if this fails, matching is only slower */
    split->match = pcre2_match_data_create(1, NULL);
    split->context = pcre2_match_context_create(NULL);
    if (split->match == NULL || split->context == NULL) {
        split_close(split);
        return report_error(ERR_MEMORY, NULL, "no memory for the text splitter");
    }
    /* The time is bounded: every alternative is one or two runs of characters. */
    pcre2_set_match_limit(split->context, UINT32_MAX);
    *out = split;
    return 0;
}

size_t text_utf8_length(const char *characters, size_t bytes)
{
    const unsigned char *text = (const unsigned char *)characters;
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || length > bytes)
        return 0;
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < low || text[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++) {
        if (text[i] < 0x80 || text[i] > 0xBF)
            return 0;
    }
    return length;
}

bool text_is_space(const char *character, size_t length)
{
    static const char *const spaces[] = {"\t",           "\n",           "\v",
                                         "\f",           "\r",           " ",
                                         "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80",
                                         "\xe2\x80\x80", "\xe2\x80\x81", "\xe2\x80\x82",
                                         "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85",
                                         "\xe2\x80\x86", "\xe2\x80\x87", "\xe2\x80\x88",
                                         "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
                                         "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f",
                                         "\xe3\x80\x80"};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        if (strlen(spaces[i]) == length && memcmp(spaces[i], character, length) == 0)
            return true;
    return false;
}

static size_t utf8_prefix(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (at + 8 <= bytes) {
            memcpy(&eight, text + at, 8);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += 8;
                continue;
            }
        }
        size_t length = text_utf8_length(text + at, bytes - at);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

static int split_valid(struct split *split, const char *text, size_t bytes,
                       int (*on_piece)(void *user, const char *piece, size_t piece_bytes),
                       void *user)
{
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(split->match);
    size_t at = 0;
    while (at < bytes) {
        int found = pcre2_match(split->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                                split->match, split->context);
        /* Checks that every character is part of a match. */
        if (found < 0 || bounds[0] != at || bounds[1] <= at)
            return report_error(ERR_INTERNAL, NULL, "PCRE2 could not split the text at %zu (%d)",
                                at, found);
        ERR_TRY(on_piece(user, text + at, bounds[1] - at));
        at = bounds[1];
    }
    return 0;
}

int split_run(struct split *split, const char *text, size_t bytes,
              int (*on_piece)(void *user, const char *piece, size_t piece_bytes), void *user)
{
    size_t at = 0;
    while (at < bytes) {
        size_t valid = utf8_prefix(text + at, bytes - at);
        ERR_TRY(split_valid(split, text + at, valid, on_piece, user));
        at += valid;
        if (at < bytes) {
            ERR_TRY(on_piece(user, text + at, 1));
            at++;
        }
    }
    return 0;
}
