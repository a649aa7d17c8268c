/* tokenizer.c - encoding and decoding with a vocabulary of byte strings.
 *
 * A piece that is a token is that token. Any other piece starts as its single bytes; then the
 * neighbours whose joined bytes have the lowest rank, the leftmost of equals, are joined, until no
 * neighbours make a token: tiktoken's rule. The parts of a piece are a linked list over its bytes,
 * the candidates a binary heap of (rank, position) with stale entries skipped when they surface, so
 * a piece of n bytes costs O(n log n) whatever its form.
 *
 * The working memory grows to the longest piece seen and is kept: no allocation per piece. */
#include "trainer/tokenizer.h"

#include "proto/checksum.h"
#include "proto/report.h"
#include "proto/vocab.h"
#include "trainer/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

/* Scratch for the merges of one piece. A part is named by its first byte. */
struct merger {
    uint32_t *next;     /* first byte of the part to the right; the piece's length at the end */
    uint32_t *previous; /* first byte of the part to the left */
    uint32_t *joined;   /* rank of this part and its right neighbour together, or VOCAB_NONE */
    uint64_t *heap;     /* rank << 32 | part */
    size_t heap_count;
    int32_t *tokens; /* the result */
    size_t room;     /* bytes of a piece that fit */
};

struct tokenizer {
    struct vocab vocab;
    uint32_t *two_bytes; /* rank of every string of two bytes: where all merges start */
    char hash[CHECKSUM_SHA256_HEX];
    struct split *split;
    struct merger *merger;
};

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for the tokenizer");
}

static void merger_free(struct merger *merger)
{
    if (merger == NULL)
        return;
    free(merger->next);
    free(merger->previous);
    free(merger->joined);
    free(merger->heap);
    free(merger->tokens);
    free(merger);
}

void tokenizer_close(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    vocab_deinit(&tokenizer->vocab);
    split_close(tokenizer->split);
    merger_free(tokenizer->merger);
    free(tokenizer->two_bytes);
    free(tokenizer);
}

static int read_vocab(struct tokenizer *tokenizer, const char *path)
{
    struct text text;
    ERR_TRY(text_open(&text, path));
    int result = vocab_parse(&tokenizer->vocab, path, text.data, text.bytes);
    if (result == 0)
        result = checksum_sha256_hex(tokenizer->hash, text.data, text.bytes);
    text_close(&text);
    return result;
}

int tokenizer_open(struct tokenizer **out, const char *path)
{
    struct tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (tokenizer == NULL)
        return no_memory();
    int result = read_vocab(tokenizer, path);
    if (result == 0)
        result = split_open(&tokenizer->split);
    tokenizer->merger = calloc(1, sizeof(*tokenizer->merger));
    tokenizer->two_bytes = malloc(65536 * sizeof(uint32_t));
    if (result == 0 && (tokenizer->merger == NULL || tokenizer->two_bytes == NULL))
        result = no_memory();
    if (result != 0) {
        tokenizer_close(tokenizer);
        return result;
    }
    for (uint32_t i = 0; i < 65536; i++) {
        unsigned char bytes[2] = {(unsigned char)(i >> 8), (unsigned char)i};
        tokenizer->two_bytes[i] = vocab_find(&tokenizer->vocab, bytes, 2);
    }
    *out = tokenizer;
    return 0;
}

uint32_t tokenizer_vocab(const struct tokenizer *tokenizer)
{
    return tokenizer->vocab.num_tokens + VOCAB_NUM_SPECIAL;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
    return (int32_t)tokenizer->vocab.num_tokens;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
    return (int32_t)tokenizer->vocab.num_tokens + 1;
}

const char *tokenizer_hash(const struct tokenizer *tokenizer)
{
    return tokenizer->hash;
}

/* ---- merging one piece ---- */

static int merger_reserve(struct merger *merger, size_t bytes)
{
    if (bytes <= merger->room)
        return 0;
    if (bytes >= UINT32_MAX / 2)
        return report_error(ERR_INVALID, "put line breaks or spaces into the text",
                            "a piece of %zu bytes is too long to encode", bytes);
    size_t room = bytes + bytes / 2 + 64;
    free(merger->next);
    free(merger->previous);
    free(merger->joined);
    free(merger->heap);
    free(merger->tokens);
    merger->next = malloc(room * sizeof(*merger->next));
    merger->previous = malloc(room * sizeof(*merger->previous));
    merger->joined = malloc(room * sizeof(*merger->joined));
    merger->heap = malloc(3 * room * sizeof(*merger->heap)); /* n first pairs, two per merge */
    merger->tokens = malloc(room * sizeof(*merger->tokens));
    merger->room = room;
    if (merger->next == NULL || merger->previous == NULL || merger->joined == NULL ||
        merger->heap == NULL || merger->tokens == NULL) {
        merger->room = 0;
        return no_memory();
    }
    return 0;
}

static void heap_push(struct merger *merger, uint64_t entry)
{
    uint64_t *heap = merger->heap;
    size_t at = merger->heap_count++;
    while (at > 0 && heap[(at - 1) / 2] > entry) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = entry;
}

static uint64_t heap_pop(struct merger *merger)
{
    uint64_t *heap = merger->heap, top = heap[0], last = heap[--merger->heap_count];
    size_t at = 0, count = merger->heap_count;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* Notes what the part at `part` and its right neighbour make together. */
static void consider(const struct tokenizer *tokenizer, const unsigned char *piece, size_t bytes,
                     uint32_t part)
{
    struct merger *merger = tokenizer->merger;
    uint32_t right = merger->next[part];
    uint32_t rank = VOCAB_NONE;
    if (right < bytes) {
        uint32_t length = merger->next[right] - part;
        rank = length == 2 ? tokenizer->two_bytes[piece[part] << 8 | piece[right]]
                           : vocab_find(&tokenizer->vocab, piece + part, length);
    }
    merger->joined[part] = rank;
    if (rank != VOCAB_NONE)
        heap_push(merger, (uint64_t)rank << 32 | part);
}

static void join(const struct tokenizer *tokenizer, const unsigned char *piece, size_t bytes,
                 uint32_t part)
{
    struct merger *merger = tokenizer->merger;
    uint32_t right = merger->next[part], after = merger->next[right];
    merger->next[part] = after;
    merger->joined[right] = VOCAB_NONE; /* entries of the part that is gone are stale */
    if (after < bytes)
        merger->previous[after] = part;
    consider(tokenizer, piece, bytes, part);
    if (part > 0)
        consider(tokenizer, piece, bytes, merger->previous[part]);
}

/* Fills merger->tokens; returns their number. */
static size_t merge_piece(const struct tokenizer *tokenizer, const unsigned char *piece,
                          size_t bytes)
{
    struct merger *merger = tokenizer->merger;
    merger->heap_count = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        merger->next[i] = i + 1;
        merger->previous[i] = i - 1; /* never read at 0 */
    }
    for (uint32_t i = 0; i < bytes; i++)
        consider(tokenizer, piece, bytes, i);
    while (merger->heap_count > 0) {
        uint64_t entry = heap_pop(merger);
        uint32_t part = (uint32_t)entry;
        if (merger->joined[part] == entry >> 32)
            join(tokenizer, piece, bytes, part);
    }
    size_t count = 0;
    for (uint32_t part = 0; part < bytes; part = merger->next[part])
        merger->tokens[count++] =
            (int32_t)vocab_find(&tokenizer->vocab, piece + part, merger->next[part] - part);
    return count;
}

/* ---- text ---- */

struct stream {
    const struct tokenizer *tokenizer;
    int (*sink)(void *user, const int32_t *tokens, size_t count, size_t text_bytes);
    void *user;
};

static int encode_piece(void *user, const char *piece, size_t bytes)
{
    struct stream *stream = user;
    const struct tokenizer *tokenizer = stream->tokenizer;
    uint32_t whole = vocab_find(&tokenizer->vocab, piece, bytes);
    if (whole != VOCAB_NONE) {
        int32_t token = (int32_t)whole;
        return stream->sink(stream->user, &token, 1, bytes);
    }
    ERR_TRY(merger_reserve(tokenizer->merger, bytes));
    size_t count = merge_piece(tokenizer, (const unsigned char *)piece, bytes);
    return stream->sink(stream->user, tokenizer->merger->tokens, count, bytes);
}

int tokenizer_encode_stream(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                            int (*sink)(void *user, const int32_t *tokens, size_t count,
                                        size_t text_bytes),
                            void *user)
{
    struct stream stream = {tokenizer, sink, user};
    return split_run(tokenizer->split, text, bytes, encode_piece, &stream);
}

struct token_list {
    int32_t *tokens;
    size_t count, room;
};

static int append_tokens(void *user, const int32_t *tokens, size_t count, size_t text_bytes)
{
    struct token_list *list = user;
    (void)text_bytes;
    if (list->count + count > list->room) {
        size_t room = (list->count + count) * 2;
        int32_t *grown = realloc(list->tokens, room * sizeof(*grown));
        if (grown == NULL)
            return no_memory();
        list->tokens = grown;
        list->room = room;
    }
    memcpy(list->tokens + list->count, tokens, count * sizeof(*tokens));
    list->count += count;
    return 0;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     int32_t **out, size_t *out_count)
{
    struct token_list list = {.room = bytes / 4 + 16};
    list.tokens = malloc(list.room * sizeof(*list.tokens));
    if (list.tokens == NULL)
        return no_memory();
    int result = tokenizer_encode_stream(tokenizer, text, bytes, append_tokens, &list);
    if (result != 0) {
        free(list.tokens);
        return result;
    }
    *out = list.tokens;
    *out_count = list.count;
    return 0;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
                     char **out, size_t *out_bytes)
{
    const struct vocab *vocab = &tokenizer->vocab;
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= tokenizer_vocab(tokenizer))
            return report_error(ERR_INVALID, NULL, "%d is not a token of this vocabulary of %u",
                                tokens[i], tokenizer_vocab(tokenizer));
        if ((uint32_t)tokens[i] < vocab->num_tokens)
            bytes += vocab->start[tokens[i] + 1] - vocab->start[tokens[i]];
    }
    char *text = malloc(bytes + 1);
    if (text == NULL)
        return no_memory();
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if ((uint32_t)tokens[i] >= vocab->num_tokens)
            continue;
        size_t start = vocab->start[tokens[i]], length = vocab->start[tokens[i] + 1] - start;
        memcpy(text + at, vocab->bytes + start, length);
        at += length;
    }
    text[at] = '\0';
    *out = text;
    *out_bytes = bytes;
    return 0;
}
