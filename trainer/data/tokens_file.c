/* tokens_file.c - reading tokens files of both formats by blocks (see tokens_file.h).
 *
 * A file is untrusted: every field of the header is checked against the others and against the
 * file's size before it is used, every block against its checksum, every token against the
 * vocabulary. Reads are preads into the caller's memory. So a reader has no changing state, and a
 * file that shrinks is an error, not a signal. */
#include "trainer/data/tokens_file.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_AGAIN "write it again with `tokenizer tokens`"

struct tokens_file {
    int fd;
    struct tokens_header header;
    char *path; /* for messages */
};

/* ---- opening ---- */

static int bad_file(const char *path, const char *what)
{
    return report_error(ERR_CORRUPT, WRITE_AGAIN, "%s: %s", path, what);
}

static bool fits_format_2(const struct tokens_header *header, uint64_t file_bytes)
{
    uint64_t block_bytes = tokens_block_bytes(header);
    return header->block_tokens == TOKENS_BLOCK && (header->flags & ~TOKENS_HAS_MASK) == 0 &&
           header->num_blocks == (header->num_tokens - 1) / TOKENS_BLOCK + 1 &&
           header->num_blocks <= file_bytes / block_bytes &&
           header->table_offset == TOKENS_HEADER_BYTES + header->num_blocks * block_bytes &&
           header->table_offset + header->num_blocks * sizeof(uint64_t) == file_bytes &&
           header->num_trained <= header->num_tokens &&
           header->num_documents <= header->num_tokens && header->bos >= -1 && header->eos >= -1 &&
           header->bos < (int32_t)header->vocab && header->eos < (int32_t)header->vocab;
}

static bool fits_format_1(const struct tokens_header *header, uint64_t file_bytes)
{
    uint64_t bytes = file_bytes - TOKENS_HEADER_BYTES;
    return bytes % header->token_bytes == 0 && header->num_tokens == bytes / header->token_bytes;
}

static int check_header(const struct tokens_header *header, const char *path, uint64_t file_bytes)
{
    if (memcmp(header->magic, TOKENS_MAGIC, sizeof header->magic) != 0)
        return bad_file(path, "not a tokens file");
    if (header->version < 1 || header->version > TOKENS_VERSION)
        return report_error(ERR_VERSION, WRITE_AGAIN,
                            "%s: tokens file of version %u, this program reads 1 to %u", path,
                            header->version, TOKENS_VERSION);
    if (header->header_hash != checksum_bytes(header, offsetof(struct tokens_header, header_hash)))
        return bad_file(path, "the header is damaged");
    if (header->header_bytes != sizeof *header ||
        (header->token_bytes != 2 && header->token_bytes != 4) || header->vocab == 0 ||
        header->vocab > TOKENS_VOCAB_MAX || (header->token_bytes == 2 && header->vocab > 65536))
        return bad_file(path, "the header's fields are inconsistent");
    if (strspn(header->tokenizer_hash, "0123456789abcdef") < sizeof header->tokenizer_hash)
        return bad_file(path, "the tokenizer's hash is not hexadecimal");
    if (header->num_tokens == 0)
        return bad_file(path, "no tokens");
    bool fits = header->version == 1 ? fits_format_1(header, file_bytes)
                                     : fits_format_2(header, file_bytes);
    return fits ? 0 : bad_file(path, "the file's size does not fit the number of tokens");
}

/* Fills in values that format 1 lacks: its writers' special tokens were the last two of the
 * vocabulary. */
static void complete_format_1(struct tokens_header *header)
{
    header->num_documents = 0;
    header->num_trained = header->num_tokens;
    header->num_blocks = (header->num_tokens - 1) / TOKENS_BLOCK + 1;
    header->table_offset = 0;
    header->block_tokens = TOKENS_BLOCK;
    header->flags = 0;
    header->bos = header->vocab >= 2 ? (int32_t)header->vocab - 2 : -1;
    header->eos = header->vocab >= 2 ? (int32_t)header->vocab - 1 : -1;
}

static int read_all(int fd, void *out, size_t bytes, uint64_t at, const char *path)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return report_errno(ERR_IO, "could not read the tokens file", path);
        if (got == 0)
            return report_error(ERR_CORRUPT, WRITE_AGAIN, "%s has shrunk while it was in use",
                                path);
        done += (size_t)got;
    }
    return 0;
}

static int read_header(struct tokens_file *file)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0)
        return report_errno(ERR_IO, "could not read the attributes of the tokens file", file->path);
    if (!S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof file->header)
        return bad_file(file->path, "not a tokens file");
    ERR_TRY(read_all(file->fd, &file->header, sizeof file->header, 0, file->path));
    ERR_TRY(check_header(&file->header, file->path, (uint64_t)status.st_size));
    if (file->header.version == 1)
        complete_format_1(&file->header);
    return 0;
}

int tokens_file_open(struct tokens_file **out, const char *path)
{
    struct tokens_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to open the tokens file");
    file->path = strdup(path);
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = 0;
    if (file->path == NULL)
        result = report_error(ERR_MEMORY, NULL, "no memory to open the tokens file");
    else if (file->fd < 0 && errno == ENOENT)
        result = report_error(ERR_NOT_FOUND, "make one with `tokenizer tokens`",
                              "there is no tokens file \"%s\"", path);
    else if (file->fd < 0)
        result = report_errno(ERR_IO, "could not open the tokens file", path);
    if (result == 0)
        result = read_header(file);
    if (result != 0) {
        tokens_file_close(file);
        return result;
    }
    *out = file;
    return 0;
}

void tokens_file_close(struct tokens_file *file)
{
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    free(file);
}

const struct tokens_header *tokens_file_header(const struct tokens_file *file)
{
    return &file->header;
}

/* ---- blocks ---- */

/* Widens `count` tokens of the file's width. Returns false if one is not below the vocabulary. */
static bool widen_tokens(int32_t *out, const void *tokens, const struct tokens_header *header,
                         uint32_t count)
{
    const uint16_t *narrow = tokens;
    const uint32_t *wide = tokens;
    uint32_t beyond = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = header->token_bytes == 2 ? narrow[i] : wide[i];
        beyond |= token >= header->vocab;
        out[i] = (int32_t)token;
    }
    return !beyond;
}

static int bad_block(const struct tokens_file *file, const struct tokens_block *block)
{
    const struct tokens_header *header = &file->header;
    uint64_t index = block->first / TOKENS_BLOCK;
    uint64_t bytes = header->version == 1 ? (uint64_t)TOKENS_BLOCK * header->token_bytes
                                          : tokens_block_bytes(header);
    return report_error(ERR_CORRUPT, WRITE_AGAIN,
                        "%s: block %llu (tokens %llu to %llu, from byte %llu on) is damaged",
                        file->path, (unsigned long long)index, (unsigned long long)block->first,
                        (unsigned long long)(block->first + block->count - 1),
                        (unsigned long long)(TOKENS_HEADER_BYTES + index * bytes));
}

/* `stored`: the block as stored in the file, in memory of TOKENS_BLOCK tokens and two planes. */
static int read_stored(const struct tokens_file *file, uint64_t index, void *stored,
                       struct tokens_block *out)
{
    const struct tokens_header *header = &file->header;
    uint64_t left = header->num_tokens - index * TOKENS_BLOCK, checksum;
    size_t bytes = tokens_block_bytes(header);
    out->first = index * TOKENS_BLOCK;
    out->count = left < TOKENS_BLOCK ? (uint32_t)left : TOKENS_BLOCK;
    if (header->version == 1)
        return read_all(file->fd, stored, (size_t)out->count * header->token_bytes,
                        TOKENS_HEADER_BYTES + out->first * header->token_bytes, file->path);
    ERR_TRY(read_all(file->fd, stored, bytes, TOKENS_HEADER_BYTES + index * bytes, file->path));
    ERR_TRY(read_all(file->fd, &checksum, sizeof checksum,
                     header->table_offset + index * sizeof checksum, file->path));
    if ((checksum_block(stored, bytes, 0, index) ^ header->hash) != checksum)
        return bad_block(file, out);
    return 0;
}

static void unpack_planes(const struct tokens_header *header, const uint8_t *planes,
                          struct tokens_block *out)
{
    memset(out->begins, 0, sizeof out->begins);
    memset(out->masked, 0, sizeof out->masked);
    if (header->version == 1) {
        for (uint32_t i = 0; i < out->count; i++)
            if (out->tokens[i] == header->bos)
                out->begins[i / 8] |= (uint8_t)(1u << i % 8);
        return;
    }
    memcpy(out->begins, planes, sizeof out->begins);
    if (header->flags & TOKENS_HAS_MASK)
        memcpy(out->masked, planes + sizeof out->begins, sizeof out->masked);
}

static int read_block(const struct tokens_file *file, uint64_t index, void *stored,
                      struct tokens_block *out)
{
    const struct tokens_header *header = &file->header;
    ERR_TRY(read_stored(file, index, stored, out));
    if (!widen_tokens(out->tokens, stored, header, out->count))
        return bad_block(file, out);
    unpack_planes(header, (uint8_t *)stored + (size_t)TOKENS_BLOCK * header->token_bytes, out);
    return 0;
}

static void *new_stored(void)
{
    void *stored = malloc(TOKENS_BLOCK * sizeof(uint32_t) + 2 * (TOKENS_BLOCK / 8));
    if (stored == NULL)
        report_error(ERR_MEMORY, NULL, "no memory to read a block of tokens");
    return stored;
}

int tokens_file_read(const struct tokens_file *file, uint64_t block, struct tokens_block *out)
{
    CHECK(block < file->header.num_blocks);
    void *stored = new_stored();
    if (stored == NULL)
        return ERR_MEMORY;
    int result = read_block(file, block, stored, out);
    free(stored);
    return result;
}

/* ---- the whole file ---- */

struct proof {
    struct checksum_stream *tokens, *masks;
    struct tokens_block *block;
    void *stored;
};

static int prove_blocks(const struct tokens_file *file, struct proof *proof,
                        const struct tokens_watch *watch)
{
    const struct tokens_header *header = &file->header;
    uint64_t total = header->num_tokens * header->token_bytes;
    for (uint64_t i = 0; i < header->num_blocks; i++) {
        ERR_TRY(read_block(file, i, proof->stored, proof->block));
        checksum_stream_add(proof->tokens, proof->stored,
                            (size_t)proof->block->count * header->token_bytes);
        checksum_stream_add(proof->masks, proof->block->masked, sizeof proof->block->masked);
        if (watch != NULL && watch->go_on != NULL &&
            !watch->go_on(watch->user, i * TOKENS_BLOCK * header->token_bytes, total))
            return report_error(ERR_ABORTED, NULL, "the check of %s was stopped", file->path);
    }
    return 0;
}

int tokens_file_verify(const struct tokens_file *file, const struct tokens_watch *watch)
{
    struct proof proof = {checksum_stream_begin(), checksum_stream_begin(),
                          malloc(sizeof *proof.block), new_stored()};
    int result = 0;
    if (proof.tokens == NULL || proof.masks == NULL || proof.block == NULL || proof.stored == NULL)
        result = report_error(ERR_MEMORY, NULL, "no memory to check %s", file->path);
    if (result == 0)
        result = prove_blocks(file, &proof, watch);
    if (result == 0) {
        uint64_t identity =
            tokens_identity(checksum_stream_value(proof.tokens), checksum_stream_value(proof.masks),
                            (file->header.flags & TOKENS_HAS_MASK) != 0);
        if (identity != file->header.hash)
            result = bad_file(file->path, "the tokens are damaged (hash differs)");
    }
    checksum_stream_end(proof.tokens);
    checksum_stream_end(proof.masks);
    free(proof.block);
    free(proof.stored);
    return result;
}
