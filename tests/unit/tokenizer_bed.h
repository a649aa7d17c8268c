/* tokenizer_bed.h - a folder with two texts of random words and a tokenizer that was trained on
 * them, and the tokens of its file as a plain table. */
#ifndef HOLDFAST_TOKENIZER_BED_H
#define HOLDFAST_TOKENIZER_BED_H

#include "proto/base/report.h"
#include "tests/unit/suite.h"
#include "trainer/tokenizer/text.h"
#include "trainer/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_BYTES 20000
#define VOCAB 400

struct bed {
    char folder[64], model[96], other[96], text[2][96];
    char words[2][TEXT_BYTES];
};

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*seed >> 33);
}

static void write_file(const char *path, const void *bytes, size_t num_bytes)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, num_bytes, file), num_bytes);
    assert_int_equal(fclose(file), 0);
}

static struct tokenizer *opened(const char *path)
{
    struct tokenizer *tokenizer;
    assert_int_equal(tokenizer_open(&tokenizer, path), 0);
    return tokenizer;
}

/* Random words over few letters, so that pairs repeat and ties are common. */
static void fill_words(char *out, size_t bytes, uint64_t seed)
{
    static const char letters[] = "aabbbcdee  \n'sx,";
    for (size_t i = 0; i < bytes; i++)
        out[i] = letters[next_random(&seed) % (sizeof(letters) - 1)];
}

static int setup(void **state)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    const char *tmp = getenv("TMPDIR");
    char folder[64];
    snprintf(folder, sizeof(folder), "%s/hf-token-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    memcpy(bed->folder, folder, sizeof(folder));
    snprintf(bed->model, sizeof(bed->model), "%s/model", folder);
    snprintf(bed->other, sizeof(bed->other), "%s/other", folder);
    for (int i = 0; i < 2; i++) {
        snprintf(bed->text[i], sizeof(bed->text[i]), "%s/text%d", folder, i);
        fill_words(bed->words[i], TEXT_BYTES, 11 + (uint64_t)i);
        write_file(bed->text[i], bed->words[i], TEXT_BYTES);
    }
    const char *paths[] = {bed->text[0], bed->text[1]};
    assert_int_equal(tokenizer_train(bed->model, VOCAB, paths, 2, NULL), 0);
    *state = bed;
    return 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    unlink(bed->model);
    unlink(bed->other);
    unlink(bed->text[0]);
    unlink(bed->text[1]);
    int left = rmdir(bed->folder); /* fails when a temporary file is left */
    free(bed);
    return left;
}

/* The file's tokens, for the reference: bytes and length per rank. */
struct table {
    unsigned char bytes[VOCAB][64];
    size_t length[VOCAB];
    uint32_t count;
};

static void read_table(struct table *out, const struct bed *bed)
{
    struct tokenizer *tokenizer = opened(bed->model);
    out->count = tokenizer_vocab(tokenizer) - 2;
    for (int32_t rank = 0; rank < (int32_t)out->count; rank++) {
        char *bytes;
        assert_int_equal(tokenizer_decode(tokenizer, &rank, 1, &bytes, &out->length[rank]), 0);
        assert_true(out->length[rank] <= 64);
        memcpy(out->bytes[rank], bytes, out->length[rank]);
        free(bytes);
    }
    tokenizer_close(tokenizer);
}

static int32_t table_find(const struct table *table, const unsigned char *bytes, size_t length)
{
    for (uint32_t rank = 0; rank < table->count; rank++) {
        if (table->length[rank] == length && memcmp(table->bytes[rank], bytes, length) == 0)
            return (int32_t)rank;
    }
    return -1;
}

#endif
