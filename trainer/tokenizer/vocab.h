/* vocab.h - the ordinary tokens: byte strings and their ranks, and tiktoken's file format.
 *
 * Ranks are dense from 0. The first use of the table is encoding: find() answers which rank a
 * string of bytes has. A file is one line per token: base64 of its bytes, a space, its rank in
 * decimal.
 *
 * Limits: VOCAB_TOKENS_MAX tokens, VOCAB_FILE_BYTES_MAX per file; both are refused beyond. */
#ifndef HOLDFAST_VOCAB_H
#define HOLDFAST_VOCAB_H

#include "proto/checksum.h"

#include <stddef.h>
#include <stdint.h>

#define VOCAB_TOKENS_MAX (1u << 22)
#define VOCAB_FILE_BYTES_MAX (256u << 20)
#define VOCAB_NONE UINT32_MAX

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
/* Appends a token, whose rank is the number of tokens before. ERR_EXISTS when the bytes are one
 * already. */
int vocab_add(struct vocab *vocab, const void *bytes, size_t num_bytes);
/* Rank of a string of bytes, or VOCAB_NONE. */
uint32_t vocab_find(const struct vocab *vocab, const void *bytes, size_t num_bytes);

/* ERR_NOT_FOUND, ERR_IO, ERR_CORRUPT with the line's number. `hash`: SHA-256 of the file. */
int vocab_read(struct vocab *out, char hash[CHECKSUM_SHA256_HEX], const char *path);
/* Writes beside the path, syncs, then renames: the file is whole or not there. */
int vocab_write(const struct vocab *vocab, const char *path);

#endif
