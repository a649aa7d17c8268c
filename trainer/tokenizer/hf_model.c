/* hf_model.c - the model of a tokenizer.json: a vocabulary, with merges or with scores. */
#include "trainer/tokenizer/hf.h"

#include "proto/base/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- vocabulary ---- */

/* GPT-2's alphabet, reversed: the byte that the character at `text` represents, or -1. */
static int alphabet_byte(const char *text, size_t length)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint32_t code = length == 1   ? bytes[0]
                    : length == 2 ? (bytes[0] & 0x1fu) << 6 | (bytes[1] & 0x3fu)
                                  : UINT32_MAX;
    if ((code >= '!' && code <= '~') || (code >= 0xa1 && code <= 0xff && code != 0xad))
        return (int)code;
    if (code < 256 || code >= 256 + 68)
        return -1;
    code -= 256; /* bytes 0..32, 127..160, 173 in order */
    return code <= 32 ? (int)code : code <= 66 ? (int)(127 + code - 33) : 173;
}

/* The bytes that a key of the vocabulary represents; 0: it has characters outside the alphabet. */
static size_t token_bytes(const struct reader *reader, char out[TOKEN_BYTES_MAX], const char *key,
                          size_t length)
{
    size_t used = 0;
    if (!reader->is_byte_level) {
        memcpy(out, key, length);
        return length;
    }
    for (size_t at = 0; at < length;) {
        size_t one = text_utf8_length(key + at, length - at);
        int byte = alphabet_byte(key + at, one);
        if (one == 0 || byte < 0)
            return 0;
        out[used++] = (char)byte;
        at += one;
    }
    return used;
}

static int order_keys(const struct reader *reader, const json_t *vocab, const char **by_id,
                      size_t count)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value)
    {
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || (size_t)id >= count || by_id[id] != NULL)
            return hf_bad(reader, "the numbers of model.vocab are not those from 0 on, each once");
        if (key[0] == '\0' || strlen(key) > TOKEN_BYTES_MAX)
            return hf_bad(reader, "a token of model.vocab is empty or over 4096 bytes long");
        by_id[id] = key;
    }
    return 0;
}

static int add_keys(struct reader *reader, const char *const *by_id, size_t count)
{
    char bytes[TOKEN_BYTES_MAX];
    for (size_t id = 0; id < count; id++) {
        size_t length = token_bytes(reader, bytes, by_id[id], strlen(by_id[id]));
        if (length == 0)
            return hf_refuse_part(reader,
                                  "a token that is not of the byte-level alphabet:", by_id[id]);
        int result = vocab_add(&reader->out->vocab, bytes, length);
        if (result == ERR_EXISTS)
            return hf_bad(reader, "two tokens of model.vocab have the same bytes");
        ERR_TRY(result);
    }
    return 0;
}

static int read_vocab(struct reader *reader, const json_t *vocab)
{
    size_t count = json_object_size(vocab);
    if (count == 0)
        return hf_bad(reader, "there is no model.vocab");
    const char **by_id = calloc(count, sizeof *by_id);
    if (by_id == NULL)
        return tokenizer_no_memory();
    int result = order_keys(reader, vocab, by_id, count);
    if (result == 0)
        result = add_keys(reader, by_id, count);
    free(by_id);
    return result;
}

static int find_byte_symbols(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    if (!reader->is_byte_level)
        return tokenizer_find_byte_names(out, reader->name);
    for (uint32_t byte = 0; byte < 256; byte++) {
        unsigned char single = (unsigned char)byte;
        out->byte_symbols[byte] = vocab_find(&out->vocab, &single, 1);
        if (out->byte_symbols[byte] == VOCAB_NONE)
            return report_error(ERR_INVALID, NULL, "%s: model.vocab has no token for the byte %u",
                                reader->name, byte);
    }
    return 0;
}

/* ---- merges ---- */

/* A merge is "left right", or ["left", "right"]. */
static int merge_sides(const struct reader *reader, const json_t *merge, const char *sides[2],
                       size_t lengths[2])
{
    const char *text = json_string_value(merge);
    const char *space = text != NULL ? strchr(text, ' ') : NULL;
    if (space != NULL && strchr(space + 1, ' ') == NULL) {
        sides[0] = text;
        lengths[0] = (size_t)(space - text);
        sides[1] = space + 1;
        lengths[1] = strlen(space + 1);
    } else if (json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            sides[i] = json_string_value(json_array_get(merge, i));
            lengths[i] = sides[i] != NULL ? strlen(sides[i]) : 0;
        }
    } else {
        return hf_bad(reader, "a merge is not two tokens");
    }
    if (lengths[0] == 0 || lengths[1] == 0 || lengths[0] + lengths[1] > TOKEN_BYTES_MAX)
        return hf_bad(reader, "a merge is not two tokens");
    return 0;
}

static int read_merge(struct reader *reader, const json_t *merge, uint32_t rank, bool *crosses)
{
    const char *sides[2];
    size_t lengths[2], used[2];
    char bytes[2 * TOKEN_BYTES_MAX];
    const struct vocab *vocab = &reader->out->vocab;
    ERR_TRY(merge_sides(reader, merge, sides, lengths));
    used[0] = token_bytes(reader, bytes, sides[0], lengths[0]);
    used[1] = token_bytes(reader, bytes + used[0], sides[1], lengths[1]);
    struct pair pair = {.left = vocab_find(vocab, bytes, used[0]),
                        .right = vocab_find(vocab, bytes + used[0], used[1]),
                        .rank = rank,
                        .joined = vocab_find(vocab, bytes, used[0] + used[1])};
    if (pair.left == VOCAB_NONE || pair.right == VOCAB_NONE || pair.joined == VOCAB_NONE)
        return report_error(ERR_CORRUPT, NULL,
                            "%s: merge %u (\"%.40s\" \"%.40s\") is of tokens "
                            "that model.vocab does not have",
                            reader->name, rank, sides[0], sides[1]);
    *crosses |= tokenizer_crosses_space(bytes, used[0] + used[1]);
    return pairs_add(&reader->out->pairs, pair);
}

static int read_merges(struct reader *reader, const json_t *merges)
{
    size_t i;
    json_t *merge;
    bool crosses = false;
    if (!json_is_array(merges) || json_array_size(merges) > VOCAB_TOKENS_MAX)
        return hf_bad(reader, "there is no list model.merges, or it is too long");
    json_array_foreach(merges, i, merge) ERR_TRY(read_merge(reader, merge, (uint32_t)i, &crosses));
    struct tokenizer *out = reader->out;
    if (out->pieces == PIECES_WHOLE && out->marks_spaces && !crosses && !out->takes_whole)
        out->pieces = PIECES_WORDS;
    return 0;
}

static int read_bpe(struct reader *reader, const json_t *model)
{
    static const struct expected expected[] = {{"type", "BPE"},
                                               {"dropout", ""},
                                               {"continuing_subword_prefix", ""},
                                               {"end_of_word_suffix", ""},
                                               {NULL, NULL}};
    struct tokenizer *out = reader->out;
    bool has_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    ERR_TRY(hf_expect(reader, model, "model", expected));
    if (!reader->is_byte_level && !has_fallback)
        return hf_refuse_part(reader,
                              "without a ByteLevel pre_tokenizer: model.byte_fallback =", "false");
    if (reader->is_byte_level && out->marks_spaces)
        return hf_refuse_part(reader, "with a ByteLevel pre_tokenizer: marking spaces by",
                              META_SPACE);
    out->by_character = !reader->is_byte_level;
    out->takes_whole = json_is_true(json_object_get(model, "ignore_merges"));
    ERR_TRY(read_vocab(reader, json_object_get(model, "vocab")));
    ERR_TRY(find_byte_symbols(reader));
    return read_merges(reader, json_object_get(model, "merges"));
}

/* ---- scores ---- */

/* A piece is ["text", score]; its place is its number. */
static int read_piece(struct reader *reader, const json_t *piece, double *score)
{
    const json_t *text = json_array_get(piece, 0), *value = json_array_get(piece, 1);
    size_t bytes = json_string_length(text);
    if (bytes == 0 || bytes > TOKEN_BYTES_MAX || !json_is_number(value) ||
        !isfinite(json_number_value(value)))
        return hf_bad(reader, "a piece of model.vocab is empty, over 4096 bytes long, or has no "
                              "score");
    *score = json_number_value(value);
    int result = vocab_add(&reader->out->vocab, json_string_value(text), bytes);
    return result == ERR_EXISTS ? hf_bad(reader, "two pieces of model.vocab are the same") : result;
}

/* Finds the replacement of characters that are no token: bytes, or the token model.unk_id. */
static int find_unknown(struct reader *reader, const json_t *model)
{
    struct tokenizer *out = reader->out;
    const json_t *unknown = json_object_get(model, "unk_id");
    json_int_t id = json_is_integer(unknown) ? json_integer_value(unknown) : -1;
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return tokenizer_find_byte_names(out, reader->name);
    if (id < 0 || id >= (json_int_t)out->vocab.num_tokens)
        return hf_bad(reader, "model.unk_id is not a piece, and model.byte_fallback is not set");
    if (vocab_find(&out->vocab, META_SPACE, META_SPACE_BYTES) == VOCAB_NONE)
        return hf_refuse_part(reader, "without model.byte_fallback: a model.vocab that lacks",
                              META_SPACE);
    out->unknown = (int32_t)id;
    for (uint32_t byte = 0; byte < 256; byte++)
        out->byte_symbols[byte] = (uint32_t)id;
    return 0;
}

static int read_unigram(struct reader *reader, const json_t *model)
{
    const json_t *vocab = json_object_get(model, "vocab"), *piece;
    size_t count = json_array_size(vocab), i;
    if (reader->is_byte_level)
        return hf_refuse_part(reader, "with a ByteLevel pre_tokenizer: model.type =", "Unigram");
    if (count == 0 || count > VOCAB_TOKENS_MAX)
        return hf_bad(reader, "there is no list model.vocab, or it is too long");
    reader->scores = calloc(count, sizeof *reader->scores);
    if (reader->scores == NULL)
        return tokenizer_no_memory();
    json_array_foreach(vocab, i, piece) ERR_TRY(read_piece(reader, piece, &reader->scores[i]));
    reader->out->by_character = true;
    return find_unknown(reader, model);
}

/* Special tokens are not text, so no text may become one: they get no score. The library's
 * vocabulary includes them. */
int hf_add_scores(struct reader *reader)
{
    struct tokenizer *out = reader->out;
    if (reader->scores == NULL)
        return 0;
    ERR_TRY(scores_open(&out->scores, out->vocab.num_tokens, SCORES_DOUBLE));
    for (uint32_t id = 0, at = 0; id < out->vocab.num_tokens; id++) {
        while (at < out->num_added && out->added[at].id < (int32_t)id) /* they are sorted */
            at++;
        bool is_special =
            at < out->num_added && out->added[at].id == (int32_t)id && out->added[at].is_special;
        ERR_TRY(scores_add(out->scores, &out->vocab, id, reader->scores[id], !is_special));
    }
    return 0;
}

int hf_read_model(struct reader *reader, const json_t *model)
{
    return strcmp(hf_text_of(model, "type"), "Unigram") == 0 ? read_unigram(reader, model)
                                                             : read_bpe(reader, model);
}
