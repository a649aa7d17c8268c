/* vocab.c - byte strings with ranks in an open hash table, and their tiktoken file.
 *
 * The table is at most half full, probed linearly, keyed by XXH3 of the bytes. No entry is ever
 * removed. A file is untrusted: every line is checked for its form, and ranks must be the numbers
 * 0..n-1 in any order. No token may be empty or appear twice, and each of the 256 single bytes must
 * be a token, so that every text can be encoded. */
#include "proto/model/vocab.h"

#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- table ---- */

void vocab_init(struct vocab *vocab)
{
    memset(vocab, 0, sizeof(*vocab));
}

void vocab_deinit(struct vocab *vocab)
{
    free(vocab->bytes);
    free(vocab->start);
    free(vocab->slots);
    vocab_init(vocab);
}

/* Slot of the bytes if they are a token, else the free one for them. */
static uint32_t find_slot(const struct vocab *vocab, const void *bytes, size_t num_bytes)
{
    uint32_t mask = vocab->num_slots - 1;
    uint32_t slot = (uint32_t)checksum_bytes(bytes, num_bytes) & mask;
    while (vocab->slots[slot] != 0) {
        uint32_t rank = vocab->slots[slot] - 1;
        size_t start = vocab->start[rank];
        if (vocab->start[rank + 1] - start == num_bytes &&
            memcmp(vocab->bytes + start, bytes, num_bytes) == 0)
            return slot;
        slot = (slot + 1) & mask;
    }
    return slot;
}

uint32_t vocab_find(const struct vocab *vocab, const void *bytes, size_t num_bytes)
{
    if (num_bytes > vocab->longest || num_bytes == 0)
        return VOCAB_NONE;
    return vocab->slots[find_slot(vocab, bytes, num_bytes)] - 1; /* 0 - 1 is VOCAB_NONE */
}

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the vocabulary");
}

static int grow_slots(struct vocab *vocab)
{
    uint32_t *old = vocab->slots;
    uint32_t num_slots = vocab->num_slots == 0 ? 1024 : vocab->num_slots * 2;
    uint32_t *slots = calloc(num_slots, sizeof(*slots));
    if (slots == NULL)
        return no_memory();
    free(old);
    vocab->slots = slots;
    vocab->num_slots = num_slots;
    for (uint32_t rank = 0; rank < vocab->num_tokens; rank++) {
        size_t start = vocab->start[rank];
        slots[find_slot(vocab, vocab->bytes + start, vocab->start[rank + 1] - start)] = rank + 1;
    }
    return 0;
}

static int grow_storage(struct vocab *vocab, size_t more_bytes)
{
    if (vocab->num_bytes + more_bytes > vocab->room_bytes) {
        size_t room = (vocab->num_bytes + more_bytes) * 2;
        unsigned char *bytes = realloc(vocab->bytes, room);
        if (bytes == NULL)
            return no_memory();
        vocab->bytes = bytes;
        vocab->room_bytes = room;
    }
    if (vocab->num_tokens == vocab->room_tokens) {
        uint32_t room = vocab->room_tokens == 0 ? 1024 : vocab->room_tokens * 2;
        size_t *start = realloc(vocab->start, ((size_t)room + 1) * sizeof(*start));
        if (start == NULL)
            return no_memory();
        start[vocab->num_tokens] = vocab->num_bytes;
        vocab->start = start;
        vocab->room_tokens = room;
    }
    return 0;
}

int vocab_add(struct vocab *vocab, const void *bytes, size_t num_bytes)
{
    CHECK(num_bytes > 0);
    if (vocab->num_tokens == VOCAB_TOKENS_MAX)
        return report_error(ERR_INVALID, NULL, "a vocabulary holds at most %u tokens",
                            VOCAB_TOKENS_MAX);
    if (vocab->num_tokens * 2 >= vocab->num_slots)
        ERR_TRY(grow_slots(vocab));
    uint32_t slot = find_slot(vocab, bytes, num_bytes);
    if (vocab->slots[slot] != 0)
        return report_error(ERR_EXISTS, NULL, "the bytes are token %u already",
                            vocab->slots[slot] - 1);
    ERR_TRY(grow_storage(vocab, num_bytes));
    memcpy(vocab->bytes + vocab->num_bytes, bytes, num_bytes);
    vocab->num_bytes += num_bytes;
    vocab->slots[slot] = ++vocab->num_tokens;
    vocab->start[vocab->num_tokens] = vocab->num_bytes;
    if (num_bytes > vocab->longest)
        vocab->longest = num_bytes;
    return 0;
}

/* ---- special tokens ---- */

uint32_t vocab_num_special(const struct vocab *vocab)
{
    return vocab->num_tokens == VOCAB_LLAMA3_RANKS ? VOCAB_LLAMA3_SPECIAL : VOCAB_NUM_SPECIAL;
}

void vocab_special_name(char out[VOCAB_SPECIAL_BYTES], const struct vocab *vocab, uint32_t index)
{
    /* From meta-llama/llama3, llama/tokenizer.py; the empty ones are reserved, numbered from 0. */
    static const char *const names[] = {
        VOCAB_BEGIN,           VOCAB_END,           "", "",          "", "",
        "<|start_header_id|>", "<|end_header_id|>", "", "<|eot_id|>"};
    static const uint32_t num_names = sizeof names / sizeof names[0];
    uint32_t reserved = 0;
    CHECK(index < vocab_num_special(vocab));
    for (uint32_t i = 0; i < index; i++)
        reserved += i >= num_names || names[i][0] == '\0';
    if (index < num_names && names[index][0] != '\0')
        snprintf(out, VOCAB_SPECIAL_BYTES, "%s", names[index]);
    else
        snprintf(out, VOCAB_SPECIAL_BYTES, "<|reserved_special_token_%u|>", reserved);
}

/* ---- base64 (RFC 4648, with padding) ---- */

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static size_t base64_encode(char *out, const unsigned char *bytes, size_t num_bytes)
{
    char *at = out;
    for (size_t i = 0; i < num_bytes; i += 3) {
        size_t left = num_bytes - i;
        uint32_t bits = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (left > 2 ? bytes[i + 2] : 0);
        *at++ = base64_digits[bits >> 18];
        *at++ = base64_digits[bits >> 12 & 63];
        *at++ = left > 1 ? base64_digits[bits >> 6 & 63] : '=';
        *at++ = left > 2 ? base64_digits[bits & 63] : '=';
    }
    return (size_t)(at - out);
}

static int base64_value(char digit)
{
    const char *found = digit == '\0' ? NULL : strchr(base64_digits, digit);
    return found == NULL ? -1 : (int)(found - base64_digits);
}

size_t vocab_base64_decode(unsigned char *out, const char *text, size_t length)
{
    if (length == 0 || length % 4 != 0)
        return 0;
    size_t padding = text[length - 1] != '=' ? 0 : text[length - 2] != '=' ? 1 : 2;
    size_t num_bytes = length / 4 * 3 - padding;
    for (size_t i = 0; i < length; i += 4) {
        uint32_t bits = 0;
        for (size_t j = i; j < i + 4; j++) {
            int value = j < length - padding ? base64_value(text[j]) : 0;
            if (value < 0)
                return 0;
            bits = bits << 6 | (uint32_t)value;
        }
        for (size_t j = 0; j < 3 && i / 4 * 3 + j < num_bytes; j++)
            out[i / 4 * 3 + j] = (unsigned char)(bits >> (16 - 8 * j));
    }
    return num_bytes;
}

/* ---- file ---- */

struct line {
    size_t start; /* of the decoded bytes */
    size_t num_bytes;
    uint32_t rank;
};

struct lines {
    unsigned char *bytes; /* decoded, back to back */
    size_t num_bytes;
    struct line *items;
    uint32_t count, room;
};

static int bad_line(const char *path, size_t number, const char *what)
{
    return report_error(ERR_CORRUPT, "a tokenizer file holds one \"base64 rank\" per line",
                        "%s, line %zu: %s", path, number, what);
}

static int parse_line(struct lines *lines, const char *path, size_t number, const char *text,
                      size_t length)
{
    const char *space = memchr(text, ' ', length);
    if (space == NULL)
        return bad_line(path, number, "no space between token and rank");
    uint64_t rank = 0;
    const char *digit = space + 1, *end = text + length;
    if (digit == end)
        return bad_line(path, number, "the rank is missing");
    for (; digit < end; digit++) {
        if (*digit < '0' || *digit > '9' || rank >= VOCAB_TOKENS_MAX)
            return bad_line(path, number, "the rank is not a number of this format");
        rank = rank * 10 + (uint64_t)(*digit - '0');
    }
    ERR_TRY(array_reserve(&lines->items, &lines->room, lines->count, sizeof(*lines->items)));
    if (lines->count == VOCAB_TOKENS_MAX)
        return bad_line(path, number, "too many tokens");
    size_t num_bytes =
        vocab_base64_decode(lines->bytes + lines->num_bytes, text, (size_t)(space - text));
    if (num_bytes == 0)
        return bad_line(path, number, "the token is not base64");
    lines->items[lines->count++] = (struct line){lines->num_bytes, num_bytes, (uint32_t)rank};
    lines->num_bytes += num_bytes;
    return 0;
}

static int parse_lines(struct lines *lines, const char *path, const char *text, size_t bytes)
{
    size_t number = 0;
    for (size_t at = 0; at < bytes; number++) {
        const char *line = text + at;
        const char *newline = memchr(line, '\n', bytes - at);
        size_t length = newline != NULL ? (size_t)(newline - line) : bytes - at;
        at += length + 1;
        if (length > 0)
            ERR_TRY(parse_line(lines, path, number + 1, line, length));
    }
    return 0;
}

/* Adds the lines to the vocabulary in the order of their ranks. `by_rank` has a place per line. */
static int add_lines(struct vocab *vocab, uint32_t *by_rank, const char *path,
                     const struct lines *lines)
{
    memset(by_rank, 0xff, lines->count * sizeof(*by_rank));
    for (uint32_t i = 0; i < lines->count; i++) {
        uint32_t rank = lines->items[i].rank;
        if (rank >= lines->count || by_rank[rank] != VOCAB_NONE)
            return report_error(ERR_CORRUPT, "ranks must be the numbers from 0 on, each once",
                                "%s: rank %u does not fit %u tokens or is there twice", path, rank,
                                lines->count);
        by_rank[rank] = i;
    }
    for (uint32_t rank = 0; rank < lines->count; rank++) {
        const struct line *line = &lines->items[by_rank[rank]];
        int result = vocab_add(vocab, lines->bytes + line->start, line->num_bytes);
        if (result == ERR_EXISTS)
            return report_error(ERR_CORRUPT, NULL, "%s: the token of rank %u is there twice", path,
                                rank);
        ERR_TRY(result);
    }
    for (int byte = 0; byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        if (vocab_find(vocab, &single, 1) == VOCAB_NONE)
            return report_error(ERR_CORRUPT, NULL, "%s: no token for the single byte 0x%02x", path,
                                (unsigned)byte);
    }
    return 0;
}

/* SentencePiece's file begins with the message of a piece of a few bytes, field 1 of a protocol
 * buffer: byte 0x0a. No other kind contains a zero byte. */
enum vocab_file vocab_file_of(const char *text, size_t bytes)
{
    size_t at = 0;
    if (bytes > 1 && text[0] == '\n' && (unsigned char)text[1] < 0x80 &&
        memchr(text, '\0', bytes) != NULL)
        return VOCAB_FILE_SENTENCEPIECE;
    while (at < bytes && memchr(" \t\r\n", text[at], 4) != NULL)
        at++;
    return at < bytes && text[at] == '{' ? VOCAB_FILE_JSON : VOCAB_FILE_RANKS;
}

int vocab_parse(struct vocab *out, const char *name, const char *text, size_t bytes)
{
    struct lines lines = {0};
    uint32_t *by_rank = NULL;
    vocab_init(out);
    if (bytes > VOCAB_FILE_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "%s: not a tokenizer: over %u MiB", name,
                            VOCAB_FILE_BYTES_MAX >> 20);
    lines.bytes = malloc(bytes + 1);
    int result = lines.bytes == NULL ? no_memory() : parse_lines(&lines, name, text, bytes);
    if (result == 0) {
        by_rank = malloc(((size_t)lines.count + 1) * sizeof(*by_rank));
        result = by_rank == NULL ? no_memory() : add_lines(out, by_rank, name, &lines);
    }
    if (result != 0)
        vocab_deinit(out);
    free(by_rank);
    free(lines.items);
    free(lines.bytes);
    return result;
}

static int write_lines(const struct vocab *vocab, FILE *file)
{
    char *line = malloc(vocab->longest * 2 + 8);
    if (line == NULL)
        return no_memory();
    for (uint32_t rank = 0; rank < vocab->num_tokens; rank++) {
        size_t start = vocab->start[rank];
        size_t length = base64_encode(line, vocab->bytes + start, vocab->start[rank + 1] - start);
        fprintf(file, "%.*s %u\n", (int)length, line, rank);
    }
    free(line);
    return 0;
}

int vocab_write(const struct vocab *vocab, const char *path)
{
    char temporary[PATH_MAX];
    int length = snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof(temporary))
        return report_error(ERR_INVALID, NULL, "the path is too long: %s", path);
    FILE *file = fopen(temporary, "wxe");
    if (file == NULL)
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not create %s: %s", temporary, strerror(errno));
    int result = write_lines(vocab, file);
    /* One check of the stream's error covers every fprintf before it. */
    if (result == 0 && (fflush(file) != 0 || ferror(file) || fsync(fileno(file)) != 0))
        result = report_errno(ERR_IO, "could not write the tokenizer file", temporary);
    if (fclose(file) != 0 && result == 0)
        result = report_errno(ERR_IO, "could not write the tokenizer file", temporary);
    if (result == 0 && rename(temporary, path) != 0)
        result = report_errno(ERR_IO, "could not rename the tokenizer file", path);
    if (result != 0)
        unlink(temporary);
    return result;
}
