/* clients_abi.c - the first version of ckpt.h stays what it was.
 *
 * Goal: a program that was compiled against version 1 of libckpt works with every later one: no
 * field, number or argument of it changes. Method: sizes and places of all fields on a 64-bit
 * machine, the numbers of constants, the types of functions and the exported names are written down
 * here once more. Later additions follow the existing ones (clients/libckpt.map says how) and are
 * added here; an existing line is never changed. */
#include "clients/ckpt.h"
#include "proto/base/report.h"
#include "tests/unit/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Each is one of ckpt.h's, in its order. The table would not compile with another type. */
static const struct {
    int (*open)(struct ckpt **, const struct ckpt_options *);
    void (*close)(struct ckpt *);
    const char *(*error)(void);
    int (*attempt_open)(struct ckpt *, uint64_t *, struct ckpt_info *,
                        const struct ckpt_attempt_options *);
    int (*describe)(struct ckpt *, uint64_t, const struct ckpt_tensor *, uint32_t);
    int (*load)(struct ckpt *, const struct ckpt_load_options *, struct ckpt_loaded **);
    void (*loaded_free)(struct ckpt_loaded *);
    int (*save_begin)(struct ckpt *, struct ckpt_save **, uint64_t, const char *);
    uint32_t (*save_order)(const struct ckpt *, uint32_t);
    int (*save_copy)(struct ckpt_save *, uint32_t);
    int (*save_end)(struct ckpt_save *);
    void (*save_abort)(struct ckpt_save *);
    int (*save_wait)(struct ckpt *, uint64_t, uint32_t);
    const char *(*save_warning)(const struct ckpt *);
    const char *(*save_durability)(const struct ckpt *);
    void (*phase)(struct ckpt *, enum ckpt_phase);
} version_1 = {ckpt_open,       ckpt_close,        ckpt_error,           ckpt_attempt_open,
               ckpt_describe,   ckpt_load,         ckpt_loaded_free,     ckpt_save_begin,
               ckpt_save_order, ckpt_save_copy,    ckpt_save_end,        ckpt_save_abort,
               ckpt_save_wait,  ckpt_save_warning, ckpt_save_durability, ckpt_phase};

TEST(test_abi__constants_keep_their_numbers)
{
    assert_int_equal(CKPT_DIMS_MAX, 4);
    assert_int_equal(CKPT_NEWEST, -1);
    assert_int_equal(CKPT_INVALID, -1);
    assert_int_equal(CKPT_NOT_FOUND, -2);
    assert_int_equal(CKPT_EXISTS, -3);
    assert_int_equal(CKPT_STALE, -4);
    assert_int_equal(CKPT_BUSY, -5);
    assert_int_equal(CKPT_SPACE, -6);
    assert_int_equal(CKPT_IO, -7);
    assert_int_equal(CKPT_CORRUPT, -8);
    assert_int_equal(CKPT_UNAVAILABLE, -9);
    assert_int_equal(CKPT_TIMEOUT, -10);
    assert_int_equal(CKPT_DENIED, -11);
    assert_int_equal(CKPT_MEMORY, -12);
    assert_int_equal(CKPT_ABORTED, -13);
    assert_int_equal(CKPT_MISMATCH, -14);
    assert_int_equal(CKPT_VERSION, -15);
    assert_int_equal(CKPT_INTERNAL, -16);
    assert_int_equal(CKPT_UNSETTLED, -17);
#define EVERY_CODE(name, code, ...) | (1u << -(code))
    assert_int_equal(0 ERR_MAP(EVERY_CODE), (1u << 18) - 2); /* those 17 and no other */
    assert_int_equal(CKPT_PHASE_BUSY, 1);
    assert_int_equal(CKPT_PHASE_QUIET, 2);
    assert_int_equal(CKPT_ARRAY_DIMS_MAX, 8);
    assert_int_equal(CKPT_ASKED_STOP, 1);
    assert_int_equal(CKPT_ASKED_NO_SAVE, 2);
    assert_int_equal(CKPT_LEVEL_ACCEPTED, 1);
    assert_int_equal(CKPT_LEVEL_LOCAL, 2);
    assert_int_equal(CKPT_LEVEL_REPLICATED, 3);
    assert_int_equal(CKPT_LEVEL_BUCKET, 4);
}

struct field {
    const char *name;
    size_t is, was;
};
#define AT(type, member, place)                                 \
    {                                                           \
#type "." #member, offsetof(struct type, member), place \
    }
#define SIZE(type, bytes)                                \
    {                                                    \
        "the size of " #type, sizeof(struct type), bytes \
    }

static const struct field fields[] = {
    AT(ckpt_tensor, name, 0),
    AT(ckpt_tensor, dtype, 8),
    AT(ckpt_tensor, dims, 16),
    AT(ckpt_tensor, shape, 24),
    AT(ckpt_tensor, offset, 56),
    AT(ckpt_tensor, extent, 88),
    AT(ckpt_tensor, data, 120),
    SIZE(ckpt_tensor, 128),
    AT(ckpt_options, server, 0),
    AT(ckpt_options, run, 8),
    AT(ckpt_options, rank, 16),
    AT(ckpt_options, world_size, 20),
    AT(ckpt_options, connect_ms, 24),
    AT(ckpt_options, describe_ms, 28),
    AT(ckpt_options, busy_ms, 32),
    SIZE(ckpt_options, 40),
    AT(ckpt_attempt_options, config_json, 0),
    AT(ckpt_attempt_options, identity_json, 8),
    AT(ckpt_attempt_options, mesh_json, 16),
    AT(ckpt_attempt_options, data_json, 24),
    AT(ckpt_attempt_options, code_version, 32),
    SIZE(ckpt_attempt_options, 40),
    AT(ckpt_info, run, 0),
    AT(ckpt_info, step, 128),
    AT(ckpt_info, attempt, 136),
    AT(ckpt_info, nonce, 144),
    AT(ckpt_info, bytes, 184),
    AT(ckpt_info, time, 192),
    AT(ckpt_info, world_size, 224),
    AT(ckpt_info, durability, 228),
    AT(ckpt_info, in_memory, 244),
    SIZE(ckpt_info, 248),
    AT(ckpt_loaded, info, 0),
    AT(ckpt_loaded, state_json, 248),
    AT(ckpt_loaded, identity_json, 256),
    AT(ckpt_loaded, config_json, 264),
    AT(ckpt_loaded, data_json, 272),
    AT(ckpt_loaded, skipped, 280),
    AT(ckpt_loaded, bytes_memory, 288),
    AT(ckpt_loaded, bytes_local, 296),
    AT(ckpt_loaded, seconds, 304),
    SIZE(ckpt_loaded, 312),
    AT(ckpt_load_options, step, 0),
    AT(ckpt_load_options, attempt, 8),
    AT(ckpt_load_options, below_step, 16),
    AT(ckpt_load_options, tensors, 24),
    AT(ckpt_load_options, num_tensors, 32),
    SIZE(ckpt_load_options, 40),
    /* of version 2 */
    AT(ckpt_array, size, 0),
    AT(ckpt_array, dims, 4),
    AT(ckpt_array, name, 8),
    AT(ckpt_array, dtype, 16),
    AT(ckpt_array, shape, 24),
    AT(ckpt_array, offset, 88),
    AT(ckpt_array, extent, 152),
    AT(ckpt_array, data, 216),
    SIZE(ckpt_array, 224),
    AT(ckpt_load_request, size, 0),
    AT(ckpt_load_request, num_arrays, 4),
    AT(ckpt_load_request, step, 8),
    AT(ckpt_load_request, below_step, 16),
    AT(ckpt_load_request, attempt, 24),
    AT(ckpt_load_request, arrays, 32),
    SIZE(ckpt_load_request, 40),
    AT(ckpt_tensor_info, size, 0),
    AT(ckpt_tensor_info, dims, 4),
    AT(ckpt_tensor_info, name, 8),
    AT(ckpt_tensor_info, dtype, 16),
    AT(ckpt_tensor_info, shape, 24),
    AT(ckpt_tensor_info, digest, 88),
    SIZE(ckpt_tensor_info, 104),
    AT(ckpt_metadata, size, 0),
    AT(ckpt_metadata, num_tensors, 4),
    AT(ckpt_metadata, info, 8),
    AT(ckpt_metadata, tensors, 256),
    AT(ckpt_metadata, state_json, 264),
    AT(ckpt_metadata, identity_json, 272),
    AT(ckpt_metadata, config_json, 280),
    AT(ckpt_metadata, data_json, 288),
    AT(ckpt_metadata, mesh_json, 296),
    AT(ckpt_metadata, damage, 304),
    SIZE(ckpt_metadata, 312),
    AT(ckpt_list_entry, size, 0),
    AT(ckpt_list_entry, pinned, 4),
    AT(ckpt_list_entry, read_back, 5),
    AT(ckpt_list_entry, info, 8),
    AT(ckpt_list_entry, damage, 256),
    AT(ckpt_list_entry, pin_note, 264),
    SIZE(ckpt_list_entry, 272),
    AT(ckpt_list, size, 0),
    AT(ckpt_list, num_entries, 4),
    AT(ckpt_list, entries, 8),
    SIZE(ckpt_list, 16),
    AT(ckpt_place, size, 0),
    AT(ckpt_place, index, 4),
    AT(ckpt_place, to, 8),
    AT(ckpt_place, from_byte, 16),
    AT(ckpt_place, bytes, 24),
    AT(ckpt_place, image_byte, 32),
    SIZE(ckpt_place, 40),
    AT(ckpt_object, size, 0),
    AT(ckpt_object, name, 8),
    AT(ckpt_object, memory, 16),
    AT(ckpt_object, room, 24),
    AT(ckpt_object, stored, 32),
    SIZE(ckpt_object, 224),
    AT(ckpt_memory_hooks, size, 0),
    AT(ckpt_memory_hooks, came, 8),
    AT(ckpt_memory_hooks, goes, 16),
    AT(ckpt_memory_hooks, copy, 24),
    AT(ckpt_memory_hooks, copied, 32),
    AT(ckpt_memory_hooks, user, 40),
    AT(ckpt_memory_hooks, memory_node, 48),
    SIZE(ckpt_memory_hooks, 56),
};

TEST(test_abi__fields_keep_their_places)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].is != fields[i].was)
            fail_msg("%s is %zu and was %zu", fields[i].name, fields[i].is, fields[i].was);
}

/* The names of CKPT_1, which tests/integration/install.sh finds in the library and in ckpt.h. */
TEST(test_abi__functions_keep_their_names)
{
    static const char *const names[] = {
        "attempt_open", "close",      "describe",   "error",       "load",      "loaded_free",
        "open",         "phase",      "save_abort", "save_begin",  "save_copy", "save_durability",
        "save_end",     "save_order", "save_wait",  "save_warning"};
    char map[4096], line[64];
    FILE *file = fopen("clients/libckpt.map", "r");
    assert_non_null(file);
    map[fread(map, 1, sizeof map - 1, file)] = '\0';
    fclose(file);
    const char *first = strstr(map, "CKPT_1 {"), *end = strstr(map, "local:");
    size_t count = 0;
    assert_true(first != NULL && end > first);
    for (const char *at = strchr(first, ';'); at != NULL && at < end; at = strchr(at + 1, ';'))
        count++;
    assert_int_equal(count, sizeof names / sizeof *names); /* none was added to a closed version */
    assert_true(version_1.open == ckpt_open && version_1.phase == ckpt_phase);
    assert_int_equal(sizeof version_1 / sizeof version_1.error, sizeof names / sizeof *names);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(line, sizeof line, "    ckpt_%s;\n", names[i]);
        const char *at = strstr(first, line);
        assert_true(at != NULL && at < end);
    }
}

/* Every call that takes a handle or a save. */
static void calls_are_invalid(struct ckpt *ckpt, struct ckpt_save *save)
{
    uint64_t number = 0;
    const struct ckpt_load_options options = {.step = CKPT_NEWEST};
    const struct ckpt_load_request request = {.size = sizeof request, .step = CKPT_NEWEST};
    struct ckpt_loaded *loaded;
    struct ckpt_metadata *metadata;
    struct ckpt_list *list;
    struct ckpt_info info;
    struct ckpt_save *begun;
    struct ckpt_place place = {.size = sizeof place};
    struct ckpt_span span;
    uint32_t count = 0;
    double seconds;
    void *object;
    const int errors[] = {ckpt_attempt_open(ckpt, &number, NULL, NULL),
                          ckpt_attempt_take(ckpt, &number, NULL, NULL, 0),
                          ckpt_describe(ckpt, 1, NULL, 0),
                          ckpt_describe_arrays(ckpt, 1, NULL, 0),
                          ckpt_move(ckpt, 0, NULL),
                          ckpt_find_still(ckpt, &count, &seconds, 1),
                          ckpt_load(ckpt, &options, &loaded),
                          ckpt_load_arrays(ckpt, &request, &loaded),
                          ckpt_metadata(ckpt, CKPT_NEWEST, 0, &metadata),
                          ckpt_list(ckpt, false, &list),
                          ckpt_newer(ckpt, 0, 0, 0, &info),
                          ckpt_pin(ckpt, 1, 1, NULL),
                          ckpt_hook_memory(ckpt, NULL),
                          ckpt_save_begin(ckpt, &begun, 1, NULL),
                          ckpt_save_begin_within(ckpt, &begun, 1, NULL, 0),
                          ckpt_save_make_way(ckpt, &number),
                          ckpt_save_wait(ckpt, 1, 0),
                          ckpt_object_load(ckpt, CKPT_NEWEST, 0, "name", &object, &number),
                          ckpt_save_wait_for(ckpt, 1, CKPT_LEVEL_LOCAL, 0),
                          ckpt_save_place(save, 0, 0, &place),
                          ckpt_save_announce(save, &place),
                          ckpt_save_digest(save, 0, (uint64_t[2]){0}),
                          ckpt_save_sample(save, 0, &span, &count),
                          ckpt_save_sampled(save, 0, &span),
                          ckpt_save_failed(ckpt, 1, "why"),
                          ckpt_save_copy(save, 0),
                          ckpt_save_end(save)};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        assert_int_equal(errors[i], CKPT_INVALID);
    assert_non_null(strstr(ckpt_error(), "no save"));
    assert_string_equal(ckpt_save_warning(ckpt), "");
    assert_string_equal(ckpt_save_durability(ckpt), "");
    assert_int_equal(ckpt_asked(ckpt), 0);
    assert_true(ckpt_asked_within(ckpt) == INFINITY);
    assert_int_equal(ckpt_saves_asked(ckpt), 0);
    assert_false(ckpt_is_lost(ckpt));
    assert_int_equal(ckpt_renew(ckpt), CKPT_INVALID);
    assert_int_equal(ckpt_room_saves(ckpt), -1);
    assert_true(ckpt_hours_to_full(ckpt) == -1);
    ckpt_phase(ckpt, CKPT_PHASE_QUIET);
    struct ckpt_doing doing = {.size = sizeof doing, .number = 1, .what = "wait", .lane = "main"};
    ckpt_note_call(ckpt, &doing);
    ckpt_note_lane(ckpt, &doing);
    ckpt_note_end(ckpt, 1);
    ckpt_note_alive(ckpt);
    ckpt_save_abort(save);
    ckpt_save_last(ckpt);
    ckpt_compares_replicas(ckpt);
    assert_false(ckpt_save_is_window(save));
    assert_int_equal(ckpt_save_order(ckpt, 3), 3);
    ckpt_close(ckpt);
}

TEST(test_abi__calls_without_a_handle_are_invalid)
{
    calls_are_invalid(NULL, NULL);
}

TEST(test_abi__calls_of_a_closed_handle_are_invalid)
{
    const struct ckpt_options options = {
        .server = "dir:/tmp", .run = "none", .rank = 0, .world_size = 1};
    struct ckpt *closed, *open;
    assert_int_equal(ckpt_open(&closed, &options), 0);
    assert_int_equal(ckpt_open(&open, &options), 0);
    ckpt_close(closed);
    /* Such a call must not read the former handle: a sanitizer detects it. */
    calls_are_invalid(closed, (struct ckpt_save *)closed);
    assert_int_equal(ckpt_list(open, false, &(struct ckpt_list *){NULL}), CKPT_NOT_FOUND);
    ckpt_close(open);
}

SUITE(NULL, NULL)
