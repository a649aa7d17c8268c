/* normalize.c - SentencePiece's normalizer: the rules of a precompiled_charsmap, and its spaces.
 *
 * A charsmap is the bytes of a trie (their number first, 4 bytes, little-endian) and a table of
 * strings, each ended by a zero. The trie is a double array of Darts-clone: units of 32 bits, of
 * which the root is unit 0. With `offset` of the unit of a node, the child by byte b is unit
 * node ^ offset ^ b, if that has the label b. If a node ends a key, unit node ^ offset holds the
 * value: the offset in the table of the key's replacement.
 *
 * At every place the longest key is replaced. A character that begins no key is kept, and so is the
 * text of a token that the user defined. With remove_extra_whitespaces, spaces at the beginning, at
 * the end, and after another space are removed. */
#include "trainer/tokenizer/model.h"

#include "proto/base/report.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define CHARSMAP_BYTES_MAX (16u << 20)
#define RULE_BYTES_MAX 256u /* of a string; of text that is compared with keys */
#define NONE UINT32_MAX

struct normalizer {
    uint32_t *units, num_units;
    char *strings;
    size_t strings_bytes;
    struct pairs kept; /* a trie of tokens */
    bool removes_spaces, crosses_space;
};

/* The beginning of a text: `taken` bytes, to be replaced by `bytes`. */
struct step {
    const char *text;
    size_t bytes, taken;
};

/* ---- buffers ---- */

int buffer_reserve(struct buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->room)
        return 0;
    char *grown = realloc(buffer->text, bytes + bytes / 2);
    if (grown == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to encode the text");
    buffer->text = grown;
    buffer->room = bytes + bytes / 2;
    return 0;
}

/* ---- the trie ---- */

static uint32_t offset_of(uint32_t unit)
{
    return unit >> 10 << ((unit & (1u << 9)) >> 6);
}

static bool has_value(uint32_t unit)
{
    return (unit >> 8 & 1) != 0;
}

/* `node` is the unit's number with its offset. Returns false if there is no such child. */
static bool find_child(const struct normalizer *normalizer, uint32_t node, uint8_t byte,
                       uint32_t *out)
{
    uint32_t at = node ^ byte;
    if (at >= normalizer->num_units || (normalizer->units[at] & (UINT32_C(1) << 31 | 0xff)) != byte)
        return false;
    *out = at;
    return true;
}

static uint32_t node_of(const struct normalizer *normalizer, uint32_t unit)
{
    return unit ^ offset_of(normalizer->units[unit]);
}

/* The offset of a unit's string, or NONE. */
static uint32_t value_of(const struct normalizer *normalizer, uint32_t unit)
{
    uint32_t at = node_of(normalizer, unit);
    uint32_t value =
        at < normalizer->num_units ? normalizer->units[at] & ~(UINT32_C(1) << 31) : NONE;
    return value < normalizer->strings_bytes ? value : NONE;
}

/* True if a replacement of letters still separates spaces. */
static bool is_like_letters(const char *string)
{
    return string[0] != '\0' && strchr(string, ' ') == NULL && strstr(string, META_SPACE) == NULL;
}

struct visit {
    uint32_t unit;
    bool behind_letter; /* its key has an ASCII letter */
};

/* Visits every unit that a text can reach, once for keys with letters and once for others. Returns
 * false if a value is not the offset of a string. */
static bool check_units(struct normalizer *normalizer, struct visit *waiting, bool (*is_known)[2])
{
    size_t count = 0;
    waiting[count++] = (struct visit){0};
    while (count > 0) {
        struct visit at = waiting[--count], next;
        uint32_t node = node_of(normalizer, at.unit);
        for (int byte = 0; byte < 256; byte++) {
            if (!find_child(normalizer, node, (uint8_t)byte, &next.unit))
                continue;
            next.behind_letter = at.behind_letter || (byte < 128 && isalpha(byte) != 0);
            normalizer->crosses_space |= byte == ' ';
            if (is_known[next.unit][next.behind_letter])
                continue;
            is_known[next.unit][next.behind_letter] = true;
            waiting[count++] = next;
            if (!has_value(normalizer->units[next.unit]))
                continue;
            uint32_t value = value_of(normalizer, next.unit);
            if (value == NONE)
                return false;
            normalizer->crosses_space |=
                next.behind_letter && !is_like_letters(normalizer->strings + value);
        }
    }
    return true;
}

static bool strings_are_short(const struct normalizer *normalizer)
{
    size_t length = 0;
    for (size_t at = 0; at < normalizer->strings_bytes; at++) {
        length = normalizer->strings[at] == '\0' ? 0 : length + 1;
        if (length > RULE_BYTES_MAX)
            return false;
    }
    return length == 0;
}

/* ---- opening ---- */

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer's normalizer");
}

static int read_rules(struct normalizer *normalizer, const char *name, const uint8_t *rules,
                      size_t bytes)
{
    static const char bad[] = "normalizer_spec.precompiled_charsmap is damaged";
    uint32_t trie = 0;
    for (size_t i = 0; i < 4 && bytes > 4; i++)
        trie |= (uint32_t)rules[i] << 8 * i;
    if (bytes > CHARSMAP_BYTES_MAX || trie < 4 || trie % 4 != 0 || trie >= bytes - 4)
        return report_error(ERR_CORRUPT, "fetch the file again", "%s: %s", name, bad);
    normalizer->num_units = trie / 4;
    normalizer->strings_bytes = bytes - 4 - trie;
    normalizer->units = calloc(normalizer->num_units, sizeof *normalizer->units);
    normalizer->strings = malloc(normalizer->strings_bytes);
    struct visit *waiting = calloc(2 * (size_t)normalizer->num_units + 1, sizeof *waiting);
    bool(*is_known)[2] = calloc(normalizer->num_units, sizeof *is_known);
    int result = 0;
    if (normalizer->units == NULL || normalizer->strings == NULL || waiting == NULL ||
        is_known == NULL) {
        result = no_memory();
    } else {
        for (size_t i = 0; i < trie; i++)
            normalizer->units[i / 4] |= (uint32_t)rules[4 + i] << 8 * (i % 4);
        memcpy(normalizer->strings, rules + 4 + trie, normalizer->strings_bytes);
        if (!strings_are_short(normalizer) || !check_units(normalizer, waiting, is_known))
            result = report_error(ERR_CORRUPT, "fetch the file again", "%s: %s", name, bad);
    }
    free(waiting);
    free(is_known);
    return result;
}

int normalizer_open(struct normalizer **out, const char *name, const void *rules, size_t bytes,
                    bool removes_spaces)
{
    struct normalizer *normalizer = calloc(1, sizeof *normalizer);
    if (normalizer == NULL)
        return no_memory();
    *out = normalizer;
    normalizer->removes_spaces = removes_spaces;
    return bytes > 0 ? read_rules(normalizer, name, rules, bytes) : 0;
}

void normalizer_close(struct normalizer *normalizer)
{
    if (normalizer == NULL)
        return;
    free(normalizer->units);
    free(normalizer->strings);
    free(normalizer->kept.slots);
    free(normalizer);
}

int normalizer_keep(struct normalizer *normalizer, const struct vocab *vocab, uint32_t token)
{
    const unsigned char *text = vocab->bytes + vocab->start[token];
    normalizer->crosses_space |=
        memchr(text, ' ', vocab->start[token + 1] - vocab->start[token]) != NULL;
    return pairs_add_path(&normalizer->kept, vocab, token);
}

bool normalizer_crosses_space(const struct normalizer *normalizer)
{
    return normalizer->crosses_space;
}

/* ---- a text ---- */

static size_t length_of_kept(const struct normalizer *normalizer, const char *text, size_t bytes)
{
    size_t longest = 0;
    uint32_t node = 0;
    for (size_t at = 0; at < bytes; at++) {
        const struct pair *step = pairs_find(&normalizer->kept, node, (uint8_t)text[at]);
        if (step == NULL)
            break;
        node = step->joined;
        longest = step->rank != VOCAB_NONE ? at + 1 : longest;
    }
    return longest;
}

static struct step step_of(const struct normalizer *normalizer, const char *text, size_t bytes)
{
    size_t kept = length_of_kept(normalizer, text, bytes);
    size_t most = kept > 0 || normalizer->num_units == 0 ? 0 : bytes;
    struct step step = {.text = text};
    uint32_t unit = 0;
    for (size_t at = 0; at < most && at < RULE_BYTES_MAX; at++) {
        if (!find_child(normalizer, node_of(normalizer, unit), (uint8_t)text[at], &unit))
            break;
        if (has_value(normalizer->units[unit])) {
            step.text = normalizer->strings + value_of(normalizer, unit);
            step.taken = at + 1;
        }
    }
    if (step.taken > 0) {
        step.bytes = strlen(step.text);
        return step;
    }
    size_t character = kept > 0 ? kept : text_utf8_length(text, bytes);
    step.bytes = step.taken = character > 0 ? character : 1;
    return step;
}

const char *normalizer_shortest(const struct normalizer *normalizer, const char *text, size_t bytes)
{
    uint32_t unit = 0;
    for (size_t at = 0; at < bytes && normalizer->num_units > 0; at++) {
        if (!find_child(normalizer, node_of(normalizer, unit), (uint8_t)text[at], &unit))
            return NULL;
        if (has_value(normalizer->units[unit]))
            return normalizer->strings + value_of(normalizer, unit);
    }
    return NULL;
}

size_t tokenizer_mark(const struct tokenizer *tokenizer, bool has_prefix, const char *text,
                      size_t bytes, char *out)
{
    size_t used = 0;
    if (has_prefix) {
        used = strlen(tokenizer->prefix_text);
        memcpy(out, tokenizer->prefix_text, used);
    }
    for (size_t i = 0; i < bytes; i++) {
        bool is_marked = tokenizer->marks_spaces && text[i] == ' ';
        memcpy(out + used, is_marked ? META_SPACE : text + i, is_marked ? META_SPACE_BYTES : 1);
        used += is_marked ? META_SPACE_BYTES : 1;
    }
    return used;
}

static bool ends_with(const char *text, size_t bytes, const char *end)
{
    size_t length = strlen(end);
    return bytes >= length && memcmp(text + bytes - length, end, length) == 0;
}

int tokenizer_normalize(const struct tokenizer *tokenizer, bool has_prefix, bool continues,
                        const char *text, size_t bytes, struct buffer *out, size_t *out_bytes)
{
    const struct normalizer *normalizer = tokenizer->normalizer;
    const char *space = tokenizer->marks_spaces ? META_SPACE : " ";
    const bool removes = normalizer->removes_spaces;
    bool follows_space = removes && !continues, is_empty = follows_space;
    size_t used = 0;
    ERR_TRY(buffer_reserve(out, bytes + sizeof tokenizer->prefix_text));
    for (size_t at = 0; at < bytes;) {
        struct step step = step_of(normalizer, text + at, bytes - at);
        at += step.taken;
        if (is_empty && step.bytes == 1 && step.text[0] == ' ')
            continue;
        ERR_TRY(buffer_reserve(out, used + META_SPACE_BYTES * (step.bytes + 1)));
        if (has_prefix) {
            has_prefix = false;
            used += tokenizer_mark(tokenizer, true, "", 0, out->text);
        }
        is_empty = false;
        for (; follows_space && step.bytes > 0 && step.text[0] == ' '; step.bytes--)
            step.text++;
        if (step.bytes > 0)
            follows_space = removes && step.text[step.bytes - 1] == ' ';
        used += tokenizer_mark(tokenizer, false, step.text, step.bytes, out->text + used);
    }
    while (removes && ends_with(out->text, used, space))
        used -= strlen(space);
    *out_bytes = used;
    return 0;
}
