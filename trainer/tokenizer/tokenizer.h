/* tokenizer.h - text to tokens and back, for four kinds of files:
 *
 *   tiktoken's ranks   one line per token: base64 of its bytes, a space, its rank. `tokenizer
 *   train` writes it, with 2 special tokens after the ranks. Llama 3's tokenizer.model, recognized
 *   by its 128,000 ranks, has 256.
 *   tokenizer.json     Hugging Face's: byte-level BPE (Llama 3, GPT-2) and byte-fallback BPE
 *                      (Llama 2), with its added tokens. Other parts are refused by name.
 *   SentencePiece's    BPE, as the tokenizer.model of Llama 2, and unigram. Other parts are
 *                      refused, too.
 *
 *     tokenizer_open(&tokenizer, "tokenizer.model");
 *     encoder_open(&encoder, tokenizer);                  (one per thread)
 *     encoder_run(encoder, text, bytes, 0, &tokens, &num_tokens);
 *
 * A tokenizer does not change after it was opened: threads share it. An encoder belongs to one
 * thread. Errors: ERR_NOT_FOUND, ERR_IO, ERR_CORRUPT (the file; the message names the line or the
 * member), ERR_INVALID (not supported), ERR_MEMORY. */
#ifndef HOLDFAST_TRAINER_TOKENIZER_TOKENIZER_H
#define HOLDFAST_TRAINER_TOKENIZER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Called several times during long work, from the calling thread; may be NULL. */
struct tokenizer_progress {
    void (*report)(void *user, const char *what, uint64_t done, uint64_t total);
    void *user;
};

int tokenizer_open(struct tokenizer **out, const char *path);
/* Finds the tokenizer's file for a path: the path itself, or in a folder of a model repository:
 * tokenizer.model unless it is SentencePiece's, original/tokenizer.model, tokenizer.json,
 * SentencePiece's tokenizer.model. ERR_NOT_FOUND. */
int tokenizer_find(char *out, size_t room, const char *path);
void tokenizer_close(struct tokenizer *tokenizer);
uint32_t tokenizer_vocab(const struct tokenizer *tokenizer); /* special tokens included */
/* The tokens that begin and end a document; -1: the file has none. */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
const char *tokenizer_hash(const struct tokenizer *tokenizer); /* SHA-256 of the file, hex */

/* ---- encoding ---- */

struct encoder;
int encoder_open(struct encoder **out, const struct tokenizer *tokenizer);
void encoder_close(struct encoder *encoder);
/* By default special tokens are text. Added tokens that are not special are always tokens, as in
 * Hugging Face's library. */
#define ENCODE_SPECIAL 1u   /* special tokens in the text are tokens */
#define ENCODE_CONTINUES 2u /* the text continues the previous one: no prefix */
/* The encoder owns the tokens until its next use. Bytes that are not UTF-8 become tokens of single
 * bytes, or the unknown token of a SentencePiece model without those. */
int encoder_run(struct encoder *encoder, const char *text, size_t bytes, uint32_t flags,
                const int32_t **out, size_t *out_count);
/* The first place at or after `from` where a text may be cut: its parts then have the tokens of the
 * whole text. Later parts need ENCODE_CONTINUES. `bytes`: there is none. */
size_t tokenizer_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t from,
                     uint32_t flags);
/* Encodes with a temporary encoder; the caller frees the result. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                     int32_t **out, size_t *out_count);
/* Special tokens decode to nothing; ERR_INVALID for a number that is no token. The caller frees the
 * result. It is terminated, though it may contain zeros. */
int tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
                     char **out, size_t *out_bytes);

/* ---- training ---- */

/* Trains on the texts until the vocabulary (special tokens included) has `vocab` tokens; writes a
 * file of ranks. Deterministic: the result depends only on the texts' pieces, not on their
 * order. */
int tokenizer_train(const char *path, uint32_t vocab, const char *const *text_paths,
                    uint32_t num_texts, const struct tokenizer_progress *progress);

#endif
