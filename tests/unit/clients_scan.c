/* clients_scan.c - the bytes of a store, read offline.
 *
 * Goal: whole tensors come out of shards of any layout, by scan and by assembly, with the most or
 * the fewest possible blocks under way. The block of a changed byte is named, in order. No damaged
 * byte is handed out. An error on any thread ends the work with its text. Method: random
 * checkpoints (clients_store_bed.h) are read back with the tool's functions and compared.
 */
#include "tests/fault/storage_fault.h"
#include "tests/unit/clients_store_bed.h"
#include "tests/unit/suite.h"

/* ---- scan ---- */

struct sink {
    const struct fixture *fixture;
    struct checkpoint *checkpoint;
    pthread_mutex_t lock;
    unsigned char *data[TENSORS];
    uint64_t seen[TENSORS]; /* elements */
    uint32_t shard;
    uint64_t next, damaged, block;
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

static int put_block(void *user, uint32_t worker, const struct scan_read *read, const void *data)
{
    struct sink *sink = user;
    const struct shard_file *file = read->file;
    uint64_t start, bytes;
    shard_block(&start, &bytes, &file->stored.geometry, read->block);
    assert_true(worker < scan_workers());
    pthread_mutex_lock(&sink->lock);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        const struct shard_tensor *tensor = &file->tensors[i];
        const struct tensor_meta *meta = &sink->fixture->table->tensors[tensor->tensor];
        uint64_t begin = file->stored.geometry.data_start + tensor->data_byte;
        uint64_t from = begin > start ? begin : start, end = begin + tensor->bytes;
        end = end < start + bytes ? end : start + bytes;
        if (from >= end)
            continue;
        sink->tensor = tensor->tensor;
        sink->element_bytes = dtype_bytes(meta->dtype);
        sink->from = (const unsigned char *)data + (from - start);
        box_runs(&tensor->box, meta, (from - begin) / sink->element_bytes,
                 (end - from) / sink->element_bytes, put_run, sink);
    }
    pthread_mutex_unlock(&sink->lock);
    return 0;
}

static int put_damaged(void *user, const struct scan_read *read, int error_number)
{
    struct sink *sink = user;
    assert_int_equal(error_number, 0);
    assert_true(sink->damaged == 0 || read->block > sink->block); /* in order */
    sink->damaged++;
    sink->block = read->block;
    return 0;
}

static int next_block(void *user, struct scan_read *out)
{
    struct sink *sink = user;
    if (sink->next == sink->checkpoint->shards[sink->shard].stored.geometry.num_blocks)
        return SCAN_END;
    assert_int_equal(shard_take(&out->file, sink->checkpoint, sink->shard), 0);
    out->block = sink->next++;
    return SCAN_READ;
}

static void sink_open(struct sink *sink, const struct fixture *fixture,
                      struct checkpoint *checkpoint)
{
    memset(sink, 0, sizeof *sink);
    sink->fixture = fixture;
    sink->checkpoint = checkpoint;
    pthread_mutex_init(&sink->lock, NULL);
    for (uint32_t i = 0; i < TENSORS; i++)
        sink->data[i] = calloc(fixture->elements[i], dtype_bytes(fixture->table->tensors[i].dtype));
}

static void sink_close(struct sink *sink)
{
    pthread_mutex_destroy(&sink->lock);
    for (uint32_t i = 0; i < TENSORS; i++)
        free(sink->data[i]);
}

static int scan_shard(struct sink *sink, uint32_t shard)
{
    const struct scan_hooks hooks = {
        .user = sink, .next = next_block, .take = put_block, .damaged = put_damaged};
    struct scan *scan = NULL;
    sink->shard = shard;
    sink->next = 0;
    assert_int_equal(scan_open(&scan, sink->checkpoint->store), 0);
    int error = scan_run(scan, &hooks);
    scan_close(scan);
    return error;
}

TEST(test_scan__gives_every_element_of_any_layout_once)
{
    for (uint32_t round = 0; round < 10; round++) {
        struct stored stored;
        struct sink sink;
        const struct fixture *fixture = &stored.fixture;
        stored_open(&stored, 1 + round % RANKS_MAX, 100 + round);
        sink_open(&sink, fixture, &stored.checkpoint);
        for (uint32_t shard = 0; shard < fixture->ranks; shard++) {
            assert_null(stored.checkpoint.shards[shard].damage);
            assert_null(stored.checkpoint.shards[shard].header_damage);
            assert_int_equal(scan_shard(&sink, shard), 0);
        }
        assert_int_equal(sink.damaged, 0);
        for (uint32_t i = 0; i < TENSORS; i++) {
            assert_int_equal(sink.seen[i], fixture->elements[i]);
            assert_memory_equal(sink.data[i], fixture->data[i],
                                fixture->elements[i] *
                                    dtype_bytes(fixture->table->tensors[i].dtype));
        }
        sink_close(&sink);
        stored_close(&stored);
    }
}

/* Bytes that are neither correct nor missing. */
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

TEST(test_scan__names_the_block_of_a_changed_byte_and_never_hands_it_out)
{
    struct stored stored;
    struct fixture *fixture = &stored.fixture;
    stored_open(&stored, 2, 300);
    for (int round = 0; round < 60; round++) {
        struct sink sink;
        struct shard_file *file = &stored.checkpoint.shards[1];
        uint64_t byte = round == 0 ? 3 : draw(fixture, file->stored.geometry.file_bytes);
        byte = round == 1 ? file->stored.geometry.file_bytes - 1 : byte;
        bool in_table = byte >= file->stored.geometry.table_start;
        bool in_header = byte < file->stored.geometry.data_start;
        flip(fixture, 1, byte);
        stored_load_again(&stored);
        file = &stored.checkpoint.shards[1];
        assert_int_equal(file->damage != NULL, in_table);
        assert_int_equal(file->header_damage != NULL, in_header);
        assert_int_equal(checkpoint_need_whole(&stored.checkpoint),
                         in_table || in_header ? ERR_CORRUPT : 0);
        sink_open(&sink, fixture, &stored.checkpoint);
        if (!in_table) {
            assert_int_equal(scan_shard(&sink, 1), 0);
            assert_int_equal(sink.damaged, 1);
            assert_int_equal(sink.block, byte / CHECKSUM_BLOCK_BYTES);
        }
        for (uint32_t i = 0; i < TENSORS; i++)
            assert_int_equal(count_wrong(&sink, i), 0);
        sink_close(&sink);
        flip(fixture, 1, byte);
        stored_load_again(&stored);
    }
    stored_close(&stored);
}

static int refuse_block(void *user, uint32_t worker, const struct scan_read *read, const void *data)
{
    (void)user, (void)worker, (void)data;
    return read->block < 2 ? 0 : report_error(ERR_SPACE, "a hint", "no more than two");
}

TEST(test_scan__an_error_on_a_worker_ends_it_with_that_error)
{
    struct stored stored;
    struct sink sink;
    struct scan *scan = NULL;
    const struct scan_hooks hooks = {
        .user = &sink, .next = next_block, .take = refuse_block, .damaged = put_damaged};
    stored_open(&stored, 1, 300);
    sink_open(&sink, &stored.fixture, &stored.checkpoint);
    assert_int_equal(scan_open(&scan, stored.store), 0);
    assert_int_equal(scan_run(scan, &hooks), ERR_SPACE);
    assert_string_equal(report_message(), "no more than two");
    assert_string_equal(report_hint(), "a hint");
    scan_close(scan);
    sink_close(&sink);
    stored_close(&stored);
}

/* ---- assembly ---- */

#define SIDES 2
#define OUTPUT_WHOLE UINT32_MAX       /* whole tensors, */
#define OUTPUT_BOXES (UINT32_MAX - 1) /* some box of each, */
#define OUTPUT_HEADS (UINT32_MAX - 2) /* heads in another order; less: a shard's slices */

struct output {
    const struct fixture *fixture;
    uint32_t num_sides;
    struct output_file files[RANKS_MAX];
    uint32_t num_files, num_opened;
    unsigned char *data[RANKS_MAX][SIDES], *seen[RANKS_MAX]; /* per block */
    atomic_uint num_again;                                   /* blocks that were complete twice */
    struct storage *store;
    struct storage_object *object;
};

static int open_output(void *user, struct output_file **out)
{
    struct output *output = user;
    *out = output->num_opened < output->num_files ? &output->files[output->num_opened++] : NULL;
    return 0;
}

static int take_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct output *output = user;
    uint32_t file = (uint32_t)(block->file - output->files);
    (void)worker;
    output->num_again += output->seen[file][block->index]++ != 0;
    for (uint32_t side = 0; side < output->num_sides; side++)
        memcpy(output->data[file][side] + block->start, block->data[side], block->bytes);
    assembly_release(block);
    return 0;
}

/* A box that is not empty. */
static void draw_box(struct output_tensor *out, const struct tensor_meta *meta,
                     struct fixture *fixture)
{
    output_tensor_whole(out, meta);
    for (uint32_t d = 0; d < meta->dims; d++) {
        if (draw(fixture, 3) == 0)
            continue;
        out->box.offset[d] = draw(fixture, meta->shape[d]);
        out->box.extent[d] = 1 + draw(fixture, meta->shape[d] - out->box.offset[d]);
    }
    out->bytes = box_elements(&out->box, meta->dims) * dtype_bytes(meta->dtype);
}

/* Adds a file; tensors i with is_wanted[i], in file order; `shard` as above. */
static struct output_file *add_file(struct output *output, uint32_t shard, const bool *is_wanted)
{
    static char head[3 * SHARD_ALIGN];
    const struct layout_table *table = output->fixture->table;
    uint32_t index = output->num_files++, count = TENSORS;
    struct output_file *file = &output->files[index];
    struct shard_tensor *tensors = NULL;
    uint64_t bytes;
    memset(head, 'h', sizeof head);
    *file = (struct output_file){.head = head};
    file->head_bytes = SHARD_ALIGN * (1 + index % 3);
    file->bytes = file->head_bytes;
    file->tensors = calloc(TENSORS, sizeof *file->tensors);
    if (shard < OUTPUT_HEADS)
        assert_int_equal(layout_shard_tensors(&tensors, &count, &bytes, table, shard), 0);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t tensor = tensors != NULL ? tensors[i].tensor : i;
        if (!is_wanted[tensor])
            continue;
        const struct tensor_meta *meta = &table->tensors[tensor];
        struct output_tensor *out = &file->tensors[file->num_tensors++];
        *out = (struct output_tensor){.tensor = {tensor, tensor},
                                      .dtype = table->tensors[tensor].dtype,
                                      .start = (file->bytes + 7) / 8 * 8};
        output_tensor_whole(out, meta);
        if (shard == OUTPUT_BOXES)
            draw_box(out, meta, (struct fixture *)(uintptr_t)output->fixture);
        if (shard == OUTPUT_HEADS && meta->dims == 2 && meta->shape[0] % 2 == 0)
            out->head_rows = (uint32_t)meta->shape[0];
        if (tensors != NULL) {
            out->box = tensors[i].box;
            out->bytes = tensors[i].bytes;
        }
        file->bytes = out->start + out->bytes;
    }
    free(tensors);
    output->seen[index] = calloc(file->bytes / SCAN_BLOCK + 1, 1);
    for (uint32_t side = 0; side < output->num_sides; side++)
        output->data[index][side] = calloc(1, file->bytes);
    return file;
}

static void output_close(struct output *output)
{
    for (uint32_t i = 0; i < output->num_files; i++) {
        output_file_deinit(&output->files[i]);
        free(output->files[i].tensors);
        free(output->seen[i]);
        for (uint32_t side = 0; side < output->num_sides; side++)
            free(output->data[i][side]);
    }
}

/* Every block once, the head, and the values of every tensor. */
static void check_file(const struct output *output, uint32_t index)
{
    const struct fixture *fixture = output->fixture;
    const struct output_file *file = &output->files[index];
    struct box whole = {.offset = {0}};
    for (uint64_t block = 0; block * SCAN_BLOCK < file->bytes; block++)
        assert_int_equal(output->seen[index][block], 1);
    assert_memory_equal(output->data[index][0], file->head, file->head_bytes);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        const struct output_tensor *tensor = &file->tensors[i];
        const struct tensor_meta *meta = &fixture->table->tensors[tensor->tensor[0]];
        const unsigned char *want = fixture->data[tensor->tensor[0]];
        unsigned char *slice = malloc(tensor->bytes + 1);
        uint64_t row_bytes = meta->shape[1] * dtype_bytes(meta->dtype);
        memcpy(whole.extent, meta->shape, sizeof whole.extent);
        box_copy(slice, &tensor->box, want, &whole, &tensor->box, meta->dims,
                 dtype_bytes(meta->dtype));
        for (uint32_t row = 0; row < tensor->head_rows; row++) /* even ones first, then odd ones */
            memcpy(slice + (row / 2 + row % 2 * tensor->head_rows / 2) * row_bytes,
                   want + row * row_bytes, row_bytes);
        for (uint32_t side = 0; side < output->num_sides; side++)
            assert_memory_equal(output->data[index][side] + tensor->start, slice, tensor->bytes);
        free(slice);
    }
}

TEST(test_assembly__puts_tensors_together_from_any_layout)
{
    static const uint32_t blocks[] = {0, 2, 4, 10};
    for (uint32_t round = 0; round < 16; round++) {
        struct stored stored;
        struct output output = {.fixture = &stored.fixture, .num_sides = 1};
        bool is_wanted[TENSORS];
        stored_open(&stored, 1 + (round + 2) % RANKS_MAX, 200 + round);
        for (uint32_t i = 0; i < TENSORS; i++)
            is_wanted[i] = round % 4 == 0 || draw(&stored.fixture, 4) > 0;
        for (uint32_t shard = 0; shard < stored.fixture.ranks && round % 4 == 1; shard++)
            add_file(&output, shard, is_wanted);
        for (uint32_t file = 0; file < RANKS_MAX && round % 4 == 3; file++)
            add_file(&output, OUTPUT_BOXES, is_wanted);
        if (round % 2 == 0)
            add_file(&output, round % 4 == 0 ? OUTPUT_WHOLE : OUTPUT_HEADS, is_wanted);
        const struct assembly_hooks hooks = {.user = &output,
                                             .open = open_output,
                                             .complete = take_complete,
                                             .num_blocks = blocks[round / 4]};
        assert_int_equal(assembly_run(&stored.checkpoint, 1, &hooks), 0);
        assert_int_equal(output.num_opened, output.num_files);
        assert_int_equal(output.num_again, 0);
        for (uint32_t i = 0; i < output.num_files; i++)
            check_file(&output, i);
        output_close(&output);
        stored_close(&stored);
    }
}

TEST(test_assembly__two_sides_of_other_cuts_meet_in_each_block)
{
    static const uint32_t worlds[][2] = {{1, 5}, {4, 3}, {2, 2}, {5, 4}};
    for (uint32_t round = 0; round < 4; round++) {
        struct fixture fixture, other;
        struct checkpoint sides[SIDES];
        struct output output = {.fixture = &fixture, .num_sides = SIDES};
        const bool is_wanted[TENSORS] = {true, true, round != 1, true, true, true};
        char root[256];
        fixture_open(&fixture, worlds[round][0], 700 + round);
        fixture_open(&other, worlds[round][1], 700 + round); /* the same values */
        write_checkpoint(&fixture, "run", 7, 1);
        strcpy(root, other.root);
        strcpy(other.root, fixture.root);
        write_checkpoint(&other, "run", 7, 2);
        strcpy(other.root, root);
        struct storage *store = open_store(&fixture);
        open_loaded(&sides[0], store, "run@7-a1");
        open_loaded(&sides[1], store, "run@7-a2");
        add_file(&output, OUTPUT_WHOLE, is_wanted);
        const struct assembly_hooks hooks = {.user = &output,
                                             .open = open_output,
                                             .complete = take_complete,
                                             .num_blocks = round % 2 == 0 ? 0 : 3};
        memset(output.data[0][1], 'h', output.files[0].head_bytes);
        assert_int_equal(assembly_run(sides, SIDES, &hooks), 0);
        check_file(&output, 0);
        output_close(&output);
        checkpoint_close(&sides[0]);
        checkpoint_close(&sides[1]);
        storage_close(store);
        fixture_close(&fixture);
        fixture_close(&other);
    }
}

TEST(test_assembly__damage_matters_only_where_something_wanted_lies)
{
    struct stored stored;
    uint64_t start, bytes, begin = 0, end = 0;
    uint32_t num_flipped = 0;
    struct shard_file *file;
    stored_open(&stored, 1, 300);
    assert_int_equal(shard_take(&file, &stored.checkpoint, 0), 0);
    for (uint32_t i = 0; i < file->num_tensors; i++) {
        if (file->tensors[i].tensor == 0) {
            begin = file->stored.geometry.data_start + file->tensors[i].data_byte;
            end = begin + file->tensors[i].bytes;
        }
    }
    for (uint64_t block = 0; block < file->stored.geometry.num_blocks; block++) {
        shard_block(&start, &bytes, &file->stored.geometry, block);
        if (begin < start + bytes && end > start)
            continue;
        flip(&stored.fixture, 0, start + bytes / 2);
        num_flipped++;
    }
    assert_true(num_flipped > 2);
    shard_drop(file);
    for (int round = 0; round < 2; round++) {
        const bool is_wanted[TENSORS] = {true, round == 1, round == 1};
        struct output output = {.fixture = &stored.fixture, .num_sides = 1};
        const struct assembly_hooks hooks = {
            .user = &output, .open = open_output, .complete = take_complete};
        add_file(&output, OUTPUT_WHOLE, is_wanted);
        assert_int_equal(assembly_run(&stored.checkpoint, 1, &hooks), round == 0 ? 0 : ERR_CORRUPT);
        if (round == 0)
            check_file(&output, 0);
        else
            assert_non_null(strstr(report_line(), "block"));
        output_close(&output);
        stored_load_again(&stored);
    }
    stored_close(&stored);
}

static int write_complete(void *user, uint32_t worker, struct output_block *block)
{
    struct output *output = user;
    (void)worker;
    assembly_write(block, output->store, output->object, assembly_release);
    return 0;
}

TEST(test_assembly__a_write_that_fails_ends_it)
{
    struct stored stored;
    const bool is_wanted[TENSORS] = {true, true, true, true, true, true};
    stored_open(&stored, 2, 300);
    for (int fail_at = 2; fail_at < 6; fail_at++) { /* 1 is the create */
        struct output output = {.fixture = &stored.fixture, .num_sides = 1};
        const struct assembly_hooks hooks = {
            .user = &output, .open = open_output, .complete = write_complete, .num_blocks = 4};
        struct output_file *file = add_file(&output, OUTPUT_WHOLE, is_wanted);
        char where[64];
        snprintf(where, sizeof where, "seed=1,fail_at=%d:memory:", fail_at);
        assert_int_equal(storage_open(&output.store, &storage_fault, where, NULL), 0);
        assert_int_equal(storage_object_create(output.store, &output.object, "out",
                                               (file->bytes + 4095) / 4096 * 4096),
                         0);
        assert_int_equal(assembly_run(&stored.checkpoint, 1, &hooks), ERR_IO);
        assert_non_null(strstr(report_line(), "could not write"));
        storage_object_close(output.store, output.object);
        storage_close(output.store);
        output_close(&output);
        stored_load_again(&stored);
    }
    stored_close(&stored);
}

SUITE(NULL, NULL)
