/* proto_arena_notes.c - a rank's notes about its current work, and ckptd's report of them.
 *
 * Goal: ckptd reports the call or operation in which a rank died or hangs, and nothing for a rank
 * without notes. For any bytes in the notes the text is short and printable. Method: notes in
 * memory of the test; then any bytes. */
#include "proto/wire/arena_notes.h"
#include "tests/unit/suite.h"

#include <stdlib.h>
#include <string.h>

static struct arena_note call_of(uint64_t number, uint32_t operation)
{
    return (struct arena_note){
        .number = number, .step = 7, .bytes = 4096, .operation = operation, .part = 2};
}

static const struct arena_text gather = {"all_gather", "dp_shard", "gather"},
                               sum = {"all_reduce of integers", "world", "compute"};

/* Without its times. */
static const char *told(struct arena_notes *notes)
{
    static char text[ARENA_TELL_MAX];
    (void)arena_notes_describe(text, notes);
    for (char *at = text; (at = strstr(at, " s")) != NULL; at += 2)
        for (char *digit = at - 1; digit > text && strchr("0123456789.", *digit); digit--)
            *digit = 'N';
    return text;
}

TEST(test_arena_notes__a_call_under_way_is_told)
{
    struct arena_notes notes = {0};
    char text[ARENA_TELL_MAX];
    assert_false(arena_notes_describe(text, &notes));
    assert_string_equal(text, "");
    for (uint64_t number = 1; number <= 20; number++) {
        struct arena_note note = call_of(number, (uint32_t)number);
        arena_note_call(&notes, &note, &gather);
        if (number < 20)
            arena_note_end(&notes, number);
    }
    assert_true(arena_notes_describe(text, &notes));
    assert_string_equal(told(&notes), "step 7, in all_gather of dp_shard (lane gather, operation "
                                      "20, 4096 bytes) for NNN s");
    struct arena_note other = call_of(21, UINT32_MAX);
    arena_note_call(&notes, &other, &sum);
    assert_string_equal(told(&notes),
                        "step 7, in all_gather of dp_shard (lane gather, operation 20, 4096 bytes) "
                        "for NNN s, and in all_reduce of integers of world (lane compute, 4096 "
                        "bytes) for NNN s");
    arena_note_end(&notes, 20);
    arena_note_end(&notes, 4); /* long overwritten: nothing ends */
    assert_string_equal(told(&notes), "step 7, in all_reduce of integers of world (lane compute, "
                                      "4096 bytes) for NNN s");
}

TEST(test_arena_notes__without_a_call_the_operation_is_told)
{
    struct arena_notes notes = {0};
    struct arena_note note = call_of(1, 3);
    arena_note_call(&notes, &note, &gather);
    arena_note_end(&notes, 1);
    assert_string_equal(told(&notes), "step 7, behind all_gather of dp_shard (lane gather, "
                                      "operation 3, 4096 bytes) NNN s ago");
    note.bytes = 0;
    for (uint32_t i = 0; i < 2 * ARENA_LANES; i++) { /* more lanes than there is room for */
        char lane[8] = {'l', (char)('a' + i)};
        arena_note_lane(&notes, &note, &(struct arena_text){"forward", NULL, lane});
    }
    arena_note_lane(&notes, &note, &(struct arena_text){"backward", NULL, "lb"});
    assert_string_equal(told(&notes), "step 7, in backward (lane lb, operation 3) for NNN s");
}

TEST(test_arena_notes__a_rank_that_left_is_no_loss)
{
    struct arena_notes notes = {0};
    struct arena_note note = call_of(1, 3);
    arena_note_call(&notes, &note, &gather);
    assert_false(arena_notes_has_left(&notes));
    arena_note_leave(&notes);
    assert_true(arena_notes_has_left(&notes));
    char text[ARENA_TELL_MAX];
    assert_false(arena_notes_describe(text, &notes));
    assert_string_equal(text, "");
}

TEST(test_arena_notes__a_copy_tells_the_same_in_another_clock)
{
    struct arena_notes notes = {.has_left = 1}, copy = {0};
    struct arena_note note = call_of(1, 3);
    char text[ARENA_TELL_MAX];
    arena_note_call(&notes, &note, &gather);
    arena_note_end(&notes, 1);
    arena_note_lane(&copy, &note, &sum); /* of before: the copy has none */
    arena_notes_copy(&copy, &notes, -3000000000ull);
    assert_true(arena_notes_describe(text, &copy));
    assert_non_null(strstr(text, "step 7, behind all_gather of dp_shard (lane gather, operation 3, "
                                 "4096 bytes) 3."));
    note = call_of(2, 4);
    arena_note_call(&notes, &note, &sum);
    arena_notes_copy(&copy, &notes, -5000000000ull);
    assert_true(arena_notes_describe(text, &copy));
    assert_non_null(strstr(text, "in all_reduce of integers of world (lane compute, operation 4, "
                                 "4096 bytes) for 5."));
    notes.calls[2].number = 0; /* being written */
    arena_notes_copy(&copy, &notes, 0);
    assert_string_equal(told(&copy), "step 7, behind all_gather of dp_shard (lane gather, "
                                     "operation 3, 4096 bytes) NNN s ago");
}

TEST(test_arena_notes__a_copy_has_the_last_sign_of_life_in_another_clock)
{
    struct arena_notes notes = {0}, copy = {0};
    arena_notes_copy(&copy, &notes, 0);
    assert_int_equal(arena_notes_alive_ms(&copy), 0); /* unknown */
    arena_note_alive(&notes);
    uint32_t alive_ms = arena_notes_alive_ms(&notes);
    assert_int_not_equal(alive_ms, 0);
    arena_notes_copy(&copy, &notes, -3000000000ull);
    assert_int_equal(arena_notes_alive_ms(&copy), alive_ms - 3000);
    notes.alive_ms = 0; /* of an older client: the copy keeps what it has */
    arena_notes_copy(&copy, &notes, 0);
    assert_int_equal(arena_notes_alive_ms(&copy), alive_ms - 3000);
}

TEST(test_arena_notes__any_bytes_make_a_short_text)
{
    struct arena_notes notes;
    char text[ARENA_TELL_MAX];
    for (unsigned round = 0; round < 2000; round++) {
        for (size_t i = 0; i < sizeof(notes); i++)
            ((unsigned char *)&notes)[i] = (unsigned char)(rand() % (round % 2 ? 256 : 2) * 255);
        notes.has_left = 0;
        memset(text, 1, sizeof(text));
        (void)arena_notes_describe(text, &notes);
        assert_in_range(strnlen(text, sizeof(text)), 0, sizeof(text) - 1);
        for (const char *c = text; *c != '\0'; c++)
            assert_in_range(*c, ' ', '~');
    }
}

SUITE(NULL, NULL)
