/* tokens_writer.c - writes tokens files of format 2 (see tokens_file.h).
 *
 * Tokens are collected in one block, which is written when it is full; its checksum is kept for the
 * table. Checksums include the identity, which is known at the end, so they are kept in memory: 8
 * bytes per block, 128 MB for a terabyte. Commit pads the last block, writes the table, then the
 * header over the zeros at the start, syncs and renames. */
#include "trainer/data/tokens_file.h"

#include "proto/base/array.h"
#include "proto/base/checksum.h"
#include "proto/base/report.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tokens_writer {
    char path[PATH_MAX], temporary[PATH_MAX + 32];
    FILE *file;
    int failure;
    struct report_text failure_text;
    struct tokens_header header;
    struct checksum_stream *tokens, *masks;
    uint64_t *table;
    uint32_t table_room;
    uint8_t *block;      /* as written to the file */
    uint32_t block_used; /* tokens */
    bool begins;         /* the next token begins a document */
};

static int no_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory to write a tokens file");
}

/* ---- opening and ending ---- */

static void free_writer(struct tokens_writer *writer)
{
    checksum_stream_end(writer->tokens);
    checksum_stream_end(writer->masks);
    free(writer->table);
    free(writer->block);
    free(writer);
}

static int create_file(struct tokens_writer *writer)
{
    static const char zeros[TOKENS_HEADER_BYTES];
    writer->file = fopen(writer->temporary, "w+xe");
    if (writer->file == NULL)
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not create %s: %s", writer->temporary, strerror(errno));
    fwrite(zeros, sizeof zeros, 1, writer->file); /* commit reports its error */
    return 0;
}

int tokens_writer_open(struct tokens_writer **out, const struct tokens_writer_options *options)
{
    CHECK(strlen(options->tokenizer_hash) == 64);
    CHECK(options->vocab > 0 && options->vocab <= TOKENS_VOCAB_MAX);
    if (strlen(options->path) >= PATH_MAX)
        return report_error(ERR_INVALID, NULL, "the path is too long: %s", options->path);
    struct tokens_writer *writer = calloc(1, sizeof *writer);
    if (writer == NULL)
        return no_memory();
    strcpy(writer->path, options->path);
    snprintf(writer->temporary, sizeof writer->temporary, "%s.%ld.tmp", options->path,
             (long)getpid());
    writer->header = (struct tokens_header){.version = TOKENS_VERSION,
                                            .header_bytes = TOKENS_HEADER_BYTES,
                                            .token_bytes = options->vocab <= 65536 ? 2 : 4,
                                            .vocab = options->vocab,
                                            .block_tokens = TOKENS_BLOCK,
                                            .flags = options->has_mask ? TOKENS_HAS_MASK : 0,
                                            .bos = options->bos,
                                            .eos = options->eos};
    memcpy(writer->header.magic, TOKENS_MAGIC, sizeof writer->header.magic);
    memcpy(writer->header.tokenizer_hash, options->tokenizer_hash, 64);
    writer->tokens = checksum_stream_begin();
    writer->masks = checksum_stream_begin();
    writer->block = calloc(1, tokens_block_bytes(&writer->header));
    int result = writer->tokens == NULL || writer->masks == NULL || writer->block == NULL
                     ? no_memory()
                     : create_file(writer);
    if (result != 0) {
        free_writer(writer);
        return result;
    }
    *out = writer;
    return 0;
}

void tokens_writer_abort(struct tokens_writer *writer)
{
    if (writer == NULL)
        return;
    fclose(writer->file);
    unlink(writer->temporary);
    free_writer(writer);
}

/* ---- tokens ---- */

static int put_block(struct tokens_writer *writer)
{
    struct tokens_header *header = &writer->header;
    size_t bytes = tokens_block_bytes(header);
    size_t planes_at = (size_t)TOKENS_BLOCK * header->token_bytes;
    if (array_reserve(&writer->table, &writer->table_room, header->num_blocks,
                      sizeof *writer->table) != 0)
        return no_memory();
    checksum_stream_add(writer->tokens, writer->block,
                        (size_t)writer->block_used * header->token_bytes);
    if (header->flags & TOKENS_HAS_MASK)
        checksum_stream_add(writer->masks, writer->block + planes_at + TOKENS_BLOCK / 8,
                            TOKENS_BLOCK / 8);
    writer->table[header->num_blocks] = checksum_block(writer->block, bytes, 0, header->num_blocks);
    header->num_blocks++;
    if (fwrite(writer->block, bytes, 1, writer->file) != 1)
        return report_errno(ERR_IO, "could not write the tokens", writer->temporary);
    memset(writer->block, 0, bytes);
    writer->block_used = 0;
    return 0;
}

static void set_bit(uint8_t *plane, uint32_t index)
{
    plane[index / 8] |= (uint8_t)(1u << index % 8);
}

static void put_token(struct tokens_writer *writer, int32_t token, bool is_trained)
{
    struct tokens_header *header = &writer->header;
    uint32_t at = writer->block_used++;
    uint8_t *planes = writer->block + (size_t)TOKENS_BLOCK * header->token_bytes;
    uint32_t wide = (uint32_t)token;
    memcpy(writer->block + (size_t)at * header->token_bytes, &wide, header->token_bytes);
    if (writer->begins) {
        set_bit(planes, at);
        header->num_documents++;
    }
    if (!is_trained)
        set_bit(planes + TOKENS_BLOCK / 8, at);
    writer->begins = false;
    header->num_tokens++;
    header->num_trained += is_trained;
}

void tokens_writer_begin(struct tokens_writer *writer)
{
    writer->begins = true;
}

static void keep_failure(struct tokens_writer *writer, int result)
{
    if (result == 0 || writer->failure != 0)
        return;
    writer->failure = result;
    report_keep(&writer->failure_text);
}

void tokens_writer_add(struct tokens_writer *writer, const int32_t *tokens, size_t count,
                       bool is_trained)
{
    CHECK(is_trained || (writer->header.flags & TOKENS_HAS_MASK) != 0);
    for (size_t i = 0; i < count && writer->failure == 0; i++) {
        CHECK(tokens[i] >= 0 && (uint32_t)tokens[i] < writer->header.vocab);
        put_token(writer, tokens[i], is_trained);
        if (writer->block_used == TOKENS_BLOCK)
            keep_failure(writer, put_block(writer));
    }
}

/* ---- commit ---- */

uint64_t tokens_identity(uint64_t tokens_hash, uint64_t masks_hash, bool has_mask)
{
    const uint64_t both[2] = {tokens_hash, masks_hash};
    return has_mask ? checksum_bytes(both, sizeof both) : tokens_hash;
}

static int finish_file(struct tokens_writer *writer)
{
    struct tokens_header *header = &writer->header;
    if (header->num_tokens == 0)
        return report_error(ERR_INVALID, NULL, "%s: there is no text to make tokens of",
                            writer->path);
    if (writer->block_used > 0)
        ERR_TRY(put_block(writer));
    header->hash =
        tokens_identity(checksum_stream_value(writer->tokens), checksum_stream_value(writer->masks),
                        (header->flags & TOKENS_HAS_MASK) != 0);
    header->table_offset = TOKENS_HEADER_BYTES + header->num_blocks * tokens_block_bytes(header);
    for (uint64_t i = 0; i < header->num_blocks; i++)
        writer->table[i] ^= header->hash;
    fwrite(writer->table, sizeof *writer->table, header->num_blocks, writer->file);
    header->header_hash = checksum_bytes(header, offsetof(struct tokens_header, header_hash));
    if (fflush(writer->file) != 0 || ferror(writer->file) || fseek(writer->file, 0, SEEK_SET) != 0)
        return report_errno(ERR_IO, "could not write the tokens", writer->temporary);
    fwrite(header, sizeof *header, 1, writer->file);
    if (fflush(writer->file) != 0 || ferror(writer->file) || fsync(fileno(writer->file)) != 0)
        return report_errno(ERR_IO, "could not write the tokens", writer->temporary);
    return 0;
}

int tokens_writer_commit(struct tokens_writer *writer, struct tokens_header *out_header)
{
    int result = writer->failure;
    if (result != 0)
        report_restore(&writer->failure_text, result);
    else
        result = finish_file(writer);
    if (fclose(writer->file) != 0 && result == 0)
        result = report_errno(ERR_IO, "could not write the tokens", writer->temporary);
    if (result == 0 && rename(writer->temporary, writer->path) != 0)
        result = report_errno(ERR_IO, "could not rename the tokens file", writer->path);
    if (result != 0)
        unlink(writer->temporary);
    else if (out_header != NULL)
        *out_header = writer->header;
    free_writer(writer);
    return result;
}
