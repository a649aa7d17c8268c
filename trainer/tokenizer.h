/* tokenizer.h - byte-pair encoding in tiktoken's file format: one line per token, base64 of its bytes, a space,
 * its rank. Text is split by Llama 3's regular expression (PCRE2), then each piece is merged by lowest rank.
 * Special tokens follow the ranks: begin_of_text, end_of_text. The vocabulary counts them. */
#ifndef HOLDFAST_TOKENIZER_H
#define HOLDFAST_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

struct tokenizer;
int tokenizer_open(struct tokenizer **out, const char *path);
void tokenizer_close(struct tokenizer *tokenizer);
uint32_t tokenizer_vocab(const struct tokenizer *tokenizer); /* special tokens included */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
const char *tokenizer_hash(const struct tokenizer *tokenizer); /* SHA-256 of the file, hex */
/* Ordinary text; no special tokens are recognised. The result is to be freed. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     int32_t **out, size_t *out_count);
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
                     char **out, size_t *out_bytes);
/* Trains on the texts until the vocabulary (special tokens included) has `vocab` tokens; writes the file. Deterministic. */
int tokenizer_train(const char *path, uint32_t vocab, const char *const *text_paths,
                    uint32_t num_texts);

#endif
