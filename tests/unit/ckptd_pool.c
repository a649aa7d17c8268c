/* ckptd_pool.c - the segments that images are made of.
 *
 * Goal: a segment cannot be resized, is backed by memory, is lent to one rank at a time, never
 * shows one run the bytes of another, and is unreachable for its former writers. A pool is filled
 * after its opening; a request for a segment fills it earlier; a pool that cannot be filled reports
 * it. Method: a pool of four small segments, no storage; the linker sends fallocate() and fopen()
 * through this file, which refuses memory and sets the host's size. It also replaces syscall(): a
 * host may have two NUMA nodes, and takes memory from the first by default. */
#include "ckptd/core/loop.h"
#include "ckptd/memory/pool.h"
#include "proto/base/report.h"
#include "proto/wire/arena.h"
#include "tests/unit/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEGMENT (1u << 20)
#define COUNT 4u
#define LOAD_OF(run_tag) ((struct pool_owner){.run = (run_tag)})
#define RANKS_OF(run_tag, number) ((struct pool_owner){.run = (run_tag), .attempt = (number)})

/* ---- between the pool and the system ---- */

static atomic_int refusal;            /* errno of fallocate(); 0: none */
static atomic_uint num_backed;        /* calls of it */
static atomic_ullong available_bytes; /* the contents of /proc/meminfo; 0: the real ones */

int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    num_backed++;
    if (refusal == 0)
        return __real_fallocate(fd, mode, offset, bytes);
    errno = refusal;
    return -1;
}

static bool has_two_nodes, refuses_policies;
static struct {
    const void *base;
    uint32_t node;   /* that its memory is to be taken from */
    unsigned backed; /* calls of fallocate() until then */
} told[8];
static uint32_t num_told;

static uint32_t node_told(const void *base)
{
    for (uint32_t i = num_told; i-- > 0;)
        if (told[i].base == base)
            return told[i].node;
    return 0;
}

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f)
{
    if (number == SYS_mbind && refuses_policies) {
        errno = EPERM;
        return -1;
    }
    if (has_two_nodes && number == SYS_mbind) {
        unsigned long nodes = *(unsigned long *)d;
        assert_true(b == SEGMENT && c == 1 && (nodes == 1 || nodes == 2) && num_told < 8);
        told[num_told].backed = num_backed;
        told[num_told].base = (void *)a;
        told[num_told++].node = nodes == 2;
        return 0;
    }
    if (has_two_nodes && number == SYS_get_mempolicy) {
        *(int *)a = (int)node_told((void *)d);
        return 0;
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
    if (available_bytes == 0 || strcmp(path, "/proc/meminfo") != 0)
        return __real_fopen(path, mode);
    static char text[64];
    int length = snprintf(text, sizeof text, "MemTotal: 1 kB\nMemAvailable: %llu kB\n",
                          available_bytes >> 10);
    return fmemopen(text, (size_t)length, "r");
}

/* ---- the bed ---- */

static int set_up_bare(void **state)
{
    refusal = 0;
    available_bytes = 0;
    has_two_nodes = refuses_policies = false;
    num_told = 0;
    return pool_open((struct pool **)state, COUNT * SEGMENT, SEGMENT, true, NULL);
}

static int set_up(void **state)
{
    int error = set_up_bare(state);
    for (bool more = error == 0; more && error == 0;)
        error = pool_renew(*state, &more);
    return error;
}

static int tear_down(void **state)
{
    pool_close(*state);
    return 0;
}

/* Was there something to do? */
static bool renews(struct pool *pool)
{
    bool more;
    assert_int_equal(pool_renew(pool, &more), 0);
    return more;
}

static void assert_zeros(const struct pool *pool)
{
    for (uint32_t i = 0; i < COUNT; i++)
        for (uint32_t b = 0; b < SEGMENT; b++)
            assert_int_equal(pool_base(pool, i)[b], 0);
}

#define FULL_TEST(name) TEST_WITH(struct pool *pool, name, set_up, tear_down)

FULL_TEST(test_pool__all_or_nothing_is_taken)
{
    uint32_t first[COUNT], second[COUNT];
    assert_int_equal(pool_take(pool, first, 3, LOAD_OF(1)), 0);
    assert_int_equal(pool_free_count(pool), 1);
    assert_int_equal(pool_take(pool, second, 2, LOAD_OF(1)), ERR_BUSY);
    assert_int_equal(pool_free_count(pool), 1);
    assert_int_equal(pool_take(pool, second, 1, LOAD_OF(1)), 0);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_not_equal(first[i], second[0]);
    pool_give(pool, first, 3);
    pool_give(pool, second, 1);
    assert_int_equal(pool_free_count(pool), COUNT);
}

FULL_TEST(test_pool__a_segment_is_backed_and_sealed)
{
    struct stat info;
    int fd = pool_fd(pool, 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_true(info.st_size == SEGMENT && info.st_blocks * 512 >= SEGMENT);
    const int need = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    assert_int_equal(fcntl(fd, F_GET_SEALS) & need, need);
    assert_int_not_equal(ftruncate(fd, SEGMENT / 2), 0);
    assert_int_not_equal(ftruncate(fd, 2 * SEGMENT), 0);
}

FULL_TEST(test_pool__a_reader_cannot_map_for_writing)
{
    int fd = pool_fd_read_only(pool, 1);
    assert_true(mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    void *map = mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    pool_base(pool, 1)[77] = 7;
    assert_int_equal(((uint8_t *)map)[77], 7); /* the same memory */
    munmap(map, SEGMENT);
}

FULL_TEST(test_pool__another_run_finds_zeros)
{
    uint32_t segments[COUNT];
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(1)), 0);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    memset(pool_base(pool, segments[2]), 0xab, SEGMENT);
    pool_give(pool, segments, COUNT);
    /* Taken for run 2 and given back unused: it is still dirty for run 2 the next time. */
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(2)), 0);
    assert_true(pool_is_dirty(pool, segments, COUNT));
    pool_give(pool, segments, COUNT);
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(2)), 0);
    assert_true(pool_is_dirty(pool, segments, COUNT));
    assert_int_equal(pool_clean(pool, segments, COUNT), 0);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    assert_zeros(pool);
    pool_give(pool, segments, COUNT);
}

FULL_TEST(test_pool__the_same_run_keeps_its_bytes)
{
    uint32_t segments[COUNT];
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(5)), 0);
    uint32_t marked = segments[0];
    pool_base(pool, marked)[0] = 1;
    pool_give(pool, segments, COUNT);
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(5)), 0);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    assert_int_equal(pool_base(pool, marked)[0], 1);
    pool_give(pool, segments, COUNT);
}

/* Of one segment, as a rank has it. */
static uint8_t *map_writable(const struct pool *pool, uint32_t segment)
{
    void *map = mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd(pool, segment), 0);
    assert_true(map != MAP_FAILED);
    return map;
}

TEST(test_pool__another_attempt_or_a_load_is_out_of_reach_of_the_ranks_before)
{
    const struct pool_owner next[] = {RANKS_OF(1, 2), LOAD_OF(1)};
    for (int i = 0; i < 2; i++) {
        struct pool *pool;
        uint32_t segments[COUNT];
        struct stat info;
        assert_int_equal(set_up((void **)&pool), 0);
        assert_int_equal(pool_take(pool, segments, COUNT, RANKS_OF(1, 1)), 0);
        assert_false(pool_is_dirty(pool, segments, COUNT));
        uint8_t *former = map_writable(pool, segments[1]), *base = pool_base(pool, segments[1]);
        int former_fd = dup(pool_fd(pool, segments[1]));
        memset(former, 7, SEGMENT);
        assert_int_equal(base[5], 7);
        pool_give(pool, segments, COUNT);
        assert_int_equal(pool_take(pool, segments, COUNT, next[i]), 0);
        assert_true(pool_is_dirty(pool, segments, COUNT));
        assert_int_equal(pool_clean(pool, segments, COUNT), 0);
        assert_false(pool_is_dirty(pool, segments, COUNT));
        assert_zeros(pool);
        assert_int_equal(fstat(former_fd, &info), 0);
        assert_int_equal(info.st_blocks, 0); /* its memory is the system's again */
        uint8_t *now = map_writable(pool, segments[1]);
        memset(now, 9, SEGMENT);
        memset(former, 8, SEGMENT / 2);
        assert_int_equal(madvise(former, SEGMENT, MADV_REMOVE), 0);
        assert_ptr_equal(pool_base(pool, segments[1]), base); /* images keep addresses */
        for (uint32_t b = 0; b < SEGMENT; b++)
            assert_int_equal(base[b], 9);
        munmap(former, SEGMENT);
        munmap(now, SEGMENT);
        close(former_fd);
        pool_give(pool, segments, COUNT);
        assert_int_equal(pool_take(pool, segments, COUNT, next[i]), 0); /* no other rank wrote */
        assert_false(pool_is_dirty(pool, segments, COUNT));
        pool_close(pool);
    }
}

FULL_TEST(test_pool__what_needs_no_cleaning_is_taken_first)
{
    uint32_t first[2], second[2], again[2];
    for (uint32_t round = 0; round < 3; round++) {
        assert_int_equal(pool_take(pool, first, 2, RANKS_OF(1, 1)), 0);
        assert_int_equal(pool_take(pool, second, 2, RANKS_OF(2, 1)), 0);
        pool_give(pool, first, 2);
        pool_give(pool, second, 2);
    }
    assert_int_equal(pool_ready_for(pool, RANKS_OF(1, 1)), 2);
    assert_int_equal(pool_ready_for(pool, RANKS_OF(1, 2)), 0);
    assert_int_equal(pool_take(pool, again, 2, RANKS_OF(1, 1)), 0);
    assert_false(pool_is_dirty(pool, again, 2)); /* its own, though the others were next */
    pool_give(pool, again, 2);
    assert_int_equal(pool_take(pool, again, 2, RANKS_OF(2, 1)), 0);
    assert_false(pool_is_dirty(pool, again, 2));
    pool_give(pool, again, 2);
}

FULL_TEST(test_pool__what_ranks_left_is_renewed_before_somebody_asks)
{
    uint32_t kept[1], given[3], all[3], rounds = 0;
    assert_int_equal(pool_take(pool, kept, 1, RANKS_OF(1, 1)), 0);
    assert_int_equal(pool_take(pool, given, 3, RANKS_OF(1, 1)), 0);
    int fd = pool_fd(pool, kept[0]);
    assert_false(pool_disown(pool, RANKS_OF(1, 1))); /* all are in use */
    assert_false(renews(pool));
    pool_give(pool, given, 3);
    assert_false(pool_disown(pool, RANKS_OF(1, 2)));
    assert_true(pool_disown(pool, RANKS_OF(1, 1)));
    while (renews(pool))
        rounds++;
    assert_int_equal(rounds, 3);
    assert_int_equal(pool_fd(pool, kept[0]), fd); /* an image that stays in memory keeps its own */
    assert_false(pool_is_dirty(pool, kept, 1));
    assert_int_equal(pool_take(pool, all, 3, RANKS_OF(1, 2)), 0);
    assert_false(pool_is_dirty(pool, all, 3));
    pool_give(pool, all, 3);
    pool_give(pool, kept, 1);
}

/* ---- filling ---- */

static uint64_t bytes_taken(const struct pool *pool, uint32_t segment)
{
    struct stat info;
    assert_int_equal(fstat(pool_fd(pool, segment), &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

#define POOL_TEST(name) TEST_WITH(struct pool *pool, name, set_up_bare, tear_down)

POOL_TEST(test_pool__opening_takes_no_memory_and_renewing_takes_all)
{
    const uint32_t all[COUNT] = {0, 1, 2, 3};
    uint32_t rounds = 0;
    assert_int_equal(pool_free_count(pool), COUNT); /* ranks are not told that the pool is busy */
    assert_int_equal(pool_ready_count(pool), 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(pool_is_dirty(pool, &i, 1));
        assert_int_equal(bytes_taken(pool, i), 0);
    }
    while (renews(pool))
        assert_int_equal(pool_ready_count(pool), ++rounds);
    assert_int_equal(rounds, COUNT);
    assert_false(pool_is_dirty(pool, all, COUNT));
    for (uint32_t i = 0; i < COUNT; i++)
        assert_true(bytes_taken(pool, i) >= SEGMENT);
    assert_zeros(pool);
}

POOL_TEST(test_pool__what_is_ready_is_taken_first_and_the_rest_from_the_other_end)
{
    uint32_t ready[1], bare[2], last;
    assert_int_equal(pool_ready_for(pool, LOAD_OF(1)), 0);
    assert_true(renews(pool));
    assert_int_equal(pool_ready_for(pool, LOAD_OF(1)), 1);
    assert_int_equal(pool_take(pool, ready, 1, LOAD_OF(1)), 0);
    assert_int_equal(pool_ready_for(pool, LOAD_OF(1)), 0);
    assert_false(pool_is_dirty(pool, ready, 1));
    assert_int_equal(ready[0], COUNT - 1);
    assert_int_equal(pool_take(pool, bare, 2, LOAD_OF(1)), 0);
    assert_true(pool_is_dirty(pool, &bare[0], 1) && pool_is_dirty(pool, &bare[1], 1));
    assert_int_equal(bare[0] + bare[1], 0 + 1); /* where filling comes last */
    assert_int_equal(pool_clean(pool, bare, 2), 0);
    assert_false(pool_is_dirty(pool, bare, 2));
    assert_int_equal(pool_ready_count(pool), 3);
    assert_true(renews(pool)); /* the one that is left */
    assert_false(renews(pool));
    assert_int_equal(pool_ready_count(pool), COUNT);
    assert_int_equal(pool_take(pool, &last, 1, LOAD_OF(1)), 0);
    assert_false(pool_is_dirty(pool, &last, 1));
}

/* Owners that came and went before there was memory have left no data in it. */
POOL_TEST(test_pool__a_bare_segment_is_filled_once_whoever_had_it)
{
    uint32_t segments[COUNT], generations[COUNT];
    for (uint64_t attempt = 1; attempt <= 2; attempt++) {
        assert_int_equal(pool_take(pool, segments, COUNT, RANKS_OF(1, attempt)), 0);
        pool_give(pool, segments, COUNT);
    }
    pool_disown(pool, RANKS_OF(1, 2));
    assert_int_equal(pool_take(pool, segments, COUNT, LOAD_OF(2)), 0);
    num_backed = 0;
    assert_int_equal(pool_clean(pool, segments, COUNT), 0);
    assert_int_equal(num_backed, COUNT);
    assert_false(pool_is_dirty(pool, segments, COUNT));
    pool_generations(pool, generations, segments, COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(generations[i], 0);
    assert_false(renews(pool));
}

/* Renewing may fail and be abandoned; filling continues in any case. */
POOL_TEST(test_pool__it_is_filled_before_anything_is_renewed)
{
    uint32_t left, generation;
    assert_true(renews(pool));
    assert_int_equal(pool_take(pool, &left, 1, RANKS_OF(1, 1)), 0);
    assert_false(pool_is_dirty(pool, &left, 1));
    pool_give(pool, &left, 1);
    assert_true(pool_disown(pool, RANKS_OF(1, 1)));
    for (uint32_t i = 1; i < COUNT; i++) {
        assert_true(renews(pool));
        assert_int_equal(pool_ready_count(pool), i + 1);
    }
    assert_true(renews(pool));
    pool_generations(pool, &generation, &left, 1);
    assert_int_equal(generation, 1);
    assert_false(renews(pool));
}

POOL_TEST(test_pool__memory_that_is_refused_is_told_and_may_be_asked_for_again)
{
    uint32_t segments[2];
    bool more = true;
    assert_true(renews(pool));
    refusal = ENOSPC;
    assert_int_equal(pool_renew(pool, &more), ERR_MEMORY);
    assert_false(more);
    assert_non_null(strstr(report_hint(), "memory.pool_bytes"));
    assert_int_equal(pool_take(pool, segments, 2, LOAD_OF(1)), 0);
    assert_int_equal(pool_clean(pool, segments, 2), ERR_MEMORY);
    assert_true(pool_is_dirty(pool, segments, 2));
    assert_int_equal(pool_ready_count(pool), 1);
    refusal = 0;
    assert_int_equal(pool_clean(pool, segments, 2), 0);
    while (renews(pool))
        continue;
    assert_int_equal(pool_ready_count(pool), COUNT);
}

POOL_TEST(test_pool__memory_that_others_took_meanwhile_is_not_taken)
{
    bool more;
    assert_true(renews(pool));
    num_backed = 0;
    available_bytes = ARENA_BESIDE_BYTES + (COUNT - 1) * SEGMENT; /* just all that is left */
    assert_int_equal(pool_renew(pool, &more), ERR_MEMORY);
    assert_int_equal(num_backed, 0);
    assert_non_null(strstr(report_message(), "4 MiB, 3 of them still to be taken"));
    available_bytes += 1024;
    for (uint32_t i = 1; i < COUNT; i++) {
        assert_true(renews(pool));
        available_bytes -= SEGMENT; /* as the host says, then */
    }
    available_bytes = 0;
    assert_int_equal(pool_ready_count(pool), COUNT);
}

/* One of several concurrent fillers; all of them end when nothing is left. */
static void *fill_main(void *pool)
{
    bool more = true;
    int error = 0;
    while (more && error == 0)
        error = pool_renew(pool, &more);
    return (void *)(intptr_t)error;
}

static void join_well(pthread_t filler)
{
    void *error;
    pthread_join(filler, &error);
    assert_null(error);
}

/* And a waiter does not fill a segment that is in use already. */
TEST(test_pool__filled_by_several_at_once_it_is_filled_once)
{
    for (uint32_t round = 0; round < 50; round++) {
        struct pool *pool = NULL;
        pthread_t fillers[3];
        uint32_t taken[8];
        assert_int_equal(pool_open(&pool, 16 * SEGMENT, SEGMENT, false, NULL), 0);
        num_backed = 0;
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(pthread_create(&fillers[i], NULL, fill_main, pool), 0);
        assert_int_equal(pool_take(pool, taken, 8, RANKS_OF(1, 1)), 0);
        for (uint32_t i = 0; i < 8; i++) {
            assert_int_equal(pool_clean(pool, &taken[i], 1), 0);
            assert_false(pool_is_dirty(pool, &taken[i], 1));
            pool_base(pool, taken[i])[i] = 7;
        }
        for (uint32_t i = 0; i < 3; i++)
            join_well(fillers[i]);
        assert_int_equal(pool_ready_count(pool), 16);
        assert_int_equal(num_backed, 16);
        for (uint32_t i = 0; i < 8; i++)
            assert_int_equal(pool_base(pool, taken[i])[i], 7);
        pool_close(pool);
    }
}

/* ---- access by others ---- */

/* Can user `uid`, who got the descriptor, reopen it for writing? 2: he cannot reopen any
 * descriptor. */
static int open_again_as(uid_t uid, int fd)
{
    char path[64], control[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(control, sizeof control, "/proc/self/fd/%d", memfd_create("control", 0));
    if (setgid(uid) != 0 || setuid(uid) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0 ||
        open(control, O_RDWR) < 0)
        return 2;
    return open(path, O_RDWR) >= 0;
}

FULL_TEST(test_pool__another_user_cannot_open_for_writing_what_he_may_read)
{
    int status;
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    pid_t child = fork();
    if (child == 0)
        _exit(open_again_as(65534, pool_fd_read_only(pool, 0)));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* "ShmemPmdMapped" of the mapping at `base`, in bytes: the kernel maps so much in pages of 2
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

TEST(test_pool__what_it_calls_huge_pages_are_huge_pages)
{
    struct pool *pool = NULL;
    uint64_t bytes = 3 * ARENA_HUGE_BYTES, mapped = 0;
    assert_int_equal(pool_open(&pool, 2 * bytes, bytes, true, NULL), 0);
    while (renews(pool))
        continue;
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal((uintptr_t)pool_base(pool, i) % ARENA_HUGE_BYTES, 0);
        mapped += mapped_in_huge_pages(pool_base(pool, i));
        for (uint64_t at = 0; at < bytes; at++)
            assert_int_equal(pool_base(pool, i)[at], 0);
    }
    uint64_t said = pool_huge_bytes(pool);
    pool_close(pool);
    assert_int_equal(mapped, said);
    assert_int_equal(pool_open(&pool, bytes, bytes, false, NULL), 0); /* not requested: none */
    while (renews(pool))
        continue;
    mapped = mapped_in_huge_pages(pool_base(pool, 0));
    assert_int_equal(pool_huge_bytes(pool), 0);
    pool_close(pool);
    assert_int_equal(mapped, 0);
    if (said == 0) {
        print_message("# the kernel gave no pages of 2 MiB\n");
        skip();
    }
}

/* ---- NUMA nodes ---- */

#define NEAR(run_tag, number, node) \
    ((struct pool_owner){.run = (run_tag), .attempt = (number), .memory_node = 1 + (node)})

POOL_TEST(test_pool__a_bare_segment_is_placed_on_the_node_that_is_wanted)
{
    uint32_t segments[2], generations[2];
    has_two_nodes = true;
    num_backed = 0;
    assert_int_equal(pool_take(pool, segments, 2, NEAR(1, 1, 1)), 0);
    assert_int_equal(pool_clean(pool, segments, 2), 0);
    assert_int_equal(num_told, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(told[i].backed, i); /* before its own memory */
        assert_ptr_equal(told[i].base, pool_base(pool, segments[i]));
        assert_int_equal(node_told(told[i].base), 1);
    }
    pool_generations(pool, generations, segments, 2);
    assert_int_equal(generations[0] + generations[1], 0);
    has_two_nodes = false;
}

POOL_TEST(test_pool__a_segment_that_lies_elsewhere_is_made_anew_once)
{
    uint32_t segment, generation;
    has_two_nodes = true;
    while (renews(pool)) /* in the background, on the first node */
        continue;
    assert_int_equal(num_told, 0);
    assert_int_equal(pool_ready_for(pool, NEAR(1, 1, 0)), COUNT);
    assert_int_equal(pool_ready_for(pool, NEAR(1, 1, 1)), 0);
    assert_int_equal(pool_take(pool, &segment, 1, NEAR(1, 1, 1)), 0);
    assert_true(pool_is_dirty(pool, &segment, 1));
    num_backed = 0;
    assert_int_equal(pool_clean(pool, &segment, 1), 0);
    pool_generations(pool, &generation, &segment, 1);
    assert_int_equal(generation, 1);
    assert_true(num_told == 1 && told[0].node == 1);
    assert_true(told[0].backed == 1 && num_backed == 2); /* between the old memory and the new */
    assert_false(pool_is_dirty(pool, &segment, 1));
    pool_give(pool, &segment, 1);
    assert_int_equal(pool_ready_for(pool, NEAR(1, 1, 1)), 1);
    assert_int_equal(pool_ready_for(pool, NEAR(1, 1, 0)), COUNT - 1);
    has_two_nodes = false;
}

/* It is requested once. */
POOL_TEST(test_pool__where_the_kernel_refuses_segments_stay_where_they_are)
{
    uint32_t segment, before, after;
    refuses_policies = true;
    assert_int_equal(pool_take(pool, &segment, 1, NEAR(1, 1, 5)), 0);
    assert_int_equal(pool_clean(pool, &segment, 1), 0);
    pool_generations(pool, &before, &segment, 1);
    pool_give(pool, &segment, 1);
    assert_int_equal(pool_take(pool, &segment, 1, NEAR(1, 1, 5)), 0);
    assert_false(pool_is_dirty(pool, &segment, 1));
    assert_int_equal(pool_clean(pool, &segment, 1), 0);
    pool_generations(pool, &after, &segment, 1);
    assert_int_equal(after, before);
}

/* By the kernel that runs this. */
POOL_TEST(test_pool__the_kernel_has_the_node_of_a_segment)
{
    uint32_t segment;
    int policy = 0, node = -1;
    unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {0};
    assert_int_equal(pool_take(pool, &segment, 1, NEAR(1, 1, 0)), 0);
    assert_int_equal(pool_clean(pool, &segment, 1), 0);
    long at = (long)pool_base(pool, segment);
    if (__real_syscall(SYS_get_mempolicy, (long)&policy, (long)nodes, 1024, at, 2, 0) != 0) {
        print_message("# the kernel does not tell policies: %s\n", strerror(errno));
        skip();
    }
    assert_int_equal(policy, 1); /* MPOL_PREFERRED */
    assert_int_equal(nodes[0], 1);
    assert_int_equal(__real_syscall(SYS_get_mempolicy, (long)&node, 0, 0, at, 3, 0), 0);
    assert_int_equal(node, 0);
}

TEST(test_pool__more_memory_than_there_is_is_refused_in_words)
{
    struct pool *pool = NULL;
    assert_int_equal(pool_open(&pool, 1ull << 60, 1ull << 50, true, NULL), ERR_MEMORY);
    assert_null(pool);
    assert_non_null(strstr(report_hint(), "memory.pool_bytes"));
}

SUITE(NULL, NULL)
