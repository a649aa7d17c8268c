/* manifest.c - writes and reads the manifest (format in manifest.h).
 *
 * The text is one JSON object in a fixed order, one line per section, layout, tensor and shard, so
 * that a person can read and compare it. The summary occupies exactly the first 4096 bytes: it is
 * formatted, then padded with spaces. A reader formats the parsed summary again and requires the
 * same bytes.
 *
 * Reading checks the summary (with its own hash) and the SHA-256 of the whole. jansson parses the
 * text before the tables; then come every member with its range, and the tables
 * (manifest_tables.c). Last come layouts against shapes (layout_table_check), shard sizes against
 * layouts, and the total against shards. Only after all checks does the caller get a manifest. The
 * five free sections are kept as text, found by a scan over the validated top level, so numbers in
 * them keep their digits. */
#include "proto/base/json.h"
#include "proto/base/memfile.h"
#include "proto/base/report.h"
#include "proto/format/manifest_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define VERSION_MIN 1 /* the oldest version that is read */
#define VERSION_OF_HEADER_HASHES 2
#define FORMAT_NAME "holdfast-manifest"
#define SHA_KEY "\"sha256\":\""
#define SHA_TAIL "\"}\n"
#define SHA_BYTES (sizeof(SHA_KEY) - 1 + CHECKSUM_SHA256_HEX - 1 + sizeof(SHA_TAIL) - 1)
#define NUM_MEMBERS 18 /* of the top level, before the tables */
/* The most objects and arrays before the tables, and commas: as many as five free sections of 1 MiB
 * can have. jansson needs 220 bytes for "{}", and up to 90 for a value followed by a comma. */
#define CONTAINERS_MAX (2u << 20)
#define COMMAS_MAX (3u << 20)

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

int manifest_fail_member(const char *name)
{
    char detail[256];
    snprintf(detail, sizeof(detail), "member '%.200s'", name);
    return report_set(ERR_CORRUPT, "a manifest is damaged", detail, NULL);
}

int manifest_fail_memory(void)
{
    return report_error(ERR_MEMORY, NULL, "no memory for a manifest");
}

/* ---- the members of the top level ---- */

/* The index of the tables, or `bytes`. */
static size_t find_tables(const char *text, size_t bytes)
{
    struct json_member member;
    size_t at = json_first_member(text, bytes);
    while (json_next_member(&member, text, &at, bytes)) {
        if (json_member_is(&member, "layouts"))
            return (size_t)(member.key - 1 - text);
    }
    return bytes;
}

/* `bytes`: up to the tables. */
static int check_count(const char *text, size_t bytes)
{
    struct json_count count = json_count(text, bytes);
    if (count.containers <= CONTAINERS_MAX && count.commas <= COMMAS_MAX)
        return 0;
    return report_error(ERR_CORRUPT, NULL,
                        "a manifest has %zu objects and arrays and %zu commas before its tables",
                        count.containers, count.commas);
}

/* ---- the summary ---- */

static bool is_time_valid(const char *time)
{
    size_t length = strnlen(time, sizeof(((struct manifest_summary *)0)->time));
    return length > 0 && length < sizeof(((struct manifest_summary *)0)->time) &&
           strspn(time, "0123456789-T:.Z+") == length;
}

/* Writes exactly MANIFEST_SUMMARY_BYTES characters. */
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

/* Works for a summary of any version: after its own members each has "summary_hash" over the bytes
 * before its digits. Without this a flipped digit of the version looks like a manifest of a later
 * Holdfast. */
static bool summary_hash_fits(const char text[MANIFEST_SUMMARY_BYTES])
{
    static const char key[] = "\"summary_hash\":\"";
    const char *at = memmem(text, MANIFEST_SUMMARY_BYTES, key, sizeof(key) - 1);
    char digits[17];
    if (!at || at + sizeof(key) + sizeof(digits) > text + MANIFEST_SUMMARY_BYTES)
        return false;
    at += sizeof(key) - 1;
    snprintf(digits, sizeof(digits), "%016" PRIx64, checksum_bytes(text, (size_t)(at - text)));
    return memcmp(at, digits, sizeof(digits) - 1) == 0;
}

/* `text`: the text of `root`. */
static int parse_summary(struct manifest_summary *out, const json_t *root, const char *text)
{
    char format[32];
    if (!get_string(format, sizeof(format), root, "format") || strcmp(format, FORMAT_NAME) != 0)
        return report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast manifest");
    if (!get_u32(&out->version, root, "version"))
        return manifest_fail_member("version");
    if (out->version > MANIFEST_VERSION_OF_TIER && !summary_hash_fits(text))
        return manifest_fail_member("summary_hash");
    if (out->version > MANIFEST_VERSION_OF_TIER)
        return report_error(ERR_VERSION, "read it with the Holdfast that wrote it, or a later one",
                            "manifest version %" PRIu32 " is unknown: this Holdfast reads %u to %u",
                            out->version, VERSION_MIN, MANIFEST_VERSION_OF_TIER);
    if (out->version < VERSION_MIN)
        return manifest_fail_member("version");
    if (!get_string(out->run, sizeof(out->run), root, "run"))
        return manifest_fail_member("run");
    if (!get_u64(&out->step, root, "step", INT64_MAX))
        return manifest_fail_member("step");
    if (!get_u64(&out->attempt, root, "attempt", INT64_MAX))
        return manifest_fail_member("attempt");
    if (!get_string(out->nonce, sizeof(out->nonce), root, "nonce"))
        return manifest_fail_member("nonce");
    if (!get_u64(&out->bytes, root, "bytes", INT64_MAX))
        return manifest_fail_member("bytes");
    if (!get_string(out->time, sizeof(out->time), root, "time"))
        return manifest_fail_member("time");
    if (!get_u32(&out->world_size, root, "world_size"))
        return manifest_fail_member("world_size");
    if (!get_u32(&out->shards, root, "shards"))
        return manifest_fail_member("shards");
    const char *bad = find_bad_member(out);
    return bad ? manifest_fail_member(bad) : 0;
}

/* Parses the members of the top level before text[bytes], the last with its comma, as one object.
 * Errors are those of json_read(). */
static int read_members(json_t **out, const char *text, size_t bytes, json_error_t *out_reason)
{
    *out = NULL;
    while (bytes > 0 && (text[bytes - 1] == ' ' || text[bytes - 1] == '\n'))
        bytes--;
    if (bytes == 0 || text[bytes - 1] != ',') {
        snprintf(out_reason->text, sizeof(out_reason->text), "a comma is missing");
        return ERR_CORRUPT;
    }
    char *copy = malloc(bytes);
    if (!copy)
        return manifest_fail_memory();
    memcpy(copy, text, bytes);
    copy[bytes - 1] = '}';
    int error = json_read(out, copy, bytes, out_reason);
    free(copy);
    return error;
}

int manifest_read_summary(struct manifest_summary *out, const void *text, size_t bytes)
{
    char again[MANIFEST_SUMMARY_BYTES];
    json_error_t reason;
    json_t *root;
    memset(out, 0, sizeof(*out));
    if (bytes < sizeof(again))
        return report_error(ERR_CORRUPT, NULL, "a manifest is shorter than its summary");
    int error = read_members(&root, text, sizeof(again), &reason);
    if (error == ERR_MEMORY)
        return error;
    error = error ? report_error(ERR_CORRUPT, NULL, "the file is not a Holdfast manifest")
                  : parse_summary(out, root, text);
    json_decref(root);
    if (error)
        return error;
    format_summary(again, out);
    return memcmp(again, text, sizeof(again)) == 0 ? 0 : manifest_fail_member("summary_hash");
}

bool manifest_has_header_hashes(const struct manifest *manifest)
{
    return manifest->summary.version >= VERSION_OF_HEADER_HASHES;
}

bool manifest_is_of_tier(const struct manifest *manifest)
{
    return manifest->summary.version == MANIFEST_VERSION_OF_TIER;
}

bool manifest_header_fits(const struct manifest *manifest, uint32_t shard, const void *bytes,
                          uint64_t num_bytes)
{
    uint64_t hash;
    return !manifest_has_header_hashes(manifest) || (shard_header_hash(&hash, bytes, num_bytes) &&
                                                     hash == manifest->shards[shard].header_hash);
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
    /* So few bytes never come in pieces. */
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
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
    memcpy(out->origin, summary->origin, sizeof(out->origin));
    memcpy(out->nonce, summary->nonce, sizeof(out->nonce));
}

int manifest_key(char *out, size_t size, const struct manifest_summary *summary)
{
    ERR_TRY(shard_dir_key(out, size, summary->run, summary->step, summary->attempt));
    size_t used = strlen(out);
    if (size - used <= strlen("/" MANIFEST_NAME))
        return report_error(ERR_INVALID, NULL, "the key of the manifest in %s does not fit", out);
    strcpy(out + used, "/" MANIFEST_NAME);
    return 0;
}

/* ---- writing ---- */

static int check_section(const char *text, const char *name)
{
    json_t *root;
    char whose[64];
    snprintf(whose, sizeof(whose), "'%s' of a manifest", name);
    int error = json_read_object(&root, text, whose);
    json_decref(root);
    return error;
}

/* Compares sizes of shards with the layouts, and their sum with the summary. */
static int check_sizes(const struct manifest *manifest)
{
    uint32_t shards = manifest->summary.shards;
    uint64_t sum = 0;
    uint64_t *tensor_bytes = malloc(shards * sizeof(*tensor_bytes));
    if (!tensor_bytes)
        return manifest_fail_memory();
    int error = layout_shard_bytes(tensor_bytes, manifest->table, shards);
    for (uint32_t i = 0; !error && i < shards; i++) {
        struct shard_geometry geometry;
        error = shard_geometry_derive(&geometry, manifest->shards[i].data_start, tensor_bytes[i]);
        if (!error && (geometry.file_bytes != manifest->shards[i].bytes ||
                       geometry.file_bytes - geometry.table_start > SHARD_TABLE_BYTES_MAX ||
                       __builtin_add_overflow(sum, geometry.file_bytes, &sum)))
            error = manifest_fail_member("shard_table");
    }
    free(tensor_bytes);
    if (!error && sum != manifest->summary.bytes)
        error = manifest_fail_member("bytes");
    return error;
}

static int check_content(const struct manifest *manifest)
{
    const char *bad = find_bad_member(&manifest->summary);
    if (!bad && manifest->summary.version !=
                    (manifest->part_sums ? MANIFEST_VERSION_OF_TIER : MANIFEST_VERSION))
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
        return manifest_fail_memory();
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
    manifest_print_tables(out, manifest);
    return 0;
}

int manifest_write(char **out, size_t *out_bytes, const struct manifest *manifest)
{
    ERR_TRY(check_content(manifest));
    char *text = NULL;
    size_t length = 0;
    FILE *file = memfile_open(&text, &length);
    if (!file)
        return manifest_fail_memory();
    char summary[MANIFEST_SUMMARY_BYTES];
    char sha[CHECKSUM_SHA256_HEX];
    format_summary(summary, &manifest->summary);
    fwrite(summary, 1, sizeof(summary), file);
    int error = print_body(file, manifest);
    fflush(file);
    if (!error && !ferror(file))
        error = checksum_sha256_hex(sha, text, length);
    if (!error && !ferror(file))
        fprintf(file, SHA_KEY "%s" SHA_TAIL, sha);
    if (!memfile_close(file) && !error)
        error = manifest_fail_memory();
    if (!error && length > MANIFEST_BYTES_MAX)
        error = report_error(ERR_INVALID, "with fewer shards it is smaller",
                             "a manifest would pass %u bytes", MANIFEST_BYTES_MAX);
    if (!error && check_count(text, find_tables(text, length)) != 0) /* no reader accepts it */
        error = ERR_INVALID;
    if (error) {
        free(text);
        return error;
    }
    *out = text;
    *out_bytes = length;
    return 0;
}

/* ---- reading: the free sections ---- */

static int read_sections(struct manifest *out, const char *text, size_t bytes)
{
    char **sections[NUM_SECTIONS];
    const char *bad;
    for (int i = 0; i < NUM_SECTIONS; i++)
        sections[i] = section_of(out, i);
    int error = json_copy_objects(sections, section_names, NUM_SECTIONS, text, bytes, &bad);
    if (error == ERR_MEMORY)
        return manifest_fail_memory();
    return error ? manifest_fail_member(bad) : 0;
}

/* ---- reading ---- */

static int check_sha(const char *text, size_t bytes)
{
    char sha[CHECKSUM_SHA256_HEX];
    if (bytes < MANIFEST_SUMMARY_BYTES + SHA_BYTES)
        return manifest_fail_member("sha256");
    const char *key = text + bytes - SHA_BYTES;
    const char *digits = key + sizeof(SHA_KEY) - 1;
    ERR_TRY(checksum_sha256_hex(sha, text, bytes - SHA_BYTES));
    if (memcmp(key, SHA_KEY, sizeof(SHA_KEY) - 1) != 0 ||
        memcmp(digits, sha, CHECKSUM_SHA256_HEX - 1) != 0 ||
        memcmp(digits + CHECKSUM_SHA256_HEX - 1, SHA_TAIL, sizeof(SHA_TAIL) - 1) != 0)
        return manifest_fail_member("sha256");
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

/* Reads the text before the tables. */
static int read_head(struct manifest *out, const char *text, size_t bytes)
{
    ERR_TRY(check_count(text, bytes));
    json_error_t reason;
    json_t *root;
    int error = read_members(&root, text, bytes, &reason);
    if (error == ERR_CORRUPT)
        return report_set(ERR_CORRUPT, "a manifest is damaged", reason.text, NULL);
    if (error)
        return error;
    if (json_object_size(root) != NUM_MEMBERS)
        error = manifest_fail_member("of the top level");
    else if (!read_lineage(out, json_object_get(root, "lineage")))
        error = manifest_fail_member("lineage");
    else if (!get_string(out->code_version, sizeof(out->code_version), root, "code_version"))
        error = manifest_fail_member("code_version");
    json_decref(root);
    return error ? error : read_sections(out, text, bytes);
}

/* `bytes`: without the last member. */
static int read_body(struct manifest *out, const char *text, size_t bytes)
{
    size_t tables = find_tables(text, bytes);
    int error = read_head(out, text, tables);
    if (!error)
        error = manifest_read_tables(out, text + tables, bytes - tables);
    if (!error)
        error = layout_table_check(out->table, out->summary.shards);
    if (!error)
        error = check_sizes(out);
    return error ? error : layout_table_index(out->table);
}

int manifest_read(struct manifest **out, const void *text, size_t bytes)
{
    if (bytes > MANIFEST_BYTES_MAX)
        return report_error(ERR_CORRUPT, NULL, "a manifest is longer than %u bytes",
                            MANIFEST_BYTES_MAX);
    struct manifest *manifest = calloc(1, sizeof(*manifest));
    if (!manifest)
        return manifest_fail_memory();
    int error = manifest_read_summary(&manifest->summary, text, bytes);
    if (!error)
        error = check_sha(text, bytes);
    if (!error)
        error = read_body(manifest, text, bytes - SHA_BYTES);
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
    free(manifest->part_sums);
    free(manifest);
}
