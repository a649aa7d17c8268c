/* clients_damage.c - every byte of a checkpoint, changed, cut off or exchanged.
 *
 * Goal: `ckpt-cli verify` and every offline reader find any change to the bytes of a stored
 * checkpoint and name its place. No damaged data is returned, nothing crashes. Method: checkpoints
 * of random layouts (clients_store_bed.h), read by the tool's own functions in this process: bytes
 * of manifest, header and checksum table flipped one by one, one byte in each 4 KiB of data,
 * truncations of many lengths, blocks and files exchanged with each other and with those of an
 * older checkpoint of the same layout. Of bytes and lengths make test takes one in PLACES_APART:
 * SEED= repeats which, SAMPLE=1 takes all (sample.h). A manifest of any text, of which checksums
 * may be right, is read by each command that reads: TEXTS= says how many. */
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/in_memory.h"
#include "tests/unit/sample.h"
#include "tests/unit/suite.h"

#include <jansson.h>

#define NAME "run@7-a1"
#define DIRECTORY "run/step-00000007-a0001"
#define OLDER_DIRECTORY "run/step-00000006-a0001"
#define PAGE 4096u
#define PLACES_APART 7u
#define SEED 17u /* of a checkpoint of two shards, some MiB each */
#define SHARDS 2u
#define BLOCKS_MAX 64u

struct file {
    char path[600];
    unsigned char *bytes;
    uint64_t size;
};

/* A checkpoint, as it was written. */
struct victim {
    struct fixture fixture;
    struct storage *store;
    struct file manifest, shards[SHARDS], older_manifest, older_shards[SHARDS];
    struct shard_geometry geometry[SHARDS];
    struct sample sample; /* of the places */
};

/* ---- files ---- */

static void read_file(struct file *out, const struct victim *victim, const char *directory,
                      const char *name)
{
    snprintf(out->path, sizeof out->path, "%s/%s/%s", victim->fixture.root, directory, name);
    FILE *file = fopen(out->path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    out->size = (uint64_t)ftell(file);
    rewind(file);
    out->bytes = malloc(out->size);
    assert_int_equal(fread(out->bytes, 1, out->size, file), out->size);
    fclose(file);
}

static void write_at(const struct file *file, const void *data, uint64_t bytes, uint64_t at)
{
    int fd = open(file->path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, data, bytes, (off_t)at), bytes);
    close(fd);
}

static void flip_byte(const struct file *file, uint64_t at)
{
    unsigned char changed = file->bytes[at] ^ (unsigned char)(1u << at % 8);
    write_at(file, &changed, 1, at);
}

static void restore(const struct file *file)
{
    write_at(file, file->bytes, file->size, 0);
    assert_int_equal(truncate(file->path, (off_t)file->size), 0);
}

static void restore_byte(const struct file *file, uint64_t at)
{
    write_at(file, file->bytes + at, 1, at);
}

/* ---- the checkpoint ---- */

static void read_directory(struct file *manifest, struct file *shards, const struct victim *victim,
                           const char *directory)
{
    read_file(manifest, victim, directory, MANIFEST_NAME);
    for (uint32_t i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "shard-%05u-of-%05u.safetensors", i + 1, SHARDS);
        read_file(&shards[i], victim, directory, name);
    }
}

static uint64_t tensor_bytes(const struct fixture *fixture, uint32_t index)
{
    return fixture->elements[index] * dtype_bytes(fixture->table->tensors[index].dtype);
}

static int open_victim(void **state)
{
    struct victim *victim = calloc(1, sizeof *victim);
    struct checkpoint checkpoint;
    seed_random();
    victim->sample = sample_begin(PLACES_APART);
    fixture_open(&victim->fixture, SHARDS, SEED);
    write_checkpoint(&victim->fixture, "run", 6, 1);
    for (uint32_t i = 0; i < TENSORS; i++) /* every element has another value a step later */
        for (uint64_t byte = 0; byte < tensor_bytes(&victim->fixture, i); byte++)
            victim->fixture.data[i][byte] ^= 0x55;
    write_checkpoint(&victim->fixture, "run", 7, 1);
    read_directory(&victim->manifest, victim->shards, victim, DIRECTORY);
    read_directory(&victim->older_manifest, victim->older_shards, victim, OLDER_DIRECTORY);
    victim->store = open_store(&victim->fixture);
    open_loaded(&checkpoint, victim->store, NAME);
    for (uint32_t i = 0; i < SHARDS; i++) {
        victim->geometry[i] = checkpoint.shards[i].stored.geometry;
        assert_true(victim->geometry[i].num_blocks > 2);
        assert_true(victim->geometry[i].num_blocks <= BLOCKS_MAX);
    }
    checkpoint_close(&checkpoint);
    *state = victim;
    return 0;
}

static int close_victim(void **state)
{
    struct victim *victim = *state;
    storage_close(victim->store);
    fixture_close(&victim->fixture);
    free(victim->manifest.bytes);
    free(victim->older_manifest.bytes);
    for (uint32_t i = 0; i < SHARDS; i++) {
        free(victim->shards[i].bytes);
        free(victim->older_shards[i].bytes);
    }
    free(victim);
    return 0;
}

/* ---- the report about it ---- */

/* The command's answer, and unless NULL its output, as JSON. */
static int run_quietly(json_t **out, const struct cli *cli, int (*run)(const struct cli *cli))
{
    FILE *file = tmpfile();
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    int answer = run(cli);
    fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    close(saved);
    rewind(file);
    if (out != NULL)
        *out = json_loadf(file, 0, NULL);
    fclose(file);
    return answer;
}

/* The JSON that `ckpt-cli verify` prints. */
static json_t *verify(const struct victim *victim, bool is_quick, int *out_exit)
{
    struct cli cli = {.is_json = true, .is_quick = is_quick, .num_args = 1, .args = {NAME}};
    json_t *json;
    snprintf(cli.store, sizeof cli.store, "%s", victim->fixture.root);
    *out_exit = run_quietly(&json, &cli, cli_verify);
    return json;
}

/* Verify finds damage in exactly these blocks of a shard (bit b: block b), and nothing else. */
static void assert_verify_names(const struct victim *victim, uint32_t shard, uint64_t blocks)
{
    int exit;
    char name[64];
    json_t *json = verify(victim, false, &exit), *damage;
    uint64_t named = 0;
    size_t i;
    snprintf(name, sizeof name, "shard-%05u-of-%05u.safetensors", shard + 1, SHARDS);
    assert_int_equal(exit, CLI_DIFFERS);
    json_array_foreach(json_object_get(json, "damage"), i, damage)
    {
        const char *object = json_string_value(json_object_get(damage, "object"));
        json_t *block = json_object_get(damage, "block");
        if (block == NULL) { /* the header's bytes are part of block 0, a tensor's digest follows */
            assert_true(strcmp(object, name) != 0 || (blocks & 1));
            continue;
        }
        uint64_t number = (uint64_t)json_integer_value(block);
        assert_string_equal(object, name);
        assert_int_equal(json_integer_value(json_object_get(damage, "start")),
                         number * CHECKSUM_BLOCK_BYTES);
        named |= 1ull << number;
    }
    json_decref(json);
    assert_true(named == blocks);
}

/* Without the data: the shard's file is named, and no other. */
static void assert_quick_names(const struct victim *victim, uint32_t shard)
{
    int exit;
    char name[64];
    json_t *json = verify(victim, true, &exit);
    const json_t *list = json_object_get(json, "damage");
    snprintf(name, sizeof name, "shard-%05u-of-%05u.safetensors", shard + 1, SHARDS);
    assert_int_equal(exit, CLI_DIFFERS);
    assert_int_equal(json_array_size(list), 1);
    const json_t *damage = json_array_get(list, 0);
    assert_string_equal(json_string_value(json_object_get(damage, "object")), name);
    json_decref(json);
}

static void assert_verify_is_content(const struct victim *victim)
{
    int exit;
    json_t *json = verify(victim, false, &exit);
    assert_int_equal(exit, 0);
    assert_int_equal(json_integer_value(json_object_get(json, "damages")), 0);
    json_decref(json);
}

/* Damage of one shard's file, found before its data is read. */
static void assert_shard_is_refused(const struct victim *victim, uint32_t shard, bool is_header)
{
    struct checkpoint checkpoint;
    assert_int_equal(checkpoint_open(&checkpoint, victim->store, NAME), 0);
    assert_int_equal(checkpoint_load(&checkpoint, LOAD_HEADERS), 0);
    for (uint32_t i = 0; i < SHARDS; i++) {
        const struct shard_file *file = &checkpoint.shards[i];
        assert_int_equal(file->damage != NULL, i == shard && !is_header);
        assert_int_equal(file->header_damage != NULL, i == shard && is_header);
    }
    assert_int_equal(checkpoint_need_whole(&checkpoint), ERR_CORRUPT);
    assert_non_null(strstr(report_message(), NAME ": shard "));
    checkpoint_close(&checkpoint);
    assert_quick_names(victim, shard);
}

/* Its manifest cannot be read; the list knows that when the summary shows it. */
static void assert_manifest_is_refused(const struct victim *victim, bool in_summary)
{
    struct checkpoint checkpoint;
    struct store_list catalog;
    int error = checkpoint_open(&checkpoint, victim->store, NAME);
    /* Another checkpoint's manifest looks like a directory that was moved. */
    assert_true(error == ERR_CORRUPT || error == ERR_VERSION || error == ERR_MISMATCH);
    assert_non_null(strstr(report_message(), DIRECTORY ": "));
    assert_non_null(strstr(report_message(), "manifest"));
    assert_int_equal(store_list_read(&catalog, victim->store, "run"), 0);
    assert_int_equal(catalog.count, 2);
    assert_int_equal(catalog.entries[0].damage != NULL, in_summary);
    assert_int_equal(catalog.entries[0].summary.step, 7);
    assert_null(catalog.entries[1].damage);
    store_list_free(&catalog);
}

/* ---- bytes ---- */

#define DAMAGE_TEST(name) TEST_WITH(struct victim *victim, name, NULL, NULL)

DAMAGE_TEST(test_damage__every_flipped_byte_of_a_manifest_is_found)
{
    for (uint64_t at = 0; at < victim->manifest.size; at++) {
        if (!sample_takes(&victim->sample))
            continue;
        flip_byte(&victim->manifest, at);
        assert_manifest_is_refused(victim, at < MANIFEST_SUMMARY_BYTES);
        restore_byte(&victim->manifest, at);
    }
    assert_verify_is_content(victim);
}

DAMAGE_TEST(test_damage__every_flipped_byte_of_a_header_is_found)
{
    for (uint64_t at = 0; at < victim->geometry[1].data_start; at++) {
        if (!sample_takes(&victim->sample))
            continue;
        flip_byte(&victim->shards[1], at);
        assert_shard_is_refused(victim, 1, true);
        restore_byte(&victim->shards[1], at);
    }
    /* Readers that skip headers find it too: it is part of the first block. */
    flip_byte(&victim->shards[1], 100);
    assert_verify_names(victim, 1, 1);
    restore_byte(&victim->shards[1], 100);
    assert_verify_is_content(victim);
}

DAMAGE_TEST(test_damage__every_flipped_byte_of_a_checksum_table_is_found)
{
    for (uint64_t at = victim->geometry[0].table_start; at < victim->shards[0].size; at++) {
        if (!sample_takes(&victim->sample))
            continue;
        flip_byte(&victim->shards[0], at);
        assert_shard_is_refused(victim, 0, false);
        restore_byte(&victim->shards[0], at);
    }
    assert_verify_is_content(victim);
}

/* One page of every block at a time: blocks are checked independently. */
static void flip_pages(struct victim *victim, uint32_t shard)
{
    const struct shard_geometry *geometry = &victim->geometry[shard];
    for (uint64_t page = 0; page < CHECKSUM_BLOCK_BYTES; page += PAGE) {
        uint64_t blocks = 0, places[BLOCKS_MAX];
        if (!sample_takes(&victim->sample))
            continue;
        for (uint64_t block = 0; block < geometry->num_blocks; block++) {
            places[block] = block * CHECKSUM_BLOCK_BYTES + page + draw(&victim->fixture, PAGE);
            if (places[block] < geometry->data_start || places[block] >= geometry->table_start)
                continue;
            flip_byte(&victim->shards[shard], places[block]);
            blocks |= 1ull << block;
        }
        if (blocks != 0)
            assert_verify_names(victim, shard, blocks);
        for (uint64_t block = 0; block < geometry->num_blocks; block++)
            if (blocks >> block & 1)
                restore_byte(&victim->shards[shard], places[block]);
    }
}

DAMAGE_TEST(test_damage__a_flipped_byte_in_any_page_of_data_is_named_by_its_block)
{
    for (uint32_t shard = 0; shard < SHARDS; shard++)
        flip_pages(victim, shard);
    assert_verify_is_content(victim);
}

/* ---- lengths ---- */

DAMAGE_TEST(test_damage__every_truncation_of_a_manifest_is_found)
{
    for (uint64_t size = victim->manifest.size; size-- > 0;) {
        if (size > 0 && !sample_takes(&victim->sample))
            continue;
        assert_int_equal(truncate(victim->manifest.path, (off_t)size), 0);
        assert_manifest_is_refused(victim, size < MANIFEST_SUMMARY_BYTES);
    }
    restore(&victim->manifest);
    assert_verify_is_content(victim);
}

DAMAGE_TEST(test_damage__every_truncation_of_a_shard_is_found)
{
    const struct shard_geometry *geometry = &victim->geometry[1];
    uint64_t size = victim->shards[1].size;
    while (size > 0) {
        bool in_data = size > geometry->data_start && size <= geometry->table_start;
        size -= in_data ? (size - 1) % PAGE + 1 : 1;
        if (size > 0 && !sample_takes(&victim->sample))
            continue;
        assert_int_equal(truncate(victim->shards[1].path, (off_t)size), 0);
        assert_shard_is_refused(victim, 1, false);
    }
    assert_int_equal(unlink(victim->shards[1].path), 0);
    assert_shard_is_refused(victim, 1, false);
    int fd = open(victim->shards[1].path, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    close(fd);
    restore(&victim->shards[1]);
    assert_verify_is_content(victim);
}

DAMAGE_TEST(test_damage__bytes_that_do_not_belong_are_found)
{
    write_at(&victim->shards[0], "", 1, victim->shards[0].size);
    assert_shard_is_refused(victim, 0, false);
    restore(&victim->shards[0]);
    write_at(&victim->manifest, "\n", 1, victim->manifest.size);
    assert_manifest_is_refused(victim, false);
    restore(&victim->manifest);
    assert_verify_is_content(victim);
}

/* ---- exchanges ---- */

static uint64_t block_bytes(const struct victim *victim, uint32_t shard, uint64_t block)
{
    uint64_t start, bytes;
    shard_block(&start, &bytes, &victim->geometry[shard], block);
    return bytes;
}

static void put_block(const struct victim *victim, uint32_t shard, uint64_t block,
                      const struct file *from, uint64_t from_block)
{
    write_at(&victim->shards[shard], from->bytes + from_block * CHECKSUM_BLOCK_BYTES,
             block_bytes(victim, shard, block), block * CHECKSUM_BLOCK_BYTES);
}

DAMAGE_TEST(test_damage__swapped_blocks_are_found_and_both_are_named)
{
    uint64_t full = victim->geometry[1].num_blocks - 1; /* the last one is shorter */
    for (uint64_t a = 0; a < full; a++) {
        for (uint64_t b = a + 1; b < full; b++) {
            put_block(victim, 1, a, &victim->shards[1], b);
            put_block(victim, 1, b, &victim->shards[1], a);
            assert_verify_names(victim, 1, 1ull << a | 1ull << b);
            restore(&victim->shards[1]);
        }
    }
    assert_verify_is_content(victim);
}

/* Each of the first `count` blocks of shard 1 gives way to the block of the same place elsewhere.
 */
static void assert_other_blocks_are_found(const struct victim *victim, const struct file *from,
                                          uint64_t count)
{
    for (uint64_t block = 0; block < count; block++) {
        put_block(victim, 1, block, from, block);
        assert_verify_names(victim, 1, 1ull << block);
        restore(&victim->shards[1]);
    }
    assert_verify_is_content(victim);
}

DAMAGE_TEST(test_damage__blocks_of_the_same_place_in_another_shard_are_found)
{
    uint64_t here = victim->geometry[1].num_blocks, there = victim->geometry[0].num_blocks;
    assert_other_blocks_are_found(victim, &victim->shards[0],
                                  (here < there ? here : there) - 1); /* the last one is shorter */
}

DAMAGE_TEST(test_damage__stale_blocks_of_the_same_place_are_found)
{
    assert_other_blocks_are_found(victim, &victim->older_shards[1], victim->geometry[1].num_blocks);
}

DAMAGE_TEST(test_damage__stale_tables_headers_and_files_are_found)
{
    const struct shard_geometry *geometry = &victim->geometry[1];
    const struct file *now = &victim->shards[1], *older = &victim->older_shards[1];
    assert_int_equal(older->size, now->size);
    write_at(now, older->bytes + geometry->table_start, now->size - geometry->table_start,
             geometry->table_start);
    assert_shard_is_refused(victim, 1, false);
    restore(now);
    write_at(now, older->bytes, geometry->data_start, 0);
    assert_shard_is_refused(victim, 1, true);
    restore(now);
    write_at(now, older->bytes, older->size, 0); /* all of it: a file that was whole once */
    struct checkpoint checkpoint;
    open_loaded(&checkpoint, victim->store, NAME);
    assert_non_null(checkpoint.shards[1].damage);
    assert_int_equal(checkpoint_need_whole(&checkpoint), ERR_CORRUPT);
    checkpoint_close(&checkpoint);
    restore(now);
    write_at(&victim->manifest, victim->older_manifest.bytes, victim->older_manifest.size, 0);
    assert_int_equal(truncate(victim->manifest.path, (off_t)victim->older_manifest.size), 0);
    assert_manifest_is_refused(victim, true);
    restore(&victim->manifest);
    assert_verify_is_content(victim);
}

/* ---- texts of strangers ---- */

static void seal(struct file *text)
{
    static const char hash_key[] = "\"summary_hash\":\"", sha_key[] = "\"sha256\"";
    char *begin = (char *)text->bytes, digits[17], sha[CHECKSUM_SHA256_HEX];
    char *at = memmem(begin, text->size, hash_key, strlen(hash_key)), *end = NULL, *next = begin;
    while ((next = memmem(next, text->size - (size_t)(next - begin), sha_key, strlen(sha_key))))
        end = next++;
    if (at == NULL || end == NULL || at > end)
        return;
    at += strlen(hash_key);
    snprintf(digits, sizeof digits, "%016llx",
             (unsigned long long)checksum_bytes(begin, (size_t)(at - begin)));
    memcpy(at, digits, sizeof digits - 1);
    assert_int_equal(checksum_sha256_hex(sha, begin, (size_t)(end - begin)), 0);
    text->size = (uint64_t)(end - begin) + (uint64_t)sprintf(end, "%s:\"%s\"}\n", sha_key, sha);
}

static void replace(struct file *text, uint64_t at, uint64_t bytes, const char *with, uint64_t more)
{
    bytes = bytes < text->size - at ? bytes : text->size - at;
    memmove(text->bytes + at + more, text->bytes + at + bytes, text->size - at - bytes);
    memcpy(text->bytes + at, with, more);
    text->size += more - bytes;
}

/* One change: a byte, bytes less, bytes more, or another number and the checksums made right. */
static void spoil(struct file *text)
{
    static const char *const odd[] = {"18446744073709551615", "-1", "[", "{", "\"", "1e400"};
    static const char *const numbers[] = {"0", "99999999", "4294967297", "9223372036854775807"};
    uint64_t at = next_random(text->size);
    char byte = (char)next_random(256);
    const char *more = odd[next_random(sizeof odd / sizeof *odd)];
    switch (next_random(4)) {
    case 0:
        replace(text, at, 1, &byte, 1);
        break;
    case 1:
        replace(text, at, 1 + next_random(50), "", 0);
        break;
    case 2:
        replace(text, at, 0, more, byte == 0 ? 0 : strlen(more));
        break;
    default:
        while (at == 0 || strchr("0123456789", text->bytes[at]) == NULL ||
               strchr(":,[", text->bytes[at - 1]) == NULL)
            at = (at + 1) % text->size;
        more = numbers[next_random(4)];
        replace(text, at, 1, more, strlen(more));
        seal(text);
    }
}

/* Its answer. */
static int assert_ends_well(const struct victim *victim, int (*run)(const struct cli *cli))
{
    struct cli cli = {.is_json = true, .args = {NAME, "run@6-a1"}};
    snprintf(cli.store, sizeof cli.store, "%s", victim->fixture.root);
    cli.num_args = run == cli_list ? 0 : run == cli_diff ? 2 : 1;
    int error = run_quietly(NULL, &cli, run);
    assert_true(error == 0 || error == CLI_DIFFERS || error == ERR_CORRUPT ||
                error == ERR_MISMATCH || error == ERR_VERSION || error == ERR_NOT_FOUND);
    return error;
}

DAMAGE_TEST(test_damage__a_manifest_of_any_text_makes_no_command_fail_otherwise)
{
    int (*const runs[])(const struct cli *) = {cli_verify, cli_list, cli_show, cli_diff};
    struct file text = victim->manifest;
    unsigned num_shown = 0;
    text.bytes = malloc(text.size + 1024);
    for (uint64_t left = random_rounds("TEXTS", 150); left > 0; left--) {
        text.size = victim->manifest.size;
        memcpy(text.bytes, victim->manifest.bytes, text.size);
        for (uint64_t changes = 1 + next_random(3); changes > 0; changes--)
            spoil(&text);
        write_at(&text, text.bytes, text.size, 0);
        assert_int_equal(truncate(text.path, (off_t)text.size), 0);
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
            num_shown += assert_ends_well(victim, runs[i]) == 0 && runs[i] == cli_show;
    }
    free(text.bytes);
    assert_true(num_shown > 0); /* some of them are manifests */
    restore(&victim->manifest);
    assert_verify_is_content(victim);
}

int main(void)
{
    tell_in_memory();
    return suite_run(open_victim, close_victim);
}
