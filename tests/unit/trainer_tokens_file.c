/* trainer_tokens_file.c - the tokens file of format 2, and format 1 through the same reader.
 *
 * Goal: tokens, document marks and masks are read back as added, at any width. The identity is that
 * of format 1 for the same tokens. Any changed byte of a block, of the table or of the header is
 * found, at open or when the block is read. A start reads the header alone. A failed writer leaves
 * no file. Method: files of random tokens over several blocks; every region of the file damaged in
 * turn; blocks swapped and taken from another file; a file of format 1 written here by hand. */
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/data/tokens_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT (3 * TOKENS_BLOCK + 77)
#define HASH "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

struct bed {
    char folder[64], path[80];
    int32_t tokens[COUNT];
    struct tokens_block block;
};

static int setup(void **state)
{
    struct bed *bed = calloc(1, sizeof *bed);
    const char *tmp = getenv("TMPDIR");
    snprintf(bed->folder, sizeof bed->folder, "%s/hf-tokens-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(bed->folder));
    snprintf(bed->path, sizeof bed->path, "%s/a.tokens", bed->folder);
    *state = bed;
    return 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    unlink(bed->path);
    int left = rmdir(bed->folder); /* fails when a temporary file is left */
    free(bed);
    return left;
}

static void fill_tokens(struct bed *bed, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        bed->tokens[i] = (int32_t)((seed >> 33) % vocab);
    }
}

static bool begins_here(uint32_t index)
{
    return index == 0 || index % 1000 == 999;
}

static bool is_trained_here(uint32_t index)
{
    return index / 7 % 3 != 1;
}

/* Documents begin and masks change as the two functions above say. */
static void write_tokens(struct bed *bed, uint32_t vocab, bool has_mask,
                         struct tokens_header *header)
{
    struct tokens_writer *writer;
    struct tokens_writer_options options = {bed->path, HASH, vocab, 5, -1, has_mask};
    assert_int_equal(tokens_writer_open(&writer, &options), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        if (begins_here(i))
            tokens_writer_begin(writer);
        tokens_writer_add(writer, bed->tokens + i, 1, !has_mask || is_trained_here(i));
    }
    assert_int_equal(tokens_writer_commit(writer, header), 0);
}

/* Of random tokens of a vocabulary of 1,000. */
static struct tokens_header write_random(struct bed *bed, bool has_mask, uint64_t seed)
{
    struct tokens_header header;
    fill_tokens(bed, 1000, seed);
    write_tokens(bed, 1000, has_mask, &header);
    return header;
}

static void check_file(struct bed *bed, uint32_t vocab, bool has_mask)
{
    struct tokens_file *file;
    struct tokens_header header;
    uint64_t documents = 0, trained = 0;
    fill_tokens(bed, vocab, vocab);
    write_tokens(bed, vocab, has_mask, &header);
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    assert_memory_equal(tokens_file_header(file), &header, sizeof header);
    assert_int_equal(tokens_file_header(file)->num_blocks, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(tokens_file_read(file, i, &bed->block), 0);
        assert_int_equal(bed->block.first, i * TOKENS_BLOCK);
        assert_int_equal(bed->block.count, i < 3 ? TOKENS_BLOCK : 77);
        assert_memory_equal(bed->block.tokens, bed->tokens + i * TOKENS_BLOCK,
                            bed->block.count * sizeof(int32_t));
        for (uint32_t j = 0; j < bed->block.count; j++) {
            uint32_t at = i * TOKENS_BLOCK + j;
            assert_int_equal(tokens_bit(bed->block.begins, j), begins_here(at));
            assert_int_equal(tokens_bit(bed->block.masked, j), has_mask && !is_trained_here(at));
            documents += begins_here(at);
            trained += !has_mask || is_trained_here(at);
        }
    }
    assert_int_equal(header.num_tokens, COUNT);
    assert_int_equal(header.num_documents, documents);
    assert_int_equal(header.num_trained, trained);
    assert_int_equal(tokens_file_verify(file, NULL), 0);
    tokens_file_close(file);
}

TEST(test_tokens_file__reads_back_tokens_documents_and_masks)
{
    check_file(*state, 65536, false);
    check_file(*state, 65537, false); /* four bytes */
    check_file(*state, 300, true);
    check_file(*state, 128256, true);
}

#define FILE_TEST(name) TEST_WITH(struct bed *bed, name, NULL, NULL)

FILE_TEST(test_tokens_file__identity_is_the_hash_of_the_tokens_and_of_a_mask)
{
    uint16_t narrow[COUNT];
    uint64_t plain = write_random(bed, false, 3).hash;
    for (uint32_t i = 0; i < COUNT; i++)
        narrow[i] = (uint16_t)bed->tokens[i];
    assert_int_equal(plain, checksum_bytes(narrow, sizeof narrow));
    assert_int_not_equal(write_random(bed, true, 3).hash, plain);
}

/* ---- damage ---- */

static void change_file(const struct bed *bed, long at, unsigned char with)
{
    FILE *file = fopen(bed->path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    fputc(byte ^ with, file);
    assert_int_equal(fclose(file), 0);
}

FILE_TEST(test_tokens_file__every_header_field_is_proven_at_open)
{
    struct tokens_file *file;
    (void)write_random(bed, true, 3);
    for (long at = 0; at < TOKENS_HEADER_BYTES; at += at < 160 ? 1 : 97) {
        change_file(bed, at, 0x10);
        int error = tokens_file_open(&file, bed->path);
        assert_true(error == ERR_CORRUPT || error == ERR_VERSION);
        change_file(bed, at, 0x10);
    }
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    tokens_file_close(file);
}

FILE_TEST(test_tokens_file__a_damaged_block_is_found_when_it_is_read_and_no_other)
{
    struct tokens_file *file;
    struct tokens_header header = write_random(bed, true, 3);
    long block = (long)tokens_block_bytes(&header), table = (long)header.table_offset;
    const long damage[] = {4096 + 2 * block, 4096 + 3 * block - 1, /* first token, end of mask */
                           4096 + 2 * block + 2 * TOKENS_BLOCK, table + 2 * 8};
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        change_file(bed, damage[i], 1);
        assert_int_equal(tokens_file_open(&file, bed->path), 0);
        for (uint64_t j = 0; j < 4; j++)
            assert_int_equal(tokens_file_read(file, j, &bed->block), j == 2 ? ERR_CORRUPT : 0);
        assert_int_equal(tokens_file_verify(file, NULL), ERR_CORRUPT);
        tokens_file_close(file);
        change_file(bed, damage[i], 1);
    }
}

static void copy_bytes(const char *from, long from_at, const char *to, long to_at, size_t bytes)
{
    char *buffer = malloc(bytes);
    FILE *in = fopen(from, "re"), *out = fopen(to, "r+e");
    assert_true(in != NULL && out != NULL && buffer != NULL);
    assert_int_equal(fseek(in, from_at, SEEK_SET), 0);
    assert_int_equal(fseek(out, to_at, SEEK_SET), 0);
    assert_int_equal(fread(buffer, bytes, 1, in), 1);
    assert_int_equal(fwrite(buffer, bytes, 1, out), 1);
    assert_int_equal(fclose(in) | fclose(out), 0);
    free(buffer);
}

FILE_TEST(test_tokens_file__a_block_of_another_place_or_file_is_damage)
{
    struct tokens_file *file;
    char other[96];
    snprintf(other, sizeof other, "%s.other", bed->path);
    (void)write_random(bed, false, 3);
    assert_int_equal(rename(bed->path, other), 0);
    struct tokens_header header = write_random(bed, false, 4);
    long block = (long)tokens_block_bytes(&header), table = (long)header.table_offset;
    /* with its checksum each: as a copy that stopped halfway leaves them */
    copy_bytes(other, 4096, bed->path, 4096, (size_t)block);
    copy_bytes(other, table, bed->path, table, 8);
    copy_bytes(other, 4096 + 2 * block, other, 4096 + block, (size_t)block);
    copy_bytes(other, table + 16, other, table + 8, 8);
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    assert_int_equal(tokens_file_read(file, 0, &bed->block), ERR_CORRUPT);
    assert_int_equal(tokens_file_read(file, 1, &bed->block), 0);
    tokens_file_close(file);
    assert_int_equal(tokens_file_open(&file, other), 0);
    assert_int_equal(tokens_file_read(file, 0, &bed->block), 0);
    assert_int_equal(tokens_file_read(file, 1, &bed->block), ERR_CORRUPT);
    tokens_file_close(file);
    unlink(other);
}

FILE_TEST(test_tokens_file__a_file_of_another_size_is_refused)
{
    struct tokens_file *file;
    struct tokens_header header = write_random(bed, false, 3);
    off_t bytes = (off_t)(header.table_offset + 4 * 8);
    assert_int_equal(truncate(bed->path, bytes - 1), 0);
    assert_int_equal(tokens_file_open(&file, bed->path), ERR_CORRUPT);
    assert_int_equal(truncate(bed->path, bytes + 1), 0);
    assert_int_equal(tokens_file_open(&file, bed->path), ERR_CORRUPT);
    assert_int_equal(truncate(bed->path, 100), 0);
    assert_int_equal(tokens_file_open(&file, bed->path), ERR_CORRUPT);
}

/* ---- format 1 ---- */

static void write_format_1(const struct bed *bed, uint32_t count, uint32_t vocab)
{
    uint16_t narrow[COUNT];
    struct tokens_header header = {.magic = "HFTOKENS",
                                   .version = 1,
                                   .header_bytes = 4096,
                                   .token_bytes = 2,
                                   .vocab = vocab,
                                   .num_tokens = count};
    for (uint32_t i = 0; i < count; i++)
        narrow[i] = (uint16_t)bed->tokens[i];
    memcpy(header.tokenizer_hash, HASH, 64);
    header.hash = checksum_bytes(narrow, count * sizeof *narrow);
    header.header_hash = checksum_bytes(&header, 4088);
    FILE *file = fopen(bed->path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(&header, sizeof header, 1, file), 1);
    assert_int_equal(fwrite(narrow, sizeof *narrow, count, file), count);
    assert_int_equal(fclose(file), 0);
}

FILE_TEST(test_tokens_file__format_1_opens_with_its_documents_derived)
{
    struct tokens_file *file;
    fill_tokens(bed, 500, 8);
    write_format_1(bed, COUNT, 500);
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    assert_int_equal(tokens_file_header(file)->bos, 498);
    assert_int_equal(tokens_file_header(file)->num_blocks, 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(tokens_file_read(file, i, &bed->block), 0);
        for (uint32_t j = 0; j < bed->block.count; j++) {
            int32_t token = bed->tokens[i * TOKENS_BLOCK + j];
            assert_int_equal(bed->block.tokens[j], token);
            assert_int_equal(tokens_bit(bed->block.begins, j), token == 498);
        }
    }
    assert_int_equal(tokens_file_verify(file, NULL), 0);
    tokens_file_close(file);
    change_file(bed, 4096 + 2 * 20000, 1);
    assert_int_equal(tokens_file_open(&file, bed->path), 0); /* a start reads the header alone */
    assert_int_equal(tokens_file_verify(file, NULL), ERR_CORRUPT);
    tokens_file_close(file);
}

FILE_TEST(test_tokens_file__tokens_beyond_the_vocabulary_are_damage)
{
    struct tokens_file *file;
    fill_tokens(bed, 500, 8);
    bed->tokens[40] = 500;
    write_format_1(bed, 100, 500);
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    assert_int_equal(tokens_file_read(file, 0, &bed->block), ERR_CORRUPT);
    tokens_file_close(file);
}

/* ---- writing ---- */

FILE_TEST(test_tokens_file__a_writer_that_ends_early_leaves_nothing)
{
    struct tokens_writer *writer;
    struct tokens_writer_options options = {bed->path, HASH, 300, -1, -1, false};
    unlink(bed->path);
    assert_int_equal(tokens_writer_open(&writer, &options), 0);
    tokens_writer_abort(writer);
    assert_int_equal(tokens_writer_open(&writer, &options), 0);
    assert_int_equal(tokens_writer_commit(writer, NULL), ERR_INVALID); /* no tokens */
    assert_int_not_equal(access(bed->path, F_OK), 0);
    options.path = "/no/such/folder/file";
    assert_int_equal(tokens_writer_open(&writer, &options), ERR_INVALID);
}

static bool stop_at_once(void *user, uint64_t done, uint64_t total)
{
    uint64_t *calls = user;
    assert_true(done < total);
    return ++*calls < 2;
}

FILE_TEST(test_tokens_file__a_check_can_be_ended)
{
    struct tokens_file *file;
    uint64_t calls = 0;
    (void)write_random(bed, false, 3);
    assert_int_equal(tokens_file_open(&file, bed->path), 0);
    assert_int_equal(tokens_file_verify(file, &(struct tokens_watch){stop_at_once, &calls}),
                     ERR_ABORTED);
    assert_int_equal(calls, 2);
    tokens_file_close(file);
}

SUITE(setup, teardown)
