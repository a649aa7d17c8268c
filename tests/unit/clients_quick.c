/* clients_quick.c - `ckpt-cli verify --quick` on a header of many pages.
 *
 * Goal: the hash at a header's end is compared with the committed one, wherever in the last two
 * pages the text ends. An older header and another manifest are damage. A header that is reported
 * broken is judged as a whole. Method: checkpoints of clients_store_bed.h with so many tensors that
 * their headers have more pages than are read; bytes of the ends flipped one by one, an older
 * header in their place, a manifest rewritten under right hashes. */
#define TENSORS 200
#define LARGE_WIDTH 16u
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/suite.h"

#define NAME "run@7-a1"
#define SHARDS 2u
#define SEED 23u
#define TEXT_END_BYTES strlen("\"header_hash\":\"0123456789abcdef\"}}")

static struct fixture fixture;
static struct storage *store;

/* A checkpoint, and an older one, whose headers are so much longer than they have to be. */
static void open_long(uint64_t more)
{
    fixture_open(&fixture, SHARDS, SEED);
    fixture.more_header_bytes = more;
    write_checkpoint(&fixture, "run", 6, 1);
    write_checkpoint(&fixture, "run", 7, 1);
    store = open_store(&fixture);
}

static void close_long(void)
{
    storage_close(store);
    fixture_close(&fixture);
}

/* Bit s: the header of shard s is damaged. */
static uint64_t load_opened(struct checkpoint *checkpoint, enum load load)
{
    uint64_t found = 0;
    assert_int_equal(checkpoint_load(checkpoint, load), 0);
    for (uint32_t i = 0; i < SHARDS; i++) {
        assert_null(checkpoint->shards[i].damage);
        found |= (uint64_t)(checkpoint->shards[i].header_damage != NULL) << i;
    }
    return found;
}

static uint64_t load_headers(struct checkpoint *out, enum load load)
{
    assert_int_equal(checkpoint_open(out, store, NAME), 0);
    return load_opened(out, load);
}

static uint64_t damaged(enum load load)
{
    struct checkpoint checkpoint;
    uint64_t found = load_headers(&checkpoint, load);
    checkpoint_close(&checkpoint);
    return found;
}

/* Reads the first bytes of a shard of that step, or writes them. */
static void move_header(uint64_t step, uint32_t shard, void *header, uint64_t bytes, bool writes)
{
    char path[600];
    snprintf(path, sizeof path, "%s/run/step-%08llu-a0001/shard-%05u-of-%05u.safetensors",
             fixture.root, (unsigned long long)step, shard + 1, SHARDS);
    int fd = open(path, O_RDWR);
    assert_int_equal(writes ? pwrite(fd, header, bytes, 0) : pread(fd, header, bytes, 0), bytes);
    close(fd);
}

static uint64_t header_bytes(uint32_t shard)
{
    struct checkpoint checkpoint;
    load_headers(&checkpoint, LOAD_HEADERS);
    uint64_t bytes = checkpoint.shards[shard].stored.geometry.data_start;
    checkpoint_close(&checkpoint);
    return bytes;
}

/* Where the text of the header ends. */
static uint64_t text_end(uint32_t shard, uint64_t bytes)
{
    char *header = malloc(bytes);
    move_header(7, shard, header, bytes, false);
    while (header[bytes - 1] == ' ')
        bytes--;
    free(header);
    return bytes;
}

/* Only the end is read, and every byte of it counts. `pages`: the last pages that may contain the
 * end. */
static void assert_end_counts(uint64_t pages)
{
    uint64_t bytes = header_bytes(1), end = text_end(1, bytes);
    assert_true(bytes > 3 * SHARD_ALIGN);
    assert_true(end > bytes - pages * SHARD_ALIGN && end <= bytes - (pages - 1) * SHARD_ALIGN);
    assert_int_equal(damaged(LOAD_QUICK), 0);
    for (uint64_t at = end - TEXT_END_BYTES; at < bytes; at += at < end + 8 ? 1 : 97) {
        flip(&fixture, 1, at);
        assert_int_equal(damaged(LOAD_QUICK), 2);
        flip(&fixture, 1, at);
    }
    flip(&fixture, 1, 100); /* for a reader of all pages */
    assert_int_equal(damaged(LOAD_QUICK), 0);
    assert_int_equal(damaged(LOAD_HEADERS), 2);
    flip(&fixture, 1, 100);
    assert_int_equal(damaged(LOAD_HEADERS), 0);
}

TEST(test_quick__every_byte_of_the_end_of_a_header_counts)
{
    for (uint64_t more = 0; more < 2; more++) {
        open_long(more * SHARD_ALIGN);
        assert_end_counts(1 + more);
        close_long();
    }
}

/* An end that is farther from the data than any of ours is found by reading the whole header. */
TEST(test_quick__a_header_with_more_room_than_ours_is_read_whole)
{
    open_long(4 * SHARD_ALIGN);
    assert_int_equal(damaged(LOAD_QUICK), 0);
    flip(&fixture, 1, 100);
    assert_int_equal(damaged(LOAD_QUICK), 2);
    close_long();
}

TEST(test_quick__the_header_of_an_older_save_is_named)
{
    open_long(0);
    uint64_t bytes = header_bytes(1);
    char *older = malloc(bytes);
    move_header(6, 1, older, bytes, false);
    move_header(7, 1, older, bytes, true);
    free(older);
    assert_int_equal(damaged(LOAD_QUICK), 2);
    close_long();
}

/* Under right hashes, as if it had been committed so. */
TEST(test_quick__a_manifest_with_another_hash_of_a_header_is_named)
{
    struct checkpoint checkpoint;
    struct manifest *manifest;
    char *text;
    size_t bytes;
    open_long(0);
    load_headers(&checkpoint, LOAD_HEADERS);
    manifest = checkpoint.manifest;
    manifest->shards[0].header_hash ^= 1;
    assert_int_equal(manifest_write(&text, &bytes, manifest), 0);
    write_file(&fixture, "run/step-00000007-a0001/" MANIFEST_NAME, text, bytes);
    free(text);
    checkpoint_close(&checkpoint);
    for (enum load load = LOAD_HEADERS; load <= LOAD_QUICK; load++) {
        assert_int_equal(load_headers(&checkpoint, load), 1);
        assert_non_null(strstr(checkpoint.shards[0].header_damage, "another hash of the header"));
        checkpoint_close(&checkpoint);
    }
    close_long();
}

/* As one of version 1 is read: of headers it says nothing. */
static uint64_t damaged_of_version_1(enum load load)
{
    struct checkpoint checkpoint;
    assert_int_equal(checkpoint_open(&checkpoint, store, NAME), 0);
    checkpoint.manifest->summary.version = 1;
    for (uint32_t i = 0; i < SHARDS; i++)
        checkpoint.manifest->shards[i].header_hash = 0;
    uint64_t found = load_opened(&checkpoint, load);
    checkpoint_close(&checkpoint);
    return found;
}

TEST(test_quick__without_hashes_of_headers_they_are_read_whole)
{
    open_long(0);
    for (enum load load = LOAD_HEADERS; load <= LOAD_QUICK; load++) {
        assert_int_equal(damaged_of_version_1(load), 0);
        flip(&fixture, 1, 100);
        assert_int_equal(damaged_of_version_1(load), 2);
        flip(&fixture, 1, 100);
    }
    close_long();
}

SUITE(NULL, NULL)
