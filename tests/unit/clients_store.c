/* clients_store.c - reading a store directory offline.
 *
 * Goal: names select what they say; whole tensors come out of shards of any layout, by scan and by
 * gather; a changed byte anywhere in a shard is noticed and its block named; no damaged byte is
 * handed out. Method: checkpoints of random layouts (1 to 5 ranks, 0 to 4 dimensions, all dtypes)
 * are written with the format's own functions and read back with the tool's. */
#include "clients/cli/cli.h"

#include "proto/shard.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TENSORS 6
#define RANKS_MAX 5

struct fixture {
    char root[256];
    struct layout_table *table;
    unsigned char *data[TENSORS]; /* whole, by index of the table */
    uint64_t elements[TENSORS];
    uint32_t ranks;
    uint64_t random;
};

static uint64_t draw(struct fixture *fixture, uint64_t below)
{
    fixture->random ^= fixture->random << 13;
    fixture->random ^= fixture->random >> 7;
    fixture->random ^= fixture->random << 17;
    return fixture->random % below;
}

/* ---- writing a checkpoint ---- */

static void make_meta(struct fixture *fixture, struct tensor_meta *out, uint32_t index)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPE_U8, DTYPE_F16};
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, index == 3 ? "optimizer.exp_avg.t%u" : "t%u", index);
    out->dtype = dtypes[draw(fixture, 5)];
    out->dims = index == 1 ? 2 : (uint32_t)draw(fixture, 5);
    for (uint32_t d = 0; d < LAYOUT_DIMS_MAX; d++)
        out->shape[d] = d < out->dims ? 1 + draw(fixture, 12) : 1;
    if (index == 1) { /* several blocks per shard, and rows that gather has to cut */
        out->shape[0] = 3 + draw(fixture, 5);
        out->shape[1] = 600000 + draw(fixture, 900000);
    }
}

/* Cuts dimension `d` of the tensor evenly; a tensor without dimensions is everybody's. */
static void cut(struct slice *out, const struct tensor_meta *tensor, uint32_t d, uint32_t rank,
                uint32_t ranks)
{
    *out = (struct slice){.tensor = *tensor};
    memcpy(out->box.extent, tensor->shape, sizeof out->box.extent);
    if (d >= tensor->dims)
        return;
    uint64_t rows = (tensor->shape[d] + ranks - 1) / ranks;
    uint64_t begin = rows * rank < tensor->shape[d] ? rows * rank : tensor->shape[d];
    out->box.offset[d] = begin;
    out->box.extent[d] = tensor->shape[d] - begin < rows ? tensor->shape[d] - begin : rows;
}

static void plan(struct fixture *fixture)
{
    struct tensor_meta metas[TENSORS];
    struct slice slices[RANKS_MAX][TENSORS];
    const struct slice *lists[RANKS_MAX];
    uint32_t counts[RANKS_MAX];
    for (uint32_t i = 0; i < TENSORS; i++) {
        make_meta(fixture, &metas[i], i);
        uint32_t d = (uint32_t)draw(fixture, LAYOUT_DIMS_MAX);
        for (uint32_t rank = 0; rank < fixture->ranks; rank++)
            cut(&slices[rank][i], &metas[i], d, rank, fixture->ranks);
    }
    for (uint32_t rank = 0; rank < fixture->ranks; rank++) {
        lists[rank] = slices[rank];
        counts[rank] = TENSORS;
    }
    assert_int_equal(layout_plan_save(&fixture->table, lists, counts, fixture->ranks), 0);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const struct tensor_meta *meta = &fixture->table->tensors[i];
        fixture->elements[i] = meta->shape[0] * meta->shape[1] * meta->shape[2] * meta->shape[3];
        uint64_t bytes = fixture->elements[i] * dtype_bytes(meta->dtype);
        fixture->data[i] = malloc(bytes + 8);
        for (uint64_t byte = 0; byte < bytes; byte += 8) {
            uint64_t value = draw(fixture, UINT64_MAX);
            memcpy(fixture->data[i] + byte, &value, 8);
        }
    }
}

static void write_file(const struct fixture *fixture, const char *key, const void *data,
                       uint64_t bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", fixture->root, key);
    for (char *c = path + strlen(fixture->root) + 1; *c != '\0'; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        mkdir(path, 0755);
        *c = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void write_shard(const struct fixture *fixture, struct manifest *manifest, uint32_t shard)
{
    struct shard_identity identity = {.step = manifest->summary.step,
                                      .attempt = manifest->summary.attempt,
                                      .shard = shard,
                                      .shards = fixture->ranks};
    struct shard_geometry geometry;
    struct shard_tensor *tensors;
    uint32_t count;
    uint64_t bytes, start, length;
    char key[STORAGE_KEY_MAX];
    strcpy(identity.run, manifest->summary.run);
    strcpy(identity.nonce, manifest->summary.nonce);
    assert_int_equal(shard_geometry(&geometry, fixture->table, shard, identity.run, fixture->ranks),
                     0);
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, fixture->table, shard), 0);
    unsigned char *file = calloc(1, geometry.file_bytes);
    assert_int_equal(shard_header_write(file, &geometry, fixture->table, &identity), 0);
    for (uint32_t i = 0; i < count; i++) {
        const struct tensor_meta *meta = &fixture->table->tensors[tensors[i].tensor];
        struct box whole = {.offset = {0}};
        memcpy(whole.extent, meta->shape, sizeof whole.extent);
        box_copy(file + geometry.data_start + tensors[i].data_byte, &tensors[i].box,
                 fixture->data[tensors[i].tensor], &whole, &tensors[i].box, meta->dims,
                 dtype_bytes(meta->dtype));
    }
    uint64_t seed = checksum_shard_identity(identity.nonce, shard, fixture->ranks);
    for (uint64_t block = 0; block < geometry.num_blocks; block++) {
        shard_block(&start, &length, &geometry, block);
        uint64_t sum = checksum_block(file + start, length, seed, block);
        memcpy(file + geometry.table_start + 8 * block, &sum, 8);
    }
    manifest->shards[shard] = (struct manifest_shard){
        geometry.file_bytes, geometry.data_start,
        checksum_bytes(file + geometry.table_start, geometry.file_bytes - geometry.table_start)};
    manifest->summary.bytes += geometry.file_bytes;
    assert_int_equal(shard_key(key, sizeof key, &identity), 0);
    write_file(fixture, key, file, geometry.file_bytes);
    free(file);
    free(tensors);
}

static void write_checkpoint(const struct fixture *fixture, const char *run, uint64_t step,
                             uint64_t attempt)
{
    struct manifest_shard shards[RANKS_MAX];
    struct digest digests[TENSORS] = {{{0}}};
    struct manifest manifest = {.summary = {.version = MANIFEST_VERSION,
                                            .step = step,
                                            .attempt = attempt,
                                            .nonce = "0123456789abcdef0123456789abcdef",
                                            .time = "2026-01-02T03:04:05Z",
                                            .world_size = fixture->ranks,
                                            .shards = fixture->ranks},
                                .code_version = "test",
                                .table = fixture->table,
                                .digests = digests,
                                .shards = shards};
    char directory[STORAGE_KEY_MAX], key[STORAGE_KEY_MAX + 32], *text;
    size_t bytes;
    strcpy(manifest.summary.run, run);
    for (uint32_t i = 0; i < TENSORS; i++)
        digest_add(&digests[i], fixture->data[i], fixture->elements[i],
                   dtype_bytes(fixture->table->tensors[i].dtype), 0);
    for (uint32_t shard = 0; shard < fixture->ranks; shard++)
        write_shard(fixture, &manifest, shard);
    assert_int_equal(manifest_write(&text, &bytes, &manifest), 0);
    assert_int_equal(shard_dir_key(directory, sizeof directory, run, step, attempt), 0);
    snprintf(key, sizeof key, "%s/%s", directory, MANIFEST_NAME);
    write_file(fixture, key, text, bytes);
    free(text);
}

static void fixture_open(struct fixture *fixture, uint32_t ranks, uint64_t seed)
{
    const char *parent = getenv("TMPDIR");
    memset(fixture, 0, sizeof *fixture);
    fixture->random = seed * 0x9e3779b97f4a7c15ull + 1;
    fixture->ranks = ranks;
    snprintf(fixture->root, sizeof fixture->root, "%s/store-XXXXXX",
             parent != NULL ? parent : "/var/tmp");
    assert_non_null(mkdtemp(fixture->root));
    plan(fixture);
}

static void fixture_close(struct fixture *fixture)
{
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", fixture->root);
    assert_int_equal(system(command), 0);
    layout_table_free(fixture->table);
    for (int i = 0; i < TENSORS; i++)
        free(fixture->data[i]);
}

static struct storage *open_store(const struct fixture *fixture)
{
    struct cli cli = {.is_json = false};
    struct storage *store = NULL;
    snprintf(cli.store, sizeof cli.store, "%s", fixture->root);
    assert_int_equal(store_open(&store, &cli), 0);
    return store;
}

/* ---- reading it ---- */

struct sink {
    const struct fixture *fixture;
    unsigned char *data[TENSORS];
    uint64_t seen[TENSORS]; /* elements */
    uint64_t damaged, block;
    uint32_t wanted; /* of wants_one */
    /* of the call under way */
    const unsigned char *from;
    uint32_t tensor, element_bytes;
};

static void put_run(void *user, uint64_t global, uint64_t count, uint64_t element)
{
    struct sink *sink = user;
    assert_true(global + count <= sink->fixture->elements[sink->tensor]);
    memcpy(sink->data[sink->tensor] + global * sink->element_bytes,
           sink->from + element * sink->element_bytes, count * sink->element_bytes);
    sink->seen[sink->tensor] += count;
}

static int put_elements(void *user, uint32_t tensor, const struct box *box, uint64_t first,
                        uint64_t count, const void *data)
{
    struct sink *sink = user;
    const struct tensor_meta *meta = &sink->fixture->table->tensors[tensor];
    sink->from = data;
    sink->tensor = tensor;
    sink->element_bytes = dtype_bytes(meta->dtype);
    slice_runs(box, meta, first, count, put_run, sink);
    return 0;
}

static int put_damaged(void *user, uint64_t block, uint64_t start, uint64_t bytes)
{
    struct sink *sink = user;
    assert_int_equal(start, block * CHECKSUM_BLOCK_BYTES);
    assert_true(bytes <= CHECKSUM_BLOCK_BYTES);
    sink->damaged++;
    sink->block = block;
    return 0;
}

static void sink_open(struct sink *sink, const struct fixture *fixture)
{
    memset(sink, 0, sizeof *sink);
    sink->fixture = fixture;
    for (uint32_t i = 0; i < TENSORS; i++)
        sink->data[i] = calloc(fixture->elements[i], dtype_bytes(fixture->table->tensors[i].dtype));
}

static void sink_close(struct sink *sink)
{
    for (uint32_t i = 0; i < TENSORS; i++)
        free(sink->data[i]);
}

static int scan(struct sink *sink, struct checkpoint *checkpoint, uint32_t shard)
{
    const struct shard_scan hooks = {
        .user = sink, .elements = put_elements, .damaged = put_damaged};
    struct shard_file file;
    int error = shard_file_open(&file, checkpoint, shard);
    if (error != 0)
        return error;
    error = shard_scan(checkpoint, &file, &hooks);
    shard_file_close(&file, checkpoint->store);
    return error;
}

static void test_scan__gives_every_element_of_any_layout_once(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 10; round++) {
        struct fixture fixture;
        struct checkpoint checkpoint;
        struct sink sink;
        fixture_open(&fixture, 1 + round % RANKS_MAX, 100 + round);
        write_checkpoint(&fixture, "run", 7, 1);
        struct storage *store = open_store(&fixture);
        assert_int_equal(checkpoint_open(&checkpoint, store, "run"), 0);
        sink_open(&sink, &fixture);
        for (uint32_t shard = 0; shard < fixture.ranks; shard++)
            assert_int_equal(scan(&sink, &checkpoint, shard), 0);
        assert_int_equal(sink.damaged, 0);
        for (uint32_t i = 0; i < TENSORS; i++) {
            assert_int_equal(sink.seen[i], fixture.elements[i]);
            assert_memory_equal(sink.data[i], fixture.data[i],
                                fixture.elements[i] * dtype_bytes(fixture.table->tensors[i].dtype));
        }
        sink_close(&sink);
        checkpoint_close(&checkpoint);
        storage_close(store);
        fixture_close(&fixture);
    }
}

static void test_gather__puts_tensors_together_in_chunks_of_any_size(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 6; round++) {
        struct fixture fixture;
        struct checkpoint checkpoint;
        unsigned char *chunk = malloc(GATHER_BYTES_MAX);
        fixture_open(&fixture, 1 + (round + 2) % RANKS_MAX, 200 + round);
        write_checkpoint(&fixture, "run", 7, 1);
        struct storage *store = open_store(&fixture);
        assert_int_equal(checkpoint_open(&checkpoint, store, "run@7"), 0);
        for (uint32_t i = 0; i < TENSORS; i++) {
            const struct tensor_meta *meta = &fixture.table->tensors[i];
            uint32_t size = dtype_bytes(meta->dtype);
            uint64_t most = fixture.elements[i] < 5000 ? 1 + draw(&fixture, 9)
                                                       : GATHER_BYTES_MAX / size / (1 + round % 2);
            for (uint64_t first = 0; first < fixture.elements[i];) {
                struct box box;
                uint64_t count = chunk_at(&box, meta, first, most);
                assert_true(count > 0 && count <= most);
                assert_int_equal(box_elements(&box, meta->dims), count);
                assert_int_equal(checkpoint_gather(&checkpoint, chunk, i, &box), 0);
                assert_memory_equal(chunk, fixture.data[i] + first * size, count * size);
                first += count;
            }
        }
        checkpoint_close(&checkpoint);
        storage_close(store);
        free(chunk);
        fixture_close(&fixture);
    }
}

static void flip(const struct fixture *fixture, uint32_t shard, uint64_t byte)
{
    char path[600];
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/shard-%05u-of-%05u.safetensors",
             fixture->root, shard + 1, fixture->ranks);
    unsigned char value;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &value, 1, (off_t)byte), 1);
    value ^= 0x40;
    assert_int_equal(pwrite(fd, &value, 1, (off_t)byte), 1);
    close(fd);
}

/* Bytes that are neither right nor missing. */
static uint64_t count_wrong(const struct sink *sink, uint32_t tensor)
{
    const unsigned char *got = sink->data[tensor], *want = sink->fixture->data[tensor];
    uint64_t bytes =
        sink->fixture->elements[tensor] * dtype_bytes(sink->fixture->table->tensors[tensor].dtype);
    uint64_t wrong = 0;
    for (uint64_t at = 0; at < bytes; at++)
        wrong += got[at] != 0 && got[at] != want[at];
    return wrong;
}

static void test_scan__names_the_block_of_a_changed_byte_and_never_hands_it_out(void **state)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    (void)state;
    fixture_open(&fixture, 2, 300);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@7-a1"), 0);
    uint64_t file_bytes = checkpoint.manifest->shards[1].bytes;
    for (int round = 0; round < 60; round++) {
        struct sink sink;
        uint64_t byte = round == 0 ? 3 : draw(&fixture, file_bytes);
        byte = round == 1 ? file_bytes - 1 : byte;
        flip(&fixture, 1, byte);
        sink_open(&sink, &fixture);
        int error = scan(&sink, &checkpoint, 1);
        /* Either a block, or, in the table at the end, the whole shard. */
        if (error == 0) {
            assert_int_equal(sink.damaged, 1);
            assert_int_equal(sink.block, byte / CHECKSUM_BLOCK_BYTES);
        } else {
            assert_int_equal(error, ERR_CORRUPT);
        }
        for (uint32_t i = 0; i < TENSORS; i++)
            assert_int_equal(count_wrong(&sink, i), 0);
        sink_close(&sink);
        flip(&fixture, 1, byte);
    }
    checkpoint_close(&checkpoint);
    storage_close(store);
    fixture_close(&fixture);
}

static bool wants_one(void *user, uint32_t tensor)
{
    return tensor == ((struct sink *)user)->wanted;
}

static void test_scan__damage_where_nothing_wanted_lies_is_not_looked_at(void **state)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    struct shard_file file;
    struct shard_tensor *tensors = NULL;
    struct sink sink;
    uint32_t count, num_flipped = 0;
    uint64_t bytes, start, begin = 0, end = 0;
    (void)state;
    fixture_open(&fixture, 1, 300);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@7-a1"), 0);
    assert_int_equal(shard_file_open(&file, &checkpoint, 0), 0);
    assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, fixture.table, 0), 0);
    sink_open(&sink, &fixture);
    sink.wanted = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (tensors[i].tensor == sink.wanted) {
            begin = file.geometry.data_start + tensors[i].data_byte;
            end = begin + tensors[i].bytes;
        }
    }
    for (uint64_t block = 0; block < file.geometry.num_blocks; block++) {
        shard_block(&start, &bytes, &file.geometry, block);
        if (begin < start + bytes && end > start)
            continue;
        flip(&fixture, 0, start + bytes / 2);
        num_flipped++;
    }
    assert_true(num_flipped > 2);
    const struct shard_scan hooks = {
        .user = &sink, .wants = wants_one, .elements = put_elements, .damaged = put_damaged};
    assert_int_equal(shard_scan(&checkpoint, &file, &hooks), 0);
    assert_int_equal(sink.damaged, 0);
    assert_int_equal(sink.seen[sink.wanted], fixture.elements[sink.wanted]);
    assert_int_equal(count_wrong(&sink, sink.wanted), 0);
    sink_close(&sink);
    free(tensors);
    shard_file_close(&file, store);
    checkpoint_close(&checkpoint);
    storage_close(store);
    fixture_close(&fixture);
}

static void test_open__a_missing_or_short_shard_and_a_changed_manifest_are_damage(void **state)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    struct shard_file file;
    char path[600];
    (void)state;
    fixture_open(&fixture, 3, 400);
    write_checkpoint(&fixture, "run", 7, 1);
    struct storage *store = open_store(&fixture);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run"), 0);
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/shard-00001-of-00003.safetensors",
             fixture.root);
    assert_int_equal(truncate(path, 4096), 0);
    assert_int_equal(shard_file_open(&file, &checkpoint, 0), ERR_CORRUPT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(shard_file_open(&file, &checkpoint, 0), ERR_CORRUPT);
    checkpoint_close(&checkpoint);
    snprintf(path, sizeof path, "%s/run/step-00000007-a0001/manifest.json", fixture.root);
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "7", 1, 4300), 1);
    close(fd);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run"), ERR_CORRUPT);
    storage_close(store);
    fixture_close(&fixture);
}

static void
test_catalog__the_newest_attempt_comes_first_and_uncommitted_ones_not_at_all(void **state)
{
    struct fixture fixture;
    struct checkpoint checkpoint;
    struct catalog catalog;
    char command[600];
    (void)state;
    fixture_open(&fixture, 1, 500);
    write_checkpoint(&fixture, "run", 100, 1);
    write_checkpoint(&fixture, "run", 200, 1);
    write_checkpoint(&fixture, "run", 150, 2);
    write_checkpoint(&fixture, "run", 100, 2);
    write_checkpoint(&fixture, "other", 5, 1);
    snprintf(command, sizeof command,
             "cd '%s' && mkdir run/step-00000900-a0009 run/rubbish && touch run/step-1-a1 && cp -r "
             "run/step-00000100-a0001 run/step-00000300-a0001",
             fixture.root);
    assert_int_equal(system(command), 0);
    struct storage *store = open_store(&fixture);
    assert_int_equal(catalog_read(&catalog, store, ""), 0);
    assert_int_equal(catalog.count, 6);
    assert_string_equal(catalog.entries[0].summary.run, "other");
    assert_int_equal(catalog.entries[1].summary.step, 150);
    assert_int_equal(catalog.entries[2].summary.attempt, 2);
    /* The copy under another name says so. */
    assert_int_equal(catalog.entries[3].summary.step, 300);
    assert_true(catalog.entries[3].damage[0] != '\0');
    catalog_free(&catalog);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run"), 0);
    assert_string_equal(checkpoint.name, "run@150-a2");
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@100"), 0);
    assert_string_equal(checkpoint.name, "run@100-a2");
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@100-a1"), 0);
    checkpoint_close(&checkpoint);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@300"), ERR_CORRUPT);
    assert_int_equal(checkpoint_open(&checkpoint, store, "run@101"), ERR_NOT_FOUND);
    assert_int_equal(checkpoint_open(&checkpoint, store, "nobody"), ERR_NOT_FOUND);
    storage_close(store);
    fixture_close(&fixture);
}

static void test_selection__refuses_what_is_not_a_name(void **state)
{
    static const char *const bad[] = {"",
                                      "@5",
                                      "run@",
                                      "run@x",
                                      "run@5-a",
                                      "a/b",
                                      "run@5-a0",
                                      "run@5-a1x",
                                      "run@-5",
                                      "run@5a1",
                                      "r@ 5",
                                      "run@5@6",
                                      "run@99999999999999999999"};
    struct selection selection;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(selection_parse(&selection, bad[i]), ERR_INVALID);
    assert_int_equal(selection_parse(&selection, "llama-7b.x@0012-a03"), 0);
    assert_string_equal(selection.run, "llama-7b.x");
    assert_int_equal(selection.step, 12);
    assert_int_equal(selection.attempt, 3);
    assert_int_equal(selection_parse(&selection, "llama"), 0);
    assert_int_equal(selection.step, -1);
}

static void test_text__hostile_names_reach_neither_terminal_nor_json_raw(void **state)
{
    char out[64], *json;
    size_t bytes;
    (void)state;
    assert_string_equal(text_safe(out, sizeof out, "a\x1b[31mb\x9b\n"), "a?[31mb??");
    assert_string_equal(text_safe(out, 4, "abcdef"), "abc");
    FILE *file = open_memstream(&json, &bytes);
    text_json(file, "q\"\\\x1b\xc3\n\xc3\xa9");
    fclose(file);
    assert_string_equal(json, "\"q\\\"\\\\\\u001b\\ufffd\\u000a\xc3\xa9\"");
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scan__gives_every_element_of_any_layout_once),
        cmocka_unit_test(test_gather__puts_tensors_together_in_chunks_of_any_size),
        cmocka_unit_test(test_scan__names_the_block_of_a_changed_byte_and_never_hands_it_out),
        cmocka_unit_test(test_scan__damage_where_nothing_wanted_lies_is_not_looked_at),
        cmocka_unit_test(test_open__a_missing_or_short_shard_and_a_changed_manifest_are_damage),
        cmocka_unit_test(
            test_catalog__the_newest_attempt_comes_first_and_uncommitted_ones_not_at_all),
        cmocka_unit_test(test_selection__refuses_what_is_not_a_name),
        cmocka_unit_test(test_text__hostile_names_reach_neither_terminal_nor_json_raw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
