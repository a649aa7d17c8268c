/* shard.c - names, geometry and header of a shard file (format in shard.h).
 *
 * Writing: the code first measures the header of the largest shard, step and attempt, with each
 * unknown number at its widest. That length rounded up to 4 KiB is data_start, so it depends on
 * tensors, run and rank count only. The same code then writes the real header, padded with spaces.
 *
 * shard_read.c reads headers. */
#include "proto/base/json.h"
#include "proto/format/shard_private.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/layout/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As many as its reader accepts: a tensor has three objects and arrays, the table too, and two are
 * around them. A tensor has at most eight commas. */
#define NUM_TENSORS_MAX ((SAFETENSORS_CONTAINERS_MAX - 2) / 3 - 1)
_Static_assert(10 * NUM_TENSORS_MAX < SAFETENSORS_COMMAS_MAX, "a reader takes the commas, too");

/* ---- names ---- */

bool shard_run_is_valid(const char *run)
{
    size_t length = strlen(run);
    if (length == 0 || length > 127 || strcmp(run, ".") == 0 || strcmp(run, "..") == 0)
        return false;
    return strspn(run, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
           length;
}

bool shard_nonce_is_valid(const char *nonce)
{
    return strlen(nonce) == 32 && strspn(nonce, "0123456789abcdef") == 32;
}

static int fail_run(const char *run)
{
    return report_error(ERR_INVALID, "use 1 to 127 of the characters A-Z a-z 0-9 . _ -",
                        "'%.127s' cannot be the name of a run", run);
}

int shard_dir_key(char *out, size_t size, const char *run, uint64_t step, uint64_t attempt)
{
    if (!shard_run_is_valid(run))
        return fail_run(run);
    int length = snprintf(out, size, "%s/step-%08" PRIu64 "-a%04" PRIu64, run, step, attempt);
    if (length < 0 || (size_t)length >= size)
        return report_error(ERR_INVALID, NULL, "the key of run '%s' does not fit its buffer", run);
    return 0;
}

int shard_key(char *out, size_t size, const struct shard_identity *identity)
{
    ERR_TRY(shard_dir_key(out, size, identity->run, identity->step, identity->attempt));
    size_t used = strlen(out);
    int length =
        snprintf(out + used, size - used, "/shard-%05" PRIu64 "-of-%05" PRIu32 ".safetensors",
                 (uint64_t)identity->shard + 1, identity->shards);
    if (length < 0 || (size_t)length >= size - used)
        return report_error(ERR_INVALID, NULL, "the key of run '%s' does not fit its buffer",
                            identity->run);
    return 0;
}

bool shard_is_file_name(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name);
    return strncmp(name, "shard-", 6) == 0 && length > sizeof suffix &&
           strcmp(name + length - (sizeof suffix - 1), suffix) == 0;
}

/* ---- geometry ---- */

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + SHARD_ALIGN - 1) / SHARD_ALIGN * SHARD_ALIGN;
}

int shard_geometry_derive(struct shard_geometry *out, uint64_t data_start, uint64_t tensor_bytes)
{
    if (data_start == 0 || data_start % SHARD_ALIGN != 0 || data_start > SHARD_HEADER_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "data_start %" PRIu64 " of a shard is not possible",
                            data_start);
    if (tensor_bytes > LAYOUT_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "a shard of %" PRIu64 " bytes is not possible",
                            tensor_bytes);
    out->data_start = data_start;
    out->table_start = data_start + tensor_bytes;
    out->num_blocks = (out->table_start + CHECKSUM_BLOCK_BYTES - 1) / CHECKSUM_BLOCK_BYTES;
    out->file_bytes = round_up(out->table_start + out->num_blocks * sizeof(uint64_t));
    return 0;
}

void shard_block(uint64_t *start, uint64_t *length, const struct shard_geometry *geometry,
                 uint64_t index)
{
    CHECK(index < geometry->num_blocks);
    uint64_t rest = geometry->table_start - index * CHECKSUM_BLOCK_BYTES;
    *start = index * CHECKSUM_BLOCK_BYTES;
    *length = rest < CHECKSUM_BLOCK_BYTES ? rest : CHECKSUM_BLOCK_BYTES;
}

void shard_table_put(void *table, uint64_t block, uint64_t sum)
{
    sum = htole64(sum);
    memcpy((uint8_t *)table + sizeof(sum) * block, &sum, sizeof(sum));
}

uint64_t shard_table_write(void *out, const struct shard_geometry *geometry, const uint64_t *sums)
{
    uint64_t bytes = geometry->file_bytes - geometry->table_start;
    uint8_t *table = out;
    CHECK(bytes / sizeof(*sums) >= geometry->num_blocks);
    memset(table, 0, bytes);
    for (uint64_t i = 0; i < geometry->num_blocks; i++)
        shard_table_put(table, i, sums[i]);
    return checksum_bytes(table, bytes);
}

uint64_t shard_table_entry(const void *table, uint64_t block)
{
    uint64_t sum;
    memcpy(&sum, (const uint8_t *)table + sizeof(sum) * block, sizeof(sum));
    return le64toh(sum);
}

/* ---- writing ---- */

/* Text that is measured, and stored while there is room for it. It is made of pieces of less than
 * PIECE_MAX characters. Within a piece nothing is counted, so that the position stays in a
 * register. Headers are long, and verifying one checkpoint writes 16,384 of them. */
#define PIECE_MAX 2048
#define DIGITS_MAX 20 /* of UINT64_MAX */
_Static_assert(LAYOUT_NAME_MAX + (2 * LAYOUT_DIMS_MAX + 5) * (DIGITS_MAX + 1) < PIECE_MAX / 2 &&
                   sizeof(struct shard_identity) < PIECE_MAX / 2,
               "a piece has room for its numbers, names and literals");

struct text {
    char *at; /* room for `room` characters */
    size_t room, length;
    char spare[PIECE_MAX]; /* for a piece without room */
};

/* The place of the next piece; pass its end to keep_piece(). */
static char *next_piece(struct text *out)
{
    return out->length + PIECE_MAX <= out->room ? out->at + out->length : out->spare;
}

static void keep_piece(struct text *out, const char *end)
{
    const char *piece = next_piece(out);
    size_t length = (size_t)(end - piece);
    if (piece == out->spare && out->length + length <= out->room)
        memcpy(out->at + out->length, piece, length);
    out->length += length;
}

/* put_text, put_number and put_list write at `at` and return the end of the written text. put_text
 * is inline, so that the length of a literal is known at compile time. */
static inline char *put_text(char *at, const char *text)
{
    size_t length = strlen(text);
    memcpy(at, text, length);
    return at + length;
}

static inline uint32_t count_digits(uint64_t number)
{
    static const uint64_t powers[DIGITS_MAX] = {0,
                                                10,
                                                100,
                                                1000,
                                                10000,
                                                100000,
                                                1000000,
                                                10000000,
                                                100000000,
                                                1000000000,
                                                10000000000,
                                                100000000000,
                                                1000000000000,
                                                10000000000000,
                                                100000000000000,
                                                1000000000000000,
                                                10000000000000000,
                                                100000000000000000,
                                                1000000000000000000,
                                                10000000000000000000u};
    /* log10(2) is 1233 / 4096, exact enough up to 64 bits: the digits, less one, of the greatest
     * number with that many bits. powers[0] gives 0 its one digit. */
    uint32_t bits = 64 - (uint32_t)__builtin_clzll(number | 1);
    uint32_t digits = bits * 1233 >> 12;
    return digits + (number >= powers[digits]);
}

/* Writes two digits at a time, in place. */
static char *put_number(char *at, uint64_t number)
{
    static const char pairs[] = "00010203040506070809101112131415161718192021222324"
                                "25262728293031323334353637383940414243444546474849"
                                "50515253545556575859606162636465666768697071727374"
                                "75767778798081828384858687888990919293949596979899";
    uint32_t digits = count_digits(number);
    char *end = at + digits;
    for (char *pair = end; number >= 10; number /= 100)
        memcpy(pair -= 2, pairs + number % 100 * 2, 2);
    if (digits % 2 == 1)
        *at = (char)('0' + number);
    return end;
}

static char *put_list(char *at, const uint64_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0)
            *at++ = ',';
        at = put_number(at, values[i]);
    }
    return at;
}

/* `"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},` */
static void put_tensor(struct text *out, const char *name, const char *dtype, const uint64_t *shape,
                       uint32_t dims, const uint64_t offsets[2])
{
    char *at = put_text(next_piece(out), "\"");
    at = stpcpy(at, name);
    at = put_text(at, "\":{\"dtype\":\"");
    at = stpcpy(at, dtype);
    at = put_text(at, "\",\"shape\":[");
    at = put_list(at, shape, dims);
    at = put_text(at, "],\"data_offsets\":[");
    at = put_list(at, offsets, 2);
    keep_piece(out, put_text(at, "]},"));
}

static void put_identity(struct text *out, const struct shard_identity *identity,
                         uint64_t data_start)
{
    char *at = put_text(next_piece(out), "\"__metadata__\":{\"format\":\"" FORMAT_NAME
                                         "\",\"version\":\"" FORMAT_VERSION "\",\"run\":\"");
    at = stpcpy(at, identity->origin[0] != '\0' ? identity->origin : identity->run);
    at = put_number(put_text(at, "\",\"step\":\""), identity->step);
    at = put_number(put_text(at, "\",\"attempt\":\""), identity->attempt);
    at = stpcpy(put_text(at, "\",\"nonce\":\""), identity->nonce);
    at = put_number(put_text(at, "\",\"shard\":\""), identity->shard);
    at = put_number(put_text(at, "\",\"shards\":\""), identity->shards);
    at = put_number(put_text(at, "\",\"data_start\":\""), data_start);
    keep_piece(out, put_text(at, "\","));
}

/* The header's text from its '{' to the last tensor: equal in all equally cut shards. */
static void put_tensors(struct text *out, const struct shard_geometry *geometry,
                        const struct layout_table *table, const struct shard_tensor *tensors,
                        uint32_t count)
{
    uint64_t table_bytes = geometry->file_bytes - geometry->table_start;
    uint64_t tensor_bytes = geometry->table_start - geometry->data_start;
    keep_piece(out, put_text(next_piece(out), "{"));
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor_meta *meta = &table->tensors[tensors[i].tensor];
        put_tensor(out, meta->name, dtype_name(meta->dtype), tensors[i].box.extent, meta->dims,
                   (uint64_t[]){tensors[i].data_byte, tensors[i].data_byte + tensors[i].bytes});
    }
    put_tensor(out, SHARD_TABLE_NAME, "U8", &table_bytes, 1,
               (uint64_t[]){tensor_bytes, tensor_bytes + table_bytes});
}

/* The text after the name of a slice, equal for all tensors of a layout: a shard has one cell of
 * it, and its cuts end at their shape. Two layouts that share a cache entry are written again. */
#define SLICE_TAILS 16
struct slice_tail {
    uint32_t layout;
    size_t length; /* 0: empty */
    char text[2 * LAYOUT_DIMS_MAX * (DIGITS_MAX + 1) + sizeof("\":\";\",")];
};

static void write_tail(struct slice_tail *tail, uint32_t layout, const struct tensor_meta *meta,
                       const uint64_t *offset)
{
    char *at = put_text(tail->text, "\":\"");
    at = put_list(at, offset, meta->dims);
    at = put_text(at, ";");
    at = put_list(at, meta->shape, meta->dims);
    at = put_text(at, "\",");
    tail->layout = layout;
    tail->length = (size_t)(at - tail->text);
}

/* `"slice.name":"0,4;2,8",` for each tensor. */
static void put_slices(struct text *out, const struct layout_table *table,
                       const struct shard_tensor *tensors, uint32_t count)
{
    struct slice_tail tails[SLICE_TAILS];
    for (uint32_t i = 0; i < SLICE_TAILS; i++)
        tails[i].length = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor_meta *meta = &table->tensors[tensors[i].tensor];
        uint32_t layout = table->layout_of[tensors[i].tensor];
        struct slice_tail *tail = &tails[layout % SLICE_TAILS];
        if (tail->length == 0 || tail->layout != layout)
            write_tail(tail, layout, meta, tensors[i].box.offset);
        char *at = stpcpy(put_text(next_piece(out), "\"slice."), meta->name);
        memcpy(at, tail->text, tail->length);
        keep_piece(out, at + tail->length);
    }
}

/* Writes the rest, up to the digits of the hash. */
static void put_metadata(struct text *out, const struct shard_geometry *geometry,
                         const struct layout_table *table, const struct shard_tensor *tensors,
                         uint32_t count, const struct shard_identity *identity)
{
    put_identity(out, identity, geometry->data_start);
    put_slices(out, table, tensors, count);
    keep_piece(out, put_text(next_piece(out), HASH_PREFIX));
}

int shard_geometry(struct shard_geometry *out, const struct layout_table *table, uint32_t shard,
                   const char *run, uint32_t shards)
{
    if (!shard_run_is_valid(run))
        return fail_run(run);
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t tensor_bytes = 0;
    ERR_TRY(layout_shard_tensors(&tensors, &count, &tensor_bytes, table, shard));
    if (count > NUM_TENSORS_MAX) {
        free(tensors);
        return report_error(ERR_INVALID, "describe fewer tensors per rank",
                            "shard %" PRIu32 " would hold %" PRIu32 " tensors, more than %u", shard,
                            count, NUM_TENSORS_MAX);
    }
    struct shard_identity widest = {
        .step = UINT64_MAX, .attempt = UINT64_MAX, .shard = shard, .shards = shards};
    snprintf(widest.run, sizeof(widest.run), "%s", run);
    memset(widest.nonce, 'f', sizeof(widest.nonce) - 1);
    struct shard_geometry wide;
    struct text measured = {0};
    CHECK(shard_geometry_derive(&wide, SHARD_HEADER_BYTES_MAX, LAYOUT_BYTES_MAX) == 0);
    put_tensors(&measured, &wide, table, tensors, count);
    put_metadata(&measured, &wide, table, tensors, count, &widest);
    free(tensors);
    uint64_t data_start =
        round_up(sizeof(uint64_t) + measured.length + CHECKSUM_DIGITS + strlen(HASH_SUFFIX));
    if (data_start > SHARD_HEADER_BYTES_MAX)
        return report_error(ERR_INVALID, "describe fewer tensors per rank",
                            "the header of shard %" PRIu32 " would pass %u bytes", shard,
                            SHARD_HEADER_BYTES_MAX);
    int error = shard_geometry_derive(out, data_start, tensor_bytes);
    if (!error && out->file_bytes - out->table_start > SHARD_TABLE_BYTES_MAX)
        error = report_error(ERR_INVALID, "use more ranks",
                             "shard %" PRIu32 " would hold more than 32 TiB", shard);
    return error;
}

static int check_identity(const struct shard_identity *identity)
{
    if (!shard_run_is_valid(identity->run))
        return fail_run(identity->run);
    if (identity->origin[0] != '\0' && !shard_run_is_valid(identity->origin))
        return fail_run(identity->origin);
    if (!shard_nonce_is_valid(identity->nonce))
        return report_error(ERR_INVALID, NULL, "a shard's nonce is not 32 hexadecimal digits");
    if (identity->shard >= identity->shards)
        return report_error(ERR_INVALID, NULL, "there is no shard %" PRIu32 " of %" PRIu32,
                            identity->shard, identity->shards);
    return 0;
}

/* The text of a header at `bytes`: it begins after its length. */
static struct text header_text(void *bytes, const struct shard_geometry *geometry)
{
    uint64_t header_bytes = geometry->data_start - sizeof(uint64_t);
    return (struct text){.at = (char *)bytes + sizeof(uint64_t), .room = header_bytes};
}

/* Adds length, hash and padding. */
static int finish_header(const struct text *text)
{
    uint64_t header_bytes = text->room;
    if (text->length + CHECKSUM_DIGITS + strlen(HASH_SUFFIX) > text->room)
        return report_error(ERR_CORRUPT, NULL, "the header of a shard does not fit its data_start");
    char *bytes = text->at - sizeof(header_bytes), *end = text->at + text->length;
    memcpy(bytes, &header_bytes, sizeof(header_bytes));
    char tail[CHECKSUM_DIGITS + sizeof(HASH_SUFFIX)];
    snprintf(tail, sizeof(tail), "%016" PRIx64 HASH_SUFFIX,
             checksum_bytes(bytes, (size_t)(end - bytes)));
    memcpy(end, tail, sizeof(tail) - 1);
    end += sizeof(tail) - 1;
    memset(end, ' ', (size_t)(text->at + text->room - end));
    return 0;
}

int shard_header_write(void *out, const struct shard_geometry *geometry,
                       const struct layout_table *table, const struct shard_identity *identity)
{
    ERR_TRY(check_identity(identity));
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t tensor_bytes = 0;
    ERR_TRY(layout_shard_tensors(&tensors, &count, &tensor_bytes, table, identity->shard));
    CHECK(geometry->table_start - geometry->data_start == tensor_bytes);
    struct text text = header_text(out, geometry);
    put_tensors(&text, geometry, table, tensors, count);
    put_metadata(&text, geometry, table, tensors, count, identity);
    free(tensors);
    return finish_header(&text);
}

static bool same_tensors(const struct shard_expected *expected,
                         const struct shard_geometry *geometry, const struct shard_tensor *tensors,
                         uint32_t count)
{
    bool is_same = expected->tensors != NULL && expected->num_tensors == count &&
                   memcmp(&expected->geometry, geometry, sizeof(*geometry)) == 0;
    for (uint32_t i = 0; i < count && is_same; i++)
        is_same = expected->tensors[i].tensor == tensors[i].tensor &&
                  memcmp(expected->tensors[i].box.extent, tensors[i].box.extent,
                         sizeof(tensors[i].box.extent)) == 0;
    return is_same;
}

/* Makes room for another header than the present one. */
static int begin_expected(struct shard_expected *expected, const struct shard_geometry *geometry,
                          const struct shard_tensor *tensors, uint32_t count)
{
    shard_expected_free(expected);
    expected->header = malloc(geometry->data_start);
    expected->tensors = malloc(((size_t)count + 1) * sizeof(*tensors));
    if (!expected->header || !expected->tensors) {
        shard_expected_free(expected);
        return report_error(ERR_MEMORY, NULL, "no memory for a header");
    }
    expected->geometry = *geometry;
    expected->num_tensors = count;
    for (uint32_t i = 0; i < count; i++)
        expected->tensors[i] = tensors[i];
    return 0;
}

int shard_header_expect(struct shard_expected *expected, const struct shard_geometry *geometry,
                        const struct layout_table *table, const struct shard_tensor *tensors,
                        uint32_t count, const struct shard_identity *identity)
{
    bool is_same = same_tensors(expected, geometry, tensors, count);
    int error = is_same ? 0 : begin_expected(expected, geometry, tensors, count);
    if (error)
        return error;
    struct text text = header_text(expected->header, geometry);
    if (is_same)
        text.length = expected->tensors_length;
    else
        put_tensors(&text, geometry, table, tensors, count);
    expected->tensors_length = text.length;
    put_metadata(&text, geometry, table, tensors, count, identity);
    error = finish_header(&text);
    if (error)
        shard_expected_free(expected); /* the header is incomplete */
    return error;
}

void shard_expected_free(struct shard_expected *expected)
{
    free(expected->header);
    free(expected->tensors);
    memset(expected, 0, sizeof(*expected));
}
