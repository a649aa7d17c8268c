/* proto_memfile.c - a stream into memory.
 *
 * Goal: printed text is kept, whatever its size. A lack of memory is reported, whenever it occurs,
 * and leaks nothing; no manifest has a hole. Method: the linker sends realloc through this file.
 * Run it with SANITIZER=address: leaks. */
#include "proto/base/memfile.h"
#include "proto/base/report.h"
#include "proto/format/manifest.h"
#include "tests/unit/suite.h"

#include <stdlib.h>
#include <string.h>

static uint32_t reallocs_left = UINT32_MAX;

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes)
{
    if (reallocs_left == 0)
        return NULL;
    reallocs_left -= reallocs_left != UINT32_MAX;
    return __real_realloc(old, bytes);
}

#define LINES 20000u

/* Lines of different lengths. */
static void print_lines(FILE *file)
{
    for (uint32_t i = 0; i < LINES; i++)
        fprintf(file, "%u %.*s\n", i, (int)(i % 50),
                "..................................................");
}

TEST(test_memfile__what_is_printed_is_there)
{
    char *text = NULL, line[80];
    size_t bytes = 1, at = 0;
    FILE *file = memfile_open(&text, &bytes);
    assert_non_null(file);
    fflush(file);
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    print_lines(file);
    fflush(file);
    size_t before = bytes;
    fputc('x', file);
    assert_true(memfile_close(file));
    assert_int_equal(bytes, before + 1);
    assert_int_equal(strlen(text), bytes);
    for (uint32_t i = 0; i < LINES; i++, at += strlen(line)) {
        snprintf(line, sizeof line, "%u %.*s\n", i, (int)(i % 50),
                 "..................................................");
        assert_memory_equal(text + at, line, strlen(line));
    }
    assert_string_equal(text + at, "x");
    free(text);
}

TEST(test_memfile__a_lack_of_memory_is_told)
{
    uint32_t failed = 0;
    for (uint32_t most = 0; most < 20; most++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = memfile_open(&text, &bytes);
        assert_non_null(file);
        reallocs_left = most;
        print_lines(file);
        reallocs_left = UINT32_MAX;
        fputs("there is memory again", file);
        bool is_whole = memfile_close(file);
        failed += !is_whole;
        assert_int_equal(is_whole, most >= failed);
        free(text);
    }
    assert_in_range(failed, 5, 15);
}

/* Text printed after memory ran out may be there. */
TEST(test_memfile__a_manifest_with_a_hole_is_not_handed_out)
{
    struct layout_table table = {0};
    struct shard_geometry geometry;
    char section[100000], *text;
    size_t bytes;
    uint32_t most = 0;
    snprintf(section, sizeof section, "{\"text\":\"%090000d\"}", 0);
    assert_int_equal(shard_geometry(&geometry, &table, 0, "run", 1), 0);
    struct manifest_shard shard = {geometry.file_bytes, geometry.data_start, 1, 1};
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .run = "run",
                                            .step = 1,
                                            .attempt = 1,
                                            .bytes = geometry.file_bytes,
                                            .world_size = 1,
                                            .shards = 1},
                                .config_json = section,
                                .table = &table,
                                .shards = &shard};
    assert_int_equal(manifest_new_nonce(manifest.summary.nonce), 0);
    manifest_now(manifest.summary.time);
    for (int error = ERR_MEMORY; error != 0; most++) {
        reallocs_left = most;
        error = manifest_write(&text, &bytes, &manifest);
        reallocs_left = UINT32_MAX;
        assert_true(error == 0 || error == ERR_MEMORY);
    }
    assert_in_range(most, 2, 20);
    struct manifest *read;
    assert_int_equal(manifest_read(&read, text, bytes), 0);
    assert_string_equal(read->config_json, section);
    manifest_free(read);
    free(text);
}

SUITE(NULL, NULL)
