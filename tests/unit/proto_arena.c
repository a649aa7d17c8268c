/* proto_arena.c - the announcement ring and the passing of descriptors.
 *
 * Goal: every announcement arrives once and in order, from another thread and from another process;
 * hostile counters and hostile messages are refused, and no descriptor leaks. Method: a producer
 * and a consumer run against each other over many turns of the ring, in threads and, over a memfd,
 * in two processes. The reply is sent by hand in every broken form. Open descriptors are counted
 * before and after. */
#include "proto/base/report.h"
#include "proto/wire/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/descriptors.h"
#include "tests/unit/suite.h"

#define NUM_MESSAGES (40ull * ARENA_RING_ENTRIES + 17)

static struct arena_entry make_entry(uint64_t n)
{
    return (struct arena_entry){.kind = n % 7 ? ARENA_ENTRY_RANGE : ARENA_ENTRY_END,
                                .image = (uint32_t)(n * 3),
                                .save = ~n,
                                .offset = n << 20,
                                .bytes = n * n};
}

static struct arena_control *new_control(void)
{
    struct arena_control *control = calloc(1, sizeof(*control));
    assert_non_null(control);
    return control;
}

/* ---- the ring ---- */

TEST(test_arena_ring__is_first_in_first_out_and_says_full_and_empty)
{
    struct arena_control *control = new_control();
    struct arena_entry entry;
    bool any = true;
    assert_int_equal(arena_pop(control, &entry, &any), 0);
    assert_false(any);
    for (uint64_t n = 0; n < ARENA_RING_ENTRIES; n++) {
        entry = make_entry(n);
        assert_true(arena_push(control, &entry));
    }
    assert_false(arena_push(control, &entry));
    for (uint64_t n = 0; n < ARENA_RING_ENTRIES; n++) {
        struct arena_entry expected = make_entry(n);
        assert_int_equal(arena_pop(control, &entry, &any), 0);
        assert_true(any);
        assert_memory_equal(&entry, &expected, sizeof(entry));
    }
    assert_int_equal(arena_pop(control, &entry, &any), 0);
    assert_false(any);
    free(control);
}

TEST(test_arena_ring__counters_may_wrap)
{
    struct arena_control *control = new_control();
    control->head = control->tail = UINT64_MAX - 5;
    for (uint64_t n = 0; n < 20; n++) {
        struct arena_entry entry = make_entry(n), expected = entry;
        bool any = false;
        assert_true(arena_push(control, &entry));
        memset(&entry, 0, sizeof(entry));
        assert_int_equal(arena_pop(control, &entry, &any), 0);
        assert_true(any);
        assert_memory_equal(&entry, &expected, sizeof(entry));
    }
    assert_int_equal(control->head, 14);
    free(control);
}

TEST(test_arena_ring__impossible_head_is_corrupt)
{
    static const uint64_t heads[] = {ARENA_RING_ENTRIES + 1, UINT64_MAX, 1ull << 63};
    struct arena_control *control = new_control();
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct arena_entry entry;
        bool any = true;
        control->head = heads[i];
        assert_int_equal(arena_pop(control, &entry, &any), ERR_CORRUPT);
        assert_false(any);
        assert_int_equal(control->tail, 0);
    }
    free(control);
}

static void *produce(void *user)
{
    for (uint64_t n = 0; n < NUM_MESSAGES; n++) {
        struct arena_entry entry = make_entry(n);
        while (!arena_push(user, &entry))
            sched_yield();
    }
    return NULL;
}

static void consume_all(struct arena_control *control)
{
    for (uint64_t n = 0; n < NUM_MESSAGES;) {
        struct arena_entry entry, expected = make_entry(n);
        bool any = false;
        assert_int_equal(arena_pop(control, &entry, &any), 0);
        if (!any) {
            sched_yield();
            continue;
        }
        assert_memory_equal(&entry, &expected, sizeof(entry));
        n++;
    }
}

TEST(test_arena_ring__passes_all_between_processes)
{
    int status = 1, fd = memfd_create("ring", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof(struct arena_control)), 0);
    struct arena_control *control =
        mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(control, MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        produce(control);
        _exit(0);
    }
    consume_all(control);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    munmap(control, sizeof(*control));
    close(fd);
}

/* ---- mappings ---- */

static int new_memory(uint64_t bytes)
{
    int fd;
    assert_int_equal(arena_create(&fd, "arena-test", bytes), 0);
    return fd;
}

TEST(test_arena_map__begins_where_a_huge_page_may)
{
    void *maps[5];
    int fd = new_memory(ARENA_HUGE_BYTES + 12345);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(arena_map(&maps[i], NULL, fd, 4096 * i + 1, PROT_READ | PROT_WRITE), 0);
        assert_int_equal((uintptr_t)maps[i] % ARENA_HUGE_BYTES, 0);
    }
    memset(maps[1], 0x5a, 4097);
    assert_memory_equal(maps[1], maps[4], 4097); /* one memory */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(munmap(maps[i], 4096 * i + 1), 0);
    close(fd);
}

TEST(test_arena_map__segments_lie_side_by_side_in_a_reservation)
{
    void *base, *map;
    int fd = new_memory(8192);
    assert_int_equal(pwrite(fd, "first", 5, 0), 5);
    assert_int_equal(arena_reserve(&base, 3 * 8192), 0);
    assert_int_equal((uintptr_t)base % ARENA_HUGE_BYTES, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(arena_map(&map, (char *)base + i * 8192, fd, 8192, PROT_READ), 0);
        assert_ptr_equal(map, (char *)base + i * 8192);
        assert_memory_equal(map, "first", 5);
    }
    assert_int_equal(munmap(base, 3 * 8192), 0);
    close(fd);
}

TEST(test_arena_map__what_is_too_short_is_refused)
{
    void *map = NULL;
    int fd = new_memory(8192);
    assert_int_equal(arena_map(&map, NULL, fd, 8193, PROT_READ), ERR_CORRUPT);
    assert_null(map);
    assert_int_equal(arena_map(&map, NULL, -1, 1, PROT_READ), ERR_CORRUPT);
    close(fd);
}

TEST(test_arena_create__its_size_cannot_change_and_it_is_never_executed)
{
    int fd = new_memory(8192);
    assert_int_equal(ftruncate(fd, 4096), -1);
    assert_int_equal(ftruncate(fd, 16384), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    int made = memfd_create("probe", 0x0008 /* MFD_NOEXEC_SEAL */);
    if (made >= 0) { /* Linux 6.3 */
        assert_int_equal(fchmod(fd, 0700), -1);
        close(made);
    } else {
        print_message("# it may be executed: the kernel has no MFD_NOEXEC_SEAL\n");
    }
    close(fd);
}

TEST(test_arena_map__what_could_become_shorter_is_refused)
{
    void *map = NULL;
    int fd = memfd_create("arena-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(arena_map(&map, NULL, fd, 8192, PROT_READ), ERR_CORRUPT);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK), 0);
    assert_int_equal(arena_map(&map, NULL, fd, 8192, PROT_READ), ERR_CORRUPT);
    assert_null(map);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    assert_int_equal(arena_map(&map, NULL, fd, 8192, PROT_READ), 0);
    assert_int_equal(munmap(map, 8192), 0);
    close(fd);
    FILE *file = tmpfile(); /* has no seals */
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), 8192), 0);
    assert_int_equal(arena_map(&map, NULL, fileno(file), 8192, PROT_READ), ERR_CORRUPT);
    fclose(file);
}

/* "dd" among the flags of the mapping in /proc/self/smaps. */
static bool is_left_out_of_dumps(const void *map)
{
    char line[512], start[32];
    bool is_here = false, found = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    assert_non_null(file);
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)map);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strchr(line, '-') != NULL && strncmp(line, "VmFlags:", 8) != 0 &&
            strspn(line, "0123456789abcdef") == strcspn(line, "-"))
            is_here = strncmp(line, start, strlen(start)) == 0;
        if (is_here && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, " dd") != NULL;
    }
    fclose(file);
    return found;
}

TEST(test_arena_map__is_no_part_of_a_core_dump)
{
    void *map = NULL;
    int fd = new_memory(8192);
    assert_int_equal(arena_map(&map, NULL, fd, 8192, PROT_READ | PROT_WRITE), 0);
    assert_true(is_left_out_of_dumps(map));
    assert_int_equal(munmap(map, 8192), 0);
    close(fd);
}

TEST(test_arena_reserve__too_much_is_out_of_memory)
{
    void *base = NULL;
    assert_int_equal(arena_reserve(&base, 1ull << 60), ERR_MEMORY);
    assert_null(base);
}

/* ---- requests ---- */

TEST(test_arena_want__requests_add_up_and_the_earliest_end_counts)
{
    struct arena_control *control = new_control();
    arena_want(control, ARENA_ASKED_STOP, 0);
    assert_int_equal(arena_asked(control), ARENA_ASKED_STOP);
    assert_int_equal(arena_asked_until_s(control), 0);
    arena_want(control, ARENA_ASKED_NO_SAVE, 500);
    assert_int_equal(arena_asked(control), ARENA_ASKED_STOP | ARENA_ASKED_NO_SAVE);
    arena_want(control, ARENA_ASKED_STOP, 600);
    arena_want(control, ARENA_ASKED_STOP, 0);
    assert_int_equal(arena_asked_until_s(control), 500);
    arena_want(control, ARENA_ASKED_STOP, 400);
    assert_int_equal(arena_asked_until_s(control), 400);
    free(control);
}

TEST(test_arena_want__a_late_count_of_saves_takes_none_back)
{
    struct arena_control *control = new_control();
    arena_set_saves_asked(control, 2);
    arena_set_saves_asked(control, 1);
    assert_int_equal(arena_saves_asked(control), 2);
    arena_set_saves_asked(control, 3);
    assert_int_equal(arena_saves_asked(control), 3);
    free(control);
}

/* ---- phases ---- */

TEST(test_arena_phase__only_busy_is_busy)
{
    struct arena_control *control = new_control();
    assert_false(arena_is_busy(control));
    arena_set_phase(control, ARENA_PHASE_QUIET);
    assert_false(arena_is_busy(control));
    arena_set_phase(control, ARENA_PHASE_BUSY);
    assert_true(arena_is_busy(control));
    for (uint32_t bit = 1; bit < 32; bit++) {
        control->phase = ARENA_PHASE_BUSY | 1u << bit; /* any value that a rank may write there */
        assert_false(arena_is_busy(control));
    }
    free(control);
}

TEST(test_arena_phase__the_end_of_a_busy_phase_wakes_only_when_it_is_waited_for)
{
    struct arena_control *control = new_control();
    assert_false(arena_set_phase(control, ARENA_PHASE_BUSY));
    assert_false(arena_set_phase(control, ARENA_PHASE_QUIET));
    arena_set_phase(control, ARENA_PHASE_BUSY);
    assert_true(arena_is_busy(control));
    assert_false(arena_set_phase(control, ARENA_PHASE_BUSY));
    assert_true(arena_set_phase(control, ARENA_PHASE_QUIET));
    assert_false(arena_set_phase(control, ARENA_PHASE_QUIET)); /* once */
    free(control);
}

#define PHASES 200000u

static atomic_uint num_wakes, num_seen;
static atomic_bool phases_over;

static void *alternate_phases(void *argument)
{
    struct arena_control *control = argument;
    for (uint32_t i = 0; i < PHASES || atomic_load(&num_seen) == 0; i++) {
        arena_set_phase(control, ARENA_PHASE_BUSY);
        if (arena_set_phase(control, ARENA_PHASE_QUIET))
            atomic_fetch_add(&num_wakes, 1);
        if (i % 1000 == 0)
            sched_yield();
    }
    atomic_store(&phases_over, true);
    return NULL;
}

/* A waiter that saw a busy phase is woken after it: with a lost wake-up the wait never ends. */
TEST(test_arena_phase__no_end_of_a_busy_phase_is_missed)
{
    struct arena_control *control = new_control();
    pthread_t thread;
    atomic_store(&num_wakes, 0);
    atomic_store(&num_seen, 0);
    atomic_store(&phases_over, false);
    assert_int_equal(pthread_create(&thread, NULL, alternate_phases, control), 0);
    while (!atomic_load(&phases_over)) {
        uint32_t before = atomic_load(&num_wakes);
        if (!arena_is_busy(control))
            continue;
        atomic_fetch_add(&num_seen, 1);
        while (atomic_load(&num_wakes) == before && !atomic_load(&phases_over))
            sched_yield();
        /* All work is over, and the last phase was quiet: the wake-up must have come. */
        assert_true(atomic_load(&num_wakes) != before);
    }
    pthread_join(thread, NULL);
    free(control);
}

/* ---- copies ---- */

/* ---- descriptors ---- */

static struct arena_reply make_reply(uint32_t num_fds)
{
    return (struct arena_reply){.magic = ARENA_MAGIC,
                                .version = ARENA_VERSION,
                                .num_fds = num_fds,
                                .segment_bytes = 256u << 20};
}

/* Sends `bytes` of a reply with `num_fds` descriptors, in any broken combination. */
static void send_by_hand(int socket, const void *data, size_t bytes, uint32_t num_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(200 * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    memset(&control, 0, sizeof(control));
    if (num_fds > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(num_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(num_fds * sizeof(int));
        for (uint32_t i = 0; i < num_fds; i++)
            memcpy(CMSG_DATA(header) + i * sizeof(int), &(int){STDIN_FILENO}, sizeof(int));
    }
    assert_int_equal(sendmsg(socket, &message, MSG_NOSIGNAL), bytes);
}

static void open_pair(int ends[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
}

TEST(test_arena_reply__descriptors_arrive_in_order_and_close_on_exec)
{
    uint32_t before = count_descriptors();
    for (uint32_t num_fds = 0; num_fds <= ARENA_FDS_MAX; num_fds += 16) {
        int ends[2], sent[ARENA_FDS_MAX], received[ARENA_FDS_MAX];
        struct arena_reply reply = make_reply(num_fds), got;
        open_pair(ends);
        for (uint32_t i = 0; i < num_fds; i++) {
            sent[i] = memfd_create("segment", MFD_CLOEXEC);
            assert_int_equal(ftruncate(sent[i], 1000 + i), 0);
        }
        assert_int_equal(arena_send_reply(ends[0], &reply, sent), 0);
        assert_int_equal(arena_receive_reply(ends[1], &got, received, ARENA_FDS_MAX), 0);
        assert_memory_equal(&got, &reply, sizeof(got));
        for (uint32_t i = 0; i < num_fds; i++) {
            assert_int_equal(lseek(received[i], 0, SEEK_END), 1000 + i);
            assert_int_equal(fcntl(received[i], F_GETFD), FD_CLOEXEC);
            close(received[i]);
            close(sent[i]);
        }
        close(ends[0]);
        close(ends[1]);
    }
    assert_int_equal(count_descriptors(), before);
}

TEST(test_arena_reply__error_comes_without_descriptors)
{
    int ends[2], fds[4];
    struct arena_reply reply = make_reply(0), got;
    reply.error = ERR_DENIED;
    open_pair(ends);
    assert_int_equal(arena_send_reply(ends[0], &reply, NULL), 0);
    assert_int_equal(arena_receive_reply(ends[1], &got, fds, 4), 0);
    assert_int_equal(got.error, ERR_DENIED);
    close(ends[0]);
    close(ends[1]);
}

TEST(test_arena_reply__arrives_in_two_parts)
{
    int ends[2], fds[4];
    struct arena_reply reply = make_reply(2), got;
    open_pair(ends);
    send_by_hand(ends[0], &reply, 5, 2);
    send_by_hand(ends[0], (char *)&reply + 5, sizeof(reply) - 5, 0);
    assert_int_equal(arena_receive_reply(ends[1], &got, fds, 4), 0);
    assert_int_equal(got.num_fds, 2);
    close(fds[0]);
    close(fds[1]);
    close(ends[0]);
    close(ends[1]);
}

TEST(test_arena_reply__gone_peer_is_unavailable)
{
    int ends[2], fds[4];
    struct arena_reply reply = make_reply(0), got;
    open_pair(ends);
    close(ends[1]);
    assert_int_equal(arena_send_reply(ends[0], &reply, NULL), ERR_UNAVAILABLE);
    close(ends[0]);
    open_pair(ends);
    close(ends[0]);
    assert_int_equal(arena_receive_reply(ends[1], &got, fds, 4), ERR_UNAVAILABLE);
    close(ends[1]);
}

TEST(test_arena_reply__broken_messages_are_refused_and_leak_nothing)
{
    static const struct {
        uint64_t magic;
        uint32_t version;
        int32_t error;
        uint32_t announced, sent, fit;
        size_t bytes;
        int expected;
    } cases[] = {
        {ARENA_MAGIC, ARENA_VERSION, 0, 2, 1, 8, 32, ERR_CORRUPT},   /* too few came */
        {ARENA_MAGIC, ARENA_VERSION, 0, 1, 2, 8, 32, ERR_CORRUPT},   /* too many came */
        {ARENA_MAGIC, ARENA_VERSION, 0, 5, 5, 4, 32, ERR_CORRUPT},   /* more than fit */
        {ARENA_MAGIC, ARENA_VERSION, 0, 65, 65, 8, 32, ERR_CORRUPT}, /* more than may be */
        {ARENA_MAGIC, ARENA_VERSION, 0, 200, 200, 8, 32, ERR_CORRUPT},
        {ARENA_MAGIC, ARENA_VERSION, 0, UINT32_MAX, 3, 8, 32, ERR_CORRUPT},
        {ARENA_MAGIC, ARENA_VERSION, ERR_BUSY, 1, 1, 8, 32,
         ERR_CORRUPT},                                             /* error and a descriptor */
        {ARENA_MAGIC, ARENA_VERSION, 0, 3, 3, 8, 31, ERR_CORRUPT}, /* cut */
        {ARENA_MAGIC, ARENA_VERSION, 0, 3, 3, 8, 1, ERR_CORRUPT},
        {ARENA_MAGIC + 1, ARENA_VERSION, 0, 3, 3, 8, 32, ERR_CORRUPT},
        {ARENA_MAGIC, ARENA_VERSION + 1, 0, 3, 3, 8, 32, ERR_VERSION},
    };
    uint32_t before = count_descriptors();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int ends[2], fds[8];
        struct arena_reply reply = make_reply(cases[i].announced), got;
        reply.magic = cases[i].magic;
        reply.version = cases[i].version;
        reply.error = cases[i].error;
        open_pair(ends);
        send_by_hand(ends[0], &reply, cases[i].bytes, cases[i].sent);
        close(ends[0]);
        int error = arena_receive_reply(ends[1], &got, fds, cases[i].fit);
        if (error != cases[i].expected)
            fail_msg("case %zu: %s", i, err_name(error));
        close(ends[1]);
        assert_int_equal(count_descriptors(), before);
    }
}

TEST(test_arena_reply__oversized_datagram_is_refused)
{
    int ends[2], fds[8];
    char data[64] = {0};
    struct arena_reply reply = make_reply(2), got;
    uint32_t before = count_descriptors();
    memcpy(data, &reply, sizeof(reply));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    send_by_hand(ends[0], data, sizeof(data), 2);
    assert_int_equal(arena_receive_reply(ends[1], &got, fds, 8), ERR_CORRUPT);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(count_descriptors(), before);
}

TEST(test_arena_reply__want_of_descriptors_is_busy_and_leaks_nothing)
{
    int ends[2], fds[8];
    struct arena_reply reply = make_reply(8), got;
    struct rlimit before, small;
    uint32_t open_before = count_descriptors();
    open_pair(ends);
    send_by_hand(ends[0], &reply, sizeof(reply), 8);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    small = (struct rlimit){(rlim_t)ends[1] + 4, before.rlim_max}; /* three at most */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
    int error = arena_receive_reply(ends[1], &got, fds, 8);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(error, ERR_BUSY);
    assert_true(err_retry(error));
    assert_non_null(strstr(report_message(), "limit of open descriptors"));
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(count_descriptors(), open_before);
}

TEST(test_arena_reply__full_socket_without_blocking_is_unavailable)
{
    int ends[2], sent = 0;
    struct arena_reply reply = make_reply(0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    while (sent < 1000000 && arena_send_reply(ends[0], &reply, NULL) == 0)
        sent++;
    assert_in_range(sent, 1, 999999);
    assert_int_equal(arena_send_reply(ends[0], &reply, NULL), ERR_UNAVAILABLE);
    close(ends[0]);
    close(ends[1]);
}

SUITE(NULL, NULL)
