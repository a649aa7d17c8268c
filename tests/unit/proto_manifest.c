/* proto_manifest.c - the manifest.
 *
 * Goal: a written manifest is read back equal, text sections to the byte. The summary is the first
 * 4096 bytes; and no damaged or hostile manifest is accepted. Method: a manifest over real plans is
 * written and read. Then every bit of it is flipped, it is cut at every length; and, with its
 * hashes made right again, it is changed at random and by a list of lies. The seed is printed;
 * SEED= repeats a run. */
#include "proto/base/clock.h"
#include "proto/base/json.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "tests/unit/nested.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NONCE "0123456789abcdef0123456789abcdef"
#define RANKS 3
#define TENSORS 4
#define SHA_BYTES 77 /* "sha256":"<64 digits>"} and a newline */

/* ---- a manifest ---- */

static struct manifest manifest;
static struct digest digests[TENSORS];
static struct manifest_shard shards[RANKS];
static char *text;
static size_t text_bytes;

static void describe(struct slice *slice, const char *name, enum dtype dtype, uint32_t dims,
                     uint64_t rows, uint32_t rank)
{
    memset(slice, 0, sizeof(*slice));
    snprintf(slice->tensor.name, sizeof(slice->tensor.name), "%s", name);
    slice->tensor.dtype = dtype;
    slice->tensor.dims = dims;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        slice->tensor.shape[d] = slice->box.extent[d] = d == 1 && dims > 1 ? 6 : 1;
    if (dims > 0) {
        slice->tensor.shape[0] = rows;
        slice->box.offset[0] = rows * rank / RANKS;
        slice->box.extent[0] = rows * (rank + 1) / RANKS - slice->box.offset[0];
    }
}

static struct layout_table *plan_table(void)
{
    static struct slice slices[RANKS][TENSORS];
    const struct slice *list[RANKS];
    uint32_t counts[RANKS];
    struct layout_table *table = NULL;
    for (uint32_t r = 0; r < RANKS; r++) {
        describe(&slices[r][0], "w", DTYPE_F32, 2, 10, r);
        describe(&slices[r][1], "optimizer.exp_avg.w", DTYPE_F32, 2, 10, r);
        describe(&slices[r][2], "counter", DTYPE_I64, 0, 0, r);
        describe(&slices[r][3], "none", DTYPE_BF16, 2, 0, r);
        list[r] = slices[r];
        counts[r] = TENSORS;
    }
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), 0);
    return table;
}

static int open_manifest(void **state)
{
    (void)state;
    seed_random();
    manifest = (struct manifest){
        .summary = {.version = MANIFEST_VERSION,
                    .run = "first",
                    .step = 1000,
                    .attempt = 3,
                    .nonce = NONCE,
                    .time = "2026-11-20T07:40:00.123Z",
                    .world_size = RANKS,
                    .shards = RANKS},
        .parent_step = 900,
        .parent_attempt = 2,
        .mesh_json = "{\"axes\":[\"pp\",\"dp_shard\"],\"degrees\":[1,3]}",
        .identity_json = "{}",
        .config_json = "{ \"optimizer\" : {\"lr\":3e-4, \"eps\": 1e-08},\n\"x\":\"}],{\\\"\\\\\" }",
        .state_json = "{\"metrics\":{\"loss\":0.1000000000000000055}}",
        .code_version = "v1 \"quoted\" \\ caf\xc3\xa9",
        .table = plan_table(),
        .digests = digests,
        .shards = shards,
    };
    for (uint32_t t = 0; t < TENSORS; t++)
        digests[t] = (struct digest){{UINT64_MAX - t, t}};
    for (uint32_t r = 0; r < RANKS; r++) {
        struct shard_geometry geometry;
        assert_int_equal(shard_geometry(&geometry, manifest.table, r, "first", RANKS), 0);
        shards[r] = (struct manifest_shard){geometry.file_bytes, geometry.data_start,
                                            0x9000000000000000ull + r, 0x8000000000000000ull + r};
        manifest.summary.bytes += geometry.file_bytes;
    }
    int error = manifest_write(&text, &text_bytes, &manifest);
    if (error)
        fail_msg("%s", report_line());
    return 0;
}

static int close_manifest(void **state)
{
    (void)state;
    layout_table_free(manifest.table);
    free(text);
    return 0;
}

/* Reads a copy of exactly `bytes` bytes. */
static int read_copy(struct manifest **out, const char *data, size_t bytes)
{
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, data, bytes);
    int error = manifest_read(out, copy, bytes);
    free(copy);
    return error;
}

/* Makes both hashes of a changed text right. */
static void seal(char *data, size_t bytes)
{
    static const char key[] = "\"summary_hash\":\"";
    char digits[CHECKSUM_SHA256_HEX];
    char *at = memmem(data, MANIFEST_SUMMARY_BYTES, key, strlen(key));
    if (at && at + 40 < data + MANIFEST_SUMMARY_BYTES) {
        at += strlen(key);
        snprintf(digits, sizeof(digits), "%016" PRIx64, checksum_bytes(data, (size_t)(at - data)));
        memcpy(at, digits, 16);
    }
    checksum_sha256_hex(digits, data, bytes - SHA_BYTES);
    memcpy(data + bytes - SHA_BYTES + 10, digits, 64);
}

/* ---- writing and reading ---- */

static void assert_same_summary(const struct manifest_summary *a, const struct manifest_summary *b)
{
    assert_int_equal(a->version, b->version);
    assert_string_equal(a->run, b->run);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->attempt, b->attempt);
    assert_string_equal(a->nonce, b->nonce);
    assert_int_equal(a->bytes, b->bytes);
    assert_string_equal(a->time, b->time);
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->shards, b->shards);
}

static void assert_same_table(const struct layout_table *a, const struct layout_table *b)
{
    assert_int_equal(a->num_tensors, b->num_tensors);
    assert_int_equal(a->num_layouts, b->num_layouts);
    for (uint32_t t = 0; t < a->num_tensors; t++) {
        assert_string_equal(a->tensors[t].name, b->tensors[t].name);
        assert_int_equal(a->tensors[t].dtype, b->tensors[t].dtype);
        assert_int_equal(a->tensors[t].dims, b->tensors[t].dims);
        assert_memory_equal(a->tensors[t].shape, b->tensors[t].shape, sizeof(a->tensors[t].shape));
        assert_int_equal(a->layout_of[t], b->layout_of[t]);
    }
    for (uint32_t i = 0; i < a->num_layouts; i++) {
        const struct layout *x = &a->layouts[i], *y = &b->layouts[i];
        assert_int_equal(x->dims, y->dims);
        for (uint32_t d = 0; d < x->dims; d++) {
            assert_int_equal(x->num_cuts[d], y->num_cuts[d]);
            assert_memory_equal(x->cuts[d], y->cuts[d], x->num_cuts[d] * sizeof(uint64_t));
        }
        assert_memory_equal(x->owners, y->owners, layout_cells(x) * sizeof(uint32_t));
    }
}

TEST(test_manifest__read_gives_back_what_was_written)
{
    struct manifest *read = NULL;
    int error = read_copy(&read, text, text_bytes);
    if (error)
        fail_msg("%s", report_line());
    assert_same_summary(&read->summary, &manifest.summary);
    assert_int_equal(read->parent_step, 900);
    assert_int_equal(read->parent_attempt, 2);
    assert_string_equal(read->mesh_json, manifest.mesh_json);
    assert_string_equal(read->config_json, manifest.config_json);
    assert_string_equal(read->state_json, manifest.state_json);
    assert_string_equal(read->data_json, "{}");
    assert_string_equal(read->code_version, manifest.code_version);
    assert_memory_equal(read->digests, digests, sizeof(digests));
    assert_memory_equal(read->shards, shards, sizeof(shards));
    assert_same_table(read->table, manifest.table);
    /* It is written again as the same text. */
    char *again = NULL;
    size_t again_bytes = 0;
    assert_int_equal(manifest_write(&again, &again_bytes, read), 0);
    assert_int_equal(again_bytes, text_bytes);
    assert_memory_equal(again, text, text_bytes);
    free(again);
    manifest_free(read);
}

TEST(test_manifest__a_converted_checkpoint_keeps_whose_child_it_is)
{
    struct manifest converted = manifest, *read = NULL;
    char *its_text = NULL;
    size_t bytes = 0;
    strcpy(converted.converted_from, "00112233445566778899aabbccddeeff");
    assert_int_equal(manifest_write(&its_text, &bytes, &converted), 0);
    assert_int_equal(manifest_read(&read, its_text, bytes), 0);
    assert_string_equal(read->converted_from, converted.converted_from);
    assert_int_equal(read->parent_step, 900);
    manifest_free(read);
    free(its_text);
    strcpy(converted.converted_from, "no nonce");
    assert_int_equal(manifest_write(&its_text, &bytes, &converted), ERR_INVALID);
}

TEST(test_manifest__is_one_json_document_with_the_summary_first)
{
    json_error_t reason;
    json_t *root = json_loadb(text, text_bytes, JSON_REJECT_DUPLICATES, &reason);
    static const char *const order[] = {"format",       "version", "run",   "step",       "attempt",
                                        "nonce",        "bytes",   "time",  "world_size", "shards",
                                        "summary_hash", "lineage", "mesh",  "identity",   "config",
                                        "code_version", "data",    "state", "layouts",    "tensors",
                                        "shard_table",  "sha256"};
    const char *key = NULL;
    json_t *value = NULL;
    size_t count = 0;
    assert_non_null(root);
    json_object_foreach(root, key, value) assert_string_equal(key, order[count++]);
    assert_int_equal(count, 22);
    json_decref(root);
    assert_int_equal(text[MANIFEST_SUMMARY_BYTES - 1], '\n');
    assert_memory_equal(text + MANIFEST_SUMMARY_BYTES, "\"lineage\":", 10);
    /* Both tensors of one cut and shape share their layout: w, the scalar and the empty one. */
    assert_int_equal(manifest.table->num_layouts, 3);
}

TEST(test_manifest__summary_is_read_from_the_first_page_alone)
{
    struct manifest_summary summary;
    char *page = malloc(MANIFEST_SUMMARY_BYTES);
    memcpy(page, text, MANIFEST_SUMMARY_BYTES);
    assert_int_equal(manifest_read_summary(&summary, page, MANIFEST_SUMMARY_BYTES), 0);
    assert_same_summary(&summary, &manifest.summary);
    assert_int_equal(manifest_read_summary(&summary, page, MANIFEST_SUMMARY_BYTES - 1),
                     ERR_CORRUPT);
    for (uint32_t bit = 0; bit < 8 * MANIFEST_SUMMARY_BYTES; bit++) {
        page[bit / 8] ^= (char)(1u << (bit % 8));
        int error = manifest_read_summary(&summary, page, MANIFEST_SUMMARY_BYTES);
        page[bit / 8] ^= (char)(1u << (bit % 8));
        if (error != ERR_CORRUPT)
            fail_msg("bit %u of byte %u: %s", bit % 8, bit / 8, err_name(error));
    }
    free(page);
}

TEST(test_manifest__write_refuses_what_could_not_be_read)
{
    struct manifest bad;
    char *out = NULL;
    size_t bytes = 0;
#define REFUSES(change, code)                                       \
    do {                                                            \
        bad = manifest;                                             \
        change;                                                     \
        assert_int_equal(manifest_write(&out, &bytes, &bad), code); \
    } while (0)
    REFUSES(bad.summary.run[0] = '/', ERR_INVALID);
    REFUSES(bad.summary.nonce[31] = 'g', ERR_INVALID);
    REFUSES(bad.summary.time[0] = '"', ERR_INVALID);
    REFUSES(bad.summary.step = 1ull << 63, ERR_INVALID);
    REFUSES(bad.summary.version = 1, ERR_INVALID);
    REFUSES(bad.summary.shards = 0, ERR_INVALID);
    REFUSES(bad.summary.shards = 2, ERR_CORRUPT);
    REFUSES(bad.summary.bytes += 4096, ERR_CORRUPT);
    REFUSES(bad.state_json = "{", ERR_INVALID);
    REFUSES(bad.state_json = "[]", ERR_INVALID);
    REFUSES(bad.state_json = "{} {}", ERR_INVALID);
    REFUSES(bad.state_json = "{\"a\":1,\"a\":2}", ERR_INVALID);
    REFUSES(bad.state_json = "{\"a\":18446744073709551615}", ERR_INVALID);
    REFUSES(strcpy(bad.code_version, "\xff"), ERR_INVALID);
#undef REFUSES
}

/* A shard of 32 TiB of tensors and header has a table as long as one may be. */
TEST(test_manifest__a_longer_table_of_checksums_than_is_read_is_refused)
{
    struct slice slice;
    const struct slice *list = &slice;
    for (uint32_t more = 0; more < 2; more++) {
        struct manifest one = manifest;
        struct shard_geometry geometry;
        char *out = NULL;
        size_t bytes = 0;
        describe(&slice, "huge", DTYPE_U8, 1, (32ull << 40) - SHARD_ALIGN + more, 0);
        slice.box.extent[0] = slice.tensor.shape[0];
        assert_int_equal(
            layout_plan_save(&one.table, &list, (uint32_t[]){1}, 1, LAYOUT_EQUAL_REPLICAS), 0);
        assert_int_equal(shard_geometry(&geometry, one.table, 0, "first", 1),
                         more == 0 ? 0 : ERR_INVALID);
        assert_int_equal(geometry.data_start, SHARD_ALIGN);
        struct manifest_shard shard = {geometry.file_bytes, geometry.data_start, 0, 0};
        one.shards = &shard;
        one.summary.shards = one.summary.world_size = 1;
        one.summary.bytes = geometry.file_bytes;
        assert_int_equal(manifest_write(&out, &bytes, &one), more == 0 ? 0 : ERR_CORRUPT);
        free(out);
        layout_table_free(one.table);
    }
}

/* jansson reads 2048 levels, of which a manifest takes one, and a text that holds it another. */
TEST(test_manifest__write_takes_no_section_deeper_than_its_limit)
{
    char nested[NESTED_BYTES_MAX], *out = NULL;
    size_t bytes = 0;
    struct manifest deep = manifest, *read = NULL;
    deep.state_json = nested_write(nested, JSON_DEPTH_MAX);
    assert_int_equal(manifest_write(&out, &bytes, &deep), 0);
    assert_int_equal(read_copy(&read, out, bytes), 0);
    assert_string_equal(read->state_json, nested);
    manifest_free(read);
    free(out);
    static const uint32_t too_deep[] = {JSON_DEPTH_MAX + 1, NESTED_LEVELS_MAX - 1};
    for (uint32_t i = 0; i < sizeof(too_deep) / sizeof(too_deep[0]); i++) {
        nested_write(nested, too_deep[i]);
        assert_int_equal(manifest_write(&out, &bytes, &deep), ERR_INVALID);
        assert_non_null(strstr(report_line(), "'state'"));
    }
    char wide[4 * JSON_DEPTH_MAX] =
        "{\"a\":[\"[[[[\""; /* strings and neighbouring fields do not count */
    for (uint32_t i = 0; i < JSON_DEPTH_MAX; i++)
        strcat(wide, ",[]");
    deep.state_json = strcat(wide, "]}");
    assert_int_equal(manifest_write(&out, &bytes, &deep), 0);
    free(out);
}

/* ---- damage ---- */

TEST(test_manifest__read_refuses_every_flipped_bit)
{
    char *copy = malloc(text_bytes);
    struct manifest *read = NULL;
    memcpy(copy, text, text_bytes);
    for (size_t bit = 0; bit < 8 * text_bytes; bit++) {
        copy[bit / 8] ^= (char)(1u << bit % 8);
        int error = manifest_read(&read, copy, text_bytes);
        copy[bit / 8] ^= (char)(1u << bit % 8);
        if (error != ERR_CORRUPT)
            fail_msg("bit %zu of byte %zu: %s", bit % 8, bit / 8, err_name(error));
    }
    free(copy);
}

TEST(test_manifest__read_refuses_every_truncation)
{
    struct manifest *read = NULL;
    for (size_t bytes = 0; bytes < text_bytes; bytes++)
        assert_int_equal(read_copy(&read, text, bytes), ERR_CORRUPT);
    char *longer = calloc(1, text_bytes + 1);
    memcpy(longer, text, text_bytes);
    assert_int_equal(manifest_read(&read, longer, text_bytes + 1), ERR_CORRUPT);
    free(longer);
}

TEST(test_manifest__read_refuses_more_than_its_limit)
{
    struct manifest *read = NULL;
    assert_int_equal(manifest_read(&read, text, (size_t)MANIFEST_BYTES_MAX + 1), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "longer than"));
}

/* ---- lies with right hashes ---- */

struct lie {
    const char *from, *to, *says;
};

/* The manifest with the first `from` replaced by `to`, sealed, to be freed. *bytes: of `to`, then
 * of the whole. */
static char *replace(size_t *bytes, const char *from, const char *to)
{
    char *at = memmem(text, text_bytes, from, strlen(from));
    if (!at)
        fail_msg("the manifest has no %s", from);
    size_t before = (size_t)(at - text), after = text_bytes - before - strlen(from), now = *bytes;
    char *changed = malloc(before + now + after);
    memcpy(changed, text, before);
    memcpy(changed + before, to, now);
    memcpy(changed + before + now, text + text_bytes - after, after);
    *bytes = before + now + after;
    seal(changed, *bytes);
    return changed;
}

static void assert_refused(const struct lie *lies, size_t count, int want)
{
    for (size_t i = 0; i < count; i++) {
        struct manifest *read = NULL;
        size_t bytes = strlen(lies[i].to);
        char *changed = replace(&bytes, lies[i].from, lies[i].to);
        int error = manifest_read(&read, changed, bytes);
        free(changed);
        if (error != want || !strstr(report_line(), lies[i].says))
            fail_msg("%s: %s %s", lies[i].to, err_name(error), report_line());
    }
}

TEST(test_manifest__read_refuses_lies_under_right_hashes)
{
    static const struct lie lies[] = {
        {"\"version\":2", "\"version\":0", "'version'"},
        {"\"version\":2", "\"version\":1", "'shard_table'"},
        {"\"run\":\"first\"", "\"run\":\"fir/t\"", "'run'"},
        {"\"attempt\":2}", "\"attempt\":-2}", "'lineage'"},
        {"\"attempt\":2}", "\"attempt\":2.0}", "'lineage'"},
        {"\"attempt\":2}", "\"attempt\":2,\"converted_from\":\"x\"}", "'lineage'"},
        {"\"attempt\":2}", "\"attempt\":2,\"converted_from\":7}", "'lineage'"},
        {"\"attempt\":2}", "\"attempt\":2,\"other\":1}", "'lineage'"},
        {"\"attempt\":2}", "\"attempt\":99999999999999999999}", "too big integer"},
        {"\"identity\":{}", "\"identity\":[]", "'identity'"},
        {"\"identity\":{}", "\"identity\":\"\"", "'identity'"},
        {"\"identity\":{}", "\"identitx\":{}", "'identity'"},
        {"\"identity\":{},", "", "'of the top level'"},
        {"\"identity\":{}", "\"identity\":{},\"more\":1", "'of the top level'"},
        {"\"identity\":{}", "\"identity\":{},\"mesh\":{}", "duplicate"},
        {"\"identity\":{}", "\"m\\u0065sh\":{}", "duplicate"},
        {"\"cuts\":[[0,", "\"cuts\":[[1,", "begin at 0"},
        {"\"cuts\":[[0,", "\"cuts\":[[", "'layouts'"},
        {"\"cuts\":[[0,3,6,10],[0,6]]", "\"cuts\":[[0,3,6,10],[]]", "'layouts'"},
        {"\"cuts\":[[0,3,6,10],[0,6]]", "\"cuts\":[[0,6,3,10],[0,6]]", "do not ascend"},
        {"\"cuts\":[[0,3,6,10],[0,6]]", "\"cuts\":[[0,3,6,11],[0,6]]", "fit its shape"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1]", "'layouts'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,1]", "two cells"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,3]", "names shard 3 of 3"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,4294967296]", "names shard"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,\"2\"]", "'layouts'"},
        {"\"name\":\"w\"", "\"name\":\"a\"", "order of names"},
        {"\"name\":\"w\"", "\"name\":\"w \"", "not valid"},
        {"\"dtype\":\"I64\"", "\"dtype\":\"I63\"", "'tensors'"},
        {"\"shape\":[10,6]", "\"shape\":[10,7]", "fit its shape"},
        {"\"shape\":[10,6]", "\"shape\":[10,6,1,1,1,1,1,1,1]", "'tensors'"},
        {"\"shape\":[10,6]", "\"shape\":[10]", "fit its shape"},
        {"\"shape\":[10,6]", "\"shape\":[9223372036854775807,6]", "too large"},
        {"\"layout\":0", "\"layout\":3", "no layout"},
        {"\"layout\":0", "\"layout\":4294967296", "'tensors'"},
        {"\"digest\":[\"f", "\"digest\":[\"F", "'tensors'"},
        {"\"digest\":[\"f", "\"digest\":[\"", "'tensors'"},
        {"shard-00002-of-00003", "shard-00001-of-00003", "'shard_table'"},
        {"\"data_start\":4096", "\"data_start\":8192", "'shard_table'"},
        {"\"data_start\":4096", "\"data_start\":4097", "not possible"},
        {"\"data_start\":4096", "\"data_start\":0", "not possible"},
        {"\"header_hash\":\"9", "\"header_hash\":\"x", "'shard_table'"},
        {"\"table_hash\":\"8", "\"table_hash\":\"x", "'shard_table'"},
    };
    assert_refused(lies, sizeof(lies) / sizeof(lies[0]), ERR_CORRUPT);
    static const struct lie later = {"\"version\":2", "\"version\":9",
                                     "manifest version 9 is unknown"};
    assert_refused(&later, 1, ERR_VERSION);
}

TEST(test_manifest__tables_are_read_as_they_are_written_and_no_other_way)
{
    static const struct lie lies[] = {
        {"\"layouts\":[", "\"layouts\": [", "'layouts'"},
        {"\"layouts\":[", "\"layout\":[", "'of the top level'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0, 1,2]", "'layouts'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,02]", "'layouts'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,-2]", "'layouts'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,]", "'layouts'"},
        {"\"owners\":[0,1,2]", "\"owners\":[0,1,2,]", "'layouts'"},
        {"\"owners\":[0,1,2]}", "\"owners\":[0,1,2],\"more\":1}", "'layouts'"},
        {"\"cuts\":[[0,3,6,10],[0,6]]", "\"cuts\":[[0,3,6,9223372036854775808],[0,6]]",
         "'layouts'"},
        {"\"cuts\":[[0,3,6,10],[0,6]]",
         "\"cuts\":[[0,3,6,10],[0,6],[0,1],[0,1],[0,1],[0,1],[0,1],[0,1],[0,1]]", "'layouts'"},
        {"\"name\":\"w\"", "\"name\":\"\\u0077\"", "'tensors'"},
        {"\"name\":\"w\"", "\"name\":\"w\n\"", "'tensors'"},
        {"\"name\":\"w\"", "\"name\":\"w\x80\"", "not valid"},
        {"\"layout\":0", "\"layout\":", "'tensors'"},
        {"\"shape\":[10,6]", "\"shape\":[10,6,]", "'tensors'"},
        {"\"data_start\":4096", "\"data_start\":4096.0", "'shard_table'"},
        {"8000000000000002\"}],", "8000000000000002\"}],\n\"more\":1,", "'of the top level'"},
        {"8000000000000002\"}],", "8000000000000002\"}]", "'shard_table'"},
        {"8000000000000002\"}]", "8000000000000002\"},]", "'shard_table'"},
        {"8000000000000002\"}],\n", "8000000000000002\"}],", "'shard_table'"},
        {"},\n{\"file\":\"shard-00002", "},{\"file\":\"shard-00002", "'shard_table'"},
        {"},\n{\"name\":\"w\"", "},{\"name\":\"w\"", "'tensors'"},
        {"],\n\"tensors\"", "],\"tensors\"", "'layouts'"},
        {"],\n\"tensors\":[", "],\n\"layouts\":[],\n\"tensors\":[", "'tensors'"},
        {"],\n\"tensors\":[", ",\n{\"cuts\":[],\"owners\":[0]}],\n\"tensors\":[", "is no tensor's"},
        {"\"layouts\":[", "\"tensors\":[],\n\"layouts\":[", "'of the top level'"},
        {"\"layout\":0", "\"layout\":00000000000000000000", "'tensors'"},
    };
    assert_refused(lies, sizeof(lies) / sizeof(lies[0]), ERR_CORRUPT);
}

/* A name ends where its quote is, and nowhere before. */
TEST(test_manifest__a_name_with_a_nul_is_refused)
{
    struct manifest *read = NULL;
    char *changed = malloc(text_bytes);
    memcpy(changed, text, text_bytes);
    char *name = memmem(changed, text_bytes, "\"counter\"", strlen("\"counter\""));
    assert_non_null(name);
    name[strlen("\"count")] = '\0';
    seal(changed, text_bytes);
    assert_int_equal(manifest_read(&read, changed, text_bytes), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "'tensors'"));
    free(changed);
}

TEST(test_manifest__a_section_may_have_what_looks_like_the_tables)
{
    struct manifest like = manifest, *read = NULL;
    char *out = NULL;
    size_t bytes = 0;
    like.data_json = "{\"layouts\":[\n{}],\"x\":\",\\\"layouts\\\":[\",\"tensors\":[]}";
    assert_int_equal(manifest_write(&out, &bytes, &like), 0);
    assert_int_equal(read_copy(&read, out, bytes), 0);
    assert_string_equal(read->data_json, like.data_json);
    assert_same_table(read->table, manifest.table);
    manifest_free(read);
    free(out);
}

TEST(test_manifest__read_survives_random_texts_under_right_hashes)
{
    static const char alphabet[] = "{}[]\",:0123456789 .;-eE\\u_aF\x80\n";
    uint32_t accepted = 0;
    char *changed = malloc(text_bytes);
    for (uint32_t round = 0; round < 20000; round++) {
        struct manifest *read = NULL;
        uint64_t changes = 1 + next_random(3);
        memcpy(changed, text, text_bytes);
        for (uint64_t i = 0; i < changes; i++) {
            uint64_t body = text_bytes - SHA_BYTES - MANIFEST_SUMMARY_BYTES;
            uint64_t at =
                next_random(4) == 0 ? next_random(300) : MANIFEST_SUMMARY_BYTES + next_random(body);
            changed[at] = alphabet[next_random(sizeof(alphabet) - 1)];
        }
        seal(changed, text_bytes);
        int error = manifest_read(&read, changed, text_bytes);
        if (error) {
            assert_true(error == ERR_CORRUPT || error == ERR_VERSION);
            continue;
        }
        accepted++;
        assert_int_equal(layout_table_check(read->table, read->summary.shards), 0);
        char *again = NULL;
        size_t bytes = 0;
        assert_int_equal(manifest_write(&again, &bytes, read), 0);
        free(again);
        manifest_free(read);
    }
    print_message("# %u of 20000 accepted\n", accepted);
    free(changed);
}

TEST(test_manifest__deep_nesting_is_refused)
{
    size_t depth = 1u << 20, bytes = MANIFEST_SUMMARY_BYTES + 2 * depth + SHA_BYTES + 32;
    char *deep = malloc(bytes);
    struct manifest *read = NULL;
    memcpy(deep, text, MANIFEST_SUMMARY_BYTES);
    memset(deep + MANIFEST_SUMMARY_BYTES, ' ', bytes - MANIFEST_SUMMARY_BYTES);
    memcpy(deep + MANIFEST_SUMMARY_BYTES, "\"mesh\":", 7);
    memset(deep + MANIFEST_SUMMARY_BYTES + 7, '[', depth);
    memset(deep + MANIFEST_SUMMARY_BYTES + 7 + depth, ']', depth);
    deep[MANIFEST_SUMMARY_BYTES + 7 + 2 * depth] = ',';
    memcpy(deep + bytes - SHA_BYTES, text + text_bytes - SHA_BYTES, SHA_BYTES);
    seal(deep, bytes);
    assert_int_equal(manifest_read(&read, deep, bytes), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "maximum parsing depth"));
    free(deep);
}

/* ---- claims of huge counts ---- */

/* How much slower the machine may be. */
static double time_scale(void)
{
    const char *scale = getenv("TEST_TIME_SCALE");
    return scale ? atof(scale) : 1;
}

/* Seconds of the processor: a busy machine changes no result. */
static double now(void)
{
    return (double)clock_read(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
}

/* The largest single allocation. */
static size_t largest;
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    largest = bytes > largest ? bytes : largest;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    largest = count * bytes > largest ? count * bytes : largest;
    return __real_calloc(count, bytes);
}

/* With `to` in place of `from` it must be refused, quickly, and without a huge allocation. */
static void assert_refused_soon(const char *from, const char *to, size_t to_bytes, const char *says)
{
    struct manifest *read = NULL;
    size_t bytes = to_bytes;
    char *changed = replace(&bytes, from, to);
    double start = now();
    largest = 0;
    int error = manifest_read(&read, changed, bytes);
    double seconds = now() - start;
    free(changed);
    print_message("# %zu bytes, %.3f s, %zu bytes at once: %s\n", bytes, seconds, largest,
                  report_line());
    assert_in_range(largest, 0, 4 * bytes);
    assert_int_equal(error, ERR_CORRUPT);
    assert_non_null(strstr(report_line(), says));
    assert_true(seconds < 2 * time_scale());
}

/* `unit` again and again, between `head` and `tail`. To be freed. */
static char *repeat(size_t *out_bytes, const char *head, const char *unit, size_t count,
                    const char *tail)
{
    size_t unit_bytes = strlen(unit), head_bytes = strlen(head);
    char *out = malloc(head_bytes + count * unit_bytes + strlen(tail) + 1);
    memcpy(out, head, head_bytes);
    for (size_t i = 0; i < count; i++)
        memcpy(out + head_bytes + i * unit_bytes, unit, unit_bytes);
    strcpy(out + head_bytes + count * unit_bytes, tail);
    *out_bytes = head_bytes + count * unit_bytes + strlen(tail);
    return out;
}

TEST(test_manifest__huge_counts_are_refused_soon)
{
    static const char summary[] = "\"shards\":3", claim[] = "\"shards\":4294967295";
    size_t bytes = 0;
    /* Shards that are claimed and not listed: no memory is allocated for them. The padding after
     * the summary shrinks. */
    char *at = memmem(text, MANIFEST_SUMMARY_BYTES, summary, strlen(summary));
    struct manifest *read = NULL;
    char *changed = malloc(text_bytes);
    size_t before = (size_t)(at - text), grown = strlen(claim) - strlen(summary);
    size_t rest = MANIFEST_SUMMARY_BYTES - before - strlen(summary) - grown;
    memcpy(changed, text, text_bytes);
    memcpy(changed + before, claim, strlen(claim));
    memcpy(changed + before + strlen(claim), at + strlen(summary), rest);
    changed[MANIFEST_SUMMARY_BYTES - 1] = '\n';
    seal(changed, text_bytes);
    double start = now();
    assert_int_equal(manifest_read(&read, changed, text_bytes), ERR_CORRUPT);
    assert_non_null(strstr(report_line(), "'shard_table'"));
    assert_true(now() - start < 1 * time_scale());
    free(changed);
    /* A grid of a million cells for three owners. */
    char *cuts = repeat(&bytes, "\"cuts\":[[0", ",1", 1u << 20, "]");
    assert_refused_soon("\"cuts\":[[0,3,6,10]", cuts, bytes, "'layouts'");
    free(cuts);
    /* Empty objects to the limit of the file, which jansson would need gigabytes for. */
    size_t room = MANIFEST_BYTES_MAX - text_bytes - 64;
    char *objects = repeat(&bytes, "\"data\":{\"a\":[{}", ",{}", room / 3, "]}");
    assert_refused_soon("\"data\":{}", objects, bytes, "objects and arrays");
    free(objects);
    char *strings = repeat(&bytes, "\"data\":{\"a\":[\"\"", ",\"\"", room / 3, "]}");
    assert_refused_soon("\"data\":{}", strings, bytes, "commas");
    free(strings);
    /* Lines and commas to the limit of the file, for which tables would take gigabytes. */
    char *lines = repeat(&bytes, "\"tensors\":[", "\n{", room / 2, "");
    assert_refused_soon("\"tensors\":[", lines, bytes, "'tensors'");
    free(lines);
    char *commas = repeat(&bytes, "\"owners\":[", ",", room, "");
    assert_refused_soon("\"owners\":[", commas, bytes, "'layouts'");
    free(commas);
}

TEST(test_manifest__a_new_nonce_is_valid_and_no_two_are_equal)
{
    char nonces[3][33];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(manifest_new_nonce(nonces[i]), 0);
        assert_true(shard_nonce_is_valid(nonces[i]));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(nonces[i], nonces[j]);
    }
}

TEST(test_manifest__now_is_the_time_in_utc)
{
    struct tm parsed = {0};
    char text[32];
    time_t before = time(NULL);
    manifest_now(text);
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%SZ", &parsed);
    assert_true(end != NULL && *end == '\0');
    assert_in_range(timegm(&parsed), before, time(NULL));
}

SUITE(open_manifest, close_manifest)
