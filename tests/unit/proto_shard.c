/* proto_shard.c - names, geometry and header of a shard file.
 *
 * Goal: a written header is read back equal, stock safetensors opens it, its geometry does not
 * depend on the step. No damaged or hostile header is accepted or read beyond its end. Method: a
 * header over tensors of several types is parsed back. Then every bit of it is changed, it is cut
 * at every length (in a block of exactly that size, so that AddressSanitizer sees any step beyond),
 * and, with its hash made right again, changed at random and by a list of lies. A whole file is
 * opened with Python's safetensors where that is installed. The seed is printed; SEED= repeats a
 * run. */
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/format/shard.h"
#include "tests/unit/random.h"
#include "tests/unit/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NONCE "0123456789abcdef0123456789abcdef"
#define RANKS 4
#define TENSORS 6

/* ---- a checkpoint of four ranks ---- */

struct bed {
    struct layout_table *table;
    struct shard_identity identity; /* of shard 1 */
    struct shard_geometry geometry;
    uint8_t *header;
};

static struct bed bed;

static void describe(struct slice *slice, const char *name, enum dtype dtype, uint32_t dims,
                     uint64_t rows, uint64_t columns, uint32_t rank)
{
    memset(slice, 0, sizeof(*slice));
    snprintf(slice->tensor.name, sizeof(slice->tensor.name), "%s", name);
    slice->tensor.dtype = dtype;
    slice->tensor.dims = dims;
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        slice->tensor.shape[d] = slice->box.extent[d] = 1;
    slice->tensor.shape[1] = slice->box.extent[1] = columns;
    slice->tensor.shape[0] = rows;
    uint64_t chunk = (rows + RANKS - 1) / RANKS, start = chunk * rank;
    slice->box.offset[0] = start < rows ? start : rows;
    slice->box.extent[0] = start >= rows ? 0 : rows - start < chunk ? rows - start : chunk;
}

static int open_bed(void **state)
{
    (void)state;
    static struct slice slices[RANKS][TENSORS];
    const struct slice *list[RANKS];
    uint32_t counts[RANKS];
    seed_random();
    for (uint32_t r = 0; r < RANKS; r++) {
        describe(&slices[r][0], "layers.0.wq.weight", DTYPE_F32, 2, 10, 7, r);
        describe(&slices[r][1], "layers.0.norm.weight", DTYPE_BF16, 1, 9, 1, r);
        describe(&slices[r][2], "positions", DTYPE_I64, 1, 8, 1, r);
        describe(&slices[r][3], "a.mask", DTYPE_U8, 2, 300, 5, r);
        describe(&slices[r][4], "tok_embeddings.weight", DTYPE_F32, 2, 4096, 200, r);
        describe(&slices[r][5], "empty", DTYPE_F32, 2, 0, 5, r);
        list[r] = slices[r];
        counts[r] = TENSORS;
    }
    assert_int_equal(layout_plan_save(&bed.table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), 0);
    bed.identity = (struct shard_identity){.run = "first-run_1.0",
                                           .step = 1000,
                                           .attempt = 3,
                                           .nonce = NONCE,
                                           .shard = 1,
                                           .shards = RANKS};
    assert_int_equal(shard_geometry(&bed.geometry, bed.table, 1, bed.identity.run, RANKS), 0);
    bed.header = malloc(bed.geometry.data_start);
    assert_int_equal(shard_header_write(bed.header, &bed.geometry, bed.table, &bed.identity), 0);
    return 0;
}

static int close_bed(void **state)
{
    (void)state;
    layout_table_free(bed.table);
    free(bed.header);
    return 0;
}

/* Parses a copy of exactly `bytes` bytes. */
static int parse(struct shard_header *out, uint64_t *need, const void *data, uint64_t bytes,
                 uint64_t file_bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, data, bytes);
    int error = shard_header_parse(out, need, copy, bytes, file_bytes);
    free(copy);
    return error;
}

/* Writes a header for this shard of the table, and parses it. */
static void read_back(struct shard_header *out, const struct layout_table *table,
                      const struct shard_identity *identity, uint32_t num_tensors)
{
    struct shard_geometry geometry;
    uint64_t need = 0;
    assert_int_equal(
        shard_geometry(&geometry, table, identity->shard, identity->run, identity->shards), 0);
    uint8_t *header = malloc(geometry.data_start);
    assert_int_equal(shard_header_write(header, &geometry, table, identity), 0);
    assert_int_equal(parse(out, &need, header, geometry.data_start, geometry.file_bytes), 0);
    assert_int_equal(out->num_tensors, num_tensors);
    free(header);
}

static void assert_line_has(const char *part)
{
    if (!strstr(report_line(), part))
        fail_msg("'%s' does not contain '%s'", report_line(), part);
}

/* ---- names and geometry ---- */

TEST(test_shard__keys_have_the_documented_form)
{
    char key[512];
    assert_int_equal(shard_dir_key(key, sizeof(key), "run", 1000, 3), 0);
    assert_string_equal(key, "run/step-00001000-a0003");
    assert_int_equal(shard_key(key, sizeof(key), &bed.identity), 0);
    assert_string_equal(key, "first-run_1.0/step-00001000-a0003/shard-00002-of-00004.safetensors");
    assert_int_equal(shard_dir_key(key, sizeof(key), "run", UINT64_MAX, UINT64_MAX), 0);
    assert_int_equal(shard_dir_key(key, 10, "run", 1, 1), ERR_INVALID);
}

TEST(test_shard__run_names_are_one_component_of_a_key)
{
    static const char *const bad[] = {"",    ".",        "..",  "a/b", "a b",
                                      "a\n", "\xc3\xa9", "a:b", "a\\b"};
    char key[512], longest[129];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_false(shard_run_is_valid(bad[i]));
        assert_int_equal(shard_dir_key(key, sizeof(key), bad[i], 1, 1), ERR_INVALID);
    }
    memset(longest, 'r', sizeof(longest));
    longest[128] = '\0';
    assert_false(shard_run_is_valid(longest));
    longest[127] = '\0';
    assert_true(shard_run_is_valid(longest));
    assert_true(shard_run_is_valid("...")); /* odd, but only itself */
    assert_false(shard_nonce_is_valid("0123456789ABCDEF0123456789abcdef"));
    assert_false(shard_nonce_is_valid("0123"));
}

TEST(test_shard__geometry_is_aligned_and_adds_up)
{
    uint64_t bytes[RANKS];
    assert_int_equal(layout_shard_bytes(bytes, bed.table, RANKS), 0);
    for (uint32_t shard = 0; shard < RANKS; shard++) {
        struct shard_geometry geometry, derived;
        uint64_t covered = 0;
        assert_int_equal(shard_geometry(&geometry, bed.table, shard, "run", RANKS), 0);
        assert_int_equal(geometry.data_start % SHARD_ALIGN, 0);
        assert_int_equal(geometry.file_bytes % SHARD_ALIGN, 0);
        assert_int_equal(geometry.table_start, geometry.data_start + bytes[shard]);
        assert_true(geometry.file_bytes - geometry.table_start >= 8 * geometry.num_blocks);
        assert_true(geometry.file_bytes - geometry.table_start < 8 * geometry.num_blocks + 4096);
        for (uint64_t block = 0; block < geometry.num_blocks; block++) {
            uint64_t start = 0, length = 0;
            shard_block(&start, &length, &geometry, block);
            assert_int_equal(start, covered);
            assert_in_range(length, 1, CHECKSUM_BLOCK_BYTES);
            covered += length;
        }
        assert_int_equal(covered, geometry.table_start);
        assert_int_equal(shard_geometry_derive(&derived, geometry.data_start, bytes[shard]), 0);
        assert_memory_equal(&geometry, &derived, sizeof(geometry));
    }
    struct shard_geometry geometry;
    assert_int_equal(shard_geometry_derive(&geometry, 0, 1), ERR_CORRUPT);
    assert_int_equal(shard_geometry_derive(&geometry, 4097, 1), ERR_CORRUPT);
    assert_int_equal(shard_geometry_derive(&geometry, 1ull << 40, 1), ERR_CORRUPT);
    assert_int_equal(shard_geometry_derive(&geometry, 4096, UINT64_MAX), ERR_CORRUPT);
}

/* One rank's table of so many numbers without dimensions. */
static struct layout_table *plan_scalars(uint32_t count)
{
    struct slice *slices = calloc(count, sizeof(*slices));
    const struct slice *list = slices;
    struct layout_table *table = NULL;
    for (uint32_t i = 0; i < count; i++) {
        describe(&slices[i], "", DTYPE_U8, 0, 1, 1, 0);
        snprintf(slices[i].tensor.name, sizeof(slices[i].tensor.name), "s%" PRIu32, i);
    }
    assert_int_equal(layout_plan_save(&table, &list, &count, 1, LAYOUT_EQUAL_REPLICAS), 0);
    free(slices);
    return table;
}

TEST(test_shard__as_many_tensors_as_are_planned_are_read_back)
{
    const uint32_t most = 174761;
    struct shard_identity identity = bed.identity;
    struct shard_geometry geometry;
    struct shard_header parsed;
    identity.shard = 0;
    identity.shards = 1;
    struct layout_table *table = plan_scalars(most + 1);
    assert_int_equal(shard_geometry(&geometry, table, 0, identity.run, 1), ERR_INVALID);
    assert_line_has("shard 0 would hold 174762 tensors, more than 174761");
    layout_table_free(table);
    table = plan_scalars(most);
    read_back(&parsed, table, &identity, most);
    shard_header_free(&parsed);
    layout_table_free(table);
}

/* Over all lengths of the names that matter: one of them ends where a header's pages end. */
TEST(test_shard__the_largest_header_fits_where_it_was_measured)
{
    enum { TENSORS_OF_ALL = 64 };
    const uint64_t bytes = (31ull << 40) / TENSORS_OF_ALL; /* a shard may have 32 TiB */
    static struct slice slices[TENSORS_OF_ALL];
    const struct slice *list = slices;
    const uint32_t count = TENSORS_OF_ALL;
    struct shard_identity identity = bed.identity;
    identity.step = identity.attempt = UINT64_MAX;
    identity.shard = 0;
    identity.shards = 1;
    for (uint32_t longer = 0; longer < SHARD_ALIGN; longer++) {
        struct layout_table *table = NULL;
        struct shard_header parsed;
        for (uint32_t i = 0; i < count; i++) {
            char *name = slices[i].tensor.name;
            int more = (int)(longer + i) / TENSORS_OF_ALL;
            describe(&slices[i], "", DTYPE_U8, 1, bytes, 1, 0);
            slices[i].box.extent[0] = bytes;
            snprintf(name, sizeof(slices[i].tensor.name), "w%02" PRIu32 ".%0*u", i, more, 0u);
        }
        assert_int_equal(layout_plan_save(&table, &list, &count, 1, LAYOUT_EQUAL_REPLICAS), 0);
        read_back(&parsed, table, &identity, count);
        shard_header_free(&parsed);
        layout_table_free(table);
    }
}

/* A header with these numbers, followed by a canary, and the result of reading it. */
static void check_numbers(uint8_t *header, uint64_t step, uint64_t attempt)
{
    struct shard_identity identity = bed.identity;
    struct shard_header parsed;
    uint64_t need = 0;
    char expected[80];
    identity.step = step;
    identity.attempt = attempt;
    header[bed.geometry.data_start] = 0xa5;
    assert_int_equal(shard_header_write(header, &bed.geometry, bed.table, &identity), 0);
    assert_int_equal(header[bed.geometry.data_start], 0xa5);
    int length = snprintf(expected, sizeof(expected),
                          "\"step\":\"%" PRIu64 "\",\"attempt\":\"%" PRIu64 "\",", step, attempt);
    assert_non_null(memmem(header, bed.geometry.data_start, expected, (size_t)length));
    assert_int_equal(
        parse(&parsed, &need, header, bed.geometry.data_start, bed.geometry.file_bytes), 0);
    assert_true(parsed.identity.step == step && parsed.identity.attempt == attempt);
    assert_int_equal(parsed.geometry.data_start, bed.geometry.data_start);
    shard_header_free(&parsed);
}

TEST(test_shard__data_start_does_not_depend_on_numbers_and_each_is_as_printf_has_it)
{
    uint8_t *header = malloc(bed.geometry.data_start + 1);
    check_numbers(header, 0, UINT64_MAX);
    check_numbers(header, UINT64_MAX, 0);
    for (uint64_t power = 1; power != 0; power = power < UINT64_MAX / 10 ? 10 * power : 0) {
        check_numbers(header, power - 1, power + 1);
        check_numbers(header, power, power / 9 * 8);
    }
    free(header);
}

TEST(test_shard__write_refuses_bad_identities)
{
    struct shard_identity bad[] = {bed.identity, bed.identity, bed.identity};
    bad[0].run[0] = '/';
    bad[1].nonce[5] = 'X';
    bad[2].shard = RANKS;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(shard_header_write(bed.header, &bed.geometry, bed.table, &bad[i]),
                         ERR_INVALID);
}

/* ---- reading back ---- */

static void assert_is_written_header(const struct shard_header *parsed)
{
    struct shard_tensor *tensors = NULL;
    uint32_t count = 0;
    uint64_t bytes = 0;
    assert_string_equal(parsed->identity.run, bed.identity.run);
    assert_string_equal(parsed->identity.nonce, bed.identity.nonce);
    assert_int_equal(parsed->identity.step, bed.identity.step);
    assert_int_equal(parsed->identity.attempt, bed.identity.attempt);
    assert_int_equal(parsed->identity.shard, bed.identity.shard);
    assert_int_equal(parsed->identity.shards, bed.identity.shards);
    assert_memory_equal(&parsed->geometry, &bed.geometry, sizeof(bed.geometry));
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, bed.table, 1), 0);
    assert_int_equal(parsed->num_tensors, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor_meta *meta = &bed.table->tensors[tensors[i].tensor];
        assert_string_equal(parsed->tensors[i].tensor.name, meta->name);
        assert_int_equal(parsed->tensors[i].tensor.dtype, meta->dtype);
        assert_int_equal(parsed->tensors[i].tensor.dims, meta->dims);
        assert_memory_equal(parsed->tensors[i].tensor.shape, meta->shape, sizeof(meta->shape));
        assert_true(box_equal(&parsed->tensors[i].box, &tensors[i].box, LAYOUT_DIMS_MAX));
        assert_int_equal(parsed->data_byte[i], tensors[i].data_byte);
    }
    free(tensors);
}

TEST(test_shard__a_table_holds_every_sum_in_little_endian_and_zeros)
{
    struct shard_geometry geometry;
    assert_int_equal(shard_geometry_derive(&geometry, 4096, 700 * CHECKSUM_BLOCK_BYTES), 0);
    uint64_t bytes = geometry.file_bytes - geometry.table_start, used = 8 * geometry.num_blocks;
    uint64_t *sums = malloc(used);
    uint8_t *table = malloc(bytes);
    assert_true(sums && table && used < bytes);
    memset(table, 0xee, bytes);
    for (uint64_t i = 0; i < geometry.num_blocks; i++)
        sums[i] = 0x0807060504030201ull + i * 0x9e3779b97f4a7c15ull;
    uint64_t hash = shard_table_write(table, &geometry, sums);
    assert_memory_equal(table, "\1\2\3\4\5\6\7\10", 8);
    for (uint64_t i = 0; i < geometry.num_blocks; i++)
        assert_int_equal(shard_table_entry(table, i), sums[i]);
    for (uint64_t i = used; i < bytes; i++)
        assert_int_equal(table[i], 0);
    assert_int_equal(hash, checksum_bytes(table, bytes));
    free(sums);
    free(table);
}

TEST(test_shard__parse_gives_back_what_was_written)
{
    struct shard_header parsed;
    read_back(&parsed, bed.table, &bed.identity, 5);
    assert_string_equal(parsed.tensors[0].tensor.name, "positions");
    assert_string_equal(parsed.tensors[4].tensor.name, "a.mask");
    assert_is_written_header(&parsed);
    shard_header_free(&parsed);
}

TEST(test_shard__parse_refuses_every_flipped_bit)
{
    struct shard_header parsed;
    uint64_t length = bed.geometry.data_start;
    uint8_t *header = malloc(length);
    memcpy(header, bed.header, length);
    for (uint64_t bit = 0; bit < 8 * length; bit++) {
        uint64_t need = 0;
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        int error = shard_header_parse(&parsed, &need, header, length, bed.geometry.file_bytes);
        header[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        /* A length beyond the bytes that were read may only ask for more of the file. */
        bool asks =
            error == ERR_BUSY && bit < 64 && need > length && need < bed.geometry.file_bytes;
        if (error != ERR_CORRUPT && !asks)
            fail_msg("bit %" PRIu64 ": %s", bit, err_name(error));
    }
    free(header);
}

/* The hash at its end: by as many of its last bytes as hold it, or more, and by no fewer. */
static void assert_hash_is_found(uint8_t *header, uint64_t bytes)
{
    uint64_t end = bytes, hash = 0;
    while (header[end - 1] == ' ')
        end--;
    uint64_t digits = end - strlen("\"}}") - CHECKSUM_DIGITS;
    uint64_t key = digits - strlen("\"header_hash\":\"");
    assert_true(shard_header_hash(&hash, header + key, bytes - key));
    assert_true(shard_header_hash(&hash, header, bytes));
    assert_int_equal(hash, checksum_bytes(header, digits));
    assert_false(shard_header_hash(&hash, header + key + 1, bytes - key - 1));
    assert_false(shard_header_hash(&hash, header + end, bytes - end)); /* spaces, or nothing */
    for (uint64_t at = key; at < end; at++) {
        uint8_t kept = header[at];
        header[at] = 'A'; /* no such digit, and nowhere else in it */
        assert_false(shard_header_hash(&hash, header, bytes));
        header[at] = kept;
    }
}

static void expect_header(struct shard_expected *expected, const struct shard_geometry *geometry,
                          const struct layout_table *table, const struct shard_tensor *tensors,
                          uint32_t count, const struct shard_identity *identity)
{
    uint8_t *header = malloc(geometry->data_start);
    assert_int_equal(shard_header_write(header, geometry, table, identity), 0);
    assert_int_equal(shard_header_expect(expected, geometry, table, tensors, count, identity), 0);
    assert_memory_equal(expected->header, header, geometry->data_start);
    assert_hash_is_found(header, geometry->data_start);
    free(header);
}

/* A data_start that leaves too little room, also for the tensors or for the sections after them. */
static void expect_no_header(struct shard_expected *expected, struct shard_geometry geometry,
                             const struct layout_table *table, const struct shard_tensor *tensors,
                             uint32_t count, const struct shard_identity *identity)
{
    uint64_t tensor_bytes = geometry.table_start - geometry.data_start;
    geometry.data_start = expected->tensors_length + (next_random(2) ? 20 : 0);
    geometry.table_start = geometry.data_start + tensor_bytes;
    uint8_t *header = malloc(geometry.data_start);
    assert_int_equal(shard_header_write(header, &geometry, table, identity), ERR_CORRUPT);
    int error = shard_header_expect(expected, &geometry, table, tensors, count, identity);
    assert_int_equal(error, ERR_CORRUPT);
    assert_null(expected->header);
    free(header);
}

/* The headers of `table` in random order, of one shard after another into one place, some of them
 * longer than they have to be. */
static void expect_headers(const struct layout_table *table, uint32_t shards)
{
    struct shard_expected expected = {0};
    struct shard_identity identity = bed.identity;
    identity.shards = shards;
    for (uint32_t i = 0; i < 60; i++) {
        struct shard_geometry geometry;
        struct shard_tensor *tensors = NULL;
        uint32_t count = 0;
        uint64_t bytes = 0, data_start = SHARD_ALIGN * (1 + next_random(8) / 7);
        identity.shard = (uint32_t)next_random(shards);
        identity.step = next_random(1000);
        assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, table, identity.shard), 0);
        assert_int_equal(shard_geometry_derive(&geometry, data_start, bytes), 0);
        expect_header(&expected, &geometry, table, tensors, count, &identity);
        if (next_random(4) == 0)
            expect_no_header(&expected, geometry, table, tensors, count, &identity);
        free(tensors);
    }
    shard_expected_free(&expected);
}

/* Each tensor has the place and the shape of its layout, for any number of them. */
TEST(test_shard__tensors_of_many_layouts_lie_where_theirs_do)
{
    enum { MANY = 80 };
    static struct slice slices[RANKS][MANY];
    const struct slice *list[RANKS] = {slices[0], slices[1], slices[2], slices[3]};
    uint32_t counts[RANKS] = {MANY, MANY, MANY, MANY};
    struct layout_table *table = NULL;
    _Static_assert(RANKS == 4, "as many slices as there are ranks");
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t t = 0; t < MANY; t++) {
            char name[32];
            snprintf(name, sizeof(name), "t%03" PRIu32, t);
            describe(&slices[r][t], name, DTYPE_F32, 2, 100 + t / 2, 3, r); /* two of each */
        }
    assert_int_equal(layout_plan_save(&table, list, counts, RANKS, LAYOUT_EQUAL_REPLICAS), 0);
    assert_int_equal(table->num_layouts, MANY / 2);
    struct shard_header parsed;
    read_back(&parsed, table, &bed.identity, MANY);
    for (uint32_t t = 0; t < MANY; t++) {
        assert_string_equal(parsed.tensors[t].tensor.name, slices[1][t].tensor.name);
        assert_true(box_equal(&parsed.tensors[t].box, &slices[1][t].box, 2));
        assert_int_equal(parsed.tensors[t].tensor.shape[0], slices[1][t].tensor.shape[0]);
    }
    shard_header_free(&parsed);
    layout_table_free(table);
}

/* The expectations of verify for a file's header. */
TEST(test_shard__what_a_reader_expects_is_what_was_written)
{
    expect_headers(bed.table, RANKS);
    /* As many bytes in each of two shards, cut otherwise. */
    struct slice slices[2][2];
    struct layout_table *table;
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t t = 0; t < 2; t++) {
            describe(&slices[r][t], t == 0 ? "a" : "b", DTYPE_F32, 2, 30, 7, 0);
            slices[r][t].box.offset[0] = r * (t == 0 ? 20 : 10);
            slices[r][t].box.extent[0] = r == t ? 20 : 10;
        }
    assert_int_equal(layout_plan_save(&table, (const struct slice *[]){slices[0], slices[1]},
                                      (uint32_t[]){2, 2}, 2, LAYOUT_EQUAL_REPLICAS),
                     0);
    expect_headers(table, 2);
    layout_table_free(table);
}

TEST(test_shard__parse_refuses_or_asks_at_every_truncation)
{
    struct shard_header parsed;
    for (uint64_t length = 0; length < bed.geometry.data_start; length++) {
        uint64_t need = 0;
        assert_int_equal(parse(&parsed, &need, bed.header, length, bed.geometry.file_bytes),
                         ERR_BUSY);
        assert_int_equal(need, length < 8 ? SHARD_ALIGN : bed.geometry.data_start);
        assert_int_equal(parse(&parsed, &need, bed.header, length, length), ERR_CORRUPT);
    }
    for (uint64_t file = 0; file < bed.geometry.file_bytes; file += SHARD_ALIGN) {
        uint64_t need = 0;
        uint64_t length = file < bed.geometry.data_start ? file : bed.geometry.data_start;
        assert_int_equal(parse(&parsed, &need, bed.header, length, file), ERR_CORRUPT);
    }
}

/* ---- lies with a right hash ---- */

/* Puts `text` (a whole JSON object that ends in the hash member) into a header of ours. */
static int parse_text(struct shard_header *out, const char *text, size_t length)
{
    uint64_t data_start = (8 + length + 4095) / 4096 * 4096, header_bytes = data_start - 8;
    uint64_t file_bytes = bed.geometry.file_bytes - bed.geometry.data_start + data_start;
    uint64_t need = 0;
    char *header = malloc(data_start), digits[17];
    memset(header, ' ', data_start);
    memcpy(header, &header_bytes, 8);
    memcpy(header + 8, text, length);
    snprintf(digits, sizeof(digits), "%016" PRIx64, checksum_bytes(header, 8 + length - 19));
    memcpy(header + 8 + length - 19, digits, 16);
    int error = shard_header_parse(out, &need, header, data_start, file_bytes);
    free(header);
    return error;
}

static char *copy_text(size_t *length)
{
    *length = bed.geometry.data_start - 8;
    while (bed.header[8 + *length - 1] == ' ')
        *length -= 1;
    char *text = malloc(*length + 1);
    memcpy(text, bed.header + 8, *length);
    text[*length] = '\0';
    return text;
}

TEST(test_shard__parse_refuses_lies_under_a_right_hash)
{
    static const struct {
        const char *from, *to, *says;
    } lies[] = {
        {"\"version\":\"1\"", "\"version\":\"2\"", "shard format '2' is unknown"},
        {"holdfast-shard", "holdfast-shark", "not a Holdfast shard"},
        {"first-run_1.0", "first/run_1.0", "'run'"},
        {"\"step\":\"1000\"", "\"step\":\"01000\"", "'step'"},
        {"\"step\":\"1000\"", "\"step\":\"-1000\"", "'step'"},
        {"\"step\":\"1000\"", "\"step\":\"99999999999999999999\"", "'step'"},
        {"\"step\":\"1000\"", "\"step\":1000", "'step'"},
        {"\"attempt\":\"3\"", "\"attempt\":\"\"", "'attempt'"},
        {NONCE, "0123456789abcdef0123456789abcdeg", "'nonce'"},
        {"\"shard\":\"1\"", "\"shard\":\"4\"", "'shard'"},
        {"\"shards\":\"4\"", "\"shards\":\"4294967296\"", "'shards'"},
        {"\"data_start\":\"4096\"", "\"data_start\":\"8192\"", "'data_start'"},
        {"\"data_start\":\"4096\",", "", "'data_start'"},
        {"\"attempt\":\"3\"", "\"attempt\":\"3\",\"x\":\"y\"", "'__metadata__'"},
        {"\"attempt\":\"3\"", "\"attempt\":\"3\",\"run\":\"y\"", "not a JSON object"},
        {"\"dtype\":\"F32\"", "\"dtype\":\"F31\"", "'layers.0.wq.weight'"},
        {"\"shape\":[3,7]", "\"shape\":[3,8]", "reaches beyond"},
        {"\"shape\":[3,7]", "\"shape\":[3,-7]", "'layers.0.wq.weight'"},
        {"\"shape\":[3,7]", "\"shape\":[3,7.0]", "'layers.0.wq.weight'"},
        {"\"shape\":[3,7]", "\"shape\":[3,7,1]", "'layers.0.wq.weight'"},
        {"\"shape\":[3,7]", "\"shape\":[1,1,1,3,7]", "'layers.0.wq.weight'"},
        {"\"shape\":[3,7]", "\"shape\":[4611686018427387905,4]", "'layers.0.wq.weight'"},
        {"\"data_offsets\":[16,100]", "\"data_offsets\":[20,104]", "hole or overlap"},
        {"\"data_offsets\":[16,100]", "\"data_offsets\":[12,96]", "hole or overlap"},
        {"\"data_offsets\":[16,100]", "\"data_offsets\":[16,104]", "do not fit"},
        {"\"data_offsets\":[16,100]", "\"data_offsets\":[100,16]", "bad description"},
        {"\"data_offsets\":[16,100]", "\"data_offsets\":[16,100],\"x\":1", "bad description"},
        {"\"3,0;10,7\"", "\"8,0;10,7\"", "reaches beyond"},
        {"\"3,0;10,7\"", "\"3,0;10\"", "bad slice"},
        {"\"3,0;10,7\"", "\"3,0;10,7,\"", "bad slice"},
        {"\"3,0;10,7\"", "\"3;0;10,7\"", "bad slice"},
        {"\"3,0;10,7\"", "\"18446744073709551615,0;10,7\"", "reaches beyond"},
        {"\"slice.positions\"", "\"slice.position\"", "bad slice"},
        {"\"positions\":{", "\"posi tions\":{", ""},
        {"\"layers.0.wq.weight\":{", "\"zayers.0.wq.weight\":{", ""},
        {"\"" SHARD_TABLE_NAME "\"", "\"__block_checksumz__\"", "not a Holdfast shard"},
        {"\"" SHARD_TABLE_NAME "\":{\"dtype\":\"U8\"", "\"" SHARD_TABLE_NAME "\":{\"dtype\":\"I8\"",
         "'" SHARD_TABLE_NAME "'"},
        {"\"" SHARD_TABLE_NAME "\":{\"dtype\":\"U8\",\"shape\":[",
         "\"" SHARD_TABLE_NAME "\":{\"dtype\":\"U8\",\"shape\":[1", "'" SHARD_TABLE_NAME "'"},
        {"{\"positions\"", "{{\"positions\"", "not a JSON object"},
    };
    struct shard_header parsed;
    size_t length = 0;
    char *text = copy_text(&length), changed[8192];
    assert_int_equal(parse_text(&parsed, text, length), 0);
    assert_is_written_header(&parsed);
    shard_header_free(&parsed);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        const char *at = strstr(text, lies[i].from);
        if (!at)
            fail_msg("the header has no %s", lies[i].from);
        int size = snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text,
                            lies[i].to, at + strlen(lies[i].from));
        int error = parse_text(&parsed, changed, (size_t)size);
        if (error != (i == 0 ? ERR_VERSION : ERR_CORRUPT) || !strstr(report_line(), lies[i].says))
            fail_msg("%s: %s %s", lies[i].to, err_name(error), report_line());
    }
    free(text);
}

TEST(test_shard__parse_survives_random_texts_under_a_right_hash)
{
    static const char alphabet[] = "{}[]\",:0123456789 .;-eE\\u_aF\x80\n";
    size_t length = 0;
    char *text = copy_text(&length), *changed = malloc(length);
    uint32_t accepted = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        struct shard_header parsed;
        uint64_t changes = 1 + next_random(3);
        memcpy(changed, text, length);
        for (uint64_t i = 0; i < changes; i++) /* all before the hash member */
            changed[next_random(length - 36)] = alphabet[next_random(sizeof(alphabet) - 1)];
        int error = parse_text(&parsed, changed, length);
        if (error) {
            assert_true(error == ERR_CORRUPT || error == ERR_VERSION);
            continue;
        }
        /* Accepted: then it differs in names and numbers of its identity, which no other field
         * shows. */
        uint64_t bytes = 0;
        accepted++;
        assert_int_equal(parsed.num_tensors, 5);
        for (uint32_t i = 0; i < parsed.num_tensors; i++) {
            assert_int_equal(slice_check(&parsed.tensors[i]), 0);
            assert_int_equal(parsed.data_byte[i], bytes);
            bytes += box_elements(&parsed.tensors[i].box, parsed.tensors[i].tensor.dims) *
                     dtype_bytes(parsed.tensors[i].tensor.dtype);
        }
        assert_int_equal(bytes, parsed.geometry.table_start - parsed.geometry.data_start);
        shard_header_free(&parsed);
    }
    print_message("# %u of 20000 accepted\n", accepted);
    free(text);
    free(changed);
}

TEST(test_shard__parse_refuses_impossible_lengths)
{
    static const uint64_t lengths[] = {
        0, 1, 4088 + 1, UINT64_MAX, UINT64_MAX - 7, 1ull << 62, 1ull << 24, (1ull << 24) - 7};
    struct shard_header parsed;
    uint8_t header[4096];
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t need = 0;
        memset(header, ' ', sizeof(header));
        memcpy(header, &lengths[i], 8);
        assert_int_equal(shard_header_parse(&parsed, &need, header, sizeof(header), 1ull << 40),
                         ERR_CORRUPT);
    }
    memset(header, 0, sizeof(header));
    uint64_t need = 0, length = 4088;
    memcpy(header, &length, 8);
    assert_int_equal(shard_header_parse(&parsed, &need, header, sizeof(header), 8192), ERR_CORRUPT);
    memset(header + 8, ' ', sizeof(header) - 8);
    assert_int_equal(shard_header_parse(&parsed, &need, header, sizeof(header), 8192), ERR_CORRUPT);
    assert_line_has("not a Holdfast shard");
}

/* ---- a stock reader ---- */

/* Writes the whole shard 1 with known values: byte b of the tensor data is (b * 7) mod 251. */
static void write_file(const char *path)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bed.header, 1, bed.geometry.data_start, file), bed.geometry.data_start);
    for (uint64_t b = bed.geometry.data_start; b < bed.geometry.file_bytes; b++)
        fputc(b < bed.geometry.table_start ? (int)((b - bed.geometry.data_start) * 7 % 251) : 0,
              file);
    assert_int_equal(fclose(file), 0);
}

TEST(test_shard__stock_safetensors_opens_the_file)
{
    static const char script[] =
        "import sys\n"
        "try:\n"
        "    import numpy; from safetensors import safe_open\n"
        "except ImportError as e:\n"
        "    print('# ' + str(e)); sys.exit(77)\n"
        "f = safe_open(sys.argv[1], 'numpy'); m = f.metadata(); k = sorted(f.keys())\n"
        "assert k == ['__block_checksums__', 'a.mask', 'layers.0.norm.weight',"
        " 'layers.0.wq.weight', 'positions', 'tok_embeddings.weight'], k\n"
        "raw = lambda o, n: bytes((o + i) * 7 % 251 for i in range(n))\n"
        "p = f.get_tensor('positions'); w = f.get_tensor('layers.0.wq.weight')\n"
        "assert p.dtype == numpy.int64 and p.tobytes() == raw(0, 16), p\n"
        "assert w.shape == (3, 7) and w.tobytes() == raw(16, 84), w\n"
        "assert f.get_tensor('a.mask').shape == (75, 5)\n"
        "assert m['step'] == '1000' and m['slice.layers.0.wq.weight'] == '3,0;10,7', m\n";
    char path[256], command[4096];
    const char *folder = getenv("TMPDIR"), *python = getenv("PYTHON");
    snprintf(path, sizeof(path), "%s/shard-%d.safetensors", folder ? folder : "/tmp", getpid());
    write_file(path);
    snprintf(command, sizeof(command), "%s -c \"$SCRIPT\" %s", python ? python : "python3", path);
    setenv("SCRIPT", script, 1);
    int status = system(command);
    unlink(path);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) {
        print_message("# SKIP Python's safetensors is not installed\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

SUITE(open_bed, close_bed)
