/* manifest.c - writing and reading the manifest (format in manifest.h).
 *
 * The text is one JSON object in a fixed order, one line per section, layout, tensor and shard, so
 * that it can be read and compared by eye. The summary occupies exactly the first 4096 bytes: it is
 * formatted, then padded with spaces; a reader formats what it has read again and demands the same
 * bytes.
 *
 * Reading: summary (with its own hash), SHA-256 of the whole, jansson for structure, then every
 * member with its range; at last what belongs together: layouts against shapes
 * (layout_table_check), shard sizes against layouts, total against shards. Only then is anything
 * handed out. The five free sections are kept as text: their places are found by a scan over the
 * (by then validated) top level, so numbers in them come back digit for digit. */
#include "proto/manifest.h"
#include "proto/json.h"

#include "proto/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define FORMAT_NAME "holdfast-manifest"
#define SHA_KEY "\"sha256\":\""
#define SHA_TAIL "\"}\n"
#define SHA_BYTES (sizeof(SHA_KEY) - 1 + CHECKSUM_SHA256_HEX - 1 + sizeof(SHA_TAIL) - 1)
#define NUM_MEMBERS 22 /* of the top level */
/* Objects and arrays: what the tables need, at least 32 bytes of text each, and as many as five
 * free sections of 1 MiB may have. jansson takes 220 bytes for "{}". */
#define CONTAINERS_MAX(bytes) ((2u << 20) + (bytes) / 32)

/* The free sections, in the order of the text. */
#define NUM_SECTIONS 5
static const char *const section_names[NUM_SECTIONS] = {"mesh", "identity", "config", "data",
                                                        "state"};
enum { SECTION_MESH, SECTION_IDENTITY, SECTION_CONFIG, SECTION_DATA, SECTION_STATE };

static char **section_of(struct manifest *manifest, int section)
{
    char **const sections[NUM_SECTIONS] = {&manifest->mesh_json, &manifest->identity_json,
                                           &manifest->config_json, &manifest->data_json,
                                           &manifest->state_json};
    return sections[section];
}

static int fail_member(const char *name)
{
    char detail[256];
    snprintf(detail, sizeof(detail), "member '%.200s'", name);
    return report_set(ERR_CORRUPT, "a manifest is damaged", detail, NULL);
}

static int fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for a manifest");
}

/* ---- how much there is ---- */

static int check_containers(const char *text, size_t bytes)
{
    size_t count = json_count(text, bytes).containers;
    if (count <= CONTAINERS_MAX(bytes))
        return 0;
    return report_error(ERR_CORRUPT, NULL, "a manifest of %zu bytes has %zu objects and arrays",
                        bytes, count);
}

/* ---- the summary ---- */

static bool is_time_valid(const char *time)
{
    size_t length = strnlen(time, sizeof(((struct manifest_summary *)0)->time));
    return length > 0 && length < sizeof(((struct manifest_summary *)0)->time) &&
           strspn(time, "0123456789-T:.Z+") == length;
}

/* Exactly MANIFEST_SUMMARY_BYTES characters. */
static void format_summary(char out[MANIFEST_SUMMARY_BYTES], const struct manifest_summary *summary)
{
    int length = snprintf(
        out, MANIFEST_SUMMARY_BYTES,
        "{\"format\":\"" FORMAT_NAME "\",\"version\":%" PRIu32 ",\"run\":\"%s\",\"step\":%" PRIu64
        ",\"attempt\":%" PRIu64 ",\"nonce\":\"%s\",\"bytes\":%" PRIu64
        ",\"time\":\"%s\",\"world_size\":%" PRIu32 ",\"shards\":%" PRIu32 ",\"summary_hash\":\"",
        summary->version, summary->run, summary->step, summary->attempt, summary->nonce,
        summary->bytes, summary->time, summary->world_size, summary->shards);
    CHECK(length > 0 && length + 32 < (int)MANIFEST_SUMMARY_BYTES);
    length += snprintf(out + length, MANIFEST_SUMMARY_BYTES - (size_t)length, "%016" PRIx64 "\",",
                       checksum_bytes(out, (size_t)length));
    memset(out + length, ' ', MANIFEST_SUMMARY_BYTES - (size_t)length);
    out[MANIFEST_SUMMARY_BYTES - 1] = '\n';
}

/* NULL, or the member that is out of range. */
static const char *find_bad_member(const struct manifest_summary *summary)
{
    if (!shard_run_is_valid(summary->run))
        return "run";
    if (!shard_nonce_is_valid(summary->nonce))
        return "nonce";
    if (!is_time_valid(summary->time))
        return "time";
    if (summary->step > INT64_MAX)
        return "step";
    if (summary->attempt > INT64_MAX)
        return "attempt";
    if (summary->bytes > INT64_MAX)
        return "bytes";
    if (summary->world_size == 0)
        return "world_size";
    return summary->shards == 0 ? "shards" : NULL;
}

static bool get_u64(uint64_t *out, const json_t *object, const char *key, uint64_t max)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return *out <= max;
}

static bool get_u32(uint32_t *out, const json_t *object, const char *key)
{
    uint64_t value = 0;
    bool ok = get_u64(&value, object, key, UINT32_MAX);
    *out = (uint32_t)value;
    return ok;
}

static bool get_string(char *out, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) >= size)
        return false;
    strcpy(out, text);
    return true;
}

static int parse_summary(struct manifest_summary *out, const json_t *root)
{
    char format[32];
    if (!get_string(format, sizeof(format), root, "format") || strcmp(format, FORMAT_NAME) != 0)
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast manifest");
    if (!get_u32(&out->version, root, "version"))
        return fail_member("version");
    if (out->version != MANIFEST_VERSION)
        return report_error(ERR_VERSION, "read it with a newer Holdfast",
                            "manifest version %" PRIu32 " is unknown", out->version);
    if (!get_string(out->run, sizeof(out->run), root, "run"))
        return fail_member("run");
    if (!get_u64(&out->step, root, "step", INT64_MAX))
        return fail_member("step");
    if (!get_u64(&out->attempt, root, "attempt", INT64_MAX))
        return fail_member("attempt");
    if (!get_string(out->nonce, sizeof(out->nonce), root, "nonce"))
        return fail_member("nonce");
    if (!get_u64(&out->bytes, root, "bytes", INT64_MAX))
        return fail_member("bytes");
    if (!get_string(out->time, sizeof(out->time), root, "time"))
        return fail_member("time");
    if (!get_u32(&out->world_size, root, "world_size"))
        return fail_member("world_size");
    if (!get_u32(&out->shards, root, "shards"))
        return fail_member("shards");
    const char *bad = find_bad_member(out);
    return bad ? fail_member(bad) : 0;
}

int manifest_read_summary(struct manifest_summary *out, const void *text, size_t bytes)
{
    char copy[MANIFEST_SUMMARY_BYTES];
    memset(out, 0, sizeof(*out));
    if (bytes < sizeof(copy))
        return report_error(ERR_CORRUPT, NULL, "a manifest is shorter than its summary");
    memcpy(copy, text, sizeof(copy));
    size_t length = sizeof(copy);
    while (length > 0 && (copy[length - 1] == ' ' || copy[length - 1] == '\n'))
        length--;
    if (length == 0 || copy[length - 1] != ',')
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast manifest");
    copy[length - 1] = '}';
    json_error_t reason;
    json_t *root;
    int error = json_read(&root, copy, length, &reason);
    if (error == ERR_MEMORY)
        return error;
    error = json_is_object(root)
                ? parse_summary(out, root)
                : report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast manifest");
    json_decref(root);
    if (error)
        return error;
    format_summary(copy, out);
    return memcmp(copy, text, sizeof(copy)) == 0 ? 0 : fail_member("summary_hash");
}

bool manifest_summary_equal(const struct manifest_summary *a, const struct manifest_summary *b)
{
    return strcmp(a->nonce, b->nonce) == 0 && strcmp(a->run, b->run) == 0 && a->step == b->step &&
           a->attempt == b->attempt && a->bytes == b->bytes && a->shards == b->shards &&
           a->world_size == b->world_size;
}

int manifest_new_nonce(char out[33])
{
    unsigned char random[16];
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) /* so few bytes come at once */
        return report_errno(ERR_IO, "could not get a random number", NULL);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(out + 2 * i, 3, "%02x", random[i]);
    return 0;
}

void manifest_now(char out[32])
{
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

void manifest_identity(struct shard_identity *out, const struct manifest_summary *summary,
                       uint32_t shard)
{
    *out = (struct shard_identity){.step = summary->step,
                                   .attempt = summary->attempt,
                                   .shard = shard,
                                   .shards = summary->shards};
    memcpy(out->run, summary->run, sizeof(out->run));
    memcpy(out->nonce, summary->nonce, sizeof(out->nonce));
}

int manifest_key(char *out, size_t size, const struct manifest_summary *summary)
{
    int error = shard_dir_key(out, size, summary->run, summary->step, summary->attempt);
    if (error != 0)
        return error;
    size_t used = strlen(out);
    if (size - used <= strlen("/" MANIFEST_NAME))
        return report_error(ERR_INVALID, NULL, "the key of the manifest in %s does not fit", out);
    strcpy(out + used, "/" MANIFEST_NAME);
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

/* "shard-00001-of-00008.safetensors" */
static int get_file_name(char *out, size_t size, const struct manifest_summary *summary,
                         uint32_t shard)
{
    char key[512];
    struct shard_identity identity;
    manifest_identity(&identity, summary, shard);
    int error = shard_key(key, sizeof(key), &identity);
    if (error)
        return error;
    const char *name = strrchr(key, '/') + 1;
    CHECK(strlen(name) < size);
    strcpy(out, name);
    return 0;
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
                ",\"table_hash\":\"%016" PRIx64 "\"}",
                i ? "," : "", name, shard->bytes, shard->data_start, shard->table_hash);
    }
    fprintf(out, "],\n");
}

static int check_section(const char *text, const char *name)
{
    json_t *root;
    char whose[64];
    snprintf(whose, sizeof(whose), "'%s' of a manifest", name);
    int error = json_read_object(&root, text, whose);
    json_decref(root);
    return error;
}

/* What belongs together: sizes of shards against the layouts, their sum against the summary. */
static int check_sizes(const struct manifest *manifest)
{
    uint32_t shards = manifest->summary.shards;
    uint64_t sum = 0;
    uint64_t *tensor_bytes = malloc(shards * sizeof(*tensor_bytes));
    if (!tensor_bytes)
        return fail_memory();
    int error = layout_shard_bytes(tensor_bytes, manifest->table, shards);
    for (uint32_t i = 0; !error && i < shards; i++) {
        struct shard_geometry geometry;
        error = shard_geometry_derive(&geometry, manifest->shards[i].data_start, tensor_bytes[i]);
        if (!error && (geometry.file_bytes != manifest->shards[i].bytes ||
                       geometry.file_bytes - geometry.table_start > SHARD_TABLE_BYTES_MAX ||
                       __builtin_add_overflow(sum, geometry.file_bytes, &sum)))
            error = fail_member("shard_table");
    }
    free(tensor_bytes);
    if (!error && sum != manifest->summary.bytes)
        error = fail_member("bytes");
    return error;
}

static int check_content(const struct manifest *manifest)
{
    const char *bad = find_bad_member(&manifest->summary);
    if (!bad && manifest->summary.version != MANIFEST_VERSION)
        bad = "version";
    if (!bad &&
        (manifest->parent_step > INT64_MAX || manifest->parent_attempt > INT64_MAX ||
         (manifest->converted_from[0] != '\0' && !shard_nonce_is_valid(manifest->converted_from))))
        bad = "lineage";
    if (bad)
        return report_error(ERR_INVALID, NULL, "'%s' of a manifest is not valid", bad);
    for (int i = 0; i < NUM_SECTIONS; i++) {
        const char *text = *section_of((struct manifest *)manifest, i);
        int error = text ? check_section(text, section_names[i]) : 0;
        if (error)
            return error;
    }
    int error = layout_table_check(manifest->table, manifest->summary.shards);
    return error ? error : check_sizes(manifest);
}

static int print_body(FILE *out, const struct manifest *manifest)
{
    json_begin();
    json_t *version = json_string(manifest->code_version);
    char *version_text = version ? json_dumps(version, JSON_ENCODE_ANY) : NULL;
    json_decref(version);
    if (!json_end()) {
        free(version_text);
        return fail_memory();
    }
    if (!version_text)
        return report_error(ERR_INVALID, NULL, "'code_version' of a manifest is not UTF-8");
    const char *sections[NUM_SECTIONS];
    for (int i = 0; i < NUM_SECTIONS; i++) {
        sections[i] = *section_of((struct manifest *)manifest, i);
        if (!sections[i])
            sections[i] = "{}";
    }
    fprintf(out, "\"lineage\":{\"step\":%" PRIu64 ",\"attempt\":%" PRIu64, manifest->parent_step,
            manifest->parent_attempt);
    if (manifest->converted_from[0] != '\0')
        fprintf(out, ",\"converted_from\":\"%s\"", manifest->converted_from);
    fprintf(out, "},\n");
    for (int i = SECTION_MESH; i <= SECTION_CONFIG; i++)
        fprintf(out, "\"%s\":%s,\n", section_names[i], sections[i]);
    fprintf(out, "\"code_version\":%s,\n", version_text);
    for (int i = SECTION_DATA; i <= SECTION_STATE; i++)
        fprintf(out, "\"%s\":%s,\n", section_names[i], sections[i]);
    free(version_text);
    print_layouts(out, manifest->table);
    print_tensors(out, manifest);
    print_shards(out, manifest);
    return 0;
}

int manifest_write(char **out, size_t *out_bytes, const struct manifest *manifest)
{
    int error = check_content(manifest);
    if (error)
        return error;
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (!file)
        return fail_memory();
    char summary[MANIFEST_SUMMARY_BYTES];
    char sha[CHECKSUM_SHA256_HEX];
    format_summary(summary, &manifest->summary);
    fwrite(summary, 1, sizeof(summary), file);
    error = print_body(file, manifest);
    fflush(file);
    if (!error && !ferror(file))
        error = checksum_sha256_hex(sha, text, length);
    if (!error && !ferror(file))
        fprintf(file, SHA_KEY "%s" SHA_TAIL, sha);
    bool failed = ferror(file);
    failed = fclose(file) != 0 || failed;
    if (!error && failed)
        error = fail_memory();
    if (!error && length > MANIFEST_BYTES_MAX)
        error = report_error(ERR_INVALID, "with fewer shards it is smaller",
                             "a manifest would pass %u bytes", MANIFEST_BYTES_MAX);
    if (!error && check_containers(text, length) != 0) /* a reader would refuse it */
        error = ERR_INVALID;
    if (error) {
        free(text);
        return error;
    }
    *out = text;
    *out_bytes = length;
    return 0;
}

/* ---- reading: layouts, tensors, shards ---- */

/* A JSON array of numbers, in fresh memory. */
static int read_numbers(uint64_t **out, uint32_t *out_count, const json_t *array)
{
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count > UINT32_MAX)
        return fail_member("layouts");
    *out = malloc((count ? count : 1) * sizeof(**out));
    if (!*out)
        return fail_memory();
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(array, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0)
            return fail_member("layouts");
        (*out)[i] = (uint64_t)json_integer_value(value);
    }
    *out_count = (uint32_t)count;
    return 0;
}

/* The number of cells is proved against the owners here; order and range of the rest by
 * layout_table_check. */
static int read_layout(struct layout *out, const json_t *entry)
{
    const json_t *cuts = json_object_get(entry, "cuts");
    const json_t *owners = json_object_get(entry, "owners");
    uint64_t cells = 1;
    uint32_t num_owners = 0;
    if (json_object_size(entry) != 2 || !json_is_array(cuts) ||
        json_array_size(cuts) > LAYOUT_DIMS_MAX)
        return fail_member("layouts");
    for (uint32_t d = 0; d < json_array_size(cuts); d++) {
        int error = read_numbers(&out->cuts[d], &out->num_cuts[d], json_array_get(cuts, d));
        if (error)
            return error;
        if (out->num_cuts[d] == 0 || __builtin_mul_overflow(cells, out->num_cuts[d] - 1, &cells))
            return fail_member("layouts");
    }
    out->dims = (uint32_t)json_array_size(cuts);
    uint64_t *numbers = NULL;
    int error = read_numbers(&numbers, &num_owners, owners);
    if (error || num_owners != cells) {
        free(numbers);
        return error ? error : fail_member("layouts");
    }
    out->owners = malloc((num_owners ? num_owners : 1) * sizeof(*out->owners));
    for (uint32_t i = 0; out->owners && i < num_owners; i++)
        out->owners[i] = numbers[i] < UINT32_MAX ? (uint32_t)numbers[i] : UINT32_MAX;
    free(numbers);
    return out->owners ? 0 : fail_memory();
}

static bool get_hex(uint64_t *out, const json_t *value)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

static bool read_tensor(struct manifest *out, uint32_t index, const json_t *entry)
{
    struct tensor_meta *meta = &out->table->tensors[index];
    const json_t *digest = json_object_get(entry, "digest");
    const json_t *shape = json_object_get(entry, "shape");
    char dtype[8];
    if (json_object_size(entry) != 5 ||
        !get_string(meta->name, sizeof(meta->name), entry, "name") ||
        !get_string(dtype, sizeof(dtype), entry, "dtype") ||
        dtype_parse(&meta->dtype, dtype) != 0 ||
        !get_u32(&out->table->layout_of[index], entry, "layout"))
        return false;
    if (!json_is_array(shape) || json_array_size(shape) > LAYOUT_DIMS_MAX ||
        json_array_size(digest) != 2)
        return false;
    meta->dims = (uint32_t)json_array_size(shape);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++) {
        const json_t *value = json_array_get(shape, d);
        if (d < meta->dims && (!json_is_integer(value) || json_integer_value(value) < 0))
            return false;
        meta->shape[d] = d < meta->dims ? (uint64_t)json_integer_value(value) : 1;
    }
    return get_hex(&out->digests[index].sum[0], json_array_get(digest, 0)) &&
           get_hex(&out->digests[index].sum[1], json_array_get(digest, 1));
}

static bool read_shard(struct manifest *out, uint32_t index, const json_t *entry)
{
    char name[64], expected[64];
    struct manifest_shard *shard = &out->shards[index];
    return json_object_size(entry) == 4 && get_string(name, sizeof(name), entry, "file") &&
           get_file_name(expected, sizeof(expected), &out->summary, index) == 0 &&
           strcmp(name, expected) == 0 && get_u64(&shard->bytes, entry, "bytes", INT64_MAX) &&
           get_u64(&shard->data_start, entry, "data_start", INT64_MAX) &&
           get_hex(&shard->table_hash, json_object_get(entry, "table_hash"));
}

static int read_tables(struct manifest *out, const json_t *root)
{
    const json_t *layouts = json_object_get(root, "layouts");
    const json_t *tensors = json_object_get(root, "tensors");
    const json_t *shards = json_object_get(root, "shard_table");
    size_t num_layouts = json_array_size(layouts), num_tensors = json_array_size(tensors);
    if (!json_is_array(layouts) || !json_is_array(tensors))
        return fail_member(json_is_array(layouts) ? "tensors" : "layouts");
    if (!json_is_array(shards) || json_array_size(shards) != out->summary.shards)
        return fail_member("shard_table");
    struct layout_table *table = out->table = calloc(1, sizeof(*table));
    if (!table)
        return fail_memory();
    table->layouts = calloc(num_layouts + 1, sizeof(*table->layouts));
    table->tensors = calloc(num_tensors + 1, sizeof(*table->tensors));
    table->layout_of = calloc(num_tensors + 1, sizeof(*table->layout_of));
    out->digests = calloc(num_tensors + 1, sizeof(*out->digests));
    out->shards = calloc(out->summary.shards, sizeof(*out->shards));
    if (!table->layouts || !table->tensors || !table->layout_of || !out->digests || !out->shards)
        return fail_memory();
    table->num_layouts = (uint32_t)num_layouts;
    table->num_tensors = (uint32_t)num_tensors;
    for (uint32_t i = 0; i < num_layouts; i++) {
        int error = read_layout(&table->layouts[i], json_array_get(layouts, i));
        if (error)
            return error;
    }
    for (uint32_t i = 0; i < num_tensors; i++) {
        if (!read_tensor(out, i, json_array_get(tensors, i)))
            return fail_member("tensors");
    }
    for (uint32_t i = 0; i < out->summary.shards; i++) {
        if (!read_shard(out, i, json_array_get(shards, i)))
            return fail_member("shard_table");
    }
    int error = layout_table_check(table, out->summary.shards);
    if (!error)
        error = check_sizes(out);
    return error ? error : layout_table_index(table);
}

/* ---- reading: the free sections ---- */

static size_t skip_space(const char *text, size_t at, size_t end)
{
    while (at < end &&
           (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'))
        at++;
    return at;
}

/* The place behind the value that begins at `at`, in JSON that is known to be well formed. */
static size_t skip_value(const char *text, size_t at, size_t end)
{
    uint32_t depth = 0;
    while (at < end) {
        char c = text[at];
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return at;
        if (c == '"') {
            at = json_skip_string(text, at, end);
            continue;
        }
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        at++;
        if (depth == 0 && (c == '}' || c == ']'))
            return at;
    }
    return at;
}

static int keep_section(struct manifest *out, const char *key, size_t key_bytes, const char *value,
                        size_t value_bytes)
{
    for (int i = 0; i < NUM_SECTIONS; i++) {
        if (strlen(section_names[i]) != key_bytes || memcmp(section_names[i], key, key_bytes) != 0)
            continue;
        char **section = section_of(out, i);
        if (value_bytes == 0 || value[0] != '{' || *section)
            return fail_member(section_names[i]);
        *section = strndup(value, value_bytes);
        return *section ? 0 : fail_memory();
    }
    return 0;
}

static int read_sections(struct manifest *out, const char *text, size_t bytes)
{
    size_t at = skip_space(text, 0, bytes) + 1; /* behind the opening brace */
    int error = 0;
    while (!error) {
        at = skip_space(text, at, bytes);
        if (at >= bytes || text[at] != '"')
            break;
        size_t key = at + 1;
        at = json_skip_string(text, at, bytes);
        size_t key_bytes = at - key - 1;
        at = skip_space(text, at, bytes) + 1; /* behind the colon */
        at = skip_space(text, at, bytes);
        size_t value = at;
        at = skip_value(text, at, bytes);
        if (at > bytes || value > at)
            return fail_member("sections");
        error = keep_section(out, text + key, key_bytes, text + value, at - value);
        at = skip_space(text, at, bytes) + 1; /* behind the comma, or the end */
    }
    for (int i = 0; !error && i < NUM_SECTIONS; i++) {
        if (!*section_of(out, i))
            error = fail_member(section_names[i]);
    }
    return error;
}

/* ---- reading ---- */

static int check_sha(const char *text, size_t bytes)
{
    char sha[CHECKSUM_SHA256_HEX];
    if (bytes < MANIFEST_SUMMARY_BYTES + SHA_BYTES)
        return fail_member("sha256");
    const char *key = text + bytes - SHA_BYTES;
    const char *digits = key + sizeof(SHA_KEY) - 1;
    int error = checksum_sha256_hex(sha, text, bytes - SHA_BYTES);
    if (error)
        return error;
    if (memcmp(key, SHA_KEY, sizeof(SHA_KEY) - 1) != 0 ||
        memcmp(digits, sha, CHECKSUM_SHA256_HEX - 1) != 0 ||
        memcmp(digits + CHECKSUM_SHA256_HEX - 1, SHA_TAIL, sizeof(SHA_TAIL) - 1) != 0)
        return fail_member("sha256");
    return 0;
}

static bool read_lineage(struct manifest *out, const json_t *lineage)
{
    bool is_converted = json_object_size(lineage) == 3;
    return (is_converted || json_object_size(lineage) == 2) &&
           get_u64(&out->parent_step, lineage, "step", INT64_MAX) &&
           get_u64(&out->parent_attempt, lineage, "attempt", INT64_MAX) &&
           (!is_converted || (get_string(out->converted_from, sizeof(out->converted_from), lineage,
                                         "converted_from") &&
                              shard_nonce_is_valid(out->converted_from)));
}

static int read_body(struct manifest *out, const char *text, size_t bytes)
{
    int error = check_containers(text, bytes);
    if (error)
        return error;
    json_error_t reason;
    json_t *root;
    error = json_read(&root, text, bytes, &reason);
    if (error == ERR_MEMORY)
        return error;
    error = 0;
    if (!json_is_object(root))
        error = report_set(ERR_CORRUPT, "a manifest is damaged", reason.text, NULL);
    else if (json_object_size(root) != NUM_MEMBERS)
        error = fail_member("of the top level");
    else if (!read_lineage(out, json_object_get(root, "lineage")))
        error = fail_member("lineage");
    else if (!get_string(out->code_version, sizeof(out->code_version), root, "code_version"))
        error = fail_member("code_version");
    if (!error)
        error = read_tables(out, root);
    if (!error)
        error = read_sections(out, text, bytes);
    json_decref(root);
    return error;
}

int manifest_read(struct manifest **out, const void *text, size_t bytes)
{
    if (bytes > MANIFEST_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "a manifest is longer than %u bytes",
                            MANIFEST_BYTES_MAX);
    struct manifest *manifest = calloc(1, sizeof(*manifest));
    if (!manifest)
        return fail_memory();
    int error = manifest_read_summary(&manifest->summary, text, bytes);
    if (!error)
        error = check_sha(text, bytes);
    if (!error)
        error = read_body(manifest, text, bytes);
    manifest->text_hash = checksum_bytes(text, bytes);
    if (error) {
        manifest_free(manifest);
        return error;
    }
    *out = manifest;
    return 0;
}

void manifest_free(struct manifest *manifest)
{
    if (!manifest)
        return;
    for (int i = 0; i < NUM_SECTIONS; i++)
        free(*section_of(manifest, i));
    layout_table_free(manifest->table);
    free(manifest->digests);
    free(manifest->shards);
    free(manifest);
}
