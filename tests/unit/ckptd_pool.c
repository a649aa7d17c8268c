/* ckptd_pool.c - the segments that images are made of.
 *
 * Goal: a segment cannot be resized, is backed by memory, is lent to one at a time, and never shows
 * one run the bytes of another. Method: a pool of four small segments, no storage. */
#include "ckptd/ckptd.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SEGMENT (1u << 20)
#define COUNT 4u

static int set_up(void **state)
{
    return pool_open((struct pool **)state, COUNT * SEGMENT, SEGMENT, true, NULL);
}

static int tear_down(void **state)
{
    pool_close(*state);
    return 0;
}

static void test_pool__all_or_nothing_is_taken(void **state)
{
    struct pool *pool = *state;
    uint32_t first[COUNT], second[COUNT];
    assert_int_equal(pool_take(pool, first, 3, 1), 0);
    assert_int_equal(pool_free_count(pool), 1);
    assert_int_equal(pool_take(pool, second, 2, 1), ERR_BUSY);
    assert_int_equal(pool_free_count(pool), 1);
    assert_int_equal(pool_take(pool, second, 1, 1), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_not_equal(first[i], second[0]);
    pool_give(pool, first, 3);
    pool_give(pool, second, 1);
    assert_int_equal(pool_free_count(pool), COUNT);
}

static void test_pool__a_segment_is_backed_and_sealed(void **state)
{
    struct pool *pool = *state;
    struct stat info;
    int fd = pool_fd(pool, 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_true(info.st_size == SEGMENT && info.st_blocks * 512 >= SEGMENT);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_not_equal(ftruncate(fd, SEGMENT / 2), 0);
    assert_int_not_equal(ftruncate(fd, 2 * SEGMENT), 0);
}

static void test_pool__a_reader_cannot_map_for_writing(void **state)
{
    struct pool *pool = *state;
    int fd = pool_fd_read_only(pool, 1);
    assert_true(mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    void *map = mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    pool_base(pool, 1)[77] = 7;
    assert_int_equal(((uint8_t *)map)[77], 7); /* the same memory */
    munmap(map, SEGMENT);
}

static void test_pool__another_run_finds_zeros(void **state)
{
    struct pool *pool = *state;
    uint32_t segments[COUNT];
    assert_int_equal(pool_take(pool, segments, COUNT, 1), 0);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    memset(pool_base(pool, segments[2]), 0xab, SEGMENT);
    pool_give(pool, segments, COUNT);
    /* Taken for run 2 and given back unused: it is still dirty for run 2 the next time. */
    assert_int_equal(pool_take(pool, segments, COUNT, 2), 0);
    assert_true(pool_is_dirty(pool, segments, COUNT));
    pool_give(pool, segments, COUNT);
    assert_int_equal(pool_take(pool, segments, COUNT, 2), 0);
    assert_true(pool_is_dirty(pool, segments, COUNT));
    pool_clean(pool, segments, COUNT);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t b = 0; b < SEGMENT; b++)
            assert_int_equal(pool_base(pool, i)[b], 0);
    pool_give(pool, segments, COUNT);
}

static void test_pool__the_same_run_keeps_its_bytes(void **state)
{
    struct pool *pool = *state;
    uint32_t segments[COUNT];
    assert_int_equal(pool_take(pool, segments, COUNT, 5), 0);
    pool_base(pool, segments[0])[0] = 1;
    pool_give(pool, segments, COUNT);
    assert_int_equal(pool_take(pool, segments, COUNT, 5), 0);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    pool_give(pool, segments, COUNT);
}

/* "ShmemPmdMapped" of the mapping at `base`, in bytes: what the kernel says it maps in pages of 2
 * MiB. */
static uint64_t mapped_in_huge_pages(const uint8_t *base)
{
    char line[512];
    unsigned long start, end, kib = 0;
    bool here = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            here = start == (uintptr_t)base;
        else if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
            break;
    }
    fclose(file);
    return (uint64_t)kib << 10;
}

static void test_pool__what_it_calls_huge_pages_are_huge_pages(void **state)
{
    struct pool *pool = NULL;
    uint64_t bytes = 3 * ARENA_HUGE_BYTES, mapped = 0;
    (void)state;
    assert_int_equal(pool_open(&pool, 2 * bytes, bytes, true, NULL), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal((uintptr_t)pool_base(pool, i) % ARENA_HUGE_BYTES, 0);
        mapped += mapped_in_huge_pages(pool_base(pool, i));
        for (uint64_t at = 0; at < bytes; at++)
            assert_int_equal(pool_base(pool, i)[at], 0);
    }
    uint64_t said = pool_huge_bytes(pool);
    pool_close(pool);
    assert_int_equal(mapped, said);
    assert_int_equal(pool_open(&pool, bytes, bytes, false, NULL), 0); /* not wanted: none */
    mapped = mapped_in_huge_pages(pool_base(pool, 0));
    assert_int_equal(pool_huge_bytes(pool), 0);
    pool_close(pool);
    assert_int_equal(mapped, 0);
    if (said == 0) {
        print_message("# the kernel gave no pages of 2 MiB\n");
        skip();
    }
}

static void test_pool__more_memory_than_there_is_is_refused_in_words(void **state)
{
    struct pool *pool = NULL;
    (void)state;
    assert_int_equal(pool_open(&pool, 1ull << 60, 1ull << 50, true, NULL), ERR_MEMORY);
    assert_null(pool);
    assert_non_null(strstr(report_hint(), "memory.pool_bytes"));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_pool__all_or_nothing_is_taken),
        CASE(test_pool__a_segment_is_backed_and_sealed),
        CASE(test_pool__a_reader_cannot_map_for_writing),
        CASE(test_pool__another_run_finds_zeros),
        CASE(test_pool__the_same_run_keeps_its_bytes),
        cmocka_unit_test(test_pool__what_it_calls_huge_pages_are_huge_pages),
        cmocka_unit_test(test_pool__more_memory_than_there_is_is_refused_in_words),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
