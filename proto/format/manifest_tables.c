/* manifest_tables.c - writes and reads layouts, tensors and shards of a manifest.
 *
 *   "layouts":[
 *   {"cuts":[[0,4,10],[0,6]],"owners":[0,1]}],
 *   "tensors":[
 *   {"name":"w","dtype":"F32","shape":[10,6],"layout":0,"digest":["<16 digits>","<16 digits>"]}],
 *   "shard_table":[
 *   {"file":"<name>","bytes":8192,"data_start":4096,"header_hash":"<16>","table_hash":"<16>"},
 *   ...],
 *   "part_bytes":8388608,
 *   "part_hashes":[
 *   {"sha256":"<64 digits>"},
 *   ...],
 *
 * Version 1 had no header_hash; only version 3, a far tier's, has the last two.
 *
 * They grow with the world size, to megabytes, and every load and every verify reads them. A JSON
 * library needs some 50 bytes of memory for each number. So one pass reads them in the written
 * form: the text between two values must match to the byte. */
#include "proto/base/report.h"
#include "proto/format/manifest_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Memory is allocated for as many entries as there are lines, but not for more than the shortest
 * entries that fit the text: {"cuts":[],"owners":[0]}, and a tensor of no dimensions. */
#define LAYOUT_TEXT_MIN 24
#define TENSOR_TEXT_MIN 88
#define SHARD_TEXT_MIN 64
#define NUMBER_DIGITS_MAX 19 /* of INT64_MAX; as many nines fit uint64_t */

/* "shard-00001-of-00008.safetensors" */
static int get_file_name(char *out, size_t size, const struct manifest_summary *summary,
                         uint32_t shard)
{
    char key[512];
    struct shard_identity identity;
    manifest_identity(&identity, summary, shard);
    ERR_TRY(shard_key(key, sizeof(key), &identity));
    const char *name = strrchr(key, '/') + 1;
    CHECK(strlen(name) < size);
    strcpy(out, name);
    return 0;
}

/* ---- writing ---- */

static void print_numbers(FILE *out, const uint64_t *values, uint32_t count)
{
    fprintf(out, "[");
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", values[i]);
    fprintf(out, "]");
}

static void print_layouts(FILE *out, const struct layout_table *table)
{
    fprintf(out, "\"layouts\":[");
    for (uint32_t i = 0; i < table->num_layouts; i++) {
        const struct layout *layout = &table->layouts[i];
        fprintf(out, "%s\n{\"cuts\":[", i ? "," : "");
        for (uint32_t d = 0; d < layout->dims; d++) {
            fprintf(out, "%s", d ? "," : "");
            print_numbers(out, layout->cuts[d], layout->num_cuts[d]);
        }
        fprintf(out, "],\"owners\":[");
        uint64_t cells = layout_cells(layout);
        for (uint64_t cell = 0; cell < cells; cell++)
            fprintf(out, "%s%" PRIu32, cell ? "," : "", layout->owners[cell]);
        fprintf(out, "]}");
    }
    fprintf(out, "],\n");
}

static void print_tensors(FILE *out, const struct manifest *manifest)
{
    const struct layout_table *table = manifest->table;
    fprintf(out, "\"tensors\":[");
    for (uint32_t i = 0; i < table->num_tensors; i++) {
        const struct tensor_meta *meta = &table->tensors[i];
        fprintf(out, "%s\n{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":", i ? "," : "", meta->name,
                dtype_name(meta->dtype));
        print_numbers(out, meta->shape, meta->dims);
        fprintf(out, ",\"layout\":%" PRIu32 ",\"digest\":[\"%016" PRIx64 "\",\"%016" PRIx64 "\"]}",
                table->layout_of[i], manifest->digests[i].sum[0], manifest->digests[i].sum[1]);
    }
    fprintf(out, "],\n");
}

static void print_shards(FILE *out, const struct manifest *manifest)
{
    fprintf(out, "\"shard_table\":[");
    for (uint32_t i = 0; i < manifest->summary.shards; i++) {
        char name[64];
        const struct manifest_shard *shard = &manifest->shards[i];
        CHECK(get_file_name(name, sizeof(name), &manifest->summary, i) == 0);
        fprintf(out,
                "%s\n{\"file\":\"%s\",\"bytes\":%" PRIu64 ",\"data_start\":%" PRIu64
                ",\"header_hash\":\"%016" PRIx64 "\",\"table_hash\":\"%016" PRIx64 "\"}",
                i ? "," : "", name, shard->bytes, shard->data_start, shard->header_hash,
                shard->table_hash);
    }
    fprintf(out, "],\n");
}

/* Of a far tier's manifest. */
static void print_part_sums(FILE *out, const struct manifest *manifest)
{
    fprintf(out, "\"part_bytes\":%" PRIu64 ",\n\"part_hashes\":[", manifest->part_bytes);
    for (uint32_t i = 0; i < manifest->summary.shards; i++)
        fprintf(out, "%s\n{\"sha256\":\"%s\"}", i ? "," : "", manifest->part_sums[i].sha256);
    fprintf(out, "],\n");
}

void manifest_print_tables(FILE *out, const struct manifest *manifest)
{
    print_layouts(out, manifest->table);
    print_tensors(out, manifest);
    print_shards(out, manifest);
    if (manifest_is_of_tier(manifest))
        print_part_sums(out, manifest);
}

/* ---- reading: values ---- */

struct cursor {
    const char *at, *end;
    bool lacks_memory; /* why the last of the functions below returned false */
};

static bool match_text(struct cursor *cursor, const char *expected)
{
    size_t length = strlen(expected);
    if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, expected, length) != 0)
        return false;
    cursor->at += length;
    return true;
}

static bool read_number(struct cursor *cursor, uint64_t *out, uint64_t max)
{
    const char *first = cursor->at;
    uint64_t value = 0;
    while (cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9' &&
           cursor->at - first < NUMBER_DIGITS_MAX)
        value = 10 * value + (uint64_t)(*cursor->at++ - '0');
    *out = value;
    bool is_one = cursor->at > first && (*first != '0' || cursor->at - first == 1);
    return is_one && value <= max; /* a further digit does not match the text expected after it */
}

static bool read_hash(struct cursor *cursor, uint64_t *out)
{
    if (cursor->end - cursor->at < CHECKSUM_DIGITS || !checksum_parse(out, cursor->at))
        return false;
    cursor->at += CHECKSUM_DIGITS;
    return true;
}

/* Reads the rest of a string without escapes, and the closing quote. */
static bool read_text(struct cursor *cursor, char *out, size_t size)
{
    size_t length = 0;
    for (; cursor->at < cursor->end && *cursor->at != '"'; cursor->at++) {
        if (length + 1 == size || (unsigned char)*cursor->at < ' ' || *cursor->at == '\\')
            return false;
        out[length++] = *cursor->at;
    }
    out[length] = '\0';
    return match_text(cursor, "\"");
}

/* Reads "[0,3,10]" into new memory. */
static bool read_numbers(struct cursor *cursor, uint64_t **out, uint32_t *out_count)
{
    const char *end = memchr(cursor->at, ']', (size_t)(cursor->end - cursor->at));
    if (!end || !match_text(cursor, "["))
        return false;
    uint32_t count = cursor->at < end;
    for (const char *at = cursor->at; at < end; at++)
        count += *at == ',';
    if (count > (end - cursor->at + 1) / 2) /* a digit for each, and a comma between two */
        return false;
    *out = malloc((count ? count : 1) * sizeof(**out));
    cursor->lacks_memory = !*out;
    for (uint32_t i = 0; *out && i < count; i++) {
        if ((i > 0 && !match_text(cursor, ",")) || !read_number(cursor, &(*out)[i], INT64_MAX))
            return false;
    }
    *out_count = count;
    return *out && match_text(cursor, "]");
}

/* A table has one entry per line, each of at least `text_min` bytes. */
static uint32_t count_entries(const struct cursor *cursor, uint32_t text_min)
{
    uint32_t count = 0, max = (uint32_t)((cursor->end - cursor->at) / text_min);
    const char *at = cursor->at, *end = cursor->end;
    while (count < max && (at = memchr(at, '\n', (size_t)(end - at))) && ++at < end && *at == '{')
        count++;
    return count;
}

/* ---- reading: layouts, tensors, shards ---- */

/* layout_table_check() checks the order and range of the cuts. */
static bool read_cuts(struct cursor *cursor, struct layout *out)
{
    if (!match_text(cursor, "{\"cuts\":["))
        return false;
    while (!match_text(cursor, "]")) {
        uint32_t d = out->dims;
        if (d == LAYOUT_DIMS_MAX || (d > 0 && !match_text(cursor, ",")) ||
            !read_numbers(cursor, &out->cuts[d], &out->num_cuts[d]))
            return false;
        out->dims++;
    }
    return true;
}

/* One owner for each cell. */
static bool read_owners(struct cursor *cursor, struct layout *out)
{
    uint64_t cells = 1, *numbers = NULL;
    uint32_t count = 0;
    for (uint32_t d = 0; d < out->dims; d++) {
        if (out->num_cuts[d] == 0 || __builtin_mul_overflow(cells, out->num_cuts[d] - 1, &cells))
            return false;
    }
    bool ok = match_text(cursor, ",\"owners\":") && read_numbers(cursor, &numbers, &count) &&
              count == cells && match_text(cursor, "}");
    if (ok) {
        out->owners = malloc((count ? count : 1) * sizeof(*out->owners));
        ok = out->owners;
        cursor->lacks_memory = !ok;
    }
    for (uint32_t i = 0; ok && i < count; i++)
        out->owners[i] = numbers[i] < UINT32_MAX ? (uint32_t)numbers[i] : UINT32_MAX;
    free(numbers);
    return ok;
}

static bool read_layout(struct cursor *cursor, struct manifest *manifest, uint32_t index)
{
    struct layout *layout = &manifest->table->layouts[index];
    return read_cuts(cursor, layout) && read_owners(cursor, layout);
}

static bool read_shape(struct cursor *cursor, struct tensor_meta *out)
{
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        out->shape[d] = 1;
    while (!match_text(cursor, "]")) {
        if (out->dims == LAYOUT_DIMS_MAX || (out->dims > 0 && !match_text(cursor, ",")) ||
            !read_number(cursor, &out->shape[out->dims++], INT64_MAX))
            return false;
    }
    return true;
}

static bool read_tensor(struct cursor *cursor, struct manifest *manifest, uint32_t index)
{
    struct tensor_meta *meta = &manifest->table->tensors[index];
    struct digest *digest = &manifest->digests[index];
    char dtype[8];
    uint64_t layout = 0;
    bool ok = match_text(cursor, "{\"name\":\"") &&
              read_text(cursor, meta->name, sizeof(meta->name)) &&
              match_text(cursor, ",\"dtype\":\"") && read_text(cursor, dtype, sizeof(dtype)) &&
              dtype_parse(&meta->dtype, dtype) == 0 && match_text(cursor, ",\"shape\":[") &&
              read_shape(cursor, meta) && match_text(cursor, ",\"layout\":") &&
              read_number(cursor, &layout, UINT32_MAX) && match_text(cursor, ",\"digest\":[\"") &&
              read_hash(cursor, &digest->sum[0]) && match_text(cursor, "\",\"") &&
              read_hash(cursor, &digest->sum[1]) && match_text(cursor, "\"]}");
    manifest->table->layout_of[index] = (uint32_t)layout;
    return ok;
}

static bool read_header_hash(struct cursor *cursor, struct manifest_shard *out)
{
    return match_text(cursor, ",\"header_hash\":\"") && read_hash(cursor, &out->header_hash) &&
           match_text(cursor, "\"");
}

static bool read_shard(struct cursor *cursor, struct manifest *manifest, uint32_t index)
{
    char file[64];
    struct manifest_shard *shard = &manifest->shards[index];
    return get_file_name(file, sizeof(file), &manifest->summary, index) == 0 &&
           match_text(cursor, "{\"file\":\"") && match_text(cursor, file) &&
           match_text(cursor, "\",\"bytes\":") && read_number(cursor, &shard->bytes, INT64_MAX) &&
           match_text(cursor, ",\"data_start\":") &&
           read_number(cursor, &shard->data_start, INT64_MAX) &&
           (!manifest_has_header_hashes(manifest) || read_header_hash(cursor, shard)) &&
           match_text(cursor, ",\"table_hash\":\"") && read_hash(cursor, &shard->table_hash) &&
           match_text(cursor, "\"}");
}

static bool read_part_sum(struct cursor *cursor, struct manifest *manifest, uint32_t index)
{
    char *out = manifest->part_sums[index].sha256;
    return match_text(cursor, "{\"sha256\":\"") && read_text(cursor, out, CHECKSUM_SHA256_HEX) &&
           match_text(cursor, "}") && strspn(out, "0123456789abcdef") == CHECKSUM_SHA256_HEX - 1;
}

/* ---- reading: the tables ---- */

typedef bool read_entry(struct cursor *cursor, struct manifest *manifest, uint32_t index);

/* Reads its entries, from after the opening bracket on. */
static int read_entries(struct cursor *cursor, struct manifest *manifest, const char *name,
                        uint32_t count, read_entry *read_one)
{
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++)
        ok = match_text(cursor, i > 0 ? ",\n" : "\n") && read_one(cursor, manifest, i);
    if (ok && match_text(cursor, "],\n"))
        return 0;
    return cursor->lacks_memory ? manifest_fail_memory() : manifest_fail_member(name);
}

static int read_layouts(struct cursor *cursor, struct manifest *manifest)
{
    struct layout_table *table = manifest->table;
    if (!match_text(cursor, "\"layouts\":["))
        return manifest_fail_member("layouts");
    table->num_layouts = count_entries(cursor, LAYOUT_TEXT_MIN);
    table->layouts = calloc(table->num_layouts + 1, sizeof(*table->layouts));
    if (!table->layouts)
        return manifest_fail_memory();
    return read_entries(cursor, manifest, "layouts", table->num_layouts, read_layout);
}

static int read_tensors(struct cursor *cursor, struct manifest *manifest)
{
    struct layout_table *table = manifest->table;
    if (!match_text(cursor, "\"tensors\":["))
        return manifest_fail_member("tensors");
    table->num_tensors = count_entries(cursor, TENSOR_TEXT_MIN);
    table->tensors = calloc(table->num_tensors + 1, sizeof(*table->tensors));
    table->layout_of = calloc(table->num_tensors + 1, sizeof(*table->layout_of));
    manifest->digests = calloc(table->num_tensors + 1, sizeof(*manifest->digests));
    if (!table->tensors || !table->layout_of || !manifest->digests)
        return manifest_fail_memory();
    return read_entries(cursor, manifest, "tensors", table->num_tensors, read_tensor);
}

static int read_shards(struct cursor *cursor, struct manifest *manifest)
{
    uint32_t count = manifest->summary.shards;
    if (!match_text(cursor, "\"shard_table\":[") || count_entries(cursor, SHARD_TEXT_MIN) != count)
        return manifest_fail_member("shard_table");
    manifest->shards = calloc(count, sizeof(*manifest->shards));
    if (!manifest->shards)
        return manifest_fail_memory();
    return read_entries(cursor, manifest, "shard_table", count, read_shard);
}

static int read_part_sums(struct cursor *cursor, struct manifest *manifest)
{
    uint32_t count = manifest->summary.shards;
    if (!match_text(cursor, "\"part_bytes\":") ||
        !read_number(cursor, &manifest->part_bytes, INT64_MAX) || manifest->part_bytes == 0 ||
        !match_text(cursor, ",\n"))
        return manifest_fail_member("part_bytes");
    if (!match_text(cursor, "\"part_hashes\":[") ||
        count_entries(cursor, CHECKSUM_SHA256_HEX) != count)
        return manifest_fail_member("part_hashes");
    manifest->part_sums = calloc(count, sizeof(*manifest->part_sums));
    if (!manifest->part_sums)
        return manifest_fail_memory();
    return read_entries(cursor, manifest, "part_hashes", count, read_part_sum);
}

int manifest_read_tables(struct manifest *manifest, const char *text, size_t bytes)
{
    struct cursor cursor = {text, text + bytes, false};
    manifest->table = calloc(1, sizeof(*manifest->table));
    if (!manifest->table)
        return manifest_fail_memory();
    int error = read_layouts(&cursor, manifest);
    if (!error)
        error = read_tensors(&cursor, manifest);
    if (!error)
        error = read_shards(&cursor, manifest);
    if (!error && manifest_is_of_tier(manifest))
        error = read_part_sums(&cursor, manifest);
    if (!error && cursor.at != cursor.end)
        error = manifest_fail_member("of the top level");
    return error;
}
