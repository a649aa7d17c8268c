/* encoder.c - text to tokens.
 *
 * The encoder applies the steps of Hugging Face's library to a text; tiktoken's steps are some of
 * these:
 *
 *   1. added tokens that occur in the unchanged text are cut out of it;
 *   2. if the file has a normalizer, each part between them is marked: spaces become U+2581, and a
 *   prefix is put before it;
 *   3. added tokens that occur in normalized text are cut out of it;
 *   4. if the pre-tokenizer marks spaces, each part between those is marked;
 *   5. the rest is split into pieces. A piece is one token, or symbols that are joined. If tokens
 *   have scores (unigram.c), each rest is one piece.
 *
 * Added tokens are searched for from the left, the longest first; a special token that counts as
 * text still covers its place, so no other token is found inside it.
 *
 * Words repeat: a table with one place per hash keeps the tokens of short pieces, so that most
 * pieces cost one table access. The table never changes a result. */
#include "trainer/tokenizer/model.h"
#include "trainer/tokenizer/tokenizer.h"

#include "proto/base/report.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_PIECES 32768u /* places of the table: 3 MiB */
#define KEPT_BYTES 32u
#define KEPT_TOKENS 12u

struct kept_piece {
    uint8_t bytes, tokens; /* bytes 0: the place is free */
    char text[KEPT_BYTES];
    int32_t list[KEPT_TOKENS];
};

struct encoder {
    const struct tokenizer *tokenizer;
    struct split *split;     /* NULL: pieces are not matches of an expression */
    struct split *graphemes; /* NULL: no step needs them */
    struct merger *merger;
    struct lattice *lattice;
    struct kept_piece *kept;
    struct buffer marked, stepped[2];
    int32_t *tokens; /* of the current text */
    size_t num_tokens, room;
    uint32_t flags;
    bool finds_normalized; /* this text is searched for added tokens */
    bool is_first_part;    /* the current part begins the text */
    /* Indices of tokenizer->added that begin with a byte, the longest first. */
    uint32_t *by_byte[2], first_of[2][257]; /* [1]: in normalized text */
};

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to encode the text");
}

/* ---- opening ---- */

void encoder_close(struct encoder *encoder)
{
    if (encoder == NULL)
        return;
    split_close(encoder->split);
    split_close(encoder->graphemes);
    merger_free(encoder->merger);
    lattice_free(encoder->lattice);
    free(encoder->kept);
    free(encoder->marked.text);
    free(encoder->stepped[0].text);
    free(encoder->stepped[1].text);
    free(encoder->tokens);
    free(encoder->by_byte[0]);
    free(encoder->by_byte[1]);
    free(encoder);
}

static const char *form_of(const struct added_token *added, bool is_normalized, uint32_t *bytes)
{
    *bytes = is_normalized ? added->normalized_bytes : added->bytes;
    return is_normalized ? added->normalized : added->content;
}

static bool is_found_in(const struct added_token *added, bool is_normalized)
{
    return (added->normalized != NULL) == is_normalized;
}

static uint32_t length_of(const struct added_token *added, bool is_normalized)
{
    uint32_t bytes;
    form_of(added, is_normalized, &bytes);
    return bytes;
}

/* Puts added token `i` into the list of `count`, which is sorted by length, the longest first. */
static void insert_by_length(uint32_t *list, uint32_t count, const struct added_token *all,
                             uint32_t i, bool is_normalized)
{
    uint32_t at = count, bytes = length_of(&all[i], is_normalized);
    for (; at > 0 && length_of(&all[list[at - 1]], is_normalized) < bytes; at--)
        list[at] = list[at - 1];
    list[at] = i;
}

/* Sorts the added tokens of one kind by first byte, then by length. */
static int index_added(struct encoder *encoder, bool is_normalized)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    uint32_t *list = malloc(((size_t)tokenizer->num_added + 1) * sizeof *list), count = 0;
    encoder->by_byte[is_normalized] = list;
    if (list == NULL)
        return no_memory();
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t first = encoder->first_of[is_normalized][byte] = count, bytes;
        for (uint32_t i = 0; i < tokenizer->num_added; i++) {
            const char *form = form_of(&tokenizer->added[i], is_normalized, &bytes);
            if (!is_found_in(&tokenizer->added[i], is_normalized) || (uint8_t)form[0] != byte)
                continue;
            insert_by_length(list + first, count - first, tokenizer->added, i, is_normalized);
            count++;
        }
    }
    encoder->first_of[is_normalized][256] = count;
    return 0;
}

int encoder_open(struct encoder **out, const struct tokenizer *tokenizer)
{
    struct encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder == NULL)
        return no_memory();
    encoder->tokenizer = tokenizer;
    encoder->merger = merger_new();
    encoder->lattice = lattice_new();
    encoder->kept = calloc(KEPT_PIECES, sizeof *encoder->kept);
    int result = encoder->merger == NULL || encoder->lattice == NULL || encoder->kept == NULL
                     ? no_memory()
                     : 0;
    if (result == 0 && tokenizer->pieces == PIECES_EXPRESSION)
        result = split_open(&encoder->split, tokenizer->expression);
    if (result == 0 && tokenizer->num_steps > 0)
        result = split_open(&encoder->graphemes, SPLIT_GRAPHEMES);
    for (int is_normalized = 0; result == 0 && is_normalized < 2; is_normalized++)
        result = index_added(encoder, is_normalized);
    if (result != 0) {
        encoder_close(encoder);
        return result;
    }
    *out = encoder;
    return 0;
}

/* ---- a piece ---- */

static int add_tokens(struct encoder *encoder, const uint32_t *tokens, size_t count)
{
    if (encoder->num_tokens + count > encoder->room) {
        size_t room = 2 * (encoder->num_tokens + count) + 64;
        int32_t *grown = realloc(encoder->tokens, room * sizeof *grown);
        if (grown == NULL)
            return no_memory();
        encoder->tokens = grown;
        encoder->room = room;
    }
    memcpy(encoder->tokens + encoder->num_tokens, tokens, count * sizeof *tokens);
    encoder->num_tokens += count;
    return 0;
}

/* Symbols of a piece: characters that are tokens; the bytes of characters that are not. */
static size_t symbols_of_characters(const struct tokenizer *tokenizer, const char *piece,
                                    size_t bytes, uint32_t *symbols)
{
    size_t count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t length = text_utf8_length(piece + at, bytes - at);
        uint32_t symbol = vocab_find(&tokenizer->vocab, piece + at, length);
        size_t end = at + (length > 0 ? length : 1);
        if (symbol != VOCAB_NONE) {
            symbols[count++] = symbol;
            at = end;
        }
        for (; at < end; at++)
            symbols[count++] = tokenizer->byte_symbols[(uint8_t)piece[at]];
    }
    return count;
}

static int encode_by_merging(struct encoder *encoder, const char *piece, size_t bytes)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    size_t count = bytes;
    ERR_TRY(merger_reserve(encoder->merger, bytes));
    uint32_t *symbols = merger_symbols(encoder->merger);
    if (tokenizer->by_character)
        count = symbols_of_characters(tokenizer, piece, bytes, symbols);
    for (size_t i = 0; !tokenizer->by_character && i < bytes; i++)
        symbols[i] = tokenizer->byte_symbols[(uint8_t)piece[i]];
    count = merger_run(encoder->merger, &tokenizer->pairs, count);
    return add_tokens(encoder, symbols, count);
}

/* Keeps one of several consecutive unknown tokens, from token `first` on. */
static void join_unknown(struct encoder *encoder, size_t first)
{
    const int32_t unknown = encoder->tokenizer->unknown;
    size_t left = first;
    for (size_t i = first; unknown >= 0 && i < encoder->num_tokens; i++)
        if (left == first || encoder->tokens[i] != unknown || encoder->tokens[left - 1] != unknown)
            encoder->tokens[left++] = encoder->tokens[i];
    encoder->num_tokens = unknown >= 0 ? left : encoder->num_tokens;
}

static int encode_by_scores(struct encoder *encoder, const char *text, size_t bytes)
{
    const uint32_t *tokens;
    size_t count, before = encoder->num_tokens;
    ERR_TRY(lattice_run(encoder->lattice, encoder->tokenizer, text, bytes, &tokens, &count));
    ERR_TRY(add_tokens(encoder, tokens, count));
    join_unknown(encoder, before);
    return 0;
}

static int encode_uncached(struct encoder *encoder, const char *piece, size_t bytes)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    if (tokenizer->scores != NULL)
        return encode_by_scores(encoder, piece, bytes);
    uint32_t whole =
        tokenizer->takes_whole ? vocab_find(&tokenizer->vocab, piece, bytes) : VOCAB_NONE;
    return whole != VOCAB_NONE ? add_tokens(encoder, &whole, 1)
                               : encode_by_merging(encoder, piece, bytes);
}

static int encode_piece(void *user, const char *piece, size_t bytes)
{
    struct encoder *encoder = user;
    if (bytes > KEPT_BYTES)
        return encode_uncached(encoder, piece, bytes);
    struct kept_piece *kept = &encoder->kept[checksum_bytes(piece, bytes) % KEPT_PIECES];
    if (kept->bytes == bytes && memcmp(kept->text, piece, bytes) == 0)
        return add_tokens(encoder, (const uint32_t *)kept->list, kept->tokens);
    size_t before = encoder->num_tokens;
    ERR_TRY(encode_uncached(encoder, piece, bytes));
    size_t count = encoder->num_tokens - before;
    if (count > KEPT_TOKENS)
        return 0;
    kept->bytes = (uint8_t)bytes;
    kept->tokens = (uint8_t)count;
    memcpy(kept->text, piece, bytes);
    memcpy(kept->list, encoder->tokens + before, count * sizeof(int32_t));
    return 0;
}

/* ---- pieces ---- */

static bool is_meta_space(const char *text, size_t bytes, size_t at)
{
    return bytes - at >= META_SPACE_BYTES && memcmp(text + at, META_SPACE, META_SPACE_BYTES) == 0;
}

/* Cuts before a U+2581: before each, or before those that do not follow another. */
static int encode_words(struct encoder *encoder, const char *text, size_t bytes, bool cuts_each)
{
    size_t first = 0;
    bool follows_space = true; /* no cut at the beginning */
    for (size_t at = 0; at < bytes;) {
        bool is_space = is_meta_space(text, bytes, at);
        if (is_space && at > first && (cuts_each || !follows_space)) {
            ERR_TRY(encode_piece(encoder, text + first, at - first));
            first = at;
        }
        follows_space = is_space;
        at += is_space ? META_SPACE_BYTES : 1;
    }
    return first < bytes ? encode_piece(encoder, text + first, bytes - first) : 0;
}

static int encode_pieces(struct encoder *encoder, const char *text, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (encoder->tokenizer->scores != NULL && encoder->tokenizer->pieces != PIECES_EACH_SPACE)
        return encode_by_scores(encoder, text, bytes);
    switch (encoder->tokenizer->pieces) {
    case PIECES_EXPRESSION:
        return split_run(encoder->split, text, bytes, encode_piece, encoder);
    case PIECES_WORDS:
    case PIECES_EACH_SPACE:
        return encode_words(encoder, text, bytes, encoder->tokenizer->pieces == PIECES_EACH_SPACE);
    case PIECES_WHOLE:
        break;
    }
    return encode_piece(encoder, text, bytes);
}

/* ---- added tokens ---- */

/* The longest added token that stands at `text`, or NULL. */
static const struct added_token *find_added(const struct encoder *encoder, const char *text,
                                            size_t bytes, bool is_normalized, uint32_t *out_bytes)
{
    const uint32_t *first = encoder->first_of[is_normalized] + (uint8_t)text[0];
    for (uint32_t i = first[0]; i < first[1]; i++) {
        const struct added_token *added =
            &encoder->tokenizer->added[encoder->by_byte[is_normalized][i]];
        const char *form = form_of(added, is_normalized, out_bytes);
        if (*out_bytes <= bytes && memcmp(form, text, *out_bytes) == 0)
            return added;
    }
    return NULL;
}

/* White space to the left and right of an added token, if the token includes it. */
static size_t left_of(const char *text, size_t at, size_t least)
{
    while (at > least) {
        size_t before = at - 1;
        while (before > least && ((uint8_t)text[before] & 0xc0) == 0x80)
            before--;
        if (!text_is_space(text + before, at - before))
            break;
        at = before;
    }
    return at;
}

static size_t right_of(const char *text, size_t bytes, size_t at)
{
    while (at < bytes) {
        size_t length = text_utf8_length(text + at, bytes - at);
        if (length == 0 || !text_is_space(text + at, length))
            break;
        at += length;
    }
    return at;
}

typedef int part_fn(struct encoder *encoder, const char *text, size_t bytes, bool is_first);

/* Passes on the text between added tokens, and adds the tokens. */
static int cut_added(struct encoder *encoder, const char *text, size_t bytes, bool is_normalized,
                     part_fn *part)
{
    size_t done = 0, at = 0;
    while (at < bytes) {
        uint32_t length;
        const struct added_token *added =
            find_added(encoder, text + at, bytes - at, is_normalized, &length);
        if (added == NULL) {
            at++;
            continue;
        }
        size_t first = at, end = at + length;
        at = end;
        if (first < done || (added->is_special && !(encoder->flags & ENCODE_SPECIAL)))
            continue;
        first = added->strips_left ? left_of(text, first, done) : first;
        end = added->strips_right ? right_of(text, bytes, end) : end;
        if (first > done)
            ERR_TRY(part(encoder, text + done, first - done, done == 0));
        ERR_TRY(add_tokens(encoder, &(uint32_t){(uint32_t)added->id}, 1));
        done = end;
    }
    return done < bytes ? part(encoder, text + done, bytes - done, done == 0) : 0;
}

/* ---- marking ---- */

static bool takes_prefix(const struct encoder *encoder, const char *text, size_t bytes,
                         bool is_first)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    size_t length = strlen(tokenizer->prefix_text);
    if (tokenizer->prefix == PREFIX_NONE || (tokenizer->prefix == PREFIX_FIRST && !is_first) ||
        (is_first && (encoder->flags & ENCODE_CONTINUES) != 0))
        return false;
    bool is_there = (bytes >= length && memcmp(text, tokenizer->prefix_text, length) == 0) ||
                    (tokenizer->marks_spaces && text[0] == ' ');
    return tokenizer->prefix_always || !is_there;
}

/* Marks *text, if it has anything to mark; the result is in the encoder's buffer. */
static int mark(struct encoder *encoder, const char **text, size_t *bytes, bool is_first)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    bool has_prefix = takes_prefix(encoder, *text, *bytes, is_first);
    if (tokenizer->normalizer != NULL) {
        bool continues = is_first && (encoder->flags & ENCODE_CONTINUES) != 0;
        ERR_TRY(tokenizer_normalize(tokenizer, has_prefix, continues, *text, *bytes,
                                    &encoder->marked, bytes));
        *text = encoder->marked.text;
        return 0;
    }
    if (!has_prefix && !tokenizer->marks_spaces)
        return 0;
    size_t room = *bytes * (tokenizer->marks_spaces ? META_SPACE_BYTES : 1);
    ERR_TRY(buffer_reserve(&encoder->marked, room + sizeof tokenizer->prefix_text));
    *bytes = tokenizer_mark(tokenizer, has_prefix, *text, *bytes, encoder->marked.text);
    *text = encoder->marked.text;
    return 0;
}

static int encode_marked(struct encoder *encoder, const char *text, size_t bytes, bool is_first)
{
    if (!encoder->tokenizer->marks_early)
        ERR_TRY(mark(encoder, &text, &bytes, is_first));
    return encode_pieces(encoder, text, bytes);
}

static int encode_inner_part(struct encoder *encoder, const char *text, size_t bytes, bool is_first)
{
    is_first = is_first && encoder->is_first_part;
    if (!encoder->tokenizer->splits_white)
        return encode_marked(encoder, text, bytes, is_first);
    for (size_t at = 0, end; at < bytes; at = end) {
        at = right_of(text, bytes, at);
        for (end = at; end < bytes && right_of(text, bytes, end) == end;) {
            size_t length = text_utf8_length(text + end, bytes - end);
            end += length > 0 ? length : 1;
        }
        if (end > at)
            ERR_TRY(encode_marked(encoder, text + at, end - at, is_first && at == 0));
    }
    return 0;
}

static int encode_part(struct encoder *encoder, const char *text, size_t bytes, bool is_first)
{
    encoder->is_first_part = is_first;
    ERR_TRY(steps_run(encoder->tokenizer, encoder->graphemes, encoder->stepped, &text, &bytes));
    if (bytes == 0)
        return 0;
    if (encoder->tokenizer->marks_early)
        ERR_TRY(mark(encoder, &text, &bytes, is_first));
    return encoder->finds_normalized ? cut_added(encoder, text, bytes, true, encode_inner_part)
                                     : encode_inner_part(encoder, text, bytes, true);
}

/* ---- a text ---- */

static bool has_added(const struct tokenizer *tokenizer, bool is_normalized, uint32_t flags)
{
    for (uint32_t i = 0; i < tokenizer->num_added; i++)
        if (is_found_in(&tokenizer->added[i], is_normalized) &&
            (!tokenizer->added[i].is_special || (flags & ENCODE_SPECIAL)))
            return true;
    return false;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* A gap with an expression: after a line feed between two letters, where every expression cuts on
 * both sides. With U+2581: before a space between two letters. */
static size_t find_gap(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                       size_t from, uint32_t flags)
{
    bool by_line = tokenizer->pieces == PIECES_EXPRESSION;
    if (tokenizer->pieces == PIECES_WHOLE || steps_cross_spaces(tokenizer) ||
        has_added(tokenizer, false, flags) || has_added(tokenizer, true, flags))
        return bytes;
    for (size_t at = from < 1 ? 1 : from; at + 1 < bytes; at++) {
        const char *gap = memchr(text + at, by_line ? '\n' : ' ', bytes - at - 1);
        if (gap == NULL)
            break;
        at = (size_t)(gap - text);
        if (is_letter(gap[-1]) && is_letter(gap[1]))
            return at + by_line;
    }
    return bytes;
}

/* Scores are summed from the same places in parts of a text as in the whole text. */
size_t tokenizer_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t from,
                     uint32_t flags)
{
    size_t at = 0;
    if (tokenizer->scores == NULL)
        return find_gap(tokenizer, text, bytes, from, flags);
    do
        at = find_gap(tokenizer, text, bytes, at + SCORED_BYTES, flags);
    while (at < from && at < bytes);
    return at;
}

static int encode_text(struct encoder *encoder, const char *text, size_t bytes)
{
    return has_added(encoder->tokenizer, false, encoder->flags)
               ? cut_added(encoder, text, bytes, false, encode_part)
               : encode_part(encoder, text, bytes, true);
}

int encoder_run(struct encoder *encoder, const char *text, size_t bytes, uint32_t flags,
                const int32_t **out, size_t *out_count)
{
    const struct tokenizer *tokenizer = encoder->tokenizer;
    encoder->num_tokens = 0;
    encoder->flags = flags;
    encoder->finds_normalized = has_added(tokenizer, true, flags);
    *out = encoder->tokens;
    *out_count = 0;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = bytes;
        if (tokenizer->scores != NULL)
            end = at + tokenizer_cut(tokenizer, text + at, bytes - at, 1, flags);
        ERR_TRY(encode_text(encoder, text + at, end - at));
        encoder->flags |= ENCODE_CONTINUES;
    }
    if (tokenizer->scores == NULL)
        join_unknown(encoder, 0);
    *out = encoder->tokens;
    *out_count = encoder->num_tokens;
    return 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     int32_t **out, size_t *out_count)
{
    struct encoder *encoder;
    const int32_t *tokens = NULL;
    ERR_TRY(encoder_open(&encoder, tokenizer));
    int result = encoder_run(encoder, text, bytes, 0, &tokens, out_count);
    if (result == 0) {
        *out = malloc((*out_count + 1) * sizeof **out);
        if (*out == NULL)
            result = no_memory();
        else if (*out_count > 0)
            memcpy(*out, tokens, *out_count * sizeof **out);
    }
    encoder_close(encoder);
    return result;
}
