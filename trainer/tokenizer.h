/* tokenizer.h - byte-pair encoding in tiktoken's file format: one line per token, base64 of its
 * bytes, a space, its rank. Text is split by Llama 3's regular expression (PCRE2), then each piece
 * is merged by lowest rank. Special tokens follow the ranks: begin_of_text, end_of_text. The
 * vocabulary counts them.
 *
 *     tokenizer_train("tokenizer.model", 4096, paths, num_paths, NULL);
 *     tokenizer_open(&tokenizer, "tokenizer.model");
 *     tokenizer_encode(tokenizer, text, bytes, &tokens, &num_tokens);
 *
 * A tokenizer belongs to one thread. Errors: ERR_NOT_FOUND, ERR_IO, ERR_CORRUPT (the file; the
 * message names the line), ERR_INVALID, ERR_MEMORY. */
#ifndef HOLDFAST_TOKENIZER_H
#define HOLDFAST_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Called several times during long work, from the working thread; may be NULL. */
struct tokenizer_progress {
    void (*report)(void *user, const char *what, uint64_t done, uint64_t total);
    void *user;
};

int tokenizer_open(struct tokenizer **out, const char *path);
void tokenizer_close(struct tokenizer *tokenizer);
uint32_t tokenizer_vocab(const struct tokenizer *tokenizer); /* special tokens included */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
const char *tokenizer_hash(const struct tokenizer *tokenizer); /* SHA-256 of the file, hex */
/* Ordinary text; no special tokens are recognised. Bytes that are not UTF-8 become tokens of single
 * bytes. The result is to be freed. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     int32_t **out, size_t *out_count);
/* The same, handed out piece by piece: `sink` gets the tokens of the next `text_bytes` of the text
 * and returns 0, or a code that ends the work and is passed on. */
int tokenizer_encode_stream(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                            int (*sink)(void *user, const int32_t *tokens, size_t count,
                                        size_t text_bytes),
                            void *user);
/* Special tokens decode to nothing; ERR_INVALID for a number that is no token. The result is to be
 * freed; it is terminated, though it may hold zeros. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
                     char **out, size_t *out_bytes);
/* Trains on the texts until the vocabulary (special tokens included) has `vocab` tokens; writes the
 * file. Deterministic: it depends on the texts' pieces alone, not on their order. */
int tokenizer_train(const char *path, uint32_t vocab, const char *const *text_paths,
                    uint32_t num_texts, const struct tokenizer_progress *progress);

#endif
