/* ckptd_listen.c - connections to the two sockets of ckptd, and their cleanup.
 *
 * Goal: another user is refused at either, also where the socket's mode admits everyone, and the
 * log names him; descriptors that a peer passes are not taken; too many connections are refused, or
 * the idle make room. A storm of them leaves nothing open; metadata over the limit is refused,
 * calls that are half sent block no other client. A client that keeps resetting streams is
 * disconnected. Endless messages stay within their memory limit. Connected ranks save all the
 * while. Method: the service and the raw client of ckptd_bed.h, so descriptors and memory of the
 * daemon are those of this process, and a peer that makes its HTTP/2 frames by hand. */
#include "proto/base/sanitized.h"
#include "tests/unit/ckptd_bed.h"
#include "tests/unit/descriptors.h"
#include "tests/unit/http2_bed.h"
#include "tests/unit/suite.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PASSED_MAX 253u /* the kernel's limit in one message */
#define PASSES 100
#define STORM 1500
#define DOORS 2
#define RESETS_MIN 256u /* so many a peer has for sure */
#define RESETS_MAX 200000u
#define GROWTH_MIB_MAX 96u
#define ENDLESS_MIB 1024u
#define ENDLESS_TAKEN_MIB_MAX 10u /* 8 connections are accepted; some memory is in sockets */
#define HOLDERS 12                /* connections that hold more calls than there are */
#define HOLDER_CALLS 128u         /* as many as a connection may have open */
#define METHOD "/holdfast.v1.Checkpoint/Hello"

static struct peer peers[1];
static const char *const doors[DOORS] = {"s", "s.arena"};

/* A rank is there, and saves before and after. */
static int set_up_rank(void **state)
{
    if (bed_set_up(state) != 0)
        return -1;
    bed_open_world(*state, peers, 1);
    return save_step(peers, 1, 1) ? 0 : -1;
}

static int tear_down_rank(void **state)
{
    bool has_saved = save_step(peers, 1, 100);
    peers_close(peers, 1);
    bed_tear_down(state);
    return has_saved ? 0 : -1;
}

/* Closed silently: gRPC greets a connection that it serves, and the arena waits. */
static bool is_hung_up(int fd)
{
    ssize_t count;
    char byte;
    do
        count = recv(fd, &byte, 1, 0);
    while (count < 0 && errno == EINTR);
    return count == 0;
}

/* gRPC closes its sockets on its own threads. */
static void expect_descriptors(unsigned count)
{
    unsigned now = count_descriptors();
    for (int i = 0; i < 500 && now > count; i++, now = count_descriptors())
        sleep_ms(10);
    assert_in_range(now, 0, count);
}

static unsigned door_mode(const struct bed *bed, const char *door)
{
    struct stat info;
    char path[200];
    snprintf(path, sizeof path, "%s/%s", bed->root, door);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISSOCK(info.st_mode));
    return (unsigned)info.st_mode & 07777;
}

/* The modes do not depend on the umask; a directory that others may enter does not open the
 * sockets. */
BED_TEST(test_door__the_sockets_are_ours_alone_until_other_users_are_named)
{
    static const mode_t masks[] = {0, 0077};
    for (int i = 0; i < 2; i++) {
        for (int others = 0; others < 2; others++) {
            bed_stop(bed);
            snprintf(bed->config.access_uids, sizeof bed->config.access_uids, "%s",
                     others ? "1234567" : "");
            mode_t before = umask(masks[i]);
            int error = bed_start(bed);
            assert_int_equal(umask(before), masks[i]); /* left as it was */
            assert_int_equal(error, 0);
            for (int door = 0; door < DOORS; door++)
                assert_int_equal(door_mode(bed, doors[door]), others ? 0666 : 0600);
        }
    }
}

/* Also where the socket's mode admits everyone. */
BED_TEST(test_door__another_user_is_turned_away_and_named_in_the_log)
{
    char want[120], text[8192];
    int status[DOORS];
    pid_t children[DOORS];
    if (geteuid() != 0) {
        print_message("skipped: only root can become another user\n");
        skip();
    }
    bed_stop(bed);
    snprintf(bed->config.access_uids, sizeof bed->config.access_uids, "1234567");
    assert_int_equal(bed_start(bed), 0);
    assert_int_equal(chmod(bed->root, 0755), 0);
    bed_open_world(bed, peers, 1);
    bed_divert_log(bed);
    for (int i = 0; i < DOORS; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(setuid(65534) != 0 ? 2 : !is_hung_up(bed_connect(bed, doors[i])));
        waitpid(children[i], &status[i], 0); /* hung up after the line was written */
    }
    bed_read_log(bed, text, sizeof text);
    assert_true(status[0] == 0 && status[1] == 0);
    snprintf(want, sizeof want, "warn door: refused a connection: user 65534, process %d",
             (int)children[0]); /* the log limits how often it is written */
    assert_non_null(strstr(text, want));
    assert_true(save_step(peers, 1, 1));
    peers_close(peers, 1);
}

/* A peer's message, with the descriptor `passed` `count` times. */
static void send_with(int fd, const void *data, size_t bytes, int passed, uint32_t count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(PASSED_MAX * sizeof(int))];
    } control;
    int fds[PASSED_MAX];
    for (uint32_t i = 0; i < count; i++)
        fds[i] = passed;
    struct iovec part = {(void *)(uintptr_t)data, bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)),
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof(int));
    assert_int_equal(sendmsg(fd, &message, MSG_NOSIGNAL), bytes);
}

static void expect_hung_up(int fd)
{
    struct pollfd poll_fd = {.fd = fd};
    int count;
    do
        count = poll(&poll_fd, 1, BED_PATIENCE_MS);
    while (count < 0 && errno == EINTR);
    assert_int_equal(count, 1);
    assert_int_equal(poll_fd.revents, POLLHUP);
}

/* To both doors; they stay open until it is known that nothing was taken. */
static void pass(const struct bed *bed, uint32_t count)
{
    const struct arena_request request = {
        .magic = ARENA_MAGIC, .version = ARENA_VERSION, .kind = ARENA_REQUEST_CONTROL};
    struct arena_reply reply;
    int fds[ARENA_FDS_MAX], pair[2];
    unsigned before = count_descriptors();
    int arena = bed_connect(bed, "s.arena"), rpc = bed_connect(bed, "s");
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    send_with(arena, &request, sizeof request, pair[1], count);
    send_with(rpc, "PRI * HTTP/2.0\r\n", 16, pair[1], count);
    close(pair[1]);
    assert_int_equal(arena_receive_reply(arena, &reply, fds, ARENA_FDS_MAX), 0);
    assert_int_equal(reply.error, ERR_NOT_FOUND); /* there is no such session */
    expect_hung_up(pair[0]);
    close(pair[0]);
    expect_descriptors(before + 6); /* two ends of two connections, and a pair of gRPC's */
    close(arena);
    close(rpc);
    expect_descriptors(before);
}

BED_TEST_BETWEEN(test_door__descriptors_that_a_peer_passes_are_not_taken, set_up_rank,
                 tear_down_rank)
{
    pass(bed, 1);
    pass(bed, PASSED_MAX);
}

/* Closed with something unread, which breaks it. */
BED_TEST_BETWEEN(test_door__nor_are_those_of_a_peer_that_is_gone, set_up_rank, tear_down_rank)
{
    int pair[2];
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    unsigned before = count_descriptors();
    for (int i = 0; i < PASSES; i++) {
        int rpc = bed_connect(bed, "s");
        send_with(rpc, "PRI * HTTP/2.0\r\n", 16, pair[1], 8);
        close(rpc);
    }
    close(pair[1]);
    expect_hung_up(pair[0]); /* so all of them have been looked at */
    close(pair[0]);
    expect_descriptors(before - 2);
}

static int count_hung_up(const int *fds, int count)
{
    int closed = 0;
    for (int i = 0; i < count; i++) {
        char bytes[256];
        ssize_t got;
        while ((got = recv(fds[i], bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            continue;
        closed += got == 0;
    }
    return closed;
}

/* A connection that is past the greetings; a new stream of it may send *out_window bytes. */
static int open_http2(const struct bed *bed, int64_t *out_window)
{
    int fd = bed_connect(bed, "s");
    assert_true(http2_send(fd, HTTP2_PREFACE, strlen(HTTP2_PREFACE)));
    assert_true(http2_send_frame(fd, HTTP2_SETTINGS, 0, 0, NULL, 0));
    /* gRPC holds a peer to its settings when they were acknowledged. */
    assert_true(http2_await_settings(fd, out_window));
    assert_true(http2_send_frame(fd, HTTP2_SETTINGS, HTTP2_ACK, 0, NULL, 0));
    return fd;
}

BED_TEST(test_door__one_more_than_the_limit_is_refused)
{
    int fds[3];
    bed_stop(bed);
    bed->config.limit_sessions = 3;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1); /* one */
    for (int i = 0; i < 3; i++)
        fds[i] = bed_connect(bed, "s.arena");
    assert_true(is_hung_up(fds[2]));
    for (int i = 0; i < 2; i++) {
        char byte;
        assert_int_equal(recv(fds[i], &byte, 1, MSG_DONTWAIT), -1);
        assert_int_equal(errno, EAGAIN);
    }
    assert_true(save_step(peers, 1, 1));
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    peers_close(peers, 1);
}

/* At either socket, whether it sends a greeting, nothing, or half of it. */
BED_TEST(test_door__who_asks_for_nothing_has_to_go)
{
    int64_t window;
    bed_stop(bed);
    bed->config.limit_connect_ms = 200;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    int fds[] = {bed_connect(bed, "s"), open_http2(bed, &window), bed_connect(bed, "s.arena"),
                 bed_connect(bed, "s.arena")};
    assert_int_equal(send(fds[3], "noise", 5, MSG_NOSIGNAL), 5);
    for (int i = 0; i < 500 && count_hung_up(fds, 4) < 4; i++)
        sleep_ms(10);
    assert_int_equal(count_hung_up(fds, 4), 4);
    assert_true(save_step(peers, 1, 1)); /* a peer that has introduced itself stays */
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    peers_close(peers, 1);
}

BED_TEST_BETWEEN(test_door__a_storm_of_connections_leaves_nothing, set_up_rank, tear_down_rank)
{
    unsigned before = count_descriptors();
    for (int i = 0; i < STORM; i++) {
        int fd = bed_connect(bed, doors[i % DOORS]);
        if (i % 3 != 0)
            (void)!send(fd, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnoise", 29, MSG_NOSIGNAL);
        close(fd);
    }
    expect_descriptors(before);
}

/* ---- gRPC's listener ---- */

/* The rank's own connection may be one of them, also when it has just sent a call: that save fails,
 * and the next one connects again. */
BED_TEST(test_door__beyond_the_limit_idle_connections_make_room)
{
    enum { SESSIONS = 3, OVER = 20, ALL = SESSIONS + RPC_CONNECTIONS_BESIDE + OVER };
    int fds[ALL], closed = 0;
    bed_stop(bed);
    bed->config.limit_sessions = SESSIONS;
    assert_int_equal(bed_start(bed), 0);
    bed_open_world(bed, peers, 1);
    assert_true(save_step(peers, 1, 1));
    for (int i = 0; i < ALL; i++)
        fds[i] = bed_connect(bed, "s");
    for (int ms = 0; ms < 5000 && closed < OVER - SESSIONS; ms += 10) {
        sleep_ms(10);
        closed = count_hung_up(fds, ALL);
    }
    assert_in_range(closed, OVER - SESSIONS, OVER + SESSIONS); /* the bed has some */
    for (int i = 0; i < OVER - SESSIONS; i++)                  /* those that came first */
        assert_int_equal(recv(fds[i], &(char){0}, 1, MSG_DONTWAIT), 0);
    assert_true(save_step(peers, 1, 2) || save_step(peers, 1, 3));
    for (int i = 0; i < ALL; i++)
        close(fds[i]);
    peers_close(peers, 1);
}

/* A call of METHOD with that much metadata more; `whole`: its message follows. */
static void send_call(int fd, uint32_t stream, size_t metadata_bytes, bool whole)
{
    static char value[HTTP2_FRAME_MAX];
    static const uint8_t empty_message[5];
    uint8_t headers[HTTP2_FRAME_MAX];
    memset(value, 'x', metadata_bytes);
    value[metadata_bytes] = 0;
    size_t bytes = http2_put_call(headers, METHOD);
    bytes += http2_put_header(headers + bytes, "x-long", value);
    assert_true(http2_send_frame(fd, HTTP2_HEADERS, HTTP2_END_HEADERS, stream, headers, bytes));
    if (whole)
        http2_send_frame(fd, HTTP2_DATA, HTTP2_END_STREAM, stream, empty_message,
                         sizeof empty_message);
}

static bool is_call_answered(const struct bed *bed, size_t metadata_bytes)
{
    bool silent;
    int64_t window;
    int fd = open_http2(bed, &window);
    send_call(fd, 1, metadata_bytes, true);
    bool answered = http2_is_answered(fd, 1, &silent);
    assert_false(silent);
    close(fd);
    return answered;
}

BED_TEST_BETWEEN(test_door__long_metadata_is_refused, set_up_rank, tear_down_rank)
{
    assert_true(is_call_answered(bed, 1000));
    assert_false(is_call_answered(bed, 9000));
}

/* A connection that never ends its calls. */
static int open_holder(const struct bed *bed)
{
    int64_t window;
    int fd = open_http2(bed, &window);
    for (uint32_t call = 0; call < HOLDER_CALLS; call++)
        send_call(fd, 2 * call + 1, 0, false);
    return fd;
}

/* Was a call of that connection ended by the server? */
static bool is_refused(int fd)
{
    uint8_t head[9], data[HTTP2_FRAME_MAX];
    size_t bytes;
    while (recv(fd, head, 1, MSG_PEEK | MSG_DONTWAIT) == 1 &&
           http2_receive_frame(fd, head, data, &bytes))
        if (head[3] == HTTP2_HEADERS)
            return true;
    return false;
}

/* From the first refusal on the holders use every available call; other connections stay. */
BED_TEST_BETWEEN(test_door__half_sent_calls_keep_nobody_else_out, set_up_rank, tear_down_rank)
{
    int fds[HOLDERS], refused = 0;
    for (int i = 0; i < HOLDERS; i++)
        fds[i] = open_holder(bed);
    for (int i = 0; i < 1000 && refused == 0; i++) {
        sleep_ms(10);
        for (int of = 0; of < HOLDERS; of++)
            refused += is_refused(fds[of]);
    }
    assert_int_not_equal(refused, 0);
    for (uint64_t step = 2; step <= 20; step++)
        assert_true(save_step(peers, 1, step));
    for (int i = 0; i < HOLDERS; i++)
        close(fds[i]);
}

static unsigned resident_mib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return (unsigned)(pages * sysconf(_SC_PAGESIZE) >> 20);
}

/* Rapid reset, CVE-2023-44487: gRPC has no limit for it before 1.60. */
BED_TEST_BETWEEN(test_door__a_peer_that_resets_its_streams_is_cut_off, set_up_rank, tear_down_rank)
{
    uint8_t headers[HTTP2_FRAME_MAX];
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    int64_t window;
    size_t bytes = http2_put_call(headers, METHOD);
    unsigned before = resident_mib(), sent = 0;
    int fd = open_http2(bed, &window);
    while (sent < RESETS_MAX &&
           http2_send_frame(fd, HTTP2_HEADERS, HTTP2_END_HEADERS, 2 * sent + 1, headers, bytes) &&
           http2_send_frame(fd, HTTP2_RESET, 0, 2 * sent + 1, cancel, sizeof cancel)) {
        sent++;
        while (recv(fd, headers + bytes, sizeof headers - bytes, MSG_DONTWAIT) > 0)
            continue; /* so that no client waits for us */
    }
    unsigned after = resident_mib(), growth = after > before ? after - before : 0;
    close(fd);
    print_message("# cut off after %u resets, %u MiB more\n", sent, growth);
    assert_in_range(sent, RESETS_MIN, RESETS_MAX - 1);
    if (!IS_SANITIZED) /* allocators keep freed memory for a while */
        assert_in_range(growth, 0, GROWTH_MIB_MAX);
}

/* gRPC gathers a message before it looks whether it is too long. */
BED_TEST_BETWEEN(test_door__a_message_without_end_is_cut_off, set_up_rank, tear_down_rank)
{
    int64_t window;
    unsigned before = resident_mib();
    int fd = open_http2(bed, &window);
    send_call(fd, 1, 0, false);
    uint64_t taken = http2_pour(fd, 1, window, ENDLESS_MIB << 20, 1);
    unsigned after = resident_mib(), growth = after > before ? after - before : 0;
    print_message("# %u MiB of %u were taken, %u MiB more\n", (unsigned)(taken >> 20), ENDLESS_MIB,
                  growth);
    assert_in_range(taken, RPC_MESSAGE_BYTES_MAX, ENDLESS_TAKEN_MIB_MAX << 20);
    if (!IS_SANITIZED)
        assert_in_range(growth, 0, ENDLESS_TAKEN_MIB_MAX);
    for (uint64_t step = 2; step <= 10; step++)
        assert_true(save_step(peers, 1, step));
    close(fd);
}

int main(void)
{
    log_setup("ckptd_listen", NULL);
    return suite_run(NULL, NULL);
}
