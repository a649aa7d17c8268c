/* write.c - tokens files of format 1 from texts: see data.h.
 *
 * The file is struct tokens_header (4096 bytes, its own checksum last), then the tokens as
 * little-endian unsigned integers of 2 bytes, or 4 when the vocabulary needs it. A writer fills a
 * temporary file, hashes what it wrote, writes the header, syncs and renames: a tokens file is
 * whole or not there. */
#include "proto/checksum.h"
#include "proto/report.h"
#include "trainer/data/data.h"
#include "trainer/data/tokens_file.h"
#include "trainer/tokenizer.h"
#include "trainer/tokenizer/text.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct writer {
    const char *path; /* of the temporary file */
    FILE *file;
    uint32_t token_bytes;
    uint64_t num_tokens;
    const struct tokenizer_progress *progress;
    uint64_t bytes_done, bytes_total, bytes_reported;
};

/* Errors of the stream are looked at once, in finish_file(). */
static void put_token(struct writer *writer, int32_t token)
{
    uint32_t wide = (uint32_t)token;
    uint16_t narrow = (uint16_t)token;
    fwrite(writer->token_bytes == 2 ? (void *)&narrow : (void *)&wide, writer->token_bytes, 1,
           writer->file);
    writer->num_tokens++;
}

static int put_tokens(struct writer *writer, const int32_t *tokens, size_t count, size_t text_bytes)
{
    for (size_t i = 0; i < count; i++)
        put_token(writer, tokens[i]);
    writer->bytes_done += text_bytes;
    if (writer->progress != NULL && writer->bytes_done - writer->bytes_reported >= 1u << 20) {
        writer->bytes_reported = writer->bytes_done;
        writer->progress->report(writer->progress->user, "encoding", writer->bytes_done,
                                 writer->bytes_total);
    }
    return ferror(writer->file) ? report_errno(ERR_IO, "could not write the tokens", writer->path)
                                : 0;
}

static int write_texts(struct writer *writer, const struct tokenizer *tokenizer,
                       const char *const *paths, uint32_t num_paths)
{
    for (uint32_t i = 0; i < num_paths; i++) {
        struct text text;
        int32_t *tokens = NULL;
        size_t count = 0;
        ERR_TRY(text_open(&text, paths[i]));
        int result = tokenizer_encode(tokenizer, text.data, text.bytes, &tokens, &count);
        put_token(writer, tokenizer_bos(tokenizer));
        if (result == 0)
            result = put_tokens(writer, tokens, count, text.bytes);
        put_token(writer, tokenizer_eos(tokenizer));
        free(tokens);
        text_close(&text);
        ERR_TRY(result);
    }
    return 0;
}

/* Hashes what is in the file and writes the header over the zeros at its start. */
static int finish_file(struct writer *writer, const struct tokenizer *tokenizer)
{
    size_t bytes = (size_t)writer->num_tokens * writer->token_bytes;
    struct tokens_header header = {.version = 1,
                                   .header_bytes = sizeof(header),
                                   .token_bytes = writer->token_bytes,
                                   .vocab = tokenizer_vocab(tokenizer),
                                   .num_tokens = writer->num_tokens};
    memcpy(header.magic, TOKENS_MAGIC, sizeof(header.magic));
    memcpy(header.tokenizer_hash, tokenizer_hash(tokenizer), sizeof(header.tokenizer_hash));
    if (fflush(writer->file) != 0 || ferror(writer->file))
        return report_errno(ERR_IO, "could not write the tokens", writer->path);
    void *map = mmap(NULL, sizeof(header) + bytes, PROT_READ, MAP_SHARED, fileno(writer->file), 0);
    if (map == MAP_FAILED)
        return report_errno(ERR_IO, "could not map the tokens file", writer->path);
    header.hash = checksum_bytes((const char *)map + sizeof(header), bytes);
    munmap(map, sizeof(header) + bytes);
    header.header_hash = checksum_bytes(&header, offsetof(struct tokens_header, header_hash));
    if (pwrite(fileno(writer->file), &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
        fsync(fileno(writer->file)) != 0)
        return report_errno(ERR_IO, "could not write the tokens", writer->path);
    return 0;
}

static uint64_t total_bytes(const char *const *paths, uint32_t num_paths)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < num_paths; i++) {
        struct stat stat_text;
        if (stat(paths[i], &stat_text) == 0 && S_ISREG(stat_text.st_mode))
            total += (uint64_t)stat_text.st_size;
    }
    return total;
}

int data_write_tokens(const char *path, const struct tokenizer *tokenizer,
                      const char *const *text_paths, uint32_t num_texts,
                      const struct tokenizer_progress *progress, uint64_t *out_tokens)
{
    static const char zeros[sizeof(struct tokens_header)];
    char temporary[PATH_MAX];
    int length = snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof(temporary))
        return report_error(ERR_INVALID, NULL, "the path is too long: %s", path);
    struct writer writer = {.path = temporary,
                            .file = fopen(temporary, "w+xe"),
                            .token_bytes = tokenizer_vocab(tokenizer) <= 65536 ? 2 : 4,
                            .progress = progress,
                            .bytes_total = total_bytes(text_paths, num_texts)};
    if (writer.file == NULL)
        return report_error(ERR_INVALID, "make its folder, or name another file",
                            "could not create %s: %s", temporary, strerror(errno));
    fwrite(zeros, sizeof(zeros), 1, writer.file);
    int result = write_texts(&writer, tokenizer, text_paths, num_texts);
    if (result == 0)
        result = finish_file(&writer, tokenizer);
    if (fclose(writer.file) != 0 && result == 0)
        result = report_errno(ERR_IO, "could not write the tokens", temporary);
    if (result == 0 && rename(temporary, path) != 0)
        result = report_errno(ERR_IO, "could not rename the tokens file", path);
    if (result != 0)
        unlink(temporary);
    else
        *out_tokens = writer.num_tokens;
    return result;
}
