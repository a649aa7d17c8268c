/* vocab.h - the tokens of a byte-pair encoding: byte strings and their ranks, and tiktoken's file
 * format, which the tokenizer writes and ckpt-cli exports with a model.
 *
 * Ranks are dense from 0. The table is mainly for encoding: vocab_find() returns the rank of a
 * string of bytes. A file has one line per token: base64 of its bytes, a space, its rank in
 * decimal. Files lack the special tokens after the last rank, and the expression whose matches are
 * the pieces of a text; both are in this header. No token spans two pieces.
 *
 * Limits: VOCAB_TOKENS_MAX tokens, VOCAB_FILE_BYTES_MAX per file; more are refused. */
#ifndef HOLDFAST_PROTO_MODEL_VOCAB_H
#define HOLDFAST_PROTO_MODEL_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#define VOCAB_TOKENS_MAX (1u << 22)
#define VOCAB_FILE_BYTES_MAX (256u << 20)
#define VOCAB_NONE UINT32_MAX
/* Special tokens have the numbers after the ranks. A file with VOCAB_LLAMA3_RANKS is taken for
 * Llama 3's, which has 256; any other has only the first two. */
#define VOCAB_LLAMA3_RANKS 128000u
#define VOCAB_LLAMA3_SPECIAL 256u
#define VOCAB_NUM_SPECIAL 2u
#define VOCAB_SPECIAL_BYTES 48u /* of a name, with its end */
#define VOCAB_BEGIN "<|begin_of_text|>"
#define VOCAB_END "<|end_of_text|>"
/* From meta-llama/llama3, llama/tokenizer.py (pat_str), which is also tiktoken's cl100k_base except
 * for possessive marks. */
#define VOCAB_PIECES                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct vocab {
    uint32_t num_tokens;
    unsigned char *bytes; /* of all tokens, back to back in order of rank */
    size_t num_bytes, room_bytes;
    size_t *start; /* num_tokens + 1 offsets into bytes */
    uint32_t room_tokens;
    uint32_t *slots;    /* hash table: rank + 1, or 0 for free */
    uint32_t num_slots; /* a power of two */
    size_t longest;     /* bytes of the longest token */
};

void vocab_init(struct vocab *vocab);
void vocab_deinit(struct vocab *vocab);
/* Appends a token, whose rank is the number of tokens before it. ERR_EXISTS: the bytes are a token
 * already. */
int vocab_add(struct vocab *vocab, const void *bytes, size_t num_bytes);
/* Rank of a string of bytes, or VOCAB_NONE. */
uint32_t vocab_find(const struct vocab *vocab, const void *bytes, size_t num_bytes);

uint32_t vocab_num_special(const struct vocab *vocab);
/* Name of special token `index`, whose number is vocab->num_tokens + index. */
void vocab_special_name(char out[VOCAB_SPECIAL_BYTES], const struct vocab *vocab, uint32_t index);

/* RFC 4648, with padding. The number of bytes, or 0 when `text` is not base64 of at least one byte.
 * `out` has room for 3/4. */
size_t vocab_base64_decode(unsigned char *out, const char *text, size_t length);

/* The kind of a tokenizer's file, by its first bytes: tokenizer.json of Hugging Face,
 * SentencePiece's model, or neither, which is parsed as tiktoken's file. */
enum vocab_file { VOCAB_FILE_RANKS, VOCAB_FILE_JSON, VOCAB_FILE_SENTENCEPIECE };
enum vocab_file vocab_file_of(const char *text, size_t bytes);
/* The text of a file of ranks; `name` is for messages. ERR_CORRUPT with the line's number,
 * ERR_MEMORY. */
int vocab_parse(struct vocab *out, const char *name, const char *text, size_t bytes);
/* Writes beside the path, syncs, then renames: the file is complete or does not exist. */
int vocab_write(const struct vocab *vocab, const char *path);

#endif
