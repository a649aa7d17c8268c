/* data.c - tokens files: writing, checking, and reading samples in a keyed random order.
 *
 * The file is struct header (4096 bytes, its own checksum last), then the tokens as little-endian
 * unsigned integers of 2 bytes, or 4 when the vocabulary needs it. A writer fills a temporary file,
 * hashes what it wrote, writes the header, syncs and renames: a tokens file is whole or not there.
 * data_open() checks every field and the hash of all tokens, so data_read() may trust the file as
 * far as it does not change; it reads with pread, so a file that shrinks is an error, not a signal.
 *
 * The order of an epoch is a permutation of 0..n-1 that needs no memory: a Feistel network on the
 * smallest even number of bits that holds n, whose round function is Philox keyed with (seed,
 * epoch); results of n or more are put through again until one is below n (cycle walking: at most
 * four times on average). A Feistel network is a bijection whatever its round function, and walking
 * the cycles of a bijection of a larger set gives a bijection of the smaller. Sample index i
 * belongs to epoch i / n.
 *
 * A struct data belongs to one thread; it keeps one sample's worth of memory. */
#include "trainer/data/data.h"

#include "proto/checksum.h"
#include "proto/report.h"
#include "trainer/data/random.h"
#include "trainer/tokenizer.h"
#include "trainer/tokenizer/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens files are little-endian");

#define DATA_MAGIC "HFTOKENS"
#define DATA_VERSION 1
#define DATA_VOCAB_MAX (1u << 24)
#define FEISTEL_ROUNDS 6

struct header {
    char magic[8];           /* "HFTOKENS" */
    uint32_t version;        /* 1 */
    uint32_t header_bytes;   /* 4096 */
    uint32_t token_bytes;    /* 2 or 4 */
    uint32_t vocab;          /* every token is below */
    uint64_t num_tokens;     /* the file has header_bytes + num_tokens * token_bytes bytes */
    uint64_t hash;           /* XXH3-64 of the tokens' bytes */
    char tokenizer_hash[64]; /* SHA-256 of the tokenizer file, hex */
    uint8_t zeros[3984];
    uint64_t header_hash; /* XXH3-64 of all before it */
};
static_assert(sizeof(struct header) == 4096, "the header is one page");
static_assert(offsetof(struct header, header_hash) == 4088, "its checksum comes last");

struct data {
    struct data_info info;
    int fd;
    uint32_t token_bytes;
    uint32_t half_bits; /* of the Feistel network */
    struct random_key key;
    void *sample; /* seq_len + 1 tokens as they lie in the file */
};

/* ---- opening ---- */

static int bad_file(const char *path, const char *what)
{
    return report_error(ERR_CORRUPT, "write it again with `tokenizer tokens`", "%s: %s", path,
                        what);
}

static int check_header(const struct header *header, const char *path, uint64_t file_bytes)
{
    if (memcmp(header->magic, DATA_MAGIC, sizeof(header->magic)) != 0)
        return bad_file(path, "not a tokens file");
    if (header->version != DATA_VERSION)
        return report_error(ERR_VERSION, "write it again with `tokenizer tokens`",
                            "%s: tokens file of version %u, this program reads %u", path,
                            header->version, DATA_VERSION);
    if (header->header_hash != checksum_bytes(header, offsetof(struct header, header_hash)))
        return bad_file(path, "the header is damaged");
    if (header->header_bytes != sizeof(*header) ||
        (header->token_bytes != 2 && header->token_bytes != 4) || header->vocab == 0 ||
        header->vocab > DATA_VOCAB_MAX || (header->token_bytes == 2 && header->vocab > 65536))
        return bad_file(path, "the header's fields do not fit");
    if (strspn(header->tokenizer_hash, "0123456789abcdef") < sizeof(header->tokenizer_hash))
        return bad_file(path, "the tokenizer's hash is not hexadecimal");
    uint64_t tokens_bytes = file_bytes - sizeof(*header);
    if (tokens_bytes % header->token_bytes != 0 ||
        header->num_tokens != tokens_bytes / header->token_bytes)
        return bad_file(path, "the file's size does not fit the number of tokens");
    return 0;
}

static int check_tokens(const struct header *header, const char *path, int fd)
{
    size_t bytes = (size_t)(header->num_tokens * header->token_bytes);
    if (bytes == 0)
        return bad_file(path, "no tokens");
    void *map = mmap(NULL, sizeof(*header) + bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return report_errno(ERR_IO, "could not map the tokens file", path);
    madvise(map, sizeof(*header) + bytes, MADV_SEQUENTIAL);
    uint64_t hash = checksum_bytes((const char *)map + sizeof(*header), bytes);
    munmap(map, sizeof(*header) + bytes);
    return hash == header->hash ? 0 : bad_file(path, "the tokens are damaged (hash differs)");
}

static uint32_t half_bits_for(uint64_t count)
{
    uint32_t half_bits = 0;
    while (half_bits < 31 && UINT64_C(1) << (2 * half_bits) < count)
        half_bits++;
    return half_bits;
}

static int check_file(struct header *header, const char *path, int fd)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return report_errno(ERR_IO, "could not look at the tokens file", path);
    if (!S_ISREG(stat.st_mode) || stat.st_size < (off_t)sizeof(*header))
        return bad_file(path, "not a tokens file");
    ssize_t got = pread(fd, header, sizeof(*header), 0);
    if (got != (ssize_t)sizeof(*header))
        return report_errno(ERR_IO, "could not read the tokens file", path);
    ERR_TRY(check_header(header, path, (uint64_t)stat.st_size));
    return check_tokens(header, path, fd);
}

static int fill_info(struct data *data, const struct header *header, const char *path,
                     uint32_t seq_len)
{
    data->token_bytes = header->token_bytes;
    data->info.num_tokens = header->num_tokens;
    data->info.vocab = header->vocab;
    data->info.seq_len = seq_len;
    data->info.num_samples = (header->num_tokens - 1) / seq_len;
    snprintf(data->info.hash, sizeof(data->info.hash), "%016llx", (unsigned long long)header->hash);
    memcpy(data->info.tokenizer_hash, header->tokenizer_hash, 64);
    if (data->info.num_samples == 0)
        return report_error(ERR_INVALID, "use more text or a smaller training.seq_len",
                            "%s: %llu tokens make no sample of training.seq_len %u + 1", path,
                            (unsigned long long)header->num_tokens, seq_len);
    data->half_bits = half_bits_for(data->info.num_samples);
    if (data->info.num_samples > UINT64_C(1) << (2 * data->half_bits))
        return report_error(ERR_INVALID, NULL, "%s: too many samples", path);
    data->sample = malloc(((size_t)seq_len + 1) * header->token_bytes);
    return data->sample != NULL ? 0
                                : report_error(ERR_MEMORY, NULL, "no memory to read the tokens");
}

int data_open(struct data **out, const char *path, uint32_t seq_len, uint64_t seed)
{
    struct header header;
    CHECK(seq_len > 0);
    struct data *data = calloc(1, sizeof(*data));
    if (data == NULL)
        return report_error(ERR_MEMORY, NULL, "no memory to open the tokens file");
    data->key = random_key(seed, "data/order");
    data->fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = 0;
    if (data->fd < 0 && errno == ENOENT)
        result = report_error(ERR_NOT_FOUND, "make one with `tokenizer tokens`",
                              "there is no tokens file \"%s\"", path);
    else if (data->fd < 0)
        result = report_errno(ERR_IO, "could not open the tokens file", path);
    if (result == 0)
        result = check_file(&header, path, data->fd);
    if (result == 0)
        result = fill_info(data, &header, path, seq_len);
    if (result != 0) {
        data_close(data);
        return result;
    }
    *out = data;
    return 0;
}

void data_close(struct data *data)
{
    if (data == NULL)
        return;
    if (data->fd >= 0)
        close(data->fd);
    free(data->sample);
    free(data);
}

const struct data_info *data_info(const struct data *data)
{
    return &data->info;
}

/* ---- reading ---- */

static uint64_t feistel(const struct data *data, uint64_t epoch, uint64_t value)
{
    uint64_t mask = (UINT64_C(1) << data->half_bits) - 1;
    uint64_t left = value >> data->half_bits, right = value & mask;
    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        uint32_t words[4];
        random_philox(words, epoch, right << 8 | round, data->key);
        uint64_t next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return left << data->half_bits | right;
}

uint64_t data_permute(const struct data *data, uint64_t index)
{
    uint64_t count = data->info.num_samples;
    uint64_t epoch = index / count, value = index % count;
    do {
        value = feistel(data, epoch, value);
    } while (value >= count);
    return value;
}

static int read_sample(struct data *data, uint64_t sample)
{
    uint64_t first = sample * data->info.seq_len;
    size_t bytes = ((size_t)data->info.seq_len + 1) * data->token_bytes, done = 0;
    off_t at = (off_t)(sizeof(struct header) + first * data->token_bytes);
    while (done < bytes) {
        ssize_t got = pread(data->fd, (char *)data->sample + done, bytes - done, at + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return report_errno(ERR_IO, "could not read the tokens file", NULL);
        if (got == 0)
            return report_error(ERR_CORRUPT, "write it again with `tokenizer tokens`",
                                "the tokens file has shrunk while it was in use");
        done += (size_t)got;
    }
    return 0;
}

int data_read(struct data *data, uint64_t first, uint32_t count, int32_t *inputs, int32_t *targets)
{
    uint32_t seq_len = data->info.seq_len;
    const uint16_t *narrow = data->sample;
    const uint32_t *wide = data->sample;
    for (uint32_t i = 0; i < count; i++) {
        ERR_TRY(read_sample(data, data_permute(data, first + i)));
        for (uint32_t j = 0; j <= seq_len; j++) {
            uint32_t token = data->token_bytes == 2 ? narrow[j] : wide[j];
            if (token >= data->info.vocab)
                return report_error(ERR_CORRUPT, "write it again with `tokenizer tokens`",
                                    "the tokens file holds token %u of a vocabulary of %u", token,
                                    data->info.vocab);
            if (j < seq_len)
                inputs[(size_t)i * seq_len + j] = (int32_t)token;
            if (j > 0)
                targets[(size_t)i * seq_len + j - 1] = (int32_t)token;
        }
    }
    return 0;
}

/* ---- writing ---- */

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

static int put_tokens(void *user, const int32_t *tokens, size_t count, size_t text_bytes)
{
    struct writer *writer = user;
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
        ERR_TRY(text_open(&text, paths[i]));
        put_token(writer, tokenizer_bos(tokenizer));
        int result = tokenizer_encode_stream(tokenizer, text.data, text.bytes, put_tokens, writer);
        put_token(writer, tokenizer_eos(tokenizer));
        text_close(&text);
        ERR_TRY(result);
    }
    return 0;
}

/* Hashes what is in the file and writes the header over the zeros at its start. */
static int finish_file(struct writer *writer, const struct tokenizer *tokenizer)
{
    size_t bytes = (size_t)writer->num_tokens * writer->token_bytes;
    struct header header = {.version = DATA_VERSION,
                            .header_bytes = sizeof(header),
                            .token_bytes = writer->token_bytes,
                            .vocab = tokenizer_vocab(tokenizer),
                            .num_tokens = writer->num_tokens};
    memcpy(header.magic, DATA_MAGIC, sizeof(header.magic));
    memcpy(header.tokenizer_hash, tokenizer_hash(tokenizer), sizeof(header.tokenizer_hash));
    if (fflush(writer->file) != 0 || ferror(writer->file))
        return report_errno(ERR_IO, "could not write the tokens", writer->path);
    void *map = mmap(NULL, sizeof(header) + bytes, PROT_READ, MAP_SHARED, fileno(writer->file), 0);
    if (map == MAP_FAILED)
        return report_errno(ERR_IO, "could not map the tokens file", writer->path);
    header.hash = checksum_bytes((const char *)map + sizeof(header), bytes);
    munmap(map, sizeof(header) + bytes);
    header.header_hash = checksum_bytes(&header, offsetof(struct header, header_hash));
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
    static const char zeros[sizeof(struct header)];
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
