/* proto_bulk - blocks between two machines.
 *
 * Goal: bytes arrive as they are, in order and whole. After a cut the transfer resumes at the same
 * place, and no received byte is sent again. Damage on the way is found and repaired. A peer that
 * stalls, dribbles, or is absent gives an error in time. Impossible headers are refused. Method:
 * the real client and server over plain TCP, through a relay that cuts, damages or delays the
 * bytes; the server's storage is an array. tests/integration tests which peers are admitted. */
#include "proto/base/checksum.h"
#include "proto/base/report.h"
#include "proto/bulk/bulk.h"
#include "proto/bulk/server.h"
#include "proto/tls/crowd.h"
#include "proto/tls/stream.h"
#include "tests/unit/suite.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOURCE_BYTES ((20u << 20) + 12345u)
#define BLOCKS 24u
#define WAIT_MS 60000u

static const uint8_t ticket[BULK_TICKET_BYTES] = "a good ticket...";

/* ---- the server's storage ---- */

static struct {
    unsigned char *source, *sink;
    atomic_uint puts[BLOCKS]; /* how often each number was put whole */
    atomic_bool have[BLOCKS];
    atomic_int ends;
    bool is_late; /* HAVE is answered before the bytes under way have come */
} world;

static int enter(void *user, struct bulk_entered **out, const uint8_t *shown,
                 const struct principal *peer)
{
    assert_null(peer);
    *out = user;
    return memcmp(shown, ticket, sizeof ticket) == 0 ? 0
                                                     : report_error(ERR_DENIED, NULL, "no ticket");
}

static void leave(struct bulk_entered *entered)
{
    (void)entered;
}

static int get_begin(struct bulk_entered *entered, const struct bulk_request *request)
{
    (void)entered;
    if (request->part == 7 && request->offset + request->bytes <= SOURCE_BYTES)
        return 0;
    return report_error(ERR_NOT_FOUND, NULL, "no such bytes");
}

static int get_block(struct bulk_entered *entered, const struct bulk_request *request,
                     uint64_t offset, uint64_t bytes, void *room, const void **out)
{
    (void)entered;
    (void)request;
    if (offset / BULK_BLOCK_BYTES % 2 == 0)
        *out = world.source + offset;
    else
        memcpy(room, world.source + offset, bytes);
    return 0;
}

static void get_end(struct bulk_entered *entered)
{
    (void)entered;
}

static int put_begin(struct bulk_entered *entered, const struct bulk_request *request, void **to,
                     struct tls_stream *cut)
{
    (void)entered;
    (void)cut;
    *to = world.sink + request->image_byte;
    if (world.is_late && world.have[request->number])
        return report_error(ERR_EXISTS, NULL, "it is there");
    return request->part == 7 ? 0 : report_error(ERR_DENIED, NULL, "no such segment");
}

static int put_end(struct bulk_entered *entered, const struct bulk_request *request, int error)
{
    (void)entered;
    if (error == 0) {
        world.puts[request->number]++;
        world.have[request->number] = true;
    }
    return error;
}

static int ask(struct bulk_entered *entered, const struct bulk_request *request,
               struct bulk_answer *answer)
{
    (void)entered;
    if (request->verb == BULK_HAVE)
        answer->bytes = !world.is_late && request->number < BLOCKS && world.have[request->number];
    if (request->verb == BULK_END) {
        for (uint32_t i = 0; i < BLOCKS; i++)
            assert_true(world.have[i]); /* it comes after all others */
        world.ends++;
    }
    answer->window_end = 4711;
    return 0;
}

static const struct bulk_ops ops = {.enter = enter,
                                    .leave = leave,
                                    .get_begin = get_begin,
                                    .get_block = get_block,
                                    .get_end = get_end,
                                    .put_begin = put_begin,
                                    .put_end = put_end,
                                    .ask = ask};

/* ---- sockets ---- */

static int listen_anywhere(uint16_t *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 && listen(fd, 64) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *out_port = ntohs(address.sin_port);
    return fd;
}

/* Forwards bytes between a client and the server. For each direction it counts the bytes over all
 * connections, and acts at some of them. */
enum trouble { NONE, CUT, DAMAGE, HOLD };
static struct relay {
    int listener;
    uint16_t port, to;
    pthread_t thread;
    atomic_bool is_closing;
    enum trouble trouble;
    bool of_client;        /* of bytes that the client sends; otherwise of those that it receives */
    uint64_t every, times; /* the trouble comes every so many bytes, so often */
    uint64_t passed;
} relay;

static void make_trouble(unsigned char *data, ssize_t count, int a, int b)
{
    uint64_t before = relay.passed / relay.every;
    relay.passed += (uint64_t)count;
    if (relay.passed / relay.every == before || relay.times == 0)
        return;
    relay.times--;
    if (relay.trouble == DAMAGE)
        data[count / 2] ^= 1;
    if (relay.trouble == CUT) {
        shutdown(a, SHUT_RDWR);
        shutdown(b, SHUT_RDWR);
    }
    while (relay.trouble == HOLD && !relay.is_closing)
        usleep(10000);
}

static void write_all(int fd, const unsigned char *data, ssize_t count)
{
    for (ssize_t done = 0, now; done < count; done += now)
        if ((now = send(fd, data + done, (size_t)(count - done), MSG_NOSIGNAL)) <= 0)
            return;
}

/* One thread, so the counts are exact; few connections. */
#define PAIRS 64
static void *run_relay(void *unused)
{
    struct pollfd fds[1 + 2 * PAIRS] = {{.fd = relay.listener, .events = POLLIN}};
    static unsigned char data[256u << 10];
    int pairs = 0;
    (void)unused;
    while (!relay.is_closing) {
        if (poll(fds, (nfds_t)(1 + 2 * pairs), 20) <= 0)
            continue;
        for (int i = 1; i <= 2 * pairs; i++) {
            int other = i % 2 == 1 ? i + 1 : i - 1;
            if (fds[i].fd < 0 || fds[i].revents == 0)
                continue;
            ssize_t count = recv(fds[i].fd, data, sizeof data, 0);
            if (count <= 0) {
                close(fds[i].fd);
                close(fds[other].fd);
                fds[i].fd = fds[other].fd = -1;
                continue;
            }
            if (relay.trouble != NONE && (i % 2 == 1) == relay.of_client)
                make_trouble(data, count, fds[i].fd, fds[other].fd);
            write_all(fds[other].fd, data, count);
        }
        if (fds[0].revents != 0 && pairs < PAIRS) {
            struct sockaddr_in address = {.sin_family = AF_INET,
                                          .sin_addr.s_addr = htonl(0x7f000001),
                                          .sin_port = htons(relay.to)};
            int server = socket(AF_INET, SOCK_STREAM, 0);
            fds[1 + 2 * pairs] =
                (struct pollfd){.fd = accept(fds[0].fd, NULL, NULL), .events = POLLIN};
            fds[2 + 2 * pairs] = (struct pollfd){.fd = server, .events = POLLIN};
            assert_int_equal(connect(server, (struct sockaddr *)&address, sizeof address), 0);
            pairs++;
        }
    }
    for (int i = 1; i <= 2 * pairs; i++)
        if (fds[i].fd >= 0)
            close(fds[i].fd);
    return NULL;
}

/* ---- the bed ---- */

static struct bulk_server *server;
static struct bulk *bulk;

static void begin(enum trouble trouble, bool of_client, uint64_t every, uint64_t times)
{
    char address[32];
    uint16_t port;
    const struct bulk_server_options options = {
        .ops = &ops, .user = &world, .listener = listen_anywhere(&port), .num_connections = 16};
    for (uint32_t i = 0; i < BLOCKS; i++) {
        world.puts[i] = 0;
        world.have[i] = false;
    }
    world.ends = 0;
    memset(world.sink, 0, BLOCKS * BULK_BLOCK_BYTES);
    assert_int_equal(bulk_server_open(&server, &options), 0);
    relay = (struct relay){
        .to = port, .trouble = trouble, .of_client = of_client, .every = every, .times = times};
    relay.listener = listen_anywhere(&relay.port);
    assert_int_equal(pthread_create(&relay.thread, NULL, run_relay, NULL), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", relay.port);
    assert_int_equal(bulk_open(&bulk, &(struct bulk_options){.address = address, .ticket = ticket}),
                     0);
}

static void end(void)
{
    bulk_close(bulk);
    relay.is_closing = true;
    pthread_join(relay.thread, NULL);
    close(relay.listener);
    bulk_server_close(server);
}

/* ---- GET ---- */

static void get_all(uint64_t offset, uint64_t bytes)
{
    unsigned char *to = malloc(bytes);
    assert_non_null(to);
    assert_int_equal(
        bulk_get(bulk, &(struct bulk_get){.part = 7, .offset = offset, .bytes = bytes, .to = to},
                 WAIT_MS),
        0);
    assert_memory_equal(to, world.source + offset, bytes);
    free(to);
}

TEST(bytes_are_got_as_they_are)
{
    struct bulk_server_counts counts;
    struct bulk_counts got;
    begin(NONE, false, 1, 0);
    get_all(0, SOURCE_BYTES);
    get_all(12345, 1);
    get_all(SOURCE_BYTES - 3000000, 3000000);
    bulk_server_count(server, &counts);
    assert_true(counts.bytes_out >= SOURCE_BYTES);
    bulk_count(bulk, &got);
    assert_true(got.rtt_seconds > 0 && got.rtt_seconds < 10);
    end();
}

TEST(a_cut_goes_on_with_what_is_missing)
{
    struct bulk_counts counts;
    begin(CUT, false, 3u << 20, 4);
    get_all(0, SOURCE_BYTES);
    bulk_count(bulk, &counts);
    assert_true(counts.num_cuts >= 1); /* one connection may be cut twice */
    /* At a cut a connection has at most two runs under way. */
    assert_true(counts.bytes_again <= counts.num_cuts * (8u << 20));
    end();
}

TEST(damage_on_the_way_is_mended)
{
    begin(DAMAGE, false, 5u << 20, 2);
    get_all(0, SOURCE_BYTES);
    end();
}

/* A peer that sends its own hello. */
TEST(plain_bytes_are_hashed_whatever_a_client_wants)
{
    struct bulk_hello hello = {.magic = BULK_MAGIC, .wants = BULK_UNHASHED};
    struct bulk_answer answer = {.error = -1};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    begin(NONE, false, 1, 0);
    address.sin_port = htons(relay.to);
    memcpy(hello.ticket, ticket, sizeof ticket);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    assert_int_equal(recv(fd, &answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_int_equal(answer.error, 0);
    assert_int_equal(answer.grants, 0);
    close(fd);
    end();
}

TEST(what_is_not_there_is_told_with_its_reason)
{
    unsigned char byte;
    begin(NONE, false, 1, 0);
    assert_int_equal(
        bulk_get(bulk, &(struct bulk_get){.part = 8, .bytes = 1, .to = &byte}, WAIT_MS),
        ERR_NOT_FOUND);
    assert_string_equal(report_message(), "no such bytes");
    get_all(0, 100); /* the next one is not bothered */
    end();
}

TEST(a_peer_that_stands_still_is_an_error_in_time)
{
    unsigned char *to = malloc(SOURCE_BYTES);
    begin(HOLD, false, 1u << 20, 1);
    int error =
        bulk_get(bulk, &(struct bulk_get){.part = 7, .bytes = SOURCE_BYTES, .to = to}, 1000);
    assert_int_equal(error, ERR_TIMEOUT);
    end();
    free(to);
}

TEST(a_wrong_ticket_is_refused)
{
    static const uint8_t wrong[BULK_TICKET_BYTES] = "a wrong ticket..";
    char address[32];
    unsigned char byte;
    struct bulk *other;
    begin(NONE, false, 1, 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", relay.port);
    assert_int_equal(bulk_open(&other, &(struct bulk_options){.address = address, .ticket = wrong}),
                     0);
    assert_int_equal(
        bulk_get(other, &(struct bulk_get){.part = 7, .bytes = 1, .to = &byte}, WAIT_MS),
        ERR_DENIED);
    assert_string_equal(report_message(), "no ticket");
    assert_int_equal(bulk_check(other), ERR_DENIED);
    bulk_close(other);
    end();
}

/* ---- the pace of a connection ---- */

#define PACE_MS 500u

/* Sends `bytes` in pieces, one every so many milliseconds, and then keeps the socket open until the
 * reader has ended. */
struct sender {
    int socket;
    size_t bytes, piece;
    useconds_t pause_us;
    pthread_t thread;
};

static void *send_slowly(void *argument)
{
    const struct sender *sender = argument;
    for (size_t done = 0; done < sender->bytes; done += sender->piece) {
        if (send(sender->socket, world.source + done, sender->piece, MSG_NOSIGNAL) <= 0)
            return NULL;
        usleep(sender->pause_us);
    }
    return NULL;
}

/* The error of a read of `want` bytes, and in *out_ms its time. */
static int read_from(struct sender *sender, size_t want, int64_t *out_ms)
{
    struct timespec begun, ended;
    struct tls_stream *stream;
    void *to = malloc(want);
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_int_equal(tls_stream_open(&stream, NULL, pair[0], NULL, PACE_MS, NULL), 0);
    sender->socket = pair[1];
    assert_int_equal(pthread_create(&sender->thread, NULL, send_slowly, sender), 0);
    clock_gettime(CLOCK_MONOTONIC, &begun);
    int error = tls_stream_read(stream, to, want, PACE_MS);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    *out_ms = (ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000;
    tls_stream_close(stream); /* which ends the sender */
    pthread_join(sender->thread, NULL);
    close(pair[1]);
    free(to);
    return error;
}

TEST(a_message_that_dribbles_is_cut_and_a_slow_link_is_not)
{
    /* One that never stands still for PACE_MS; one of 100 KB/s; one that stops, whose credit does
     * not count. */
    struct sender dribbles = {.bytes = 1000, .piece = 1, .pause_us = 5000},
                  honest = {.bytes = 65536, .piece = 4096, .pause_us = 40000},
                  stops = {.bytes = 65536, .piece = 65536};
    int64_t ms;
    assert_int_equal(read_from(&dribbles, 1000, &ms), ERR_TIMEOUT);
    assert_in_range(ms, PACE_MS, 10 * PACE_MS);
    assert_int_equal(read_from(&honest, 65536, &ms), 0);
    assert_true(ms > (int64_t)PACE_MS);
    assert_int_equal(read_from(&stops, 65536 + 1, &ms), ERR_TIMEOUT);
    assert_in_range(ms, PACE_MS, 10 * PACE_MS);
}

/* ---- PUT ---- */

static int put_all(void)
{
    int error = 0;
    for (uint32_t i = 0; i < BLOCKS && error == 0; i++) {
        uint64_t at = (uint64_t)i * (BULK_BLOCK_BYTES / 2);
        error = bulk_put(bulk, &(struct bulk_put){.segment = 7,
                                                  .number = i,
                                                  .bytes = BULK_BLOCK_BYTES / 2,
                                                  .image_byte = at,
                                                  .from = world.source + at});
    }
    if (error == 0)
        error = bulk_put(bulk, &(struct bulk_put){.segment = 7, .number = BLOCKS});
    int flushed = bulk_flush(bulk);
    return error != 0 ? error : flushed;
}

static void check_put_once(void)
{
    assert_memory_equal(world.sink, world.source, BLOCKS * (BULK_BLOCK_BYTES / 2));
    for (uint32_t i = 0; i < BLOCKS; i++)
        assert_int_equal(world.puts[i], 1);
    assert_int_equal(world.ends, 1);
}

TEST(blocks_arrive_once_and_then_the_end)
{
    begin(NONE, false, 1, 0);
    assert_int_equal(put_all(), 0);
    check_put_once();
    end();
}

TEST(a_cut_sends_again_what_did_not_arrive)
{
    struct bulk_counts counts;
    begin(CUT, true, 2u << 20, 4);
    assert_int_equal(put_all(), 0);
    check_put_once();
    bulk_count(bulk, &counts);
    assert_true(counts.num_cuts >= 1); /* one connection may be cut twice */
    end();
}

TEST(a_block_that_came_after_it_was_asked_for_is_fine)
{
    world.is_late = true;
    begin(CUT, false, 64, 12); /* answers are lost */
    assert_int_equal(put_all(), 0);
    check_put_once();
    end();
    world.is_late = false;
}

TEST(a_damaged_block_is_sent_again)
{
    begin(DAMAGE, true, 5u << 20, 2);
    assert_int_equal(put_all(), 0);
    check_put_once();
    end();
}

TEST(a_refused_block_ends_the_save_and_not_the_next)
{
    begin(NONE, false, 1, 0);
    bulk_put(bulk, &(struct bulk_put){.segment = 8, .bytes = 100, .from = world.source});
    assert_int_equal(bulk_flush(bulk), ERR_DENIED);
    assert_int_equal(put_all(), 0);
    check_put_once();
    end();
}

TEST(what_is_dropped_is_over_when_the_call_returns)
{
    begin(HOLD, true, 1u << 20, 1);
    for (uint32_t i = 0; i < 4; i++)
        bulk_put(bulk, &(struct bulk_put){.segment = 7,
                                          .number = i,
                                          .bytes = BULK_BLOCK_BYTES,
                                          .image_byte = (uint64_t)i * BULK_BLOCK_BYTES,
                                          .from = world.source});
    bulk_drop(bulk);
    assert_int_equal(bulk_flush(bulk), 0);
    end();
}

TEST(the_window_is_told)
{
    struct arena_window window;
    begin(NONE, false, 1, 0);
    assert_int_equal(bulk_window(bulk, &window, 0, 10), 0);
    assert_int_equal(window.end, 4711);
    end();
}

/* ---- headers ---- */

TEST(headers_that_cannot_be_meant_are_refused)
{
    const struct bulk_request good = {.magic = BULK_MAGIC, .verb = BULK_PUT, .bytes = 1};
    struct bulk_request bad[] = {good, good, good, good, good, good, good, good};
    assert_int_equal(bulk_check_request(&good), 0);
    bad[0].magic++;
    bad[1].verb = 0;
    bad[2].verb = NUM_BULK_VERBS;
    bad[3].bytes = 0;
    bad[4].bytes = BULK_BLOCK_BYTES + 1;
    bad[5].offset = UINT64_MAX;
    bad[6].image_byte = UINT64_MAX;
    bad[7].number = BULK_NUMBERS_MAX;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(bulk_check_request(&bad[i]), ERR_CORRUPT);
    const struct bulk_request get = {
        .magic = BULK_MAGIC, .verb = BULK_GET, .offset = 5, .bytes = BULK_BLOCK_BYTES + 1};
    struct bulk_answer answer = {.magic = BULK_MAGIC, .offset = 5, .bytes = BULK_BLOCK_BYTES};
    assert_int_equal(bulk_check_answer(&answer, &get, 5), 0);
    assert_int_equal(bulk_check_answer(&answer, &get, 5 + BULK_BLOCK_BYTES), ERR_CORRUPT);
    answer.bytes++; /* more than there is room for */
    assert_int_equal(bulk_check_answer(&answer, &get, 5), ERR_CORRUPT);
    answer = (struct bulk_answer){.magic = BULK_MAGIC, .error = ERR_IO, .bytes = BULK_TEXT_MAX + 1};
    assert_int_equal(bulk_check_answer(&answer, &get, 5), ERR_CORRUPT);
}

TEST(an_address_without_a_host_is_on_the_same)
{
    char out[64];
    assert_int_equal(bulk_address(out, sizeof out, "n1:7070", ":7071", false), 0);
    assert_string_equal(out, "n1:7071");
    assert_int_equal(bulk_address(out, sizeof out, "n1:7070", "10.0.0.1:7071", false), 0);
    assert_string_equal(out, "10.0.0.1:7071");
}

/* The index of the connection that has to leave for a newcomer of `from`; -1: none, -2: none
 * can. */
static int leaves_for(struct tls_crowd *crowd, struct tls_newcomer *all, int newcomer,
                      const char *from, bool is_full)
{
    struct tls_newcomer *leaves;
    tls_newcomer_init(&all[newcomer], -1, from);
    if (!tls_crowd_enter(crowd, &all[newcomer], is_full, &leaves))
        return -2;
    return leaves ? (int)(leaves - all) : -1;
}

TEST(the_oldest_silent_stranger_makes_room_first)
{
    struct tls_crowd crowd = {.most = 4, .most_each = 3};
    struct tls_newcomer all[12];
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(leaves_for(&crowd, all, 0, "a", false), -1);
    tls_crowd_leave(&crowd, &all[0], true); /* so that address is known */
    assert_int_equal(leaves_for(&crowd, all, 0, "a", true), -2);
    assert_int_equal(leaves_for(&crowd, all, 0, "a", false), -1);
    assert_int_equal(leaves_for(&crowd, all, 1, "b", false), -1);
    all[1].has_spoken = true;
    assert_int_equal(leaves_for(&crowd, all, 2, "b", false), -1);
    assert_int_equal(leaves_for(&crowd, all, 3, "b", false), -1);
    assert_int_equal(leaves_for(&crowd, all, 4, "b", false), 2); /* its own, and silent */
    assert_int_equal(leaves_for(&crowd, all, 5, "c", false), 3); /* a stranger's, the oldest */
    assert_int_equal(leaves_for(&crowd, all, 6, "a", true), 4);
    assert_int_equal(leaves_for(&crowd, all, 7, "a", true), 5);
    assert_int_equal(leaves_for(&crowd, all, 8, "c", true), 0); /* known, but silent */
    tls_crowd_leave(&crowd, &all[0], false);
    all[6].has_spoken = all[7].has_spoken = true;
    all[8].socket = pair[1]; /* a byte of it waits there */
    assert_int_equal(send(pair[0], "x", 1, 0), 1);
    assert_int_equal(leaves_for(&crowd, all, 9, "c", true), 1); /* all have spoken: not "a" */
    close(pair[0]);
    close(pair[1]);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* as ckptd does */
    world.source = malloc(SOURCE_BYTES);
    world.sink = malloc(BLOCKS * BULK_BLOCK_BYTES);
    for (uint32_t i = 0; i < SOURCE_BYTES; i++)
        world.source[i] = (unsigned char)(i * 2654435761u >> 13);
    int failed = suite_run(NULL, NULL);
    free(world.source);
    free(world.sink);
    return failed;
}
