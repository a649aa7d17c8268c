/* clients_arrays.c - the additions of version 2 of ckpt.h: arrays of up to 8 dimensions, metadata,
 * lists, pins, moved pointers, copies by the caller, several boxes of a tensor on a rank, waits for
 * a level, bytes objects, digests of the copied bytes.
 *
 * Goal: each does what its comment in ckpt.h says, with any cut on the way back. Method: a real
 * ckptd (clients_bed.h) and one handle, or two that are ranks of one run. The value of an element
 * follows from its index, so a wrong place shows. */
#include "proto/base/checksum.h"
#include "tests/unit/clients_bed.h"
#include "tests/unit/suite.h"

#include <sys/mman.h>

enum { CONV, SCALAR, MASK, EIGHTS, ARRAYS };
/* Each once; whole. */
static const struct ckpt_array wholes[ARRAYS] = {
    {.size = sizeof(struct ckpt_array),
     .dims = 5,
     .name = "conv.weight",
     .dtype = "F32",
     .shape = {4, 3, 2, 5, 7},
     .extent = {4, 3, 2, 5, 7}},
    {.size = sizeof(struct ckpt_array), .dims = 0, .name = "optimizer.step", .dtype = "I64"},
    {.size = sizeof(struct ckpt_array),
     .dims = 1,
     .name = "mask",
     .dtype = "BOOL",
     .shape = {9},
     .extent = {9}},
    {.size = sizeof(struct ckpt_array),
     .dims = 8,
     .name = "eight",
     .dtype = "F8_E4M3",
     .shape = {2, 1, 2, 1, 3, 1, 2, 2},
     .extent = {2, 1, 2, 1, 3, 1, 2, 2}},
};

static float conv_values[4 * 3 * 2 * 5 * 7];
static int64_t step_value;
static uint8_t mask_values[9], eight_values[48];

static void fill(struct ckpt_array *out, uint64_t step)
{
    void *const data[ARRAYS] = {conv_values, &step_value, mask_values, eight_values};
    for (uint32_t i = 0; i < 840; i++)
        conv_values[i] = (float)(i + 1000 * step);
    step_value = (int64_t)step;
    for (uint32_t i = 0; i < 9; i++)
        mask_values[i] = (i + step) % 2;
    for (uint32_t i = 0; i < 48; i++)
        eight_values[i] = (uint8_t)(i + step);
    for (uint32_t i = 0; i < ARRAYS; i++) {
        out[i] = wholes[i];
        out[i].data = data[i];
    }
}

/* A run of one rank. */
static struct ckpt *ckpt;
static struct ckpt_array arrays[ARRAYS];
static uint64_t attempt;

static int open_run(void **state)
{
    int error = bed_open(state);
    if (error != 0)
        return error;
    ckpt = open_single(*state, "arrays");
    fill(arrays, 1);
    return ckpt_attempt_open(ckpt, &attempt, NULL, NULL);
}

static int open_described(void **state)
{
    int error = open_run(state);
    return error != 0 ? error : ckpt_describe_arrays(ckpt, attempt, arrays, ARRAYS);
}

static int close_run(void **state)
{
    ckpt_close(ckpt);
    return bed_close(state);
}

#define RUN_TEST(name) TEST_BETWEEN(name, open_run, close_run)
#define DESCRIBED_TEST(name) TEST_BETWEEN(name, open_described, close_run)

static void save_step_of(uint64_t step)
{
    struct ckpt_save *save;
    assert_int_equal(ckpt_save_begin(ckpt, &save, step, "{\"mark\":1}"), 0);
    for (uint32_t i = 0; i < ARRAYS; i++)
        ckpt_save_copy(save, i);
    assert_int_equal(ckpt_save_end(save), 0);
    assert_int_equal(ckpt_save_wait(ckpt, step, 30000), 0);
}

static int load_arrays(struct ckpt *from, int64_t step, const struct ckpt_array *wanted,
                       uint32_t count)
{
    struct ckpt_loaded *loaded;
    const struct ckpt_load_request request = {
        .size = sizeof request, .step = step, .arrays = wanted, .num_arrays = count};
    int error = ckpt_load_arrays(from, &request, &loaded);
    ckpt_loaded_free(loaded);
    return error;
}

DESCRIBED_TEST(test_arrays__five_dimensions_come_back_by_a_cut_of_the_innermost)
{
    struct ckpt_array wish[2];
    float part[4 * 3 * 2 * 5 * 2], other[5];
    save_step_of(1);
    wish[0] = wish[1] = arrays[CONV];
    wish[0].offset[4] = 3, wish[0].extent[4] = 2, wish[0].data = part;
    for (uint32_t d = 0; d < 5;
         d++) /* the same tensor a second time: one element wide but for d 3 */
        wish[1].offset[d] = d == 3 ? 0 : 1, wish[1].extent[d] = d == 3 ? 5 : 1;
    wish[1].data = other;
    assert_int_equal(load_arrays(ckpt, 1, wish, 2), 0);
    for (uint32_t row = 0; row < 120; row++)
        for (uint32_t i = 0; i < 2; i++)
            assert_true(part[2 * row + i] == (float)(1000 + 7 * row + 3 + i));
    for (uint32_t i = 0; i < 5; i++)
        assert_true(other[i] == (float)(1000 + ((1 * 3 + 1) * 2 + 1) * 35 + 7 * i + 1));
}

DESCRIBED_TEST(test_arrays__scalars_masks_and_eight_dimensions_come_back)
{
    save_step_of(1);
    fill(arrays, 77);
    assert_int_equal(load_arrays(ckpt, CKPT_NEWEST, arrays, ARRAYS), 0);
    assert_int_equal(step_value, 1);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(mask_values[i], (i + 1) % 2);
    for (uint32_t i = 0; i < 48; i++)
        assert_int_equal(eight_values[i], i + 1);
}

DESCRIBED_TEST(test_arrays__a_list_of_another_size_is_refused)
{
    arrays[0].size -= 8;
    assert_int_equal(ckpt_describe_arrays(ckpt, 2, arrays, ARRAYS), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "sizeof(struct ckpt_array)"));
    arrays[0].size += 8, arrays[0].dims = 9;
    assert_int_equal(ckpt_describe_arrays(ckpt, 2, arrays, ARRAYS), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "9 dimensions"));
}

/* ---- lists ---- */

DESCRIBED_TEST(test_metadata__names_types_and_shapes_are_those_described)
{
    struct ckpt_metadata *metadata;
    save_step_of(1);
    assert_int_equal(ckpt_metadata(ckpt, CKPT_NEWEST, 0, &metadata), 0);
    assert_int_equal(metadata->num_tensors, ARRAYS);
    assert_int_equal(metadata->info.step, 1);
    assert_string_equal(metadata->info.durability, "local");
    assert_string_equal(metadata->state_json, "{\"mark\":1}");
    static const uint32_t by_name[ARRAYS] = {CONV, EIGHTS, MASK, SCALAR};
    for (uint32_t i = 0; i < ARRAYS; i++) {
        const struct ckpt_array *whole = &wholes[by_name[i]];
        const struct ckpt_tensor_info *found = &metadata->tensors[i];
        assert_string_equal(found->name, whole->name);
        assert_string_equal(found->dtype, whole->dtype);
        assert_int_equal(found->dims, whole->dims);
        assert_memory_equal(found->shape, whole->shape, whole->dims * sizeof *whole->shape);
        assert_true(found->digest[0] != 0);
    }
    ckpt_metadata_free(metadata);
    assert_int_equal(ckpt_metadata(ckpt, 99, 0, &metadata), CKPT_NOT_FOUND);
    assert_null(metadata);
}

DESCRIBED_TEST(test_list__says_what_is_pinned_and_why)
{
    struct ckpt_list *list;
    save_step_of(1);
    fill(arrays, 2);
    save_step_of(2);
    assert_int_equal(ckpt_list(ckpt, false, &list), 0);
    assert_int_equal(list->num_entries, 2);
    assert_int_equal(list->entries[0].info.step, 2); /* newest first */
    const uint64_t attempt = list->entries[1].info.attempt;
    ckpt_list_free(list);
    assert_int_equal(ckpt_pin(ckpt, 1, attempt, "for the paper"), 0);
    assert_int_equal(ckpt_list(ckpt, true, &list), 0);
    assert_false(list->entries[0].pinned);
    assert_true(list->entries[1].pinned);
    assert_non_null(strstr(list->entries[1].pin_note, "for the paper"));
    assert_string_equal(list->entries[1].damage, "");
    ckpt_list_free(list);
}

/* ---- saving ---- */

DESCRIBED_TEST(test_move__the_save_takes_the_bytes_from_the_new_place)
{
    static float elsewhere[840];
    for (uint32_t i = 0; i < 840; i++)
        elsewhere[i] = -1.0f;
    assert_int_equal(ckpt_move(ckpt, CONV, elsewhere), 0);
    assert_int_equal(ckpt_move(ckpt, ARRAYS, elsewhere), CKPT_INVALID);
    save_step_of(1);
    assert_int_equal(load_arrays(ckpt, 1, arrays, ARRAYS), 0);
    for (uint32_t i = 0; i < 840; i++)
        assert_true(conv_values[i] == -1.0f);
}

/* The pieces of all tensors, requested first and announced in reverse order. */
RUN_TEST(test_place__the_caller_copies_in_an_order_of_its_own)
{
    struct ckpt_array big = {.size = sizeof big,
                             .dims = 1,
                             .name = "big",
                             .dtype = "U8",
                             .shape = {20 << 20},
                             .extent = {20 << 20}};
    struct ckpt_place places[64] = {{.size = sizeof *places}};
    struct ckpt_save *save;
    uint64_t covered = 0;
    uint32_t count = 0;
    unsigned char *bytes = malloc(20 << 20), *back = malloc(20 << 20);
    for (uint32_t i = 0; i < 20 << 20; i++)
        bytes[i] = (unsigned char)(mix(i) >> 56);
    assert_int_equal(ckpt_describe_arrays(ckpt, attempt, &big, 1), 0); /* without data */
    assert_int_equal(ckpt_save_begin(ckpt, &save, 1, NULL), 0);
    while (ckpt_save_place(save, 0, covered, &places[count]) == 0 && places[count].bytes > 0) {
        assert_int_equal(places[count].from_byte, covered);
        covered += places[count++].bytes;
        assert_true(count < 64);
    }
    assert_int_equal(covered, 20 << 20);
    assert_true(count > 20); /* segments are of 1 MiB, and none begins with a tensor */
    for (uint32_t i = count; i-- > 0;) {
        memcpy(places[i].to, bytes + places[i].from_byte, places[i].bytes);
        assert_int_equal(ckpt_save_announce(save, &places[i]), 0);
    }
    assert_int_equal(ckpt_save_end(save), 0);
    ckpt_save_abort(save); /* it has ended: there is nothing to abort */
    assert_int_equal(ckpt_save_announce(save, &places[0]), CKPT_INVALID);
    assert_int_equal(ckpt_save_wait(ckpt, 1, 30000), 0);
    big.data = back;
    assert_int_equal(load_arrays(ckpt, 1, &big, 1), 0);
    assert_memory_equal(bytes, back, 20 << 20);
    free(bytes);
    free(back);
}

/* A save for which the caller gives digests: those of the copied bytes, or with a bit of `changed`
 * flipped. */
static void save_digested(uint64_t step, uint32_t changed)
{
    static void *const data[ARRAYS] = {conv_values, &step_value, mask_values, eight_values};
    static const uint32_t elements[ARRAYS] = {840, 1, 9, 48}, bytes[ARRAYS] = {4, 8, 1, 1};
    struct ckpt_save *save;
    int error = CKPT_BUSY; /* while the save before is taken away */
    for (uint32_t i = 0; i < 1000 && error == CKPT_BUSY; i++, sleep_ms(10))
        error = ckpt_save_begin(ckpt, &save, step, NULL);
    assert_int_equal(error, 0);
    for (uint32_t i = 0; i < ARRAYS; i++) {
        struct digest digest = {{0}};
        digest_add(&digest, data[i], elements[i], bytes[i], 0);
        digest.sum[1] ^= i == changed;
        ckpt_save_copy(save, i);
        assert_int_equal(ckpt_save_digest(save, i, digest.sum), 0);
    }
    assert_int_equal(ckpt_save_end(save), 0);
}

DESCRIBED_TEST(test_digest__a_copy_that_differs_from_its_origin_is_not_committed)
{
    struct ckpt_metadata *metadata;
    save_digested(1, ARRAYS);
    assert_int_equal(ckpt_save_wait(ckpt, 1, 30000), 0);
    for (uint32_t i = 0; i < ARRAYS; i++) {
        save_digested(2 + i, i);
        assert_int_equal(ckpt_save_wait(ckpt, 2 + i, 30000), CKPT_ABORTED);
        assert_non_null(strstr(ckpt_error(), wholes[i].name));
        assert_non_null(strstr(ckpt_error(), "has another digest"));
        assert_int_equal(ckpt_metadata(ckpt, 2 + i, 0, &metadata), CKPT_NOT_FOUND);
    }
    save_digested(2 + ARRAYS, ARRAYS);
    assert_int_equal(ckpt_save_wait(ckpt, 2 + ARRAYS, 30000), 0);
}

/* The arguments of the hooks. */
struct hooked {
    struct range {
        unsigned char *at;
        uint64_t bytes;
        bool is_writable;
    } ranges[64];
    uint32_t num_ranges, num_came[2];
    struct posted {
        void *to;
        const void *from;
        uint64_t bytes;
    } posted[64];
    uint32_t num_posted;
    uint64_t copied;
    int fails;
};

static void came(void *user, void *at, uint64_t bytes, bool is_writable)
{
    struct hooked *hooked = user;
    assert_true(hooked->num_ranges < 64);
    hooked->ranges[hooked->num_ranges++] = (struct range){at, bytes, is_writable};
    hooked->num_came[is_writable]++;
}

static void goes(void *user, void *at, uint64_t bytes)
{
    struct hooked *hooked = user;
    uint32_t i = 0;
    unsigned char resident;
    assert_int_equal(hooked->num_posted, 0);
    while (i < hooked->num_ranges && hooked->ranges[i].at != at)
        i++;
    assert_true(i < hooked->num_ranges && hooked->ranges[i].bytes == bytes);
    assert_int_equal(mincore(at, 1, &resident), 0); /* it is mapped still */
    hooked->ranges[i] = hooked->ranges[--hooked->num_ranges];
}

static bool is_in_range(const struct hooked *hooked, const void *at, uint64_t bytes)
{
    for (uint32_t i = 0; i < hooked->num_ranges; i++)
        if ((const unsigned char *)at >= hooked->ranges[i].at &&
            (const unsigned char *)at + bytes <= hooked->ranges[i].at + hooked->ranges[i].bytes)
            return true;
    return false;
}

static int post(void *user, void *to, const void *from, uint64_t bytes)
{
    struct hooked *hooked = user;
    assert_true(hooked->num_posted < 64 && is_in_range(hooked, from, bytes));
    hooked->posted[hooked->num_posted++] = (struct posted){to, from, bytes};
    return hooked->fails;
}

static int copied(void *user)
{
    struct hooked *hooked = user;
    for (; hooked->num_posted > 0; hooked->num_posted--) {
        const struct posted *copy = &hooked->posted[hooked->num_posted - 1];
        memcpy(copy->to, copy->from, copy->bytes);
        hooked->copied += copy->bytes;
    }
    return 0;
}

/* A device learns of ckptd's memory before anything is copied there, and may copy late. */
RUN_TEST(test_hooks__memory_is_announced_and_loads_are_copied_by_the_caller)
{
    struct hooked hooked = {0};
    struct ckpt_memory_hooks hooks = {.size = offsetof(struct ckpt_memory_hooks, memory_node),
                                      .came = came,
                                      .goes = goes,
                                      .copy = post,
                                      .copied = copied,
                                      .user = &hooked,
                                      .memory_node = UINT32_MAX}; /* which is not read */
    struct ckpt_place at = {.size = sizeof at};
    struct ckpt_save *save;
    float values[840];
    assert_int_equal(ckpt_hook_memory(ckpt, &hooks), 0);
    assert_int_equal(ckpt_describe_arrays(ckpt, attempt, arrays, ARRAYS), 0);
    save_step_of(1);
    uint32_t mapped = hooked.num_ranges;
    assert_int_equal(ckpt_hook_memory(ckpt, NULL), 0); /* with what is mapped already */
    assert_int_equal(hooked.num_ranges, 0);
    hooks.size = sizeof hooks;
    hooks.memory_node = 1;
    assert_int_equal(ckpt_hook_memory(ckpt, &hooks), 0);
    assert_int_equal(hooked.num_ranges, mapped);
    assert_true(mapped > 0 && hooked.num_came[1] == 2 * mapped);
    assert_int_equal(ckpt_save_begin(ckpt, &save, 2, NULL), 0);
    assert_int_equal(ckpt_save_place(save, CONV, 0, &at), 0);
    assert_true(is_in_range(&hooked, at.to, at.bytes));
    ckpt_save_abort(save);
    uint32_t before = hooked.num_ranges, came = hooked.num_came[0] + hooked.num_came[1];
    memcpy(values, conv_values, sizeof values);
    memset(conv_values, 0, sizeof conv_values);
    assert_int_equal(load_arrays(ckpt, 1, arrays, ARRAYS), 0);
    assert_memory_equal(values, conv_values, sizeof values);
    assert_true(hooked.num_came[0] + hooked.num_came[1] > came);
    assert_true(hooked.copied >= sizeof values);
    assert_int_equal(hooked.num_ranges, before); /* what a load maps is unmapped with it */
    hooked.fails = CKPT_MEMORY;
    assert_int_equal(load_arrays(ckpt, 1, arrays, ARRAYS), CKPT_MEMORY);
    hooks.size--;
    assert_int_equal(ckpt_hook_memory(ckpt, &hooks), CKPT_INVALID);
    ckpt_close(ckpt);
    ckpt = NULL;
    assert_int_equal(hooked.num_ranges, 0);
}

DESCRIBED_TEST(test_place__what_is_announced_twice_fails_the_save)
{
    struct ckpt_place at = {.size = sizeof at};
    struct ckpt_save *save;
    assert_int_equal(ckpt_save_begin(ckpt, &save, 1, NULL), 0);
    assert_int_equal(ckpt_save_place(save, CONV, 0, &at), 0);
    assert_int_equal(ckpt_save_announce(save, &at), 0);
    assert_int_equal(ckpt_save_announce(save, &at), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "conv.weight"));
    assert_int_equal(ckpt_save_end(save), CKPT_INVALID);
}

DESCRIBED_TEST(test_place__a_tensor_without_data_cannot_be_copied)
{
    struct ckpt_save *save;
    assert_int_equal(ckpt_move(ckpt, MASK, NULL), 0);
    assert_int_equal(ckpt_save_begin(ckpt, &save, 1, NULL), 0);
    assert_int_equal(ckpt_save_copy(save, MASK), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "mask"));
    ckpt_save_abort(save);
}

/* ---- several boxes of one tensor on a rank ---- */

enum { BOX_ROWS = 11, BOX_COLUMNS = 6, BOXES = 3 };
/* As a strided cut leaves them, uneven: rows of w, and of all of them the columns. */
static const uint64_t box_rows[2][BOXES][2] = {{{0, 2}, {4, 3}, {9, 1}}, {{2, 2}, {7, 2}, {10, 1}}};

struct box_rank {
    struct bed *bed;
    uint64_t attempt;
    uint32_t rank;
    int error;
    pthread_barrier_t *described;
};

static int32_t box_value(uint64_t row, uint64_t column)
{
    return (int32_t)(100 * row + column);
}

static struct ckpt_array box_array(uint64_t first, uint64_t rows, uint64_t column, uint64_t columns,
                                   int32_t *data)
{
    return (struct ckpt_array){.size = sizeof(struct ckpt_array),
                               .dims = 2,
                               .name = "w",
                               .dtype = "I32",
                               .shape = {BOX_ROWS, BOX_COLUMNS},
                               .offset = {first, column},
                               .extent = {rows, columns},
                               .data = data};
}

static void *save_boxes(void *argument)
{
    struct box_rank *mine = argument;
    int32_t values[BOXES][3 * BOX_COLUMNS];
    struct ckpt_array arrays[BOXES];
    struct ckpt_save *save;
    struct ckpt *ckpt = NULL;
    for (uint32_t i = 0; i < BOXES; i++) {
        const uint64_t *rows = box_rows[mine->rank][i];
        for (uint64_t e = 0; e < rows[1] * BOX_COLUMNS; e++)
            values[i][e] = box_value(rows[0] + e / BOX_COLUMNS, e % BOX_COLUMNS);
        arrays[i] = box_array(rows[0], rows[1], 0, BOX_COLUMNS, values[i]);
    }
    mine->error = ckpt_open(&ckpt, &(struct ckpt_options){.server = mine->bed->server,
                                                          .run = "boxes",
                                                          .rank = mine->rank,
                                                          .world_size = 2,
                                                          .busy_ms = 10000});
    if (mine->error == 0)
        mine->error = ckpt_describe_arrays(ckpt, mine->attempt, arrays, BOXES);
    if (mine->error == 0) /* again, as a rank does that lost its session */
        mine->error = ckpt_describe_arrays(ckpt, mine->attempt, arrays, BOXES);
    pthread_barrier_wait(mine->described); /* or it would end a save that the other has begun */
    if (mine->error == 0)
        mine->error = ckpt_save_begin(ckpt, &save, 1, mine->rank == 0 ? "{}" : NULL);
    for (uint32_t i = 0; mine->error == 0 && i < BOXES; i++)
        ckpt_save_copy(save, ckpt_save_order(ckpt, i));
    if (mine->error == 0)
        mine->error = ckpt_save_end(save);
    if (mine->error == 0)
        mine->error = ckpt_save_wait(ckpt, 1, 30000);
    ckpt_close(ckpt);
    return NULL;
}

/* Every box of the tensor. */
static void check_boxes(struct ckpt *ckpt)
{
    int32_t back[BOX_ROWS * BOX_COLUMNS];
    for (uint64_t first = 0; first < BOX_ROWS; first++)
        for (uint64_t rows = 1; first + rows <= BOX_ROWS; rows += 3) {
            uint64_t column = first % 3, columns = BOX_COLUMNS - column - rows % 2;
            const struct ckpt_array wanted = box_array(first, rows, column, columns, back);
            memset(back, 0xff, sizeof back);
            assert_int_equal(load_arrays(ckpt, 1, &wanted, 1), 0);
            for (uint64_t e = 0; e < rows * columns; e++)
                assert_int_equal(back[e], box_value(first + e / columns, column + e % columns));
        }
}

BED_TEST(test_boxes__several_of_one_tensor_on_a_rank_load_in_any_cut)
{
    pthread_barrier_t described;
    struct box_rank ranks[2] = {{.bed = bed, .rank = 0, .described = &described},
                                {.bed = bed, .rank = 1, .described = &described}};
    struct ckpt *reader, *first = NULL;
    struct ckpt_array other = box_array(0, 1, 0, BOX_COLUMNS, NULL);
    int32_t row[BOX_COLUMNS];
    pthread_t threads[2];
    char place[300];
    assert_int_equal(
        ckpt_open(&first,
                  &(struct ckpt_options){.server = bed->server, .run = "boxes", .world_size = 2}),
        0);
    assert_int_equal(ckpt_attempt_open(first, &ranks[0].attempt, NULL, NULL), 0);
    ranks[1].attempt = ranks[0].attempt;
    pthread_barrier_init(&described, NULL, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, save_boxes, &ranks[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(ranks[0].error, 0);
    assert_int_equal(ranks[1].error, 0);
    check_boxes(first);
    other.data = row;
    other.shape[0]++;
    assert_int_equal(load_arrays(first, 1, &other, 1), CKPT_MISMATCH);
    ckpt_close(first);
    snprintf(place, sizeof place, "dir:%s", bed->store);
    assert_int_equal(
        ckpt_open(&reader,
                  &(struct ckpt_options){.server = place, .run = "boxes", .world_size = 1}),
        0);
    check_boxes(reader);
    ckpt_close(reader);
}

BED_TEST(test_boxes__an_overlap_a_hole_or_a_second_time_is_refused)
{
    static const uint64_t wrong[4][2][2] = {
        {{0, 6}, {5, 6}}, {{0, 4}, {5, 6}}, {{0, 4}, {4, 6}}, {{0, 11}, {0, 11}}};
    int32_t values[BOX_ROWS * BOX_COLUMNS] = {0};
    for (int i = 0; i < 4; i++) {
        uint64_t attempt;
        struct ckpt *ckpt = open_single(bed, "wrong");
        struct ckpt_array arrays[2];
        for (int k = 0; k < 2; k++)
            arrays[k] = box_array(wrong[i][k][0], wrong[i][k][1], 0, BOX_COLUMNS, values);
        assert_int_equal(ckpt_attempt_take(ckpt, &attempt, NULL, NULL, CKPT_TAKE_OVER), 0);
        assert_int_not_equal(ckpt_describe_arrays(ckpt, attempt, arrays, 2), 0);
        assert_non_null(strstr(ckpt_error(), i < 3 ? "boxes of tensor 'w'" : "w@0,0"));
        ckpt_close(ckpt);
    }
}

/* ---- levels ---- */

/* Two ranks: the save is accepted when the second has ended, not before. */
static int work_levels(struct group *group, struct ckpt *ckpt, struct ckpt_tensor *tensors,
                       uint32_t rank)
{
    struct ckpt_save *save;
    if (ckpt_save_begin(ckpt, &save, group->step, rank == 0 ? "{\"mark\":1}" : NULL) != 0)
        return rank_failed(group, "begin", rank);
    pthread_barrier_wait(&group->barrier);
    if (rank == 0) {
        if (copy_all(save, tensors, group->step) != 0)
            return rank_failed(group, "end", rank);
        if (ckpt_save_wait_for(ckpt, group->step, CKPT_LEVEL_ACCEPTED, 300) != CKPT_TIMEOUT)
            rank_failed(group, "accepted too early", rank);
    }
    pthread_barrier_wait(&group->barrier);
    if (rank == 1 && copy_all(save, tensors, group->step) != 0)
        return rank_failed(group, "end", rank);
    if (ckpt_save_wait_for(ckpt, group->step, CKPT_LEVEL_ACCEPTED, 20000) != 0)
        return rank_failed(group, "never accepted", rank);
    if (ckpt_save_durability(ckpt)[0] == '\0')
        return rank_failed(group, "no level is named", rank);
    if (ckpt_save_wait_for(ckpt, group->step, CKPT_LEVEL_LOCAL, 20000) != 0)
        return rank_failed(group, "never local", rank);
    return 0;
}

BED_TEST(test_wait_for__accepted_comes_with_the_last_end)
{
    struct group group = make_group(bed, 2, 5, 1);
    group.work = work_levels;
    assert_int_equal(run_group(&group), 0);
}

DESCRIBED_TEST(test_wait_for__a_level_that_ckptd_has_not_is_refused)
{
    save_step_of(1);
    assert_int_equal(ckpt_save_wait_for(ckpt, 1, CKPT_LEVEL_BUCKET, 1000), CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "bucket"));
    assert_int_equal(ckpt_save_wait_for(ckpt, 1, (enum ckpt_level)9, 1000), CKPT_INVALID);
}

/* ---- bytes objects ---- */

static void save_object(struct ckpt_object *object, uint64_t step, const char *text)
{
    struct ckpt_save *save;
    assert_int_equal(ckpt_object_set(object, text, strlen(text)), 0);
    assert_int_equal(ckpt_save_begin(ckpt, &save, step, NULL), 0);
    for (uint32_t i = 0; i < 2; i++)
        ckpt_save_copy(save, i);
    assert_int_equal(ckpt_save_end(save), 0);
    assert_int_equal(ckpt_save_wait(ckpt, step, 30000), 0);
}

RUN_TEST(test_objects__bytes_of_any_length_come_back_by_name)
{
    static const char *const texts[] = {"", "place 17", "a longer place: 123456789"};
    struct ckpt_object object = {.size = sizeof object, .name = "loader/0"};
    uint64_t bytes;
    void *found;
    object.room = ckpt_object_room(40);
    object.memory = malloc(object.room);
    assert_int_equal(ckpt_object_describe(&object, &arrays[1]), 0);
    assert_int_equal(ckpt_describe_arrays(ckpt, attempt, arrays, 2), 0);
    for (uint64_t step = 3; step > 0; step--) /* a shorter one after a longer */
        save_object(&object, 4 - step, texts[step - 1]);
    for (uint64_t step = 1; step <= 3; step++) {
        const char *text = texts[3 - step];
        assert_int_equal(ckpt_object_load(ckpt, (int64_t)step, 0, "loader/0", &found, &bytes), 0);
        assert_int_equal(bytes, strlen(text));
        assert_memory_equal(found, text, bytes);
        ckpt_object_free(found);
    }
    assert_int_equal(ckpt_object_load(ckpt, 1, 0, "loader/1", &found, &bytes), CKPT_NOT_FOUND);
    assert_int_equal(ckpt_object_set(&object, object.memory, object.room - 7), CKPT_SPACE);
    free(object.memory);
}

TEST(test_objects__metadata_tells_them_from_tensors)
{
    const struct ckpt_tensor_info one = {.dims = 1, .name = "object:a", .dtype = "U8"},
                                  typed = {.dims = 1, .name = "object:a", .dtype = "F32"},
                                  other = {.dims = 1, .name = "objects", .dtype = "U8"};
    assert_string_equal(ckpt_object_name(&one), "a");
    assert_null(ckpt_object_name(&typed));
    assert_null(ckpt_object_name(&other));
    unsigned char memory[16] = {9};
    const struct ckpt_object object = {sizeof object, "a", memory, sizeof memory, ""};
    const void *data;
    uint64_t bytes;
    assert_int_equal(ckpt_object_get(&object, &data, &bytes), CKPT_CORRUPT);
    memory[0] = 8;
    assert_int_equal(ckpt_object_get(&object, &data, &bytes), 0);
    assert_true(bytes == 8 && data == memory + 8);
}

SUITE(NULL, NULL)
