/* text.h - text files as memory, and the pieces inside which byte pairs may merge.
 *
 * A piece is one match of one of the regular expressions below. Bytes that are not UTF-8 are pieces
 * of one byte each, so pieces cover any input in order, without a gap.
 *
 *     struct text text;
 *     text_open(&text, "book.txt");
 *     split_open(&split, SPLIT_LLAMA3);
 *     split_run(split, text.data, text.bytes, on_piece, user);
 *
 * A splitter belongs to one thread. Errors: ERR_NOT_FOUND and ERR_IO for files, ERR_MEMORY;
 * ERR_INTERNAL when PCRE2 gives up. */
#ifndef HOLDFAST_TEXT_H
#define HOLDFAST_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
    const char *data; /* not terminated */
    size_t bytes;
    bool mapped; /* else allocated */
};
/* A regular file is mapped; anything else (a pipe, "-" for standard input) is read to its end. */
int text_open(struct text *out, const char *path);
void text_close(struct text *text);

enum split_expression {
    SPLIT_LLAMA3,
    SPLIT_GPT2,
    SPLIT_QWEN2,
    SPLIT_NUM_EXPRESSIONS,
    SPLIT_GRAPHEMES = SPLIT_NUM_EXPRESSIONS /* Unicode's extended grapheme clusters */
};
/* In the syntax of Oniguruma, tiktoken and others; NULL after the last expression. */
const char *split_expression_text(enum split_expression expression);

struct split;
int split_open(struct split **out, enum split_expression expression);
void split_close(struct split *split);
/* `on_piece` returns 0, or a code that ends the run and is passed on. `piece` points into `text`.
 */
int split_run(struct split *split, const char *text, size_t bytes,
              int (*on_piece)(void *user, const char *piece, size_t piece_bytes), void *user);

/* Length of the UTF-8 character at `text`, or 0: RFC 3629, without surrogates and overlong forms.
 */
size_t text_utf8_length(const char *text, size_t bytes);
/* Is this one character (of `length` bytes of valid UTF-8) Unicode's White_Space? */
bool text_is_space(const char *character, size_t length);

#endif
