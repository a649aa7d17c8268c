/* shard_read.c - reads the header of a shard file (format in shard.h).
 *
 * Reading trusts nothing: it checks the hash at the header's end first, then jansson parses the
 * text. Then each member is read by name, and none may be left over. The result is accepted only if
 * it equals shard_header_write()'s in content and order. */
#include "proto/base/json.h"
#include "proto/format/shard_private.h"

#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/layout/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_header(const char *what, const char *name)
{
    return safetensors_fail("the header of a shard is damaged", what, name);
}

/* Decimal digits as snprintf writes them: no sign, no leading zero. Moves *text after them. */
static bool read_number(uint64_t *out, const char **text)
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
    return get_text(&text, metadata, key) && read_number(out, &text) && *text == '\0' &&
           *out <= max;
}

/* Parses "o,o;s,s" with `dims` numbers each. */
static bool parse_slice_text(struct slice *slice, const char *text, uint32_t dims)
{
    for (uint32_t d = 0; d < dims; d++) {
        if ((d > 0 && *text++ != ',') || !read_number(&slice->box.offset[d], &text))
            return false;
    }
    if (*text++ != ';')
        return false;
    for (uint32_t d = 0; d < dims; d++) {
        if ((d > 0 && *text++ != ',') || !read_number(&slice->tensor.shape[d], &text))
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
    uint64_t bytes = slice_bytes(slice);
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

/* Members arrive in the order of the text, which is the order of the data in a valid file. */
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
    ERR_TRY(check_hash(&length, bytes, *out_need));
    const char *why;
    json_t *root;
    int error =
        safetensors_read_json(&root, (const char *)bytes + sizeof(header_bytes), length, &why);
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
