/* tokens_file.h - the tokens file: its formats byte by byte, its writer, and its reader by blocks.
 *
 * All integers are little-endian. Format 2:
 *
 *     byte 0        struct tokens_header, 4096 bytes, its own checksum last
 *     byte 4096     num_blocks blocks of tokens_block_bytes(header) each
 *     table_offset  num_blocks checksums of 8 bytes; then the file ends
 *
 * Block i holds the tokens from i * TOKENS_BLOCK on: TOKENS_BLOCK unsigned integers of token_bytes,
 * then one bit per token that says whether a document begins with it. If the header has
 * TOKENS_HAS_MASK, one bit per token follows that says whether it is masked (the loss leaves out
 * its prediction; the model still reads it). Bit j of a plane is bit j % 8 of byte j / 8. Zeros
 * follow the last token. So a start reads only the header, one read gets a sample's tokens,
 * documents and mask, and each read is verified. The checksum of block i is
 *
 *     checksum_block(block, bytes, 0, i) ^ header.hash                            (checksum.h)
 *
 * which differs for a block of another place or of another file.
 *
 * Format 1 is a header of the same first 104 bytes, zeros, its checksum, then the tokens and the
 * end: no checksums of blocks, no bits. tokens_file_read() derives where documents begin (format 1
 * was written by tokenizers whose second last token is begin_of_text) and checks only the range of
 * the tokens; tokens_file_verify() verifies the whole file.
 *
 * The identity of the tokens, which manifests keep, is header.hash in both formats: XXH3-64 of the
 * tokens' bytes in the file's width. A mask affects training, so with a mask the identity is
 * XXH3-64 of { that hash, XXH3-64 of the mask's planes } (two u64).
 *
 * A reader may be used by several threads. A writer belongs to one; it fills a temporary file
 * beside the path, and commit makes the complete file or none. Errors: ERR_NOT_FOUND, ERR_IO,
 * ERR_CORRUPT, ERR_VERSION, ERR_INVALID, ERR_MEMORY. */
#ifndef HOLDFAST_TRAINER_TOKENS_FILE_H
#define HOLDFAST_TRAINER_TOKENS_FILE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENS_MAGIC "HFTOKENS"
#define TOKENS_VERSION 2u
#define TOKENS_HEADER_BYTES 4096u
#define TOKENS_BLOCK 16384u /* tokens of a block, the unit of reads and checks */
#define TOKENS_VOCAB_MAX (1u << 24)
#define TOKENS_HAS_MASK 1u /* bits of flags; a reader refuses unknown bits */

struct tokens_header {
    char magic[8];           /* "HFTOKENS" */
    uint32_t version;        /* 1 or 2 */
    uint32_t header_bytes;   /* 4096 */
    uint32_t token_bytes;    /* 2, or 4 when the vocabulary is above 65,536 */
    uint32_t vocab;          /* of the tokenizer, special tokens included: every token is below */
    uint64_t num_tokens;     /* at least 1 */
    uint64_t hash;           /* identity of the tokens, see above */
    char tokenizer_hash[64]; /* SHA-256 of the tokenizer's file, hex */
    /* Format 1 has zeros from here on; a reader of it fills in bos and eos. */
    uint64_t num_documents; /* bits that are set in the first plane */
    uint64_t num_trained;   /* tokens that are not masked */
    uint64_t num_blocks;    /* num_tokens / TOKENS_BLOCK, rounded up */
    uint64_t table_offset;  /* after the last block */
    uint32_t block_tokens;  /* TOKENS_BLOCK */
    uint32_t flags;         /* TOKENS_HAS_MASK */
    int32_t bos, eos;       /* around every document; -1: the tokenizer has none */
    uint8_t zeros[3936];
    uint64_t header_hash; /* XXH3-64 of all bytes before it */
};
static_assert(sizeof(struct tokens_header) == TOKENS_HEADER_BYTES, "the header is one page");
static_assert(offsetof(struct tokens_header, num_documents) == 104, "format 1 ends here");
static_assert(offsetof(struct tokens_header, zeros) == 152, "no padding");
static_assert(offsetof(struct tokens_header, header_hash) == 4088, "its checksum comes last");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens files are little-endian");

/* Bytes of a block of format 2. */
static inline size_t tokens_block_bytes(const struct tokens_header *header)
{
    size_t planes = header->flags & TOKENS_HAS_MASK ? 2 : 1;
    return (size_t)TOKENS_BLOCK * header->token_bytes + planes * (TOKENS_BLOCK / 8);
}

/* header.hash of tokens and masks with these hashes. */
uint64_t tokens_identity(uint64_t tokens_hash, uint64_t masks_hash, bool has_mask);

/* ---- reading ---- */

/* The tokens of a block in the trainer's width. */
struct tokens_block {
    uint64_t first; /* index in the file of tokens[0] */
    uint32_t count; /* TOKENS_BLOCK; fewer in the last block */
    int32_t tokens[TOKENS_BLOCK];
    uint8_t begins[TOKENS_BLOCK / 8]; /* a document begins here */
    uint8_t masked[TOKENS_BLOCK / 8]; /* masked tokens; zeros without TOKENS_HAS_MASK */
};

static inline bool tokens_bit(const uint8_t *plane, uint32_t index)
{
    return plane[index / 8] >> index % 8 & 1;
}

struct tokens_file;
/* Reads only the header. The hash of format 1 is taken from the header unverified. */
int tokens_file_open(struct tokens_file **out, const char *path);
void tokens_file_close(struct tokens_file *file);
const struct tokens_header *tokens_file_header(const struct tokens_file *file);
/* ERR_CORRUPT: the block is damaged, or the file has shrunk; the message names file and tokens. */
int tokens_file_read(const struct tokens_file *file, uint64_t block, struct tokens_block *out);
/* Reads the whole file and compares its identity. `go_on` (may be NULL) is called from time to
 * time; if it returns false, the call ends with ERR_ABORTED. */
struct tokens_watch {
    bool (*go_on)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *user;
};
int tokens_file_verify(const struct tokens_file *file, const struct tokens_watch *watch);

/* ---- writing ---- */

struct tokens_writer_options {
    const char *path;
    const char *tokenizer_hash; /* 64 hexadecimal digits */
    uint32_t vocab;
    int32_t bos, eos;
    bool has_mask;
};
struct tokens_writer;
int tokens_writer_open(struct tokens_writer **out, const struct tokens_writer_options *options);
/* The next token begins a document. */
void tokens_writer_begin(struct tokens_writer *writer);
/* `is_trained`: false only with has_mask. The first failure is kept and returned by commit. */
void tokens_writer_add(struct tokens_writer *writer, const int32_t *tokens, size_t count,
                       bool is_trained);
/* Makes the file and frees the writer, also after an error. `out_header` may be NULL. ERR_INVALID:
 * no token was added. */
int tokens_writer_commit(struct tokens_writer *writer, struct tokens_header *out_header);
void tokens_writer_abort(struct tokens_writer *writer); /* NULL is allowed */

#endif
