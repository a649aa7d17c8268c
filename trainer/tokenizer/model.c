/* model.c - opens a tokenizer of any kind (proto/model/vocab.h finds the kind), describes it, and
 * decodes. */
#include "trainer/tokenizer/model.h"
#include "trainer/tokenizer/tokenizer.h"

#include "proto/base/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (uint32_t i = 0; i < tokenizer->num_added; i++) {
        free(tokenizer->added[i].content);
        free(tokenizer->added[i].normalized);
    }
    free(tokenizer->added);
    free(tokenizer->pairs.slots);
    normalizer_close(tokenizer->normalizer);
    steps_close(tokenizer);
    scores_close(tokenizer->scores);
    vocab_deinit(&tokenizer->vocab);
    free(tokenizer);
}

static int read_file(struct tokenizer *tokenizer, const char *path, const struct text *text)
{
    ERR_TRY(checksum_sha256_hex(tokenizer->hash, text->data, text->bytes));
    static int (*const read[])(struct tokenizer *, const char *, const char *, size_t) = {
        [VOCAB_FILE_RANKS] = tokenizer_read_ranks,
        [VOCAB_FILE_JSON] = tokenizer_read_json,
        [VOCAB_FILE_SENTENCEPIECE] = tokenizer_read_sentencepiece};
    enum vocab_file kind = vocab_file_of(text->data, text->bytes);
    ERR_TRY(read[kind](tokenizer, path, text->data, text->bytes));
    return kind == VOCAB_FILE_JSON && tokenizer->eos < 0 ? tokenizer_find_end(tokenizer, path) : 0;
}

int tokenizer_open(struct tokenizer **out, const char *path)
{
    struct text text;
    struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL)
        return tokenizer_no_memory();
    tokenizer->bos = tokenizer->eos = tokenizer->unknown = -1;
    vocab_init(&tokenizer->vocab);
    int result = text_open(&text, path);
    if (result == 0) {
        result = read_file(tokenizer, path, &text);
        text_close(&text);
    }
    if (result != 0) {
        tokenizer_close(tokenizer);
        return result;
    }
    *out = tokenizer;
    return 0;
}

static bool is_file(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && !S_ISDIR(status.st_mode);
}

static bool is_file_of_sentencepiece(const char *path)
{
    char begin[256];
    FILE *file = fopen(path, "re");
    size_t bytes = file != NULL ? fread(begin, 1, sizeof begin, file) : 0;
    if (file != NULL)
        fclose(file);
    return vocab_file_of(begin, bytes) == VOCAB_FILE_SENTENCEPIECE;
}

int tokenizer_find(char *out, size_t room, const char *path)
{
    /* A tokenizer.json may have more tokens than SentencePiece's file in the same folder. */
    static const struct {
        const char *name;
        bool may_be_sentencepiece;
    } files[] = {{"", true},
                 {"/tokenizer.model", false},
                 {"/original/tokenizer.model", false},
                 {"/tokenizer.json", false},
                 {"/tokenizer.model", true}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        int length = snprintf(out, room, "%s%s", path, files[i].name);
        if (length < (int)room && is_file(out) &&
            (files[i].may_be_sentencepiece || !is_file_of_sentencepiece(out)))
            return 0;
    }
    return report_error(ERR_NOT_FOUND, "name tokenizer.model, tokenizer.json or their folder",
                        "there is no tokenizer in %s", path);
}

uint32_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
    return tokenizer->num_ids;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return tokenizer->eos;
}

const char *tokenizer_hash(const struct tokenizer *tokenizer)
{
    return tokenizer->hash;
}

/* The added token with this id, or NULL. */
static const struct added_token *find_added(const struct tokenizer *tokenizer, int32_t id)
{
    uint32_t low = 0, high = tokenizer->num_added;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tokenizer->added[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < tokenizer->num_added && tokenizer->added[low].id == id ? &tokenizer->added[low]
                                                                        : NULL;
}

/* ---- decoding ---- */

/* Writes bytes, with U+2581 as spaces if the tokenizer marks spaces; returns their number. */
static size_t unmark(char *out, const struct tokenizer *tokenizer, const char *bytes, size_t length)
{
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        bool is_space = tokenizer->marks_spaces && length - at >= META_SPACE_BYTES &&
                        memcmp(bytes + at, META_SPACE, META_SPACE_BYTES) == 0;
        out[used++] = is_space ? ' ' : bytes[at];
        at += is_space ? META_SPACE_BYTES : 1;
    }
    return used;
}

/* Writes the text of a token to `out` (unless NULL) and returns its length. An added token that
 * occurs in normalized text decodes to its normalized form. */
static size_t token_text(char *out, const struct tokenizer *tokenizer, int32_t token)
{
    char ignored[TOKEN_BYTES_MAX * META_SPACE_BYTES + 16];
    const struct added_token *added = find_added(tokenizer, token);
    char *to = out != NULL ? out : ignored;
    if (added != NULL && added->is_special)
        return 0;
    if (added != NULL && added->normalized != NULL)
        return unmark(to, tokenizer, added->normalized, added->normalized_bytes);
    if (added != NULL)
        return unmark(to, tokenizer, added->content, added->bytes);
    const struct vocab *vocab = &tokenizer->vocab;
    const char *bytes = (const char *)vocab->bytes + vocab->start[token];
    size_t length = vocab->start[token + 1] - vocab->start[token];
    int byte = tokenizer->by_character ? tokenizer_byte_of_name(bytes, length) : -1;
    if (byte < 0)
        return unmark(to, tokenizer, bytes, length);
    to[0] = (char)byte;
    return 1;
}

static bool is_token(const struct tokenizer *tokenizer, int32_t token)
{
    return token >= 0 &&
           ((uint32_t)token < tokenizer->vocab.num_tokens || find_added(tokenizer, token) != NULL);
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
                     char **out, size_t *out_bytes)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_token(tokenizer, tokens[i]))
            return report_error(ERR_INVALID, NULL, "%d is not a token of this vocabulary of %u",
                                tokens[i], tokenizer_vocab(tokenizer));
        bytes += token_text(NULL, tokenizer, tokens[i]);
    }
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return tokenizer_no_memory();
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        at += token_text(text + at, tokenizer, tokens[i]);
    if (tokenizer->strips_space && at > 0 && text[0] == ' ')
        memmove(text, text + 1, --at);
    text[at] = '\0';
    *out = text;
    *out_bytes = at;
    return 0;
}
