/* shard.c - names, geometry and header of a shard file (format in shard.h).
 *
 * Writing: the header is measured as that of the largest shard, step and attempt, where each number
 * that is not known yet is at its widest; rounded up to 4 KiB that is data_start, which therefore
 * depends on tensors, run and rank count only. The same code then writes the real header, padded
 * with spaces.
 *
 * Reading trusts nothing: the hash at the header's end is checked first, then jansson parses
 * the text, then each member is taken by name and nothing may be left over. The result is accepted
 * only if it is what shard_header_write() would have produced in content and order. */
#include "proto/shard.h"
#include "proto/json.h"

#include "proto/checksum.h"
#include "proto/report.h"
#include "proto/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_NAME "holdfast-shard"
#define FORMAT_VERSION "1"
#define HASH_PREFIX "\"header_hash\":\""
#define HASH_SUFFIX "\"}}"
#define NUM_FIXED_METADATA 10 /* members of __metadata__ that are not slices */
/* So many its reader takes: a tensor has three objects and arrays, the table too, and two are
 * around them. It has at most eight commas. */
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
    int error = shard_dir_key(out, size, identity->run, identity->step, identity->attempt);
    if (error)
        return error;
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

uint64_t shard_table_write(void *out, const struct shard_geometry *geometry, const uint64_t *sums)
{
    uint64_t bytes = geometry->file_bytes - geometry->table_start;
    uint8_t *table = out;
    CHECK(bytes / sizeof(*sums) >= geometry->num_blocks);
    memset(table, 0, bytes);
    for (uint64_t i = 0; i < geometry->num_blocks; i++)
        for (uint32_t b = 0; b < sizeof(*sums); b++)
            table[sizeof(*sums) * i + b] = (uint8_t)(sums[i] >> (8 * b));
    return checksum_bytes(table, bytes);
}

uint64_t shard_table_entry(const void *table, uint64_t block)
{
    uint64_t sum;
    memcpy(&sum, (const uint8_t *)table + sizeof(sum) * block, sizeof(sum));
    return le64toh(sum);
}

/* ---- writing ---- */

/* Text that is measured, and kept as far as there is room for it. It is made of pieces of less than
 * PIECE_MAX characters: nothing is counted within one, so that the place stays in a register.
 * Headers are long, and 16,384 of them are written to verify one checkpoint. */
#define PIECE_MAX 2048
#define DIGITS_MAX 20 /* of UINT64_MAX */
_Static_assert(LAYOUT_NAME_MAX + (2 * LAYOUT_DIMS_MAX + 5) * (DIGITS_MAX + 1) < PIECE_MAX / 2 &&
                   sizeof(struct shard_identity) < PIECE_MAX / 2,
               "a piece has room for its numbers, names and literals");

struct text {
    char *at; /* room for `room` characters */
    size_t room, length;
    char spare[PIECE_MAX]; /* for a piece that may have no room */
};

/* Where the next piece is written; keep_piece() is told its end. */
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

/* put_text, put_number and put_list write at `at` and return the end of what they wrote. This one
 * is inline, so that the length of a literal is known when it is compiled. */
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
    /* log10(2) is 1233 / 4096, near enough up to 64 bits: as many digits as the greatest number of
     * that many bits has, less one. powers[0] gives 0 its one. */
    uint32_t bits = 64 - (uint32_t)__builtin_clzll(number | 1);
    uint32_t digits = bits * 1233 >> 12;
    return digits + (number >= powers[digits]);
}

/* Two digits at a time, to where they stay. */
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

/* The header's text from its '{' to the last tensor: alike in all shards that are cut alike. */
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

/* What follows the name of a slice, alike for all tensors of a layout: a shard has one cell of it,
 * and their shape is where its cuts end. Where two layouts share a place it is written again. */
#define SLICE_TAILS 16
struct slice_tail {
    uint32_t layout;
    size_t length; /* 0: of none yet */
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

/* The rest, up to the digits of the hash. */
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
    int error = layout_shard_tensors(&tensors, &count, &tensor_bytes, table, shard);
    if (error)
        return error;
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
    error = shard_geometry_derive(out, data_start, tensor_bytes);
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

/* Of a header that will be at `bytes`: its text begins behind its length. */
static struct text header_text(void *bytes, const struct shard_geometry *geometry)
{
    uint64_t header_bytes = geometry->data_start - sizeof(uint64_t);
    return (struct text){.at = (char *)bytes + sizeof(uint64_t), .room = header_bytes};
}

/* Around the text: length, hash, padding. */
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
    int error = check_identity(identity);
    if (error)
        return error;
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t tensor_bytes = 0;
    error = layout_shard_tensors(&tensors, &count, &tensor_bytes, table, identity->shard);
    if (error)
        return error;
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

/* Room for another header than the one that is there. */
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
        shard_expected_free(expected); /* what is there is not whole */
    return error;
}

void shard_expected_free(struct shard_expected *expected)
{
    free(expected->header);
    free(expected->tensors);
    memset(expected, 0, sizeof(*expected));
}

/* ---- reading ---- */

static int fail_header(const char *what, const char *name)
{
    return safetensors_fail("the header of a shard is damaged", what, name);
}

/* Decimal digits as snprintf writes them: no sign, no leading zero. Moves *text behind them. */
static bool take_number(uint64_t *out, const char **text)
{
    const char *at = *text;
    uint64_t value = 0;
    if (at[0] == '0' && at[1] >= '0' && at[1] <= '9')
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return false;
    }
    bool any = at != *text;
    *text = at;
    *out = value;
    return any;
}

static bool get_text(const char **out, const json_t *object, const char *key)
{
    *out = json_string_value(json_object_get(object, key));
    return *out != NULL;
}

static bool get_number_text(uint64_t *out, const json_t *metadata, const char *key, uint64_t max)
{
    const char *text = NULL;
    return get_text(&text, metadata, key) && take_number(out, &text) && *text == '\0' &&
           *out <= max;
}

/* "o,o;s,s" of `dims` numbers each. */
static bool parse_slice_text(struct slice *slice, const char *text, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++) {
        if ((d > 0 && *text++ != ',') || !take_number(&slice->box.offset[d], &text))
            return false;
    }
    if (*text++ != ';')
        return false;
    for (uint32_t d = 0; d < dims; d++) {
        if ((d > 0 && *text++ != ',') || !take_number(&slice->tensor.shape[d], &text))
            return false;
    }
    return *text == '\0';
}

static int parse_tensor(struct slice *slice, uint64_t *out_data_byte, const char *name,
                        const json_t *entry, const json_t *metadata)
{
    char key[LAYOUT_NAME_MAX + 8];
    uint64_t range[2];
    const char *text = NULL;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        slice->box.extent[d] = slice->tensor.shape[d] = 1;
    if (strlen(name) >= LAYOUT_NAME_MAX)
        return fail_header("too long a name:", name);
    strcpy(slice->tensor.name, name);
    if (!safetensors_entry(&slice->tensor.dtype, slice->box.extent, &slice->tensor.dims, range,
                           entry))
        return fail_header("bad description of tensor", name);
    snprintf(key, sizeof(key), "slice.%s", name);
    if (!get_text(&text, metadata, key) || !parse_slice_text(slice, text, slice->tensor.dims))
        return fail_header("bad slice of tensor", name);
    if (slice_check(slice) != 0)
        return ERR_CORRUPT;
    uint64_t bytes =
        box_elements(&slice->box, slice->tensor.dims) * dtype_bytes(slice->tensor.dtype);
    if (bytes == 0 || range[1] - range[0] != bytes)
        return fail_header("data_offsets do not fit the shape of tensor", name);
    *out_data_byte = range[0];
    return 0;
}

static int parse_identity(struct shard_header *out, const json_t *metadata)
{
    struct shard_identity *identity = &out->identity;
    const char *format = NULL, *version = NULL, *run = NULL, *nonce = NULL;
    uint64_t shard = 0, shards = 0, data_start = 0;
    if (!get_text(&format, metadata, "format") || strcmp(format, FORMAT_NAME) != 0)
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast shard");
    if (!get_text(&version, metadata, "version") || strcmp(version, FORMAT_VERSION) != 0)
        return report_error(ERR_VERSION, "read it with a newer Holdfast",
                            "shard format '%.16s' is unknown", version ? version : "");
    if (!get_text(&run, metadata, "run") || !shard_run_is_valid(run))
        return fail_header("bad member", "run");
    if (!get_text(&nonce, metadata, "nonce") || !shard_nonce_is_valid(nonce))
        return fail_header("bad member", "nonce");
    strcpy(identity->run, run);
    strcpy(identity->nonce, nonce);
    if (!get_number_text(&identity->step, metadata, "step", UINT64_MAX))
        return fail_header("bad member", "step");
    if (!get_number_text(&identity->attempt, metadata, "attempt", UINT64_MAX))
        return fail_header("bad member", "attempt");
    if (!get_number_text(&shards, metadata, "shards", UINT32_MAX))
        return fail_header("bad member", "shards");
    if (!get_number_text(&shard, metadata, "shard", UINT32_MAX) || shard >= shards)
        return fail_header("bad member", "shard");
    if (!get_number_text(&data_start, metadata, "data_start", UINT64_MAX) ||
        data_start != out->geometry.data_start)
        return fail_header("bad member", "data_start");
    identity->shard = (uint32_t)shard;
    identity->shards = (uint32_t)shards;
    return 0;
}

/* The order of the file: descending element size, then name; back to back from byte 0. */
static int check_order(uint64_t *out_bytes, const struct shard_header *header)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < header->num_tensors; i++) {
        const struct tensor_meta *meta = &header->tensors[i].tensor;
        if (header->data_byte[i] != bytes)
            return fail_header("hole or overlap before tensor", meta->name);
        if (__builtin_add_overflow(
                bytes, box_elements(&header->tensors[i].box, meta->dims) * dtype_bytes(meta->dtype),
                &bytes))
            return fail_header("too much data at tensor", meta->name);
        if (i == 0)
            continue;
        const struct tensor_meta *before = &header->tensors[i - 1].tensor;
        uint32_t size = dtype_bytes(meta->dtype), size_before = dtype_bytes(before->dtype);
        if (size > size_before || (size == size_before && strcmp(before->name, meta->name) >= 0))
            return fail_header("wrong place of tensor", meta->name);
    }
    *out_bytes = bytes;
    return 0;
}

static int check_table(const struct shard_geometry *geometry, const json_t *entry)
{
    enum dtype dtype;
    uint64_t extent[LAYOUT_DIMS_MAX], range[2];
    uint32_t dims = 0;
    uint64_t bytes = geometry->file_bytes - geometry->table_start;
    uint64_t start = geometry->table_start - geometry->data_start;
    if (!safetensors_entry(&dtype, extent, &dims, range, entry) || dtype != DTYPE_U8 || dims != 1 ||
        extent[0] != bytes || range[0] != start || range[1] != start + bytes)
        return fail_header("bad description of tensor", SHARD_TABLE_NAME);
    return 0;
}

/* Members arrive in the order of the text, which for a file of ours is the order of the data. */
static int parse_members(struct shard_header *out, const json_t *root, uint64_t file_bytes)
{
    const json_t *metadata = json_object_get(root, "__metadata__");
    const json_t *table = json_object_get(root, SHARD_TABLE_NAME);
    if (!json_is_object(metadata) || !table)
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast shard");
    int error = parse_identity(out, metadata);
    if (error)
        return error;
    size_t count = json_object_size(root) - 2;
    if (json_object_size(metadata) != NUM_FIXED_METADATA + count)
        return fail_header("unexpected member in", "__metadata__");
    out->tensors = calloc(count ? count : 1, sizeof(*out->tensors));
    out->data_byte = calloc(count ? count : 1, sizeof(*out->data_byte));
    if (!out->tensors || !out->data_byte)
        return report_error(ERR_MEMORY, NULL, "no memory to read the header of a shard");
    const char *name = NULL;
    json_t *entry = NULL;
    json_object_foreach((json_t *)root, name, entry)
    {
        if (entry == metadata || entry == table)
            continue;
        uint32_t i = out->num_tensors++;
        error = parse_tensor(&out->tensors[i], &out->data_byte[i], name, entry, metadata);
        if (error)
            return error;
    }
    uint64_t bytes = 0, data_start = out->geometry.data_start;
    error = check_order(&bytes, out);
    if (!error)
        error = shard_geometry_derive(&out->geometry, data_start, bytes);
    if (!error && out->geometry.file_bytes != file_bytes)
        error = fail_header("the file's size does not fit the tensors", NULL);
    return error ? error : check_table(&out->geometry, table);
}

/* The digits of the hash that ends a header, at the end of `bytes`; NULL: there is none. */
static const char *find_hash(const char *bytes, uint64_t num_bytes)
{
    static const size_t tail_bytes = CHECKSUM_DIGITS + sizeof(HASH_SUFFIX) - 1;
    uint64_t end = num_bytes;
    while (end > 0 && bytes[end - 1] == ' ')
        end--;
    if (end < strlen(HASH_PREFIX) + tail_bytes)
        return NULL;
    const char *digits = bytes + end - tail_bytes;
    if (memcmp(digits - strlen(HASH_PREFIX), HASH_PREFIX, strlen(HASH_PREFIX)) != 0 ||
        memcmp(digits + CHECKSUM_DIGITS, HASH_SUFFIX, strlen(HASH_SUFFIX)) != 0)
        return NULL;
    return digits;
}

bool shard_header_hash(uint64_t *out, const void *bytes, uint64_t num_bytes)
{
    const char *digits = find_hash(bytes, num_bytes);
    return digits != NULL && checksum_parse(out, digits);
}

/* *out_length: of the JSON text without its padding. */
static int check_hash(size_t *out_length, const char *bytes, uint64_t data_start)
{
    const char *text = bytes + sizeof(uint64_t);
    const char *digits = find_hash(text, data_start - sizeof(uint64_t));
    uint64_t hash;
    if (!digits)
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast shard");
    if (!checksum_parse(&hash, digits) || checksum_bytes(bytes, (size_t)(digits - bytes)) != hash)
        return fail_header("header_hash does not match", NULL);
    *out_length = (size_t)(digits - text) + CHECKSUM_DIGITS + strlen(HASH_SUFFIX);
    return 0;
}

int shard_header_parse(struct shard_header *out, uint64_t *out_need, const void *bytes,
                       uint64_t num_bytes, uint64_t file_bytes)
{
    uint64_t header_bytes = 0;
    memset(out, 0, sizeof(*out));
    if (file_bytes < 2 * SHARD_ALIGN || file_bytes % SHARD_ALIGN != 0 || num_bytes > file_bytes)
        return report_error(ERR_CORRUPT, NULL, "a shard of %" PRIu64 " bytes is not possible",
                            file_bytes);
    *out_need = SHARD_ALIGN;
    if (num_bytes < sizeof(header_bytes))
        return report_error(ERR_BUSY, NULL, "more of the shard's header has to be read");
    memcpy(&header_bytes, bytes, sizeof(header_bytes));
    if (header_bytes > SHARD_HEADER_BYTES_MAX - sizeof(header_bytes) ||
        (header_bytes + sizeof(header_bytes)) % SHARD_ALIGN != 0 ||
        header_bytes + sizeof(header_bytes) >= file_bytes)
        return fail_header("its length is not possible", NULL);
    *out_need = header_bytes + sizeof(header_bytes);
    if (num_bytes < *out_need)
        return report_error(ERR_BUSY, NULL, "more of the shard's header has to be read");

    size_t length = 0;
    int error = check_hash(&length, bytes, *out_need);
    if (error)
        return error;
    const char *why;
    json_t *root;
    error = safetensors_read_json(&root, (const char *)bytes + sizeof(header_bytes), length, &why);
    if (error)
        return error == ERR_CORRUPT ? fail_header(why, NULL) : error;
    out->geometry.data_start = *out_need;
    error = parse_members(out, root, file_bytes);
    json_decref(root);
    if (error)
        shard_header_free(out);
    return error;
}

void shard_header_free(struct shard_header *header)
{
    free(header->tensors);
    free(header->data_byte);
    memset(header, 0, sizeof(*header));
}
