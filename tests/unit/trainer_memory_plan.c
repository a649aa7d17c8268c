/* trainer_memory_plan.c - the static memory plan.
 *
 * Goal: buffers that live at the same time never overlap, buffers that do not may share, addresses
 * stay the same step after step, and kept buffers keep their contents. Method: random schedules of
 * takes and gives (seeded) are recorded, then played twice; every buffer is filled when taken and
 * checked when given back. */
#include "proto/base/report.h"
#include "proto/base/sanitized.h"
#include "tests/unit/shell.h"
#include "tests/unit/suite.h"
#include "trainer/base/memory_check.h"
#include "trainer/base/memory_plan.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NUM_BUFFERS 150u
#define NUM_EVENTS (2 * NUM_BUFFERS)
#define NUM_SCHEDULES 30

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % limit;
}

struct event {
    uint32_t buffer;
    bool is_give;
};

static size_t bytes_of(uint32_t buffer)
{
    return 1 + (buffer * 7919u) % 5000u;
}

/* Each buffer is taken once and given back some time later. */
static void make_schedule(struct event events[NUM_EVENTS])
{
    uint32_t live[NUM_BUFFERS], num_live = 0, num_taken = 0;
    for (uint32_t i = 0; i < NUM_EVENTS; i++) {
        bool may_take = num_taken < NUM_BUFFERS;
        if (may_take && (num_live == 0 || random_below(100) < 55)) {
            events[i] = (struct event){num_taken, false};
            live[num_live++] = num_taken++;
            continue;
        }
        uint32_t at = random_below(num_live);
        events[i] = (struct event){live[at], true};
        live[at] = live[--num_live];
    }
}

static void record(struct memory *memory, const struct event *events)
{
    for (uint32_t i = 0; i < NUM_EVENTS; i++) {
        uint32_t b = events[i].buffer;
        if (events[i].is_give)
            memory_give(memory, "buffer", b);
        else
            assert_null(memory_take(memory, "buffer", b, bytes_of(b)));
    }
}

static void play(struct memory *memory, const struct event *events,
                 unsigned char *addresses[NUM_BUFFERS])
{
    for (uint32_t i = 0; i < NUM_EVENTS; i++) {
        uint32_t b = events[i].buffer;
        if (!events[i].is_give) {
            unsigned char *data = memory_take(memory, "buffer", b, bytes_of(b));
            if (addresses[b] != NULL)
                assert_ptr_equal(data, addresses[b]);
            assert_int_equal((uintptr_t)data % MEMORY_ALIGN, 0);
            addresses[b] = data;
            memset(data, (int)(b % 251), bytes_of(b));
            continue;
        }
        for (size_t k = 0; k < bytes_of(b); k++)
            assert_int_equal(addresses[b][k], b % 251);
        memory_give(memory, "buffer", b);
    }
}

TEST(test_memory__buffers_that_live_together_never_overlap)
{
    for (int seed = 0; seed < NUM_SCHEDULES; seed++) {
        struct event events[NUM_EVENTS];
        unsigned char *addresses[NUM_BUFFERS] = {NULL};
        struct memory *memory;
        random_state = (uint64_t)seed;
        make_schedule(events);
        assert_int_equal(memory_new(&memory), 0);
        record(memory, events);
        assert_int_equal(memory_place(memory), 0);
        assert_int_equal(memory_commit(memory, NULL), 0);
        play(memory, events, addresses);
        play(memory, events, addresses);
        assert_true(memory_shared_bytes(memory) < memory_unshared_bytes(memory));
        memory_free(memory);
    }
}

/* Two that take turns share; a third that lives once, in a late turn of theirs, may not. */
TEST(test_memory__a_buffer_is_where_no_other_is_in_any_of_its_lives)
{
    struct memory *memory;
    unsigned char *at[3];
    assert_int_equal(memory_new(&memory), 0);
    for (uint32_t turn = 0; turn < 3; turn++) {
        memory_take(memory, "first", 0, 1000);
        memory_give(memory, "first", 0);
        memory_take(memory, "second", 0, 1000);
        if (turn == 2)
            memory_take(memory, "third", 0, 1000);
        memory_give(memory, "second", 0);
        if (turn == 2)
            memory_give(memory, "third", 0);
    }
    assert_int_equal(memory_place(memory), 0);
    assert_int_equal(memory_commit(memory, NULL), 0);
    assert_int_equal(memory_shared_bytes(memory), 2048);
    at[0] = memory_take(memory, "first", 0, 1000);
    memory_give(memory, "first", 0);
    at[1] = memory_take(memory, "second", 0, 1000);
    at[2] = memory_take(memory, "third", 0, 1000);
    assert_ptr_equal(at[0], at[1]);
    assert_true(at[2] != at[1]);
    memory_free(memory);
}

TEST(test_memory__what_is_never_given_back_is_kept_apart)
{
    struct memory *memory;
    assert_int_equal(memory_new(&memory), 0);
    memory_take(memory, "kept", 0, 500);
    memory_take(memory, "step", 0, 4000);
    memory_take(memory, "kept", 1, 500);
    memory_take_on_host(memory, "host", 0, 3000);
    memory_give(memory, "step", 0);
    assert_true(memory_is_recording(memory));
    assert_int_equal(memory_place(memory), 0);
    assert_false(memory_is_recording(memory));
    assert_int_equal(memory_commit(memory, NULL), 0);
    unsigned char *kept[2], zeros[500] = {0};
    for (uint32_t i = 0; i < 2; i++) {
        kept[i] = memory_take(memory, "kept", i, 500);
        assert_memory_equal(kept[i], zeros, 500);
        memset(kept[i], 'k', 500);
    }
    assert_int_equal(memory_kept_bytes(memory), 1024);
    assert_int_equal(memory_host_bytes(memory), 3072);
    memset(memory_take_on_host(memory, "host", 0, 3000), 'h', 3000);
    memset(memory_take(memory, "step", 0, 4000), 's', 4000);
    memory_give(memory, "step", 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_ptr_equal(memory_take(memory, "kept", i, 500), kept[i]);
        for (int k = 0; k < 500; k++)
            assert_int_equal(kept[i][k], 'k');
    }
    memory_free(memory);
}

TEST(test_memory__a_plan_with_too_many_buffers_is_refused)
{
    struct memory *memory;
    assert_int_equal(memory_new(&memory), 0);
    for (uint32_t i = 0; i < MEMORY_BUFFERS_MAX + 1; i++) {
        memory_take(memory, "many", i, 64);
        memory_give(memory, "many", i);
    }
    assert_true(memory_place(memory) < 0);
    memory_free(memory);
}

/* ---- room ---- */

TEST(test_memory__a_plan_above_the_available_is_refused_with_its_largest_parts)
{
    struct memory *memory;
    assert_int_equal(memory_new(&memory), 0);
    memory_take(memory, "small", 0, 1 << 20);
    for (uint32_t i = 0; i < 3; i++)
        memory_take(memory, "layers", i, (size_t)1 << 30);
    memory_take(memory, "middle", 0, (size_t)1 << 29);
    memory_take(memory, "large", 0, (size_t)2 << 30);
    for (uint32_t i = 0; i < 2; i++) { /* one after the other: they count once */
        memory_take(memory, "turns", i, (size_t)3 << 28);
        memory_give(memory, "turns", i);
    }
    assert_int_equal(memory_place(memory), 0);
    uint64_t all = memory_kept_bytes(memory) + memory_shared_bytes(memory);
    struct memory_need need = {.plan = memory, .of = MEMORY_MACHINE, .num_ranks = 2};
    assert_int_equal(memory_check(&need, 2 * all), 0);
    assert_int_equal(memory_check(&need, 2 * all - 1), ERR_INVALID);
    assert_non_null(strstr(report_message(), "2 ranks on this machine need 12.50 GiB of memory"));
    assert_non_null(strstr(report_message(),
                           "layers 3.00 GiB, large 2.00 GiB, turns 0.75 GiB, middle 0.50 GiB"));
    need.of = MEMORY_GPU;
    need.beside = (struct memory_beside){.once = 1 << 30, .each = 1 << 29};
    assert_int_equal(memory_check(&need, 2 * all + ((uint64_t)2 << 30)), 0);
    assert_int_equal(memory_check(&need, 2 * all + ((uint64_t)2 << 30) - 1), ERR_INVALID);
    assert_non_null(strstr(report_message(), "2 ranks on this GPU need 14.50 GiB of memory (about "
                                             "2.00 GiB for libraries and graphs)"));
    memory_free(memory);
}

TEST(test_memory__the_tightest_control_group_bounds_what_is_available)
{
    char root[] = "/tmp/room-XXXXXX";
    assert_non_null(mkdtemp(root));
    assert_true(memory_check_available(root) == UINT64_MAX);
    shell("cd %s && mkdir -p proc/self sys/fs/cgroup/a/b sys/fs/cgroup/memory/c &&"
          " printf 'MemTotal: 9000 kB\nMemAvailable:   4000 kB\nSwapFree: 96 kB\n' >proc/meminfo",
          root);
    assert_int_equal(memory_check_available(root), 4096 << 10);
    assert_int_equal(memory_check_capacity(root), 9000 << 10);
    shell("cd %s && printf '4:memory:/c\n0::/a/b\n' >proc/self/cgroup && cd sys/fs/cgroup &&"
          " echo max >a/b/memory.max && echo 3000000 >a/memory.max &&"
          " echo 1000000 >a/memory.current && printf 'anon 5\ninactive_file 400000\n' "
          ">a/memory.stat",
          root);
    assert_int_equal(memory_check_available(root), 2400000);
    assert_int_equal(memory_check_capacity(root), 3000000);
    shell("cd %s/sys/fs/cgroup/memory/c && echo 900000 >memory.limit_in_bytes &&"
          " echo 950000 >memory.usage_in_bytes",
          root);
    assert_int_equal(memory_check_available(root), 0);
    shell("rm -r %s", root);
}

#define LARGE ((size_t)64 << 20)

TEST(test_memory__a_peak_is_forgotten_and_a_file_is_not_the_process_s_own)
{
    if (IS_SANITIZED)
        skip(); /* a shadow of the memory is the process's own, too */
    uint64_t before = memory_check_taken("").own;
    char path[] = "/tmp/room-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)LARGE) == 0 && unlink(path) == 0);
    char *file = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *own = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(file != MAP_FAILED && own != MAP_FAILED);
    memset(file, 1, LARGE);
    memset(own, 1, LARGE);
    struct memory_check_taken full = memory_check_taken("");
    assert_in_range(full.own, before + LARGE, before + LARGE + LARGE / 2);
    assert_true(full.peak >= before + 2 * LARGE);
    munmap(file, LARGE);
    munmap(own, LARGE);
    close(fd);
    assert_true(memory_check_taken("").peak >= before + 2 * LARGE);
    memory_check_forget_peak("");
    assert_true(memory_check_taken("").peak < full.peak - LARGE);
}

/* More than the plan has room for at first: each is found again, and has its own address. */
TEST(test_memory__thousands_of_buffers_are_found_by_name_and_index)
{
    struct memory *memory;
    char *first[2] = {NULL, NULL};
    assert_int_equal(memory_new(&memory), 0);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < 3000; i++) {
            char *at = memory_take(memory, i % 2 == 0 ? "even" : "odd", i, 128);
            first[pass] = i == 0 ? at : first[pass];
            assert_true(pass == 0 || at == first[pass] + 128 * (size_t)i);
        }
        for (uint32_t i = 3000; i-- > 0;)
            memory_give(memory, i % 2 == 0 ? "even" : "odd", i);
        if (pass == 0) {
            assert_int_equal(memory_place(memory), 0);
            assert_int_equal(memory_commit(memory, NULL), 0);
        }
    }
    memory_free(memory);
}

static bool is_named(const char *name, const void *user)
{
    return strchr(user, name[0]) != NULL;
}

TEST(test_memory__a_peak_is_of_the_chosen_names_together)
{
    struct memory *memory;
    assert_int_equal(memory_new(&memory), 0);
    memory_take(memory, "kept", 0, 128);
    memory_take(memory, "a", 0, 1280);
    memory_give(memory, "a", 0);
    memory_take(memory, "b", 0, 640);
    memory_take(memory, "a", 0, 1280); /* beside b now */
    memory_give(memory, "b", 0);
    memory_give(memory, "a", 0);
    assert_int_equal(memory_place(memory), 0);
    assert_int_equal(memory_peak(memory, is_named, "a"), 1280);
    assert_int_equal(memory_peak(memory, is_named, "b"), 640);
    assert_int_equal(memory_peak(memory, is_named, "ab"), 1920);
    assert_int_equal(memory_peak(memory, is_named, "kb"), 768);
    memory_free(memory);
}

SUITE(NULL, NULL)
