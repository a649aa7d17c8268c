/* storage_memory.c - behaviour of the memory back-end alone: its limits.
 *
 * Goal: a full tier is refused, not swapped; space comes back; a name that a move makes too long is
 * refused, and nothing has moved. Method: stores of a few pages. storage_contract.c tests the
 * behaviour that all back-ends share. */
#include "tests/unit/storage_bed.h"
#include "tests/unit/suite.h"

TEST(test_memory__refuses_more_than_its_limit_and_frees_what_is_removed)
{
    struct storage *storage;
    struct storage_object *object;
    struct storage_space space;
    assert_int_equal(storage_open(&storage, &storage_memory, "16384", NULL), 0);
    bed_put(storage, NULL, "a", 12288, 1);
    assert_int_equal(storage_object_create(storage, &object, "b", 8192), ERR_SPACE);
    char text[4097] = "";
    assert_int_equal(storage_publish(storage, "c", text, sizeof(text)), ERR_SPACE);
    assert_false(bed_exists(storage, "b"));
    assert_false(bed_exists(storage, "c"));
    assert_int_equal(storage_space(storage, &space), 0);
    assert_int_equal(space.bytes_total, 16384);
    assert_int_equal(space.bytes_free, 4096);
    assert_int_equal(storage_remove(storage, "a"), 0);
    bed_put(storage, NULL, "b", 16384, 2);
    bed_expect(storage, "b", 16384, 2);
    storage_close(storage);
}

TEST(test_memory__removed_object_holds_its_space_until_closed)
{
    struct storage *storage;
    struct storage_object *object;
    struct storage_space space;
    assert_int_equal(storage_open(&storage, &storage_memory, "8192", NULL), 0);
    bed_put(storage, &object, "a", 8192, 1);
    assert_int_equal(storage_remove(storage, "a"), 0);
    assert_int_equal(storage_space(storage, &space), 0);
    assert_int_equal(space.bytes_free, 0);
    storage_object_close(storage, object);
    assert_int_equal(storage_space(storage, &space), 0);
    assert_int_equal(space.bytes_free, 8192);
    storage_close(storage);
}

TEST(test_memory__objects_opened_for_reading_cannot_be_written)
{
    struct storage *storage;
    struct storage_object *object;
    uint64_t bytes;
    unsigned char *data = bed_buffer(4096);
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    bed_put(storage, NULL, "a", 4096, 1);
    assert_int_equal(storage_object_open(storage, &object, "a", &bytes), 0);
    assert_int_equal(storage_transfer(storage, STORAGE_WRITE, object, 0, data, 4096), ERR_IO);
    storage_object_close(storage, object);
    bed_expect(storage, "a", 4096, 1);
    storage_close(storage);
    free(data);
}

TEST(test_memory__a_move_that_makes_a_name_too_long_moves_nothing)
{
    struct storage *storage;
    char below[STORAGE_KEY_MAX + 1] = "a/", away[12 + 1] = "new/";
    memset(below + 2, 'x', sizeof below - 1 - 2 - 8);
    below[200] = below[400] = '/'; /* a component of a name has its own limit */
    memset(away + 4, 'y', sizeof away - 1 - 4);
    assert_int_equal(storage_open(&storage, &storage_memory, "", NULL), 0);
    bed_put(storage, NULL, "a/short", 4096, 1);
    bed_put(storage, NULL, below, 4096, 2);
    assert_int_equal(storage_rename(storage, "a", away), ERR_INVALID);
    assert_false(bed_exists(storage, "new"));
    bed_expect(storage, "a/short", 4096, 1);
    bed_expect(storage, below, 4096, 2);
    away[sizeof away - 1 - 3] = '\0'; /* the longest that fits */
    assert_int_equal(storage_rename(storage, "a", away), 0);
    assert_false(bed_exists(storage, "a"));
    storage_close(storage);
}

TEST(test_memory__refuses_a_limit_that_is_no_number)
{
    struct storage *storage;
    assert_int_equal(storage_open(&storage, &storage_memory, "1GiB", NULL), ERR_INVALID);
    assert_int_equal(storage_open(&storage, &storage_memory, "-1", NULL), ERR_INVALID);
    assert_null(storage);
    assert_non_null(strstr(report_line(), "-1"));
}

SUITE(NULL, NULL)
